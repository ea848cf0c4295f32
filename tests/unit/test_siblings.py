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
from occupancy.caller.groups import Siblings, siblings
from occupancy.flight import TOGETHER_NS, Flight
from occupancy.ledger import Ledger


async def ask() -> int | None:
    found = siblings().n
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
        found.append(siblings().n)
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


# Whether a lock or semaphore holds some of them


async def ask_if_held() -> bool | None:
    await asyncio.sleep(0)
    return siblings().is_held


def behind(limit: Any) -> Callable[[], Awaitable[bool | None]]:
    async def limited() -> bool | None:
        async with limit:
            return await ask_if_held()

    return limited


async def with_acquire(limit: Any) -> bool | None:
    await limit.acquire()
    try:
        return await ask_if_held()
    finally:
        limit.release()


async def gather_held(work: Callable[[], Awaitable[bool | None]]) -> list[bool | None]:
    return list(await asyncio.gather(*(work() for _ in range(4))))


async def group_held(work: Callable[[], Any]) -> list[bool | None]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work()) for _ in range(4)]
    return [task.result() for task in tasks]


@pytest.mark.parametrize("start", [gather_held, group_held])
@pytest.mark.parametrize("limit", [asyncio.Lock, asyncio.Semaphore, anyio.Lock, lambda: anyio.CapacityLimiter(1)])
def test_who_waits_for_its_turn_is_seen(start: Callable[..., Any], limit: Callable[[], Any]) -> None:
    async def main() -> Any:
        return await start(behind(limit()))

    held = asyncio.run(main())
    assert held[:2] == [True, True]
    assert held[-1] is not True  # nobody is left behind the last


def test_who_calls_acquire_itself_is_seen() -> None:
    async def main() -> Any:
        limit = asyncio.Semaphore(1)
        return await gather_held(lambda: with_acquire(limit))

    assert asyncio.run(main())[:2] == [True, True]


@pytest.mark.parametrize("start", [gather_held, group_held])
def test_nobody_is_held_where_all_go_on(start: Callable[..., Any]) -> None:
    assert asyncio.run(start(ask_if_held)) == [False] * 4


def test_who_waits_inside_an_http_client_is_in_its_call() -> None:
    source = "async def acquire(event):\n    await event.wait()\n"
    client: dict[str, Any] = {}
    exec(compile(source, "/site-packages/httpcore/_async/connection_pool.py", "exec"), client)

    async def main() -> Any:
        event = asyncio.Event()

        async def ask_and_go() -> bool | None:
            await asyncio.sleep(0)
            event.set()
            return siblings().is_held

        return await asyncio.gather(ask_and_go(), client["acquire"](event))

    assert asyncio.run(main())[0] is False


def test_trio_tasks_behind_a_limit() -> None:
    found: list[bool | None] = []

    async def main() -> None:
        limit = trio.CapacityLimiter(1)

        async def limited() -> None:
            async with limit:
                await trio.lowlevel.checkpoint()
                found.append(siblings().is_held)

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(limited)

    trio.run(main)
    assert found[:2] == [True, True]
    assert found[-1] is not True


def test_a_group_without_its_tasks_tells_nothing() -> None:
    async def main() -> Any:
        tasks = [asyncio.create_task(ask_if_held()) for _ in range(3)]
        await asyncio.wait(tasks)
        return [task.result() for task in tasks]

    assert asyncio.run(main()) == [None] * 3


def test_a_nursery() -> None:
    found: list[int | None] = []

    async def keep() -> None:
        found.append(siblings().n)
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
        return siblings().n

    with ThreadPoolExecutor(2) as executor:
        asked = [executor.submit(work, number) for number in range(5)]
        for _ in range(2):
            started.acquire(timeout=30)
        go.set()
        found = [future.result() for future in asked]
    assert max(found[:2], key=lambda n: n or 0) == 5  # two at work and three in the queue
    assert found[-1] in (1, 2)


def test_nothing_is_known_outside_of_a_group() -> None:
    assert siblings() == Siblings(None, None)
    assert asyncio.run(ask()) is None


def test_a_failure_of_ours_is_none_of_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("occupancy.caller.groups.current_task", lambda: 1 / 0)
    monkeypatch.setattr("occupancy.caller.groups.report", lambda where, error: told.append(where))
    assert siblings() == Siblings(None, None)
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
