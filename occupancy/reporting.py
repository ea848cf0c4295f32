"""The report: on stderr when the program ends, or whenever it asks for one.

    occupancy.report()

At exit it comes once, and only from the process that began it: workers, forked or spawned, stay quiet unless
`OCCUPANCY_REPORT_CHILDREN=1` asks for theirs. (A worker that leaves by `os._exit` or a signal runs no exit handlers and
cannot report, as those of a `multiprocessing` pool; its calls are in the journal.)

With a journal it covers the process and all that it has forked; of others it says what is known.

Everything is plain ASCII and at most 80 columns wide, but for the path of a journal. What writes it is imported then:
a program pays for numpy at its end and not at its start.
"""

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic_ns
from types import ModuleType
from typing import TextIO

from occupancy import _guard, capture, processes
from occupancy.caller.user_code import origin
from occupancy.log import OccupancyLog
from occupancy.settings import read_settings

WIDTH, NARROWEST = 80, 60
"""Columns of a report, and of one on a narrow terminal."""

SEEN_CLIENTS = ("httpx2", "httpx", "aiohttp", "requests", "botocore", "urllib3", "urllib.request", "http.client")
"""Clients that are traced by themselves."""
OTHER_CLIENTS = ("pycurl", "tornado.httpclient", "grpc")
"""Clients that are traced by hand."""
ABOVE_HTTP_CLIENT = (*(name for name in SEEN_CLIENTS if name != "http.client"), *OTHER_CLIENTS)
BENEATH = {
    "urllib3": ("requests", "botocore"),
    "urllib.request": tuple(name for name in ABOVE_HTTP_CLIENT if name != "urllib.request"),
    "http.client": ABOVE_HTTP_CLIENT,
}
"""Clients that others import: named beside one of those only where the user's own code has imported them too."""

_registered = False
_told: tuple[int, ...] | None = None
"""What had happened when stderr was last told."""


def report(file: TextIO | None = None) -> None:
    """Print how many calls the process has had in flight so far, and where its time went.

    Args:
        file: Where to; `sys.stderr` if None. The report at exit still comes when calls have started or ended since, or
            when this one went elsewhere.
    """
    global _told
    stream = sys.stderr if file is None else file
    log = capture.process_log()
    if log is None:
        text = "occupancy: nothing is recorded: import occupancy.auto, or call occupancy.instrument()"
    else:
        if stream is sys.stderr:
            _told = _happened(log)
        text = report_text(log, _width(stream))
    print(text, file=stream)


def report_at_exit() -> None:
    """Have this process report on stderr when it ends. Repeats are harmless."""
    global _registered
    if not _registered:
        _registered = True
        processes.begin()
        atexit.register(_at_exit, os.getpid())


def tell(text: str) -> None:
    """Print to stderr, in whatever state that is: a closed or broken one changes nothing, the exit code neither.

    Args:
        text: Lines without a last newline.
    """
    stream = sys.stderr
    if stream is None:
        return
    with suppress(Exception), _without_sigpipe():
        stream.flush()
        data = (text + "\n").encode(getattr(stream, "encoding", None) or "utf-8", "backslashreplace")
        try:
            fd = stream.fileno()
        except (AttributeError, OSError, ValueError):
            stream.write(text + "\n")
            return
        # Past the stream's buffer: what stays in it when nobody reads would make Python exit with 120.
        while data:
            data = data[os.write(fd, data) :]


def _at_exit(pid: int) -> None:
    with suppress(KeyboardInterrupt):  # a second Ctrl-C: no report then
        _guard.guarded(_report_once)(pid)


def _report_once(pid: int) -> None:
    log = capture.process_log()
    if log is None or _told == _happened(log) or (_is_worker(pid) and not read_settings().report_children):
        return
    with suppress(Exception):
        sys.stdout.flush()  # the report comes last, also where both go to one file
    ends_by_interrupt = _ends_by_interrupt()
    try:
        tell("\n" + report_text(log, _width(sys.stderr)))
    finally:
        if ends_by_interrupt:
            _remember_interrupt()


def _happened(log: OccupancyLog) -> tuple[int, ...]:
    path = None if log.journal is None else log.journal.path
    size = path.stat().st_size if path is not None and path.is_file() else 0
    return os.getpid(), log.finished, len(log.open_calls), size


