"""Summaries against hand-computed values and plain-Python recomputation."""

import dataclasses
import json
import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from occupancy.analysis.columns import MISSING, columns_of
from occupancy.analysis.distribution import Durations, Spread, combined, elapsed, first_places, number, spread, tally
from occupancy.analysis.groups import CallSite, Run
from occupancy.analysis.summary import Gap, Phase, Summary, summarize
from occupancy.call import Call, Frame
from occupancy.cli.show import plain

MS = 1_000_000
AGENT = {"plan": 10, "tool_search": 11, "tool_fetch": 12, "recap": 13}


def step(label: str, start_ms: int, end_ms: int, **fields: object) -> Call:
    call = Call(
        label=label,
        start_ns=start_ms * MS,
        end_ns=end_ms * MS,
        first_byte_ns=(end_ms - 10) * MS,
        outcome="ok",
        status=200,
        run="agent",
        call_stack=(Frame("agent.py", AGENT.get(label, 1), label),),
    )
    return dataclasses.replace(call, **fields)  # type: ignore[arg-type]


def serial() -> list[Call]:
    return [step("plan", 0, 200), step("tool_search", 200, 550), step("tool_fetch", 550, 900), step("recap", 900, 1100)]


def overlapped() -> list[Call]:
    return [step("plan", 0, 200), step("tool_search", 200, 550), step("tool_fetch", 200, 550), step("recap", 550, 750)]


def summary_of(*calls: Call) -> Summary:
    return summarize(columns_of(calls))


def test_the_reference_agent_serial() -> None:
    found = summary_of(*serial())
    assert (found.n, found.peak, found.mean_in_flight) == (4, 1, 1.0)
    assert (found.wall_ns, found.busy_ns, found.level_ns) == (1100 * MS, 1100 * MS, (0, 1100 * MS))
    assert found.level_share == (0.0, 1.0)
    assert (found.total.n, found.total.min_ms, found.total.max_ms, found.total.mean_ms) == (4, 200, 350, 275)
    assert (found.first_byte.min_ms, found.first_byte.max_ms) == (190, 340)
    assert found.gaps == ()


def test_the_reference_agent_overlapped() -> None:
    found = summary_of(*overlapped())
    assert (found.peak, found.wall_ns, found.level_ns) == (2, 750 * MS, (0, 400 * MS, 350 * MS))
    assert found.mean_in_flight == pytest.approx(1100 / 750)
    assert found.level_share == pytest.approx((0, 400 / 750, 350 / 750))


def test_nothing() -> None:
    found = summary_of()
    assert (found.n, found.n_open, found.n_other, found.peak, found.wire_peak, found.wall_ns) == (0, 0, 0, 0, 0, 0)
    assert (found.level_ns, found.level_share, found.mean_in_flight) == ((0,), (0.0,), 0.0)
    assert (found.total, found.first_byte, found.connection_reuse) == (Spread(0), Spread(0), None)
    assert (found.by_label, found.by_site, found.by_run, found.gaps, found.outcomes) == ((), (), (), (), ())
    assert {phase.n for phase in found.phases} == {0}


def test_kind_other_is_counted_apart_and_nowhere_else() -> None:
    found = summary_of(*serial(), step("upload", 0, 5000, kind="other", model="m", host="h", status=500, attempt=1))
    assert (found.n, found.n_other, found.peak, found.wall_ns, found.n_errors, found.n_retries) == (
        4,
        1,
        1,
        1100 * MS,
        0,
        0,
    )
    assert (found.models, found.hosts) == ((), ())
    assert [group.label for group in found.by_label] == list(AGENT)


def test_open_calls_are_in_flight_but_in_no_distribution() -> None:
    found = summary_of(step("plan", 0, 100), Call(label="stuck", start_ns=50 * MS, status=200))
    assert (found.n, found.n_open, found.total.n, found.peak) == (2, 1, 1, 2)
    assert found.wall_ns == 100 * MS + 1
    stuck = found.by_label[1]
    assert (stuck.n, stuck.n_open, stuck.total.n, stuck.in_flight_ms) == (1, 1, 0, 50.000001)


def test_a_live_log_keeps_open_calls_in_flight_until_now() -> None:
    columns = columns_of([step("plan", 0, 100), Call(label="stuck", start_ns=50 * MS)])
    found = summarize(columns, until_ns=400 * MS)
    assert (found.wall_ns, found.level_ns) == (400 * MS, (0, 350 * MS, 50 * MS))


def test_bad_rows_are_dropped_and_counted() -> None:
    found = summary_of(step("plan", 0, 100), step("back", 90, 80), Call(label="bad", start_ns=0, outcome="ok"))
    assert (found.n, found.n_dropped, found.n_open, found.total.n, found.wall_ns) == (3, 2, 0, 1, 100 * MS)


def test_calls_held_after_their_end_are_counted() -> None:
    held = step("a", 0, 100, released_ns=101 * MS + 1)
    bookkeeping = step("b", 0, 100, released_ns=101 * MS)
    assert summary_of(held, bookkeeping, step("c", 0, 100), Call(released_ns=5)).n_released_late == 1


