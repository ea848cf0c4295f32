"""Counts of `OccupancyLog`, compared with an independent computation."""

import gc
import os
import threading
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from occupancy import caller
from occupancy import log as log_module
from occupancy.call import FIELDS, Call, Kind, Outcome
from occupancy.errors import InputError
from occupancy.flight import Flight
from occupancy.ledger import Ledger
from occupancy.ledger import ledger as process_ledger
from occupancy.log import OccupancyLog


def start(log: OccupancyLog, at_ns: int, **fields: object) -> Flight:
    return log_module.ledger.start(Call(start_ns=at_ns, **fields), (log,))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def own_ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """The process's ledger goes on from the real time of other tests; these begin at 0."""
    monkeypatch.setattr(log_module, "ledger", own := Ledger())
    return own


def new_log() -> OccupancyLog:
    """A log that begins at 0, in each example of one test."""
    log_module.ledger = Ledger()
    return OccupancyLog()


# Each number is a step: it starts a call where none with that number is open, else ends it; with it comes time to wait.
SCRIPTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=40)


def run_script(log: OccupancyLog, script: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Drive a log; give what happened as (ns, +1 or -1), from outside."""
    now_ns, open_flights, happened = 0, {}, []
    for number, wait_ns in script:
        now_ns += wait_ns
        if number in open_flights:
            open_flights.pop(number)._end(Outcome.OK, now_ns, now_ns)
            happened.append((now_ns, -1))
        else:
            open_flights[number] = start(log, now_ns)
            happened.append((now_ns, +1))
    log.kept = open_flights  # type: ignore[attr-defined]  # else they are collected, and end as abandoned
    return happened


def levels_by_the_ns(happened: list[tuple[int, int]]) -> dict[int, int]:
    """Time at each level, counted ns by ns."""
    spent: dict[int, int] = {}
    for t_ns in range(happened[0][0], happened[-1][0]) if happened else ():
        level = sum(change for at_ns, change in happened if at_ns <= t_ns)
        spent[level] = spent.get(level, 0) + 1
    return spent


@settings(max_examples=200, deadline=None)
@given(SCRIPTS)
def test_counts_are_those_of_an_independent_computation(script: list[tuple[int, int]]) -> None:
    log = new_log()
    happened = run_script(log, script)
    running = [sum(change for _, change in happened[: index + 1]) for index in range(len(happened))]
    assert log.in_flight == (running[-1] if running else 0)
    assert log.peak == max(running, default=0)
    assert {level: ns for level, ns in log.time_at_level_ns.items() if ns} == levels_by_the_ns(happened)
    assert len(log.open_calls) == log.in_flight
    assert log.finished == sum(change < 0 for _, change in happened)
    calls = sorted([*log.calls, *log.open_calls], key=lambda call: call.call_id)
    assert [call.in_flight_start for call in calls] == [
        level for level, (_, change) in zip(running, happened, strict=True) if change > 0
    ]
    assert [call.in_flight_end for call in log.calls] == [
        level + 1 for level, (_, change) in zip(running, happened, strict=True) if change < 0
    ]


@settings(max_examples=100, deadline=None)
@given(SCRIPTS)
def test_steps_agree_with_the_running_count(script: list[tuple[int, int]]) -> None:
    log = new_log()
    happened = run_script(log, script)
    spent = levels_by_the_ns(happened)
    if log.in_flight:
        return  # steps of open calls reach to now; the running count stops at the last event
    spent.pop(0, None)  # the wall of steps leaves calls of no length out
    steps = log.steps()
    assert {level: ns for level, ns in enumerate(steps.time_at_level) if ns and level} == spent


@settings(max_examples=100, deadline=None)
@given(SCRIPTS)
def test_counting_anew_from_records_gives_the_same(script: list[tuple[int, int]]) -> None:
    log = new_log()
    run_script(log, script)
    again = OccupancyLog.from_calls([*log.calls, *log.open_calls])
    assert again.in_flight == log.in_flight
    assert again.finished == log.finished
    # A file does not tell the order of events at one time: ends come first, so a peak of no width may be lower.
    assert again.peak <= log.peak
    assert {k: v for k, v in again.time_at_level_ns.items() if v} == {
        k: v for k, v in log.time_at_level_ns.items() if v
    }


def test_a_call_keeps_every_field_it_was_given() -> None:
    log = OccupancyLog()
    given_fields = {
        "trace_id": "0af7651916cd43dd8448eb211c80319c", "span_id": "b7ad6b7169203331",
        "parent_span_id": "00f067aa0ba902b7", "run": "research#3", "kind": Kind.GENERATE, "label": "plan",
        "async_task": "Task-1", "thread": "MainThread", "client": "httpx", "method": "POST", "host": "127.0.0.1:1",
        "path": "/v1/messages", "model": "m", "key_id": "0123abcd", "request_id": "req_1", "headers_ns": 5,
        "first_byte_ns": 6, "first_event_ns": 7, "last_byte_ns": 8, "client_ns": 1, "gate_ns": 2, "pool_ns": 3,
        "connect_ns": 4, "tls_ns": 5, "send_ns": 6, "wait_ns": 7, "connection_reused": False, "status": 200,
        "error_type": "x", "retry_after_s": 1.5, "limit_requests": 1, "remaining_requests": 2, "limit_tokens": 2**40,
        "remaining_tokens": 4, "request_bytes": 5, "bytes_received": 6, "chunks": 7, "max_gap_ns": 8,
        "idempotency_key": True, "input_tokens": 9, "output_tokens": 10, "sync_in_event_loop": True, "attempt": 2,
        "logical_id": 77, "needs": 76,
    }  # fmt: skip
    start(log, 4, **given_fields).complete()
    [call] = log.calls
    assert {name: getattr(call, name) for name in given_fields} == given_fields
    assert (call.start_ns, call.end_ns, call.receive_ns, call.outcome) == (4, 8, 3, Outcome.OK)
    assert (call.in_flight_start, call.in_flight_end) == (1, 1)
    assert call.pid == os.getpid()
    columns = log.columns()
    assert set(columns) == set(FIELDS)
    assert {name: columns[name][0] for name in given_fields} == given_fields


def test_absent_values_stay_absent() -> None:
    log = OccupancyLog()
    start(log, 1).close()
    [call] = log.calls
    fresh = Call()
    filled = {
        "call_id",
        "pid",
        "logical_id",
        "start_ns",
        "end_ns",
        "released_ns",
        "outcome",
        "in_flight_start",
        "in_flight_end",
    }
    for name in set(FIELDS) - filled:
        assert getattr(call, name) == getattr(fresh, name), name


def test_other_calls_are_kept_but_not_counted() -> None:
    log = OccupancyLog()
    upload = start(log, 1, kind=Kind.OTHER)
    assert (log.in_flight, log.peak, len(log.open_calls)) == (0, 0, 1)
    call = start(log, 2)
    upload.complete()
    call.complete()
    assert log.peak == 1
    assert [(c.kind, c.in_flight_start) for c in log.calls] == [(Kind.OTHER, None), (Kind.TOOL, 1)]


def test_capacity_keeps_the_newest_and_the_counts_of_all() -> None:
    log = OccupancyLog(capacity=3)
    for label in "abcdefgh":
        start(log, 1, label=label, request_id=f"req_{label}").complete()
    assert [(call.label, call.request_id) for call in log.calls] == [("f", "req_f"), ("g", "req_g"), ("h", "req_h")]
    assert log.columns(["label"])["label"].tolist() == ["f", "g", "h"]
    assert (log.finished, log.dropped, log.peak) == (8, 5, 1)


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_capacity_below_one_is_refused(capacity: int) -> None:
    with pytest.raises(InputError, match=f"not {capacity}"):
        OccupancyLog(capacity=capacity)


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(InputError, match="'colour'"):
        OccupancyLog().columns(["colour"])


def test_columns_give_open_calls_last_without_an_end() -> None:
    log = OccupancyLog()
    opened = start(log, 1, label="open")
    start(log, 2, label="ended").complete()
    columns = log.columns(["label", "end_ns", "in_flight_start"])
    assert columns["label"].tolist() == ["ended", "open"]
    assert columns["end_ns"][1] == -(2**63)
    assert columns["in_flight_start"].tolist() == [2, 1]
    opened.complete()


def test_a_log_that_was_read_keeps_every_text_and_its_columns_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("occupancy.rows.TABLE_LIMIT", 2)
    calls = [Call(call_id=n, start_ns=n, end_ns=n + 1, label=f"step {n}", limit_requests=2**40) for n in range(1, 6)]
    log = OccupancyLog.from_calls(calls)
    assert [call.label for call in log.calls] == [f"step {n}" for n in range(1, 6)]
    columns = log.columns(["limit_requests"])
    assert columns["limit_requests"].tolist() == [2**40] * 5
    with pytest.raises(ValueError, match="read-only"):
        columns["limit_requests"][0] = 0


def test_a_call_takes_at_most_400_bytes() -> None:
    n = 20_000
    log = OccupancyLog(capacity=n)
    start(log, 1).complete()
    gc.collect()
    tracemalloc.start()
    for number in range(n):
        flight = start(log, 1, label=f"step {number % 7}", request_id=f"req_{number:032x}", trace_id=f"{number:032x}")
        flight.complete()
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept / n <= 400


def test_a_full_table_of_strings_says_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("occupancy.rows.TABLE_LIMIT", 2)
    log = OccupancyLog()
    for label in ("a", "b", "c", "a", "d"):
        start(log, 1, label=label).complete()
    assert [call.label for call in log.calls] == ["a", "b", "other", "a", "other"]


def test_a_call_ends_once() -> None:
    log = OccupancyLog()
    flight = start(log, 1, status=500)
    flight.complete()
    flight.close()
    flight.fail(RuntimeError())
    flight.abandon()
    [call] = log.calls
    assert (call.outcome, call.error_type, log.in_flight) == (Outcome.HTTP_ERROR, "500", 0)


def test_closing_counts_what_a_finalizer_has_ended(own_ledger: Ledger) -> None:
    log = OccupancyLog()
    flight = start(log, 1)
    flight.close(settle=False)
    assert len(own_ledger._events) == 1
    flight.close()
    assert len(own_ledger._events) == 0
    assert [call.outcome for call in log.calls] == [Outcome.CLOSED_EARLY]


def test_of_many_threads_that_end_a_call_one_wins() -> None:
    log = OccupancyLog()
    flights = [start(log, 1) for _ in range(50)]
    barrier = threading.Barrier(8)

    def end_all() -> None:
        barrier.wait()
        for flight in flights:
            flight.close()

    threads = [threading.Thread(target=end_all) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (log.finished, log.in_flight, len(log.calls)) == (50, 0, 50)


def test_a_dropped_flight_is_abandoned_at_its_last_byte(clock) -> None:  # type: ignore[no-untyped-def]
    log = OccupancyLog()
    flight = start(log, 0)
    flight.headers(429, 10)
    flight.chunk(5, 20)
    clock.now_ns = 99
    del flight
    [call] = log.calls
    assert (call.outcome, call.status, call.end_ns, call.released_ns) == (Outcome.ABANDONED, 429, 20, 99)


def test_a_call_without_headers_is_abandoned_now(clock) -> None:  # type: ignore[no-untyped-def]
    log = OccupancyLog()
    flight = start(log, 0)
    clock.now_ns = 99
    del flight
    assert log.calls[0].end_ns == 99


def test_several_logs_count_for_themselves() -> None:
    first, second, own = OccupancyLog(), OccupancyLog(), log_module.ledger
    long = own.start(Call(start_ns=1), (first,))
    short = own.start(Call(start_ns=2), (first, second))
    assert (short.call.in_flight_start, first.peak, second.peak) == (2, 2, 1)
    short.complete()
    long.complete()
    assert [call.in_flight_start for call in first.calls] == [2, 1]
    assert [call.in_flight_start for call in second.calls] == [1]


def test_stamps_never_run_against_the_counts(clock) -> None:  # type: ignore[no-untyped-def]
    log = OccupancyLog()
    start(log, 100).complete()
    late = start(log, 50)  # stamped before, queued after
    assert late.call.start_ns == 100
    late.complete()


def test_a_failing_log_does_not_keep_the_call_in_flight(caplog: pytest.LogCaptureFixture) -> None:
    log = OccupancyLog()
    start(log, 1, trace_id="no hex").complete()
    assert log.in_flight == 0
    assert "occupancy failed in" in caplog.text


def test_a_forked_child_counts_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "ledger", process_ledger)
    log = OccupancyLog(journal=tmp_path / "calls.jsonl")
    process_ledger.attach(log)
    try:
        flight = process_ledger.start(Call(start_ns=1))
        pid = os.fork()
        if pid == 0:
            try:
                flight.complete()  # the parent's: not the child's business
                own = process_ledger.start(Call(start_ns=1))
                right = (log.in_flight, log.peak, log.finished, own.call.pid) == (1, 1, 0, os.getpid())
                own.complete()
                os._exit(0 if right and log.finished == 1 else 1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert (log.in_flight, log.finished) == (1, 0)
        flight.complete()
        assert (log.in_flight, log.finished) == (0, 1)
    finally:
        process_ledger.detach(log)


def test_forked_children_never_hang_on_a_lock_that_a_thread_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "ledger", process_ledger)
    log = OccupancyLog()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            process_ledger.start(Call(start_ns=1), (log,)).complete()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    codes = []
    for _ in range(30):
        pid = os.fork()
        if pid == 0:
            process_ledger.start(Call(start_ns=1), (log,)).complete()
            os._exit(7)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    stop.set()
    for thread in threads:
        thread.join()
    assert codes == [7] * 30


class TestTrack:
    def test_it_counts_and_stamps(self, clock) -> None:  # type: ignore[no-untyped-def]
        log = OccupancyLog()
        with log.track("fetch", client="urllib", host="h", path="/p", model="m") as call:
            assert log.in_flight == 1
            clock.now_ns = 10
            call.headers(200)
            clock.now_ns = 20
            call.first_byte()
            clock.now_ns = 25
            call.chunk(7)
            clock.now_ns = 30
        [call] = log.calls
        assert (call.label, call.client, call.host, call.path, call.model) == ("fetch", "urllib", "h", "/p", "m")
        assert (call.start_ns, call.headers_ns, call.first_byte_ns, call.end_ns) == (0, 10, 20, 30)
        assert (call.bytes_received, call.outcome, call.kind) == (7, Outcome.OK, Kind.TOOL)
        assert call.call_site is not None
        assert call.call_site.function == "TestTrack.test_it_counts_and_stamps"

    @pytest.mark.parametrize(
        ("error", "outcome"),
        [
            (TimeoutError("slow"), Outcome.TIMEOUT),
            (ConnectionResetError(), Outcome.ERROR),
            (KeyboardInterrupt(), Outcome.CANCELLED),
        ],
    )
    def test_an_exception_says_the_outcome_and_passes(self, error: BaseException, outcome: Outcome) -> None:
        log = OccupancyLog()
        with pytest.raises(type(error)) as raised, log.track("fetch"):
            raise error
        assert raised.value is error
        assert (log.calls[0].outcome, log.calls[0].error_type) == (outcome, type(error).__name__)

    def test_a_status_of_400_is_an_error(self) -> None:
        log = OccupancyLog()
        with log.track("fetch") as call:
            call.headers(404)
        assert (log.calls[0].outcome, log.calls[0].error_type) == (Outcome.HTTP_ERROR, "404")

    def test_logs_that_record_see_it_too_and_none_twice(self, own_ledger: Ledger) -> None:
        log, recording = OccupancyLog(), OccupancyLog()
        own_ledger.attach(recording)
        try:
            with log.track("one"):
                pass
            with recording.track("two"):
                pass
        finally:
            own_ledger.detach(recording)
        assert [call.label for call in log.calls] == ["one"]
        assert [call.label for call in recording.calls] == ["one", "two"]

    def test_a_label_is_kept_up_to_a_length(self) -> None:
        with caller.labels.label("x" * 100_000):
            call = Call()
            caller.describe(call)
        assert call.label == "x" * 200

    def test_a_status_that_is_no_number_is_refused_and_the_call_ends(self) -> None:
        log = OccupancyLog()
        with pytest.raises(InputError, match="not '200'"), log.track("fetch") as call:
            call.headers("200")  # type: ignore[arg-type]
        assert (log.in_flight, log.calls[0].outcome) == (0, Outcome.ERROR)

    def test_a_label_that_is_no_text_is_refused(self) -> None:
        with pytest.raises(InputError, match="not 7"), OccupancyLog().track(7):  # type: ignore[arg-type]
            pass

    def test_a_fault_of_ours_leaves_the_block_and_the_count_as_they_are(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(call: Call) -> None:
            raise RuntimeError("ours")

        monkeypatch.setattr(caller, "describe", fail)
        log = OccupancyLog()
        with log.track("fetch"):
            assert log.in_flight == 1
        assert [(call.label, call.outcome) for call in log.calls] == [("fetch", Outcome.OK)]
        assert "RuntimeError: ours" in caplog.text

    def test_a_log_that_was_read_records_nothing(self) -> None:
        log = OccupancyLog.from_calls([Call(call_id=1, start_ns=1, end_ns=2)])
        with pytest.raises(InputError, match="read"), log.track("fetch"):
            pass
        assert (log.finished, log.peak) == (1, 1)

    def test_an_unknown_kind_is_refused(self) -> None:
        with pytest.raises(InputError, match="'sing'"), OccupancyLog().track("x", kind="sing"):
            pass
