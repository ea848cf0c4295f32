"""Two hooks see every HTTP request of httpx and httpx2, whatever lies between them.

The outer one, on the client's `_send_single_request`, starts the call: it sees every transport. The inner one, on
httpcore's connection pools, adopts that call, or starts the next where a transport sends the request again: it sees every
physical attempt. OpenTelemetry's wrapper lies between the two. No method of a transport is replaced: OpenTelemetry and
test libraries do that, and each would undo the other.

The call travels in the request's `extensions`, so it survives threads, redirects and auth flows, which inherit them.
"""

import functools
from collections.abc import Callable
from contextvars import ContextVar
from time import monotonic_ns
from types import ModuleType
from typing import Any

from occupancy import _guard, caller
from occupancy.call import Call
from occupancy.flight import Flight
from occupancy.instrumentation import exchange, provider, spans
from occupancy.instrumentation.imports import forget, when_imported
from occupancy.instrumentation.phases import AsyncTrace, Phases, Trace
from occupancy.instrumentation.retries import Retries
from occupancy.instrumentation.stream import AsyncBody, Body, BodyStamps
from occupancy.ledger import ledger
from occupancy.settings import Settings

KEY = "occupancy"
CLIENTS = ("httpx", "httpx2")
POOLS = ("httpcore", "httpcore2")

settings = Settings()
_retries = Retries()
_current: ContextVar["Trail | None"] = ContextVar("occupancy_trail", default=None)


class Trail:
    """What travels with a request: the call until a pool adopts it, then how to number the next attempt."""

    __slots__ = ("call", "flight")

    def __init__(self, flight: Flight) -> None:
        self.flight: Flight | None = flight
        self.call = flight.call

    def adopt(self) -> Flight | None:
        """The call, for the first who asks."""
        flight, self.flight = self.flight, None
        return flight


# The outer hook


@_guard.guarded
def begin(library: str, request: Any, *, is_async: bool) -> Trail | None:
    """The client is asked: start the call. None where it is not to be seen."""
    if not ledger.logs or spans.is_suppressed():
        return None
    if settings.spans:
        provider.look_for_provider()
    call = Call(client=library, start_ns=monotonic_ns())
    exchange.describe_request(call, request, settings)
    caller.describe(call, with_stack=settings.call_stack)
    call.sync_in_event_loop = not is_async and caller.sync_in_event_loop()
    earlier = request.extensions.get(KEY)
    if isinstance(earlier, Trail):  # a redirect, or an auth flow that sends again
        call.logical_id, call.attempt = earlier.call.logical_id, earlier.call.attempt + 1
    else:
        _retries.link(call, request.headers.get("x-stainless-retry-count"))
    trail = Trail(ledger.start(call))
    if not isinstance(earlier, Trail):
        _retries.remember(call)
    request.extensions = {**request.extensions, KEY: trail}
    _current.set(trail)
    return trail


@_guard.guarded
def respond(trail: Trail, response: Any, module: ModuleType) -> None:
    """The client has its response; where no pool has seen it, its body is stamped here."""
    flight = trail.adopt()
    if flight is None:
        return
    headers = exchange.needed_headers(response.headers.raw)
    if not take_headers(flight, response.status_code, headers):
        return
    if response.is_closed:
        flight.complete()
        return
    bases = module.SyncByteStream, module.AsyncByteStream
    is_async = not isinstance(response.stream, bases[0])
    kind = stream_class(AsyncBody if is_async else Body, bases[is_async])
    response.stream = kind(response.stream, BodyStamps(flight, headers))


@_guard.guarded
def fail(trail: Trail, error: BaseException) -> None:
    """The client's request failed; where a pool adopted the call, the pool's hook has ended it."""
    flight = trail.adopt()
    if flight is not None:
        flight.fail(error)


def take_headers(flight: Flight, status: int, headers: dict[str, str]) -> bool:
    """Stamp the headers; False where the call ends with them, since no body can come."""
    flight.headers(status, monotonic_ns())
    exchange.describe_response(flight.call, headers, settings)
    if exchange.has_no_body(flight.call.method, status, headers):
        flight.complete()
        return False
    return True


@functools.cache
def stream_class(wrapper: type, base: type) -> type:
    """A body wrapper that passes the client's own isinstance check."""
    return type(wrapper.__name__, (wrapper, base), {})


# The inner hook


class Attempt:
    """One physical attempt, while it is in the pool's hands."""

    __slots__ = ("flight", "phases")

    def __init__(self, flight: Flight, phases: Phases | None) -> None:
        self.flight = flight
        self.phases = phases


@_guard.guarded
def enter_pool(library: str, request: Any, trace: type[Trace]) -> Attempt | None:
    """A pool is asked: adopt the client's call or start the next attempt. None where it is not to be seen."""
    if not ledger.logs or spans.is_suppressed():
        return None
    entered_ns = monotonic_ns()
    trail = request.extensions.get(KEY) or _current.get()
    flight = trail.adopt() if trail is not None else None
    if flight is not None:
        flight.call.client_ns = entered_ns - flight.call.start_ns
    elif isinstance(request.extensions.get(KEY), Trail):
        flight = next_attempt(request.extensions[KEY], entered_ns)
    else:
        flight = begin_in_pool(library, request, entered_ns)
    if settings.spans:
        spans.claim(flight)
    if not settings.phases:
        return Attempt(flight, None)
    phases = Phases(flight.call, entered_ns)
    host = request.extensions.get("trace")
    host = host.host if isinstance(host, Trace) else host  # a request of httpcore's that is sent twice
    request.extensions = {**request.extensions, "trace": trace(phases, host)}
    return Attempt(flight, phases)


