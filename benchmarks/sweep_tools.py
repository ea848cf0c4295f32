"""How well, and with how many requests, tools find the capacity of an endpoint.

    python benchmarks/sweep_tools.py found            our sweep, ten times for each gateway of known capacity
    python benchmarks/sweep_tools.py compare          our sweep beside guidellm and aiperf, where they are installed

Each gateway is a process of its own on this machine. `compare` takes the tools' programs from PATH, or from
GUIDELLM and AIPERF; both measure throughput at given concurrencies and leave it to the reader to pick one.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2

import occupancy
from occupancy.probe.api import sweep
from occupancy.probe.sweep_result import SweepResult
from occupancy.probe.target import Target

LEVELS = (1, 2, 4, 8, 16)
MOST_S = 300


@contextlib.contextmanager
def gateway_of(*options: str) -> Iterator[str]:
    command = [sys.executable, "-m", "mock_server", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield re.findall(r"http://\S+", process.stdout.readline())[0]
        finally:
            process.terminate()


def options_of(slots: int | None, service_s: float, jitter: float) -> list[str]:
    limited = [] if slots is None else ["--capacity", str(slots)]
    return [*limited, "--service", str(service_s), "--jitter", str(jitter)]


def is_found(result: SweepResult, slots: int | None) -> bool:
    fit = result.capacity.fit
    if slots is None or fit.capacity is None:
        return slots is None and fit.capacity is None
    return abs(fit.capacity - slots) <= (fit.error95 or 0)


def is_named(result: SweepResult, slots: int | None) -> bool:
    capacity = result.capacity.fit.capacity
    return capacity is None if slots is None else capacity is not None and round(capacity) == slots


def found(times: int, service_s: float) -> None:
    print(f"service {service_s} s")
    for jitter in (0.0, 0.25):
        for slots in (1, 2, 3, 6, None):
            results, good, named = [], 0, 0
            for _ in range(times):
                with gateway_of(*options_of(slots, service_s, jitter)) as url:
                    result = asyncio.run(sweep(Target(url=url, model="mock")))
                good += is_found(result, slots)
                named += is_named(result, slots)
                results.append(f"{result.capacity.fit} -> {result.recommended}")
            counts = f"{good} of {times} within the reported error, {named} rounded to it"
            print(f"capacity {slots or 'unlimited'}, jitter {jitter:.0%}: {counts}: {'; '.join(results)}", flush=True)


def requests_seen(url: str) -> int:
    counted: int = httpx2.get(f"{url}/stats").json()["total"]
    return counted


def run_ours(url: str) -> str:
    result = asyncio.run(sweep(Target(url=url, model="mock")))
    return f"capacity {result.capacity.fit}, use {result.recommended}"


def run_tool(command: list[str]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.txt"
        with log.open("w") as out:
            environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200", "HF_HUB_OFFLINE": "1"}
            ended = subprocess.run(
                command, stdout=out, stderr=out, cwd=folder, env=environment, timeout=MOST_S, check=False
            )
        if ended.returncode:
            return f"failed: {log.read_text(errors='replace').strip().splitlines()[-1][:160]}"
        return rates_of(Path(folder))


def rates_of(folder: Path) -> str:
    """Requests per s at each concurrency, as the tool's own JSON has them."""
    for path in sorted(folder.rglob("*.json")):
        read = json.loads(path.read_text())
        if "benchmarks" in read:  # guidellm
            rates = [one["metrics"]["requests_per_second"]["successful"]["mean"] for one in read["benchmarks"]]
            return "requests/s " + ", ".join(f"{rate:.1f}" for rate in rates)
        if "request_throughput" in read:  # aiperf
            return f"requests/s {read['request_throughput']['avg']:.1f}"
    return "no figures found"


def guidellm(program: str, url: str) -> list[str]:
    return [
        program, "benchmark", "run", "--target", url, "--model", "mock", "--rate-type", "concurrent",
        "--rate", ",".join(map(str, LEVELS)), "--max-requests", "40", "--data", "prompt_tokens=16,output_tokens=4",
        "--processor", "gpt2", "--output-path", "result.json",
    ]  # fmt: skip


def aiperf(program: str, url: str, concurrency: int) -> list[str]:
    return [
        program, "profile", "--model", "mock", "--url", url, "--endpoint-type", "chat", "--ui", "none",
        "--concurrency", str(concurrency), "--request-count", str(max(20, 4 * concurrency)),
    ]  # fmt: skip


def compare(service_s: float) -> None:
    for slots in (2, 6):
        print(f"capacity {slots}, service {service_s} s: at most {slots / service_s:.1f} requests/s")
        with gateway_of(*options_of(slots, service_s, 0.0)) as url:
            measure("occupancy", url, run_ours)
            for name in ("guidellm", "aiperf"):
                program = os.environ.get(name.upper()) or shutil.which(name)
                if program is None:
                    print(f"  {name}: not installed")
                elif name == "guidellm":
                    measure(name, url, lambda at, p=program: run_tool(guidellm(p, at)))  # type: ignore[misc]
                else:
                    measure(name, url, lambda at, p=program: "; ".join(run_tool(aiperf(p, at, c)) for c in LEVELS))  # type: ignore[misc]


def measure(name: str, url: str, run) -> None:  # type: ignore[no-untyped-def]
    before, started_s = requests_seen(url), time.monotonic()
    told = run(url)
    print(f"  {name}: {told}; {requests_seen(url) - before} requests, {time.monotonic() - started_s:.0f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=f"occupancy {occupancy.__version__}")
    parser.add_argument("what", choices=["found", "compare"])
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--service", type=float, default=0.2)
    asked = parser.parse_args()
    if asked.what == "found":
        found(asked.times, asked.service)
    else:
        compare(asked.service)
