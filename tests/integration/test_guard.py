"""Whatever of ours fails inside the host's call: the host gets what it would have got, and one line is logged.

What runs there is not listed but watched: a profiler sees every function of ours that a rich program reaches, and each
in turn is made to raise.
"""

import asyncio
import gc
import inspect
import itertools
import logging
import pkgutil
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import aiohttp
import pytest
import urllib3
from blocking_clients import CLIENTS
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind

import occupancy
from occupancy import _guard
from occupancy.instrumentation import attempts
from occupancy.ledger import ledger

HOME = str(Path(occupancy.__file__).parent)
JSON = "/generate/plan?x-mock-delay-ms=0"
CARRIERS = {
    "occupancy._guard.report",  # the guards themselves
    "occupancy._guard.quietly",
    # What the host's own calls pass through. They only call guarded functions and what they wrap.
    "occupancy.instrumentation.stream._Wrapper.__init__",
    "occupancy.instrumentation.stream._Wrapper.__getattr__",
    "occupancy.instrumentation.stream.Body.__iter__",
    "occupancy.instrumentation.stream.Body.close",
    "occupancy.instrumentation.stream.Chunks.__iter__",
    "occupancy.instrumentation.stream.Chunks.__next__",
    "occupancy.instrumentation.stream.Chunks.close",
    "occupancy.instrumentation.stream.Chunks.__del__",
    "occupancy.instrumentation.stream.AsyncBody.__aiter__",
    "occupancy.instrumentation.stream.AsyncBody.aclose",
    "occupancy.instrumentation.stream.AsyncChunks.__aiter__",
    "occupancy.instrumentation.stream.AsyncChunks.__anext__",
    "occupancy.instrumentation.stream.AsyncChunks._step",
    "occupancy.instrumentation.stream.AsyncChunks.aclose",
    "occupancy.instrumentation.stream.AsyncChunks.__del__",
    "occupancy.instrumentation.spans.HeldEnd.__call__",  # guards itself, since it must end the span all the same
    "occupancy.instrumentation.phases.Trace.__call__",
    "occupancy.instrumentation.phases.AsyncTrace.__call__",
    "occupancy.instrumentation.phases._nothing",
    "occupancy.instrumentation.aiohttp_hooks.ConnectionTrace.send_connection_create_start",
    "occupancy.instrumentation.aiohttp_hooks.ConnectionTrace.send_connection_create_end",
    "occupancy.instrumentation.aiohttp_hooks.ConnectionTrace.send_connection_reuseconn",
    "occupancy.instrumentation.aiohttp_hooks.ConnectionTrace.__getattr__",
    "occupancy.instrumentation.aiohttp_hooks._ignore",
    "occupancy.instrumentation.aiohttp_body.Incoming.__call__",
    "occupancy.instrumentation.attempts.follow",
    "occupancy.instrumentation.requests_hooks._linked",
    "occupancy.instrumentation.socket_body.Arrivals.__call__",
    "occupancy.instrumentation.socket_body.SocketBody.__init__",
    "occupancy.instrumentation.socket_body.SocketBody.__getattr__",
    "occupancy.instrumentation.socket_body.SocketBody.__iter__",
    "occupancy.instrumentation.socket_body.SocketBody.__next__",
    "occupancy.instrumentation.socket_body.SocketBody.read",
    "occupancy.instrumentation.socket_body.SocketBody.read1",
    "occupancy.instrumentation.socket_body.SocketBody.readinto",
    "occupancy.instrumentation.socket_body.SocketBody.readline",
    "occupancy.instrumentation.socket_body.SocketBody._read",
    "occupancy.instrumentation.socket_body.SocketBody.close",
}
FOUND_WITH_AIOHTTP = {
    f"occupancy.instrumentation.aiohttp_{name}"
    for name in (
        "hooks.begin", "hooks.fail", "hooks.enter", "hooks.with_trace", "hooks.note_opened", "hooks.keep",
        "hooks.respond", "hooks.Attempt.note", "hooks.Attempt.fail", "body.attach", "body.note_piece",
        "body.note_error", "body.note_wait", "body.close", "body.Incoming.feed", "body.incoming_of",
    )
}  # fmt: skip
FOUND_BELOW_HTTP_CLIENT = {
    "occupancy.instrumentation.attempts.begin_url",
    "occupancy.instrumentation.attempts.fail",
    "occupancy.instrumentation.attempts.leave",
    "occupancy.instrumentation.http_client_hooks.enter",
    "occupancy.instrumentation.http_client_hooks.begin_sending",
    "occupancy.instrumentation.http_client_hooks.respond",
    "occupancy.instrumentation.http_client_hooks.close",
    "occupancy.instrumentation.http_client_hooks.Exchange.fail",
    "occupancy.instrumentation.http_client_hooks.Exchange.note",
    "occupancy.instrumentation.http_client_hooks.Exchange.end_connecting",
    "occupancy.instrumentation.urllib3_hooks.begin",
    "occupancy.instrumentation.urllib3_hooks.link",
    "occupancy.instrumentation.urllib3_hooks.pass_down",
    "occupancy.instrumentation.requests_hooks.begin",
    "occupancy.instrumentation.urllib_hooks.begin",
    "occupancy.instrumentation.urllib_hooks.link",
    "occupancy.instrumentation.botocore_hooks.begin",
    "occupancy.instrumentation.socket_body.watch_arrivals",
    "occupancy.instrumentation.socket_body.Arrivals._note",
    "occupancy.instrumentation.socket_body.SocketBody._note",
    "occupancy.instrumentation.socket_body.SocketBody._note_close",
}
FOUND_AT_LEAST = {
    "occupancy.instrumentation.httpx_hooks.begin",
    "occupancy.instrumentation.httpx_hooks.respond",
    "occupancy.instrumentation.httpx_hooks.fail",
    "occupancy.instrumentation.httpx_hooks.enter_pool",
    "occupancy.instrumentation.httpx_hooks.leave_pool",
    "occupancy.instrumentation.httpx_hooks.fail_in_pool",
    "occupancy.instrumentation.phases.Phases.note",
    "occupancy.instrumentation.stream.BodyStamps.chunk",
    "occupancy.instrumentation.stream.BodyStamps.complete",
    "occupancy.instrumentation.stream.BodyStamps.close",
    "occupancy.instrumentation.stream.BodyStamps.drop",
    "occupancy.instrumentation.stream.BodyStamps.fail",
    "occupancy.instrumentation.stream.EventScanner.feed",
    "occupancy.instrumentation.evidence.note_request",
    "occupancy.instrumentation.evidence.reader_of",
    "occupancy.instrumentation.evidence.Reader.feed",
    "occupancy.instrumentation.evidence.Reader.end",
    "occupancy.instrumentation.spans.claim",
    "occupancy.instrumentation.spans.HeldEnd.__call__",
    "occupancy.instrumentation.provider.look_for_provider",
    "occupancy.flight.Flight.__del__",
    "occupancy.flight.Flight.abandon",
    "occupancy.ledger.Ledger.start",
    "occupancy.ledger.Ledger.settle",
    "occupancy.caller.describe",
    "occupancy.log.OccupancyLog._start",
    "occupancy.instrumentation.metric_counts.Counts._start",
    "occupancy.instrumentation.metric_counts.Counts._release",
    "occupancy.instrumentation.open_connections.note",
    "occupancy.rows.Rows.add",
}


