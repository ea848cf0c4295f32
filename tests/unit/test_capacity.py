"""Effective concurrency, its error, labels and fit, on rounds that are made up exactly."""

import dataclasses
import heapq
import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from occupancy.analysis.baseline import Baseline
from occupancy.analysis.capacity import Capacity, client_reasons, find_capacity, label_level
from occupancy.analysis.capacity_fit import Fit, Usl, fit_capacity, quantile_of_t
from occupancy.analysis.full_load import full_load, relative_error, window_rate
from occupancy.analysis.levels import Label, Level, measure
from occupancy.analysis.samples import ClientLoad, Ending, Round, Sample


def closed_loop(
    c: int,
    k: int,
    n: int,
    service_s: float = 1.0,
    *,
    jitter: float = 0.0,
    outside_s: float = 0.0,
    own_s: float = 0.0,
    rng: random.Random | None = None,
) -> Round:
    """A round of c workers on k slots, first come, first served: simulated without any of our event loops.

    Each request takes `own_s` in the client, then `outside_s` at the endpoint before it stands in line for a slot.
    """
    rng = rng or random.Random(0)
    slots = [0.0] * min(k, n)
    free = [(0.0, worker) for worker in range(c)]
    samples = []
    for number in range(n):
        start_s, worker = heapq.heappop(free)
        asked_s = start_s + own_s
        end_s = max(asked_s + outside_s, heapq.heappop(slots)) + service_s * (1 + jitter * rng.uniform(-1, 1))
        heapq.heappush(slots, end_s)
        heapq.heappush(free, (end_s, worker))
        samples.append(Sample(number=number, start_s=start_s, end_s=end_s, ending=Ending.OK, wire_s=end_s - asked_s))
    return Round(workers=c, samples=tuple(samples))


BASELINE = Baseline.of(closed_loop(1, 1, 20))


@settings(deadline=None)
@given(c=st.integers(1, 40), k=st.integers(1, 40), n=st.integers(1, 200))
def test_effective_concurrency_of_the_whole_level(c: int, k: int, n: int) -> None:
    n = max(c, n)
    level = measure(closed_loop(c, k, n), BASELINE)
    assert level.effective == n / math.ceil(n / min(c, k))
    assert level.effective == pytest.approx(level.mean_in_flight * BASELINE.mean_s / level.mean_s)


@settings(deadline=None)
@given(c=st.integers(2, 40), k=st.integers(1, 40), rounds=st.integers(4, 12))
def test_the_full_load_window_is_exact(c: int, k: int, rounds: int) -> None:
    rate = window_rate(closed_loop(c, k, rounds * c))
    assert rate is None or rate == pytest.approx(min(c, k))


@settings(deadline=None)
@given(c=st.integers(2, 40), k=st.integers(1, 40), rounds=st.integers(2, 12))
def test_the_full_load_is_exact(c: int, k: int, rounds: int) -> None:
    found = full_load(closed_loop(c, k, rounds * c), BASELINE)
    if found is None:  # all at once, and once more: no time between the first end and the last issue
        assert (k >= c, rounds) == (True, 2)
        return
    assert found == pytest.approx((min(c, k), c))


def test_batches_of_unknown_size_widen_the_error() -> None:
    measured = closed_loop(8, 6, 24)
    assert relative_error(measured, BASELINE, 6.0) == 0.0
    # 6.5 is no number of slots: which requests were worked on together is not known.
    assert relative_error(measured, BASELINE, 6.5) == pytest.approx(6**2 / (4 * 8 * 16) / math.sqrt(3))


def test_too_few_requests_have_no_full_load() -> None:
    assert full_load(closed_loop(4, 2, 7), BASELINE) is None
    assert window_rate(closed_loop(4, 2, 15)) is None
    assert measure(closed_loop(4, 2, 7), BASELINE).best == pytest.approx(7 / 4)


def capacity(k: int, levels: tuple[int, ...] = (1, 2, 4, 8, 16)) -> Capacity:
    return find_capacity([closed_loop(c, k, max(20, 4 * c)) for c in levels])


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 6, 8, 10])
def test_the_fit_finds_the_slots(k: int) -> None:
    fit = capacity(k).fit
    assert fit.capacity is not None
    assert fit.error99 is not None
    assert abs(fit.capacity - k) <= fit.error99 + 1e-9
    assert round(fit.capacity) == k


def test_what_the_client_takes_of_a_request_is_outside_the_slots() -> None:
    rounds = [closed_loop(c, 2, 64, own_s=0.25) for c in (1, 4, 8)]
    found = find_capacity(rounds)
    assert (found.baseline.mean_s, found.baseline.own_s) == pytest.approx((1.25, 0.25))
    assert (found.fit.plateau, found.fit.capacity) == pytest.approx((2.5, 2.0))


