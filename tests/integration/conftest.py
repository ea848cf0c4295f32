"""One scenario, run under httpx and httpx2, synchronously, on asyncio and on trio, without us and with us.

A scenario is a coroutine function. Under the synchronous clients it runs to its end without being suspended once,
because everything it awaits is there at once.
"""

import asyncio
import gc
import importlib
import inspect
import logging
import re
import shutil
import ssl
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio

import mock_server
import occupancy
from occupancy import _guard
from occupancy.ledger import ledger

TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Nothing here is encrypted, and a context with the usual certificates takes each client 20 ms."""
HANG_S = 30
"""When a condition that has not come is given up."""


@pytest.fixture(scope="session", autouse=True)
def small_heap() -> Iterator[None]:
    """Tests collect garbage often: to look at all that is loaded when they begin takes 60 ms each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def gateway() -> Iterator[mock_server.GatewayUrl]:
    """The mock server's URL; it answers without delay unless a fault asks for one."""
    with mock_server.serve(delay_ms=0) as url:
        yield url


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """A server's context with a certificate of a minute's use."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificate, and is not installed")
    home: Path = tmp_path_factory.mktemp("tls")
    key, cert = str(home / "key.pem"), str(home / "cert.pem")
    make = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    subprocess.run([openssl, *make, "-subj", "/CN=test", "-keyout", key, "-out", cert], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


@pytest.fixture
def fresh(gateway: mock_server.GatewayUrl) -> Iterator[None]:
    """Each test begins without open calls, recording logs and told errors, and with a server at rest."""
    _guard._reported.clear()
    gateway.wait_in_flight(0)
    gateway.reset_stats()
    yield
    gc.collect()
    ledger.abandon_open()
    assert ledger.logs == ()


class Opened:
    """A context manager of either kind, entered with `async with`."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    async def __aenter__(self) -> Any:
        enter = getattr(self._manager, "__aenter__", None)
        return self._manager.__enter__() if enter is None else await enter()

    async def __aexit__(self, *error: Any) -> Any:
        leave = getattr(self._manager, "__aexit__", None)
        return self._manager.__exit__(*error) if leave is None else await leave(*error)


class Pieces:
    """An iterator of either kind, for `async for`; letting go of it lets go of the iterator."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def __aiter__(self) -> "Pieces":
        return self

    async def __anext__(self) -> Any:
        if hasattr(self._iterator, "__anext__"):
            return await self._iterator.__anext__()
        try:
            return next(self._iterator)
        except StopIteration:
            raise StopAsyncIteration from None


async def done(value: Any) -> Any:
    """What an async client's coroutine gives, or what a synchronous client has given."""
    return await value if inspect.isawaitable(value) else value


