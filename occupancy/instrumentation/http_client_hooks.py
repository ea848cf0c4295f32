"""Hooks on `http.client`, the standard library's, and so below urllib, urllib3, requests and botocore.

A request there is a row of calls on its connection: its first line, the sending, the response's headers. Between them
it is kept on the connection. A client above that has begun the call passes it down: through the connection where it
takes one from a pool, else through the current trail.
"""

import errno
import sys
from enum import Enum
from functools import partial
from time import monotonic_ns
from types import ModuleType
from typing import Any
from urllib.parse import unquote

from occupancy import _guard, caller
from occupancy._guard import quietly
from occupancy.call import Call
from occupancy.flight import Flight
from occupancy.instrumentation import attempts, evidence, exchange, spans
from occupancy.instrumentation.attempts import Trail, current_trail, next_attempt, take_headers
from occupancy.instrumentation.patching import Patch, replace_method
from occupancy.instrumentation.phases import Phases
from occupancy.instrumentation.socket_body import SocketBody
from occupancy.instrumentation.stream import BodyStamps
from occupancy.ledger import ledger

KEY = "_occupancy"
UNANSWERED = frozenset({errno.EPIPE, errno.ECONNRESET, errno.EPROTOTYPE})
"""Errors of sending after which urllib3 still reads the response: a server may answer before it has read it all."""
NO_INFO: dict[str, Any] = {}


class Step(Enum):
    """What a method does that connects."""

    OPEN = "open"
    TUNNEL = "tunnel"
    ALL_WITH_TLS = "all with TLS"


class Exchange:
    """One request on a connection, until its response's headers are there.

    Args:
        trail: Of the client above, whose call this is once it is sent; None where there is none.
        is_pooled: Whether the connection is of one of urllib3's pools.
    """

    __slots__ = ("_secures", "_sends", "_sent", "flight", "is_busy", "is_pooled", "phases", "trail")

    def __init__(self, trail: Trail | None, *, is_pooled: bool = False) -> None:
        self.trail = trail
        self.is_pooled = is_pooled
        self.flight: Flight | None = None
        self.phases = None if trail is None else trail.phases
        self.is_busy = False
        """Whether one of the connection's own methods is at work: what is closed then, it closes itself."""
        self._secures = False
        self._sends = 0
        self._sent: tuple[bytes, bytes, str] | None = None

    @_guard.guarded
    def note(self, event: str) -> None:
        """Take an event in the words of httpcore's trace."""
        if self.phases is not None:
            self.phases.note(event, NO_INFO)

    @_guard.guarded
    def begin_connecting(self, step: Step) -> None:
        """A step of connecting begins."""
        self._secures = self._secures or step is Step.ALL_WITH_TLS
        self.note("connection.connect_tcp.started")

    @_guard.guarded
    def end_connecting(self, step: Step, connection: Any) -> None:
        """A step of connecting is done."""
        if step is Step.OPEN and connection._tunnel_host:
            return  # opened to a proxy: the tunnel is part of it
        self._secures = self._secures and step is not Step.ALL_WITH_TLS
        self.note("connection.start_tls.started" if self._secures else "http11.send_request_headers.started")

    def describe(self, data: Any) -> None:
        """Look at what is sent: first the headers, then the body."""
        self._sends += 1
        call = None if self.flight is None else self.flight.call
        if call is None or self._sends > 2 or not isinstance(data, bytes):
            self._sent = None  # a body of several parts is not looked at
        elif self._sends == 1:
            line, *lines = data.partition(b"\r\n\r\n")[0].split(b"\r\n")
            headers = [(name, value) for name, _, value in (line.partition(b":") for line in lines)]
            exchange.describe_headers(call, headers, attempts.settings)
            if evidence.is_looking():
                self._sent = line.split(b" ")[1], b"", exchange.content_type(headers)
        else:
            if attempts.settings.model:
                call.model = exchange.model_of(data) or call.model
            if self._sent is not None:
                self._sent = self._sent[0], data, self._sent[2]

    @_guard.guarded
    def note_sent(self) -> None:
        """All has been sent."""
        if self._sent is not None and self.flight is not None:
            evidence.note_sent(self.flight.call, *self._sent)

    @_guard.guarded
    def fail(self, error: BaseException) -> None:
        """It failed before it had headers."""
        if self.phases is not None:
            self.phases.stop()
        flight = self.flight
        if flight is None and self.trail is not None:
            flight = self.trail.adopt()
        if flight is not None:
            flight.fail(error)


@_guard.guarded
def exchange_on(connection: Any) -> Exchange | None:
    """The exchange that a connection is at."""
    found = getattr(connection, KEY, None)
    return found if isinstance(found, Exchange) else None


@_guard.guarded
def enter(connection: Any, method: str, target: str) -> None:
    """A request begins on a connection: adopt the client's call, or start one."""
    found = exchange_on(connection)
    if found is not None and found.flight is not None and not found.flight.ended:
        return  # a second hook of ours, below somebody's wrapper, has seen it
    connection.__dict__.pop(KEY, None)
    trail = None if found is None else found.trail
    if trail is None or trail.is_over:
        found, trail = None, current_trail()
    if not ledger.logs or ((trail is None or trail.flight is None) and bool(quietly(spans.is_suppressed))):
        return
    if trail is None:
        attempts.prepare_run()
    now_ns = monotonic_ns()
    entered = Exchange(trail) if found is None else found
    entered.flight = flight = None if trail is None else trail.adopt()
    if flight is None:
        entered.flight = flight = _begin(connection, method, target, trail, now_ns)
    elif flight.call.client_ns is None:
        flight.call.client_ns = now_ns - flight.call.start_ns
    if attempts.settings.spans:
        quietly(spans.claim, flight)
    if entered.phases is None and attempts.settings.phases:
        entered.phases = Phases(flight.call, now_ns, None)
    setattr(connection, KEY, entered)