def functions_of(holder: Any, path: str) -> Iterator[tuple[CodeType, str, FunctionType]]:
    """Every function of a module or class, with its code and its name, guards and properties opened."""
    for name, value in list(vars(holder).items()):
        if isinstance(value, type) and value.__module__.startswith("occupancy") and value.__qualname__ == name:
            yield from functions_of(value, f"{path}.{name}")
        function = value.fget if isinstance(value, property) else inspect.unwrap(getattr(value, "__func__", value))
        if isinstance(function, FunctionType):
            yield function.__code__, f"{path}.{name}", function


@pytest.fixture(scope="module")
def functions() -> dict[CodeType, tuple[str, FunctionType]]:
    """Our functions by their code."""
    found: dict[CodeType, tuple[str, FunctionType]] = {}
    for module in pkgutil.walk_packages(occupancy.__path__, "occupancy."):
        if module.name.rpartition(".")[2] in ("__main__", "auto", "notebook", "pytest_plugin"):
            continue
        if module.name.split(".")[1] in (
            "views",
            "analysis",
            "formats",
            "demo",
            "reporting",
            "probe",
            "control",
            "cli",
        ):
            continue
        loaded = import_module(module.name)
        for code, path, function in functions_of(loaded, module.name):
            if function.__module__ == module.name:
                found[code] = path, function
    gc.collect()
    gc.freeze()  # the modules that have come with it, as in `small_heap`
    return found