class Stack:
    """One library under one kind of concurrency."""

    def __init__(self, library: str, flavour: str, gateway: mock_server.GatewayUrl) -> None:
        self.name = library
        self.flavour = flavour
        self.gateway = gateway
        self.done = done
        self.opened = Opened

    def __repr__(self) -> str:
        return f"{self.name}-{self.flavour}"

    @property
    def is_async(self) -> bool:
        """Whether the clients are asynchronous."""
        return self.flavour != "sync"

    @property
    def library(self) -> Any:
        """The module."""
        return importlib.import_module(self.name)

    @property
    def core(self) -> Any:
        """The module below it."""
        return importlib.import_module(self.name.replace("httpx", "httpcore"))

    def client(self, **options: Any) -> Any:
        """A client of the library."""
        options = {"trust_env": False, "verify": TLS, **options}
        return (self.library.AsyncClient if self.is_async else self.library.Client)(**options)

    def transport(self, **options: Any) -> Any:
        """A transport of the library."""
        options = {"trust_env": False, "verify": TLS, **options}
        return (self.library.AsyncHTTPTransport if self.is_async else self.library.HTTPTransport)(**options)

    def pieces(self, response: Any, kind: str = "raw") -> Pieces:
        """Iterate over a response: `raw`, `bytes`, `text` or `lines`."""
        return Pieces(getattr(response, f"aiter_{kind}" if self.is_async else f"iter_{kind}")())

    def over(self, iterator: Any) -> Pieces:
        """Iterate over anything with `async for`."""
        return Pieces(iterator)

    async def read(self, response: Any) -> bytes:
        """Read a response to its end."""
        return await done(response.aread() if self.is_async else response.read())

    async def close(self, response: Any) -> None:
        """Close a response."""
        await done(response.aclose() if self.is_async else response.close())

    async def step(self) -> None:
        """Let the other tasks go on."""
        if self.flavour == "asyncio":
            await asyncio.sleep(0)
        elif self.flavour == "trio":
            await trio.lowlevel.checkpoint()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the other tasks go on until a condition holds."""
        give_up_s = time.monotonic() + HANG_S
        while not condition():
            assert time.monotonic() < give_up_s, inspect.getsource(condition)
            await self.step()

    async def in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call what blocks, so that this task's loop goes on."""
        if self.flavour == "asyncio":
            return await asyncio.to_thread(function, *args)
        if self.flavour == "trio":
            return await trio.to_thread.run_sync(function, *args)
        return function(*args)

    async def at_once(self, *works: Callable[[], Awaitable[Any]]) -> list[Any]:
        """Run several at once, in tasks or threads; their results in this order."""
        if self.flavour == "asyncio":
            return list(await asyncio.gather(*(work() for work in works)))
        if self.flavour == "trio":
            return await _gather_in_nursery(works)
        with ThreadPoolExecutor(len(works)) as pool:
            return list(pool.map(lambda work: drive(work()), works))

    async def cancel_when(self, ready: Callable[[], Awaitable[None]], work: Callable[[], Awaitable[Any]]) -> bool:
        """Cancel a task once it is where it should be; whether it ended cancelled."""
        if self.flavour == "asyncio":
            task = asyncio.ensure_future(work())
            await ready()
            task.cancel()
            await asyncio.wait([task])
            return task.cancelled()
        scope = trio.CancelScope()

        async def run() -> None:
            with scope:
                await work()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await ready()
            scope.cancel()
        return scope.cancelled_caught

    async def time_out_when(self, ready: Callable[[], Awaitable[None]], work: Callable[[], Awaitable[Any]]) -> None:
        """Run in a time-out that strikes once the work is where it should be."""
        if self.flavour == "asyncio":
            async with asyncio.timeout(None) as deadline:
                strike = asyncio.ensure_future(ready())
                strike.add_done_callback(lambda _: deadline.reschedule(0))
                await work()
            return
        async with trio.open_nursery() as nursery:
            with trio.fail_after(600) as scope:

                async def strike_when_ready() -> None:
                    await ready()
                    scope.deadline = float("-inf")

                nursery.start_soon(strike_when_ready)
                await work()

    def run(self, scenario: Callable[..., Any], *args: Any) -> Any:
        """Run a scenario to its end."""
        if self.flavour == "asyncio":
            return asyncio.run(scenario(*args))
        if self.flavour == "trio":
            return trio.run(scenario, *args)
        return drive(scenario(*args))


