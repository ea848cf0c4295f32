"""The held end of a span, on stamps that the test sets."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import context, trace
from opentelemetry.instrumentation.utils import suppress_http_instrumentation, suppress_instrumentation
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from occupancy.call import Call, Frame, Outcome
from occupancy.flight import Flight
from occupancy.instrumentation import provider, spans
from occupancy.ledger import Ledger

UNIX_NS = 1_700_000_000_000_000_000
"""What the wall clock says when the monotonic clock says 0."""
START_NS = 1_000
"""When the span starts, on the monotonic clock."""


class Clock:
    """Both clocks, moved by hand."""

    def __init__(self) -> None:
        self.now_ns = START_NS
        self.unix_ns = UNIX_NS

    def monotonic_ns(self) -> int:
        return self.now_ns

    def time_ns(self) -> int:
        return self.now_ns + self.unix_ns


class Ended(SpanProcessor):
    """Keeps what ended, and whether instrumentation was suppressed then."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []
        self.suppressed: list[bool | None] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)
        self.suppressed.append(spans.is_suppressed())


class Host:
    """A provider whose httpx spans are claimed, and the calls they belong to."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.ended = Ended()
        self.ledger = Ledger()
        sdk = TracerProvider(shutdown_on_exit=False)
        sdk.add_span_processor(self.ended)
        self._tracer = sdk.get_tracer(provider.SCOPES["httpx"])

    def start(self, **attributes: Any) -> Any:
        """An httpx span that begins now."""
        return self._tracer.start_span("GET", start_time=self.clock.time_ns(), attributes=attributes)

    def fly(self, span: Any, **fields: Any) -> Flight:
        """A call that claims the span."""
        flight = self.ledger.start(Call(start_ns=self.clock.now_ns, **fields), ())
        with trace.use_span(span):
            spans.claim(flight)
        return flight

    @property
    def span(self) -> Any:
        """The one span that has ended."""
        (span,) = self.ended.spans
        return span


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for name in ("monotonic_ns", "time_ns"):
        monkeypatch.setattr(spans, name, getattr(clock, name))
    monkeypatch.setattr("occupancy.flight.monotonic_ns", clock.monotonic_ns)
    return clock


@pytest.fixture
def host(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setattr(provider, "attach", lambda span, leave: None)
    yield Host(clock)
    assert spans.held == set()


def read(flight: Flight, clock: Clock, *at_ns: int) -> None:
    """Headers and the bytes of a body come at these times."""
    flight.headers(200, at_ns[0])
    for stamp_ns in at_ns:
        flight.chunk(1, stamp_ns)
    clock.now_ns = at_ns[-1]


Order = Callable[[Any, Flight], None]


def asked_first(span: Any, flight: Flight) -> None:
    span.end()
    flight.complete()


def released_first(span: Any, flight: Flight) -> None:
    flight.complete()
    span.end()


@pytest.mark.parametrize("order", [asked_first, released_first])
def test_span_ends_with_its_call_whichever_comes_first(host: Host, clock: Clock, order: Order) -> None:
    span = host.start()
    flight = host.fly(span)
    read(flight, clock, 5_000, 9_000)
    clock.now_ns = 20_000
    order(span, flight)
    assert (host.span.start_time, host.span.end_time) == (UNIX_NS + START_NS, UNIX_NS + 9_000)
    assert [(event.name, event.timestamp) for event in host.span.events] == [
        ("first_byte", UNIX_NS + 5_000),
        ("last_byte", UNIX_NS + 9_000),
    ]
    assert "end" not in vars(span)


def test_span_waits_for_both(host: Host, clock: Clock) -> None:
    span = host.start()
    flight = host.fly(span)
    span.end()
    assert span.is_recording()
    assert host.ended.spans == []
    flight.complete()
    assert not span.is_recording()


def test_end_that_is_asked_for_twice_is_one(host: Host, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    span = host.start()
    flight = host.fly(span)
    span.end()
    span.end()
    assert host.ended.spans == []
    flight.complete()
    assert len(host.ended.spans) == 1
    assert caplog.messages == []


@pytest.mark.parametrize("hold", [True, False])
@pytest.mark.parametrize("back_at", ["before the claim", "after the claim"])
def test_clock_that_is_set_back_turns_nothing_round(
    host: Host, clock: Clock, monkeypatch: pytest.MonkeyPatch, hold: bool, back_at: str
) -> None:
    monkeypatch.setattr(spans, "extend", hold)
    span = host.start()
    if back_at == "before the claim":
        clock.unix_ns -= 3_600_000_000_000
    flight = host.fly(span)
    clock.unix_ns -= 3_600_000_000_000
    clock.now_ns = 4_000
    span.end()
    read(flight, clock, 5_000, 9_000)
    flight.complete()
    start_ns = UNIX_NS + START_NS
    assert host.span.start_time == start_ns
    assert host.span.end_time == start_ns + (8_000 if hold else 3_000)
    assert [event.timestamp for event in host.span.events] == [start_ns + 4_000, start_ns + 8_000]


def test_end_that_is_asked_for_in_the_past_is_no_earlier_than_the_start(
    host: Host, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "extend", False)
    span = host.start()
    flight = host.fly(span)
    span.end(end_time=5)
    flight.complete()
    assert host.span.end_time == host.span.start_time


def test_span_that_is_not_held_ends_where_it_was_asked_to(
    host: Host, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "extend", False)
    span = host.start()
    flight = host.fly(span)
    read(flight, clock, 5_000)
    span.end(end_time=UNIX_NS + 5_500)
    flight.chunk(1, 9_000)
    flight.complete()
    assert host.span.end_time == UNIX_NS + 5_500
    assert host.span.attributes["occupancy.total_ms"] == 8_000 / 1e6
    assert host.span.events[-1].timestamp == UNIX_NS + 9_000


def test_failure_ends_the_span_at_its_moment(host: Host, clock: Clock) -> None:
    span = host.start()
    flight = host.fly(span)
    clock.now_ns = 7_000
    flight.fail(ConnectionResetError())
    clock.now_ns = 8_000
    span.end()
    assert host.span.end_time == UNIX_NS + 7_000
    assert host.span.status.status_code is trace.StatusCode.ERROR
    assert host.span.attributes["error.type"] == "ConnectionResetError"


# Several attempts under one span


def test_next_attempt_under_the_span_takes_it_over(host: Host, clock: Clock) -> None:
    span = host.start()
    first = host.fly(span)
    read(first, clock, 2_000)
    first.complete()
    second = host.fly(span, attempt=1)
    span.end()
    assert host.ended.spans == []
    read(second, clock, 5_000, 6_000)
    second.complete()
    assert host.span.end_time == UNIX_NS + 6_000
    assert host.span.attributes["occupancy.call_id"] == second.call.call_id
    assert host.span.attributes["http.request.resend_count"] == 1


@pytest.mark.parametrize("later", [0, 1])
def test_attempts_at_once_end_the_span_with_the_later(host: Host, clock: Clock, later: int) -> None:
    span = host.start()
    flights = [host.fly(span), host.fly(span, attempt=1)]
    span.end()
    flights[1 - later].close()
    assert host.ended.spans == []
    read(flights[later], clock, 5_000, 6_000)
    flights[later].complete()
    assert host.span.end_time == UNIX_NS + 6_000
    assert host.span.attributes["occupancy.call_id"] == flights[later].call.call_id


def test_attempt_after_the_end_was_asked_for_is_not_of_the_span(host: Host, clock: Clock) -> None:
    span = host.start()
    first = host.fly(span)
    span.end()
    second = host.fly(span)
    first.complete()
    assert host.span.attributes["occupancy.call_id"] == first.call.call_id
    second.complete()
    assert len(host.ended.spans) == 1


# Settling


def test_settling_ends_an_open_call_at_its_last_byte_and_its_release_changes_nothing(
    host: Host, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    span = host.start()
    flight = host.fly(span)
    clock.now_ns = 4_000
    span.end()
    read(flight, clock, 5_000, 9_000)
    spans.settle_held()
    assert host.span.end_time == UNIX_NS + 9_000
    assert host.span.attributes["occupancy.outcome"] == "open"
    flight.complete()
    assert len(host.ended.spans) == 1
    assert caplog.messages == []


def test_settling_without_a_byte_ends_where_it_was_asked_to(host: Host, clock: Clock) -> None:
    span = host.start()
    flight = host.fly(span)
    clock.now_ns = 4_000
    span.end()
    clock.now_ns = 9_000
    spans.settle_held()
    assert host.span.end_time == UNIX_NS + 4_000
    flight.complete()


def test_settling_leaves_a_span_that_opentelemetry_still_uses(host: Host, clock: Clock) -> None:
    span = host.start()
    flight = host.fly(span)
    spans.settle_held()
    spans.settle_ended()
    assert host.ended.spans == []
    flight.complete()
    span.end()
    assert len(host.ended.spans) == 1


def test_flush_leaves_an_open_call_and_ends_one_that_another_thread_has_counted(host: Host, clock: Clock) -> None:
    open_span, counted_span = host.start(), host.start()
    opened, counted = host.fly(open_span), host.fly(counted_span)
    open_span.end()
    counted_span.end()
    told = counted.on_release
    counted.on_release = None  # as in a thread that has counted the release and is about to tell of it
    counted.complete()
    spans.settle_ended()
    assert host.span.attributes["occupancy.call_id"] == counted.call.call_id
    assert told is not None
    told(counted.call)
    opened.complete()
    assert len(host.ended.spans) == 2


def test_collected_call_ends_its_span_outside_the_finalizer(host: Host, clock: Clock) -> None:
    span = host.start()
    flight = host.fly(span)
    read(flight, clock, 5_000)
    span.end()
    del flight
    assert host.ended.spans == []
    host.ledger.settle()
    assert host.span.attributes["occupancy.outcome"] == "abandoned"
    assert host.span.end_time == UNIX_NS + 5_000


def test_two_threads_end_a_span_once(host: Host, clock: Clock) -> None:
    barrier = threading.Barrier(2)
    rounds = [(span, host.fly(span)) for span in [host.start() for _ in range(200)]]

    def end(index: int) -> None:
        for pair in rounds:
            barrier.wait()
            (pair[0].end if index else pair[1].complete)()

    threads = [threading.Thread(target=end, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    host.ledger.settle()
    assert len({span.context.span_id for span in host.ended.spans}) == len(host.ended.spans) == len(rounds)


# What is left alone


def test_end_that_somebody_else_has_set_is_left_alone(host: Host, clock: Clock) -> None:
    span = host.start()
    ends: list[Any] = []
    span.end = theirs = lambda end_time=None: ends.append(end_time)
    flight = host.fly(span)
    assert span.end is theirs
    assert flight.call.span_id == f"{span.context.span_id:016x}"
    flight.complete()
    assert host.ended.spans == ends == []


def test_end_that_somebody_puts_over_ours_stays_and_the_span_ends(host: Host, clock: Clock) -> None:
    span = host.start()
    flight = host.fly(span)
    span.end = theirs = functools.partial(span.end)
    span.end()
    flight.complete()
    assert len(host.ended.spans) == 1
    assert span.end is theirs


def test_span_under_which_the_client_was_asked_is_not_claimed(host: Host, clock: Clock) -> None:
    span = host.start()
    flight = host.fly(span, parent_span_id=f"{span.context.span_id:016x}")
    assert flight.call.span_id is None
    assert "end" not in vars(span)
    flight.complete()


@pytest.mark.parametrize("scope", ["com.anthropic.sdk.python", "opentelemetry.instrumentation.openai_v2", "user"])
def test_span_of_another_library_is_not_claimed(host: Host, clock: Clock, scope: str) -> None:
    span = TracerProvider(shutdown_on_exit=False).get_tracer(scope).start_span("chat", kind=trace.SpanKind.CLIENT)
    flight = host.fly(span)
    assert flight.call.span_id is None
    assert "end" not in vars(span)
    flight.complete()


def test_span_that_has_ended_is_not_claimed(host: Host, clock: Clock) -> None:
    span = host.start()
    span.end()
    flight = host.fly(span)
    assert flight.call.span_id is None
    flight.complete()
    assert len(host.ended.spans) == 1


def test_what_others_have_set_is_left_alone(host: Host, clock: Clock) -> None:
    theirs = {"error.type": "theirs", "code.line.number": 1, "http.request.resend_count": 7}
    span = host.start(**theirs)
    flight = host.fly(span, call_stack=(Frame("/app/main.py", 3, "main"),), attempt=1)
    span.set_status(trace.Status(trace.StatusCode.ERROR, "theirs"))
    flight.fail(OSError())
    span.end()
    assert {name: host.span.attributes[name] for name in theirs} == theirs
    assert host.span.status.description == "theirs"
    assert host.span.attributes["code.file.path"] == "/app/main.py"


# What a span says


def test_attributes_of_an_empty_call_are_those_that_it_always_has() -> None:
    assert spans.attributes(Call()) == {
        "occupancy.outcome": "open",
        "occupancy.kind": "tool",
        "occupancy.attempt": 0,
        "occupancy.call_id": 0,
        "occupancy.logical_id": 0,
    }
    assert dict(spans.conventional_attributes(Call())) == {}


def test_attributes_of_a_full_call() -> None:
    call = Call(
        call_id=4, logical_id=3, attempt=1, kind="generate", label="plan", model="m-1", run="r#1",
        outcome=Outcome.HTTP_ERROR,
        start_ns=1_000_000, first_byte_ns=3_000_000, end_ns=6_000_000, in_flight_start=2, in_flight_end=1,
        client_ns=1_000, gate_ns=2_000, pool_ns=3_000, connect_ns=4_000, tls_ns=5_000, send_ns=6_000, wait_ns=7_000,
        receive_ns=8_000, connection_reused=False, error_type="429", call_stack=(Frame("/app/main.py", 3, "main"),),
        key_id="2bb80d53", retry_after_s=2.5, limit_requests=60, remaining_requests=0, limit_tokens=9000,
        remaining_tokens=8000, after="look\nread", needs=0, async_task="Task-2", thread="MainThread", siblings=2,
        siblings_held=False,
    )  # fmt: skip
    assert spans.attributes(call) == {
        "occupancy.in_flight_start": 2,
        "occupancy.in_flight_end": 1,
        "occupancy.wait_first_ms": 2.0,
        "occupancy.total_ms": 5.0,
        "occupancy.outcome": "http_error",
        "occupancy.kind": "generate",
        "occupancy.label": "plan",
        "occupancy.model": "m-1",
        "occupancy.run": "r#1",
        "occupancy.attempt": 1,
        "occupancy.call_id": 4,
        "occupancy.logical_id": 3,
        "occupancy.client_ms": 0.001,
        "occupancy.gate_ms": 0.002,
        "occupancy.pool_ms": 0.003,
        "occupancy.connect_ms": 0.004,
        "occupancy.tls_ms": 0.005,
        "occupancy.send_ms": 0.006,
        "occupancy.wait_ms": 0.007,
        "occupancy.receive_ms": 0.008,
        "occupancy.connection_reused": False,
        "occupancy.key_id": "2bb80d53",
        "occupancy.retry_after_s": 2.5,
        "occupancy.limit_requests": 60,
        "occupancy.remaining_requests": 0,
        "occupancy.limit_tokens": 9000,
        "occupancy.remaining_tokens": 8000,
        "occupancy.after": "look\nread",
        "occupancy.needs": 0,
        "occupancy.async_task": "Task-2",
        "occupancy.thread": "MainThread",
        "occupancy.siblings": 2,
        "occupancy.siblings_held": False,
    }
    assert dict(spans.conventional_attributes(call)) == {
        "http.request.resend_count": 1,
        "code.file.path": "/app/main.py",
        "code.line.number": 3,
        "code.function.name": "main",
        "error.type": "429",
    }


def test_more_frames_than_one_are_an_attribute_of_ours() -> None:
    stack = (Frame("/app/main.py", 3, "ask"), Frame("/app/main.py", 9, "main"))
    found = spans.attributes(Call(call_stack=stack, sync_in_event_loop=True))
    assert found["occupancy.call_stack"] == '[["/app/main.py", 3, "ask"], ["/app/main.py", 9, "main"]]'
    assert found["occupancy.sync_in_event_loop"] is True


# Suppression


@pytest.mark.parametrize(
    ("suppress", "seen"), [(suppress_instrumentation, True), (suppress_http_instrumentation, False)]
)
def test_suppression_of_opentelemetry_is_seen(suppress: Callable[[], Any], seen: bool) -> None:
    assert not spans.is_instrumentation_suppressed()
    with suppress():
        assert spans.is_suppressed() is seen
        assert spans.is_instrumentation_suppressed()
    assert not spans.is_instrumentation_suppressed()


def test_suppression_by_the_key_of_older_libraries_is_seen() -> None:
    token = context.attach(context.set_value("suppress_instrumentation", True))
    try:
        assert spans.is_suppressed()
    finally:
        context.detach(token)


def test_context_that_suppresses_nothing_is_no_suppression() -> None:
    token = context.attach(context.set_value("anything", True))
    try:
        assert not spans.is_suppressed()
    finally:
        context.detach(token)


def test_span_of_a_body_that_is_read_under_suppression_ends_outside_it(host: Host, clock: Clock) -> None:
    span = host.start()
    flight = host.fly(span)
    span.end()
    with suppress_instrumentation():
        flight.complete()
    assert host.ended.suppressed == [False]


def test_no_query_goes_on_a_span_of_ours() -> None:
    url = "https://host/v1/chat?key=secret"
    attributes = {"http.url": url, "url.full": url, "http.method": "POST", "http.status_code": 200}
    assert provider.without_queries(attributes) == {
        "http.url": "https://host/v1/chat", "url.full": "https://host/v1/chat", "http.method": "POST",
        "http.status_code": 200,
    }  # fmt: skip
