"""Calls in buckets of time, against an oracle that looks at every instant."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from occupancy.analysis.buckets import Buckets, bucket, edges
from occupancy.analysis.columns import MISSING
from occupancy.call import Call, Kind
from occupancy.errors import InputError
from occupancy.log import OccupancyLog

MS = 1_000_000
INSTANTS = range(-5, 25)


def ints(values):
    return np.array(values, dtype=np.int64)


@st.composite
def calls_and_edges(draw):
    instant = st.integers(INSTANTS[0], INSTANTS[-1])
    calls = draw(st.lists(st.tuples(instant, instant | st.just(MISSING)), max_size=20))
    cuts = sorted(draw(st.sets(st.integers(0, 20), min_size=2)))
    return calls, cuts


@given(calls_and_edges())
def test_buckets_are_what_every_instant_says(case):
    calls, cuts = case
    found = bucket(ints([start for start, _ in calls]), ints([end for _, end in calls]), ints(cuts))
    level = {t: sum(start <= t < end for start, end in calls) for t in INSTANTS}
    slots = [range(*pair) for pair in itertools.pairwise(cuts)]
    assert found.in_flight_ns.tolist() == [sum(level[t] for t in slot) for slot in slots]
    assert found.peak.tolist() == [max(level[t] for t in slot) for slot in slots]
    # A call is told in the first bucket in which it is in flight.
    seen = [{n for n, (start, end) in enumerate(calls) if any(start <= t < end for t in slot)} for slot in slots]
    assert found.begun.tolist() == [len(now - set().union(*seen[:place])) for place, now in enumerate(seen)]


def test_a_call_longer_than_the_window_is_in_every_bucket_once():
    found = bucket(ints([-100]), ints([1000]), ints([0, 10, 40]))
    assert found.in_flight_ns.tolist() == [10, 30]
    assert found.mean.tolist() == [1.0, 1.0]
    assert found.peak.tolist() == [1, 1]
    assert found.begun.tolist() == [1, 0]
    assert (found.n, found.highest, found.mean_in_flight) == (1, 1, 1.0)


def test_the_end_of_one_call_and_the_start_of_the_next_are_not_both_in_flight():
    found = bucket(ints([0, 5]), ints([5, 12]), ints([0, 10]))
    assert (found.n, found.highest, found.mean_in_flight) == (2, 1, 1.0)


def test_without_calls_all_is_0():
    found = bucket(ints([]), ints([]), ints([0, 10, 20]))
    assert (found.n, found.highest, found.mean_in_flight) == (0, 0, 0.0)
    assert found.peak.tolist() == found.begun.tolist() == found.in_flight_ns.tolist() == [0, 0]


def test_unix_times_are_exact():
    origin = 1_800_000_000_000_000_000
    found = bucket(
        ints([origin - 7, origin + 1]),
        ints([origin + 3, origin + 60_000_000_001]),
        ints([origin, origin + 60_000_000_000]),
    )
    assert found.in_flight_ns.tolist() == [3 + 59_999_999_999]
    assert found.peak.tolist() == [2]


def test_the_mean_of_a_month_of_a_large_fleet_is_exact():
    day_ns = 86_400 * 10**9
    edges_ns = day_ns * np.arange(31)
    in_flight_ns = np.full(30, 50_000 * day_ns)
    assert Buckets(edges_ns, in_flight_ns, in_flight_ns, in_flight_ns).mean_in_flight == 50_000.0


def test_the_last_bucket_is_shorter_where_the_width_does_not_fit():
    assert edges(5, 30, 10).tolist() == [5, 15, 25, 30]
    assert edges(5, 25, 10).tolist() == [5, 15, 25]
    assert edges(5, 6, 10).tolist() == [5, 6]
    assert edges(5, 5, 10).tolist() == [5]
    with pytest.raises(InputError, match="1e-09 s makes 10001 buckets of the window; at most 10000"):
        edges(0, 10_001, 1)


def test_a_log_in_buckets():
    calls = [Call(start_ns=start * MS, end_ns=end * MS, outcome="ok") for start, end in ((100, 300), (200, 400))]
    upload = Call(start_ns=0, end_ns=900 * MS, outcome="ok", kind=Kind.OTHER)
    found = OccupancyLog.from_calls([*calls, upload]).buckets(0.2)
    assert (found.edges_ns / MS).tolist() == [100, 300, 400]
    assert found.mean.tolist() == [1.5, 1.0]
    assert found.peak.tolist() == [2, 1]
    assert found.begun.tolist() == [2, 0]


def test_a_log_without_calls_has_no_buckets():
    found = OccupancyLog.from_calls([]).buckets(1)
    assert (found.n, found.highest, found.mean_in_flight, found.peak.size) == (0, 0, 0.0, 0)


def test_a_bucket_is_wider_than_nothing():
    with pytest.raises(InputError, match="a bucket must be wider than 0, not -1 s"):
        OccupancyLog.from_calls([]).buckets(-1)
