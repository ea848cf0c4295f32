"""A flight stamps its call and ends it exactly once."""

import gc
from typing import Any

import pytest

from occupancy import Call, Outcome
from occupancy.flight import Flight, is_collecting, note_collection, outcome_of
from occupancy.ledger import Ledger


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("occupancy.flight.monotonic_ns", clock)
    return clock


class Told:
    """Stands for a log: what it is told, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def _start(self, call: Call) -> None:
        self.events.append("start")

    def _release(self, call: Call) -> None:
        self.events.append("release")


def begin(clock: Clock, **fields: Any) -> tuple[Flight, Told]:
    log = Told()
    return Ledger().start(Call(start_ns=clock.now_ns, **fields), (log,)), log


class TimeoutException(Exception):  # noqa: N818 - the clients' own name
    pass


class ReadTimeout(TimeoutException):
    pass


class Cancelled(BaseException):
    pass


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ReadTimeout(), Outcome.TIMEOUT),
        (TimeoutError(), Outcome.TIMEOUT),
        (ConnectionResetError(), Outcome.ERROR),
        (Cancelled(), Outcome.CANCELLED),
        (KeyboardInterrupt(), Outcome.CANCELLED),
        (GeneratorExit(), Outcome.CLOSED_EARLY),
    ],
)
def test_outcome_of(error: BaseException, outcome: Outcome) -> None:
    assert outcome_of(error) is outcome


def test_chunks(clock: Clock) -> None:
    flight, _ = begin(clock)
    flight.headers(200, 5)
    for size, at_ns in ((0, 6), (3, 10), (0, 12), (4, 30), (1, 35)):
        flight.chunk(size, at_ns)
    call = flight.call
    assert (call.first_byte_ns, call.last_byte_ns, call.max_gap_ns) == (10, 35, 20)
    assert (call.chunks, call.bytes_received) == (3, 8)
    clock.now_ns = 40
    flight.complete()
    assert (call.outcome, call.end_ns, call.released_ns, call.receive_ns) == (Outcome.OK, 35, 40, 30)
    flight.chunk(9, 50)
    assert (call.chunks, call.last_byte_ns) == (3, 35)


@pytest.mark.parametrize(
    ("status", "outcome", "error"), [(200, "ok", None), (399, "ok", None), (400, "http_error", "400")]
)
def test_complete_without_a_body(clock: Clock, status: int, outcome: str, error: str | None) -> None:
    flight, log = begin(clock)
    flight.headers(status, 5)
    clock.now_ns = 9
    flight.complete()
    call = flight.call
    assert (call.outcome, call.error_type, call.end_ns, call.released_ns) == (outcome, error, 5, 9)
    assert log.events == ["start", "release"]


def test_complete_without_headers_or_at_a_given_time(clock: Clock) -> None:
    flight, _ = begin(clock)
    clock.now_ns = 9
    flight.complete()
    assert (flight.call.end_ns, flight.call.receive_ns) == (9, None)
    flight, _ = begin(clock)
    flight.chunk(1, 9)
    clock.now_ns = 12
    flight.complete(11)
    assert (flight.call.end_ns, flight.call.released_ns) == (11, 12)


def test_close(clock: Clock) -> None:
    flight, _ = begin(clock)
    flight.headers(200, 1)
    flight.chunk(4, 2)
    clock.now_ns = 7
    flight.close()
    assert (flight.call.outcome, flight.call.end_ns, flight.call.error_type) == (Outcome.CLOSED_EARLY, 7, None)


def test_fail(clock: Clock) -> None:
    flight, _ = begin(clock)
    clock.now_ns = 7
    flight.fail(ReadTimeout())
    assert (flight.call.outcome, flight.call.end_ns, flight.call.error_type) == (Outcome.TIMEOUT, 7, "ReadTimeout")
    assert flight.ended
    flight.fail(ConnectionResetError())
    assert flight.call.error_type == "ReadTimeout"


def test_generator_exit_closes(clock: Clock) -> None:
    flight, _ = begin(clock)
    flight.fail(GeneratorExit())
    assert (flight.call.outcome, flight.call.error_type) == (Outcome.CLOSED_EARLY, None)


@pytest.mark.parametrize(("headers", "chunk", "end_ns"), [(None, None, 9), (3, None, 3), (3, 4, 4)])
def test_abandon(clock: Clock, headers: int | None, chunk: int | None, end_ns: int) -> None:
    flight, _ = begin(clock)
    if headers is not None:
        flight.headers(200, headers)
    if chunk is not None:
        flight.chunk(1, chunk)
    clock.now_ns = 9
    flight.abandon()
    flight.ledger.settle()
    call = flight.call
    assert (call.outcome, call.end_ns, call.released_ns) == (Outcome.ABANDONED, end_ns, 9)


@pytest.mark.parametrize("first", ["complete", "close", "abandon"])
def test_exactly_one_end(clock: Clock, first: str) -> None:
    flight, log = begin(clock)
    getattr(flight, first)()
    outcome = flight.call.outcome
    for further in ("complete", "close", "abandon"):
        getattr(flight, further)()
    flight.fail(ValueError())
    flight.ledger.settle()
    assert log.events == ["start", "release"]
    assert flight.call.outcome == outcome


def test_dropped(clock: Clock) -> None:
    flight, log = begin(clock)
    call, ledger = flight.call, flight.ledger
    flight.headers(200, 3)
    clock.now_ns = 9
    del flight
    assert log.events == ["start"]  # a finalizer takes no lock: who comes next counts
    ledger.settle()
    assert log.events == ["start", "release"]
    assert (call.outcome, call.end_ns, call.released_ns) == (Outcome.ABANDONED, 3, 9)


def test_finalizer_that_fails_is_told(clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    from occupancy import _guard

    def fail(flight: Flight) -> None:
        raise LookupError("ours")

    _guard._reported.clear()
    flight, _ = begin(clock)
    monkeypatch.setattr(Flight, "abandon", fail)
    del flight
    assert [record.name for record in caplog.records] == ["occupancy"]


class Generation:
    """Closes a flight when it is collected, in the order in which both were made or the other way round."""

    def __init__(self, flight: Flight, how: str) -> None:
        self.flight = flight
        self.how = how
        self.me = self

    def __del__(self) -> None:
        if self.how == "close":
            self.flight.close(settle=False)
        else:
            self.flight.fail(GeneratorExit())


@pytest.fixture
def noted() -> Any:
    gc.callbacks.append(note_collection)
    yield
    gc.callbacks.remove(note_collection)


@pytest.mark.parametrize("how", ["close", "fail"])
def test_closed_by_the_collector(clock: Clock, noted: None, how: str) -> None:
    flight, log = begin(clock)
    call, ledger = flight.call, flight.ledger
    flight.headers(200, 3)
    flight.chunk(1, 4)
    holder = Generation(flight, how)
    clock.now_ns = 9
    del holder, flight
    gc.collect()
    ledger.settle()
    assert (call.outcome, call.end_ns, call.released_ns) == (Outcome.ABANDONED, 4, 9)
    assert log.events == ["start", "release"]
    assert not is_collecting()


def test_closed_by_the_program_while_another_thread_collects(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("occupancy.flight._collecting_thread", -1)
    flight, _ = begin(clock)
    flight.close()
    assert flight.call.outcome == Outcome.CLOSED_EARLY
