"""The ledger never waits, whoever holds its lock."""

import threading

import pytest

from occupancy.call import Call, Outcome
from occupancy.ledger import Ledger, ledger
from occupancy.log import OccupancyLog


def test_an_event_inside_the_counting_thread_is_counted_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    log = OccupancyLog()
    other = ledger.start(Call(start_ns=1), (log,))
    start_in_log = log._start

    def collect_in_the_middle(call: Call) -> None:
        monkeypatch.setattr(log, "_start", start_in_log)
        other.close()  # as a generator that a collector closes here would
        assert log.finished == 0
        start_in_log(call)

    monkeypatch.setattr(log, "_start", collect_in_the_middle)
    flight = ledger.start(Call(start_ns=2), (log,))
    assert (log.finished, log.in_flight) == (1, 1)
    flight.complete()


def test_an_event_while_another_thread_counts_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    log = OccupancyLog()
    counting, go_on = threading.Event(), threading.Event()
    start_in_log = log._start
    first: list[str | None] = []

    def count_slowly(call: Call) -> None:
        first.append(call.label)
        if call.label == "slow":
            counting.set()
            assert go_on.wait(10)
        start_in_log(call)

    monkeypatch.setattr(log, "_start", count_slowly)
    flights = []
    thread = threading.Thread(target=lambda: flights.append(ledger.start(Call(start_ns=1, label="slow"), (log,))))
    thread.start()
    assert counting.wait(10)
    flights.append(ledger.start(Call(start_ns=2, label="quick"), (log,)))  # returns at once
    assert first == ["slow"]
    go_on.set()
    thread.join()
    assert first == ["slow", "quick"]
    assert log.in_flight == 2
    for flight in flights:
        flight.complete()


def test_an_interrupt_in_the_middle_loses_and_doubles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    log = OccupancyLog()
    advance = log._advance

    def interrupt(now_ns: int) -> None:
        monkeypatch.setattr(log, "_advance", advance)
        raise KeyboardInterrupt

    monkeypatch.setattr(log, "_advance", interrupt)
    own = Ledger()
    with pytest.raises(KeyboardInterrupt):
        own.start(Call(start_ns=1), (log,))
    flight = own.start(Call(start_ns=2), (log,))
    assert (len(log._open), log._peak) == (1, 2)  # the caller of the first never got it: it is abandoned
    flight._end(Outcome.OK, 3, 3)
    assert [call.outcome for call in log.calls] == [Outcome.ABANDONED, Outcome.OK]


def test_the_end_is_told_once_and_outside_the_lock() -> None:
    log = OccupancyLog()
    flight = ledger.start(Call(start_ns=1), (log,))
    told: list[tuple[str, bool]] = []

    def tell(call: Call) -> None:
        free: list[bool] = []

        def take_lock() -> None:
            free.append(ledger._lock.acquire(blocking=False))
            if free[0]:
                ledger._lock.release()

        thread = threading.Thread(target=take_lock)
        thread.start()
        thread.join()
        told.append((call.outcome, free[0]))

    flight.on_release = tell
    flight.complete()
    flight.close()
    assert told == [(Outcome.OK, True)]


def test_what_fails_in_being_told_is_logged_and_goes_no_further(caplog: pytest.LogCaptureFixture) -> None:
    log = OccupancyLog()
    flight = ledger.start(Call(start_ns=1), (log,))
    flight.on_release = lambda call: 1 / 0
    flight.complete()
    assert log.finished == 1
    assert "ZeroDivisionError" in caplog.text


def test_open_calls_are_abandoned_at_exit() -> None:
    log, own = OccupancyLog(), Ledger()
    flight = own.start(Call(start_ns=1), (log,))
    ended = own.start(Call(start_ns=1), (log,))
    ended.complete()
    own.abandon_open()
    assert [call.outcome for call in log.calls] == [Outcome.OK, Outcome.ABANDONED]
    assert flight.ended
