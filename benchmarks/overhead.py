"""What a call costs with us and without, in CPU time: a client on a connection that answers from memory.

Alternates in one process and prints the least and the median of each, and their ratios. python benchmarks/overhead.py
"""

import statistics
import tempfile
import time
from typing import Any

import httpcore2
import httpx2

import occupancy

ROUNDS, CALLS = 15, 200
ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\ncontent-type: application/json\r\nx-request-id: req_1\r\n\r\n"
    b'{"ok": true}'
)


class Stream(httpcore2.NetworkStream):
    """Swallows a request and answers it."""

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return ANSWER

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        pass

    def close(self) -> None:
        pass

    def get_extra_info(self, info: str) -> Any:
        return None


class Backend(httpcore2.NetworkBackend):
    """Connects to nothing."""

    def connect_tcp(self, *args: Any, **kwargs: Any) -> Stream:
        return Stream()


def client() -> httpx2.Client:
    """A client whose pool is on that backend."""
    transport = httpx2.HTTPTransport()
    transport._pool = httpcore2.ConnectionPool(network_backend=Backend())
    return httpx2.Client(transport=transport)


def call_us(asked: httpx2.Client) -> float:
    """CPU time of one call, in us."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * 200}]}
    began_ns = time.process_time_ns()
    for _ in range(CALLS):
        asked.post("http://host/v1/chat/completions", json=body)
    return (time.process_time_ns() - began_ns) / CALLS / 1e3


def main() -> None:
    """Measure."""
    asked = client()
    call_us(asked)
    times: dict[str, list[float]] = {"without": [], "with": [], "with a journal": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            times["without"].append(call_us(asked))
            with occupancy.record():
                times["with"].append(call_us(asked))
            with occupancy.record(journal=f"{folder}/calls.jsonl"):
                times["with a journal"].append(call_us(asked))
    for what, of in (("least", min), ("median", statistics.median)):
        bare = of(times["without"])
        told = (f"{of(us):.0f} us {name} ({of(us) / bare:.2f})" for name, us in times.items())
        print(f"{what}: {', '.join(told)}")


if __name__ == "__main__":
    main()