def test_time_at_the_endpoint_outside_its_slots_counts() -> None:
    found = find_capacity([closed_loop(c, 2, 64, outside_s=0.5) for c in (1, 4, 8)])
    assert found.fit.capacity == pytest.approx(3.0)  # k T1 / S


@pytest.mark.timeout(180)
def test_the_reported_error_is_a_true_one() -> None:
    """Of 1000 sweeps of endpoints with jitter, as many hit as the interval says: 95 %, and 99 %."""
    rng, hits = random.Random(1), {1.96: 0, 2.576: 0}
    for _ in range(1000):
        k, outside_s, own_s = rng.choice((1, 2, 3, 6)), rng.choice((0.0, 0.3)), rng.choice((0.0, 0.1))
        more: dict[str, Any] = {"jitter": 0.25, "outside_s": outside_s, "own_s": own_s, "rng": rng}
        plan = ((1, 20), (2, 20), (4, 20), (8, 32), (16, 48), (32, 64))
        fit = find_capacity([closed_loop(c, k, n, **more) for c, n in plan], closed_loop(1, k, 10, **more)).fit
        for z in hits:
            error = quantile_of_t(z, 29) * (fit.standard_error or 0)
            hits[z] += abs((fit.capacity or 0) - k * (1 + outside_s)) <= error
    assert 925 <= hits[1.96] <= 965
    assert 982 <= hits[2.576] <= 997
    assert fit.error99 == error  # of the last


def test_the_quantile_of_student() -> None:
    # Tables: 2.045 and 2.756 with 29 degrees of freedom, 2.262 and 3.250 with 9.
    assert [quantile_of_t(z, 29) for z in (1.96, 2.576)] == pytest.approx([2.045, 2.756], abs=0.001)
    assert [quantile_of_t(z, 9) for z in (1.96, 2.576)] == pytest.approx([2.262, 3.250], rel=0.01)
    assert quantile_of_t(1.96, math.inf) == 1.96


def test_no_limit_below_the_slots() -> None:
    found = capacity(100)
    assert (found.fit.capacity, found.fit.at_least, str(found.fit)) == (None, 16, "no limit up to 16")
    assert found.recommended == 16


def test_labels_of_a_serial_endpoint() -> None:
    labels = [level.labels for level in capacity(1).levels]
    assert labels[0] == (Label.PARALLEL,)
    assert labels[1:] == [(Label.SERIAL, Label.PLATEAU, Label.QUEUEING)] * 4


def test_fifo_queueing_has_a_flat_p95() -> None:
    level = capacity(2, (1, 8)).levels[1]
    assert level.p50 is not None
    assert level.p95 is not None
    assert level.p95.value_s == level.p50.value_s == 4.0
    assert Label.QUEUEING in level.labels


def with_endings(measured: Round, *endings: Ending) -> Round:
    samples = [dataclasses.replace(s, ending=e) for s, e in zip(measured.samples, endings, strict=False)]
    return dataclasses.replace(measured, samples=(*samples, *measured.samples[len(samples) :]))


@pytest.mark.parametrize(
    ("endings", "is_over"),
    [
        ((Ending.REFUSED,), True),
        ((Ending.TIMEOUT,), True),
        ((Ending.ERROR,), False),  # 19 of 20 are 95 %
        ((Ending.HTTP_ERROR, Ending.ERROR), True),
    ],
)
def test_over_the_limit(endings: tuple[Ending, ...], is_over: bool) -> None:
    found = find_capacity([closed_loop(1, 4, 20), with_endings(closed_loop(4, 4, 20), *endings)])
    assert found.levels[1].is_over_limit == is_over
    assert found.over_limit_at == (4 if is_over else None)
    assert found.recommended == (1 if is_over else 4)
    assert (Label.OVER_LIMIT in found.levels[1].labels) == is_over


def test_levels_over_the_limit_are_not_fitted() -> None:
    rounds = [closed_loop(c, 4, 20) for c in (1, 2, 4)] + [with_endings(closed_loop(8, 4, 32), *[Ending.REFUSED] * 16)]
    assert find_capacity(rounds).fit.capacity is None


def level(c: int, best: float, **more: Any) -> Level:
    measured = measure(closed_loop(c, c, max(20, 4 * c)), BASELINE)
    return dataclasses.replace(measured, effective_full_load=best, effective=best, **more)


@pytest.mark.parametrize(
    ("best", "half", "expected"),
    [
        (3.4, 2.0, {Label.PARALLEL}),
        (3.39, 2.0, set()),
        (2.3, 2.0, {Label.QUEUEING}),
        (2.29, 2.0, {Label.PLATEAU, Label.QUEUEING}),
        (1.79, 2.0, {Label.PLATEAU, Label.STALLED, Label.QUEUEING}),
        (1.29, 1.29, {Label.SERIAL, Label.PLATEAU, Label.QUEUEING}),
    ],
)
def test_label_thresholds(best: float, half: float, expected: set[Label]) -> None:
    assert set(label_level(level(4, best), level(2, half))) == expected


