"""Hooks on aiohttp: each request of a session is a call, and each connection that it asks for a further attempt of it.

The session's own loop follows redirects and tries lost connections again, so what begins an attempt is asking the
connector. Bodies are stamped as they come, which is when aiohttp reads them, whoever reads on.
"""

from functools import partial
from time import monotonic_ns
from types import ModuleType
from typing import Any

from occupancy import _guard
from occupancy._guard import quietly
from occupancy.call import Call
from occupancy.flight import Flight
from occupancy.instrumentation import aiohttp_body, attempts, evidence, exchange, spans
from occupancy.instrumentation.attempts import Trail, current_trail, next_attempt, take_headers
from occupancy.instrumentation.patching import Patch, replace_method
from occupancy.instrumentation.phases import Phases
from occupancy.ledger import ledger

KEY = "_occupancy"
NO_INFO: dict[str, Any] = {}


class Attempt:
    """One physical attempt, until its response's headers are there.

    Args:
        flight: The call.
        phases: Where the time before the headers goes; None where that is switched off.
        secures: Whether a TLS handshake follows on the opening of the connection.
    """

    __slots__ = ("_phases", "_secures", "flight", "is_connecting")

    def __init__(self, flight: Flight, phases: Phases | None, *, secures: bool) -> None:
        self.flight = flight
        self.is_connecting = True
        self._phases = phases
        self._secures = secures

    @_guard.guarded
    def note(self, event: str) -> None:
        """Take an event in the words of httpcore's trace."""
        if self._phases is not None:
            self._phases.note(event, NO_INFO)

    @_guard.guarded
    def opened(self) -> None:
        """The connection is open, without TLS."""
        if self._secures:
            self.note("connection.start_tls.started")

    def stop(self) -> None:
        """It is over, or its headers are there."""
        if self._phases is not None:
            self._phases.stop()

    @_guard.guarded
    def fail(self, error: BaseException) -> None:
        """It failed, unless the session is yet to say what it was: its own time-outs are cancellations here."""
        self.is_connecting = False
        self.stop()
        if isinstance(error, Exception) and not isinstance(error, TimeoutError):
            self.flight.fail(error)


class ConnectionTrace:
    """What a connector tells beside the host's own traces: whether it opens a connection.

    Args:
        attempt: What the connection is for.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    async def send_connection_create_start(self) -> None:
        """A connection is opened."""
        self._attempt.note("connection.connect_tcp.started")

    async def send_connection_create_end(self) -> None:
        """It is open, with TLS."""
        self._attempt.note("http11.send_request_headers.started")

    async def send_connection_reuseconn(self) -> None:
        """An open one is used again."""
        self._attempt.note("http11.send_request_headers.started")

    def __getattr__(self, name: str) -> Any:
        return _ignore


async def _ignore(*_: Any, **__: Any) -> None:
    """What else is told."""


@_guard.guarded
def begin(session: Any, method: str, url: Any) -> tuple[Trail, bool] | None:
    """A session is asked: the trail of its call, and whether it is the session's own. None where it is not seen."""
    outer = current_trail()
    if outer is not None and outer.flight is not None:
        return outer, False
    attempts.prepare_run()
    call = Call(client="aiohttp", start_ns=monotonic_ns())
    if not ledger.logs or bool(quietly(spans.is_suppressed)):
        return None
    quietly(_describe, call, session, method, url)
    trail = attempts.begin(call, is_async=True)
    return None if trail is None else (trail, True)


def _describe(call: Call, session: Any, method: str, url: Any) -> None:
    exchange.describe_url(call, method.upper(), str(session._build_url(url)), attempts.settings)


@_guard.guarded
def fail(trail: Trail, error: BaseException) -> None:
    """The session's request failed; None of its attempts goes on."""
    flight = trail.adopt()
    if flight is None and isinstance(trail.attempt, Attempt):
        flight = trail.attempt.flight
    if flight is not None and flight.call.headers_ns is None:
        flight.fail(error)


@_guard.guarded
def enter(request: Any) -> Attempt | None:
    """The connector is asked: adopt the session's call, or start its next attempt."""
    trail = current_trail()
    if trail is None or not ledger.logs:
        return None
    if isinstance(trail.attempt, Attempt) and trail.attempt.is_connecting:
        return None  # a second hook of ours, below somebody's wrapper
    now_ns = monotonic_ns()
    flight = trail.adopt()
    if flight is None:
        url = str(request.url)
        flight = next_attempt(
            trail, now_ns, partial(exchange.describe_url, method=request.method, url=url, settings=attempts.settings)
        )
    else:
        flight.call.client_ns = now_ns - flight.call.start_ns
    quietly(_describe_request, flight.call, request)
    if attempts.settings.spans:
        quietly(spans.claim, flight)
    phases = Phases(flight.call, now_ns) if attempts.settings.phases else None
    trail.attempt = attempt = Attempt(flight, phases, secures=request.is_ssl() and not request.proxy)
    return attempt


