"""The gateway's model against formulas that are known exactly, on a virtual clock."""

import asyncio
import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mock_server.admission import Desk, OverdueError
from mock_server.gateway import RATE_WINDOW_S, Limits, Line, RefusedError
from mock_server.virtual_time import run


@dataclasses.dataclass
class Load:
    """What workers saw: latency in s of each request in the order of issue, and how it ended."""

    wall_s: float
    latency_s: list[float]
    ended: list[str]

    def ok(self) -> int:
        return self.ended.count("ok")


async def closed_loop(desk: Desk, c: int, n: int) -> Load:
    """Let c workers, which all start now, draw n requests."""
    loop = asyncio.get_running_loop()
    numbers, latency_s, ended = iter(range(n)), [math.nan] * n, [""] * n
    start_s = loop.time()

    async def work() -> None:
        for number in numbers:
            issued_s = loop.time()
            ended[number] = await request(desk)
            latency_s[number] = loop.time() - issued_s

    await asyncio.gather(*(work() for _ in range(c)))
    return Load(loop.time() - start_s, latency_s, ended)


async def request(desk: Desk) -> str:
    try:
        async with desk.admit() as ticket:
            await asyncio.sleep(ticket.service_s)
        return "ok"
    except RefusedError:
        return "refused"
    except OverdueError:
        return "overdue"


def load(c: int, n: int, **limits: Any) -> Load:
    async def main() -> Load:
        return await closed_loop(Desk(Limits(**limits)), c, n)

    return run(main())


