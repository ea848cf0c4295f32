"""Trace files of others, against numbers that were worked out apart from this project; skipped where they are not."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import occupancy
from occupancy.analysis.columns import MISSING
from occupancy.analysis.steps import steps_on_wire
from occupancy.errors import ReadError

HOME = Path(os.environ.get("OCCUPANCY_TRACES") or Path(__file__).parents[3] / "shared" / "traces")
"""A folder of traces with their `oracle.json`."""

SELECT = {
    "all_spans": "all",
    "all_observations": "all",
    "client_spans": "client",
    "genai_inference_spans": "genai",
    "leaf_generations": "genai",
    "generations": "langfuse.observation.type=generation",
    "call_llm": "gen_ai.operation.name=call_llm",
    "entries": None,
    "measured": None,
}
"""What the oracle calls a selection, and how one asks for it."""


TWICE = "otlp/otlp2jaeger-in.json"
"""Holds its one span twice, which the oracle counts as two."""


def oracle() -> list[tuple[str, str, dict[str, Any]]]:
    """File, selection and numbers."""
    if not (HOME / "oracle.json").exists():
        return []
    files = json.loads((HOME / "oracle.json").read_text())["files"]
    return [
        (file["file"], name, numbers)
        for file in files
        for name, numbers in file["oracle"].items()
        if name in SELECT and (file["file"] != TWICE or not numbers["n_used"])
    ]


@pytest.mark.skipif(not oracle(), reason="the traces are not here")
@pytest.mark.parametrize(
    ("file", "name", "numbers"), oracle(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_file_gives_the_numbers_of_the_oracle(file: str, name: str, numbers: dict[str, Any]) -> None:
    log = occupancy.read(HOME / file, select=SELECT[name])
    summary = log.summary()
    assert len(log.bad_rows) == numbers["n_negative"] + numbers["n_missing_end"]
    assert summary.n == numbers["n_used"]
    if numbers["n_used"] == 0:
        return
    steps = log.steps()
    peak_at_ns = int(steps.t_ns[steps.in_flight == summary.peak][0]) - summary.start_ns
    level_ns = [*summary.level_ns, 0]
    found = {
        "n_zero": sum(call.end_ns == call.start_ns for call in log.calls),
        "t0_ns": log.origin_unix_ns + summary.start_ns - log.origin_ns,
        "wall_ns": summary.wall_ns,
        "busy_total_ns": sum((call.end_ns or 0) - call.start_ns for call in log.calls),
        "peak": summary.peak,
        "peak_at_ns_after_t0": peak_at_ns,
        "ge1_ns": summary.busy_ns,
        "eq1_ns": level_ns[1],
    }
    assert found == {key: numbers[key] for key in found}
    assert summary.mean_in_flight == pytest.approx(numbers["mean"], rel=1e-12)
    assert summary.level_share[1] == pytest.approx(numbers["frac_eq1"], rel=1e-12)
    assert 1 - summary.level_share[0] == pytest.approx(numbers["frac_ge1"], rel=1e-12)


@pytest.mark.skipif(not oracle(), reason="the traces are not here")
@pytest.mark.parametrize("file", sorted(file for file, name, _ in oracle() if name == "entries"))
def test_entries_of_a_har_wait_for_a_connection_first(file: str) -> None:
    files = {known["file"]: known["oracle"] for known in json.loads((HOME / "oracle.json").read_text())["files"]}
    numbers, log = files[file]["entries_minus_blocked"], occupancy.read(HOME / file)
    columns = log.columns()
    on_wire = steps_on_wire(columns)
    assert (on_wire.peak, on_wire.wall_ns, on_wire.busy_ns) == (
        numbers["peak"],
        numbers["wall_ns"],
        numbers["ge1_ns"],
    )
    assert on_wire.mean == pytest.approx(numbers["mean"], rel=1e-12)
    known = columns["headers_ns"] != MISSING
    assert np.median((columns["headers_ns"] - columns["start_ns"])[known]) == files[file]["ttfb_median_ns"]


@pytest.mark.skipif(not oracle(), reason="the traces are not here")
def test_a_page_of_a_har_is_a_run() -> None:
    runs = occupancy.read(HOME / "har" / "browsertime_sitespeed.io.har").summary().by_run
    assert [(run.run, run.n, run.peak) for run in runs] == [("page_1", 9, 7), ("page_1-1", 9, 7), ("page_1-1-1", 9, 7)]


@pytest.mark.skipif(not oracle(), reason="the traces are not here")
def test_arrivals_without_durations_are_told() -> None:
    with pytest.raises(
        ReadError, match=r"column 'TIMESTAMP' says when requests came, and no column how long they took"
    ):
        occupancy.read(HOME / "llm_arrivals" / "AzureLLMInferenceTrace_code.csv")


@pytest.mark.skipif(not oracle(), reason="the traces are not here")
def test_what_counts_as_a_call_is_each_request_once() -> None:
    log = occupancy.read(HOME / "jaeger" / "genaiTestTrace.json")
    assert [
        (call.label, call.path, call.model, call.input_tokens) for call in sorted(log.calls, key=lambda c: c.call_id)
    ] == [
        ("chat model-a", "/v1/messages", "model-a", 1840),
        ("chat model-a", "/v1/messages", "model-a", 1840),
        ("chat model-a", "/v1/messages", "model-a", 1840),
        ("chat model-b", "/v1/messages", "model-b", 920),
        ("chat model-a", "/v1/messages", "model-a", 1840),
    ]


@pytest.mark.skipif(not oracle(), reason="the traces are not here")
def test_spans_of_a_server_are_no_calls() -> None:
    with pytest.raises(ReadError, match=r"its one span .* --select all"):
        occupancy.read(HOME / TWICE)
    assert occupancy.read(HOME / TWICE, select="all").summary().n == 1