def _describe_request(call: Call, request: Any) -> None:
    headers = list(request.headers.items())
    exchange.describe_headers(call, headers, attempts.settings)
    body = request.body or b""
    content = getattr(body, "_value", body)  # a payload's
    if not isinstance(content, bytes):
        return
    if attempts.settings.model:
        call.model = exchange.model_of(content) or call.model
    if evidence.is_looking():
        evidence.note_sent(call, request.url.raw_path_qs.encode(), content, exchange.content_type(headers))


@_guard.guarded
def with_trace(attempt: Attempt, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
    """The arguments of `connect` with a trace of ours among the traces; the host's list stays as it is."""
    trace = ConnectionTrace(attempt)
    if "traces" in kwargs:
        return args, {**kwargs, "traces": [*kwargs["traces"], trace]}
    traces, *others = args
    return ([*traces, trace], *others), kwargs


@_guard.guarded
def note_opened() -> None:
    """A connection has been opened, and TLS is to follow where it is wanted."""
    trail = current_trail()
    if trail is not None and isinstance(trail.attempt, Attempt):
        trail.attempt.opened()


@_guard.guarded
def keep(connection: Any, attempt: Attempt) -> None:
    """The connection is there: what it is for goes with it."""
    attempt.is_connecting = False
    setattr(connection, KEY, attempt)


@_guard.guarded
def attempt_on(connection: Any, *, take: bool = False) -> Attempt | None:
    """What a connection is for; `take` tells only the first who asks."""
    found = getattr(connection, KEY, None)
    if take and found is not None:
        setattr(connection, KEY, None)
    return found if isinstance(found, Attempt) else None


@_guard.guarded
def respond(attempt: Attempt, response: Any) -> None:
    """The response has its headers: stamp them, and have its body stamped."""
    quietly(attempt.stop)
    flight = attempt.flight
    headers = quietly(exchange.needed_headers, response.raw_headers) or {}
    if not take_headers(flight, response.status, headers):
        return
    aiohttp_body.attach(response, flight, headers)


# Putting them in


def patch_aiohttp(module: ModuleType) -> None:
    """Put the hooks into aiohttp."""
    for owner, name, make in (
        (module.ClientSession, "_request", _hook_request),
        (module.BaseConnector, "connect", _hook_connect),
        (module.ClientRequest, "send", _hook_send),
        (module.ClientResponse, "start", _hook_start),
        *aiohttp_body.hooks(module),
    ):
        replace_method(owner, name, make, in_use=ledger.has_open)
    opener = getattr(module.connector, "aiohappyeyeballs", None)  # not below aiohttp 3.10
    if opener is not None:
        replace_method(opener, "start_connection", _hook_start_connection, in_use=ledger.has_open)


def _hook_request(original: Any, patch: Patch) -> Any:
    async def _request(session: Any, method: str, str_or_url: Any, **kwargs: Any) -> Any:
        begun = begin(session, method, str_or_url) if patch.active else None
        if begun is None:
            return await original(session, method, str_or_url, **kwargs)
        trail, is_own = begun
        try:
            response = await original(session, method, str_or_url, **kwargs)
        except BaseException as error:
            fail(trail, error)
            raise
        finally:
            if is_own:
                attempts.leave(trail)
        if is_own and trail.flight is not None:
            attempts.complete_unseen(trail, _status, response)
        return response

    return _request


def _status(response: Any) -> int:
    return int(response.status)


def _hook_connect(original: Any, patch: Patch) -> Any:
    async def connect(connector: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
        attempt = enter(req)
        if attempt is None:
            return await original(connector, req, *args, **kwargs)
        args, kwargs = with_trace(attempt, args, kwargs) or (args, kwargs)
        try:
            connection = await original(connector, req, *args, **kwargs)
        except BaseException as error:
            attempt.fail(error)
            raise
        keep(connection, attempt)
        return connection

    return connect


def _hook_send(original: Any, patch: Patch) -> Any:
    async def send(request: Any, conn: Any) -> Any:
        attempt = attempt_on(conn)
        try:
            return await original(request, conn)
        except BaseException as error:
            if attempt is not None:
                attempt.fail(error)
            raise

    return send


def _hook_start(original: Any, patch: Patch) -> Any:
    async def start(response: Any, connection: Any) -> Any:
        attempt = attempt_on(connection, take=True)
        if attempt is None:
            return await original(response, connection)
        attempt.note("http11.send_request_body.complete")
        try:
            started = await original(response, connection)
        except BaseException as error:
            attempt.fail(error)
            raise
        respond(attempt, response)
        return started

    return start


def _hook_start_connection(original: Any, patch: Patch) -> Any:
    async def start_connection(*args: Any, **kwargs: Any) -> Any:
        opened = await original(*args, **kwargs)
        note_opened()
        return opened

    return start_connection
