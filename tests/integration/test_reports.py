"""What people have reported of tracers and of agents: each report is rebuilt by a test, and this one says by which.

The tests that stand nowhere else are below the table.
"""

import asyncio
import csv
import gc
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from loopback import CHAT, async_client, client, work
from opentelemetry.sdk.trace import TracerProvider

import mock_server
import occupancy
from occupancy.analysis.findings import Cause
from occupancy.flight import Flight
from occupancy.ledger import ledger
from occupancy.reading import read
from occupancy.views.diagnosis_text import verdict_line

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("fresh")]

TESTS = Path(__file__).parents[1]
SHOWN_BY = {
    "a synchronous tool blocks the loop, and parallel tools run one by one": "test_causes.sync_tools",
    "one synchronous call in an asynchronous flow": "test_causes.one_sync_call",
    "200 calls go to an executor and run in waves": "test_reports.two_hundred_pieces_of_work",
    "not truly parallel: branches of uneven length": "test_reports.test_occupancy_of_uneven_branches_is_told_over_time",
    "uneven branches wait for each other at each step": "test_causes.supersteps",
    "uneven branches that wait for nobody": "test_causes.uneven_agents",
    "a plain loop": "test_causes.plain_loop",
    "for call in calls: await call": "test_causes.awaited_loop",
    "a threading.Lock in an asynchronous limiter stalls all streams": "test_causes.lock_in_limiter",
    "a hidden global semaphore of 1": "test_causes.hidden_semaphore_of_one",
    "streams that are read and never closed keep their connections": "test_causes.read_but_not_closed",
    "the span of a stream ends when its body begins": "test_spans.test_each_attempt_has_one_span_that_tells_the_same",
    "a span leaks with each stream": "test_reports.test_streams_that_are_dropped_leave_nothing_open",
    "a generator that is closed in another task": "test_endings.generator_closed_in_another_task",
    "a context is detached elsewhere": "test_providers.test_no_context_is_detached_elsewhere",
    "requests through mounts are not seen": "test_capture.test_proxy_by_mounts",
    "redirects": "test_spans.test_redirect_is_two_spans_of_one_logical_call",
    "the process hangs at exit while the collector is down":
        "test_providers.test_collector_that_is_down_does_not_keep_the_process",
    "green threads lose the context": "test_reports.test_green_threads_are_counted",
    "threads lose the context": "test_causes.mapped_over_threads",
    "tools are traces of their own": "test_reports.test_steps_that_are_traces_of_their_own_are_on_one_timeline",
    "204": "test_endings.no_content",
    "304": "test_endings.not_modified",
    "HEAD": "test_endings.head",
    "the clock stepped back": "test_reports.test_rows_that_end_before_they_start_are_told_and_the_others_judged",
    "the clock stepped back, in spans": "test_trace_formats.test_an_end_before_the_start_is_told",
    "cancelled requests drive a gauge up": "test_reports.test_cancelled_calls_leave_nothing_in_flight",
    "one client is used across event loops": "test_capture.test_one_client_across_loops",
    "memory grows with open spans": "test_reports.test_streams_that_are_dropped_leave_nothing_open",
    "memory grows with calls": "test_log.test_a_call_takes_at_most_400_bytes",
    "a stream wrapper breaks raw responses": "test_sdks.test_openai_raw_and_streaming_responses",
    "compressed event streams are garbled": "test_endings.compressed_events",
    "retries within retries": "test_causes.nested_retries",
    "a pool caps": "test_causes.small_pool",
    "an executor caps": "test_causes.default_executor",
    "a semaphore caps": "test_causes.semaphore_of_two",
    "responses that are never closed": "test_causes.dropped_responses",
}  # fmt: skip


@pytest.mark.parametrize("report", SHOWN_BY)
def test_each_report_is_rebuilt(report: str) -> None:
    module, _, name = SHOWN_BY[report].partition(".")
    text = "\n".join(path.read_text(encoding="utf-8") for path in TESTS.glob(f"*/{module}.py"))
    assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE)
    # A program that is no test by itself is run by one that goes through a table of them.
    assert name.startswith("test_") or len(re.findall(rf"\b{name}\b", text)) > 1 or "@ending(" in text


# An executor's waves


async def two_hundred_pieces_of_work(url: str) -> None:
    loop = asyncio.get_running_loop()
    with client(url) as http, ThreadPoolExecutor(8) as executor:

        def fetch() -> None:
            http.get("/v1/models", headers=work(20))

        await asyncio.gather(*(loop.run_in_executor(executor, fetch) for _ in range(200)))


def test_two_hundred_pieces_of_work_stop_at_the_executor_s_size(gateway: mock_server.GatewayUrl) -> None:
    with occupancy.record() as log:
        asyncio.run(two_hundred_pieces_of_work(gateway))
    [finding] = log.diagnose().findings
    assert (finding.cause, finding.numbers["cap"], finding.numbers["calls"]) == (Cause.CAPPED_EXECUTOR, 8, 200)
    assert log.peak == gateway.stats()["peak"] == 8


# More than yes or no