def next_attempt(trail: Trail, entered_ns: int) -> Flight:
    """A further attempt below the client, as a retrying transport makes it."""
    earlier = trail.call
    call = Call(start_ns=entered_ns, client_ns=0)
    for name in caller.SHARED_BY_ATTEMPTS:
        setattr(call, name, getattr(earlier, name))
    call.attempt = earlier.attempt + 1
    trail.call = call
    return ledger.start(call)


def begin_in_pool(library: str, request: Any, entered_ns: int) -> Flight:
    """A request that no client has made: somebody uses httpcore itself."""
    call = Call(client=library, start_ns=entered_ns, client_ns=0)
    exchange.describe_core_request(call, request, settings)
    caller.describe(call, with_stack=settings.call_stack)
    return ledger.start(call)


@_guard.guarded
def leave_pool(attempt: Attempt, response: Any, body: type) -> None:
    """The pool has the headers: stamp them, and have the body stamped as it is read."""
    if attempt.phases is not None:
        attempt.phases.stop()
    headers = exchange.needed_headers(response.headers)
    if take_headers(attempt.flight, response.status, headers):
        response.stream = body(response.stream, BodyStamps(attempt.flight, headers))


@_guard.guarded
def fail_in_pool(attempt: Attempt, error: BaseException) -> None:
    """The attempt failed before it had headers."""
    if attempt.phases is not None:
        attempt.phases.stop()
    attempt.flight.fail(error)


# Putting them in


class Patch:
    """One method replaced by ours, which calls the original."""

    def __init__(self, owner: type, name: str, make: Callable[[Any, "Patch"], Any]) -> None:
        self.owner = owner
        self.name = name
        self.original = getattr(owner, name)
        self.active = True
        self.ours = functools.wraps(self.original)(make(self.original, self))
        setattr(owner, name, self.ours)

    @property
    def in_place(self) -> bool:
        """Whether ours is still the method, not wrapped or replaced by somebody."""
        return vars(self.owner).get(self.name) is self.ours

    def remove(self) -> None:
        """Restore the original; where somebody has wrapped ours, it stays and does nothing."""
        self.active = False
        if self.in_place:
            setattr(self.owner, self.name, self.original)


_patches: list[Patch] = []


def install(new_settings: Settings) -> None:
    """Hook the clients that are imported, and the others when they are. Repeats only renew the settings."""
    global settings
    settings = new_settings
    for name in CLIENTS:
        when_imported(name, _patch_clients)
    for name in POOLS:
        when_imported(name, _patch_pools)


def remove() -> None:
    """Take the hooks out again, and OpenTelemetry's instrumentors where we have switched them on."""
    provider.detach()
    for name in (*CLIENTS, *POOLS):
        forget(name)
    while _patches:
        _patches.pop().remove()


def _patch(owner: type, name: str, make: Callable[[Any, Patch], Any]) -> None:
    # By the class: httpx may be another name of httpx2.
    if not any(patch.owner is owner for patch in _patches):
        _patches.append(Patch(owner, name, make))


def _patch_clients(module: ModuleType) -> None:
    _patch(module.Client, "_send_single_request", functools.partial(_hook_client, module))
    _patch(module.AsyncClient, "_send_single_request", functools.partial(_hook_async_client, module))


def _patch_pools(module: ModuleType) -> None:
    _patch(module.ConnectionPool, "handle_request", functools.partial(_hook_pool, module.__name__))
    _patch(module.AsyncConnectionPool, "handle_async_request", functools.partial(_hook_async_pool, module.__name__))


def _hook_client(module: ModuleType, original: Any, patch: Patch) -> Any:
    def _send_single_request(client: Any, request: Any) -> Any:
        trail = begin(module.__name__, request, is_async=False) if patch.active else None
        if trail is None:
            return original(client, request)
        try:
            response = original(client, request)
        except BaseException as error:
            fail(trail, error)
            raise
        finally:
            _current.set(None)
        respond(trail, response, module)
        return response

    return _send_single_request


def _hook_async_client(module: ModuleType, original: Any, patch: Patch) -> Any:
    async def _send_single_request(client: Any, request: Any) -> Any:
        trail = begin(module.__name__, request, is_async=True) if patch.active else None
        if trail is None:
            return await original(client, request)
        try:
            response = await original(client, request)
        except BaseException as error:
            fail(trail, error)
            raise
        finally:
            _current.set(None)
        respond(trail, response, module)
        return response

    return _send_single_request


def _hook_pool(library: str, original: Any, patch: Patch) -> Any:
    def handle_request(pool: Any, request: Any) -> Any:
        attempt = enter_pool(library, request, Trace) if patch.active else None
        if attempt is None:
            return original(pool, request)
        try:
            response = original(pool, request)
        except BaseException as error:
            fail_in_pool(attempt, error)
            raise
        leave_pool(attempt, response, Body)
        return response

    return handle_request


def _hook_async_pool(library: str, original: Any, patch: Patch) -> Any:
    async def handle_async_request(pool: Any, request: Any) -> Any:
        attempt = enter_pool(library, request, AsyncTrace) if patch.active else None
        if attempt is None:
            return await original(pool, request)
        try:
            response = await original(pool, request)
        except BaseException as error:
            fail_in_pool(attempt, error)
            raise
        leave_pool(attempt, response, AsyncBody)
        return response

    return handle_async_request
