"""An agent's spans in a real Phoenix server: sent over OTLP, read back through its API."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(240)  # the first test waits for the server

AGENT = Path(__file__).with_name("phoenix_agent.py")
FOUND_S = 30
"""How long spans may take from the exporter to the API."""


@pytest.fixture(scope="module")
def run(phoenix: str) -> dict[str, Any]:
    """What the agent's own log says, and its spans in Phoenix by label."""
    settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": phoenix, "OTEL_RESOURCE_ATTRIBUTES": "openinference.project.name=agent"}
    done = subprocess.run(
        [sys.executable, AGENT], env={**os.environ, **settings}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    log = json.loads(done.stdout)
    return {"log": log, "spans": {name_of(span): span for span in await_spans(phoenix, "agent", log["n"] + 1)}}


def name_of(span: dict[str, Any]) -> str:
    label: str = span["attributes"].get("occupancy.label", span["name"])
    return label


def await_spans(url: str, project: str, n: int) -> list[dict[str, Any]]:
    """The spans of a project, once there are n."""
    deadline = time.monotonic() + FOUND_S
    spans: list[dict[str, Any]] = []
    while len(spans) < n and time.monotonic() < deadline:
        time.sleep(0.2)
        try:
            with urllib.request.urlopen(f"{url}/v1/projects/{project}/spans?limit=100", timeout=10) as answer:
                spans = json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code != 404:  # the project is made with its first span
                raise
    assert len(spans) == n
    return spans


def test_each_call_has_its_first_and_its_last_byte(run):
    for label in ("plan", "tool_search", "tool_fetch", "recap"):
        span = run["spans"][label]
        at = {event["name"]: event["timestamp"] for event in span["events"]}
        assert span["start_time"] < at["first_byte"] <= at["last_byte"] == span["end_time"]


def test_calls_carry_how_many_are_in_flight(run):
    counts = {
        label: (span["attributes"]["occupancy.in_flight_start"], span["attributes"]["occupancy.in_flight_end"])
        for label, span in run["spans"].items()
        if label != "agent"
    }
    assert counts == {"plan": (1, 1), "tool_search": (1, 2), "tool_fetch": (2, 1), "recap": (1, 1)}


def test_calls_lie_below_the_span_that_was_current(run):
    agent = run["spans"]["agent"]
    assert agent["parent_id"] is None
    parents = {label: span["parent_id"] for label, span in run["spans"].items() if label != "agent"}
    assert set(parents.values()) == {agent["context"]["span_id"]}
    assert {span["context"]["trace_id"] for span in run["spans"].values()} == {agent["context"]["trace_id"]}