def test_occupancy_of_uneven_branches_is_told_over_time(gateway: mock_server.GatewayUrl) -> None:
    async def branches() -> None:
        async with async_client(gateway) as http:
            await asyncio.gather(*(http.get("/v1/models", headers=work(ms)) for ms in (100, 400, 800)))

    with occupancy.record() as log:
        asyncio.run(branches())
    assert log.steps().in_flight.tolist() == [1, 2, 3, 2, 1, 0]
    summary = log.summary()
    assert len(summary.level_ns) == 4
    assert sum(summary.level_ns) == summary.wall_ns
    assert verdict_line(log.diagnose()).startswith("overlapped: up to 3 in flight, mean ")


# Whose context is lost

GREEN_THREADS = """
from gevent import monkey
monkey.patch_all()
import os, gevent, httpx2, occupancy

client = httpx2.Client(base_url=os.environ["MOCK_URL"])

def fetch():
    return client.get("/v1/models", headers={"x-mock-delay-ms": "500"}).status_code

with occupancy.record() as log:
    jobs = [gevent.spawn(fetch) for _ in range(5)]
    gevent.joinall(jobs)
print([job.value for job in jobs], log.peak, log.in_flight, len(log.calls))
"""


def test_green_threads_are_counted(gateway: mock_server.GatewayUrl, tmp_path: Path) -> None:
    pytest.importorskip("gevent")
    file = tmp_path / "green.py"
    file.write_text(GREEN_THREADS)
    env = {**os.environ, "PYTHONPATH": str(TESTS.parent), "MOCK_URL": gateway}
    command = [sys.executable, str(file)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=50, check=True)
    assert (done.stdout, done.stderr) == ("[200, 200, 200, 200, 200] 5 0 5\n", "")
    assert gateway.stats()["peak"] == 5


# Traces


def agent_of_traces(url: str) -> None:
    """Each step under a span without a parent, as frameworks make them that lose the context."""
    tracer = TracerProvider().get_tracer("agent")
    with client(url) as http:
        for name, path in (("plan", "/v1/chat/completions"), ("tool_search", "/v1/models"),
                           ("tool_fetch", "/v1/models"), ("recap", "/v1/chat/completions")):  # fmt: skip
            with tracer.start_as_current_span(name):
                http.request("POST" if "chat" in path else "GET", path, json=CHAT, headers=work(60))


def test_steps_that_are_traces_of_their_own_are_on_one_timeline(gateway: mock_server.GatewayUrl) -> None:
    with occupancy.record() as log:
        agent_of_traces(gateway)
    calls = log.calls
    assert len({call.trace_id for call in calls} - {None}) == 4
    assert [call.label for call in calls] == ["plan", "tool_search", "tool_fetch", "recap"]
    assert log.steps().in_flight.tolist() == [1, 0] * 4
    found = log.diagnose()
    assert verdict_line(found) == "never more than 1 in flight over 4 calls in 4 runs: serial, if one agent's"
    assert found.findings == ()
    with occupancy.record() as log, occupancy.agent_run("agent"):
        agent_of_traces(gateway)
    [finding] = log.diagnose().findings
    assert finding.cause is Cause.SERIAL
    assert finding.sentence.startswith("tool_search and tool_fetch ran one after another")


# Clocks


def test_rows_that_end_before_they_start_are_told_and_the_others_judged(
    gateway: mock_server.GatewayUrl, tmp_path: Path
) -> None:
    with occupancy.record() as log, client(gateway) as http:
        for _ in range(3):
            http.get("/v1/models", headers=work(20))
    path = tmp_path / "calls.csv"
    log.dump_csv(path)
    with path.open(newline="") as file:
        metadata, rows = next(file), list(csv.DictReader(file))
    rows[1]["end_ns"] = str(int(rows[1]["start_ns"]) - 1_000_000)
    with path.open("w", newline="") as file:
        file.write(metadata)
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    back = read(path)
    assert [(verdict.cause, verdict.n) for verdict in back.diagnose().verdicts] == [(Cause.SERIAL, 2)]
    assert back.bad_rows == [f"{path}:4: ends 1000000 ns before it starts"]


# What is left behind


def test_cancelled_calls_leave_nothing_in_flight(gateway: mock_server.GatewayUrl) -> None:
    async def give_up() -> int:
        async with async_client(gateway) as http:
            hang = {"x-mock-hang": "before-headers"}
            tasks = [asyncio.create_task(http.get("/v1/models", headers=hang)) for _ in range(100)]
            await asyncio.to_thread(gateway.wait_in_flight, 100)
            in_flight = log.in_flight
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            return in_flight

    with occupancy.record() as log:
        assert asyncio.run(give_up()) == 100
    assert (log.in_flight, log.peak, log.open_calls) == (0, 100, [])
    assert {str(call.outcome) for call in log.calls} == {"cancelled"}


def test_streams_that_are_dropped_leave_nothing_open() -> None:
    import httpx

    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=iter([b"a", b"b"])))
    with occupancy.record(capacity=50) as log, httpx.Client(transport=transport) as http:
        for _ in range(200):
            http.send(http.build_request("GET", "http://mock"), stream=True)
        gc.collect()  # in httpx a response is a cycle
        assert (log.in_flight, log.open_calls) == (0, [])
        assert (log.finished, len(log.calls)) == (200, 50)
        assert len(ledger._flights) == 0
        assert not [one for one in gc.get_objects() if isinstance(one, Flight)]
