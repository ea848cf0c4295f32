"""Programs that are held back, each by one cause, run for real: the diagnosis names that cause, its lines and no other.

A line that a finding must name ends in `# at NAME`. Nothing here asserts a time; what the programs wait for is long
enough that a busy machine changes no verdict.
"""

import asyncio
import gc
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx2
import openai
import pytest
from loopback import CHAT, async_client, client, sdk, work

import mock_server
import occupancy
from occupancy.analysis.comparison import compare
from occupancy.analysis.diagnosis import diagnose
from occupancy.analysis.findings import Cause, Diagnosis
from occupancy.analysis.overlap import find_overlap

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("fresh")]

LINES = Path(__file__).read_text(encoding="utf-8").splitlines()
PAUSE_S = 0.3


def line_at(name: str) -> int:
    """The line that is marked with a name."""
    [line] = [number for number, text in enumerate(LINES, start=1) if text.endswith(f"# at {name}")]
    return line


# One after another


def plain_loop(url: str) -> None:
    with client(url) as http:
        for _ in range(5):
            http.post("/v1/chat/completions", json=CHAT, headers=work(80))  # at plain loop


async def awaited_loop(url: str) -> None:
    async with async_client(url) as http:
        for call in [http.get("/v1/models", headers=work(80)) for _ in range(5)]:
            await call  # at awaited loop


async def sync_client_of_one_task(url: str) -> None:
    with client(url) as http:
        for _ in range(4):
            http.post("/v1/chat/completions", json=CHAT, headers=work(80))  # at sync client of one task


def serial_agent(url: str) -> None:
    with client(url) as http:
        http.post("/v1/chat/completions", json=CHAT, headers=work(100))
        http.get("/v1/models", headers=work(150))  # at tool_search
        http.get("/v1/models", headers=work(150))  # at tool_fetch
        http.post("/v1/chat/completions", json=CHAT, headers=work(100))


def needed_in_turn(url: str) -> None:
    with client(url) as http:
        with occupancy.label("plan"):
            http.post("/v1/chat/completions", json=CHAT, headers=work(80))  # at plan, needed
        with occupancy.label("write", after="plan"):
            http.post("/v1/chat/completions", json=CHAT, headers=work(80))  # at write, needed


def one_helper(url: str) -> None:
    with client(url) as http:

        def llm(step: str) -> None:
            with occupancy.label(step, after="plan"):
                http.post("/v1/chat/completions", json=CHAT, headers=work(100))

        llm("plan")
        llm("search")  # at llm search
        llm("fetch")  # at llm fetch


def thinks_between(url: str) -> None:
    with client(url) as http:
        for _ in range(4):
            http.get("/v1/models", headers=work(40))  # at thinks between
            time.sleep(PAUSE_S)


# Inside the event loop


async def sync_tools(url: str) -> None:
    with client(url) as http:

        async def tool() -> None:
            http.get("/v1/models", headers=work(80))  # at sync tool

        await asyncio.gather(*(tool() for _ in range(4)))


async def one_sync_call(url: str) -> None:
    async with async_client(url) as http:
        with client(url) as blocking:

            async def step(ms: float) -> None:
                await http.get("/v1/models", headers=work(ms))

            async def flow() -> None:
                await http.get("/v1/models", headers=work(60))
                blocking.get("/v1/models", headers=work(300))  # at sync flow

            await asyncio.gather(step(120), step(150), flow())


async def read_streams(url: str, n: int = 3) -> None:
    async with async_client(url) as http:

        async def read() -> None:
            faults = work(20, chunks=60, chunk_gap_ms=15)
            options: Any = {"json": CHAT | {"stream": True}, "headers": faults}
            async with http.stream("POST", "/v1/chat/completions", **options) as answer:  # at stalled stream
                async for _ in answer.aiter_bytes():
                    pass

        await asyncio.gather(*(read() for _ in range(n)))


async def lock_in_limiter(url: str) -> None:
    lock = threading.Lock()

    def hold() -> None:
        with lock:
            time.sleep(2 * PAUSE_S)

    async def limiter() -> None:
        await asyncio.sleep(PAUSE_S)
        threading.Thread(target=hold).start()
        await asyncio.sleep(0.05)
        with lock:
            pass

    await asyncio.gather(read_streams(url), limiter())


