"""Verdicts that were once wrong or missing, each rebuilt from the least calls that show it."""

import dataclasses
from typing import Any

import pytest
from programs import (
    MS,
    OVERLAPPED,
    SERIAL,
    at,
    call,
    diagnosis_of,
    in_run,
    lock_around_something_else,
    loop,
    many,
    moved,
    on_threads,
    overlapped,
    plan_and_map,
    poll,
    pool,
    serial,
    slow_to_let_in,
    thread_run,
)

from occupancy.analysis.columns import columns_of
from occupancy.analysis.comparison import compare
from occupancy.analysis.findings import Cause
from occupancy.analysis.overlap import find_overlap
from occupancy.call import Call, Frame, Kind, Outcome
from occupancy.views.diagnosis_text import full_diagnosis, verdict_line

# Processes of one program


def in_processes(calls: list[Call], n: int, apart_ms: float = 0) -> list[Call]:
    return [
        dataclasses.replace(moved(one, pid * apart_ms), pid=pid, logical_id=10 * pid + number)
        for pid in range(1, n + 1)
        for number, one in enumerate(calls, start=1)
    ]


def test_the_workers_of_a_process_pool_are_no_serial_program() -> None:
    found = diagnosis_of(in_processes(thread_run(loop(), "MainThread"), 4))
    assert [one.cause for one in found.verdicts] == [SERIAL] * 4
    assert found.process is not None
    assert (found.process.cause, found.process.peak) == (OVERLAPPED, 4)
    assert found.process.sentence == "4 runs in 4 processes at once: 4 serial; up to 4 in flight together"
    assert verdict_line(found) == found.process.sentence
    assert found.findings == ()  # how many items each worker takes in turn is the pool's size


def test_what_each_process_does_in_turn_without_need_is_told_all_the_same() -> None:
    [finding] = diagnosis_of(in_processes(serial(), 3)).findings
    assert (finding.cause, [site.line for site in finding.call_sites]) == (SERIAL, [11, 12])
    assert finding.numbers["runs"] == 3


@pytest.mark.parametrize("other", [{"apart_ms": 600}, {"n": 1}])
def test_processes_one_after_another_are_as_serial_as_each(other: dict[str, Any]) -> None:
    found = diagnosis_of(in_processes(loop(), **({"n": 3} | other)))
    assert found.process is not None
    assert found.process.cause is SERIAL
    assert found.causes == {SERIAL}


def test_what_overlap_would_gain_is_not_asked_of_workers() -> None:
    workers = find_overlap(columns_of(in_processes(loop(), 4)))
    assert [run.gain_ms for run in workers.runs] == [0] * 4
    assert find_overlap(columns_of(loop())).runs[0].gain_ms > 0


def test_processes_with_lines_of_their_own_are_programs_of_their_own() -> None:
    parts = [loop(), [dataclasses.replace(one, pid=8, call_stack=(at(99),)) for one in loop()]]
    found = diagnosis_of([one for part in parts for one in part])
    assert [site.line for finding in found.findings for site in finding.call_sites] == [20, 99]


# Ends that were lost


def opened(one: Call) -> Call:
    none = dict.fromkeys(("end_ns", "released_ns", "last_byte_ns", "first_byte_ns", "headers_ns"))
    return dataclasses.replace(one, **none, outcome=Outcome.OPEN, status=None)


@pytest.mark.parametrize("names", [{}, {"run": "MainThread", "async_task": None}])
def test_a_lost_end_makes_no_overlap(names: dict[str, Any]) -> None:
    calls = in_run(loop(), **names)
    calls[1] = opened(calls[1])
    found = diagnosis_of(calls)
    assert [(one.cause, one.peak) for one in found.verdicts] == [(SERIAL, 1)]
    assert found.causes == {SERIAL}
    assert len(found.warnings) == 1


def test_calls_open_when_the_process_died_are_in_flight_together() -> None:
    calls = many(3, lambda n: call(n, 9 + n, 20, async_task=f"Task-{n}"))
    assert [one.peak for one in diagnosis_of(list(map(opened, calls))).verdicts] == [3]


def test_of_tasks_that_share_a_name_it_is_not_known_which_has_gone_on() -> None:
    calls = many(3, lambda n: call(n, 9 + n, 20, async_task="fetch"))
    assert [one.peak for one in diagnosis_of(list(map(opened, calls))).verdicts] == [3]


# Executors


