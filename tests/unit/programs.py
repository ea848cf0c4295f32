"""Programs as the calls they make, by hand: what a diagnosis is made from."""

import dataclasses
from collections.abc import Callable
from typing import Any

from occupancy.analysis.columns import columns_of
from occupancy.analysis.diagnosis import diagnose
from occupancy.analysis.findings import Cause, Diagnosis
from occupancy.call import Call, Frame, Kind, Outcome

MS = 1_000_000
FILE = "/home/me/agent.py"


def at(line: int, function: str = "run") -> Frame:
    return Frame(FILE, line, function)


def call(start_ms: float, end_ms: float, line: int = 1, **fields: Any) -> Call:
    """A call of the root task's; an answer of one piece, unless it says otherwise."""
    start_ns, end_ns = int(start_ms * MS), int(end_ms * MS)
    values: dict[str, Any] = {
        "pid": 7,
        "run": "task Task-1",
        "async_task": "Task-1",
        "thread": "MainThread",
        "kind": Kind.GENERATE,
        "label": "ask",
        "call_stack": (at(line),),
        "host": "api",
        "path": "/v1/messages",
        "start_ns": start_ns,
        "headers_ns": end_ns,
        "first_byte_ns": end_ns,
        "last_byte_ns": end_ns,
        "end_ns": end_ns,
        "released_ns": end_ns,
        "outcome": "ok",
        "status": 200,
        "connection_reused": True,
        "chunks": 1,
        "wait_ns": end_ns - start_ns,
    }
    return Call(**(values | fields))


def many(n: int, make: Callable[[int], Call]) -> list[Call]:
    return [make(number) for number in range(n)]


def serial() -> list[Call]:
    return [call(0, 200, 10), call(200, 550, 11, label="tool_search"), call(550, 900, 12, label="tool_fetch"),
            call(900, 1100, 13)]  # fmt: skip


def dependent() -> list[Call]:
    """The same, and the second tool asks for what the first one found."""
    return [dataclasses.replace(one, logical_id=n, needs=2 * (n == 3)) for n, one in enumerate(serial(), start=1)]


def loop() -> list[Call]:
    return many(5, lambda n: call(100 * n, 100 * n + 95, 20))


def chain() -> list[Call]:
    return many(3, lambda n: call(100 * n, 100 * n + 95, 30 + n))


def one_call() -> list[Call]:
    return [call(0, 100)]


def retried_once() -> list[Call]:
    return [call(0, 90, logical_id=1, status=503, outcome="http_error"), call(95, 200, logical_id=1, attempt=1)]


def overlapped() -> list[Call]:
    return many(6, lambda n: call(n, 200 + n, 40, async_task=f"Task-{n}", siblings=6))


def partly() -> list[Call]:
    return [call(0, 100, 50), call(100, 200, 51, label="tool_a"), call(200, 300, 52, label="tool_b"),
            call(300, 400, 53), call(301, 402, 54, async_task="Task-9")]  # fmt: skip


def idle() -> list[Call]:
    return [call(0, 50, 60), call(400, 450, 61), call(600, 650, 62)]


def sync_in_loop() -> list[Call]:
    return many(
        4, lambda n: call(100 * n, 100 * n + 99, 70, async_task=f"Task-{n}", siblings=4 - n, sync_in_event_loop=True)
    )


