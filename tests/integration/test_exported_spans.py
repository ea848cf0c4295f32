"""Spans that a program of ours has exported, read back: the same calls as in its own log."""

from __future__ import annotations

from pathlib import Path

import pytest

import occupancy
from occupancy.call import Call

from . import host_program

PROGRAM = """
    import asyncio, os
    from google.protobuf.json_format import MessageToJson
    from host_program import *
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    import httpx2
    import occupancy

    provider, exporter = set_up_provider()
    provider.add_span_processor(occupancy.OccupancySpanProcessor(hold_span_end={held}))
    log = occupancy.instrument()
    server, both = Server(), asyncio.Event()

    async def ask(client, path):
        await client.get(path)

    async def main():
        async with httpx2.AsyncClient(base_url=server.url) as client:
            with trace.get_tracer("agent").start_as_current_span("agent"):
                await ask(client, "/ok")
                await ask(client, "/ok")
                await asyncio.gather(ask(client, "/ok"), ask(client, "/ok"))
                async with client.stream("GET", "/half") as first, client.stream("GET", "/half") as second:
                    pass  # two at once; both are closed before their ends
                await client.get("/404?key=secret")
                await client.get("/204")
                try:
                    await client.get("/cut")
                except httpx2.HTTPError:
                    pass

    asyncio.run(main())
    provider.force_flush()
    os.chdir("{folder}")
    spans = exporter.get_finished_spans()
    log.dump_csv("calls.csv")
    with open("spans.json", "w") as file:
        file.write(MessageToJson(encode_spans(spans)))  # ids in base64, times as strings, kinds as names
    with open("console.txt", "w") as file:
        file.writelines(span.to_json() + "\\n" for span in spans)
"""


@pytest.fixture(scope="module", params=[True, False], ids=["held", "not held"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the program has written its calls and its spans."""
    path = tmp_path_factory.mktemp("exported")
    host_program.run(path, PROGRAM.format(held=request.param, folder=path))
    return path


def facts(call: Call) -> dict[str, object]:
    """What a span tells exactly of a call."""
    names = (
        "call_id", "logical_id", "attempt", "trace_id", "span_id", "run", "kind", "label", "method", "host", "path",
        "status", "outcome", "error_type", "in_flight_start", "connection_reused", "client_ns", "pool_ns", "connect_ns",
        "send_ns", "wait_ns", "receive_ns", "call_stack", "async_task", "thread", "siblings", "siblings_held", "model",
        "after", "needs", "sync_in_event_loop",
    )  # fmt: skip
    stamps = ("headers_ns", "first_byte_ns", "last_byte_ns", "end_ns")
    since_start = {name: getattr(call, name) and getattr(call, name) - call.start_ns for name in stamps}
    return {name: getattr(call, name) for name in names} | since_start


def causes(log: occupancy.OccupancyLog) -> list[object]:
    """What a diagnosis names, without its times: a span does not tell when the running count dropped."""
    found = log.diagnose()
    return [(one.run, one.cause, one.n, one.peak) for one in found.verdicts] + [
        (one.cause, one.action, one.call_sites, one.runs) for one in found.findings
    ]


@pytest.mark.parametrize("name", ["spans.json", "console.txt"])
def test_they_are_the_calls_of_the_log(folder: Path, name: str) -> None:
    log, again = occupancy.read(folder / "calls.csv"), occupancy.read(folder / name)
    assert again.bad_rows == []
    by_id = {call.call_id: call for call in log.calls}
    for call in again.calls:
        assert facts(call) == facts(by_id.pop(call.call_id))
    assert by_id == {}
    assert "secret" not in (folder / name).read_text()
    assert causes(again) == causes(log)