async def program(stack: Any) -> Any:
    """All ways a call can go, in one program; what its user sees."""
    tracer = TracerProvider().get_tracer("opentelemetry.instrumentation.httpx")
    inner = stack.transport()

    class Traced(stack.library.AsyncBaseTransport if stack.is_async else stack.library.BaseTransport):
        """As OpenTelemetry's: a span of its own around the network's transport."""

        def handle_request(self, request: Any) -> Any:
            with tracer.start_as_current_span("GET", kind=SpanKind.CLIENT):
                return inner.handle_request(request)

        async def handle_async_request(self, request: Any) -> Any:
            with tracer.start_as_current_span("GET", kind=SpanKind.CLIENT):
                return await inner.handle_async_request(request)

        def close(self) -> None:
            inner.close()

        async def aclose(self) -> None:
            await inner.aclose()

    seen: list[Any] = []
    async with stack.opened(stack.client(transport=Traced(), follow_redirects=True)) as client:
        await read_all(stack, client, seen)
        await leave_early(stack, client, seen)
    await use_mock(stack, seen)
    await fail_all(stack, seen)
    return seen


async def read_all(stack: Any, client: Any, seen: list[Any]) -> None:
    for headers in ({}, {"x-mock-redirect": "1"}, {"x-mock-status": "500"}, {"x-mock-retry-after": "1"}):
        response = await stack.done(client.get(stack.gateway + JSON, headers=headers))
        seen.append((response.status_code, response.content, response.is_closed))
    headers = {"x-stainless-retry-count": "1"}
    body = {"model": "m", "stream": True, "messages": []}
    url = stack.gateway + "/v1/chat/completions"
    async with stack.opened(client.stream("POST", url, json=body, headers=headers)) as response:
        seen.append(len([line async for line in stack.pieces(response, "lines")]))


async def leave_early(stack: Any, client: Any, seen: list[Any]) -> None:
    async with stack.opened(client.stream("GET", stack.gateway + JSON, headers={"x-mock-chunks": "3"})) as response:
        async for chunk in stack.pieces(response):
            seen.append(bool(chunk))
            break
    request = client.build_request("GET", stack.gateway + JSON)
    response = await stack.done(client.send(request, stream=True))
    seen.append(response.status_code)
    chunks = (response.stream.__aiter__ if stack.is_async else response.stream.__iter__)()
    seen.append(bool(await stack.over(chunks).__anext__()))
    del chunks, response  # and so their finalizers run here
    response = await stack.done(client.send(client.build_request("GET", stack.gateway + JSON), stream=True))
    del response
    gc.collect()  # in httpx a response is a cycle, and ours is told of each collection


async def use_mock(stack: Any, seen: list[Any]) -> None:
    async def parts() -> Any:
        yield b"ab"

    def answer(request: Any) -> Any:
        content = b"cd" if request.url.path == "/bytes" else parts() if stack.is_async else iter([b"ab"])
        if request.url.path == "/fail":
            raise LookupError("the host's transport")
        return stack.library.Response(200, content=content)

    async with stack.opened(stack.client(transport=stack.library.MockTransport(answer))) as client:
        for path in ("/bytes", "/stream"):
            seen.append((await stack.done(client.get("http://mock" + path))).content)
        with pytest.raises(LookupError, match="the host's transport"):
            await stack.done(client.get("http://mock/fail"))


