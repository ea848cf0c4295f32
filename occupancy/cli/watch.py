"""`occupancy watch`."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from occupancy.cli.following import PIECE_BYTES, FollowedFile
from occupancy.errors import ReadError
from occupancy.formats.journal_lines import PREFIX, Clock, Tail
from occupancy.journal import boot_id
from occupancy.views.live import NARROWEST, OPEN_ROWS, LiveCalls, Snapshot, frame, to_json
from occupancy.views.status_line import status_line
from occupancy.views.text import count, plain, shorten

FIXED_LINES = 13
"""Lines of a frame besides the open calls."""
TERMINAL_S, PLAIN_S = 0.5, 5.0
"""Between two frames on a terminal, and elsewhere."""


@click.command()
@click.argument("file")
@click.option("--once", is_flag=True, help="Print one frame and end.")
@click.option(
    "--interval",
    type=click.FloatRange(0.05, 3600),
    metavar="SECONDS",
    help=f"Between frames: {TERMINAL_S:g} on a terminal, else {PLAIN_S:g}.",
)
@click.option("--json", "as_json", is_flag=True, help="Frames as JSON, one a line; units are in the names.")
def command(file: str, once: bool, interval: float | None, as_json: bool) -> None:
    """Watch the calls of programs that write a journal to FILE now.

    Shows what is in flight, the last minute, the calls that have been open longest, failures and rates, until Ctrl-C.
    FILE may come later, be emptied or replaced; any number of programs may write to it. Where the output is no
    terminal, frames are printed one after another as plain text.
    """
    watched = Watched(file)
    console = Console(highlight=False)
    if once and not os.path.exists(file):
        raise ReadError(f"cannot read {file!r}: there is no such file")
    if once:
        watched.read_all()
        now_ns = time.monotonic_ns()
        click.echo(watched.json(now_ns) if as_json else watched.frame(now_ns, _width(console)).plain)
        return
    show = _as_json if as_json else _on_terminal if console.is_terminal else _as_text
    try:
        with _ended_by_signals():
            show(watched, console, interval)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:  # whoever read us has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _on_terminal(watched: "Watched", console: Console, interval_s: float | None) -> None:
    """Draw in place, also while a long file is read for the first time."""
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:

        def show(now_ns: int) -> None:
            rows = max(min(console.height - FIXED_LINES, OPEN_ROWS * 2), 3)
            live.update(watched.frame(now_ns, _width(console), rows), refresh=True)

        _follow(watched, interval_s or TERMINAL_S, show)


def _as_text(watched: "Watched", console: Console, interval_s: float | None) -> None:
    watched.read_all()
    _follow(
        watched, interval_s or PLAIN_S, lambda now_ns: click.echo(watched.frame(now_ns, _width(console)).plain + "\n")
    )


def _as_json(watched: "Watched", console: Console, interval_s: float | None) -> None:
    watched.read_all()
    _follow(watched, interval_s or PLAIN_S, lambda now_ns: click.echo(watched.json(now_ns)))


def _follow(watched: "Watched", interval_s: float, show: Callable[[int], None]) -> NoReturn:
    next_s = 0.0
    while True:
        more = watched.read()
        now_s = time.monotonic()
        if now_s >= next_s:
            show(time.monotonic_ns())
            next_s = time.monotonic() + interval_s
        elif not more:
            time.sleep(next_s - now_s)


def _width(console: Console) -> int:
    return max(console.width, NARROWEST) if console.is_terminal else 80


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """End as by Ctrl-C when asked to terminate: the terminal gets its cursor back."""

    def interrupt(number: int, stack: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Watched:
    """A journal that grows, and what is known of its calls.

    Args:
        path: The file; it may come later.
        skip_bytes: What is left out of it, from its begin.

    Raises:
        ReadError: It is there, and is no journal or cannot be read.
    """

    def __init__(self, path: str, skip_bytes: int = 0) -> None:
        self._path = path
        self._file = FollowedFile(path, skip_bytes)
        self._tail = Tail(path, Clock(boot_id(), time.time_ns() - time.monotonic_ns()))
        self._calls = LiveCalls()
        self._is_journal = False

    def read(self) -> bool:
        """Read the next piece of what has been written since; tell whether there may be more."""
        piece = self._file.read()
        if piece and not self._is_journal:
            self._is_journal = any(line.startswith(PREFIX.encode()) for line in piece.split(b"\n"))
            if not self._is_journal:
                beginning = piece[:40].decode("utf-8", "replace").splitlines()[0]
                raise ReadError(f"{self._path}: no journal of occupancy; it begins with {beginning!r}")
        for process, call in self._tail.feed(piece):
            self._calls.take(process, call)
        return bool(piece)

    def read_all(self) -> None:
        """Read all that is there."""
        while self.read():
            pass

    def line(self, now_ns: int, width: int) -> str:
        """Say what is known now in one line."""
        return status_line(self._snapshot(now_ns), now_ns, width)

    def frame(self, now_ns: int, width: int, rows: int = OPEN_ROWS) -> Text:
        """Draw what is known now."""
        state = self._state()
        heading = Text(f"{shorten(plain(self._path), width - len(state) - 2)}: {state}", style="dim")
        return Text("\n").join([heading, frame(self._snapshot(now_ns), now_ns, width, rows, self._notes())])

    def json(self, now_ns: int) -> str:
        """Give what is known now as one line of JSON."""
        head = {"file": self._path, "found": self._file.found, "n_processes": self._tail.processes}
        return json.dumps({**head, **to_json(self._snapshot(now_ns), now_ns), "n_bad_lines": self._tail.bad})

    def _snapshot(self, now_ns: int) -> Snapshot:
        self._calls.look_for_processes(now_ns, self._is_running)
        return self._calls.snapshot(now_ns)

    def _state(self) -> str:
        if not self._file.found:
            return "waiting for the file"
        behind = self._file.behind_bytes
        written = f"written by {self._tail.processes} process" + ("es" if self._tail.processes != 1 else "")
        return written + (f", {behind / 1e6:.0f} MB to be read" if behind >= PIECE_BYTES else "")

    def _notes(self) -> Iterator[str]:
        if self._tail.bad:
            yield ""
            yield f"{count(self._tail.bad, 'bad line')}, the last: {self._tail.last_bad}"

    def _is_running(self, process: str) -> bool:
        pid = self._tail.pid(process)
        if pid is None:
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except OSError:  # it is another user's
            pass
        return True
