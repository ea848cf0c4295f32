"""ClickHouse's HTTP interface on the loopback, each query answered by ClickHouse's engine in this process."""

import base64
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

import chdb

LOGIN = ("reader", "s3cret")


class Server(ThreadingHTTPServer):
    """Takes the queries of one user, and remembers them."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.engine = chdb.connect(":memory:")
        self.lock = threading.Lock()
        self.targets: list[str] = []
        """Path and query of each request."""

    def run(self, sql: str, format: str = "TSV", parameters: dict[str, str] | None = None) -> bytes:
        with self.lock:
            return bytes(self.engine.query(sql, format, params=parameters or {}).bytes())


class Handler(BaseHTTPRequestHandler):
    """Speaks as much of the interface as `clickhouse_connect` asks for."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        given = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        self.server.targets.append(self.path)
        login = ":".join(LOGIN).encode()
        if self.headers.get("authorization") != f"Basic {base64.b64encode(login).decode()}":
            self.answer(403, b"Code: 516. DB::Exception: Authentication failed. (AUTHENTICATION_FAILED)", 516)
            return
        sql = given.get("query") or body
        format = re.search(r"FORMAT\s+(\w+)\s*$", sql)
        parameters = {name.removeprefix("param_"): value for name, value in given.items() if name.startswith("param_")}
        try:
            if "database" in given:
                self.server.run(f"USE {given['database']}")
            self.answer(200, self.server.run(sql, format[1] if format else "TSV", parameters))
        except RuntimeError as error:
            code = re.search(r"Code: (\d+)", str(error))
            self.answer(404, str(error).encode(), int(code[1]) if code else 0)

    def answer(self, status: int, body: bytes, code: int = 0) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        if code:
            self.send_header("x-clickhouse-exception-code", str(code))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve() -> Iterator[Server]:
    """A server in threads of its own."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
            server.engine.close()
