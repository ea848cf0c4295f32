"""How much work was handed over together, and what came at once after a stream's longest gap."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest
import trio

import occupancy
from occupancy.call import Call
from occupancy.caller import describe
from occupancy.caller.tasks import siblings
from occupancy.flight import TOGETHER_NS, Flight
from occupancy.ledger import Ledger


async def ask() -> int | None:
    found = siblings()
    await asyncio.sleep(0)
    return found


async def gather() -> list[int | None]:
    return list(await asyncio.gather(ask(), ask(), ask()))


async def gather_behind_a_limit() -> list[int | None]:
    limit = asyncio.Semaphore(1)

    async def limited() -> int | None:
        async with limit:
            return await ask()

    return list(await asyncio.gather(limited(), limited(), limited()))


async def task_group() -> list[int | None]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask()) for _ in range(3)]
    return [task.result() for task in tasks]


async def wait() -> list[int | None]:
    tasks = [asyncio.create_task(ask()) for _ in range(3)]
    await asyncio.wait(tasks)
    return [task.result() for task in tasks]


async def with_time_outs() -> list[int | None]:
    return await asyncio.gather(*(asyncio.wait_for(ask(), 60) for _ in range(3)))


async def anyio_group() -> list[int | None]:
    found: list[int | None] = []

    async def keep() -> None:
        found.append(siblings())
        await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(keep)
    return found


@pytest.mark.parametrize("start", [gather, task_group, wait, with_time_outs, anyio_group])
def test_all_that_were_started_together(start: Callable[[], Awaitable[list[int | None]]]) -> None:
    async def main() -> list[int | None]:
        return await start()

    assert asyncio.run(main()) == [3, 3, 3]


def test_those_that_are_done_no_longer_count() -> None:
    first, second, third = asyncio.run(gather_behind_a_limit())
    assert (first, third) == (3, 2)
    assert second in (2, 3)  # who lets go of the limit is not done yet


def test_a_nursery() -> None:
    found: list[int | None] = []

    async def keep() -> None:
        found.append(siblings())
        await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(keep)

    trio.run(main)
    assert found == [3, 3, 3]


def test_an_executor_counts_what_it_runs_and_what_waits() -> None:
    started, go = threading.Semaphore(0), threading.Event()

    def work(_: int) -> int | None:
        started.release()
        go.wait(30)
        return siblings()

    with ThreadPoolExecutor(2) as executor:
        asked = [executor.submit(work, number) for number in range(5)]
        for _ in range(2):
            started.acquire(timeout=30)
        go.set()
        found = [future.result() for future in asked]
    assert max(found[:2], key=lambda n: n or 0) == 5  # two at work and three in the queue
    assert found[-1] in (1, 2)


def test_nothing_is_known_outside_of_a_group() -> None:
    assert siblings() is None
    assert asyncio.run(ask()) is None


def test_a_failure_of_ours_is_none_of_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("occupancy.caller.tasks.current_task", lambda: 1 / 0)
    monkeypatch.setattr("occupancy.caller.tasks.report", lambda where, error: told.append(where))
    assert siblings() is None
    assert told == ["caller.siblings"]


def test_a_call_carries_what_it_is_declared_to_need() -> None:
    call = Call()
    with occupancy.label("write", after=("plan", "search")):
        describe(call)
    assert (call.label, call.after) == ("write", "plan\nsearch")
    with occupancy.label("plan"):
        describe(call)
    assert call.after is None


def gaps_of(*arrivals_ms: float) -> tuple[Any, ...]:
    flight = Flight(Call(start_ns=5), Ledger(), ())
    for ms in arrivals_ms:
        flight.chunk(1, 5 + int(ms * TOGETHER_NS))
    call = flight.call
    flight.complete()
    gap_ns, after_ns = call.max_gap_ns, call.max_gap_after_ns
    return *(None if ns is None else ns / TOGETHER_NS for ns in (gap_ns, after_ns)), call.chunks_after_gap


def test_where_the_longest_gap_lies_and_what_came_with_its_end() -> None:
    assert gaps_of() == gaps_of(10) == (None, None, None)
    assert gaps_of(10, 15) == (5, 10, 1)
    assert gaps_of(10, 15, 45, 45.5, 45.9, 60) == (30, 15, 3)  # the client had not looked
    assert gaps_of(10, 15, 45, 50, 55, 60) == (30, 15, 1)  # the server had not sent
    assert gaps_of(0, 30, 30.5, 70) == (39.5, 30.5, 1)  # a longer one begins anew
    assert gaps_of(0, 400, 403, 500) == (400, 0, 2)  # long gaps leave more behind, which takes longer to read
