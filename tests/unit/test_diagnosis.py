"""Programs as columns: each shows its cause and no other, and poor evidence gives no verdict."""

import dataclasses
import random
from collections import defaultdict
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import (
    MATRIX,
    MS,
    ONE_CALL,
    OVERLAPPED,
    PARTLY,
    SERIAL,
    at,
    barrier,
    call,
    chain,
    dependent,
    diagnosis_of,
    in_run,
    loop,
    many,
    moved,
    one_call,
    overlapped,
    partly,
    poll,
    refused,
    serial,
    thread_run,
)

from occupancy.analysis.columns import columns_of
from occupancy.analysis.diagnosis import MOST_RUNS, diagnose
from occupancy.analysis.findings import SITES, Cause, Diagnosis, Finding, merged, place_of
from occupancy.analysis.groups import CountedCalls
from occupancy.analysis.overlap import branches_of
from occupancy.analysis.unit_counts import counts_of
from occupancy.analysis.units import units
from occupancy.call import Call, Frame, Kind, Outcome


@pytest.mark.parametrize(("program", "verdict", "cause", "lines"), MATRIX)
def test_each_program_shows_its_cause_and_no_other(
    program: Callable[[], list[Call]], verdict: Cause, cause: Cause | None, lines: list[int]
) -> None:
    found = diagnosis_of(program())
    assert [finding.cause for finding in found.findings] == ([] if cause is None else [cause]), found.findings
    assert [one.cause for one in found.verdicts] == [verdict], found.verdicts
    assert [site.line for finding in found.findings for site in finding.call_sites] == lines
    assert found.warnings == ()
    for finding in found.findings:
        assert finding.action
        assert all(isinstance(value, (int, float)) for value in finding.numbers.values())


@pytest.mark.parametrize(("program", "verdict", "cause", "lines"), MATRIX)
def test_the_order_of_calls_and_the_clock_do_not_matter(
    program: Callable[[], list[Call]], verdict: Cause, cause: Cause | None, lines: list[int]
) -> None:
    calls = program()
    rng = random.Random(7)
    shuffled = rng.sample(calls, len(calls))
    stamps = ("start_ns", "headers_ns", "first_byte_ns", "first_event_ns", "last_byte_ns", "end_ns", "released_ns")
    for one in shuffled:
        for name in stamps:
            if getattr(one, name) is not None:
                setattr(one, name, getattr(one, name) + 10**15)
    found = diagnosis_of(shuffled)
    assert set(found.causes) == ({cause} - {None})
    assert [one.cause for one in found.verdicts] == [verdict]


def looked_at(calls: list[Call]) -> list[Call]:
    return [one if one.needs else dataclasses.replace(one, needs=0) for one in calls]


def nobody_held(calls: list[Call]) -> list[Call]:
    return [one if one.siblings_held else dataclasses.replace(one, siblings_held=False) for one in calls]


def beside_uploads(calls: list[Call]) -> list[Call]:
    return [*calls, *many(30, lambda n: call(40 * n, 40 * n + 35, 150, kind=Kind.OTHER, async_task="uploader"))]


def beside_a_poller(calls: list[Call]) -> list[Call]:
    return [*calls, *poll("Thread-9 (poll)", every_ms=30, pause_ms=25)]


def twice(calls: list[Call]) -> list[Call]:
    """The same once more, a minute later, each time marked as a run."""
    later = [
        dataclasses.replace(moved(one, 60_000), logical_id=one.logical_id and one.logical_id + 100) for one in calls
    ]
    return [*in_run(calls, run="agent#1"), *in_run(later, run="agent#2")]


@pytest.mark.parametrize("otherwise", [looked_at, nobody_held, beside_uploads, beside_a_poller, twice])
@pytest.mark.parametrize(("program", "verdict", "cause", "lines"), MATRIX)
def test_what_is_beside_it_is_no_alarm(
    program: Callable[[], list[Call]],
    verdict: Cause,
    cause: Cause | None,
    lines: list[int],
    otherwise: Callable[[list[Call]], list[Call]],
) -> None:
    if otherwise is beside_a_poller and program.__name__ in ("held", "not_reused"):
        pytest.skip("the poller's calls are part of that evidence: it may hold a connection, and uses its own again")
    found = diagnosis_of(otherwise(program()))
    assert found.causes == ({cause} - {None}), found.findings
    if otherwise is twice and program.__name__ == "executor":
        verdict = OVERLAPPED  # marked as a run, its threads are branches, whose loops are not asked about
    assert {one.cause for one in found.verdicts} - {Cause.POLLER} == {verdict}
    assert [site.line for finding in found.findings for site in finding.call_sites] == lines