def test_on_the_wire_peak_is_below_the_peak_behind_a_pool_of_two() -> None:
    calls = [step("fetch", 0, 200 * (wave + 1), pool_ns=200 * MS * wave) for wave in range(4) for _ in range(2)]
    found = summary_of(*calls)
    assert (found.peak, found.wire_peak) == (8, 2)


def test_phases_know_how_many_calls_they_are_of() -> None:
    found = summary_of(
        step("a", 0, 9, pool_ns=2 * MS, wait_ns=5 * MS), step("b", 0, 9, pool_ns=7 * MS), step("c", 0, 9, pool_ns=0)
    )
    phases = {phase.name: phase for phase in found.phases}
    assert phases["pool"] == Phase("pool", 3, 9.0, 2.0)
    assert phases["wait"] == Phase("wait", 1, 5.0, 5.0)
    assert phases["tls"] == Phase("tls", 0, 0.0, None)


def test_connection_reuse_is_of_the_calls_where_it_is_known() -> None:
    reused = [step("a", 0, 9, connection_reused=known) for known in (True, True, False, None)]
    found = summary_of(*reused)
    assert (found.n_connection_reused, found.n_connection_known) == (2, 3)
    assert found.connection_reuse == pytest.approx(2 / 3)


def test_errors_are_bad_statuses_and_missing_answers_but_not_what_the_program_cancelled() -> None:
    endings = [
        ("ok", 200),
        ("ok", None),
        ("http_error", 500),
        ("abandoned", 429),
        ("timeout", None),
        ("error", 200),
        ("cancelled", None),
        ("closed_early", 200),
    ]
    found = summary_of(*(step("a", 0, 9, outcome=outcome, status=status) for outcome, status in endings))
    assert (found.n_errors, found.n_429) == (4, 1)
    assert found.outcomes[0] == ("ok", 2)
    assert sum(item.n for item in found.outcomes) == len(endings)


def test_retries_models_and_hosts() -> None:
    found = summary_of(
        step("a", 0, 9, model="big", host="b", attempt=2),
        step("a", 0, 9, model="small", host="a", attempt=1),
        step("a", 0, 9, model="small"),
    )
    assert found.n_retries == 2
    assert found.models == (("small", 2), ("big", 1))
    assert found.hosts == (("a", 1), ("b", 1))


def test_gaps_are_the_programs_own_time_between_two_named_calls() -> None:
    found = summary_of(step("plan", 0, 100), step("fetch", 130, 200), step("tick", 120, 120), step("recap", 290, 300))
    assert found.gaps == (
        Gap(200 * MS, 90 * MS, "fetch", "recap"),
        Gap(100 * MS, 30 * MS, "plan", "fetch"),
    )
    assert found.level_ns[0] == 120 * MS
    assert found.busy_ns == 180 * MS


def test_a_call_of_no_length_borders_no_gap() -> None:
    found = summary_of(step("tick", 100, 100), step("tock", 130, 130), step("plan", 0, 100), step("fetch", 130, 200))
    assert found.gaps == (Gap(100 * MS, 30 * MS, "plan", "fetch"),)


def test_only_the_largest_gaps_are_named() -> None:
    starts = [0, 20, 50, 90, 140, 200, 270, 350]
    found = summary_of(*(step("a", start, start + 10) for start in starts))
    assert [gap.duration_ns // MS for gap in found.gaps] == [70, 60, 50, 40, 30]


def test_labels_have_rows_of_their_own_in_the_order_they_start() -> None:
    found = summary_of(*serial(), step("plan", 1200, 1500, first_byte_ns=None))
    plan = found.by_label[0]
    assert [group.label for group in found.by_label] == list(AGENT)
    assert (plan.n, plan.first_start_ns, plan.in_flight_ms) == (2, 0, 500)
    assert (plan.total.n, plan.total.mean_ms, plan.total.min_ms, plan.total.max_ms) == (2, 250, 200, 300)
    assert (plan.first_byte.n, plan.first_byte.mean_ms) == (1, 190)
    assert plan.call_sites == ((Frame("agent.py", 10, "plan"), 2),)


def test_call_sites_of_a_label_are_the_most_frequent_first() -> None:
    frames = [Frame("a.py", line, "f") for line in (1, 2, 2, 3, 3, 3, 4)]
    found = summary_of(*(step("a", 0, 9, call_stack=(frame,)) for frame in frames), step("a", 0, 9, call_stack=()))
    assert found.by_label[0].call_sites == (CallSite(frames[3], 3), CallSite(frames[1], 2), CallSite(frames[0], 1))


def test_two_calls_through_one_helper_are_two_rows_named_by_its_callers() -> None:
    helper, first, second = Frame("llm.py", 3, "llm"), Frame("agent.py", 10, "main"), Frame("agent.py", 20, "main")
    found = summary_of(
        step("llm", 0, 100, call_stack=(helper, first)), step("llm", 100, 300, call_stack=(helper, second))
    )
    assert [(group.n, group.call_sites) for group in found.by_site] == [(1, ((second, 1),)), (1, ((first, 1),))]
    assert [group.n for group in found.by_label] == [2]


def test_sites_are_ordered_by_the_time_they_take() -> None:
    found = summary_of(*serial(), step("plan", 1100, 1400))
    assert [(group.label, group.in_flight_ms) for group in found.by_site] == [
        ("plan", 500),
        ("tool_search", 350),
        ("tool_fetch", 350),
        ("recap", 200),
    ]


def test_serial_runs_side_by_side_are_serial_each() -> None:
    users = [dataclasses.replace(call, run=f"user {user}") for user in range(5) for call in serial()]
    found = summary_of(*users)
    assert found.peak == 5
    assert found.by_run == tuple(Run(f"user {user}", 4, 0, 1100 * MS, 1, 1.0) for user in range(5))


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.integers(0, 12)),
        max_size=25,
    )
)
def test_runs_agree_with_a_summary_of_each_run_alone(rows: list[tuple[str, int, int]]) -> None:
    calls = [Call(run=run, start_ns=start, end_ns=start + length, outcome="ok") for run, start, length in rows]
    found = summary_of(*calls)
    assert {run.run for run in found.by_run} == {run for run, _, _ in rows}
    assert list(found.by_run) == sorted(found.by_run, key=lambda run: run.first_start_ns)
    for run in found.by_run:
        alone = summary_of(*(call for call in calls if call.run == run.run))
        assert (run.n, run.wall_ns, run.peak, run.first_start_ns) == (
            alone.n,
            alone.wall_ns,
            alone.peak,
            alone.start_ns,
        )
        assert run.mean_in_flight == pytest.approx(alone.mean_in_flight)


