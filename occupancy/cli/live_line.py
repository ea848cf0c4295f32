"""`occupancy run --live`: a second process follows the journal and shows a line at the bottom of the terminal.

It writes to the terminal itself: the program's own output, piped or not, is not touched, and no thread runs beside the
program. It is no child of the program's, which may wait for its own; it ends with it, however that ends.
"""

import atexit
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

TICK_S = 0.25
"""Between two looks."""
PATIENCE_S = 1.0
"""How long the program's end waits for the terminal to be as it was."""
IGNORED = ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGTSTP", "SIGTTIN", "SIGTTOU")
"""What the terminal and the shell send to all processes of the program: it says by ending what it makes of them."""


def show_beside(journal: Path) -> bool:
    """Show what a journal tells from now on, until this process ends.

    Args:
        journal: The file; it may come later. What is in it already is not shown.

    Returns:
        Whether there is a terminal to show it on.
    """
    terminal = _open_terminal()
    if terminal is None:
        return False
    skip_bytes = journal.stat().st_size if journal.exists() else 0
    ours, theirs = socket.socketpair()
    middle = os.fork()
    if not middle:
        _leave_behind(journal, skip_bytes, terminal, theirs.detach())
    os.close(terminal)
    theirs.close()
    os.waitpid(middle, 0)
    link = Link(ours.detach())
    os.register_at_fork(after_in_child=link.close)
    atexit.register(link.end)
    return True


def _open_terminal() -> int | None:
    """The terminal of this process, if it understands more than letters."""
    if os.environ.get("TERM", "dumb") == "dumb" or not hasattr(os, "fork"):
        return None
    with suppress(OSError):
        return os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    return None


class Link:
    """The program's end of the connection to the process beside it.

    Args:
        fd: A socket. The program may close what it has not opened: it is looked at before it is used.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pid = os.getpid()
        self._identity = self._found()

    def _found(self) -> tuple[int, int] | None:
        with suppress(OSError):
            found = os.fstat(self._fd)
            return found.st_dev, found.st_ino
        return None

    def close(self) -> None:
        """In a forked child: the parent's end alone is waited for."""
        if self._found() == self._identity:
            os.close(self._fd)

    def end(self) -> None:
        """Wait until the terminal is as it was. What comes after this is the shell's, or our report."""
        if os.getpid() != self._pid or self._found() != self._identity:
            return
        with suppress(OSError, KeyboardInterrupt), socket.socket(fileno=self._fd) as link:
            link.shutdown(socket.SHUT_WR)
            link.settimeout(PATIENCE_S)
            if not link.recv(1):  # it has been killed
                _give_back()


def _give_back() -> None:
    from occupancy.cli.status_bar import GIVE_BACK

    terminal = _open_terminal()
    if terminal is not None:
        os.write(terminal, GIVE_BACK.encode())
        os.close(terminal)


# The process beside the program


def _leave_behind(journal: Path, skip_bytes: int, terminal: int, link: int) -> NoReturn:
    """In a forked child: leave a child of one's own behind, which nobody waits for, and end."""
    try:
        if not os.fork():
            _follow(journal, skip_bytes, terminal, link)
    finally:
        os._exit(0)


def _follow(journal: Path, skip_bytes: int, terminal: int, link: int) -> None:
    for name in IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    _keep_open(terminal, link)
    if not sys.flags.safe_path:
        del sys.path[0]  # the program's folder, with files that may be named as libraries are
    from occupancy.cli.status_bar import StatusBar
    from occupancy.cli.watch import Watched

    bar = StatusBar(terminal)
    signal.signal(signal.SIGWINCH, lambda *_: bar.resized())
    try:
        watched = Watched(str(journal), skip_bytes)
        pause_s = 0.0
        while not select.select([link], [], [], pause_s)[0]:
            began_s = time.monotonic()
            watched.read_all()
            bar.show(lambda columns: watched.line(time.monotonic_ns(), columns))
            pause_s = max(TICK_S, 10 * (time.monotonic() - began_s))  # a long minute is looked at less often
    finally:
        bar.give_back()
        os.write(link, b"1")


def _keep_open(*fds: int) -> None:
    """Close all other files: whoever reads from the program must see its end."""
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):
            if int(name) not in fds:
                os.close(int(name))
    for fd in {0, 1, 2}.difference(fds):
        os.dup2(os.open(os.devnull, os.O_RDWR), fd)