def drive(coroutine: Any) -> Any:
    """Run a coroutine that is never suspended."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a synchronous scenario was suspended")


async def _gather_in_nursery(works: Any) -> list[Any]:
    results: dict[int, Any] = {}

    async def keep(index: int, work: Callable[[], Awaitable[Any]]) -> None:
        results[index] = await work()

    async with trio.open_nursery() as nursery:
        for index, work in enumerate(works):
            nursery.start_soon(keep, index, work)
    return [results[index] for index in range(len(results))]


STACKS = [(library, flavour) for library in ("httpx", "httpx2") for flavour in ("sync", "asyncio", "trio")]


@pytest.fixture(params=STACKS, ids="-".join)
def stack(request: pytest.FixtureRequest, fresh: None, gateway: mock_server.GatewayUrl) -> Stack:
    """Each library under each kind of concurrency."""
    return Stack(*request.param, gateway)


@pytest.fixture(params=[stack for stack in STACKS if stack[1] != "sync"], ids="-".join)
def async_stack(request: pytest.FixtureRequest, fresh: None, gateway: mock_server.GatewayUrl) -> Stack:
    """The asynchronous ones."""
    return Stack(*request.param, gateway)


@pytest.fixture
def make_stack(gateway: mock_server.GatewayUrl, fresh: None) -> Callable[[str, str], Stack]:
    """A stack of a library and a flavour, for tests that are about some only."""
    return lambda library, flavour: Stack(library, flavour, gateway)


class BlockingStack:
    """A client of one library, in the ways of `watch`."""

    flavour = "sync"

    def __init__(self, name: str, gateway: mock_server.GatewayUrl) -> None:
        self.name = name
        self.gateway = gateway
        self.client: Any = importlib.import_module("blocking_clients").CLIENTS[name]

    def run(self, scenario: Callable[..., Any], *args: Any) -> Any:
        return scenario(*args)


@pytest.fixture(params=["http.client", "urllib", "urllib3", "requests", "botocore"])
def blocking(request: pytest.FixtureRequest, fresh: None, gateway: mock_server.GatewayUrl) -> BlockingStack:
    """Each client."""
    return BlockingStack(request.param, gateway)


@dataclass(frozen=True)
class Seen:
    """What a host sees of a scenario, and what its interpreter complains of."""

    result: Any
    error: Any
    complaints: tuple[str, ...]


_BY_CHANCE = {
    # Trio finalises left generators in the order of a set.
    "trio": re.compile("async generator '(?:httpx|httpcore)", re.IGNORECASE),
    # So does the garbage collector with what lies in a cycle: the socket, and the file that would have closed it.
    "sync": re.compile(r"unclosed <socket\.socket \[closed\]"),
}
"""What the interpreter complains of in one run and not in the other, of the libraries' own, by flavour."""


def mask(text: str) -> str:
    """A text without the numbers and addresses in which two runs differ."""
    return _NUMBERS.sub("N", text)


_NUMBERS = re.compile(r"\b(?:0x)?[0-9a-f]{8,}\b|\d+")


def watch(stack: Stack, scenario: Callable[..., Any], *args: Any) -> Seen:
    """Run a scenario; its result, its exception and all warnings, ignored exceptions and log lines."""
    complaints: list[str] = []
    result = error = None

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            complaints.append(f"{record.name}: {record.getMessage()}")

    listener, hook = Listener(logging.WARNING), sys.unraisablehook
    logging.getLogger().addHandler(listener)
    sys.unraisablehook = lambda unraisable: complaints.append(f"ignored {unraisable.exc_value!r}")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                result = stack.run(scenario, stack, *args)
            except AssertionError:
                raise  # a test's own
            except BaseException as raised:
                error = _describe(raised, inspect.getsourcefile(scenario))
            gc.collect()
    finally:
        sys.unraisablehook = hook
        logging.getLogger().removeHandler(listener)
    complaints += [f"{warning.category.__name__}: {warning.message}" for warning in caught]
    if stack.flavour in _BY_CHANCE:
        complaints = [text for text in complaints if not _BY_CHANCE[stack.flavour].search(text)]
    return Seen(result, error, tuple(sorted(map(mask, complaints))))


def _describe(error: BaseException, file: str | None) -> Any:
    """An exception as the host sees it: types, arguments, causes, and the last of its own lines."""
    if isinstance(error, BaseExceptionGroup):
        return type(error), [_describe(inner, file) for inner in error.exceptions]
    lines = [
        (frame.name, frame.lineno) for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file
    ]
    causes = []
    above = error.__cause__ or error.__context__
    while above is not None:
        causes.append((type(above), mask(str(above))))
        above = above.__cause__ or above.__context__
    return type(error), mask(str(error)), causes, lines[-1:]


@pytest.fixture
def compare() -> Callable[..., tuple[Seen, occupancy.OccupancyLog]]:
    """Run a scenario without us and with us: the host must see the same."""

    def run_twice(stack: Stack, scenario: Callable[..., Any], *args: Any) -> tuple[Seen, occupancy.OccupancyLog]:
        without = watch(stack, scenario, *args)
        stack.gateway.wait_in_flight(0)  # what the first run has left is no request of the second
        with occupancy.record() as log:
            seen = watch(stack, scenario, *args)
        assert seen == without
        return seen, log

    return run_twice