async def fail_all(stack: Any, seen: list[Any]) -> None:
    async with stack.opened(stack.client()) as client:
        for headers in ({"x-mock-cut": "before-headers"}, {"x-mock-cut": "mid-body"}):
            try:
                await stack.done(client.get(stack.gateway + JSON, headers=headers))
            except stack.library.RemoteProtocolError as error:
                seen.append(str(error))
        seen.append((await stack.done(client.get(stack.gateway + JSON))).content)
    pool = stack.core.AsyncConnectionPool() if stack.is_async else stack.core.ConnectionPool()
    async with stack.opened(pool):
        seen.append((await stack.done(pool.request("GET", stack.gateway + JSON))).content)


def blocking_program(gateway: str) -> list[Any]:
    """The same for the clients on `http.client`."""
    seen: list[Any] = []
    chat = b'{"model": "m", "stream": true, "messages": []}'
    for name, client_class in CLIENTS.items():
        with client_class() as client:
            for headers in ({}, {"x-mock-redirect": "1"}, {"x-mock-status": "500"}, {"x-mock-framing": "chunked"}):
                response = client.send("GET", gateway + JSON, headers={"authorization": "Bearer secret", **headers})
                seen.append((name, client.status(response), client.read(response)))
            response = client.send("POST", gateway + "/v1/chat/completions", chat)
            seen.append(len(b"".join(client.pieces(response)).splitlines()))
            if name == "http.client":
                buffer, response = bytearray(9), client.send("GET", gateway + JSON, headers={"connection": "close"})
                seen.append((response.readinto(buffer), response.readline(), list(response.fp), response.read()))
                client.close()
            response = client.send("GET", gateway + JSON, headers={"connection": "close"})
            seen.append(client.raw(response).read(1))
            client.raw(response).close()
            for fault in ("before-headers", "mid-body"):
                try:
                    client.read(client.send("GET", gateway + JSON, headers={"x-mock-cut": fault}))
                except Exception as error:
                    seen.append(type(error))
                    client.close()
            client.send("GET", gateway + JSON, headers={"connection": "close"})
    retry = urllib3.Retry(2, status_forcelist=[503], backoff_factor=0)
    seen.append(urllib3.PoolManager().request("GET", gateway + JSON, headers=failing_once(), retries=retry).status)
    gc.collect()  # ours is told of each
    return seen


async def aiohttp_program(gateway: str) -> list[Any]:
    """The same for aiohttp."""
    seen: list[Any] = []
    chat = {"model": "m", "stream": True, "messages": []}
    async with aiohttp.ClientSession() as session:
        for headers in ({}, {"x-mock-redirect": "1"}, {"x-mock-status": "500"}, {"x-mock-gzip": "1"}):
            async with session.get(gateway + JSON, headers={"authorization": "Bearer secret", **headers}) as response:
                seen.append((response.status, await response.read()))
        async with session.post(gateway + "/v1/chat/completions", json=chat) as response:
            seen.append(len([line async for line in response.content]))
        async with session.get(gateway + JSON, headers={"x-mock-hang": "mid-body"}) as response:
            seen.append(await response.content.read(1))
            waiting = asyncio.ensure_future(response.content.readexactly(99))
            await asyncio.sleep(0)
            waiting.cancel()
        for headers in ({"x-mock-cut": "before-headers"}, {"x-mock-cut": "mid-body"}):
            try:
                async with session.post(gateway + JSON, headers=headers) as response:
                    await response.read()
            except aiohttp.ClientError as error:
                seen.append(type(error))
        try:
            await session.get("http://127.0.0.1:1/")
        except aiohttp.ClientError as error:
            seen.append(type(error))
    gc.collect()  # ours is told of each
    return seen


def failing_once() -> dict[str, str]:
    failing_once.keys += 1  # type: ignore[attr-defined]
    return {"x-mock-fail-first": "1", "x-mock-key": f"guard-{failing_once.keys}"}  # type: ignore[attr-defined]


failing_once.keys = 0  # type: ignore[attr-defined]