def expected_latency(c: int, k: int, n: int) -> list[float]:
    m = min(c, k)
    return [float(i // m + 1 if i < c else i // m - (i - c) // m) for i in range(n)]


@pytest.mark.parametrize(
    ("asked", "wall_s", "quantiles_s"),
    [
        ((2, 2, 20), 10, [1, 1]),
        ((4, 2, 20), 10, [2, 2]),
        ((5, 2, 20), 10, [2, 3]),
        ((8, 2, 20), 10, [4, 4]),
        ((8, 3, 24), 8, [2.5, 3]),
    ],
)
def test_rows_of_the_oracle(asked: tuple[int, int, int], wall_s: float, quantiles_s: list[float]) -> None:
    c, k, n = asked
    seen = load(c, n, capacity=k, service_s=1.0)
    assert seen.wall_s == wall_s
    assert np.quantile(seen.latency_s, [0.5, 0.95], method="median_unbiased").tolist() == quantiles_s


@given(c=st.integers(1, 40), k=st.integers(1, 40), rounds=st.integers(1, 80))
@example(c=1, k=1, rounds=1)
@settings(max_examples=1000, deadline=None)
def test_first_come_first_served_exactly(c: int, k: int, rounds: int) -> None:
    n = max(c, rounds)
    seen = load(c, n, capacity=k, service_s=1.0)
    assert seen.wall_s == math.ceil(n / min(c, k))
    assert sorted(seen.latency_s) == sorted(expected_latency(c, k, n))
    assert seen.ok() == n


@settings(deadline=None)
@given(c=st.integers(1, 30), k=st.integers(1, 10), n=st.integers(1, 60))
def test_delay_outside_the_slot(c: int, k: int, n: int) -> None:
    n, outside_s = max(c, n), 0.5
    seen = load(c, n, capacity=k, service_s=1.0, outside_s=outside_s)
    if c <= k:
        assert seen.wall_s == (1 + outside_s) * math.ceil(n / c)
    elif c >= 2 * k:
        assert seen.wall_s == outside_s + math.ceil(n / k)


@settings(deadline=None)
@given(c=st.integers(1, 60), k=st.integers(1, 20), timeout=st.integers(0, 20))
def test_time_outs_of_a_burst(c: int, k: int, timeout: int) -> None:
    c = max(c, k)
    seen = load(c, c, capacity=k, service_s=1.0, timeout_s=timeout + 0.5)
    assert seen.ended.count("overdue") == max(0, c - k * timeout)
    assert all(took == timeout + 0.5 for took, end in zip(seen.latency_s, seen.ended, strict=True) if end == "overdue")


@settings(deadline=None)
@given(c=st.integers(1, 60), k=st.integers(1, 20), queue=st.integers(0, 20))
def test_refusals_of_a_burst(c: int, k: int, queue: int) -> None:
    seen = load(c, c, capacity=k, service_s=1.0, queue=queue)
    assert seen.ended.count("refused") == max(0, c - k - queue)
    assert seen.wall_s == math.ceil((c - seen.ended.count("refused")) / k)


def test_no_limit_serves_all_at_once() -> None:
    assert load(50, 50, service_s=1.0).wall_s == 1.0


def test_jitter_is_seeded_and_keeps_the_mean() -> None:
    first, again, other = (load(1, 400, service_s=1.0, jitter=0.25, seed=seed).latency_s for seed in (7, 7, 8))
    assert first == again != other
    assert min(first) >= 0.75
    assert max(first) <= 1.25
    assert np.mean(first) == pytest.approx(1.0, abs=4 * 0.25 / math.sqrt(3 * 400))


def test_wakes_up_once_after_idling() -> None:
    async def main() -> list[float]:
        desk = Desk(Limits(service_s=1.0, cold_s=5.0, idle_s=10.0))
        loads = [await closed_loop(desk, 3, 6)]
        for idle_s in (9.0, 10.0):
            await asyncio.sleep(idle_s)
            loads.append(await closed_loop(desk, 1, 2))
        return [took for load in loads for took in load.latency_s]

    assert run(main()) == [6, 6, 6, 1, 1, 1, 1, 1, 6, 1]


def test_drift_and_prefix_cache_change_the_service_time() -> None:
    line = Line(Limits(service_s=1.0, drift=0.5, cache_speedup=4.0))
    tickets = [line.arrive(0.0, prompt=prompt) for prompt in ("a", "b", "a", None, None)]
    assert [ticket.service_s for ticket in tickets] == [1.0, 1.5, 0.5, 2.5, 3.0]


def test_the_cache_forgets_the_oldest_prompts() -> None:
    line = Line(Limits(service_s=1.0, cache_speedup=2.0))
    for number in range(1001):
        line.arrive(0.0, prompt=str(number))
    assert [line.arrive(0.0, prompt=prompt).work_s for prompt in ("0", "1000")] == [1.0, 0.5]


def test_requests_and_tokens_per_minute() -> None:
    line = Line(Limits(rpm=2, tpm=100))
    line.arrive(0.0, tokens=40)
    line.arrive(10.0, tokens=40)
    with pytest.raises(RefusedError) as refused:
        line.arrive(11.0, tokens=1)
    assert refused.value.retry_after_s == RATE_WINDOW_S - 11.0
    line.arrive(60.0, tokens=60)
    with pytest.raises(RefusedError) as refused:
        line.arrive(71.0, tokens=41)
    assert refused.value.retry_after_s == 49.0
    with pytest.raises(RefusedError) as refused:
        line.arrive(200.0, tokens=101)
    assert refused.value.retry_after_s is None
    assert line.refused == 3


def test_what_a_refusal_asks_for_can_be_set() -> None:
    line = Line(Limits(capacity=1, queue=0, retry_after_s=7.0, service_s=1.0))
    line.arrive(0.0)
    with pytest.raises(RefusedError) as refused:
        line.arrive(0.0)
    assert refused.value.retry_after_s == 7.0


@pytest.mark.parametrize(("keep_working", "ends_s"), [(False, 1.0), (True, 2.0)])
def test_a_client_that_leaves_frees_its_slot_or_not(keep_working: bool, ends_s: float) -> None:
    async def main() -> float:
        desk = Desk(Limits(capacity=1, service_s=1.0, keep_working=keep_working))
        for _ in range(2):  # one in the slot, one in line
            leaver = asyncio.create_task(request(desk))
            await asyncio.sleep(0)
            leaver.cancel()
            await asyncio.gather(leaver, return_exceptions=True)
        await request(desk)
        assert (list(desk.line.waiting), desk.line.working, desk._turns) == ([], [], {})
        return asyncio.get_running_loop().time()

    assert run(main()) == ends_s + keep_working


def test_leaving_in_any_order_keeps_the_line_whole() -> None:
    async def main() -> int:
        desk = Desk(Limits(capacity=2, service_s=1.0))
        tasks = [asyncio.create_task(request(desk)) for _ in range(20)]
        for moment in range(8):
            await asyncio.sleep(0.25)
            tasks[(moment * 7) % 20].cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert (desk.line.peak_working, list(desk.line.waiting), desk.line.working) == (2, [], [])
        return ended.count("ok")

    assert run(main()) >= 12


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"capacity": 0}, "capacity must be a number >= 1, got 0"),
        ({"service_s": -1.0}, "service_s must be a number >= 0, got -1.0"),
        ({"timeout_s": math.nan}, "timeout_s must be a number >= 0, got nan"),
        ({"jitter": 1.5}, "jitter must be a share from 0 to 1, got 1.5"),
        ({"rpm": 0}, "rpm must be a number >= 1, got 0"),
    ],
)
def test_values_that_do_not_fit_are_named(limits: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}$"):
        Limits(**limits)


def test_a_waiting_request_has_no_end_yet() -> None:
    line = Line(Limits(capacity=1, service_s=1.0))
    line.arrive(0.0)
    with pytest.raises(ValueError, match="request 1 waits"):
        _ = line.arrive(0.0).ends_s
