"""How well, and with how many requests, tools find the capacity of an endpoint.

    python benchmarks/sweep_tools.py found            our sweep, ten times for each gateway of known capacity
    python benchmarks/sweep_tools.py compare          our sweep beside guidellm and aiperf, where they are installed

On a machine that others use too, `chrt --fifo 10` or `nice -n -15` before it (as root) comes close to a quiet one.
Each gateway is a process of its own on this machine. `compare` takes the tools' programs from PATH, or from
GUIDELLM and AIPERF; both measure throughput at given concurrencies and leave it to the reader to pick one.

Three runs each, service 0.2 s, two cores that others used too:

    gateway     tool        requests  wall s   told
    capacity 2  occupancy   95        13-14    2.00-2.02, use 2
                guidellm    200       135-197  9.7 requests/s; knee at 7.8 and 7.9 streams, once none
                aiperf      166       111-196  9.5-9.8 requests/s; the reader picks
    capacity 6  occupancy   151       13-14    5.64-6.17, use 6
                guidellm    200       138-171  26.6-27.1 requests/s; knee at 8.4-8.5 streams
                aiperf      166       115-142  26.6-28.1 requests/s; the reader picks

Both send what they are told to: here 40 at each level, and max(20, 4 for each stream), warm-up included in the counts.
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
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2

import occupancy
from occupancy.probe.api import sweep
from occupancy.probe.sweep_result import SweepResult
from occupancy.probe.target import Target

LEVELS = (1, 2, 4, 8, 16)
FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
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


def options_of(slots: int | None, service_s: float, jitter: float, seed: int = 0) -> list[str]:
    limited = [] if slots is None else ["--capacity", str(slots)]
    return [*limited, "--service", str(service_s), "--jitter", str(jitter), "--seed", str(seed)]


def is_found(result: SweepResult, slots: int | None) -> bool:
    fit = result.capacity.fit
    if slots is None or fit.capacity is None:
        return slots is None and fit.capacity is None
    return abs(fit.capacity - slots) <= (fit.error99 or 0)


def is_named(result: SweepResult, slots: int | None) -> bool:
    capacity = result.capacity.fit.capacity
    return capacity is None if slots is None else capacity is not None and round(capacity) == slots


def found(times: int, service_s: float) -> None:
    print(f"service {service_s} s")
    for jitter in (0.0, 0.25):
        for slots in (1, 2, 3, 6, None):
            results, good, named, sent = [], 0, 0, 0
            for seed in range(times):
                with gateway_of(*options_of(slots, service_s, jitter, seed)) as url:
                    result = asyncio.run(sweep(Target(url=url, model="mock")))
                good += is_found(result, slots)
                named += is_named(result, slots)
                sent += result.sent
                results.append(f"{result.capacity.fit} -> {result.recommended}")
            counts = f"{good} of {times} within the reported error, {named} rounded to it, {sent / times:.0f} requests"
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
            environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200"}
            ended = subprocess.run(
                command, stdout=out, stderr=out, cwd=folder, env=environment, timeout=MOST_S, check=False
            )
        if ended.returncode:
            return f"failed: {log.read_text(errors='replace').strip().splitlines()[-1][:160]}"
        knee = [line.strip() for line in log.read_text(errors="replace").splitlines() if "knee" in line.lower()]
        return "; ".join([rates_of(Path(folder)), *knee[-2:]])[:400]


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


def guidellm(program: str, url: str, tokenizer: str) -> list[str]:
    return [
        program, "run", "--backend", f"kind=openai_http,target={url},model=mock,validate_backend=false",
        "--profile", "kind=knee,min_streams=1,max_streams=16,count=5",
        "--constraint", "kind=max_requests,count=40", "--tokenizer", f"kind=hf_auto,model={tokenizer}",
        "--data", "kind=synthetic_text,prompt_tokens=16,output_tokens=4",
        "--output", "kind=json,path=result.json", "--output", "kind=console", "--disable-progress",
    ]  # fmt: skip


def aiperf(program: str, url: str, tokenizer: str, concurrency: int) -> list[str]:
    return [
        program, "profile", "--model", "mock", "--url", url, "--endpoint-type", "chat", "--ui", "none",
        "--tokenizer", tokenizer, "--isl", "16", "--osl", "4",
        "--concurrency", str(concurrency), "--request-count", str(max(20, 4 * concurrency)),
    ]  # fmt: skip


def write_tokenizer(folder: str) -> None:
    """One token for each byte: both tools want a tokenizer, and would fetch one from outside."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocabulary = {alphabet[byte]: byte for byte in range(256)} | {"<end>": 256}
    written = {
        "version": "1.0",
        "added_tokens": [{"id": 256, "content": "<end>", "special": True} | dict.fromkeys(FLAGS, False)],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "model_max_length": 100_000}
    Path(folder, "tokenizer.json").write_text(json.dumps(written))
    Path(folder, "tokenizer_config.json").write_text(json.dumps(config))


def compare(times: int, service_s: float) -> None:
    with tempfile.TemporaryDirectory() as tokenizer:
        write_tokenizer(tokenizer)
        for slots in [2, 6] * times:
            print(f"capacity {slots}, service {service_s} s: at most {slots / service_s:.1f} requests/s")
            with gateway_of(*options_of(slots, service_s, 0.0)) as url:
                measure("occupancy", url, run_ours)
                measure("guidellm", url, lambda at: run_tool(guidellm(program_of("guidellm"), at, tokenizer)))
                measure("aiperf", url, lambda at: run_each(at, tokenizer))


def program_of(name: str) -> str:
    return os.environ.get(name.upper()) or shutil.which(name) or f"{name}-is-not-installed"


def run_each(url: str, tokenizer: str) -> str:
    return "; ".join(f"{c}: {run_tool(aiperf(program_of('aiperf'), url, tokenizer, c))}" for c in LEVELS)


def measure(name: str, url: str, run: Callable[[str], str]) -> None:
    before, started_s = requests_seen(url), time.monotonic()
    try:
        told = run(url)
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        told = f"no result: {error}"
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
        compare(asked.times, asked.service)
