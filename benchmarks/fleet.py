"""5,000,000 spans into 60 s buckets, mean and peak: ClickHouse's engine beside numpy, duckdb and polars.

    pip install 'occupancy[fleet]' duckdb polars
    python benchmarks/fleet.py [SPANS]

Each engine has a process of its own, reads the same Parquet file of the collector's columns, and is timed without its
imports: the best of three runs, wall and CPU, and the most memory its process ever had, imports included (Linux). All
must agree to the ns. `chdb, query` is `occupancy.query`: it decides besides which spans are calls, which takes their
attributes and what lies below them.
"""

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SPANS = 5_000_000
RUNS = 3
S = 10**9
START_NS, HOUR_NS, WIDTH_NS = 1_800_000_000 * S, 3600 * S, 60 * S
END_NS = START_NS + HOUR_NS
MOST_S = 600

Answer = tuple[list[int], list[int]]
"""Time in flight, ns, and peak of each bucket."""


def write_spans(path: Path, n: int) -> None:
    """One hour of requests of four services, four below each of their agents' spans; durations are lognormal."""
    rng = np.random.default_rng(1)
    start_ns = START_NS + np.sort(rng.integers(0, HOUR_NS, n))
    duration_ns = (rng.lognormal(0.5, 0.8, n) * S).astype(np.uint64)
    services = repeated([f"agent-{number}" for number in range(4)], rng.integers(0, 4, n))
    methods = pa.MapArray.from_arrays(
        np.arange(0, 2 * n + 1, 2, dtype=np.int32),
        repeated(["http.request.method", "server.address"], np.tile([0, 1], n)),
        repeated(["POST", "api.example"], np.tile([0, 1], n)),
    )
    table = pa.table({
        "Timestamp": pa.array(start_ns, pa.timestamp("ns")),
        "TraceId": [f"{number // 4:032x}" for number in range(n)],
        "SpanId": [f"{number:016x}" for number in range(n)],
        "ParentSpanId": [f"f{number // 4:015x}" for number in range(n)],
        "SpanName": repeated(["POST"], np.zeros(n, int)),
        "SpanKind": repeated(["Client"], np.zeros(n, int)),
        "ServiceName": services,
        "ResourceAttributes": pa.MapArray.from_arrays(
            np.arange(n + 1, dtype=np.int32), repeated(["service.name"], np.zeros(n, int)), services
        ),
        "SpanAttributes": methods,
        "Duration": duration_ns,
    })  # fmt: skip
    pq.write_table(table, path)


def repeated(values: list[str], which: Any) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(which.astype(np.int32)), values).dictionary_decode()


def with_numpy(path: str) -> Callable[[], Answer]:
    from occupancy.analysis.buckets import bucket

    edges_ns = np.arange(START_NS, END_NS + 1, WIDTH_NS)

    def run() -> Answer:
        table = pq.read_table(path, columns=["Timestamp", "Duration"])
        start_ns = table["Timestamp"].to_numpy().astype(np.int64)
        found = bucket(start_ns, start_ns + table["Duration"].to_numpy().astype(np.int64), edges_ns)
        return found.in_flight_ns.tolist(), found.peak.tolist()

    return run


def with_chdb(path: str) -> Callable[[], Answer]:
    """The SQL of buckets alone: every span is a call."""
    from occupancy.fleet import sql
    from occupancy.fleet.connection import connect
    from occupancy.fleet.question import parse
    from occupancy.fleet.selection import PATTERNS, CallFilter

    bare = f"""(SELECT Timestamp, Duration, '' AS TraceId, '' AS SpanId, '' AS ParentSpanId, '' AS SpanName,
        '' AS SpanKind, '' AS ServiceName, map('', '') AS SpanAttributes, map('', '') AS ResourceAttributes
        FROM {sql.PARQUET})"""
    asked = sql.buckets(bare, CallFilter("true", False, {}), None)
    bound = {"path": path, "service": "", "start_ns": START_NS, "end_ns": END_NS, "width_ns": WIDTH_NS, **PATTERNS}

    def run() -> Answer:
        with connect(parse(f"chdb://{path}")[0]) as connection:
            (row,) = connection.rows(asked, {**bound, "earliest_ns": START_NS, "latest_ns": END_NS})
        order = np.argsort(row[2])
        return np.array(row[3])[order].tolist(), np.array(row[4])[order].tolist()

    return run


def with_query(path: str) -> Callable[[], Answer]:
    import occupancy

    url = f"chdb://{path}?since=2027-01-15T08:00:00&until=2027-01-15T09:00:00&bucket=60s"

    def run() -> Answer:
        total = occupancy.query(url).total
        return total.in_flight_ns.tolist(), total.peak.tolist()

    return run


