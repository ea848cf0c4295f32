"""Spans that the environment sends to a collector, by the one import and by `occupancy run`. Each test is a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from . import host_program
from .collector import HANG, collector, grpc_collector

START = """
    from host_program import *
    import occupancy.auto
    from opentelemetry import trace  # the API alone: no provider
"""
CALL_BOTH = """
    import httpx, httpx2
    server = Server()
    for library in (httpx, httpx2):
        with library.Client() as client:
            assert client.get(server.url + "/chunked").text == "abcde"
"""
TELL = """
    tell({"calls": call_dicts(occupancy.auto.log), "provider": trace._TRACER_PROVIDER is not None})
"""
ONE_CALL = """
    import httpx2
    server = Server()
    httpx2.get(server.url + "/ok")
"""


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing is shared with the process of the tests."""


def run(folder: Path, program: str, url: str | None = None, **options: Any) -> Any:
    """Run a program that exports to a collector, without a report."""
    environ = {"OCCUPANCY_REPORT": "0"} | ({} if url is None else {"OTEL_EXPORTER_OTLP_ENDPOINT": url})
    return host_program.run(folder, program, env=environ | options.pop("env", {}), **options)


def assert_each_once(spans: list[dict[str, Any]], calls: list[dict[str, Any]]) -> None:
    """Each call has one span that carries its numbers and ends as it ends."""
    assert [span["span_id"] for span in spans] == [call["span_id"] for call in calls]
    for call, span in zip(calls, spans, strict=True):
        attributes = span["attributes"]
        assert attributes["occupancy.in_flight_start"] == call["in_flight_start"] == 1
        assert attributes["occupancy.total_ms"] == call["total_ms"]
        assert span["end"] - span["events"]["last_byte"] == call["end_ns"] - call["last_byte_ns"]


# The one import


def test_one_import_exports_each_call_and_sets_no_provider(tmp_path: Path) -> None:
    with collector() as sink:
        told = run(tmp_path, START + CALL_BOTH + TELL + "    sys.exit(3)\n", sink.url, code=3)
    assert told["provider"] is False
    assert [path for path, _ in sink.requests] == ["/v1/traces"]  # all that there were, in one batch
    assert_each_once(sink.spans, told["calls"])


def test_variables_of_opentelemetry_hold(tmp_path: Path) -> None:
    with collector() as sink:
        env = {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": sink.url + "/mine",
            "OTEL_EXPORTER_OTLP_HEADERS": "x-key=any",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            "OTEL_SERVICE_NAME": "agent",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "1",
            "OTEL_SEMCONV_STABILITY_OPT_IN": "http",
        }
        run(tmp_path, START + CALL_BOTH + TELL, env=env)
    assert [path for path, _ in sink.requests] == ["/mine", "/mine"]
    assert [(headers["x-key"], headers["content-encoding"]) for headers in sink.headers] == [("any", "gzip")] * 2
    for span in sink.spans:
        assert span["resource"]["service.name"] == "agent"
        assert span["resource"]["deployment.environment"] == "test"
        assert span["attributes"]["http.request.method"] == "GET"  # the stable name


@pytest.mark.parametrize(
    "env",
    [
        {"OTEL_TRACES_SAMPLER": "always_off"},
        {"OCCUPANCY_SPANS": "0"},
        {"OCCUPANCY_ENABLED": "0"},
        {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "any"},
    ],
    ids=" ".join,
)
def test_what_switches_spans_off(tmp_path: Path, env: dict[str, str]) -> None:
    with collector() as sink:
        told = run(tmp_path, START + CALL_BOTH + TELL, sink.url, env=env)
    exports = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS" in env  # of others: it shows that the others are why
    assert len(sink.spans) == (2 if exports else 0)
    assert [call["outcome"] for call in told["calls"]] == ([] if "OCCUPANCY_ENABLED" in env else ["ok", "ok"])


def test_without_a_variable_nothing_is_imported(tmp_path: Path) -> None:
    program = (
        """
    from host_program import *
    import occupancy.auto
    """
        + ONE_CALL
    )
    program += """
    tell([name for name in sys.modules if name.startswith("opentelemetry")])
    """
    assert run(tmp_path, program) == []