def test_an_executor_between_two_calls_of_the_main_thread() -> None:
    found = diagnosis_of(plan_and_map())
    [verdict] = found.verdicts
    assert (verdict.run, verdict.cause, verdict.sentence) == (
        "MainThread", OVERLAPPED, "overlapped: up to 2 in flight, mean 1.41; 2 serial branches at once",
    )  # fmt: skip
    [finding] = found.findings
    assert (finding.cause, finding.numbers["cap"], [site.line for site in finding.call_sites]) == (
        Cause.CAPPED_EXECUTOR, 2, [82],
    )  # fmt: skip


def agents_on_threads(n: int, n_threads: int) -> list[Call]:
    """Each of n agents is a piece of an executor's work, makes the reference agent's calls, and is marked as a run."""
    calls = []
    for number in range(n):
        thread = f"ThreadPoolExecutor-0_{number % n_threads}"
        shift_ms = 1110 * (number // n_threads) + number % n_threads
        agent = [moved(one, shift_ms) for one in serial()]
        calls += in_run(agent, run=f"agent#{number}", thread=thread, async_task=None, siblings=n - number)
    return calls


def test_an_executor_whose_work_is_whole_runs_has_all_its_threads() -> None:
    found = diagnosis_of(agents_on_threads(8, 2))
    assert [one.cause for one in found.verdicts] == [SERIAL] * 8
    assert found.causes == {SERIAL, Cause.CAPPED_EXECUTOR}
    told = {finding.cause: finding for finding in found.findings}
    assert told[Cause.CAPPED_EXECUTOR].numbers["cap"] == 2
    assert "the executor has 2 threads" in told[Cause.CAPPED_EXECUTOR].sentence
    assert told[Cause.CAPPED_EXECUTOR].runs == ("ThreadPoolExecutor-0",)
    assert [site.line for site in told[SERIAL].call_sites] == [11, 12]
    assert len(told[SERIAL].runs) == 8


def test_an_executor_that_runs_all_agents_at_once_caps_nothing() -> None:
    assert diagnosis_of(agents_on_threads(4, 4)).causes == {SERIAL}


def test_threads_that_make_no_call_are_threads_of_the_executor_too() -> None:
    seen = [one for one in on_threads(12, 6, 82, siblings=5) if one.thread in ("ThreadPoolExecutor-0_5",)]
    assert Cause.CAPPED_EXECUTOR not in diagnosis_of([*seen, *on_threads(4, 2, 82, siblings=5)]).causes


def test_an_executor_s_threads_in_turn_are_no_lock_and_serial_if_one_agent_s() -> None:
    """`await asyncio.to_thread(ask)` in a loop: the thread that has just ended still counts as at work."""
    turns = on_threads(6, 1, 83, "asyncio", siblings=2)
    for number, one in enumerate(turns):
        one.run = one.thread = f"asyncio_{number % 2}"
    found = diagnosis_of(turns)
    assert found.findings == ()
    assert verdict_line(found) == "never more than 1 in flight over 6 calls: serial, if one agent's"


@pytest.mark.parametrize(
    ("clients", "limit"),
    [
        (["httpx"], "the client's max_connections"),
        (["aiohttp"], "the client's TCPConnector(limit=..., limit_per_host=...)"),
        (["urllib3"], "the client's maxsize"),
        (["httpx2", "aiohttp"], "the limit of the client's pool"),
    ],
)
def test_the_limit_of_a_pool_has_the_name_that_its_library_gives_it(clients: list[str], limit: str) -> None:
    calls = [dataclasses.replace(one, client=clients[n % len(clients)]) for n, one in enumerate(pool())]
    [finding] = diagnosis_of(calls).findings
    assert finding.action == f"raise {limit} to what should be in flight, if the server allows it"


def test_tasks_that_are_seen_to_wait_for_their_turn_need_no_timing() -> None:
    [finding] = diagnosis_of(slow_to_let_in(siblings_held=True)).findings
    assert (finding.cause, finding.numbers["cap"]) == (Cause.CAPPED_SEMAPHORE, 2)
    for not_seen in ({"siblings_held": False}, {"siblings_held": None}):
        assert Cause.CAPPED_SEMAPHORE not in diagnosis_of(slow_to_let_in(**not_seen)).causes


def test_a_lock_around_something_else_caps_nothing() -> None:
    assert Cause.CAPPED_SEMAPHORE not in diagnosis_of(lock_around_something_else()).causes


def test_calls_that_ran_two_at_once_did_not_run_one_after_another() -> None:
    calls = many(6, lambda n: call(100 * (n // 2), 100 * (n // 2) + 99, 88, async_task=f"Task-{n}"))
    [finding] = diagnosis_of(calls).findings
    assert finding.sentence == (
        "6 calls of ask ran 2 at once at most at agent.py:88; overlapped, about 0.10 s instead of 0.30 s, "
        "if none needs another"
    )
    [run] = find_overlap(columns_of(many(5, lambda n: call(99 * n, 99 * n + 100, 88)))).runs
    assert run.groups[0].at_once == 1  # one is asked for as the last byte of another comes


# Clocks


def test_calls_that_end_before_they_start_are_counted_and_told() -> None:
    calls = [dataclasses.replace(one, end_ns=one.start_ns - 5 * MS) for one in loop()]
    found = diagnosis_of(calls)
    assert verdict_line(found) == "nothing to judge: all 5 calls end before they start"
    assert found.warnings == ("5 calls end before they start, as where a clock was set back: nothing is said of them",)
    assert (found.verdicts, found.findings) == ((), ())
    assert "clock was set back" in full_diagnosis(found).replace("\n      ", " ")


def test_one_call_among_others_that_ends_before_it_starts_is_told() -> None:
    calls = loop()
    calls[2].end_ns = calls[2].start_ns - MS
    found = diagnosis_of(calls)
    assert [one.cause for one in found.verdicts] == [SERIAL]
    assert found.warnings == ("1 call ends before it starts, as where a clock was set back: nothing is said of them",)


def test_calls_without_a_stamp_are_told() -> None:
    calls = [dataclasses.replace(one, end_ns=None) for one in loop()]  # ended, it is said, but not when
    assert verdict_line(diagnosis_of(calls)) == "nothing to judge: all 5 calls lack a stamp or end before they start"


# Pollers


AS_TASK = {"run": "task Task-9", "thread": "MainThread", "async_task": "Task-9"}
AS_WORKER = {"run": "ThreadPoolExecutor-0_0", "thread": "ThreadPoolExecutor-0_0", "siblings": 1}


@pytest.mark.parametrize("names", [{}, AS_TASK, AS_WORKER])
@pytest.mark.parametrize("as_thread", [True, False])
def test_a_serial_agent_beside_a_poller_is_serial(names: dict[str, Any], as_thread: bool) -> None:
    agent = thread_run(serial(), "MainThread") if as_thread else serial()
    found = diagnosis_of([*agent, *poll("Thread-1 (poll)", **names)])
    assert {one.cause for one in found.verdicts} == {SERIAL, Cause.POLLER}
    assert found.process is not None
    assert (found.process.cause, found.process.peak) == (SERIAL, 1)
    assert verdict_line(found) == "serial: 4 calls, one after another, beside a poller (20 calls at agent.py:95)"
    [poller] = [one for one in found.verdicts if one.cause is Cause.POLLER]
    assert poller.sentence == "a background poller: 20 calls, one every 56 ms"
    [finding] = found.findings
    assert (finding.cause, [site.line for site in finding.call_sites]) == (SERIAL, [11, 12])


def test_an_overlapped_agent_beside_a_poller_is_overlapped() -> None:
    found = diagnosis_of([*overlapped(), *poll("Thread-1 (poll)", n=8, every_ms=25, pause_ms=20)])
    assert found.process is not None
    assert (found.process.cause, found.causes) == (OVERLAPPED, frozenset())


def test_several_users_beside_a_poller() -> None:
    users = [one for n in range(3) for one in in_run(serial(), run=f"task Task-{n}", async_task=f"Task-{n}")]
    found = diagnosis_of([*users, *poll("Thread-1 (poll)")])
    assert verdict_line(found).startswith("serial 3 times: 3 runs, each serial in itself")


@pytest.mark.parametrize(
    "beside",
    [
        poll("Thread-1 (poll)", n=4),  # no rhythm yet
        poll("Thread-1 (poll)", pause_ms=3),  # a loop that goes on at once
        poll("Thread-1 (poll)", call_stack=(at(11),)),  # the agent's own line
        poll("Thread-1 (poll)", call_stack=()),
        poll("Thread-1 (poll)", kind=Kind.GENERATE),
        [dataclasses.replace(one, path=f"/items/{n}") for n, one in enumerate(poll("Thread-1 (poll)"))],
        [moved(one, n % 2 * 40) for n, one in enumerate(poll("Thread-1 (poll)"))],  # no rhythm at all
        [dataclasses.replace(one, call_stack=(at(95 + n % 2),)) for n, one in enumerate(poll("Thread-1 (poll)"))],
    ],
)
def test_what_is_no_poller_leaves_it_unknown(beside: list[Call]) -> None:
    found = diagnosis_of([*thread_run(serial(), "MainThread"), *beside])
    assert Cause.POLLER not in {one.cause for one in found.verdicts}
    assert Cause.UNKNOWN in {one.cause for one in found.verdicts}
    assert found.findings == ()


def test_a_program_that_only_polls_is_the_program() -> None:
    assert [one.cause for one in diagnosis_of(poll("Thread-1 (poll)")).verdicts] == [SERIAL]
    two = [*poll("Thread-1 (poll)"), *poll("Thread-2 (poll)", call_stack=(at(96),))]
    assert [one.cause for one in diagnosis_of(two).verdicts] == [SERIAL, SERIAL]


def test_polling_before_the_agent_begins_is_not_beside_it() -> None:
    early = [moved(one, -5000) for one in poll("Thread-1 (poll)")]
    assert Cause.POLLER not in {
        one.cause for one in diagnosis_of([*thread_run(serial(), "MainThread"), *early]).verdicts
    }


def test_more_or_fewer_polls_are_no_other_work() -> None:
    before = columns_of([*serial(), *poll("Thread-1 (poll)", n=20)])
    after = columns_of(
        [*serial()[:2], moved(serial()[2], -350), moved(serial()[3], -350), *poll("Thread-1 (poll)", n=13)]
    )
    assert compare(before, after).keep


# Notebooks


def in_cell(number: int, calls: list[Call], shift_ms: float = 0) -> list[Call]:
    """Calls that a cell makes through functions of cell 1; a kernel runs each cell in a task of its own."""
    stack = (Frame("cell 1", 2, "ask"), Frame(f"cell {number}", 3, "<module>"))
    task = f"Task-{10 * number}"
    return in_run([moved(one, shift_ms) for one in calls], run=f"task {task}", async_task=task, call_stack=stack)


def in_threads(calls: list[Call], executor: str = "ThreadPoolExecutor-0", shift_ms: float = 0) -> list[Call]:
    """Calls of an executor's threads, on whose stacks only the cell is that defines the function."""
    threads = [f"{executor}_{number}" for number in range(len(calls))]
    stack = (Frame("cell 1", 5, "tool"),)
    return [
        dataclasses.replace(moved(one, shift_ms), run=name, thread=name, async_task=None, call_stack=stack)
        for one, name in zip(calls, threads, strict=True)
    ]


PLAN_AND_RECAP = [call(0, 200), call(550, 750)]
TOOLS = [call(200, 550), call(200, 550)]


def test_the_threads_of_a_cell_belong_to_it() -> None:
    found = diagnosis_of([*in_cell(3, PLAN_AND_RECAP), *in_threads(TOOLS)])
    assert [(one.run, one.cause, one.n) for one in found.verdicts] == [("cell 3", OVERLAPPED, 4)]


def test_the_threads_of_each_of_several_cells_belong_to_it() -> None:
    calls = [
        one
        for cell in (3, 4)
        for one in (
            *in_cell(cell, PLAN_AND_RECAP, 10_000 * cell),
            *in_threads(TOOLS, f"ThreadPoolExecutor-{cell}", 10_000 * cell),
        )
    ]
    found = diagnosis_of(calls)
    assert [(one.run, one.cause, one.n) for one in found.verdicts] == [
        ("cell 3", OVERLAPPED, 4),
        ("cell 4", OVERLAPPED, 4),
    ]


def test_a_cell_that_ends_with_its_threads() -> None:
    found = diagnosis_of([*in_cell(3, PLAN_AND_RECAP[:1]), *in_threads(TOOLS)])
    assert [(one.run, one.cause, one.n) for one in found.verdicts] == [("cell 3", OVERLAPPED, 3)]


def test_threads_between_two_cells_are_of_neither() -> None:
    found = diagnosis_of([*in_cell(3, loop()), *in_threads(TOOLS, shift_ms=5000), *in_cell(5, loop(), 20_000)])
    assert [(one.run, one.cause) for one in found.verdicts] == [
        ("cell 3", SERIAL), ("ThreadPoolExecutor-0", OVERLAPPED), ("cell 5", SERIAL),
    ]  # fmt: skip


def test_a_call_deep_in_helpers_belongs_to_the_cell_that_runs() -> None:
    calls = in_cell(3, serial())
    calls[1].call_stack = tuple(Frame("cell 1", line, "helper") for line in (2, 4, 6, 8))
    assert [(one.run, one.n) for one in diagnosis_of(calls).verdicts] == [("cell 3", 4)]
