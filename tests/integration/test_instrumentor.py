"""`opentelemetry-instrument`, and `OccupancyInstrumentor` among the instrumentors of a host. Each test is a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from . import host_program
from .collector import collector
from .test_providers import CALL_BOTH, PROVIDER, START, check

TELL = """
    from occupancy.instrumentation import spans
    log = occupancy.instrument()
    tell({"spans": span_dicts(exporter), "calls": call_dicts(log), "held": len(spans.held)})
"""
OURS = """
    import occupancy
    occupancy.OccupancyInstrumentor().instrument()
"""
THEIRS = """
    from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor, HTTPX2ClientInstrumentor
    HTTPXClientInstrumentor().instrument()
    HTTPX2ClientInstrumentor().instrument()
"""
AGENT = """
import sys
from host_program import *
import httpx, httpx2
server = Server()
for library in (httpx, httpx2):
    library.get(server.url + "/chunked")
from occupancy.capture import process_log
tell([] if process_log() is None else call_dicts(process_log()))
sys.exit(3)
"""
INSTRUMENT = Path(sys.executable).with_name("opentelemetry-instrument")


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing is shared with the process of the tests."""


def run_instrumented(folder: Path, url: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the agent as it is by `opentelemetry-instrument`."""
    (folder / "agent.py").write_text(AGENT, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OCCUPANCY_", "OTEL_"))}
    kept["PYTHONPATH"] = os.pathsep.join((str(host_program.ROOT), str(host_program.HERE)))
    exports = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
    }
    command = [str(INSTRUMENT), sys.executable, "agent.py"]
    return subprocess.run(
        command, cwd=folder, env=kept | exports | variables, capture_output=True, text=True, timeout=60, check=False
    )


def calls_of(done: subprocess.CompletedProcess[str]) -> list[Any]:
    """What the agent has told."""
    assert (done.returncode, done.stderr) == (3, "")
    calls: list[Any] = host_program.json.loads(done.stdout)
    return calls


def test_the_command_stamps_each_span_once(tmp_path: Path) -> None:
    with collector() as sink:
        calls = calls_of(run_instrumented(tmp_path, sink.url))
    assert [span["span_id"] for span in sink.spans] == [call["span_id"] for call in calls]
    assert len(calls) == 2
    for call, span in zip(calls, sink.spans, strict=True):
        assert span["resource"]["telemetry.auto.version"]  # the provider is that of the command
        assert span["attributes"]["occupancy.call_id"] == call["call_id"]
        assert span["end"] - span["events"]["last_byte"] == call["end_ns"] - call["last_byte_ns"]


@pytest.mark.parametrize(
    ("variables", "calls", "spans", "stamped"),
    [
        ({"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "occupancy"}, 0, 2, 0),
        ({"OCCUPANCY_ENABLED": "0"}, 0, 2, 0),
        ({"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "httpx, httpx2"}, 2, 0, 0),
        ({"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "httpx2"}, 2, 1, 1),
        ({"OTEL_TRACES_EXPORTER": "none"}, 2, 0, 0),
    ],
)
def test_what_the_command_is_told_not_to_do(
    tmp_path: Path, variables: dict[str, str], calls: int, spans: int, stamped: int
) -> None:
    with collector() as sink:
        found = calls_of(run_instrumented(tmp_path, sink.url, **variables))
    assert (len(found), len(sink.spans)) == (calls, spans)
    assert sum("occupancy.call_id" in span["attributes"] for span in sink.spans) == stamped


def test_a_journal_that_cannot_be_written_hinders_nobody(tmp_path: Path) -> None:
    with collector() as sink:
        done = run_instrumented(tmp_path, sink.url, OCCUPANCY_JOURNAL=str(tmp_path / "no" / "calls.jsonl"))
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert line.startswith("occupancy: cannot write the journal")
    assert sum("occupancy.call_id" in span["attributes"] for span in sink.spans) == 2


@pytest.mark.parametrize(
    "steps",
    [
        [PROVIDER, OURS, THEIRS],
        [PROVIDER, THEIRS, OURS],
        [PROVIDER, OURS],
        [OURS, THEIRS, PROVIDER],
        [THEIRS, OURS, PROVIDER],
        [OURS, PROVIDER],
    ],
    ids=["ours theirs", "theirs ours", "ours", "ours theirs provider", "theirs ours provider", "ours provider"],
)
def test_no_span_twice_in_any_order(tmp_path: Path, steps: list[str]) -> None:
    check(host_program.run(tmp_path, START + "".join(steps) + CALL_BOTH + TELL), 2)


def test_spans_go_to_the_provider_that_is_named(tmp_path: Path) -> None:
    program = START + PROVIDER
    program += """
    import occupancy
    mine, own = set_up_provider(register=False)
    occupancy.OccupancyInstrumentor().instrument(tracer_provider=mine)
    """
    program += CALL_BOTH
    program += """
    assert exporter.get_finished_spans() == ()
    exporter = own
    """
    check(host_program.run(tmp_path, program + TELL), 2)


def test_switched_off_and_on_again(tmp_path: Path) -> None:
    program = START + PROVIDER + OURS + CALL_BOTH
    program += """
    occupancy.OccupancyInstrumentor().uninstrument()
    """
    program += CALL_BOTH + OURS + CALL_BOTH
    program += """
    ours = [p for p in provider._active_span_processor._span_processors if "occupancy" in type(p).__module__]
    assert len(ours) == 1, ours
    """
    check(host_program.run(tmp_path, program + TELL), 4)