def test_spans_go_to_the_console(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(f"import occupancy.auto\n{AGENT}", encoding="utf-8")
    done = execute([sys.executable, "program.py"], tmp_path, OTEL_TRACES_EXPORTER="console", OCCUPANCY_REPORT="0")
    assert (done.returncode, done.stderr) == (4, "")
    assert json.loads(done.stdout)["attributes"]["occupancy.outcome"] == "ok"


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"])
def test_protocol_grpc(tmp_path: Path, variable: str) -> None:
    with grpc_collector() as sink:
        told = run(tmp_path, START + CALL_BOTH + TELL, sink.url, env={variable: "grpc"})
    assert_each_once(sink.spans, told["calls"])


def test_stream_that_is_open_at_exit_is_exported(tmp_path: Path) -> None:
    program = (
        START
        + """
    import httpx
    server = Server()
    client = httpx.Client()
    opened = client.send(client.build_request("GET", server.url + "/half"), stream=True)
    chunks = opened.iter_raw()
    next(chunks)
    """
    )
    with collector() as sink:
        run(tmp_path, program, sink.url, ignore="ResourceWarning")
    (span,) = sink.spans
    assert span["attributes"]["occupancy.outcome"] == "abandoned"
    assert span["end"] == span["events"]["last_byte"]


# A host that sets its own provider

HOSTS = """
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    host = TracerProvider(resource=Resource.create({"service.name": "host"}))
    host.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(host)
    assert trace.get_tracer_provider() is host
"""


def services(sink: Any) -> list[str]:
    return [span["resource"]["service.name"] for span in sink.spans]


def test_provider_of_the_host_wins_from_when_it_is_set(tmp_path: Path) -> None:
    program = (
        START
        + CALL_BOTH
        + """
    held = httpx.Client()
    opened = held.send(held.build_request("GET", server.url + "/half"), stream=True)
    """
        + HOSTS
        + CALL_BOTH
        + """
    opened.close()
    held.close()
    """
    )
    with collector() as sink:
        told = run(tmp_path, program + TELL, sink.url, env={"OTEL_SERVICE_NAME": "ours"})  # nothing on stderr
    assert services(sink) == ["ours"] * 3 + ["host"] * 2
    assert sorted(span["span_id"] for span in sink.spans) == sorted(call["span_id"] for call in told["calls"])
    assert [span["attributes"]["occupancy.outcome"] for span in sink.spans] == ["ok", "ok", "closed_early", "ok", "ok"]


def test_provider_that_the_host_has_set_before_is_the_only_one(tmp_path: Path) -> None:
    with collector() as sink:
        run(tmp_path, START + HOSTS + CALL_BOTH + TELL, sink.url, env={"OTEL_SERVICE_NAME": "ours"})
    assert services(sink) == ["host"] * 2


def test_host_that_sets_a_provider_without_spans_has_none(tmp_path: Path) -> None:
    program = (
        START
        + CALL_BOTH
        + """
    trace.set_tracer_provider(trace.NoOpTracerProvider())
    """
    )
    with collector() as sink:
        told = run(tmp_path, program + CALL_BOTH + TELL, sink.url, ignore="DeprecationWarning")
    assert len(sink.spans) == 2
    assert [call["span_id"] is None for call in told["calls"]] == [False, False, True, True]


def test_host_with_a_processor_of_ours_and_a_provider_of_its_own_is_left_alone(tmp_path: Path) -> None:
    program = (
        START
        + """
    import occupancy
    provider, exporter = set_up_provider(register=False)
    provider.add_span_processor(occupancy.OccupancySpanProcessor())
    """
    )
    with collector() as sink:
        run(tmp_path, program + CALL_BOTH + TELL, sink.url)
    assert sink.spans == []


@pytest.mark.parametrize("order", ["before", "after"])
def test_host_that_instruments_httpx_for_nobody_has_no_span_twice(tmp_path: Path, order: str) -> None:
    instrument = """
    from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor, HTTPX2ClientInstrumentor
    HTTPXClientInstrumentor().instrument()
    HTTPX2ClientInstrumentor().instrument()
    """
    steps = [instrument, CALL_BOTH] if order == "before" else [CALL_BOTH, instrument, CALL_BOTH]
    with collector() as sink:
        run(tmp_path, START + "".join(steps) + TELL, sink.url)
    # Its spans go to the provider that it has not set: they are no affair of ours.
    assert len(sink.spans) == (0 if order == "before" else 2)


# A collector that fails

EXPORTS = (
    START
    + ONE_CALL
    + """
    httpx2.get(server.url + "/ok")
    tell(len(occupancy.auto.log.calls))
    sys.exit(5)
"""
)
LOST = "occupancy: spans are lost on their way to http://127.0.0.1:"


@pytest.mark.timeout(30)  # the SDK alone would wait for 30 s, and an exporter for as long as it is told
@pytest.mark.parametrize("answer", [503, 400, HANG])
def test_collector_that_fails_costs_a_line_and_a_moment_at_exit(tmp_path: Path, answer: int | str) -> None:
    with collector(answer) as sink:
        env = {"OTEL_EXPORTER_OTLP_TIMEOUT": "600"}
        assert run(tmp_path, EXPORTS, sink.url, env=env, code=5, log=LOST) == 2
    assert len(sink.spans) >= 2


@pytest.mark.timeout(30)
def test_collector_that_is_down_costs_a_line_and_a_moment_at_exit(tmp_path: Path) -> None:
    with collector() as sink:
        pass
    assert run(tmp_path, EXPORTS, sink.url, env={"OTEL_EXPORTER_OTLP_TIMEOUT": "600"}, code=5, log=LOST) == 2


@pytest.mark.timeout(30)
def test_calls_do_not_wait_for_a_collector(tmp_path: Path) -> None:
    program = (
        START
        + ONE_CALL
        + """
    for _ in range(20):
        httpx2.get(server.url + "/ok")
    """
    )
    env = {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "1", "OTEL_EXPORTER_OTLP_TIMEOUT": "600"}
    with collector(HANG) as sink:
        told = run(tmp_path, program + TELL, sink.url, env=env, log=LOST)
    assert len(told["calls"]) == 21
    assert len(sink.spans) == 1  # the collector has not answered to the first


# What cannot be had

MISSING = """
    import importlib.metadata
    importlib.metadata.entry_points = lambda **wanted: ()
"""


def test_exporter_that_is_missing_is_told_once(tmp_path: Path) -> None:
    told = "occupancy: spans are not exported: pip install 'occupancy[otlp]'"
    found = run(tmp_path, START + MISSING + CALL_BOTH + TELL, "http://127.0.0.1:4318", log=told)
    assert [call["outcome"] for call in found["calls"]] == ["ok", "ok"]


def test_value_that_the_sdk_refuses_is_told_once(tmp_path: Path) -> None:
    env = {"OTEL_BSP_MAX_QUEUE_SIZE": "-1"}
    told = "occupancy: spans are not exported: max_queue_size must be a positive integer."
    found = run(tmp_path, START + CALL_BOTH + TELL, "http://127.0.0.1:4318", env=env, log=told)
    assert [call["outcome"] for call in found["calls"]] == ["ok", "ok"]


# More than one process


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("how", ["fork", "multiprocessing fork", "multiprocessing spawn", "multiprocessing forkserver"])
def test_children_export_their_own(tmp_path: Path, how: str) -> None:
    kind = how.rpartition(" ")[2]
    program = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of 3.12 and later: threads and fork
from host_program import *
import multiprocessing
import occupancy.auto
import httpx2

def work(url):
    httpx2.get(url + "/1/ok")

if __name__ == "__main__":
    server = Server()
    httpx2.get(server.url + "/ok")
"""
    if how == "fork":
        program += """
    child = os.fork()
    if child == 0:
        work(server.url)
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
    else:
        program += f"""
    process = multiprocessing.get_context("{kind}").Process(target=work, args=(server.url,))
    process.start()
    process.join()
    assert process.exitcode == 0
"""
    program += '    httpx2.get(server.url + "/2/ok")\n'
    with collector() as sink:
        run(tmp_path, program, sink.url)
    paths = [span["attributes"]["http.url"].split("/", 3)[3] for span in sink.spans]
    assert paths == ["ok", "1/ok", "2/ok"]
    assert {span["attributes"]["occupancy.in_flight_start"] for span in sink.spans} == {1}


# occupancy run

AGENT = """
from host_program import *
import httpx2
server = Server()
httpx2.get(server.url + "/ok")
sys.exit(4)
"""


def execute(command: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, whose output is no terminal."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OCCUPANCY_", "OTEL_"))}
    kept["PYTHONPATH"] = os.pathsep.join((str(host_program.ROOT), str(host_program.HERE)))
    return subprocess.run(
        command, cwd=folder, env=kept | variables, capture_output=True, text=True, timeout=60, check=False
    )


