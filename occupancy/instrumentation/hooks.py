"""Two hooks see every HTTP request of httpx and httpx2, whatever lies between them.

The outer one, on the client's `_send_single_request`, starts the call: it sees every transport. The inner one, on
httpcore's connection pools, adopts that call, or starts the next where a transport sends the request again: it sees
every physical attempt. OpenTelemetry's wrapper lies between the two. No method of a transport is replaced:
OpenTelemetry and test libraries do that, and each would undo the other.

The call travels in the request's `extensions`, so it survives threads, redirects and auth flows, which inherit them.
"""

import functools
import gc
import threading
from collections.abc import Callable
from contextvars import ContextVar
from time import monotonic_ns
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from occupancy import _guard, caller
from occupancy.call import Call
from occupancy.flight import Flight, note_collection
from occupancy.instrumentation import exchange, provider, spans
from occupancy.instrumentation.imports import forget, when_imported
from occupancy.instrumentation.phases import AsyncTrace, Phases, Trace
from occupancy.instrumentation.retries import Retries
from occupancy.instrumentation.stream import AsyncBody, Body, BodyStamps
from occupancy.ledger import ledger
from occupancy.settings import Settings

P = ParamSpec("P")
R = TypeVar("R")

KEY = "occupancy"
IN_POOL = "occupancy.in_pool"
CLIENTS = ("httpx", "httpx2")
POOLS = ("httpcore", "httpcore2")

settings = Settings()
_retries = Retries()
_current: ContextVar["Trail | None"] = ContextVar("occupancy_trail", default=None)


class Trail:
    """What travels with a request: the call until a pool adopts it, then how to number the next attempt.

    Args:
        flight: The call.
        outer: The trail of the request below which this one is made: a transport's, to renew a token for instance.
    """

    __slots__ = ("call", "flight", "is_over", "outer")

    def __init__(self, flight: Flight, outer: "Trail | None") -> None:
        self.flight: Flight | None = flight
        self.call = flight.call
        self.outer = outer
        self.is_over = False

    def __deepcopy__(self, memo: object) -> "Trail":
        return self  # a host that copies its request's extensions must not meet our locks

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()

    def adopt(self) -> Flight | None:
        """The call, for the first who asks."""
        flight, self.flight = self.flight, None
        return flight

    def is_for(self, call: Call) -> bool:
        """Whether another request has the same target."""
        mine = self.call
        return (mine.method, mine.host, mine.path) == (call.method, call.host, call.path)


