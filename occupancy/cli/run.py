"""`occupancy run`."""

import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

from occupancy import _guard, capture, reporting
from occupancy.call import Call
from occupancy.cli import program as programs
from occupancy.errors import InputError
from occupancy.instrumentation import provider
from occupancy.journal import Journal
from occupancy.log import OccupancyLog
from occupancy.settings import Settings, read_settings


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-m", "as_module", is_flag=True, help="PROGRAM is a module, as in python -m.")
@click.option("--journal", metavar="FILE", help="Where the calls go, instead of a new occupancy-*.jsonl here.")
@click.option("--otlp", metavar="URL", help="Export the calls as spans to the OTLP collector that listens there.")
@click.option("--no-report", is_flag=True, help="Say nothing at the end.")
@click.option("--live", is_flag=True, help="Show what is in flight now, in the last row of the terminal.")
@click.argument("program")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(
    *,
    as_module: bool,
    journal: str | None,
    otlp: str | None,
    no_report: bool,
    live: bool,
    program: str,
    args: tuple[str, ...],
) -> Callable[[], int]:
    """Run a Python PROGRAM as it is, and trace its calls.

    Options of ours come before PROGRAM; all behind it is its own. Its input, output, arguments, exit code and signals
    are as under python. The calls go to a journal as they happen; a report on stderr at the end names it.

    Traced is the process itself, with what it forks. Programs that it starts are not traced.

    --live is for programs that print line by line; of one that draws on the whole screen, `occupancy watch` shows the
    journal in another terminal.
    """
    settings = read_settings()
    log = OccupancyLog()
    log.journal = late_journal = _journal(journal or settings.journal)
    if otlp is not None:
        from occupancy.instrumentation import destination

        destination.set_collector(otlp)
    find = programs.find_module if as_module else programs.find_script

    def start() -> int:
        try:
            found = find(program, list(args))
        except programs.CannotRunError as error:
            click.echo(f"occupancy: {error}", err=True)
            return error.exit_code
        if settings.enabled:
            _record(log, settings, with_report=not no_report)
            if live:
                _show_beside(late_journal.path)
        _forget_click()
        programs.run(found)
        return 0

    return start


def _record(log: OccupancyLog, settings: Settings, *, with_report: bool) -> None:
    provider.exports_alone = True
    capture.instrument(log)
    if with_report and settings.report:
        reporting.report_at_exit()


def _show_beside(journal: Path) -> None:
    from occupancy.cli.live_line import show_beside

    if not _guard.guarded(show_beside)(journal):
        more = f"occupancy watch {shlex.quote(reporting.short_path(str(journal)))}"
        reporting.tell(f"occupancy: --live needs a terminal; from another one: {more}")


def _forget_click() -> None:
    """The program gets the `click` that it would find itself, which may be a file of its own."""
    for name in list(sys.modules):
        if name.partition(".")[0] == "click":
            del sys.modules[name]


class LateJournal(Journal):
    """A journal whose file is made by the first call: a program without calls leaves none behind.

    Args:
        path: The file; a relative one holds also when the program changes its folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._prepare(Path(path).absolute())
        self._waits = True

    def start(self, call: Call) -> None:
        """Write that a call has started; make the file before the first one."""
        if self._waits:
            self._waits = False
            try:
                self._open()
            except InputError as error:
                reporting.tell(f"occupancy: {error}; recording goes on without it")
        super().start(call)


def _journal(path: str | None) -> LateJournal:
    """Give a journal: a new one here, or that of a path, which must be writable.

    Raises:
        InputError: It cannot be written; nothing has run yet.
    """
    if path is None:
        return LateJournal(_new_name())
    is_new = not os.path.lexists(path)
    Journal(path).close()
    if is_new:
        os.unlink(path)
    return LateJournal(path)


def _new_name() -> str:
    """Give a name that no file has; the process id keeps runs apart that begin in one second."""
    stem = f"occupancy-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    name, number = f"{stem}.jsonl", 1
    while os.path.lexists(name):
        number += 1
        name = f"{stem}-{number}.jsonl"
    return name