async def sleeps_in_loop(url: str) -> None:
    async def sleeper() -> None:
        await asyncio.sleep(PAUSE_S)
        time.sleep(2 * PAUSE_S)  # noqa: ASYNC251 - that is what it is about

    await asyncio.gather(read_streams(url), sleeper())


# Capped


async def small_executor(url: str) -> None:
    loop = asyncio.get_running_loop()
    with client(url) as http, ThreadPoolExecutor(3) as executor:

        def fetch(_: int) -> None:
            http.get("/v1/models", headers=work(100))  # at small executor

        await asyncio.gather(*(loop.run_in_executor(executor, fetch, number) for number in range(12)))


async def default_executor(url: str) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(4))  # as on a machine of no more processors
    with client(url) as http:

        def fetch() -> None:
            http.get("/v1/models", headers=work(100))  # at default executor

        await asyncio.gather(*(asyncio.to_thread(fetch) for _ in range(16)))


def mapped_over_threads(url: str) -> None:
    with client(url) as http, ThreadPoolExecutor(2, thread_name_prefix="fetchers") as executor:

        def fetch(_: int) -> None:
            http.get("/v1/models", headers=work(100))  # at mapped

        list(executor.map(fetch, range(8)))


async def library_in_threads(url: str) -> None:
    """No function of the program's own runs in the threads: what waits for them is known all the same."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    with client(url) as http:
        calls = [asyncio.to_thread(http.get, "/v1/models", headers=work(100)) for _ in range(8)]
        await asyncio.gather(*calls)  # at library in threads


def threads_between_two_calls(url: str) -> None:
    with client(url) as http, ThreadPoolExecutor(2) as executor:

        def fetch(_: int) -> None:
            http.get("/v1/models", headers=work(100))  # at between two calls

        http.post("/v1/chat/completions", json=CHAT, headers=work(50))
        list(executor.map(fetch, range(8)))
        http.post("/v1/chat/completions", json=CHAT, headers=work(50))


async def small_pool(url: str) -> None:
    async with async_client(url, limits=httpx2.Limits(max_connections=2)) as http:

        async def fetch() -> None:
            await http.get("/v1/models", headers=work(120))  # at small pool

        await asyncio.gather(*(fetch() for _ in range(8)))


def small_pool_in_threads(url: str) -> None:
    with client(url, limits=httpx2.Limits(max_connections=2), timeout=30) as http, ThreadPoolExecutor(8) as executor:

        def fetch(_: int) -> None:
            http.get("/v1/models", headers=work(150))  # at small pool in threads

        list(executor.map(fetch, range(8)))


async def with_semaphore(url: str, places: int) -> None:
    semaphore = asyncio.Semaphore(places)
    async with async_client(url) as http:

        async def fetch() -> None:
            async with semaphore:
                await http.get("/v1/models", headers=work(200))  # at semaphore

        await asyncio.gather(*(fetch() for _ in range(6)))


async def semaphore_of_two(url: str) -> None:
    await with_semaphore(url, 2)


async def semaphore_in_each_round(url: str) -> None:
    semaphore = asyncio.Semaphore(2)
    async with async_client(url) as http:

        async def fetch() -> None:
            async with semaphore:
                await http.get("/v1/models", headers=work(200))  # at round

        for _ in range(3):
            await asyncio.gather(*(fetch() for _ in range(3)))


async def hidden_semaphore_of_one(url: str) -> None:
    await with_semaphore(url, 1)


async def capacity_limiter(url: str) -> None:
    limiter = anyio.CapacityLimiter(2)
    async with async_client(url) as http, anyio.create_task_group() as group:

        async def fetch() -> None:
            async with limiter:
                await http.get("/v1/models", headers=work(20))  # at limiter

        for _ in range(8):
            group.start_soon(fetch)


async def acquire_in_a_loop(url: str) -> None:
    """Calls so short that a busy machine takes longer to let the next one in."""
    limit = asyncio.Semaphore(2)
    async with async_client(url) as http:

        async def worker() -> None:
            for _ in range(3):
                await limit.acquire()
                try:
                    await http.get("/v1/models", headers=work(20))  # at acquire
                finally:
                    limit.release()

        async with asyncio.TaskGroup() as group:
            for _ in range(6):
                group.create_task(worker())


def lock_in_threads(url: str) -> None:
    lock = threading.Lock()
    with client(url) as http, ThreadPoolExecutor(6) as executor:

        def fetch(_: int) -> None:
            with lock:
                http.get("/v1/models", headers=work(200))  # at lock in threads

        list(executor.map(fetch, range(6)))


# In step


async def supersteps(url: str) -> None:
    async with async_client(url) as http:

        async def node(ms: float) -> None:
            await http.get("/v1/models", headers=work(ms))  # at superstep

        for durations in ((80, 300), (300, 80), (80, 300)):
            await asyncio.gather(*(node(ms) for ms in durations))


# Retries


async def nested_retries(url: str) -> None:
    async with sdk(url, max_retries=2) as model:
        faults = work(60, status=503, retry_after_ms=20)
        for _ in range(3):
            with suppress(openai.InternalServerError):
                await model.chat.completions.create(**CHAT, extra_headers=faults)  # at nested retries


async def patient_retry(url: str) -> None:
    async with sdk(url, max_retries=2) as model:
        faults = work(60, status=503, retry_after_ms=400, fail_first=2, key=f"patient {time.monotonic_ns()}")
        await model.chat.completions.create(**CHAT, extra_headers=faults)  # at patient retry


async def failing_items(url: str) -> None:
    """Each request is another one: failed items, not one request that is retried twice over."""
    async with sdk(url, max_retries=1) as model:

        async def ask(size: int) -> None:
            message: Any = {"role": "user", "content": "x" * size}
            with suppress(openai.InternalServerError):
                faults = work(200, status=503, retry_after_ms=1)
                await model.chat.completions.create(model="mock", messages=[message], extra_headers=faults)

        await asyncio.gather(*(ask(size) for size in range(1, 5)))


# Exchanges


async def buffering_gateway(url: str) -> None:
    limits = mock_server.Limits(capacity=10, service_s=2 * PAUSE_S, buffer=True)
    with mock_server.serve(limits=limits) as buffering:
        async with async_client(buffering) as http:

            async def read() -> None:
                options: Any = {"json": CHAT | {"stream": True}, "headers": {"x-mock-chunks": "24"}}
                async with http.stream("POST", "/v1/chat/completions", **options) as answer:  # at buffered
                    async for _ in answer.aiter_bytes():
                        pass

            await asyncio.gather(read(), read())


async def dropped_responses(url: str) -> None:
    kept: list[Any] = []
    http = async_client(url)
    for _ in range(3):
        faults = work(20, hang="mid-body")
        request = http.build_request("GET", "/v1/models", headers=faults)
        kept.append(await http.send(request, stream=True))  # at dropped
    kept.clear()
    gc.collect()
    await asyncio.gather(*(http.get("/v1/models", headers=work(100)) for _ in range(2)))
    await http.aclose()


async def read_but_not_closed(url: str) -> None:
    kept: list[Any] = []
    async with async_client(url, limits=httpx2.Limits(max_connections=2), timeout=httpx2.Timeout(30, pool=0.2)) as http:

        async def start() -> None:
            faults = work(50, hang="after-body")
            request = http.build_request("POST", "/v1/chat/completions", json=CHAT | {"stream": True}, headers=faults)
            answer = await http.send(request, stream=True)  # at not closed
            pieces = answer.aiter_text()
            kept.extend((answer, pieces))
            async for text in pieces:
                if "[DONE]" in text:
                    return

        await asyncio.gather(start(), start())
        with suppress(httpx2.PoolTimeout):
            await http.get("/v1/models")
        for opened in kept:
            await opened.aclose()


async def client_for_each_call(url: str) -> None:
    async def worker() -> None:
        for _ in range(4):
            async with async_client(url) as http:
                await http.get("/v1/models", headers=work(50))  # at client for each call

    await asyncio.gather(*(worker() for _ in range(3)))


async def slow_names(url: str) -> None:
    look_up = socket.getaddrinfo

    def slow(*args: Any, **options: Any) -> Any:
        time.sleep(PAUSE_S)
        return look_up(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", slow)
        async with async_client(url.replace("127.0.0.1", "localhost")) as http:

            async def fetch() -> None:
                await http.get("/v1/models", headers=work(50))  # at slow names

            await asyncio.gather(fetch(), fetch())


async def few_then_many(url: str, many: Callable[[httpx2.AsyncClient], Any], n: int) -> None:
    async with async_client(url) as http:

        async def worker() -> None:
            for _ in range(6):
                await http.post("/v1/chat/completions", json=CHAT)

        await asyncio.gather(worker(), worker())
        await asyncio.gather(*(many(http) for _ in range(n)))


async def queueing_server(url: str) -> None:
    async def ask(http: httpx2.AsyncClient) -> None:
        await http.post("/v1/chat/completions", json=CHAT)  # at queueing server

    with mock_server.serve(limits=mock_server.Limits(capacity=2, service_s=0.1)) as small:
        await few_then_many(small, ask, 20)


async def refusing_server(url: str) -> None:
    async def ask(http: httpx2.AsyncClient) -> None:
        await http.post("/v1/chat/completions", json=CHAT)  # at refusing server

    with mock_server.serve(limits=mock_server.Limits(capacity=4, service_s=0.05, queue=0)) as small:
        await few_then_many(small, ask, 12)


# Nothing is the matter


def one_call(url: str) -> None:
    with client(url) as http:
        http.get("/v1/models", headers=work(100))


async def gathered(url: str) -> None:
    async with async_client(url) as http:
        await asyncio.gather(*(http.get("/v1/models", headers=work(200)) for _ in range(8)))


async def overlapped_agent(url: str) -> None:
    async with async_client(url) as http:
        await http.post("/v1/chat/completions", json=CHAT, headers=work(100))
        await asyncio.gather(*(http.get("/v1/models", headers=work(150)) for _ in range(2)))
        await http.post("/v1/chat/completions", json=CHAT, headers=work(100))


def overlapped_agent_in_threads(url: str) -> None:
    with client(url) as http, ThreadPoolExecutor() as executor:
        http.post("/v1/chat/completions", json=CHAT, headers=work(100))
        tools = [executor.submit(http.get, "/v1/models", headers=work(150)) for _ in range(2)]
        for tool in tools:
            tool.result()
        http.post("/v1/chat/completions", json=CHAT, headers=work(100))


async def sharing_workers(url: str) -> None:
    items = list(range(12))
    async with async_client(url) as http:

        async def worker() -> None:
            while items:
                items.pop()
                await http.get("/v1/models", headers=work(60))

        await asyncio.gather(*(worker() for _ in range(3)))


async def streams(url: str) -> None:
    await read_streams(url)


async def uneven_agents(url: str) -> None:
    """Branches of different lengths that do not wait for each other."""
    async with async_client(url) as http:

        async def branch(*durations: float) -> None:
            for ms in durations:
                await http.post("/v1/chat/completions", json=CHAT, headers=work(ms))

        await asyncio.gather(branch(80, 300, 80), branch(300, 80, 80), branch(80, 80, 300))


# What is to be found


@dataclass(frozen=True)
class Case:
    """A program, the verdict on its run, and what holds it back."""

    program: Callable[[str], Any]
    verdict: Cause | None
    """None where it depends on how soon threads start."""
    cause: Cause | None = None
    sites: tuple[str, ...] = ()
    numbers: dict[str, float] = field(default_factory=dict)


SERIAL, PARTLY, OVERLAPPED = Cause.SERIAL, Cause.PARTLY_OVERLAPPED, Cause.OVERLAPPED
CASES = (
    Case(plain_loop, SERIAL, SERIAL, ("plain loop",), {"calls": 5}),
    Case(awaited_loop, SERIAL, SERIAL, ("awaited loop",), {"calls": 5}),
    Case(sync_client_of_one_task, SERIAL, SERIAL, ("sync client of one task",), {"calls": 4}),
    Case(serial_agent, SERIAL, SERIAL, ("tool_search", "tool_fetch"), {"calls": 2}),
    Case(needed_in_turn, SERIAL, SERIAL, ("plan, needed", "write, needed"), {"gain_ms": 0}),
    Case(one_helper, SERIAL, SERIAL, ("llm search", "llm fetch"), {"calls": 2}),
    Case(thinks_between, SERIAL, Cause.MOSTLY_IDLE, ("thinks between",), {"calls": 4}),
    Case(sync_tools, SERIAL, Cause.SYNC_IN_EVENT_LOOP, ("sync tool",), {"calls": 4, "siblings": 4}),
    Case(one_sync_call, OVERLAPPED, Cause.SYNC_IN_EVENT_LOOP, ("sync flow",), {"calls": 1}),
    Case(lock_in_limiter, OVERLAPPED, Cause.LOOP_STALLS, ("stalled stream",), {"stalls": 1, "streams": 3}),
    Case(sleeps_in_loop, OVERLAPPED, Cause.LOOP_STALLS, ("stalled stream",), {"stalls": 1, "streams": 3}),
    Case(small_executor, PARTLY, Cause.CAPPED_EXECUTOR, ("small executor",), {"cap": 3, "calls": 12}),
    Case(default_executor, PARTLY, Cause.CAPPED_EXECUTOR, ("default executor",), {"cap": 4, "calls": 16}),
    Case(mapped_over_threads, PARTLY, Cause.CAPPED_EXECUTOR, ("mapped",), {"cap": 2, "calls": 8}),
    Case(library_in_threads, PARTLY, Cause.CAPPED_EXECUTOR, ("library in threads",), {"cap": 2, "calls": 8}),
    Case(threads_between_two_calls, OVERLAPPED, Cause.CAPPED_EXECUTOR, ("between two calls",), {"cap": 2, "calls": 8}),
    Case(small_pool, OVERLAPPED, Cause.CAPPED_POOL, ("small pool",), {"cap": 2, "asked_for": 8}),
    Case(small_pool_in_threads, None, Cause.CAPPED_POOL, ("small pool in threads",), {"cap": 2}),
    Case(semaphore_of_two, PARTLY, Cause.CAPPED_SEMAPHORE, ("semaphore",), {"cap": 2, "tasks": 6}),
    Case(semaphore_in_each_round, PARTLY, Cause.CAPPED_SEMAPHORE, ("round",), {"cap": 2, "tasks": 9}),
    Case(hidden_semaphore_of_one, SERIAL, Cause.CAPPED_SEMAPHORE, ("semaphore",), {"cap": 1, "tasks": 6}),
    Case(capacity_limiter, None, Cause.CAPPED_SEMAPHORE, ("limiter",), {"cap": 2, "tasks": 8}),
    Case(acquire_in_a_loop, None, Cause.CAPPED_SEMAPHORE, ("acquire",), {"cap": 2, "tasks": 6, "calls": 18}),
    Case(lock_in_threads, SERIAL, Cause.CAPPED_SEMAPHORE, ("lock in threads",), {"cap": 1, "tasks": 6}),
    Case(supersteps, PARTLY, Cause.BARRIER, ("superstep",), {"calls": 6}),
    Case(nested_retries, SERIAL, Cause.STACKED_RETRIES, ("nested retries",), {"requests": 9, "tries": 3}),
    Case(patient_retry, Cause.ONE_CALL, Cause.RETRY_BACKOFF, ("patient retry",), {"retries": 2}),
    Case(buffering_gateway, OVERLAPPED, Cause.BUFFERED_STREAM, ("buffered",), {"streams": 2}),
    Case(dropped_responses, PARTLY, Cause.UNCLOSED_RESPONSES, ("dropped",), {"unclosed": 3}),
    Case(read_but_not_closed, OVERLAPPED, Cause.UNCLOSED_RESPONSES, ("not closed",), {"pool_timeouts": 1}),
    Case(client_for_each_call, OVERLAPPED, Cause.NOT_REUSED, ("client for each call",), {"opened": 12, "calls": 12}),
    Case(slow_names, OVERLAPPED, Cause.LATE_CONNECT, ("slow names",), {"calls": 2}),
    Case(queueing_server, OVERLAPPED, Cause.LATE_SERVER, ("queueing server",), {"calls": 32}),
    Case(refusing_server, OVERLAPPED, Cause.ERRORS_RISE, ("refusing server",), {"calls": 24}),
    Case(one_call, Cause.ONE_CALL),
    Case(gathered, OVERLAPPED),
    Case(overlapped_agent, OVERLAPPED),
    Case(overlapped_agent_in_threads, OVERLAPPED),
    Case(sharing_workers, OVERLAPPED),
    Case(streams, OVERLAPPED),
    Case(uneven_agents, OVERLAPPED),
    Case(failing_items, OVERLAPPED),
)


def run(program: Callable[[str], Any], url: str) -> Diagnosis:
    """Run a program to its end and diagnose it."""
    with occupancy.record() as log:
        done = program(url)
        if asyncio.iscoroutine(done):
            asyncio.run(done)
    gc.collect()
    return diagnose(log.columns())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.program.__name__)
def test_a_program_is_held_back_by_its_cause_and_no_other(case: Case, gateway: mock_server.GatewayUrl) -> None:
    found = run(case.program, gateway)
    told = [(str(finding.cause), finding.sentence) for finding in found.findings]
    assert found.causes == ({case.cause} - {None}), told
    [verdict] = found.verdicts
    assert case.verdict in (verdict.cause, None), verdict
    if case.cause is not None:
        [finding] = found.findings
        assert {name: finding.numbers[name] for name in case.numbers} == case.numbers, finding
        assert [site.line for site in finding.call_sites] == [line_at(name) for name in case.sites]
        assert {site.file for site in finding.call_sites} == {__file__}
        assert finding.action


def serial_chain(http: httpx2.Client) -> None:
    http.post("/v1/chat/completions", json=CHAT, headers=work(60))
    http.get("/v1/models", headers=work(100))  # at user's search
    http.get("/v1/models", headers=work(100))  # at user's fetch
    http.post("/v1/chat/completions", json=CHAT, headers=work(60))


async def async_chain(http: httpx2.AsyncClient) -> None:
    await http.post("/v1/chat/completions", json=CHAT, headers=work(60))
    await http.get("/v1/models", headers=work(100))  # at async user's search
    await http.get("/v1/models", headers=work(100))  # at async user's fetch
    await http.post("/v1/chat/completions", json=CHAT, headers=work(60))


def users_in_threads(url: str) -> None:
    """A thread for each user, as a server makes them."""
    with client(url) as http:
        threads = [threading.Thread(target=serial_chain, args=(http,)) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


async def users_in_tasks(url: str) -> None:
    """A task for each user that nobody awaits, as a server makes them."""
    async with async_client(url) as http:
        tasks = [asyncio.create_task(async_chain(http)) for _ in range(5)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0.02)


async def marked_runs(url: str) -> None:
    """Five agents that one task gathers, each marked."""
    async with async_client(url) as http:

        async def agent() -> None:
            with occupancy.agent_run("user"):
                await async_chain(http)

        await asyncio.gather(*(agent() for _ in range(5)))


@pytest.mark.parametrize(
    ("program", "whose"),
    [(users_in_threads, "user's"), (users_in_tasks, "async user's"), (marked_runs, "async user's")],
)
def test_five_serial_users_are_serial_five_times(
    program: Callable[[str], Any], whose: str, gateway: mock_server.GatewayUrl
) -> None:
    found = run(program, gateway)
    assert [verdict.cause for verdict in found.verdicts] == [SERIAL] * 5
    assert found.process is not None
    assert (found.process.cause, found.process.peak > 1) == (SERIAL, True)
    assert found.causes == {SERIAL}, found.findings
    [finding] = found.findings
    assert len(set(finding.runs)) == 5, found.findings
    assert [site.line for site in finding.call_sites] == [line_at(f"{whose} search"), line_at(f"{whose} fetch")]


def test_gathered_agents_without_a_mark_overlap_and_are_serial_in_themselves(gateway: mock_server.GatewayUrl) -> None:
    async def agents(url: str) -> None:
        async with async_client(url) as http:
            await asyncio.gather(*(async_chain(http) for _ in range(3)))

    found = run(agents, gateway)
    [verdict] = found.verdicts
    assert verdict.cause is PARTLY
    assert "3 serial branches at once" in verdict.sentence


def test_what_overlap_would_gain_is_gained(gateway: mock_server.GatewayUrl) -> None:
    logs = []
    for agent in (serial_agent, overlapped_agent_in_threads):
        with occupancy.record() as log:
            agent(gateway)
        logs.append(log.columns())
    [expected] = find_overlap(logs[0]).runs
    changed = compare(*logs)
    assert expected.gain_ms > 0
    assert changed.wall_ms.after < changed.wall_ms.before
    assert not compare(logs[1], logs[0]).keep