def occupancy_run(folder: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the agent by `occupancy run` with these options."""
    (folder / "agent.py").write_text(AGENT, encoding="utf-8")
    command = [sys.executable, "-m", "occupancy", "run", "--no-report", *options, "agent.py"]
    return execute(command, folder, **variables)


def test_run_exports_to_the_collector_that_is_named(tmp_path: Path) -> None:
    with collector() as sink:
        done = occupancy_run(tmp_path, "--otlp", sink.url, OTEL_SERVICE_NAME="agent", OTEL_TRACES_EXPORTER="none")
    assert (done.returncode, done.stdout, done.stderr) == (4, "", "")
    assert [path for path, _ in sink.requests] == ["/v1/traces"]
    assert [span["resource"]["service.name"] for span in sink.spans] == ["agent"]


def test_run_exports_where_the_environment_says(tmp_path: Path) -> None:
    with collector() as sink:
        done = occupancy_run(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=sink.url)
    assert (done.returncode, done.stderr, len(sink.spans)) == (4, "", 1)


def test_run_names_a_url_that_it_cannot_use_and_runs_nothing(tmp_path: Path) -> None:
    done = occupancy_run(tmp_path, "--otlp", "127.0.0.1:4318")
    assert done.stderr == "occupancy: a collector must be a URL as http://127.0.0.1:4318, not '127.0.0.1:4318'\n"
    assert done.returncode == 1