def test_the_numbers_of_the_reference_agent() -> None:
    [finding] = diagnosis_of(serial()).findings
    assert finding.sentence == (
        "tool_search and tool_fetch ran one after another at agent.py:11 and agent.py:12; overlapped, about 0.75 s "
        "instead of 1.10 s, if neither needs the other"
    )
    assert (finding.numbers["gain_ms"], finding.cost_ms, finding.runs) == (350, 350, ("task Task-1",))


def test_needs_that_requests_show_are_told_and_not_proposed_for_overlap() -> None:
    [finding] = diagnosis_of(dependent()).findings
    assert finding.sentence == (
        "4 calls ran one after another at agent.py:10 and agent.py:11 and agent.py:12 and agent.py:13; "
        "tool_fetch needs tool_search, as requests show; each other may need the one before"
    )
    assert (finding.numbers["gain_ms"], finding.numbers["shown_needs"]) == (0, 1)


def test_needs_of_calls_of_one_label_are_told_by_lines_and_of_a_loop_by_its_label() -> None:
    chained = [dataclasses.replace(one, label="llm", logical_id=n, needs=n - 1) for n, one in enumerate(chain(), 1)]
    [finding] = diagnosis_of(chained).findings
    assert finding.sentence.endswith(
        "; agent.py:31 needs agent.py:30 and agent.py:32 needs agent.py:31, as requests show"
    )
    turns = [dataclasses.replace(one, logical_id=n, needs=n - 1) for n, one in enumerate(loop(), 1)]
    [finding] = diagnosis_of(turns).findings
    assert finding.sentence.endswith("at agent.py:20; ask needs the one before, as requests show")


def test_where_every_need_is_shown_nothing_is_proposed() -> None:
    steps = many(4, lambda n: call(100 * n, 100 * n + 95, 30 + n))
    chained = [dataclasses.replace(one, logical_id=n, needs=n - 1) for n, one in enumerate(steps, start=1)]
    [finding] = diagnosis_of(chained).findings
    assert finding.sentence.endswith(" and agent.py:33; each needs the one before, as requests show")
    assert finding.action.startswith("nothing here may overlap")
    skipping = [*chained[:3], dataclasses.replace(chained[3], needs=1)]
    [finding] = diagnosis_of(skipping).findings
    assert finding.sentence.endswith(" and agent.py:32 needs agent.py:31, as requests show")
    assert finding.action.startswith("where a step does not need the one before")


def test_how_many_were_refused_and_for_how_long_they_waited() -> None:
    [finding] = diagnosis_of(refused()).findings
    assert finding.sentence == (
        "3 of 9 requests were answered 429, and made again after up to 252 ms, with up to 6 in flight"
    )
    assert (finding.numbers["waited_ms"], finding.numbers["wall_ms"]) == (252, 400)
    other = [dataclasses.replace(one, status=503) if one.status == 429 else one for one in refused()]
    assert diagnosis_of(other).findings == ()


def test_one_call_that_is_retried_makes_no_branch() -> None:
    first = many(3, lambda n: call(n, 50, async_task=f"Task-{n}", logical_id=n + 1, status=429, outcome="http_error"))
    second = many(3, lambda n: call(200 + n, 400, async_task=f"Task-{n}", logical_id=n + 1, attempt=1))
    calls = [*first, *second]
    [verdict] = diagnosis_of(calls).verdicts
    assert verdict.sentence == "overlapped: up to 3 in flight, mean 1.86"
    [unit] = units(CountedCalls.of(columns_of(calls)))
    assert [branch.n for branch in branches_of(unit)] == [6]


def test_looked_at_and_nothing_shown_the_finding_says_so() -> None:
    calls = [dataclasses.replace(one, logical_id=n, needs=0) for n, one in enumerate(serial(), start=1)]
    [finding] = diagnosis_of(calls).findings
    assert finding.sentence.endswith("about 0.75 s instead of 1.10 s; neither request shows a need of the other")
    assert finding.action.endswith("wait for all")
    [finding] = diagnosis_of(serial()).findings
    assert finding.action.endswith("; to look for needs first: OCCUPANCY_DEPENDENCE=1")


def test_nothing_gives_nothing() -> None:
    assert diagnosis_of([]) == Diagnosis((), None, (), ())
    assert diagnosis_of([call(0, 5, kind=Kind.OTHER)]) == Diagnosis((), None, (), ())


# Which calls are one run