def _is_worker(pid: int) -> bool:
    """Whether this process was forked since `pid` asked for a report, or is one that multiprocessing has started."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    return os.getpid() != pid or (multiprocessing is not None and multiprocessing.parent_process() is not None)


def _ends_by_interrupt() -> bool:
    """Whether the program ends because nobody has caught a Ctrl-C; not one at a prompt, after which it went on."""
    traceback = getattr(sys, "last_traceback", None)
    unhandled = traceback is not None and traceback.tb_frame.f_back is None
    return unhandled and not hasattr(sys, "ps1") and getattr(sys, "last_type", None) is KeyboardInterrupt


def _remember_interrupt() -> None:
    """Python then kills itself by SIGINT, unless code from a string has run since: numpy and dataclasses run some."""
    with suppress(KeyboardInterrupt):
        exec("raise KeyboardInterrupt")


@contextmanager
def _without_sigpipe() -> Iterator[None]:
    """A program that dies of SIGPIPE must not die of ours."""
    import signal

    sigpipe = getattr(signal, "SIGPIPE", None)  # not on Windows
    if sigpipe is None or signal.getsignal(sigpipe) is not signal.SIG_DFL:
        yield
        return
    signal.signal(sigpipe, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(sigpipe, signal.SIG_DFL)


def _width(stream: TextIO) -> int:
    with suppress(Exception):
        if stream.isatty():
            return min(max(os.get_terminal_size(stream.fileno()).columns, NARROWEST), WIDTH)
    return WIDTH


# What it says


def report_text(log: OccupancyLog, width: int = WIDTH) -> str:
    """Give the report on a live log.

    Args:
        log: The log.
        width: Columns, at least 60.

    Returns:
        At most 22 lines without a last newline; two or three when no call was seen.
    """
    beside = processes.look(log)
    shown = log if beside.family is None else beside.family
    if not shown.peak:
        return "\n".join([*_no_call(log, imported_clients()), *_beside(log, beside), *_more(log, beside)])
    from occupancy.views import tables

    until_ns = monotonic_ns() if shown is log else None  # before the calls are read: none of them ends later
    is_part = beside.forked or (beside.started and log.finished < 2)
    about = "of this process alone: " if is_part else ""
    lines = [tables.report(shown.columns(), width, until_ns, about=about)]
    if shown.dropped:
        lines.append(f"only the newest {log.finished - log.dropped} calls are kept; the peak of all was {log.peak}")
    return "\n".join(
        [*lines, "", *(_beside(log, beside) if is_part or beside.n_other_calls else ()), *_more(log, beside)]
    )


def _no_call(log: OccupancyLog, clients: list[str]) -> list[str]:
    others = [name for name in clients if name not in SEEN_CLIENTS]
    seen = [name for name in clients if name in SEEN_CLIENTS]
    uncounted = " but telemetry uploads" if log.finished else ""
    if not clients:
        return [f"occupancy: no call was seen{uncounted}: the program imported no HTTP client"]
    lines = [f"occupancy: no call was seen{uncounted}; HTTP clients imported: {', '.join(clients)}"]
    if seen:
        lines.append(f"{' and '.join(seen)}: traced, sent no request" + (uncounted and " that counts"))
    if others:
        name = "occupancy.auto.log" if "occupancy.auto" in sys.modules else "occupancy.instrument()"
        lines.append(f'trace {others[0]} by hand: with {name}.track("fetch"): ...')
    return lines


def _beside(log: OccupancyLog, beside: processes.Beside) -> list[str]:
    """Say what is known of other processes."""
    if beside.n_other_calls and log.journal is not None:
        calls = "1 call was" if beside.n_other_calls == 1 else f"{beside.n_other_calls} calls were"
        others = "another process" if beside.n_other_processes == 1 else f"{beside.n_other_processes} other processes"
        return [f"{calls} written to {short_path(str(log.journal.path))} meanwhile by {others}"]
    if beside.forked:
        forked = "the process" if beside.forked == 1 else f"the {beside.forked} processes"
        return [f"not in this report, but traced: {forked} that this one has forked"]
    if beside.started:
        return ["processes that this one has started are traced if they import occupancy.auto"]
    return []


def imported_clients() -> list[str]:
    """Name the HTTP clients that the program has imported, those it uses by itself first."""
    imported = [name for name in (*SEEN_CLIENTS, *OTHER_CLIENTS) if _is_there(name)]
    return [
        name
        for name in imported
        if not any(above in imported for above in BENEATH.get(name, ())) or _user_has_imported(name)
    ]


def _is_there(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and module.__name__ == name  # httpx may be another name of httpx2


def _user_has_imported(name: str) -> bool:
    """Whether a module of the user's own holds this module, or something that was defined in it."""
    holds = {id(sys.modules[name]), id(sys.modules[name.partition(".")[0]])}
    for module in list(sys.modules.values()):
        if _is_users(module):
            values = list(vars(module).values())
            if any(id(value) in holds or getattr(value, "__module__", None) == name for value in values):
                return True
    return False


def _is_users(module: ModuleType) -> bool:
    if module is sys.modules.get("__main__"):
        return True  # at exit it has lost its file
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and origin(file) is not None


def _more(log: OccupancyLog, beside: processes.Beside) -> list[str]:
    """Give the command for more: how to open the journal, or how to keep one."""
    if log.journal is None:
        if not log.finished and not log.open_calls and not beside.forked and not beside.started:
            return []
        what = "all in one report" if beside.forked else "keep the calls"
        return [f"{what}: OCCUPANCY_JOURNAL=calls.jsonl, or occupancy run script.py"]
    import shlex

    path = log.journal.path
    if not path.is_file() or not path.stat().st_size:
        return []
    return [f"more: occupancy show {shlex.quote(short_path(str(path)))}"]


def short_path(path: str) -> str:
    """Give a path as it is shortest from where the program is now."""
    with suppress(OSError, ValueError):  # its folder is gone; another drive
        return min(os.path.abspath(path), os.path.relpath(path), key=len)
    return path
