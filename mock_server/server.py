"""The gateway on a real socket: in the foreground, or in a thread of its own."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar, cast

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from mock_server.app import DEFAULT_DELAY_MS, create_app
from mock_server.gateway import Limits
from mock_server.reply import HANG_UP
from mock_server.stats import Stats

T = TypeVar("T")

KEEP_ALIVE_S = 600
TICK_S = 0.1
TIMEOUT_S = 10.0


class GatewayUrl(str):
    """`http://HOST:PORT` of a running gateway, with its counts at hand.

    `stats()` and `reset_stats()` run in the server's own loop: what a client has seen finished is finished there too.
    """

    __slots__ = ("_server",)
    _server: "GatewayServer"

    def __new__(cls, text: str, server: "GatewayServer") -> "GatewayUrl":
        """A URL that knows its server."""
        url = super().__new__(cls, text)
        url._server = server
        return url

    def stats(self) -> dict[str, Any]:
        """What `GET /stats` answers; after the server has stopped, its last counts."""
        return self._server.call(self._server.stats.snapshot)

    def reset_stats(self) -> None:
        """What `POST /stats/reset` does."""
        self._server.call(self._server.stats.reset)

    def wait_in_flight(self, count: int, timeout_s: float = TIMEOUT_S) -> None:
        """Block until exactly `count` requests are in flight: the way to meet a request without sleeping.

        Raises:
            TimeoutError: that did not happen within `timeout_s` seconds.
        """
        # First let the loop's present step end: a request that the client has seen finished must not satisfy the wait.
        self._server.call(lambda: None)
        if not self._server.stats.wait_in_flight(count, timeout_s):
            now = self.stats()["in_flight"]
            raise TimeoutError(f"waited {timeout_s} s for {count} requests in flight, there are {now}")


@contextlib.contextmanager
def serve(
    *, host: str = "127.0.0.1", port: int = 0, delay_ms: float = DEFAULT_DELAY_MS, limits: Limits | None = None
) -> Iterator[GatewayUrl]:
    """Run a fresh gateway in a thread of its own, for the time of the block.

    Leaving the block closes every connection, also those that hang or stream, and waits for the thread.

    Args:
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        delay_ms: wait of the model endpoints before their headers, in ms.
        limits: what the model endpoints can take together, in place of `delay_ms`.

    Raises:
        OSError: the address is taken.
        ValueError: `delay_ms` is negative or no number.
        RuntimeError: the server did not stop.
    """
    app = create_app(delay_ms=delay_ms, limits=limits)
    listener = listen(host, port)
    server = GatewayServer(app, listener)
    thread = threading.Thread(target=server.run_in_thread, name="mock_server", daemon=True)
    thread.start()
    try:
        server.running.result(TIMEOUT_S)
        yield GatewayUrl(url_of(listener), server)
    finally:
        server.stop()
        thread.join(TIMEOUT_S)
        listener.close()
        if thread.is_alive():
            raise RuntimeError(f"the mock server did not stop within {TIMEOUT_S} s")


def run(*, host: str, port: int, delay_ms: float, limits: Limits | None = None) -> None:
    """Run a gateway in this thread until a signal ends it; prints its URL once it accepts requests.

    Raises:
        OSError: the address is taken.
        KeyboardInterrupt: Ctrl-C ended it.
    """
    app = create_app(delay_ms=delay_ms, limits=limits)
    listener = listen(host, port)
    server = GatewayServer(app, listener)
    url = url_of(listener)
    server.running.add_done_callback(lambda _: print(f"mock_server: {url} (Ctrl-C stops it)", flush=True))
    server.run([listener])


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; nobody can take its port before the server starts."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def url_of(listener: socket.socket) -> str:
    """The URL under which a listening socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class GatewayProtocol(H11Protocol):
    """A connection that the application may close, and that reports a byte as sent only when it has left."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Here rather than in uvicorn's configuration, which would strip the host's own access logger.
        self.access_log = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Offer the connection's closing to the application, through the scope's state."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)
        # asyncio sets this only on sockets it made itself; without it a write may wait 40 ms for the client's ACK.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.app_state = {**self.app_state, HANG_UP: transport.close}


class GatewayServer(uvicorn.Server):
    """uvicorn's server, stopped at once by `stop`: open connections are dropped, not waited for."""

    def __init__(self, app: Starlette, listener: socket.socket) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="asyncio",
                http=GatewayProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                proxy_headers=False,
                workers=1,
                timeout_keep_alive=KEEP_ALIVE_S,
            )
        )
        self.stats: Stats = app.state.stats
        self.running: Future[asyncio.AbstractEventLoop] = Future()
        self._listener = listener
        self._stopping = asyncio.Event()

    def run_in_thread(self) -> None:
        """Run until `stop`; an error before the start goes to who waits for `running`."""
        try:
            self.run([self._listener])
        except BaseException as error:
            if self.running.done():
                raise
            self.running.set_exception(error)

    def call(self, function: Callable[[], T]) -> T:
        """Call `function` in the server's loop, or here if that has ended."""
        result: Future[T] = Future()
        try:
            self.running.result(TIMEOUT_S).call_soon_threadsafe(lambda: result.set_result(function()))
        except RuntimeError:
            return function()
        return result.result(TIMEOUT_S)

    def stop(self) -> None:
        """Ask the server to stop; from any thread, any number of times."""
        # RuntimeError: the loop has ended by itself. Any other: it never started.
        with contextlib.suppress(Exception):
            self.running.result(0).call_soon_threadsafe(self._stopping.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets=sockets)
        await self.on_tick(0)
        self.running.set_result(asyncio.get_running_loop())

    async def main_loop(self) -> None:
        """Wait for `stop`, or for a signal, which sets `should_exit`."""
        while not self.should_exit:
            await self.on_tick(0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), TICK_S)
                self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drop every connection; each request then sees its client leave, and ends."""
        for server in self.servers:
            server.close()
        deadline_s = asyncio.get_running_loop().time() + TIMEOUT_S / 2
        while self._busy() and asyncio.get_running_loop().time() < deadline_s:
            for connection in list(self.server_state.connections):
                cast(GatewayProtocol, connection).transport.abort()
            await asyncio.sleep(0)

    def _busy(self) -> bool:
        return bool(self.server_state.connections or self.server_state.tasks)
