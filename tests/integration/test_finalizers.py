"""What runs at any time: finalizers, the garbage collector and signal handlers, also inside our own lock."""

import faulthandler
import gc
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import occupancy
from occupancy import Call, Outcome
from occupancy.flight import Flight
from occupancy.ledger import ledger
from occupancy.log import OccupancyLog

HANG_S = 50


@pytest.fixture(autouse=True)
def watchdog(fresh: None) -> Iterator[None]:
    """Where a thread hangs, say where."""
    faulthandler.dump_traceback_later(HANG_S)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(params=["httpx", "httpx2"])
def stack(request: pytest.FixtureRequest, make_stack: Any) -> Any:
    return make_stack(request.param, "sync")


def mock_client(stack: Any) -> Any:
    """A client whose every answer is a body of two pieces."""

    def answer(request: Any) -> Any:
        return stack.library.Response(200, content=iter([b"ab", b"cd"]))

    return stack.client(transport=stack.library.MockTransport(answer))


def open_response(client: Any) -> Any:
    return client.send(client.build_request("GET", "http://mock/path"), stream=True)


def test_threads_drop_responses_while_others_start_calls(stack: Any) -> None:
    threads, calls = 8, 150
    begin = threading.Barrier(threads)

    def drop_all() -> None:
        with mock_client(stack) as client:
            begin.wait()
            for number in range(calls):
                response = open_response(client)
                if number % 3 == 0:
                    response.read()
                elif number % 3 == 1:
                    next(response.iter_raw())

    before = gc.get_threshold()
    gc.set_threshold(20)
    try:
        with occupancy.record() as log:
            workers = [threading.Thread(target=drop_all, daemon=True) for _ in range(threads)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join(HANG_S)
            assert not any(worker.is_alive() for worker in workers)
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert (log.finished, log.in_flight, log.open_calls) == (threads * calls, 0, [])
    by_outcome = {outcome: [call for call in log.calls if call.outcome == outcome] for outcome in Outcome}
    assert len(by_outcome[Outcome.OK]) == threads * calls // 3
    assert len(by_outcome[Outcome.ABANDONED]) >= threads * calls // 3
    assert all(call.end_ns in (call.headers_ns, call.last_byte_ns) for call in by_outcome[Outcome.ABANDONED])
    assert sum(map(len, by_outcome.values())) == threads * calls


def hold_cycle(client: Any, *, reading: bool) -> Any:
    """A response in a cycle, which only the collector ends."""
    response = open_response(client)
    cycle = [response]
    if reading:
        chunks = response.iter_raw()
        next(chunks)
        cycle.append(chunks)
    cycle.append(cycle)


@pytest.mark.parametrize("reading", [False, True])
def test_the_collectors_time_is_no_end(stack: Any, reading: bool) -> None:
    with occupancy.record() as log, mock_client(stack) as client:
        gc.disable()
        try:
            hold_cycle(client, reading=reading)
            assert log.in_flight == 1
            with occupancy.record() as after:
                client.get("http://mock/later")
            gc.collect()
        finally:
            gc.enable()
        assert log.in_flight == 0
    later, collected = log.calls
    assert (later.outcome, collected.outcome) == (Outcome.OK, Outcome.ABANDONED)
    assert collected.end_ns == (collected.last_byte_ns if reading else collected.headers_ns)
    assert collected.end_ns < after.calls[0].start_ns < collected.released_ns


def test_a_finalizer_of_the_host_that_closes(stack: Any) -> None:
    """The host's own clean-up, run by the collector, is no moment of the program's either; run by itself it is."""

    class Holder:
        def __init__(self, client: Any) -> None:
            self.response = open_response(client)
            self.me = self

        def __del__(self) -> None:
            self.response.close()

    with occupancy.record() as log, mock_client(stack) as client:
        holder = Holder(client)
        del holder
        gc.collect()
        holder = Holder(client)
        holder.me = None
        del holder
    collected, closed = log.calls
    assert (collected.outcome, collected.end_ns) == (Outcome.ABANDONED, collected.headers_ns)
    assert closed.outcome == Outcome.CLOSED_EARLY


def test_dropped_by_reference_counts(make_stack: Any) -> None:
    """An unread response of httpx2 is no cycle: it goes with its last name, and its call with it."""
    stack = make_stack("httpx2", "sync")
    with occupancy.record() as log, mock_client(stack) as client:
        gc.disable()
        try:
            response = open_response(client)
            del response
            assert log.in_flight == 0
        finally:
            gc.enable()
    assert (log.calls[0].outcome, log.calls[0].end_ns) == (Outcome.ABANDONED, log.calls[0].headers_ns)


def run_inside_the_lock(monkeypatch: pytest.MonkeyPatch, name: str, action: Callable[[], Any]) -> list[int]:
    """Do something while the ledger counts, the first time it does."""
    original: Any = getattr(OccupancyLog, name)
    ran: list[int] = []

    def counting(log: Any, call: Any) -> None:
        if not ran:
            ran.append(log.in_flight)
            action()
        original(log, call)

    monkeypatch.setattr(OccupancyLog, name, counting)
    return ran


@pytest.mark.parametrize("name", ["_start", "_release"])
@pytest.mark.parametrize("how", ["abandon", "close", "drop"])
def test_a_body_finalised_while_we_count(name: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with occupancy.record() as log:
        victim = [ledger.start(Call(path="/victim"))]

        def end() -> None:
            flight = victim.pop()
            if how == "abandon":
                flight.abandon()
            elif how == "close":
                flight.close()

        ran = run_inside_the_lock(monkeypatch, name, end)
        flight = ledger.start(Call(path="/other"))
        flight.complete()
        assert ran
        assert (log.in_flight, log.finished, log.peak) == (0, 2, 2)
    assert {call.path: str(call.outcome) for call in log.calls} == {
        "/victim": "closed_early" if how == "close" else "abandoned",
        "/other": "ok",
    }


@pytest.mark.parametrize("name", ["_start", "_release"])
def test_signal_handlers_inside_our_lock(stack: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[int] = []
    with occupancy.record() as log, mock_client(stack) as client:

        def handle(number: int, frame: Any) -> None:
            levels.append(log.in_flight)
            assert client.get("http://mock/from/the/handler").content == b"abcd"
            levels.append(log.in_flight)

        before = signal.signal(signal.SIGUSR1, handle)
        try:
            ran = run_inside_the_lock(monkeypatch, name, lambda: signal.raise_signal(signal.SIGUSR1))
            assert client.get("http://mock/first").content == b"abcd"
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert len(ran) == 1
        assert len(levels) == 2
        assert (log.in_flight, log.finished) == (0, 2)
    assert {call.path for call in log.calls} == {"/first", "/from/the/handler"}
    assert {str(call.outcome) for call in log.calls} == {"ok"}


def test_a_flight_ends_once_among_threads() -> None:
    with occupancy.record() as log:
        for _ in range(50):
            flight = ledger.start(Call())
            begin = threading.Barrier(3)

            def end(how: str, flight: Flight = flight, begin: threading.Barrier = begin) -> None:
                begin.wait()
                getattr(flight, how)()

            workers = [threading.Thread(target=end, args=(how,)) for how in ("complete", "close", "abandon")]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join(HANG_S)
        assert (log.in_flight, log.finished) == (0, 50)


def test_hooks_note_collections_once() -> None:
    from occupancy.flight import note_collection

    for _ in range(2):
        with occupancy.record():
            assert gc.callbacks.count(note_collection) == 1
