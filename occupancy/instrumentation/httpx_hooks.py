"""Two hooks see every HTTP request of httpx and httpx2, whatever lies between them.

The outer one, on the client's `_send_single_request`, starts the call: it sees every transport. The inner one, on
httpcore's connection pools, adopts that call, or starts the next where a transport sends the request again: it sees
every physical attempt. OpenTelemetry's wrapper lies between the two. No method of a transport is replaced:
OpenTelemetry and test libraries do that, and each would undo the other.

The call travels in the request's `extensions`, so it survives threads, redirects and auth flows, which inherit them.
"""

import functools
from time import monotonic_ns
from types import ModuleType
from typing import Any

from occupancy import _guard, caller
from occupancy._guard import quietly
from occupancy.call import Call
from occupancy.flight import Flight
from occupancy.instrumentation import attempts, evidence, exchange, open_connections, provider, spans
from occupancy.instrumentation.attempts import Trail, current_trail, next_attempt, take_headers
from occupancy.instrumentation.patching import Patch, replace_method
from occupancy.instrumentation.phases import AsyncTrace, Phases, Trace
from occupancy.instrumentation.stream import AsyncBody, Body, BodyStamps
from occupancy.ledger import ledger

KEY = "occupancy"
IN_POOL = "occupancy.in_pool"


# The outer hook


@_guard.guarded
def begin(library: str, request: Any, *, is_async: bool) -> Trail | None:
    """The client is asked: start the call. None where it is not to be seen, or is seen already."""
    if not ledger.logs or bool(quietly(spans.is_suppressed)):
        return None
    if attempts.settings.spans:
        quietly(provider.look_for_provider)  # the first time it may take long: that is not the call's time
    call = Call(client=library, start_ns=monotonic_ns())
    retry_count = quietly(exchange.describe_request, call, request, attempts.settings)
    note = functools.partial(evidence.note_request, request=request)
    trail = attempts.begin(call, trail_of(request), retry_count, note, is_async=is_async)
    if trail is not None:
        request.extensions = {**request.extensions, KEY: trail}
    return trail


def trail_of(request: Any) -> Trail | None:
    """The trail that travels with a request."""
    trail = request.extensions.get(KEY)
    return trail if isinstance(trail, Trail) else None


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
def enter_pool(pool: Any, library: str, request: Any, trace: type[Trace]) -> Attempt | None:
    """A pool is asked: adopt the client's call or start the next attempt. None where it is not to be seen."""
    if ledger.observers:
        quietly(open_connections.note, pool)
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
    quietly(exchange.describe_key, flight.call, request.headers, attempts.settings)
    if attempts.settings.spans:
        quietly(spans.claim, flight)
    phases = Phases(flight.call, entered_ns) if attempts.settings.phases else None
    request.extensions = {**request.extensions, IN_POOL: True}
    attempt = Attempt(flight, phases, request.extensions)
    if phases is not None:
        request.extensions["trace"] = trace(phases, attempt.host_trace)
    return attempt


def begin_in_pool(library: str, request: Any, entered_ns: int) -> Flight:
    """A request that no client has made, or that a transport has built anew for a further attempt."""
    call = Call(client=library, start_ns=entered_ns, client_ns=0)
    quietly(exchange.describe_core_request, call, request, attempts.settings)
    trail = current_trail()
    if trail is not None and trail.is_for(call):
        return next_attempt(trail, entered_ns)
    quietly(caller.describe, call, with_stack=attempts.settings.call_stack)
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


def patch_clients(module: ModuleType) -> None:
    """Put the outer hook into httpx or httpx2."""
    replace_method(module.Client, "_send_single_request", functools.partial(_hook_client, module))
    replace_method(module.AsyncClient, "_send_single_request", functools.partial(_hook_async_client, module))


def patch_pools(module: ModuleType) -> None:
    """Put the inner hook into httpcore or httpcore2."""
    name = module.__name__
    replace_method(module.ConnectionPool, "handle_request", functools.partial(_hook_pool, name))
    replace_method(module.AsyncConnectionPool, "handle_async_request", functools.partial(_hook_async_pool, name))


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
            attempts.leave(trail)
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
            attempts.leave(trail)
        respond(trail, response, module)
        return response

    return _send_single_request


def _hook_pool(library: str, original: Any, patch: Patch) -> Any:
    def handle_request(pool: Any, request: Any) -> Any:
        attempt = enter_pool(pool, library, request, Trace) if patch.active else None
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
        attempt = enter_pool(pool, library, request, AsyncTrace) if patch.active else None
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
