"""An agent's spans in a real Phoenix server: sent over OTLP, read back through its API, and by `occupancy show`."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from occupancy import cli

pytestmark = pytest.mark.timeout(240)  # the first test waits for the server

AGENT = Path(__file__).with_name("phoenix_agent.py")
STEPS = ("plan", "tool_search", "tool_fetch", "recap")
FOUND_S = 30
"""How long spans may take from the exporter to the API."""


class Run(NamedTuple):
    """One agent, run to its end."""

    address: str
    """Of its project, for `occupancy show`."""
    log: dict[str, Any]
    """What its own log says."""
    spans: dict[str, dict[str, Any]]
    """Its spans in Phoenix, by label; those without one by name."""


@pytest.fixture(scope="module", params=["provider", "auto"])
def run(request: pytest.FixtureRequest, phoenix: str) -> Run:
    project = f"agent-{request.param}"
    settings = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": phoenix,
        "OTEL_RESOURCE_ATTRIBUTES": f"openinference.project.name={project}",
        "OCCUPANCY_REPORT": "0",
    }
    command = [sys.executable, AGENT, request.param]
    done = subprocess.run(
        command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stderr, done.returncode) == ("", 0)
    spans = await_spans(phoenix, project, 5 if request.param == "provider" else 4)
    by_label = {span["attributes"].get("occupancy.label", span["name"]): span for span in spans}
    return Run(f"phoenix+{phoenix}?project={project}", json.loads(done.stdout), by_label)


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


def test_each_call_has_its_first_and_its_last_byte(run: Run) -> None:
    for step in STEPS:
        span = run.spans[step]
        at = {event["name"]: event["timestamp"] for event in span["events"]}
        assert span["start_time"] < at["first_byte"] <= at["last_byte"] == span["end_time"]


def test_calls_carry_how_many_are_in_flight(run: Run) -> None:
    counts = {}
    for step in STEPS:
        attributes = run.spans[step]["attributes"]
        counts[step] = attributes["occupancy.in_flight_start"], attributes["occupancy.in_flight_end"]
    assert counts == {"plan": (1, 1), "tool_search": (1, 2), "tool_fetch": (2, 1), "recap": (1, 1)}


def test_calls_carry_what_a_fleet_is_grouped_by(run: Run) -> None:
    attributes = run.spans["plan"]["attributes"]
    assert (attributes["occupancy.label"], attributes["occupancy.model"]) == ("plan", "mock-1")


def test_calls_lie_below_the_span_that_was_current(run: Run) -> None:
    above = run.spans["agent"]["context"]["span_id"] if "agent" in run.spans else None
    assert {run.spans[step]["parent_id"] for step in STEPS} == {above}
    if above is not None:
        assert run.spans["agent"]["parent_id"] is None
        assert len({span["context"]["trace_id"] for span in run.spans.values()}) == 1


def test_what_is_shown_is_what_the_agents_own_log_says(run: Run) -> None:
    result = CliRunner().invoke(cli.group, ["show", "--json", run.address], prog_name="occupancy")
    shown = json.loads(result.output)
    assert (shown["n"], shown["peak"]) == (run.log["n"], run.log["peak"]) == (4, 2)
    # Phoenix keeps us: the wall, of more than 900 ms, can be off by one at both ends.
    assert shown["mean_in_flight"] == pytest.approx(run.log["mean_in_flight"], rel=1e-5)