def _begin(connection: Any, method: str, target: str, trail: Trail | None, now_ns: int) -> Flight:
    """A request that no client has begun, or a further attempt below one."""
    call = Call(client="http.client", start_ns=now_ns)
    quietly(describe_target, call, connection, method, target)
    if trail is not None and trail.is_for(call):
        return next_attempt(trail, now_ns)
    quietly(caller.describe, call, with_stack=attempts.settings.call_stack)
    call.sync_in_event_loop = bool(quietly(caller.sync_in_event_loop))
    return ledger.start(call)


def describe_target(call: Call, connection: Any, method: str, target: str) -> None:
    """Fill in where a request goes: through a proxy, what lies behind it."""
    if target.startswith(("http:", "https:")):
        exchange.describe_url(call, method, target, attempts.settings)
        return
    host, port = connection.host, connection.port
    if connection._tunnel_host:
        host, port = connection._tunnel_host, connection._tunnel_port
    call.port = port
    host = exchange.with_port(host, None if port == connection.default_port else port)
    path = unquote(target.partition("?")[0]) or "/"
    exchange.describe_target(call, method, host, path, attempts.settings)


@_guard.guarded
def begin_sending(entered: Exchange, connection: Any, data: Any) -> None:
    """Something is sent, over a connection that is open, or is opened for it."""
    if connection.sock is not None:
        entered.note("http11.send_request_headers.started")
    quietly(entered.describe, data)


@_guard.guarded
def fail_sending(entered: Exchange, error: BaseException) -> None:
    """Sending failed, which is the end unless urllib3 goes on to read."""
    if not entered.is_pooled or getattr(error, "errno", None) not in UNANSWERED:
        entered.fail(error)


@_guard.guarded
def respond(entered: Exchange, response: Any, incomplete: type[Exception]) -> None:
    """The connection has the headers: stamp them, and have the body stamped as it is read."""
    flight = entered.flight
    if flight is None or flight.ended:
        return
    if entered.phases is not None:
        quietly(entered.phases.stop)
    headers = quietly(exchange.needed_headers, response.headers.items()) or {}
    if not take_headers(flight, response.status, headers):
        return
    if response.fp is None:
        flight.complete()
    else:
        response.fp = SocketBody(response.fp, BodyStamps(flight, headers), response, incomplete)


@_guard.guarded
def close(connection: Any) -> None:
    """A connection is closed: early, where it has a request without a response, or because something has failed."""
    entered = exchange_on(connection)
    if entered is None or entered.flight is None or entered.is_busy:
        return
    connection.__dict__.pop(KEY, None)
    error = sys.exc_info()[1]
    if error is None:
        entered.flight.close()
    else:
        entered.fail(error)


# Putting them in


def patch_http_client(module: ModuleType) -> None:
    """Put the hooks into `http.client`."""
    connection = module.HTTPConnection
    for name, make in (
        ("putrequest", _hook_putrequest),
        ("send", _hook_send),
        ("getresponse", lambda original, patch: _hook_getresponse(original, module.IncompleteRead)),
        ("close", _hook_close),
        ("connect", hook_opening),
        ("_tunnel", hook_tunnelling),
    ):
        replace_method(connection, name, make, in_use=ledger.awaits_headers)
    if hasattr(module, "HTTPSConnection"):  # not where Python was built without TLS
        replace_method(module.HTTPSConnection, "connect", hook_securing, in_use=ledger.awaits_headers)


def _hook_putrequest(original: Any, patch: Patch) -> Any:
    def putrequest(connection: Any, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
        result = original(connection, method, url, *args, **kwargs)
        if patch.active:
            enter(connection, method, url)
        return result

    return putrequest


def _hook_send(original: Any, patch: Patch) -> Any:
    def send(connection: Any, data: Any) -> Any:
        entered = exchange_on(connection)
        if entered is None or entered.flight is None or entered.is_busy:  # not ours, or what opens a tunnel
            return original(connection, data)
        begin_sending(entered, connection, data)
        entered.is_busy = True
        try:
            result = original(connection, data)
        except BaseException as error:
            fail_sending(entered, error)
            raise
        finally:
            entered.is_busy = False
        entered.note("http11.send_request_body.complete")
        return result

    return send


def _hook_getresponse(original: Any, incomplete: type[Exception]) -> Any:
    def getresponse(connection: Any, *args: Any, **kwargs: Any) -> Any:
        entered = exchange_on(connection)
        # urllib3 1 asks with an argument first that no Python 3 knows.
        if entered is None or entered.flight is None or entered.is_busy or args or kwargs:
            return original(connection, *args, **kwargs)
        entered.is_busy = True
        entered.note_sent()
        try:
            response = original(connection)
        except BaseException as error:
            entered.fail(error)
            raise
        finally:
            connection.__dict__.pop(KEY, None)
        respond(entered, response, incomplete)
        return response

    return getresponse


def _hook_close(original: Any, patch: Patch) -> Any:
    def close_connection(connection: Any) -> Any:
        close(connection)
        return original(connection)

    return close_connection


def hook_connecting(step: Step, original: Any, patch: Patch) -> Any:
    """For a method that connects, or takes a step of it."""

    def connect(connection: Any, *args: Any, **kwargs: Any) -> Any:
        entered = exchange_on(connection)
        if entered is None:
            return original(connection, *args, **kwargs)
        entered.begin_connecting(step)
        try:
            result = original(connection, *args, **kwargs)
        except BaseException as error:
            entered.fail(error)
            raise
        entered.end_connecting(step, connection)
        return result

    return connect


hook_opening, hook_tunnelling, hook_securing = (partial(hook_connecting, step) for step in Step)