def test_five_serial_users_are_serial_five_times() -> None:
    calls = [one for n in range(5) for one in in_run(serial(), run=f"task Task-{n}", async_task=f"Task-{n}")]
    found = diagnosis_of(calls)
    assert [one.cause for one in found.verdicts] == [SERIAL] * 5
    assert found.process is not None
    assert (found.process.cause, found.process.peak) == (SERIAL, 5)
    assert found.process.sentence == "5 runs: 5 serial; up to 5 in flight together"
    [finding] = found.findings
    assert (finding.cause, finding.runs) == (SERIAL, tuple(f"task Task-{n}" for n in range(5)))
    assert (finding.numbers["runs"], finding.cost_ms) == (5, 5 * 350)


def test_a_task_of_one_name_in_two_processes_is_two_runs() -> None:
    found = diagnosis_of(in_run(loop(), pid=1) + in_run(loop(), pid=2))
    assert [one.cause for one in found.verdicts] == [SERIAL, SERIAL]


def test_a_trace_crosses_processes() -> None:
    found = diagnosis_of(in_run(loop(), pid=1, run="a" * 32) + in_run(loop(), pid=2, run="a" * 32))
    assert [(one.cause, one.peak) for one in found.verdicts] == [(OVERLAPPED, 2)]


def test_gathered_agents_are_one_run_of_several_branches() -> None:
    calls = [one for n in range(3) for one in in_run(serial(), async_task=f"Task-{n + 2}")]
    found = diagnosis_of(calls)
    [verdict] = found.verdicts
    assert (verdict.cause, verdict.sentence) == (
        PARTLY, "partly overlapped: up to 3 in flight, mean 3.00; 3 serial branches at once",
    )  # fmt: skip


def test_the_threads_of_an_executor_belong_to_the_main_thread_that_waits_for_them() -> None:
    tools = [thread_run([call(200, 550, 11 + n)], f"ThreadPoolExecutor-0_{n}")[0] for n in range(2)]
    found = diagnosis_of([*thread_run([call(0, 200, 10), call(550, 750, 13)], "MainThread"), *tools])
    assert [(one.run, one.cause, one.n) for one in found.verdicts] == [("MainThread", OVERLAPPED, 4)]


def test_plain_threads_between_its_calls_belong_to_the_main_thread() -> None:
    tools = [thread_run([call(200, 550, 11 + n)], f"Thread-{n} (tool)")[0] for n in range(2)]
    found = diagnosis_of([*thread_run([call(0, 200, 10), call(550, 750, 13)], "MainThread"), *tools])
    assert [(one.run, one.cause) for one in found.verdicts] == [("MainThread", OVERLAPPED)]


def test_where_the_main_thread_works_beside_its_threads_nothing_is_said() -> None:
    main = thread_run([call(0, 200, 10), call(200, 500, 11), call(550, 750, 13)], "MainThread")
    found = diagnosis_of([*main, *thread_run([call(200, 550, 12)], "ThreadPoolExecutor-0_0")])
    assert {one.cause for one in found.verdicts} == {Cause.UNKNOWN}
    assert found.findings == ()
    assert found.warnings == ("some calls cannot be told apart by run: mark runs with occupancy.agent_run",)


def test_threads_that_look_alike_may_serve_users_and_nothing_is_said() -> None:
    calls = [one for n in range(5) for one in thread_run(serial(), f"ThreadPoolExecutor-0_{n}")]
    found = diagnosis_of(calls)
    [verdict] = found.verdicts
    assert (verdict.run, verdict.cause, verdict.peak) == ("ThreadPoolExecutor-0", Cause.UNKNOWN, 5)
    assert found.findings == ()


def test_threads_of_an_executor_that_call_in_turn_may_serve_users() -> None:
    calls = [thread_run([call(100 * n, 100 * n + 90, 20)], f"ThreadPoolExecutor-0_{n % 2}")[0] for n in range(4)]
    assert [one.cause for one in diagnosis_of(calls).verdicts] == [Cause.UNKNOWN]


def test_threads_named_like_workers_that_are_no_executors_are_runs_of_their_own() -> None:
    calls = [one for n in range(2) for one in thread_run(serial(), f"agent_{n}")]
    assert [(one.run, one.cause) for one in diagnosis_of(calls).verdicts] == [("agent_0", SERIAL), ("agent_1", SERIAL)]


def test_a_second_thread_of_one_name_is_known_by_its_run() -> None:
    calls = thread_run(one_call(), "asyncio_0") + in_run(thread_run(one_call(), "asyncio_0"), run="asyncio_0 #2")
    assert [(one.run, one.n) for one in diagnosis_of(calls).verdicts] == [("asyncio", 2)]


