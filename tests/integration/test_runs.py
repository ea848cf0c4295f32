"""Programs of several threads, tasks and processes, run for real: which calls are one run, and what is said of each.

A line that a finding must name ends in `# at NAME`.
"""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from loopback import CHAT, async_client, client, work

import mock_server
import occupancy
from occupancy.analysis.findings import Cause, Diagnosis
from occupancy.reading import read
from occupancy.views.diagnosis_text import verdict_line

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("fresh")]

ROOT = Path(__file__).parents[2]
LINES = Path(__file__).read_text(encoding="utf-8").splitlines()
SERIAL, OVERLAPPED, POLLER = Cause.SERIAL, Cause.OVERLAPPED, Cause.POLLER


def line_at(name: str) -> int:
    [line] = [number for number, text in enumerate(LINES, start=1) if text.endswith(f"# at {name}")]
    return line


def run(program: Callable[[str], Any], url: str) -> Diagnosis:
    with occupancy.record() as log:
        done = program(url)
        if asyncio.iscoroutine(done):
            asyncio.run(done)
    return log.diagnose()


def agent(http: Any) -> None:
    http.post("/v1/chat/completions", json=CHAT, headers=work(100))
    http.get("/v1/models", headers=work(150))  # at search
    http.get("/v1/models", headers=work(150))  # at fetch
    http.post("/v1/chat/completions", json=CHAT, headers=work(100))


async def async_agent(http: Any) -> None:
    await http.post("/v1/chat/completions", json=CHAT, headers=work(100))
    await http.get("/v1/models", headers=work(150))  # at async search
    await http.get("/v1/models", headers=work(150))  # at async fetch
    await http.post("/v1/chat/completions", json=CHAT, headers=work(100))


# Pollers


def beside_a_thread_that_polls(url: str) -> None:
    finished = threading.Event()
    with client(url) as http:

        def poll() -> None:
            while not finished.wait(0.04):
                http.get("/generate/tool_status", headers=work(5))

        poller = threading.Thread(target=poll)
        poller.start()
        agent(http)
        finished.set()
        poller.join()


async def beside_a_task_that_polls(url: str) -> None:
    async with async_client(url) as http:

        async def poll() -> None:
            while True:
                await asyncio.sleep(0.04)
                await http.get("/generate/tool_status", headers=work(5))

        poller = asyncio.create_task(poll())
        await async_agent(http)
        poller.cancel()
        with suppress(asyncio.CancelledError):
            await poller


@pytest.mark.parametrize(("program", "whose"), [(beside_a_thread_that_polls, ""), (beside_a_task_that_polls, "async ")])
def test_a_serial_agent_beside_a_poller_is_serial(
    program: Callable[[str], Any], whose: str, gateway: mock_server.GatewayUrl
) -> None:
    found = run(program, gateway)
    assert sorted(str(verdict.cause) for verdict in found.verdicts) == [str(POLLER), str(SERIAL)]
    assert "serial: 4 calls, one after another, beside a poller (" in verdict_line(found)
    [finding] = found.findings
    assert finding.cause is SERIAL
    assert [site.line for site in finding.call_sites] == [line_at(f"{whose}search"), line_at(f"{whose}fetch")]


# Executors


def agents_on_threads(url: str, n_threads: int) -> None:
    with client(url) as http, ThreadPoolExecutor(n_threads) as executor:

        def work_on(_: int) -> None:
            with occupancy.agent_run("user"):
                agent(http)

        list(executor.map(work_on, range(4)))


@pytest.mark.parametrize(("n_threads", "capped"), [(2, [2]), (4, [])])
def test_agents_that_are_an_executor_s_work(n_threads: int, capped: list[int], gateway: mock_server.GatewayUrl) -> None:
    found = run(lambda url: agents_on_threads(url, n_threads), gateway)
    assert [verdict.cause for verdict in found.verdicts] == [SERIAL] * 4
    assert [one.numbers["cap"] for one in found.findings if one.cause is Cause.CAPPED_EXECUTOR] == capped
    [serial] = [one for one in found.findings if one.cause is SERIAL]
    assert [site.line for site in serial.call_sites] == [line_at("search"), line_at("fetch")]
    assert len(serial.runs) == 4
    assert len(found.findings) == 1 + len(capped)


async def agent_on_threads(url: str) -> None:
    """A serial agent whose synchronous client is kept off the loop."""
    with client(url) as http:
        await asyncio.to_thread(http.post, "/v1/chat/completions", json=CHAT, headers=work(60))
        await asyncio.to_thread(http.get, "/v1/models", headers=work(60))
        await asyncio.to_thread(http.get, "/v1/models", headers=work(60))


def test_a_serial_agent_on_threads_is_told_no_other_cause(gateway: mock_server.GatewayUrl) -> None:
    """Which thread is free for the next piece of work is chance; and threads in turn may serve a user each."""
    found = run(agent_on_threads, gateway)
    assert verdict_line(found) in (
        "serial: 3 calls, one after another", "never more than 1 in flight over 3 calls: serial, if one agent's",
    )  # fmt: skip
    assert found.causes <= {SERIAL}


# Processes

POOL = """
import multiprocessing, os, sys
import occupancy.auto
import httpx2

client = httpx2.Client(base_url=os.environ["MOCK_URL"])

def fetch(gates, number):
    gates.wait()  # both workers have begun
    for _ in range(3):
        client.get("/generate/page", headers={"x-mock-delay-ms": "150"})

if __name__ == "__main__":
    kind = multiprocessing.get_context(sys.argv[1])
    gates = kind.Barrier(2)
    workers = [kind.Process(target=fetch, args=(gates, number)) for number in range(2)]
    for worker in workers: worker.start()
    for worker in workers: worker.join()
"""


@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_the_workers_of_a_process_pool_are_no_serial_program(
    start: str, tmp_path: Path, gateway: mock_server.GatewayUrl
) -> None:
    file = tmp_path / "pool.py"
    file.write_text(POOL)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MOCK_URL": gateway, "OCCUPANCY_JOURNAL": "calls.jsonl"}
    command = [sys.executable, str(file), start]
    subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, timeout=50, check=True)
    found = read(tmp_path / "calls.jsonl").diagnose()
    assert [verdict.cause for verdict in found.verdicts] == [SERIAL, SERIAL]
    assert found.process is not None
    assert (found.process.cause, found.process.peak) == (OVERLAPPED, 2)
    assert verdict_line(found) == "2 runs in 2 processes at once: 2 serial; up to 2 in flight together"
    assert found.findings == ()
