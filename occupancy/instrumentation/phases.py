"""Where the time before the headers goes: httpcore's trace events, added up."""

from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from occupancy import _guard
from occupancy.call import Call

TraceCallback = Callable[[str, dict[str, Any]], Any]

# What begins with an event, by its name without the prefix of the layer that fires it. None: nothing told apart.
PHASE_AFTER: dict[str, str | None] = {
    "retry.started": "connect_ns",
    "connect_tcp.started": "connect_ns",
    "connect_tcp.complete": None,
    "connect_unix_socket.started": "connect_ns",
    "connect_unix_socket.complete": None,
    "setup_socks5_connection.started": "connect_ns",
    "setup_socks5_connection.complete": None,
    "start_tls.started": "tls_ns",
    "start_tls.complete": None,
    "send_connection_init.started": "connect_ns",
    "send_connection_init.complete": None,
    "send_request_headers.started": "send_ns",
    "send_request_body.complete": "wait_ns",
    "receive_response_headers.complete": None,
}
OPENING = frozenset({"connect_tcp.started", "connect_unix_socket.started"})


class Phases:
    """Adds up one attempt's phases on its call, from the moment it enters the pool.

    Args:
        call: The call to fill.
        entered_ns: When the pool was asked.
        phase: The one that begins there; None for a client without a pool.
    """

    __slots__ = ("_call", "_phase", "_since_ns", "_tunnelling")

    def __init__(self, call: Call, entered_ns: int, phase: str | None = "pool_ns") -> None:
        self._call = call
        self._phase = phase
        self._since_ns = entered_ns
        self._tunnelling = False

    @_guard.guarded
    def note(self, event: str, info: dict[str, Any]) -> None:
        """Take one trace event, such as `connection.connect_tcp.started`."""
        if self._call.headers_ns is not None:
            return
        name = event.partition(".")[2]
        if self._call.connection_reused is None:
            self._call.connection_reused = name not in OPENING
            self._enter(None)
        if name not in PHASE_AFTER:
            return
        phase = PHASE_AFTER[name]
        if name == "send_request_headers.started":
            # Through a proxy the request that opens the tunnel is part of the connecting.
            self._tunnelling = getattr(info.get("request"), "method", None) == b"CONNECT"
        if self._tunnelling and phase in ("send_ns", "wait_ns"):
            phase = "connect_ns"
        self._enter(phase)

    def stop(self) -> None:
        """The attempt has its headers or has failed: the phase it is in ends now."""
        self._enter(None)

    def _enter(self, phase: str | None) -> None:
        now_ns = monotonic_ns()
        if self._phase is not None:
            spent_ns = getattr(self._call, self._phase) or 0
            setattr(self._call, self._phase, spent_ns + now_ns - self._since_ns)
        self._phase, self._since_ns = phase, now_ns


class Trace:
    """The `trace` callback of a synchronous request; the host's own still runs, and may raise."""

    __slots__ = ("_note", "host")

    def __init__(self, phases: Phases, host: TraceCallback | None) -> None:
        self._note = phases.note
        self.host = host

    def __call__(self, event: str, info: dict[str, Any]) -> Any:
        """Take one event. What the host's callback gives goes to httpcore, which refuses an awaitable here."""
        self._note(event, info)
        return None if self.host is None else self.host(event, info)


class AsyncTrace(Trace):
    """The same for an asynchronous request."""

    __slots__ = ()

    def __call__(self, event: str, info: dict[str, Any]) -> Any:
        """Take one event. What the host's callback gives goes to httpcore, which refuses all but a coroutine here."""
        self._note(event, info)
        return _nothing() if self.host is None else self.host(event, info)


async def _nothing() -> None:
    """What httpcore awaits where the host has no callback."""