def test_a_notebook_is_judged_cell_by_cell() -> None:
    def cell(number: int, calls: list[Call], shift_ms: int) -> list[Call]:
        helper = Frame("cell 1", 2, "ask")
        return [
            dataclasses.replace(one, start_ns=one.start_ns + shift_ms * MS, end_ns=(one.end_ns or 0) + shift_ms * MS,
                                call_stack=(helper, Frame(f"cell {number}", 3 + n, "<module>")))
            for n, one in enumerate(calls)
        ]  # fmt: skip

    found = diagnosis_of(cell(12, serial(), 0) + cell(13, overlapped(), 60_000) + cell(14, one_call(), 200_000))
    assert [(one.run, one.cause) for one in found.verdicts] == [
        ("cell 12", SERIAL), ("cell 13", OVERLAPPED), ("cell 14", ONE_CALL),
    ]  # fmt: skip
    [finding] = found.findings
    assert [str(site) for site in finding.call_sites] == ["cell 12, line 4", "cell 12, line 5"]


# What is left out, and what is warned about


def test_a_span_around_another_is_one_call_told_twice() -> None:
    calls = serial()
    for number, one in enumerate(list(calls)):
        one.span_id, one.parent_span_id = f"{number:016x}", f"{number + 100:016x}"
        calls.append(
            dataclasses.replace(one, span_id=one.parent_span_id, parent_span_id=None, start_ns=one.start_ns - 5)
        )
    found = diagnosis_of(calls)
    assert [(one.cause, one.n) for one in found.verdicts] == [(SERIAL, 4)]
    assert found.warnings == (
        "4 calls hold another call's span inside: one call told twice, which would look like overlap",
    )


def test_calls_left_open_are_warned_about_but_not_in_a_live_log() -> None:
    calls = [*serial(), call(0, 0, 99, end_ns=None, released_ns=None, outcome=Outcome.OPEN)]
    assert diagnosis_of(calls).warnings == (
        "1 call never ended: taken as in flight to the next of its thread or task, else the process's last sign",
    )
    assert diagnose(columns_of(calls), until_ns=2000 * MS).warnings == ()


def test_telemetry_makes_nothing_overlap() -> None:
    uploads = many(20, lambda n: call(50 * n, 50 * n + 40, 150, kind=Kind.OTHER, async_task="uploader"))
    assert diagnosis_of(serial() + uploads) == diagnosis_of(serial())


def test_more_runs_than_are_looked_at() -> None:
    calls = many(MOST_RUNS + 5, lambda n: call(n, n + 10, run=f"agent#{n}"))
    found = diagnosis_of(calls)
    assert len(found.verdicts) == MOST_RUNS + 5
    assert found.warnings == (f"causes were looked for in the {MOST_RUNS} runs with the most calls",)
    assert found.process is not None
    assert found.process.sentence == f"one call in each of {MOST_RUNS + 5} runs, up to 10 in flight together"


