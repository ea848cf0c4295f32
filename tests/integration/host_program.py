"""Programs of a host's, each in a process of its own: OpenTelemetry's global provider can be set once in a process.

The test side is `run`; a program imports the rest. Nothing here is imported by occupancy.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TIMEOUT_S = 60


def run(
    folder: Path, program: str, *, log: str = "", code: int = 0, env: dict[str, str] | None = None, ignore: str = ""
) -> Any:
    """Run a program and give what it has told with `tell`; None where it told nothing.

    Args:
        folder: Where the program is written, as `program.py`.
        program: Its text; indentation that all lines share is taken off.
        log: What it must leave on stderr, of which only lines with this text are kept; nothing may be left without.
        code: The exit code that it must have.
        env: Variables to add to the environment.
        ignore: A category of warnings that is no error.
    """
    path = folder / "program.py"
    path.write_text(textwrap.dedent(program), encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "OCCUPANCY_"))}
    clean["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(HERE)))
    # An error in a finalizer is printed, not raised: it fails here all the same, since stderr must be empty.
    warnings = ["-W", "error", *(["-W", f"ignore::{ignore}"] if ignore else [])]
    command = [sys.executable, *warnings, "-X", "faulthandler", str(path)]
    done = subprocess.run(
        command, env=clean | (env or {}), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stderr}\n{done.stdout}"
    left = [line for line in done.stderr.splitlines() if log in line] if log else done.stderr.splitlines()
    assert bool(left) == bool(log), done.stderr
    assert len(left) <= 1, done.stderr
    told = [line for line in done.stdout.splitlines() if line]
    return json.loads(told[-1]) if told else None


def tell(value: Any) -> None:
    """Give the test a value."""
    print(json.dumps(value), flush=True)


class Server:
    """Answers over HTTP/1.1 on a free loopback port, as its path says, each connection in a thread."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.asked = threading.Semaphore(0)
        """Released for each request to `/silent` that has arrived, whole."""
        self.left = threading.Semaphore(0)
        """Released when the client of a `/silent` or `/half` has gone."""
        self.seen: list[dict[str, str]] = []
        """The headers of each request."""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection, connection.makefile("rb") as lines:
            while request := lines.readline().split():
                headers = dict(line.decode().strip().split(": ", 1) for line in iter(lines.readline, b"\r\n"))
                headers = {name.lower(): value for name, value in headers.items()}
                lines.read(int(headers.get("content-length", 0)))
                self.seen.append(headers)
                if not self._answer(connection, request[1].decode().partition("?")[0]):
                    lines.read(1)  # until the client goes
                    self.left.release()
                    return

    def _answer(self, connection: socket.socket, path: str) -> bool:
        if path == "/silent":
            self.asked.release()
            return False
        connection.sendall(ANSWERS[path.rpartition("/")[2]])
        if path == "/cut":
            connection.shutdown(socket.SHUT_RDWR)
        return path != "/half"


def answer(status: str, *headers: str, body: str = "") -> bytes:
    """An HTTP answer as it goes over the wire."""
    return "\r\n".join((f"HTTP/1.1 {status}", *headers, "", body)).encode()


CHUNKED = "transfer-encoding: chunked"
ANSWERS = {
    "ok": answer("200 OK", "content-length: 5", body="hello"),
    "chunked": answer("200 OK", CHUNKED, body="3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"),
    "half": answer("200 OK", CHUNKED, body="3\r\nabc\r\n"),
    "cut": answer("200 OK", CHUNKED, body="3\r\nabc\r\n"),
    "204": answer("204 No Content"),
    "404": answer("404 Not Found", "content-length: 4", body="none"),
    "503": answer("503 Service Unavailable", "content-length: 4", body="full"),
    "redirect": answer("307 Temporary Redirect", "location: /ok", "content-length: 0"),
    "head": answer("200 OK", "content-length: 5"),
}


def set_up_provider(*, batch: bool = False, register: bool = True, **options: Any) -> tuple[Any, Any]:
    """A provider of the SDK's with an exporter that keeps spans; by default the global one.

    Returns:
        The provider and the exporter.
    """
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    provider, exporter = TracerProvider(**options), InMemorySpanExporter()
    provider.add_span_processor((BatchSpanProcessor if batch else SimpleSpanProcessor)(exporter))
    if register:
        trace.set_tracer_provider(provider)
    return provider, exporter


def span_dicts(exporter: Any) -> list[dict[str, Any]]:
    """The exported spans, in the order of their ends."""
    return [span_dict(span) for span in exporter.get_finished_spans()]


def span_dict(span: Any) -> dict[str, Any]:
    """A span as JSON."""
    return {
        "name": span.name,
        "scope": span.instrumentation_scope.name,
        "span_id": f"{span.context.span_id:016x}",
        "trace_id": f"{span.context.trace_id:032x}",
        "parent": None if span.parent is None else f"{span.parent.span_id:016x}",
        "start": span.start_time,
        "end": span.end_time,
        "status": span.status.status_code.name,
        "description": span.status.description,
        "attributes": dict(span.attributes),
        "events": {event.name: event.timestamp for event in span.events},
    }


def call_dicts(log: Any) -> list[dict[str, Any]]:
    """The calls of a log that have ended, in the order of their ends."""
    return [call_dict(call) for call in log.calls]


def call_dict(call: Any) -> dict[str, Any]:
    """A call as JSON, with what is derived of it."""
    from occupancy.call import FIELDS

    fields = {name: getattr(call, name) for name in FIELDS}
    return fields | {"wait_first_ms": call.wait_first_ms, "total_ms": call.total_ms}


def counting(function: Callable[..., Any], counts: list[Any]) -> Callable[..., Any]:
    """The function, which also appends its arguments to `counts`."""

    def counted(*args: Any, **kwargs: Any) -> Any:
        counts.append([str(arg) for arg in args])
        return function(*args, **kwargs)

    return counted
