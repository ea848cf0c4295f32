"""Trace events added up to phases, on a clock that is moved by hand."""

from typing import Any

import pytest

from occupancy import Call
from occupancy.instrumentation.phases import AsyncTrace, Phases, Trace


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("occupancy.instrumentation.phases.monotonic_ns", clock)
    return clock


def play(clock: Clock, *events: tuple[int, str], stop_ns: int | None = None) -> Call:
    """Play events at their times, from an entry at 0."""
    call = Call()
    phases = Phases(call, 0)
    for at_ns, event in events:
        clock.now_ns = at_ns
        name, _, method = event.partition(" ")
        request = type("Request", (), {"method": method.encode() or b"GET"})
        phases.note(name, {"request": request})
    if stop_ns is not None:
        clock.now_ns = stop_ns
        phases.stop()
    return call


def spent(call: Call) -> dict[str, int]:
    names = ("pool_ns", "connect_ns", "tls_ns", "send_ns", "wait_ns")
    return {name.removesuffix("_ns"): value for name in names if (value := getattr(call, name)) is not None}


SEND = ["http11.send_request_headers.started", "http11.send_request_body.complete"]
HEADERS = "http11.receive_response_headers.complete"


def test_new_connection_with_tls(clock: Clock) -> None:
    call = play(
        clock,
        (10, "connection.connect_tcp.started"),
        (30, "connection.connect_tcp.complete"),
        (31, "connection.start_tls.started"),
        (61, "connection.start_tls.complete"),
        (65, SEND[0]),
        (70, SEND[1]),
        (170, HEADERS),
        stop_ns=180,
    )
    assert spent(call) == {"pool": 10, "connect": 20, "tls": 30, "send": 5, "wait": 100}
    assert call.connection_reused is False


def test_reused_connection(clock: Clock) -> None:
    call = play(clock, (7, SEND[0]), (8, SEND[1]), (18, HEADERS), stop_ns=20)
    assert spent(call) == {"pool": 7, "send": 1, "wait": 10}
    assert call.connection_reused is True


def test_shared_http2_connection(clock: Clock) -> None:
    call = play(
        clock,
        (3, "http2.send_request_headers.started"),
        (4, "http2.send_request_body.complete"),
        (9, "http2.receive_response_headers.complete"),
        stop_ns=9,
    )
    assert spent(call) == {"pool": 3, "send": 1, "wait": 5}
    assert call.connection_reused is True


def test_time_out_in_the_pool(clock: Clock) -> None:
    call = play(clock, stop_ns=50)
    assert spent(call) == {"pool": 50}
    assert call.connection_reused is None


def test_failed_connect(clock: Clock) -> None:
    call = play(clock, (5, "connection.connect_tcp.started"), (25, "connection.connect_tcp.failed"), stop_ns=26)
    assert spent(call) == {"pool": 5, "connect": 21}
    assert call.connection_reused is False


def test_retried_connect(clock: Clock) -> None:
    call = play(
        clock,
        (5, "connection.connect_tcp.started"),
        (25, "connection.connect_tcp.failed"),
        (25, "connection.retry.started"),
        (35, "connection.retry.complete"),
        (36, "connection.connect_tcp.started"),
        (46, "connection.connect_tcp.complete"),
        (50, SEND[0]),
        (51, SEND[1]),
        stop_ns=60,
    )
    assert spent(call) == {"pool": 5, "connect": 41, "send": 1, "wait": 9}


def test_tunnel(clock: Clock) -> None:
    """The request that opens a tunnel is part of the connecting."""
    call = play(
        clock,
        (1, "connection.connect_tcp.started"),
        (4, "connection.connect_tcp.complete"),
        (5, f"{SEND[0]} CONNECT"),
        (6, f"{SEND[1]} CONNECT"),
        (26, HEADERS),
        (27, "proxy.start_tls.started"),
        (37, "proxy.start_tls.complete"),
        (40, SEND[0]),
        (42, SEND[1]),
        (142, HEADERS),
        stop_ns=143,
    )
    assert spent(call) == {"pool": 1, "connect": 3 + 21, "tls": 10, "send": 2, "wait": 100}


def test_socks(clock: Clock) -> None:
    call = play(
        clock,
        (1, "socks.connect_tcp.started"),
        (4, "socks.connect_tcp.complete"),
        (4, "socks.setup_socks5_connection.started"),
        (10, "socks.setup_socks5_connection.complete"),
        (11, SEND[0]),
        stop_ns=12,
    )
    assert spent(call) == {"pool": 1, "connect": 9, "send": 1}


def test_nothing_counts_after_the_headers(clock: Clock) -> None:
    call = Call()
    phases = Phases(call, 0)
    call.headers_ns = 5
    clock.now_ns = 9
    phases.note("http11.receive_response_body.started", {})
    assert spent(call) == {}
    assert call.connection_reused is None


def test_unknown_events_change_nothing(clock: Clock) -> None:
    call = play(clock, (2, "connection_pool.wait.started"), (3, "no_dot"), (9, SEND[0]), stop_ns=10)
    assert "send" in spent(call)


def test_the_hosts_trace_gets_every_event() -> None:
    told: list[Any] = []
    trace = Trace(Phases(Call(), 0), lambda event, info: told.append((event, info)))
    info = {"request": None}
    assert trace("http11.send_request_headers.started", info) is None
    assert told == [("http11.send_request_headers.started", info)]
    assert told[0][1] is info


def test_what_the_hosts_trace_gives_goes_to_httpcore() -> None:
    async def host(event: str, info: Any) -> None:
        return None

    for kind in (Trace, AsyncTrace):
        given = kind(Phases(Call(), 0), host)("any.event", {})
        assert given.__qualname__.endswith("host")
        given.close()
    assert AsyncTrace(Phases(Call(), 0), lambda event, info: 7)("any.event", {}) == 7


def test_without_a_trace_of_the_hosts() -> None:
    assert Trace(Phases(Call(), 0), None)("any.event", {}) is None
    nothing = AsyncTrace(Phases(Call(), 0), None)("any.event", {})
    with pytest.raises(StopIteration):
        nothing.send(None)