def with_duckdb(path: str) -> Callable[[], Answer]:
    import duckdb

    asked = f"""
    WITH pieces AS (
        SELECT
            bucket,
            greatest(s, {START_NS} + bucket * {WIDTH_NS}) AS l,
            least(e, {START_NS} + (bucket + 1) * {WIDTH_NS}) AS r
        FROM (
            SELECT s, e, unnest(range((s - {START_NS}) // {WIDTH_NS}, (e - 1 - {START_NS}) // {WIDTH_NS} + 1)) AS bucket
            FROM (SELECT epoch_ns("Timestamp") AS s, least(s + Duration::BIGINT, {END_NS}) AS e FROM read_parquet(?))
        )
    ),
    levels AS (
        SELECT bucket, sum(change) OVER (PARTITION BY bucket ORDER BY t, change ROWS UNBOUNDED PRECEDING) AS level
        FROM (SELECT bucket, l AS t, 1 AS change FROM pieces UNION ALL SELECT bucket, r, -1 FROM pieces)
    )
    SELECT in_flight, peak
    FROM (SELECT bucket, sum(r - l)::BIGINT AS in_flight FROM pieces GROUP BY bucket)
    JOIN (SELECT bucket, max(level)::BIGINT AS peak FROM levels GROUP BY bucket) USING (bucket)
    ORDER BY bucket
    """

    def run() -> Answer:
        rows = duckdb.connect().execute(asked, [path]).fetchall()
        return [row[0] for row in rows], [row[1] for row in rows]

    return run


def with_polars(path: str) -> Callable[[], Answer]:
    import polars as pl

    def run() -> Answer:
        start_ns = pl.col("Timestamp").cast(pl.Int64)
        edge_ns = START_NS + pl.col("bucket") * WIDTH_NS
        pieces = (
            pl.scan_parquet(path)
            .select(s=start_ns, e=pl.min_horizontal(start_ns + pl.col("Duration").cast(pl.Int64), END_NS))
            .with_columns(
                bucket=pl.int_ranges((pl.col("s") - START_NS) // WIDTH_NS, (pl.col("e") - 1 - START_NS) // WIDTH_NS + 1)
            )
            .explode("bucket")
            .select("bucket", l=pl.max_horizontal("s", edge_ns), r=pl.min_horizontal("e", edge_ns + WIDTH_NS))
            .collect()
        )
        events = pl.concat([
            pieces.select("bucket", t="l", change=pl.lit(1)), pieces.select("bucket", t="r", change=pl.lit(-1))
        ])  # fmt: skip
        levels = events.sort("bucket", "t", "change").with_columns(level=pl.col("change").cum_sum().over("bucket"))
        peaks = levels.group_by("bucket").agg(pl.col("level").max()).sort("bucket")["level"]
        means = pieces.group_by("bucket").agg((pl.col("r") - pl.col("l")).sum()).sort("bucket")["r"]
        return means.to_list(), peaks.to_list()

    return run


ENGINES = {
    "numpy": with_numpy,
    "chdb": with_chdb,
    "chdb, query": with_query,
    "duckdb": with_duckdb,
    "polars": with_polars,
}


def measure(engine: str, path: str) -> None:
    """Run one engine in this process, and print what it found as JSON."""
    run = ENGINES[engine](path)
    walls_s, cpus_s = [], []
    for _ in range(RUNS):
        began_s, cpu_s = time.perf_counter(), time.process_time()
        answer = run()
        walls_s.append(time.perf_counter() - began_s)
        cpus_s.append(time.process_time() - cpu_s)
    (most_kb,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    print(json.dumps({"wall": min(walls_s), "cpu": min(cpus_s), "mb": int(most_kb) / 1024, "answer": answer}))


def main(n: int) -> int:
    """Measure each engine; give the exit code: 1 where they do not agree."""
    answers = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spans.parquet"
        write_spans(path, n)
        print(f"{n:,} spans, {path.stat().st_size / 2**20:.0f} MB")
        for engine in ENGINES:
            if importlib.util.find_spec(engine.partition(",")[0]) is None:
                print(f"{engine:12} is not installed")
                continue
            command = [sys.executable, __file__, engine, str(path)]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=MOST_S)
            found = json.loads(done.stdout)
            answers.append(found["answer"])
            print(f"{engine:12} {found['wall']:6.2f} s {found['cpu']:6.2f} s CPU {found['mb']:6.0f} MB", flush=True)
    agree = all(answer == answers[0] for answer in answers)
    in_flight_ns, peaks = answers[0]
    print(f"all agree: {agree}; mean {sum(in_flight_ns) / HOUR_NS:.2f}, peak {max(peaks)} in {len(peaks)} buckets")
    return 0 if agree else 1


if __name__ == "__main__":
    if len(sys.argv) == 3:
        measure(*sys.argv[1:])
    else:
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) == 2 else SPANS))
