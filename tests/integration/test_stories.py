"""What a user does, from end to end: small programs of their own, with nothing but the import, or less."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mock_server
from occupancy.reading import read

ROOT = Path(__file__).parents[2]
SECRETS = ("sk-secret-key", "secret prompt", "secret-query", "secret-header")


def run(program: str, tmp_path: Path, url: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the user's, as a file."""
    file = tmp_path / "agent.py"
    file.write_text(program)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MOCK_URL": url, **environ}
    return subprocess.run(
        [sys.executable, str(file)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=50, check=True
    )


SPANS_TO_A_FILE = """
import json, os, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
provider = TracerProvider()
file = open("spans.txt", "w")
provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(out=file)))
trace.set_tracer_provider(provider)
"""

OPENAI = (
    "import occupancy.auto\n"
    + SPANS_TO_A_FILE
    + """
import asyncio, openai

async def ask(client, number):
    stream = await client.chat.completions.create(
        model="model-%d" % number, stream=True, messages=[{"role": "user", "content": "secret prompt"}],
        extra_headers={"x-tenant": "secret-header", "x-mock-body-delay-ms": "30", "x-mock-chunk-gap-ms": "10"},
        extra_query={"token": "secret-query"},
    )
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

async def main():
    async with openai.AsyncOpenAI(api_key="sk-secret-key", base_url=os.environ["MOCK_URL"] + "/v1") as client:
        print(await asyncio.gather(*[ask(client, number) for number in range(3)]))

asyncio.run(main())
occupancy.auto.log.dump_csv("calls.csv")
"""
)

ANTHROPIC = (
    "import occupancy.auto\n"
    + SPANS_TO_A_FILE
    + """
import anthropic, threading
barrier = threading.Barrier(3)

def ask(number):
    barrier.wait()
    with client.messages.stream(
        model="model-%d" % number, max_tokens=9, messages=[{"role": "user", "content": "secret prompt"}],
        extra_headers={"x-tenant": "secret-header", "x-mock-delay-ms": "150", "x-mock-body-delay-ms": "30",
                       "x-mock-chunk-gap-ms": "10"},
        extra_query={"token": "secret-query"},
    ) as stream:
        print(stream.get_final_text())

client = anthropic.Anthropic(api_key="sk-secret-key", base_url=os.environ["MOCK_URL"])
threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
occupancy.auto.log.dump_csv("calls.csv")
"""
)


@pytest.mark.parametrize("program", [OPENAI, ANTHROPIC], ids=["openai", "anthropic"])
def test_an_sdk_agent_needs_nothing_but_the_import(program: str, tmp_path: Path) -> None:
    with mock_server.serve() as url:
        done = run(program, tmp_path, url, OCCUPANCY_JOURNAL="calls.jsonl")
        assert url.stats()["peak"] == 3
    assert "3 calls" in done.stderr
    assert "peak 3 in flight" in done.stderr
    log = read(tmp_path / "calls.jsonl")
    assert (log.finished, log.peak, log.in_flight) == (3, 3, 0)
    assert {call.model for call in log.calls} == {"model-0", "model-1", "model-2"}
    for call in log.calls:
        assert call.first_byte_ns < call.last_byte_ns == call.end_ns
        assert call.first_event_ns is not None
        assert call.call_site.file == str(tmp_path / "agent.py")
    spans = (tmp_path / "spans.txt").read_text()
    assert spans.count('"first_byte"') == spans.count('"last_byte"') == 3
    for name in ("calls.csv", "calls.jsonl", "spans.txt"):
        text = (tmp_path / name).read_text()
        for secret in SECRETS:
            # OpenTelemetry's own span keeps the URL with its query, with us and without; nothing of ours does.
            if not (name == "spans.txt" and secret == "secret-query"):
                assert secret not in text, (name, secret)


HARNESS = """
import concurrent.futures, json, os, sys, urllib.request
from occupancy import OccupancyLog

def step(log, name):
    with log.track(name, client="urllib") as call:
        with urllib.request.urlopen(os.environ["MOCK_URL"] + "/generate/" + name) as response:
            call.headers(response.status)
            while piece := response.read(65536):
                call.chunk(len(piece))

def show(log):
    print(json.dumps({"peak": log.peak, "levels": log.steps().in_flight.tolist(), "line": log.sparkline(60),
                      "labels": [call.label for call in log.calls]}))

serial = OccupancyLog()
for name in ("plan", "tool_search", "tool_fetch", "recap"):
    step(serial, name)
show(serial)

overlapped = OccupancyLog()
step(overlapped, "plan")
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    list(pool.map(lambda name: step(overlapped, name), ("tool_search", "tool_fetch")))
step(overlapped, "recap")
show(overlapped)
"""


def test_a_harness_on_urllib_is_tracked_by_hand(tmp_path: Path) -> None:
    with mock_server.serve() as url:
        serial, overlapped = map(json.loads, run(HARNESS, tmp_path, url).stdout.splitlines())
    assert serial["peak"] == 1
    assert serial["levels"] == [1, 0] * 4  # four hills
    assert serial["labels"] == ["plan", "tool_search", "tool_fetch", "recap"]
    assert overlapped["peak"] == 2
    assert max(overlapped["levels"]) == 2
    assert (overlapped["labels"][0], overlapped["labels"][3]) == ("plan", "recap")
    assert serial["line"].endswith("peak 1")
    assert overlapped["line"].endswith("peak 2")


def test_uploads_in_the_background_do_not_make_a_serial_agent_look_overlapped(tmp_path: Path) -> None:
    program = """
import occupancy.auto
import os, threading, httpx

base = os.environ["MOCK_URL"]
reading, finished = threading.Event(), threading.Event()

def upload():
    with httpx.stream("POST", base + "/v1/traces/ingest") as response:  # the server knows no such path: a 404 to read
        reading.set()
        finished.wait(20)
        response.read()

uploader = threading.Thread(target=upload)
uploader.start()
reading.wait(20)
for name in ("plan", "tool_search"):
    httpx.get(base + "/generate/" + name)
finished.set()
uploader.join()
log = occupancy.auto.log
print(log.peak, len(log.calls), log.summary().n, log.summary().n_other, log.summary().wire_peak)
"""
    with mock_server.serve() as url:
        done = run(program, tmp_path, url)
    assert done.stdout.split() == ["1", "3", "2", "1", "1"]
    assert "peak 1 in flight" in done.stderr
    assert "serial" in done.stderr


def test_calls_through_one_helper_are_named_by_the_lines_that_called_it(tmp_path: Path) -> None:
    program = """
import occupancy.auto
import os, httpx2

client = httpx2.Client(base_url=os.environ["MOCK_URL"])

def llm(step):
    return client.post("/generate/" + step).json()

def agent():
    llm("plan")  # line 11
    llm("recap")  # line 12

agent()
"""
    with mock_server.serve() as url:
        done = run(program, tmp_path, url)
    assert "agent.py:11" in done.stderr
    assert "agent.py:12" in done.stderr
    assert "agent.py:8" not in done.stderr


def test_two_processes_write_one_journal(tmp_path: Path) -> None:
    program = """
import occupancy.auto
import os, subprocess, sys, httpx

child = len(sys.argv) > 1
url = os.environ["MOCK_URL"] + "/v1/chat/completions"
if not child:
    # While the parent's call is open the child makes one, and ends.
    with httpx.stream("POST", url, json={"model": "parent", "stream": True, "messages": []},
                      headers={"x-mock-hang": "mid-body"}) as response:
        pieces = response.iter_raw()
        next(pieces)
        subprocess.run([sys.executable, __file__, "child"], check=True)
else:
    httpx.post(url, json={"model": "child", "messages": []})
"""
    with mock_server.serve() as url:
        run(program, tmp_path, url, OCCUPANCY_JOURNAL="calls.jsonl")
    log = read(tmp_path / "calls.jsonl")
    assert (log.peak, log.finished, log.bad_rows) == (2, 2, [])
    assert [call.model for call in log.calls] == ["child", "parent"]
    assert len({call.pid for call in log.calls}) == 2
    assert [call.in_flight_start for call in log.calls] == [2, 1]