def test_a_busy_client_is_no_finding_about_the_server() -> None:
    slow = ClientLoad(lag_mean_s=0.4, lag_p99_s=0.9)
    bound = level(4, 2.5, client=slow, client_s=0.4)  # took 0.6 s longer, of which 0.4 in the client
    assert client_reasons(bound, BASELINE) == ("the event loop was up to 900 ms late",)
    assert client_reasons(level(4, 1.0, client=slow, client_s=0.4), BASELINE) == ()  # explains 0.4 of 3 s
    assert client_reasons(level(4, 3.9, client=slow, client_s=0.4), BASELINE) == ()  # parallel all the same
    blocked = ClientLoad(lag_mean_s=0.04, lag_p99_s=0.05, late_share=0.7)
    assert client_reasons(level(4, 2.5, client=blocked), BASELINE) == ("the event loop was late 70% of the time",)
    assert "95% of a core" in client_reasons(level(4, 2.5, client=ClientLoad(cpu_share=0.95)), BASELINE)[0]
    assert "only 3.0 of 4" in client_reasons(level(4, 2.5, in_flight_full_load=3.0), BASELINE)[0]
    labelled = dataclasses.replace(bound, client_reasons=client_reasons(bound, BASELINE))
    assert label_level(labelled, level(2, 2.4)) == (Label.CLIENT_BOUND,)


def test_where_the_client_gave_out_the_other_levels_speak() -> None:
    slow = ClientLoad(late_share=0.7)
    late = dataclasses.replace(closed_loop(6, 6, 24, 1.3), client=slow)  # 0.77 of the workers
    found = find_capacity([*(closed_loop(c, 6, 64) for c in (1, 2, 4, 8, 16)), late])
    assert [level.workers for level in found.levels if level.is_client_bound] == [6]
    assert (found.fit.capacity, found.recommended) == (pytest.approx(6.0), 6)


def test_drift_beyond_ten_percent_and_chance_is_unstable() -> None:
    start, slower, same = closed_loop(1, 1, 20), closed_loop(1, 1, 10, 1.11), closed_loop(1, 1, 10, 1.09)
    assert not Baseline.of(start, slower).is_stable
    assert Baseline.of(start, same).is_stable
    assert Baseline.of(start, slower).drift == pytest.approx(0.11)
    rng = np.random.default_rng(1)
    noisy = [dataclasses.replace(s, start_s=0.0, end_s=float(rng.uniform(0.2, 1.8))) for s in start.samples]
    assert Baseline.of(Round(workers=1, samples=tuple(noisy)), slower).is_stable


def test_the_usl_is_shown_only_where_it_tells_more() -> None:
    law = Usl(contention=0.05, coherency=0.01)
    points = [(c, law.at(c), 0.01) for c in (1, 2, 4, 8, 16, 32)]
    found = fit_capacity(points, 0.01).usl
    assert found is not None
    assert (found.contention, found.coherency) == pytest.approx((0.05, 0.01))
    assert fit_capacity(points[1:], 0.01).usl is None  # five levels
    assert fit_capacity([(c, min(c, 6.0), 0.01) for c in (1, 2, 4, 8, 16, 32)], 0.01).usl is None


def test_the_error_of_t1_is_not_lessened_by_more_levels() -> None:
    fit = fit_capacity([(1, 1.0, 0.0), (2, 2.0, 0.0), (4, 2.0, 0.0), (8, 2.0, 0.0)], 0.1)
    assert fit.standard_error == pytest.approx(0.2)


def test_nothing_to_judge_is_an_error() -> None:
    with pytest.raises(ValueError, match="no good answer with one worker"):
        find_capacity([closed_loop(2, 2, 20)])
    with pytest.raises(ValueError, match="no time at all"):
        find_capacity([closed_loop(1, 1, 20, 0.0)])
    with pytest.raises(ValueError, match="no good answer"):
        find_capacity([dataclasses.replace(closed_loop(1, 1, 20), is_complete=False)])


def test_one_level_is_no_plateau_where_two_are_asked_for() -> None:
    points = [(1, 1.0, 0.0), (2, 1.6, 0.0)]
    assert fit_capacity(points, 0.0).capacity == pytest.approx(1.6)
    assert fit_capacity(points, 0.0, least_on_plateau=2) == Fit(None, 1)
    assert fit_capacity([*points, (4, 1.6, 0.0)], 0.0, least_on_plateau=2).capacity == pytest.approx(1.6)
