"""The running count of recorded calls, compared with one event after another."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from occupancy.analysis.running_count import count_running
from occupancy.call import MISSING

CALLS = st.lists(st.tuples(st.integers(-20, 20), st.none() | st.integers(0, 6)), max_size=12)
CALLS_IN_ANY_ORDER = CALLS.flatmap(lambda calls: st.permutations(list(enumerate(calls))))


def one_after_another(
    calls: list[tuple[int, int | None]], numbers: list[int]
) -> tuple[list[int], list[int], dict[int, int], int]:
    """Counts by a plain loop over time: at each time ends, then starts by their numbers, those of no length at once."""
    at_start, at_end = [0] * len(calls), [MISSING] * len(calls)
    in_flight: set[int] = set()
    peak, spent, before = 0, {}, None
    for t in range(-21, 28):
        events = 0
        for i, (start, length) in enumerate(calls):
            if length and start + length == t:
                at_end[i] = len(in_flight)
                in_flight.remove(i)
                events += 1
        for _, i in sorted((number, i) for i, number in enumerate(numbers)):
            start, length = calls[i]
            if start == t:
                in_flight.add(i)
                at_start[i] = len(in_flight)
                peak = max(peak, len(in_flight))
                if length == 0:
                    at_end[i] = len(in_flight)
                    in_flight.remove(i)
                events += 1
        if events:
            if before is not None:
                spent[before[1]] = spent.get(before[1], 0) + t - before[0]
            before = (t, len(in_flight))
    return at_start, at_end, spent, peak


@given(CALLS_IN_ANY_ORDER)
def test_it_counts_as_a_log_does(numbered: list[tuple[int, tuple[int, int | None]]]) -> None:
    numbers, calls = [number for number, _ in numbered], [call for _, call in numbered]
    start = np.array([start for start, _ in calls], dtype=np.int64)
    released = np.array([MISSING if length is None else s + length for s, length in calls], dtype=np.int64)
    at_start, at_end, spent, peak = one_after_another(calls, numbers)
    running = count_running(start, released, np.array(numbers, dtype=np.int64))
    assert running.in_flight_start.tolist() == at_start
    # Of several releases at one time the order is not told; the counts at them are the same, in some order.
    by_time: dict[int, list[int]] = {}
    expected: dict[int, list[int]] = {}
    for i, t in enumerate(released.tolist()):
        by_time.setdefault(t, []).append(int(running.in_flight_end[i]))
        expected.setdefault(t, []).append(at_end[i])
    assert {t: sorted(ends) for t, ends in by_time.items()} == {t: sorted(ends) for t, ends in expected.items()}
    assert running.peak == peak
    assert {level: ns for level, ns in enumerate(running.level_ns.tolist()) if ns} == {
        k: v for k, v in spent.items() if v
    }


def test_nothing_counts_nothing() -> None:
    running = count_running(*[np.array([], dtype=np.int64)] * 3)
    assert (running.peak, running.level_ns.tolist(), running.in_flight_start.size) == (0, [0], 0)
