"""The span of a call over every way an exchange can end, on both libraries, sync, asyncio and trio."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from . import host_program

FLAVOURS = [(library, mode) for library in ("httpx", "httpx2") for mode in ("sync", "asyncio", "trio")]
ENDINGS = {
    "read": "ok",
    "read_at_once": "ok",
    "left_in_the_middle": "closed_early",
    "closed_unread": "closed_early",
    "collected": "abandoned",
    "cut": "error",
    "body_timeout": "timeout",
    "connect_error": "error",
    "read_timeout": "timeout",
    "pool_timeout": "timeout",
    "not_found": "http_error",
    "unavailable": "http_error",
    "no_content": "ok",
    "head": "ok",
}
"""What each ending makes of its last call."""
CANCELLED = ("cancelled_before_headers", "cancelled_in_body")

# One program drives all three: what is asynchronous is a coroutine that in the synchronous case never waits.
PROGRAM = """
    import asyncio, functools, gc, importlib, sys
    import trio
    from host_program import *
    import occupancy
    from occupancy.instrumentation import spans

    name, mode = "{library}", "{mode}"
    library = importlib.import_module(name)
    provider, exporter = set_up_provider()
    log = occupancy.instrument()
    server = Server()
    Client = library.Client if mode == "sync" else library.AsyncClient

    async def send(client, path, method="GET", url=None, **options):
        request = client.build_request(method, url or server.url + path, **options)
        if mode == "sync":
            return client.send(request, stream=True)  # the user's line
        return await client.send(request, stream=True)  # the user's line

    async def read(response):
        return response.read() if mode == "sync" else await response.aread()

    async def close(thing):
        thing.close() if mode == "sync" else await thing.aclose()

    async def read_first(response):
        chunks = iter(response.iter_raw()) if mode == "sync" else response.aiter_raw()
        return chunks, (next(chunks) if mode == "sync" else await anext(chunks))

    async def failing(function, *args, **options):
        try:
            await function(*args, **options)
        except library.HTTPError as error:
            return type(error).__name__

    async def read_all(client, path, method="GET"):
        response = await send(client, path, method)
        await read(response)
        return response.status_code

    async def read_at_once(client):
        if mode == "sync":
            return client.get(server.url + "/ok").text  # the user's line
        return (await client.get(server.url + "/ok")).text  # the user's line

    async def left_in_the_middle(client):
        response = await send(client, "/half")
        chunks, first = await read_first(response)
        await close(response)
        return first.decode()

    async def closed_unread(client):
        await close(await send(client, "/half"))

    async def collected(client):
        response = await send(client, "/half")
        held_now = len(spans.held)
        response = None
        gc.collect()
        provider.force_flush()
        return held_now, len(spans.held)

    async def body_timeout(client):
        response = await send(client, "/half", timeout=0.05)
        return await failing(read, response)

    async def connect_error(client):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            free = taken.getsockname()[1]
        return await failing(send, client, "", url=f"http://127.0.0.1:{{free}}/")

    async def pool_timeout(client):
        narrow = Client(limits=library.Limits(max_connections=1), timeout=library.Timeout(5, pool=0.01))
        response = await send(narrow, "/half")
        error = await failing(send, narrow, "/ok")
        await close(response)
        await close(narrow)
        return error

    async def redirected(client):
        client.follow_redirects = True
        response = await send(client, "/redirect")
        await read(response)
        return response.text

    async def cancelled(client, path, ready):
        async def run():
            response = await send(client, path)
            chunks, first = await read_first(response)
            begun.set()
            await anext(chunks)

        if mode == "asyncio":
            begun = asyncio.Event()
            task = asyncio.create_task(run())
            await (asyncio.to_thread(server.asked.acquire) if ready == "asked" else begun.wait())
            task.cancel()
            return (await asyncio.gather(task, return_exceptions=True))[0].__class__.__name__
        begun = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await (trio.to_thread.run_sync(server.asked.acquire) if ready == "asked" else begun.wait())
            nursery.cancel_scope.cancel()
        return "CancelledError"

    ENDINGS = {{
        "read": lambda client: read_all(client, "/chunked"),
        "read_at_once": read_at_once,
        "left_in_the_middle": left_in_the_middle,
        "closed_unread": closed_unread,
        "collected": collected,
        "cut": lambda client: failing(read_all, client, "/cut"),
        "body_timeout": body_timeout,
        "connect_error": connect_error,
        "read_timeout": lambda client: failing(send, client, "/silent", timeout=0.05),
        "pool_timeout": pool_timeout,
        "not_found": lambda client: read_all(client, "/404"),
        "unavailable": lambda client: read_all(client, "/503"),
        "no_content": lambda client: read_all(client, "/204"),
        "head": lambda client: read_all(client, "/head", "HEAD"),
        "redirected": redirected,
    }}
    if mode != "sync":
        ENDINGS["cancelled_before_headers"] = lambda client: cancelled(client, "/silent", "asked")
        ENDINGS["cancelled_in_body"] = lambda client: cancelled(client, "/half", "begun")

    async def main():
        told = {{}}
        for ending, run in ENDINGS.items():
            exporter.clear()
            before = log.finished
            client = Client()
            while server.asked.acquire(blocking=False):
                pass
            result = await run(client)
            await close(client)
            told[ending] = {{
                "result": result, "calls": call_dicts(log)[before:], "spans": span_dicts(exporter),
                "held": len(spans.held), "in_flight": log.in_flight,
            }}
        return told

    if mode == "sync":
        try:
            main().send(None)
        except StopIteration as stop:
            told = stop.value
    else:
        told = trio.run(main) if mode == "trio" else asyncio.run(main())
    tell(told)
