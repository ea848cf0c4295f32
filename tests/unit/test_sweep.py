"""The whole sweep on a virtual clock, against the gateway's model."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mock_server.admission import Desk, OverdueError
from mock_server.gateway import Limits, RefusedError
from mock_server.virtual_time import run
from occupancy.analysis.capacity import Capacity, find_capacity
from occupancy.analysis.levels import Label
from occupancy.analysis.samples import Ending
from occupancy.errors import InputError
from occupancy.probe.client import Answer, opener_of
from occupancy.probe.errors import UnreachableError
from occupancy.probe.sweep import Sweep, SweepOptions


def request_of(desk: Desk, outside_s: float = 0.0) -> Callable[[], Awaitable[Answer]]:
    async def request() -> Answer:
        await asyncio.sleep(outside_s)
        try:
            async with desk.admit() as ticket:
                await asyncio.sleep(ticket.service_s)
        except RefusedError as error:
            return Answer(status=429, error="refused", retry_after_s=error.retry_after_s)
        except OverdueError:
            return Answer(status=504, error="overdue")
        return Answer(status=200)

    return request


def swept(options: SweepOptions | None = None, outside_s: float = 0.0, **limits: Any) -> Sweep:
    async def main() -> Sweep:
        desk = Desk(Limits(**limits))
        sweep = Sweep(opener_of(request_of(desk, outside_s)), options or SweepOptions())
        await sweep.run()
        return sweep

    return run(main())


def capacity_of(sweep: Sweep) -> Capacity:
    return find_capacity(sweep.rounds, sweep.end)


@pytest.mark.parametrize("slots", [1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 16, 20])
def test_finds_the_slots(slots: int) -> None:
    found = capacity_of(swept(capacity=slots, service_s=1.0))
    assert found.fit.capacity == pytest.approx(slots, abs=1e-9 + (found.fit.error99 or 0))
    if slots < 20:
        assert round(found.fit.capacity or 0) == slots
        assert found.recommended == (
            8 if slots == 7 else slots
        )  # 8 workers on 7 slots: 0.88 each, parallel by definition


def test_no_limit() -> None:
    sweep = swept(service_s=1.0)
    found = capacity_of(sweep)
    assert (found.fit.capacity, found.fit.at_least, found.recommended) == (None, 32, 32)
    assert all(level.labels == (Label.PARALLEL,) for level in found.levels)
    assert [r.workers for r in sweep.rounds] == [1, 2, 4, 8, 16, 32]


@given(slots=st.integers(1, 12), seed=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_jitter_stays_within_the_reported_error(slots: int, seed: int) -> None:
    found = capacity_of(swept(capacity=slots, service_s=1.0, jitter=0.25, seed=seed))
    assert found.fit.capacity is not None
    # Twice the 99 % interval: 30 random cases shall never fail by chance.
    assert abs(found.fit.capacity - slots) <= 2 * (found.fit.error99 or 0)


def test_stops_where_two_levels_stand_on_the_plateau_and_measures_the_plateau_itself() -> None:
    assert [r.workers for r in swept(capacity=6, service_s=1.0).rounds] == [1, 2, 4, 8, 16, 6]
    assert [r.workers for r in swept(capacity=2, service_s=1.0).rounds] == [1, 2, 4, 8]


def test_a_plateau_that_cannot_be_recommended_is_not_measured() -> None:
    sweep = swept(capacity=7, service_s=1.0)
    assert [r.workers for r in sweep.rounds] == [1, 2, 4, 8, 16]
    assert capacity_of(sweep).recommended == 8  # on 7 slots: 0.88 each, parallel by definition


def test_no_more_requests_than_the_answer_needs() -> None:
    def requests(**limits: Any) -> list[tuple[int, int]]:
        return [(r.workers, len(r.samples)) for r in swept(service_s=1.0, **limits).rounds]

    assert requests(capacity=6) == [(1, 20), (2, 20), (4, 20), (8, 24), (16, 32), (6, 24)]
    # Latencies vary by 14 %: 23 behind a full line for a rate that is known to 3 %.
    assert requests(capacity=6, jitter=0.25, seed=1) == [(1, 20), (2, 20), (4, 20), (8, 32), (16, 48), (6, 24)]


def test_serial() -> None:
    found = capacity_of(swept(capacity=1, service_s=1.0))
    assert Label.SERIAL in found.levels[-1].labels
    assert Label.QUEUEING in found.levels[-1].labels
    assert found.recommended == 1


def test_time_outside_the_slot_raises_the_plateau() -> None:
    found = capacity_of(swept(capacity=2, service_s=1.0, outside_s=1.0))
    assert found.fit.capacity == pytest.approx(4.0, rel=0.03)  # k T1 / S


def test_drift_is_called_unstable() -> None:
    assert not capacity_of(swept(capacity=2, service_s=1.0, drift=0.005)).baseline.is_stable
    assert capacity_of(swept(capacity=2, service_s=1.0)).baseline.drift == 0.0


def test_a_cold_start_touches_the_warm_up_only() -> None:
    sweep = swept(capacity=2, service_s=1.0, cold_s=9.0)
    assert sweep.warm_up is not None
    assert sweep.warm_up.latency_s == 10.0
    assert capacity_of(sweep).fit.capacity == pytest.approx(2.0)


def test_retry_after_is_waited_out_between_the_levels() -> None:
    sweep = swept(capacity=2, queue=0, service_s=1.0, retry_after_s=30.0)
    found = capacity_of(sweep)
    assert (found.over_limit_at, found.recommended) == (4, 2)
    assert sweep.end is not None
    last = max(sample.end_s for sample in sweep.rounds[-1].samples)
    assert sweep.end.samples[0].start_s == last + 30.0
    assert sweep.rounds[-1].count(Ending.REFUSED) == 2
    assert len(sweep.rounds[-1].samples) == 4  # nothing is issued after a refusal


def test_a_rate_limit_at_one_worker_is_over_the_limit_there() -> None:
    found = capacity_of(swept(rpm=10, service_s=1.0, retry_after_s=1.0))
    assert (found.over_limit_at, found.recommended) == (1, 1)


def test_a_request_that_never_ends_times_out() -> None:
    async def hang() -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> float:
        with pytest.raises(UnreachableError, match="no complete answer within 5 s"):
            await Sweep(opener_of(hang), SweepOptions(timeout_s=5)).run()
        return asyncio.get_running_loop().time()

    assert run(main()) == 5.0


def test_a_level_ends_at_its_deadline() -> None:
    sweep = swept(SweepOptions(levels=(1, 2), level_timeout_s=10.5, end_requests=0), service_s=1.0)
    assert [len(r.samples) for r in sweep.rounds] == [11]  # ten, and one that did not end in time
    assert sweep.rounds[0].samples[-1].ending is Ending.TIMEOUT


def test_never_more_than_max_requests() -> None:
    sweep = swept(SweepOptions(max_requests=50), service_s=1.0)
    assert (sweep.sent, [r.workers for r in sweep.rounds]) == (50, [1, 2])
    assert sweep.notes == ["4 workers left out: 20 requests more than --max-requests allows"]
    assert SweepOptions(max_requests=50).most_planned == 50


def test_the_plan_is_an_upper_bound() -> None:
    for slots in (1, 3, 6, 17):
        assert swept(capacity=slots, service_s=1.0).sent <= SweepOptions().most_planned


def test_what_is_done_is_kept_when_it_is_cancelled_and_not_measured_again() -> None:
    async def main() -> tuple[Sweep, Sweep]:
        desk = Desk(Limits(capacity=2, service_s=1.0))
        first = Sweep(opener_of(request_of(desk)), SweepOptions())
        task = asyncio.create_task(first.run())
        await asyncio.sleep(25.5)  # warm-up 1 s, one worker 20 s
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        again = Sweep(opener_of(request_of(desk)), SweepOptions(), done=first.rounds)
        await again.run()
        return first, again

    first, again = run(main())
    assert [r.workers for r in first.rounds] == [1]
    assert first.partial is not None
    assert (len(first.partial.samples), first.partial.is_complete) == (8, False)
    assert [r.workers for r in again.rounds] == [1, 2, 4, 8]
    assert capacity_of(again).fit.capacity == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"levels": (0, 2)}, "levels"),
        ({"levels": ()}, "levels"),
        ({"max_requests": 5}, "at least 21"),
        ({"timeout_s": 0}, "timeout_s must be a number above 0, not 0"),
        ({"timeout_s": math.nan}, "timeout_s must be a number above 0, not nan"),
    ],
)
def test_options_that_do_not_fit_are_named(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        SweepOptions(**options)


# The published example, in both models


async def worked_example(desk: Desk, setup_s: Callable[[int], float], outside_s: float, timeout_s: float) -> Sweep:
    plain = request_of(desk, outside_s)

    @asynccontextmanager
    async def open_request(workers: int) -> AsyncIterator[Callable[[], Awaitable[Answer]]]:
        known: set[asyncio.Task[Any] | None] = set()

        async def request() -> Answer:
            task = asyncio.current_task()
            if task not in known:
                known.add(task)
                await asyncio.sleep(setup_s(workers))
            return await plain()

        yield request

    options = SweepOptions(
        levels=(1, 2, 4, 8), least_requests=8, most_requests=8, per_worker=1, end_requests=0, timeout_s=timeout_s
    )
    sweep = Sweep(open_request, options)
    await sweep.run()
    return sweep


def test_worked_example_with_attempts_counted() -> None:
    async def main() -> Sweep:
        desk = Desk(Limits(capacity=2, service_s=2.09))
        return await worked_example(desk, lambda c: 0.2144 if c > 1 else 0.0, 0.0, 8.0)

    sweep = run(main())
    found = capacity_of(sweep)
    t1_s = found.baseline.mean_s
    rows = []
    for measured, level in zip(sweep.rounds, found.levels, strict=True):
        latency_s = [sample.latency_s for sample in measured.samples]
        effective_all = t1_s * len(measured.samples) / level.wall_s
        rows.append((level.wall_s, level.n_ok, effective_all, level.effective, np.quantile(latency_s, 0.95)))
    expected = [
        (16.720, 8, 1.000, 1.000, 2.09),
        (8.574, 8, 1.950, 1.950, 2.304),
        (8.574, 8, 1.950, 1.950, 4.394),
        (8.000, 6, 2.090, 1.567, 8.00),
    ]
    assert np.array(rows) == pytest.approx(np.array(expected), abs=6e-4)
    assert (found.over_limit_at, found.recommended) == (8, 2)
    assert Label.OVER_LIMIT in found.levels[-1].labels


def test_worked_example_with_time_outside_the_slot() -> None:
    async def main() -> Sweep:
        desk = Desk(Limits(capacity=2, service_s=2.3, queue=4))
        return await worked_example(desk, lambda c: 0.25 if c == 2 else 0.0, 0.159, 60.0)

    found = capacity_of(run(main()))
    levels = {level.workers: level for level in found.levels}
    assert found.baseline.mean_s == pytest.approx(2.459)
    assert (levels[2].wall_s, levels[2].effective) == pytest.approx((10.086, 1.950), abs=5e-4)
    assert (levels[8].wall_s, levels[8].effective) == pytest.approx((7.059, 2.090), abs=5e-4)
    assert levels[8].n_refused == 2
    assert levels[8].p95 is not None
    assert levels[8].p95.value_s == pytest.approx(7.06, abs=0.01)
    assert (found.over_limit_at, found.recommended) == (8, 2)