# Distributions

DURATIONS = st.lists(st.integers(0, 10**12), min_size=1, max_size=40)


@given(DURATIONS)
def test_percentiles_are_numpys_median_unbiased_ones(durations_ns: list[int]) -> None:
    found = spread(np.array([*durations_ns, MISSING]))
    expected = np.quantile(np.array(durations_ns) / MS, (0.5, 0.95, 0.99), method="median_unbiased")
    assert (found.p50_ms, found.p95_ms, found.p99_ms) == pytest.approx(tuple(expected), rel=1e-9, abs=1e-9)
    assert found.p50_ms == pytest.approx(statistics.median(durations_ns) / MS)
    assert (found.n, found.min_ms, found.max_ms) == (len(durations_ns), min(durations_ns) / MS, max(durations_ns) / MS)
    assert found.mean_ms is not None
    assert math.isclose(found.mean_ms, statistics.fmean(durations_ns) / MS)


@given(st.lists(st.tuples(st.integers(0, 4), st.none() | st.integers(0, 10**9)), max_size=40))
def test_groups_are_described_as_if_each_were_alone(rows: list[tuple[int, int | None]]) -> None:
    durations_ns = np.array([MISSING if value is None else value for _, value in rows], dtype=np.int64)
    group = np.array([owner for owner, _ in rows], dtype=np.int64)
    for owner, found in enumerate(Durations(durations_ns).spreads(group, 5)):
        alone = spread(durations_ns[group == owner])
        assert dataclasses.asdict(found) == pytest.approx(dataclasses.asdict(alone))


def test_one_duration_is_every_percentile() -> None:
    assert spread(np.array([5 * MS])) == Spread(1, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0)


def test_elapsed_is_missing_where_a_stamp_is_or_they_are_the_wrong_way_round() -> None:
    from_ns = np.array([0, MISSING, 5, 9, 4])
    to_ns = np.array([7, 7, MISSING, 8, 4])
    assert elapsed(from_ns, to_ns).tolist() == [7, MISSING, MISSING, MISSING, 0]


def test_values_are_numbered_as_they_come_and_none_is_no_tally() -> None:
    values, places = number(["b", None, "a", "b"])
    assert (values, places.tolist()) == (["b", None, "a"], [0, 1, 2, 0])
    assert tally(["b", None, "a", "b", "c"]) == (("b", 2), ("a", 1), ("c", 1))


NUMBERINGS = st.integers(0, 30).flatmap(
    lambda n: st.lists(st.lists(st.sampled_from("abcd"), min_size=n, max_size=n), min_size=1, max_size=3)
)


@given(NUMBERINGS, st.sampled_from([1, 1000]))
def test_combinations_are_numbered_as_they_first_come(columns: list[list[str]], spread_out: int) -> None:
    numbered = [number(column) for column in columns]
    parts = [(place * spread_out, max(len(values), 1) * spread_out) for values, place in numbered]
    _, expected = number(zip(*columns, strict=True))
    found = combined(parts)
    assert found.tolist() == expected.tolist()
    n = len(set(expected.tolist()))
    assert first_places(found, n).tolist() == [expected.tolist().index(one) for one in range(n)]


def test_a_summary_can_be_written_as_json() -> None:
    json.dumps(plain(summary_of(*overlapped())))