"""


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing is shared with the process of the tests."""


@pytest.fixture(scope="module", params=FLAVOURS, ids="-".join)
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one flavour gives for each ending: the program's own result, the calls of the log and the spans."""
    library, mode = request.param
    folder = tmp_path_factory.mktemp(f"{library}-{mode}")
    # Under trio both libraries leave their own async generators to the collector, which trio warns of.
    ignore = "ResourceWarning" if mode == "trio" else ""
    told: dict[str, Any] = host_program.run(folder, PROGRAM.format(library=library, mode=mode), ignore=ignore)
    return told | {"folder": folder}


def seen(told: dict[str, Any], ending: str) -> dict[str, Any]:
    """What was seen of an ending, or a skip where the flavour has no such ending."""
    if ending not in told:
        pytest.skip("a synchronous call cannot be cancelled")
    found: dict[str, Any] = told[ending]
    return found


@pytest.mark.parametrize("ending", [*ENDINGS, "redirected", *CANCELLED])
def test_each_attempt_has_one_span_that_tells_the_same(told: dict[str, Any], ending: str) -> None:
    found = seen(told, ending)
    calls = sorted(call["span_id"] for call in found["calls"])
    assert sorted(span["span_id"] for span in found["spans"]) == calls
    assert len(set(calls)) == len(calls) > 0
    assert (found["held"], found["in_flight"]) == (0, 0)
    for call, span in pairs(found):
        check_times(call, span)
        check_attributes(call, span)
        check_call_site(call, span, told["folder"] / "program.py")


def check_times(call: dict[str, Any], span: dict[str, Any]) -> None:
    """The span ends with its call, and the events lie inside."""
    stamps = {name: call[f"{name}_ns"] for name in ("first_byte", "last_byte") if call[f"{name}_ns"] is not None}
    events = {name: at for name, at in span["events"].items() if name != "exception"}
    # One offset leads from the monotonic clock to the span's: for the end and for each event, to the nanosecond.
    offset_ns = span["end"] - call["end_ns"]
    assert events == {name: stamp_ns + offset_ns for name, stamp_ns in stamps.items()}
    assert all(span["start"] <= at <= span["end"] for at in events.values())
    assert span["start"] <= span["end"]


def check_attributes(call: dict[str, Any], span: dict[str, Any]) -> None:
    """The span carries the call's record."""
    of_ours = {name: value for name, value in span["attributes"].items() if name.startswith("occupancy.")}
    assert of_ours == expected_attributes(call)
    assert of_ours["occupancy.in_flight_start"] >= 1
    assert of_ours["occupancy.in_flight_end"] >= 1
    assert span["attributes"].get("http.request.resend_count", 0) == call["attempt"]


def check_call_site(call: dict[str, Any], span: dict[str, Any], program: Path) -> None:
    """The span names the user's line."""
    attributes = span["attributes"]
    assert attributes["code.file.path"] == str(program)
    line = program.read_text(encoding="utf-8").splitlines()[attributes["code.line.number"] - 1]
    assert line.endswith("# the user's line")
    assert [attributes["code.line.number"], attributes["code.function.name"]] == call["call_stack"][0][1:]