def reached(run: Callable[[], Any], functions: dict[CodeType, tuple[str, FunctionType]]) -> dict[str, FunctionType]:
    """Our functions that run while the program does, by their names."""
    found: dict[str, FunctionType] = {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code in functions:
            path, function = functions[frame.f_code]
            found[path] = function

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


def broken(function: FunctionType) -> CodeType:
    """The code of a function that raises, in the place of another's: wherever that is referred to, it raises."""

    # The code runs with the globals of another module: it can count only where every module can.
    def plain(*args: Any, **kwargs: Any) -> None:
        __import__("sys").forced += 1
        raise RuntimeError("forced")

    def generator(*args: Any, **kwargs: Any) -> Iterator[None]:
        if args is not None:
            __import__("sys").forced += 1
            raise RuntimeError("forced")
        yield

    kind = generator if inspect.isgeneratorfunction(function) else plain
    return kind.__code__.replace(co_freevars=function.__code__.co_freevars)


@pytest.mark.filterwarnings("ignore:Async generator '(httpx|httpcore):ResourceWarning")  # trio, of their own
@pytest.mark.parametrize(("library", "flavour"), [("httpx2", "sync"), ("httpx", "asyncio"), ("httpx2", "trio")])
def test_each_function_of_ours_may_fail(
    library: str,
    flavour: str,
    make_stack: Callable[[str, str], Any],
    functions: dict[CodeType, tuple[str, FunctionType]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    stack = make_stack(library, flavour)
    check_each(lambda: stack.run(program, stack), FOUND_AT_LEAST, functions, caplog)


def test_each_function_of_ours_may_fail_below_http_client(
    gateway: str,
    fresh: None,
    functions: dict[CodeType, tuple[str, FunctionType]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    check_each(lambda: blocking_program(gateway), FOUND_BELOW_HTTP_CLIENT, functions, caplog)


def test_each_function_of_ours_may_fail_with_aiohttp(
    gateway: str,
    fresh: None,
    functions: dict[CodeType, tuple[str, FunctionType]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    check_each(lambda: asyncio.run(aiohttp_program(gateway)), FOUND_WITH_AIOHTTP, functions, caplog)


def check_each(
    run: Callable[[], Any],
    at_least: set[str],
    functions: dict[CodeType, tuple[str, FunctionType]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Let each of our functions that a program reaches fail in turn: what its user sees stays as it is without us."""
    program, thread = run, threading.current_thread()

    def run_anew() -> Any:
        """Each time with a name that no log has met."""
        thread.name = f"run {next(run_numbers)}"
        return program()

    try:
        check_functions(run_anew, at_least, functions, caplog)
    finally:
        thread.name = "MainThread"


run_numbers = itertools.count()
TRIES = 3
NOT_REACHED = "not reached"
"""Some of ours run only where the pieces of a body come apart, or together: not in every run."""


def check_functions(
    run: Callable[[], Any],
    at_least: set[str],
    functions: dict[CodeType, tuple[str, FunctionType]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = run()
    with occupancy.record(dependence=True):
        assert run() == expected
        found = reached(run, functions)
        assert found.keys() >= at_least
        failures = {}
        for path in sorted(found.keys() - CARRIERS):
            for _ in range(TRIES):
                problem = fail_one(run, found[path], expected, caplog)
                if problem != NOT_REACHED:
                    break
            if problem and (problem != NOT_REACHED or path in at_least):
                failures[path] = problem
    assert failures == {}
    assert len(found) > 60


def fail_one(
    run: Callable[[], Any], function: FunctionType, expected: Any, caplog: pytest.LogCaptureFixture
) -> str | None:
    """Run the program while one function fails; what the host or the log is not as it must be."""
    sys.forced = 0
    _guard._reported.clear()
    caplog.clear()
    code = function.__code__
    function.__code__ = broken(function)
    try:
        with caplog.at_level(logging.WARNING):
            seen = run()
    except BaseException as error:
        return f"the host gets {error!r}"
    finally:
        function.__code__ = code
        ledger.abandon_open()
        attempts.current.set(None)  # what takes it back has failed too
    lines = [record.getMessage() for record in caplog.records if record.name == "occupancy"]
    others = [record for record in caplog.records if not record.name.startswith(("occupancy", "trio."))]
    if seen != expected:
        return f"the host sees {seen}"
    if not sys.forced:
        return NOT_REACHED
    if not lines or len(set(lines)) != len(lines) or others:
        return f"logged: {lines} {others}"
    return None