def semaphore() -> list[Call]:
    return many(
        8, lambda n: call(100 * (n // 2) + n, 100 * (n // 2) + 99 + n, 80, async_task=f"Task-{n}", siblings=8 - n)
    )


def lock() -> list[Call]:
    return many(6, lambda n: call(100 * n, 100 * n + 99, 81, async_task=f"Task-{n}", siblings=6 - n))


def on_threads(n: int, n_threads: int, line: int, prefix: str = "ThreadPoolExecutor-0", **fields: Any) -> list[Call]:
    def make(number: int) -> Call:
        name = f"{prefix}_{number % n_threads}"
        start_ms = 100 * (number // n_threads) + number % n_threads
        values = {"run": name, "thread": name, "async_task": None, "siblings": n - number} | fields
        return call(start_ms, start_ms + 98, line, **values)

    return many(n, make)


def executor() -> list[Call]:
    return on_threads(12, 3, 82)


def pool() -> list[Call]:
    waits = [0, 0, 100, 100, 200, 200, 300, 300]
    return many(8, lambda n: call(0, waits[n] + 100, 83, async_task=f"Task-{n}", siblings=8, client_ns=0,
                                  pool_ns=waits[n] * MS, wait_ns=99 * MS))  # fmt: skip


def barrier() -> list[Call]:
    spans = [(0, 80), (0, 300), (301, 600), (301, 380), (601, 680), (601, 900)]
    return [call(*span, 84, async_task=f"Task-{n}", siblings=2, label=f"node {n}") for n, span in enumerate(spans)]


def late(phase: str) -> list[Call]:
    fields = {phase: 120 * MS, "connection_reused": False}
    return many(4, lambda n: call(n, 200 + n, 90, async_task=f"Task-{n}", **fields))


def server_queue() -> list[Call]:
    few = many(8, lambda n: call(60 * n, 60 * n + 50, 91, async_task=f"Task-{n % 2}"))
    return few + many(16, lambda n: call(600, 650 + 25 * n, 92, async_task=f"Task-{10 + n}", siblings=16))


def errors_rise() -> list[Call]:
    few = many(8, lambda n: call(60 * n, 60 * n + 50, 93, async_task=f"Task-{n % 2}"))
    return few + many(16, lambda n: call(600, 650, 94, async_task=f"Task-{10 + n}", siblings=16, wait_ns=None,
                                         **({"status": 429, "outcome": "http_error"} if n > 6 else {})))  # fmt: skip


def stream(number: int, **fields: Any) -> Call:
    """21 pieces from 100 ms on, 20 ms apart but for one gap of 400."""
    values = {
        "async_task": f"Task-{number}", "headers_ns": 50 * MS, "first_byte_ns": 100 * MS, "first_event_ns": 100 * MS,
        "chunks": 21, "bytes_received": 4000, "max_gap_ns": 400 * MS, "max_gap_after_ns": 200 * MS,
        "chunks_after_gap": 15,
    }  # fmt: skip
    return call(0, 900, 100, **(values | fields))


def stalls() -> list[Call]:
    return many(3, stream)


def server_pauses() -> list[Call]:
    return many(3, lambda n: stream(n, chunks_after_gap=1))


def uneven_streams() -> list[Call]:
    return many(3, lambda n: stream(n, max_gap_after_ns=(100 + 200 * n) * MS, max_gap_ns=150 * MS))


def buffered() -> list[Call]:
    fields = {"first_byte_ns": 897 * MS, "first_event_ns": 897 * MS, "headers_ns": 20 * MS, "max_gap_ns": MS}
    return many(2, lambda n: stream(n, **fields, max_gap_after_ns=898 * MS, chunks=40, bytes_received=9000))


def thinking_model() -> list[Call]:
    """A long wait, then an answer at a model's own pace."""
    fields = {"first_byte_ns": 860 * MS, "first_event_ns": 860 * MS, "max_gap_ns": 5 * MS}
    return many(2, lambda n: stream(n, **fields, max_gap_after_ns=870 * MS, chunks=20, bytes_received=5000))


def unclosed() -> list[Call]:
    lost = [
        call(n, 100 + n, 110, async_task=f"Task-{n}", outcome=Outcome.ABANDONED, last_byte_ns=None) for n in range(2)
    ]
    return [*lost, call(50, 150, 111, async_task="Task-9")]


def held() -> list[Call]:
    none = dict.fromkeys(("status", "headers_ns", "first_byte_ns", "last_byte_ns", "wait_ns"))
    ended = {"outcome": "timeout", "error_type": "PoolTimeout"}
    starved = call(110, 310, 113, pool_ns=200 * MS, client_ns=0, **none, **ended)
    return [*(call(n, 100 + n, 112, async_task=f"Task-{n}") for n in range(2)), starved]


def attempt(number: int, logical: int, start_ms: float, **fields: Any) -> Call:
    values = {"logical_id": logical, "attempt": number, "status": 503, "outcome": "http_error", "request_bytes": 90}
    return call(start_ms, start_ms + 50, 120, **(values | fields))


def stacked() -> list[Call]:
    return many(9, lambda n: attempt(n % 3, 1 + n // 3 * 3, 60 * n))


def failing_items() -> list[Call]:
    failed = many(4, lambda n: attempt(n % 2, 1 + n // 2 * 2, 60 * n, request_bytes=90 + n // 2,
                                       async_task=f"Task-{n // 2}"))  # fmt: skip
    return [*failed, call(0, 240, 121, async_task="Task-9")]


def backoff() -> list[Call]:
    return [attempt(0, 1, 0), attempt(1, 1, 400), attempt(2, 1, 900, status=200, outcome="ok")]


def refused() -> list[Call]:
    """Six at once where the server takes three: the others are made again while two of those go on."""
    refusal: dict[str, Any] = {"status": 429, "outcome": "http_error"}
    first = many(6, lambda n: call(n, 300 if n < 2 else 100 if n == 2 else 20, 122, async_task=f"Task-{n}",
                                   logical_id=n + 1, **(refusal if n > 2 else {})))  # fmt: skip
    again = many(3, lambda n: call(270 + n, 400, 122, async_task=f"Task-{n + 3}", logical_id=n + 4, attempt=1))
    return [*first, *again]


def not_reused() -> list[Call]:
    return many(12, lambda n: call(60 * (n // 3) + n % 3, 60 * (n // 3) + 50 + n % 3, 130, async_task=f"Task-{n % 3}",
                                   connection_reused=False, connect_ns=5 * MS))  # fmt: skip


def workers() -> list[Call]:
    return many(12, lambda n: call(60 * (n // 3), 60 * (n // 3) + 59, 140, async_task=f"Task-{n % 3}", siblings=3))


def executor_of_few() -> list[Call]:
    """As many threads as work: nothing waits."""
    return on_threads(3, 3, 141, siblings=3)


def heartbeat() -> list[Call]:
    """A plain loop in one of two gathered tasks: siblings, but no limit."""
    return many(5, lambda n: call(100 * n, 100 * n + 99, 142, siblings=2))


def in_run(calls: list[Call], **fields: Any) -> list[Call]:
    return [dataclasses.replace(one, **fields) for one in calls]


def plan_and_map() -> list[Call]:
    """The main thread gives an executor work between two calls of its own."""
    main = [call(-100, 0, 85), call(500, 600, 86)]
    fields: dict[str, Any] = {"run": "MainThread", "thread": "MainThread", "async_task": None}
    return [*in_run(main, **fields), *on_threads(8, 2, 82)]


def slow_to_let_in(**fields: Any) -> list[Call]:
    """A semaphore of 2 for 8 tasks, on a machine that takes as long to let the next one in as the call takes."""
    return many(8, lambda n: call(120 * (n // 2) + 9 * n, 120 * (n // 2) + 9 * n + 60, 80, async_task=f"Task-{n}",
                                  siblings=8 - n, **fields))  # fmt: skip


def seen_to_wait() -> list[Call]:
    return slow_to_let_in(siblings_held=True)


def semaphore_of_each_round() -> list[Call]:
    """Rounds of 3 tasks, of which a semaphore of 2 lets the last one in when another has ended."""
    rounds = [(0, 95, True), (2, 96, False), (97, 195, False)]
    return many(9, lambda n: call(200 * (n // 3) + rounds[n % 3][0], 200 * (n // 3) + rounds[n % 3][1], 80,
                                  async_task=f"Task-{n}", siblings=3, siblings_held=rounds[n % 3][2]))  # fmt: skip


def semaphore_of_one_round() -> list[Call]:
    return semaphore_of_each_round()[:3]


def lock_in_threads() -> list[Call]:
    return [dataclasses.replace(one, run=f"pool_{n}", thread=f"pool_{n}", async_task=None)
            for n, one in enumerate(lock())]  # fmt: skip


def lock_around_something_else() -> list[Call]:
    """Four at once at first, then one by one, while others wait for a lock that is about something else."""
    return [call(at_ms, at_ms + 300, 87, async_task=f"Task-{n}", siblings=8, siblings_held=True)
            for n, at_ms in enumerate((0, 10, 20, 30, 400, 700, 1000, 1300))]  # fmt: skip


def poll(name: str = "Thread-1 (poll)", n: int = 20, every_ms: float = 55, pause_ms: float = 50,
         **fields: Any) -> list[Call]:  # fmt: skip
    """Asks whether something is done, each time `pause_ms` after the answer, with a little jitter."""
    names = {"run": name, "thread": name, "async_task": None, "path": "/status", "kind": Kind.TOOL, "label": "poll"}
    starts_ms = [every_ms * number + (number * 7 % 5) / 2 for number in range(n)]
    return [call(start, start + every_ms - pause_ms, 95, **(names | fields)) for start in starts_ms]


SERIAL, PARTLY, OVERLAPPED, ONE_CALL = Cause.SERIAL, Cause.PARTLY_OVERLAPPED, Cause.OVERLAPPED, Cause.ONE_CALL
MATRIX: list[tuple[Callable[[], list[Call]], Cause, Cause | None, list[int]]] = [
    (serial, SERIAL, SERIAL, [11, 12]),
    (dependent, SERIAL, SERIAL, [10, 11, 12, 13]),
    (loop, SERIAL, SERIAL, [20]),
    (chain, SERIAL, SERIAL, [30, 31, 32]),
    (heartbeat, SERIAL, SERIAL, [142]),
    (partly, PARTLY, PARTLY, [51, 52]),
    (idle, SERIAL, Cause.MOSTLY_IDLE, [60, 61]),
    (sync_in_loop, SERIAL, Cause.SYNC_IN_EVENT_LOOP, [70]),
    (semaphore, PARTLY, Cause.CAPPED_SEMAPHORE, [80]),
    (lock, SERIAL, Cause.CAPPED_SEMAPHORE, [81]),
    (seen_to_wait, PARTLY, Cause.CAPPED_SEMAPHORE, [80]),
    (semaphore_of_each_round, PARTLY, Cause.CAPPED_SEMAPHORE, [80]),
    (semaphore_of_one_round, PARTLY, Cause.CAPPED_SEMAPHORE, [80]),
    (lock_in_threads, SERIAL, Cause.CAPPED_SEMAPHORE, [81]),
    (executor, PARTLY, Cause.CAPPED_EXECUTOR, [82]),
    (plan_and_map, OVERLAPPED, Cause.CAPPED_EXECUTOR, [82]),
    (pool, OVERLAPPED, Cause.CAPPED_POOL, [83]),
    (barrier, PARTLY, Cause.BARRIER, [84]),
    (lambda: late("pool_ns"), OVERLAPPED, Cause.LATE_POOL, [90]),
    (lambda: late("connect_ns"), OVERLAPPED, Cause.LATE_CONNECT, [90]),
    (lambda: late("tls_ns"), OVERLAPPED, Cause.LATE_TLS, [90]),
    (server_queue, OVERLAPPED, Cause.LATE_SERVER, [92]),
    (errors_rise, OVERLAPPED, Cause.ERRORS_RISE, [94]),
    (stalls, OVERLAPPED, Cause.LOOP_STALLS, [100]),
    (buffered, OVERLAPPED, Cause.BUFFERED_STREAM, [100]),
    (unclosed, OVERLAPPED, Cause.UNCLOSED_RESPONSES, [110]),
    (held, OVERLAPPED, Cause.UNCLOSED_RESPONSES, [112]),
    (stacked, SERIAL, Cause.STACKED_RETRIES, [120]),
    (backoff, ONE_CALL, Cause.RETRY_BACKOFF, [120]),
    (refused, OVERLAPPED, Cause.REFUSED, [122]),
    (not_reused, OVERLAPPED, Cause.NOT_REUSED, [130]),
    (one_call, ONE_CALL, None, []),
    (retried_once, ONE_CALL, None, []),
    (overlapped, OVERLAPPED, None, []),
    (server_pauses, OVERLAPPED, None, []),
    (uneven_streams, OVERLAPPED, None, []),
    (thinking_model, OVERLAPPED, None, []),
    (failing_items, OVERLAPPED, None, []),
    (workers, OVERLAPPED, None, []),
    (executor_of_few, OVERLAPPED, None, []),
]
"""Each program, the verdict on its run, what holds it back, and the lines that must be named."""


def moved(one: Call, ms: float) -> Call:
    stamps = ("start_ns", "headers_ns", "first_byte_ns", "first_event_ns", "last_byte_ns", "end_ns", "released_ns")
    values = {name: getattr(one, name) for name in stamps}
    return dataclasses.replace(one, **{name: ns + int(ms * MS) for name, ns in values.items() if ns is not None})


def thread_run(calls: list[Call], name: str, **fields: Any) -> list[Call]:
    return in_run(calls, run=name, thread=name, async_task=None, **fields)


def diagnosis_of(calls: list[Call]) -> Diagnosis:
    return diagnose(columns_of(calls))