def quietly(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """Call what a call can do without: where it fails, that is logged and the call is counted all the same."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        _guard.report(f"{function.__module__}.{function.__qualname__}", error)
        return None


# The outer hook


@_guard.guarded
def begin(library: str, request: Any, *, is_async: bool) -> Trail | None:
    """The client is asked: start the call. None where it is not to be seen, or is seen already."""
    if not ledger.logs or bool(quietly(spans.is_suppressed)):
        return None
    if settings.spans:
        quietly(provider.look_for_provider)  # the first time it may take long: that is not the call's time
    call = Call(client=library, start_ns=monotonic_ns())
    retry_count = quietly(exchange.describe_request, call, request, settings)
    outer = current_trail()
    earlier = trail_of(request)
    if earlier is None and outer is not None and outer.is_for(call):
        earlier = outer
    if earlier is not None and earlier.flight is not None:
        return None  # a client below a transport, or a second hook of ours, passes on what the first has begun
    quietly(caller.describe, call, with_stack=settings.call_stack)
    call.sync_in_event_loop = not is_async and bool(quietly(caller.sync_in_event_loop))
    if earlier is not None:  # a redirect, or an auth flow or a transport that sends again
        continue_trail(earlier, call)
    else:
        quietly(_retries.link, call, retry_count)
    trail = Trail(ledger.start(call), outer)
    if earlier is None:
        quietly(_retries.remember, call)
    request.extensions = {**request.extensions, KEY: trail}
    _current.set(trail)
    return trail


def trail_of(request: Any) -> Trail | None:
    """The trail that travels with a request."""
    trail = request.extensions.get(KEY)
    return trail if isinstance(trail, Trail) else None


def current_trail() -> Trail | None:
    """The trail of the request below which this code runs: for a transport that builds its request anew."""
    trail = _current.get()
    return None if trail is None or trail.is_over else trail


def continue_trail(trail: Trail, call: Call) -> None:
    """Make a call the next attempt of a trail's."""
    call.logical_id, call.attempt = trail.call.logical_id, trail.call.attempt + 1
    trail.call = call


@_guard.guarded
def leave(trail: Trail) -> None:
    """The client's request is over. No token is used: a coroutine may be closed in another context."""
    trail.is_over = True
    if _current.get() is trail:
        _current.set(trail.outer)
    trail.outer = None


@_guard.guarded
def respond(trail: Trail, response: Any, module: ModuleType) -> None:
    """The client has its response; where no pool has seen it, its body is stamped here."""
    flight = trail.adopt()
    if flight is None:
        return
    headers = quietly(exchange.needed_headers, response.headers.raw) or {}
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
    quietly(exchange.describe_response, flight.call, headers, settings)
    if quietly(exchange.has_no_body, flight.call.method, status, headers):
        flight.complete()
        return False
    return True


@functools.cache
def stream_class(wrapper: type, base: type) -> type:
    """A body wrapper that passes the client's own isinstance check."""
    return type(wrapper.__name__, (wrapper, base), {})


# The inner hook


class Attempt:
    """One physical attempt, while it is in the pool's hands.

    Args:
        flight: The call.
        phases: Where the time before the headers goes; None where that is switched off.
        extensions: The request's, made for this attempt.
        host_trace: The host's own `trace`, or None.
    """

    __slots__ = ("extensions", "flight", "host_trace", "phases")

    def __init__(self, flight: Flight, phases: Phases | None, extensions: dict[str, Any]) -> None:
        self.flight = flight
        self.phases = phases
        self.extensions = extensions
        self.host_trace = extensions.get("trace")

    def leave(self) -> None:
        """The pool has done its part: what comes now needs no trace of ours, which would cost as much as all before."""
        if self.phases is not None:
            self.phases.stop()
        self.extensions.pop(IN_POOL, None)
        if self.host_trace is None:
            self.extensions.pop("trace", None)
        else:
            self.extensions["trace"] = self.host_trace


@_guard.guarded
def enter_pool(library: str, request: Any, trace: type[Trace]) -> Attempt | None:
    """A pool is asked: adopt the client's call or start the next attempt. None where it is not to be seen."""
    if not ledger.logs or IN_POOL in request.extensions or bool(quietly(spans.is_suppressed)):
        return None
    entered_ns = monotonic_ns()
    trail = trail_of(request) or current_trail()
    flight = trail.adopt() if trail is not None else None
    if flight is not None:
        flight.call.client_ns = entered_ns - flight.call.start_ns
    elif trail is not None and trail is trail_of(request):
        flight = next_attempt(trail, entered_ns)
    else:
        flight = begin_in_pool(library, request, entered_ns)
    if settings.spans:
        quietly(spans.claim, flight)
    phases = Phases(flight.call, entered_ns) if settings.phases else None
    request.extensions = {**request.extensions, IN_POOL: True}
    attempt = Attempt(flight, phases, request.extensions)
    if phases is not None:
        request.extensions["trace"] = trace(phases, attempt.host_trace)
    return attempt


def next_attempt(trail: Trail, entered_ns: int) -> Flight:
    """A further attempt below the client, as a retrying transport makes it."""
    call = Call(start_ns=entered_ns, client_ns=0)
    for name in caller.SHARED_BY_ATTEMPTS:
        setattr(call, name, getattr(trail.call, name))
    continue_trail(trail, call)
    return ledger.start(call)


def begin_in_pool(library: str, request: Any, entered_ns: int) -> Flight:
    """A request that no client has made, or that a transport has built anew for a further attempt."""
    call = Call(client=library, start_ns=entered_ns, client_ns=0)
    quietly(exchange.describe_core_request, call, request, settings)
    trail = current_trail()
    if trail is not None and trail.is_for(call):
        return next_attempt(trail, entered_ns)
    quietly(caller.describe, call, with_stack=settings.call_stack)
    return ledger.start(call)


@_guard.guarded
def leave_pool(attempt: Attempt, response: Any, body: type) -> None:
    """The pool has the headers: stamp them, and have the body stamped as it is read."""
    quietly(attempt.leave)
    headers = quietly(exchange.needed_headers, response.headers) or {}
    if take_headers(attempt.flight, response.status, headers):
        response.stream = body(response.stream, BodyStamps(attempt.flight, headers))


@_guard.guarded
def fail_in_pool(attempt: Attempt, error: BaseException) -> None:
    """The attempt failed before it had headers."""
    quietly(attempt.leave)
    attempt.flight.fail(error)


# Putting them in


class Patch:
    """One method replaced by ours, which calls the original.

    Args:
        owner: The class.
        name: The method.
        make: Makes ours, of the original and the patch.
    """

    def __init__(self, owner: type, name: str, make: Callable[[Any, "Patch"], Any]) -> None:
        self.owner = owner
        self.name = name
        self.active = True
        # As it lies in the class: that is what is restored. A wrapper of wrapt's looks different when it is asked for.
        self._found = vars(owner).get(name)
        original = getattr(owner, name)
        self.ours = functools.wraps(original)(make(original, self))
        setattr(owner, name, self.ours)

    @property
    def is_reached(self) -> bool:
        """Whether ours is the method, or is known to lie below somebody's wrapper."""
        method = vars(self.owner).get(self.name)
        for _ in range(MOST_WRAPPERS):
            if method is self.ours:
                return True
            method = getattr(method, "__wrapped__", None)
        return False

    def remove(self) -> bool:
        """Restore the original. False where somebody has wrapped ours: it stays, and does nothing."""
        self.active = False
        if vars(self.owner).get(self.name) is not self.ours:
            return False
        if self._found is None:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self._found)
        return True


MOST_WRAPPERS = 32
_patches: list[Patch] = []
_patching = threading.Lock()


def install(new_settings: Settings) -> None:
    """Hook the clients that are imported, and the others when they are. Repeats renew the settings and lost hooks."""
    global settings
    settings = new_settings
    if note_collection not in gc.callbacks:
        gc.callbacks.append(note_collection)
    for name in CLIENTS:
        when_imported(name, _patch_clients)
    for name in POOLS:
        when_imported(name, _patch_pools)


def remove() -> None:
    """Take the hooks out again, and OpenTelemetry's instrumentors where we have switched them on.

    Bodies that are still read are stamped to their ends, which takes the note on collections; it costs nothing.
    """
    provider.detach()
    for name in (*CLIENTS, *POOLS):
        forget(name)
    with _patching:
        # The newest first, so that each finds its own where it has put it.
        _patches[:] = [patch for patch in reversed(_patches) if not patch.remove()][::-1]


def _patch(owner: type, name: str, make: Callable[[Any, Patch], Any]) -> None:
    # By the class: httpx may be another name of httpx2.
    with _patching:
        ours = [patch for patch in _patches if patch.owner is owner]
        for patch in ours:
            patch.active = True
        # One that cannot be seen below a wrapper of somebody may still be called: the outermost then counts alone.
        if not any(patch.is_reached for patch in ours):
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
            leave(trail)
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
            leave(trail)
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
