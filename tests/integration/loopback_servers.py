"""Servers on the loopback interface that say what no well-behaved one would, and proxies."""

import socket
import socketserver
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: Any, address: Any) -> None:
        """A client that leaves is none of the server's business."""


@contextmanager
def running(handler: type[socketserver.BaseRequestHandler], context: ssl.SSLContext | None = None) -> Iterator[int]:
    """A server of connections on a free loopback port."""

    class Secured(Server):
        def get_request(self) -> Any:
            connection, address = super().get_request()
            return (connection if context is None else context.wrap_socket(connection, server_side=True)), address

    with Secured(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def connect_both(here: socket.socket, port: int) -> None:
    """Carry bytes both ways until one side ends."""
    with socket.create_connection(("127.0.0.1", port)) as there:
        back = threading.Thread(target=pump, args=(there, here), daemon=True)
        back.start()
        pump(here, there)
        back.join()


class OneAnswer(socketserver.StreamRequestHandler):
    """Answers each request of a connection with three bytes."""

    def handle(self) -> None:
        while self.rfile.readline():
            while self.rfile.readline() not in (b"\r\n", b""):
                pass
            self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc")


class Tunnel(socketserver.StreamRequestHandler):
    """A proxy that knows CONNECT only, and refuses port 1."""

    def handle(self) -> None:
        _, target, _ = self.rfile.readline().decode().split()
        while self.rfile.readline() != b"\r\n":
            pass
        if target.endswith(":1"):
            self.wfile.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")
            return
        self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        connect_both(self.connection, int(target.rsplit(":", 1)[1]))


class Socks(socketserver.BaseRequestHandler):
    """A SOCKS5 proxy without authentication, for IPv4 addresses."""

    def handle(self) -> None:
        here = self.request
        here.recv(64)
        here.sendall(b"\x05\x00")
        asked = here.recv(256)
        here.sendall(b"\x05\x00\x00\x01" + asked[4:10])
        connect_both(here, struct.unpack("!H", asked[-2:])[0])


def trusting() -> ssl.SSLContext:
    """A client's context that asks for nobody's name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class ScriptedServer:
    """Answers each request on a connection of its own with bytes that are said beforehand, then closes."""

    def __init__(self) -> None:
        self._scripts: dict[str, tuple[bytes, ...]] = {}
        scripts = self._scripts

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                _, target, _ = self.rfile.readline().decode().split()
                while self.rfile.readline().strip():
                    pass
                for piece in scripts[target]:
                    self.wfile.write(piece)

        self._server = Server(("127.0.0.1", 0), Handler)

    def serve(self, *pieces: bytes, target: str | None = None) -> str:
        """Give the URL that is answered so; a proxy is asked for a `target` that is one itself."""
        path = f"/{len(self._scripts)}"
        self._scripts[target or path] = pieces
        return f"http://127.0.0.1:{self._server.server_address[1]}{path}"

    def __enter__(self) -> Any:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