def pairs(found: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each call with its span."""
    spans = {span["span_id"]: span for span in found["spans"]}
    return [(call, spans[call["span_id"]]) for call in found["calls"]]


def expected_attributes(call: dict[str, Any]) -> dict[str, Any]:
    """The attributes of ours that a span must have, by its call."""
    names = (
        "in_flight_start", "in_flight_end", "wait_first_ms", "total_ms", "outcome", "kind", "label", "run", "attempt",
        "call_id", "logical_id", "connection_reused", "model", "async_task", "thread", "siblings", "siblings_held",
    )  # fmt: skip
    phases = ("client", "gate", "pool", "connect", "tls", "send", "wait", "receive")
    expected = {name: call[name] for name in names}
    expected |= {f"{name}_ms": None if call[f"{name}_ns"] is None else call[f"{name}_ns"] / 1e6 for name in phases}
    expected["sync_in_event_loop"] = call["sync_in_event_loop"] or None
    expected["call_stack"] = json.dumps(call["call_stack"]) if len(call["call_stack"]) > 1 else None
    return {f"occupancy.{name}": value for name, value in expected.items() if value is not None}


@pytest.mark.parametrize(("ending", "outcome"), ENDINGS.items())
def test_outcome(told: dict[str, Any], ending: str, outcome: str) -> None:
    assert told[ending]["spans"][-1]["attributes"]["occupancy.outcome"] in (outcome, "closed_early")
    assert outcome in [span["attributes"]["occupancy.outcome"] for span in told[ending]["spans"]]


@pytest.mark.parametrize(
    ("ending", "error", "events"),
    [
        ("cut", "RemoteProtocolError", {"first_byte", "last_byte"}),
        ("body_timeout", "ReadTimeout", {"first_byte", "last_byte"}),
        ("connect_error", "ConnectError", {"exception"}),
        ("read_timeout", "ReadTimeout", {"exception"}),
        ("pool_timeout", "PoolTimeout", {"exception"}),
    ],
)
def test_failure_is_an_error_of_its_type(told: dict[str, Any], ending: str, error: str, events: set[str]) -> None:
    assert told[ending]["result"] == error  # what the host gets
    failed = next(span for span in told[ending]["spans"] if span["attributes"]["occupancy.outcome"] != "closed_early")
    assert (failed["status"], failed["attributes"]["error.type"]) == ("ERROR", error)
    assert set(failed["events"]) == events


@pytest.mark.parametrize(("ending", "events"), [(CANCELLED[0], set()), (CANCELLED[1], {"first_byte", "last_byte"})])
def test_cancellation_is_an_error_of_its_type(told: dict[str, Any], ending: str, events: set[str]) -> None:
    found = seen(told, ending)
    assert found["result"] == "CancelledError"
    (span,) = found["spans"]
    assert span["status"] == "ERROR"
    assert span["attributes"]["occupancy.outcome"] == "cancelled"
    assert span["attributes"]["error.type"] in ("CancelledError", "Cancelled")
    assert set(span["events"]) == events


@pytest.mark.parametrize(("ending", "status"), [("not_found", 404), ("unavailable", 503)])
def test_http_error_keeps_its_status(told: dict[str, Any], ending: str, status: int) -> None:
    assert told[ending]["result"] == status
    (span,) = told[ending]["spans"]
    assert (span["status"], span["attributes"]["error.type"]) == ("ERROR", str(status))
    assert span["attributes"]["http.status_code"] == status


@pytest.mark.parametrize("ending", ["read", "read_at_once", "no_content", "head", "closed_unread"])
def test_success_is_no_error(told: dict[str, Any], ending: str) -> None:
    (span,) = told[ending]["spans"]
    assert span["status"] == "UNSET"
    assert "error.type" not in span["attributes"]


@pytest.mark.parametrize("ending", ["no_content", "head", "closed_unread"])
def test_no_byte_gives_no_event(told: dict[str, Any], ending: str) -> None:
    (span,) = told[ending]["spans"]
    assert span["events"] == {}
    assert "occupancy.wait_first_ms" not in span["attributes"]


def test_redirect_is_two_spans_of_one_logical_call(told: dict[str, Any]) -> None:
    first, second = told["redirected"]["spans"]
    assert told["redirected"]["result"] == "hello"
    assert [span["attributes"]["occupancy.attempt"] for span in (first, second)] == [0, 1]
    assert first["attributes"]["occupancy.logical_id"] == second["attributes"]["occupancy.logical_id"]
    assert "http.request.resend_count" not in first["attributes"]
    assert second["attributes"]["http.request.resend_count"] == 1


def test_span_of_a_collected_response_waits_for_the_collector_only(told: dict[str, Any]) -> None:
    held_before, held_after = told["collected"]["result"]
    assert (held_before, held_after) == (1, 0)
