"""What a journal of many calls costs to read and to make sense of, stage by stage.

Writes N synthetic calls, a start and an end each, to a temporary file, then reads and analyses them in a fresh process.
For each stage of `occupancy show` and `plot`: CPU time in s and in us a call, its share, and the most memory so far.

    python benchmarks/big_log.py [--calls 1000000] [--shape serial|lanes|runs|labels] [--file KEPT.jsonl]
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from occupancy.call import FIELDS, Call, Frame, Kind, Outcome
from occupancy.journal import SCHEMA, to_record

SHAPES = {"serial": 1, "lanes": 64, "runs": 1000, "labels": 8}
"""Calls in flight at once. In `runs` each lane is a run of its own, in `labels` each call has its own label."""
MS = 1_000_000
STEPS = ("plan", "tool_search", "tool_fetch", "recap")
PROCESS = "0123456789ab"
MARK = 7_000_000_000
"""Numbers from here on stand for what differs from call to call."""
VARYING = (
    "call_id", "start_ns", "headers_ns", "first_byte_ns", "end_ns", "released_ns", "in_flight", "bytes", "wait_ns",
    "lane", "receive_ns",
)  # fmt: skip


def templates(shape: str) -> dict[str, tuple[str, str]]:
    """Lines of a start and an end, in which `%(name)d` stands for each of `VARYING`, by label."""
    mark = {name: MARK + place for place, name in enumerate(VARYING)}
    own = f"{mark['call_id']} of {{}}" if shape == "labels" else "{}"
    lines = {}
    for line, step in enumerate(STEPS, start=20):
        started = Call(
            call_id=mark["call_id"], logical_id=mark["call_id"], pid=4711, kind=Kind.GENERATE, label=own.format(step),
            run=f"agent#{mark['lane']}" if shape == "runs" else "MainThread", thread="MainThread",
            async_task=None if shape == "serial" else f"Task-{mark['lane']}", client="httpx2", method="POST",
            host="127.0.0.1:8377", path=f"/v1/chat/{step}", model="mock-1", start_ns=mark["start_ns"],
            in_flight_start=mark["in_flight"], request_bytes=mark["bytes"], idempotency_key=False,
            call_stack=(Frame("/home/user/agent/llm.py", 12, "ask"),
                        Frame("/home/user/agent/agent.py", line, f"Agent.{step}"),
                        Frame("/home/user/agent/agent.py", 48, "main")),
        )  # fmt: skip
        start = to_record(started)
        ended = to_record(Call(
            request_id=f"req_0123456789abcdef_{mark['call_id']}", headers_ns=mark["headers_ns"],
            first_byte_ns=mark["first_byte_ns"], last_byte_ns=mark["end_ns"], end_ns=mark["end_ns"],
            released_ns=mark["released_ns"], in_flight_end=mark["in_flight"], client_ns=200_000, pool_ns=50_000,
            send_ns=90_000, wait_ns=mark["wait_ns"], receive_ns=mark["receive_ns"], connection_reused=True, status=200,
            outcome=Outcome.OK, bytes_received=mark["bytes"], chunks=12, max_gap_ns=9_000_000,
            max_gap_after_ns=mark["wait_ns"], chunks_after_gap=1,
        ))  # fmt: skip
        lines[step] = (_template("start", start, mark), _template("end", start | ended, mark))
    return lines


def _template(event: str, record: dict[str, Any], mark: dict[str, int]) -> str:
    ordered = {name: record[name] for name in FIELDS if name in record}
    text = json.dumps({"event": event, "process": PROCESS, **ordered}, separators=(",", ":"))
    for name, number in mark.items():
        text = text.replace(str(number), f"%({name})d")
    return text + "\n"


def stamps(n: int, lanes: int) -> dict[str, Any]:
    """When n calls on some lanes start, get their first byte and end, ns, in the order of their starts."""
    random = np.random.default_rng(1)
    lane = np.arange(n) % lanes
    length_ns = random.integers(150 * MS, 900 * MS, n)
    own_ns = random.integers(0, 30 * MS, n)
    begin_ns = 10**15 + lane * 7 * MS
    start_ns = np.empty(n, dtype=np.int64)
    for place in range(lanes):
        mine = slice(place, n, lanes)
        spent_ns = np.cumsum(length_ns[mine] + own_ns[mine])
        start_ns[mine] = begin_ns[mine] + spent_ns - length_ns[mine]
    order = np.argsort(start_ns, kind="stable")
    start_ns, length_ns, lane = start_ns[order], length_ns[order], lane[order]
    wait_ns = length_ns // 2
    end_ns = start_ns + length_ns
    return {
        "call_id": np.arange(1, n + 1), "start_ns": start_ns, "headers_ns": start_ns + wait_ns,
        "first_byte_ns": start_ns + wait_ns + MS, "end_ns": end_ns, "released_ns": end_ns + 5_000,
        "in_flight": np.full(n, lanes), "bytes": length_ns // 300_000, "wait_ns": wait_ns, "lane": lane,
        "receive_ns": length_ns - wait_ns,
    }  # fmt: skip


def journal(n: int, shape: str) -> Iterator[str]:
    """The lines of a journal of n calls."""
    lines = templates(shape)
    columns = stamps(n, SHAPES[shape])
    of_step = [lines[step] for step in STEPS]
    rows = list(zip(*(column.tolist() for column in columns.values()), strict=True))
    at_ns = np.concatenate((columns["start_ns"], columns["released_ns"]))
    process = {"schema": SCHEMA, "pid": 4711, "boot_id": "b", "unix_offset_ns": 0}
    yield json.dumps({"event": "process", "process": PROCESS, **process}, separators=(",", ":")) + "\n"
    for event in np.argsort(at_ns, kind="stable").tolist():
        ends, call = divmod(event, n)
        yield of_step[call % len(STEPS)][ends] % dict(zip(columns, rows[call], strict=True))


def stages(path: str) -> None:
    """Read a file and make of it what `occupancy show` and `occupancy plot` do, timed."""
    from matplotlib.figure import Figure

    from occupancy.analysis.diagnosis import diagnosis_of
    from occupancy.analysis.groups import CountedCalls
    from occupancy.analysis.summary import summary_of
    from occupancy.reading import read
    from occupancy.views import tables
    from occupancy.views.step_plot import plot

    log = timed("read", lambda: read(path))
    columns = log.columns()
    calls = timed("call sites", lambda: CountedCalls.of(columns))
    summary = timed("summary", lambda: summary_of(calls))
    diagnosis = timed("diagnosis", lambda: diagnosis_of(calls))
    timed("text", lambda: tables.report_of(calls, summary, diagnosis) + tables.label_table(summary))
    figure = Figure()
    timed("plot", lambda: (plot(columns, figure.add_subplot()), figure.savefig("/dev/null", format="png")))


def timed(what: str, work: Callable[[], Any]) -> Any:
    began_s = time.process_time()
    result = work()
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{what}\t{time.process_time() - began_s}\t{peak_mb}", flush=True)
    return result


def main() -> None:
    """Write, then measure in a fresh process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--shape", choices=SHAPES, default="lanes")
    parser.add_argument("--file", help="Keep the journal there, or use the one that is there.")
    parser.add_argument("--read", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.read:
        stages(args.read)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(args.file or folder + "/calls.jsonl")
        if not path.exists():
            with path.open("w") as file:
                file.writelines(journal(args.calls, args.shape))
        print(f"{args.calls} calls, {args.shape}: {path.stat().st_size / 1e6:.0f} MB")
        child = subprocess.run([sys.executable, __file__, "--read", path], check=True, capture_output=True, text=True)
    rows = [line.split("\t") for line in child.stdout.splitlines()]
    whole_s = sum(float(row[1]) for row in rows)
    for what, spent_s, peak_mb in rows:
        spent = float(spent_s)
        print(f"{what:20} {spent:7.2f} s {spent * 1e6 / args.calls:7.2f} us {spent / whole_s:5.0%} {peak_mb:>6} MB")


if __name__ == "__main__":
    main()