def test_more_calls_than_overlap_is_computed_for(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [one for run in ("a", "b", "c") for one in in_run(partly(), run=run)]
    of_each = len(partly())
    told = [verdict.cause for verdict in diagnosis_of(calls).verdicts]
    monkeypatch.setattr("occupancy.analysis.diagnosis.MOST_OVERLAP_CALLS", 2 * of_each)
    bounded = diagnosis_of(calls)
    assert told == [Cause.PARTLY_OVERLAPPED] * 3
    assert [verdict.cause for verdict in bounded.verdicts] == [*told[:2], Cause.OVERLAPPED]
    assert bounded.warnings == (
        f"what overlap would gain was not computed for 1 run: it is for up to 50000 calls of a run and {2 * of_each} "
        "in all",
    )


def test_a_barrier_that_is_declared_is_none() -> None:
    calls = barrier()
    for place in (2, 3):
        calls[place].after = "node 1"
    for place in (4, 5):
        calls[place].after = "node 2"
    assert Cause.BARRIER not in diagnosis_of(calls).causes


def test_a_join_is_no_barrier() -> None:
    spans = [(0, 80, 1), (0, 300, 2), (301, 400, 3), (401, 480, 1), (401, 700, 2)]
    calls = [call(start, end, 84, async_task=f"Task-{task}", siblings=2) for start, end, task in spans]
    assert Cause.BARRIER not in diagnosis_of(calls).causes


def test_findings_of_one_cause_and_place_are_one() -> None:
    one = Finding(SERIAL, "a", {"calls": 2}, (at(1),), "do", ("x",), 5)
    other = Finding(SERIAL, "b", {"calls": 3}, (at(1),), "do", ("y",), 9)
    apart = Finding(SERIAL, "c", {"calls": 3}, (at(2),), "do", ("y",), 20)
    assert merged([one, other, apart]) == (
        apart, Finding(SERIAL, "b", {"calls": 3, "runs": 2}, (at(1),), "do", ("x", "y"), 14),
    )  # fmt: skip
    assert merged([]) == ()


@pytest.mark.parametrize(
    ("frame", "place"),
    [(at(3), "agent.py:3"), (Frame("cell 4", 2, "f"), "cell 4, line 2"), (Frame(r"C:\me\a.py", 2, "f"), "a.py:2")],
)
def test_a_call_site_in_a_sentence(frame: Frame, place: str) -> None:
    assert place_of(frame) == place


# Whatever the columns hold

OPTIONAL_NS = st.none() | st.integers(0, 300 * MS)
ANYTHING = st.builds(
    call,
    st.integers(0, 300),
    st.integers(0, 300),
    st.integers(1, 3),
    run=st.sampled_from((None, "agent#1", "a" * 32, "task Task-1", "asyncio_0", "MainThread")),
    pid=st.integers(1, 2),
    async_task=st.sampled_from((None, "Task-1", "Task-2")),
    thread=st.sampled_from((None, "MainThread", "asyncio_0", "asyncio_1")),
    label=st.sampled_from((None, "a", "tool_b")),
    after=st.sampled_from((None, "a", "a\nb")),
    needs=st.none() | st.integers(0, 4),
    siblings=st.none() | st.integers(1, 5),
    siblings_held=st.none() | st.booleans(),
    logical_id=st.integers(0, 4),
    attempt=st.integers(0, 2),
    status=st.none() | st.sampled_from((200, 429, 503)),
    outcome=st.sampled_from([str(outcome) for outcome in Outcome]),
    error_type=st.sampled_from((None, "PoolTimeout", "503")),
    first_byte_ns=OPTIONAL_NS,
    first_event_ns=OPTIONAL_NS,
    last_byte_ns=OPTIONAL_NS,
    headers_ns=OPTIONAL_NS,
    pool_ns=OPTIONAL_NS,
    wait_ns=OPTIONAL_NS,
    connect_ns=OPTIONAL_NS,
    max_gap_ns=OPTIONAL_NS,
    max_gap_after_ns=OPTIONAL_NS,
    chunks=st.integers(0, 30),
    chunks_after_gap=st.none() | st.integers(1, 9),
    bytes_received=st.integers(0, 10_000),
    connection_reused=st.none() | st.booleans(),
    sync_in_event_loop=st.booleans(),
    span_id=st.sampled_from((None, "1" * 16, "2" * 16)),
    parent_span_id=st.sampled_from((None, "1" * 16, "2" * 16)),
    call_stack=st.sampled_from(((), (at(1),), (at(1), at(5)), (Frame("cell 2", 1, "f"),))),
)


@given(st.lists(ANYTHING, max_size=14))
def test_counts_of_all_units_are_those_of_each(calls: list[Call]) -> None:
    found = units(CountedCalls.of(columns_of(calls)))
    for unit, counts in zip(found, counts_of(found), strict=True):
        ns = unit.steps.time_at_level
        assert (counts.n_logical, counts.peak, counts.wall_ns) == (unit.n_logical, unit.steps.peak, unit.steps.wall_ns)
        assert (counts.mean, counts.busy_ns, counts.overlapped_ns) == (unit.steps.mean, sum(ns[1:]), sum(ns[2:]))
        calls_of = defaultdict(set)
        for flow, logical in zip(unit.flow.tolist(), unit.logical.tolist(), strict=True):
            calls_of[flow].add(logical)
        assert counts.n_branches == sum(len(mine) > 1 for mine in calls_of.values())


@given(st.lists(ANYTHING, max_size=14), st.none() | st.integers(0, 400 * MS))
def test_whatever_the_columns_hold_there_is_a_diagnosis(calls: list[Call], until_ns: int | None) -> None:
    found = diagnose(columns_of(calls), until_ns)
    assert sum(one.n for one in found.verdicts) <= len(calls)
    assert all(one.n_logical <= one.n and one.peak <= one.n for one in found.verdicts)
    for finding in found.findings:
        assert finding.cost_ms >= 0
        assert len(finding.call_sites) <= SITES
    assert list(found.findings) == sorted(found.findings, key=lambda finding: -finding.cost_ms)
