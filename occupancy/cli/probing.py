"""What the commands that send requests share: consent, progress, results on disk, exit codes."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from occupancy.errors import InputError, OccupancyError
from occupancy.probe.errors import ProbeError

if TYPE_CHECKING:
    from occupancy.analysis.samples import Sample
    from occupancy.probe.target import Target

USAGE, INTERRUPTED = 2, 130


def guarded(run: Callable[[], int]) -> int:
    """Run a command's body: an error of ours is one line on stderr and its exit code."""
    try:
        return run()
    except OccupancyError as error:
        click.echo(f"occupancy: {error}", err=True)
        return error.exit_code if isinstance(error, ProbeError) else USAGE


def read_file(path: str) -> str:
    """Read a text file.

    Raises:
        InputError: It cannot be read.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path!r}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None


def announce(targets: "list[Target]", requests: int) -> None:
    """Say on stderr what will be sent, and what it can cost."""
    from occupancy.probe.target import Api

    where = ", ".join(dict.fromkeys(target.shown_url for target in targets))
    counted = [target for target in targets if target.api is not Api.PLAIN]
    tokens = ""
    if len(counted) == len(targets):
        out = max(target.max_tokens for target in targets)
        # One token for three characters, nonce included, is on the safe side for English.
        into = max((len(target.prompt) + 24) // 3 + 8 for target in targets)
        tokens = f", at most {requests * out} tokens out and about {requests * into} in"
    click.echo(f"{where}: at most {requests} requests{tokens}", err=True)


def ask_consent(targets: "list[Target]", *, yes: bool) -> None:
    """Stop where requests would leave this machine without `--yes`.

    Raises:
        InputError: They would.
    """
    remote = [target.shown_url for target in targets if not target.is_loopback]
    if remote and not yes:
        raise InputError(f"{remote[0]} is not on this machine, and requests may cost money: repeat with --yes")


class Progress(Protocol):
    """Told how far a probe is."""

    def begin(self, what: str, n: int) -> None:
        """A part of n requests begins."""

    def step(self, sample: "Sample") -> None:
        """A request has ended."""


@contextmanager
def progress(total: int) -> Iterator[Progress]:
    """Show a bar with the time left on a terminal's stderr, else one line for each part."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        yield _Bar(bars, bars.add_task("warm-up", total=total))


class _Lines:
    def begin(self, what: str, n: int) -> None:
        click.echo(f"  {what}: {n} requests", err=True)

    def step(self, sample: "Sample") -> None:
        pass


class _Bar:
    def __init__(self, bars: Any, task: Any) -> None:
        self._bars = bars
        self._task = task

    def begin(self, what: str, n: int) -> None:
        self._bars.update(self._task, description=what)

    def step(self, sample: "Sample") -> None:
        self._bars.advance(self._task)


def check_outputs(paths: tuple[str, ...], writers: dict[str, Callable[[str], None]]) -> None:
    """Check names of results before anything is sent.

    Raises:
        InputError: An ending is not known, or the folder is missing.
    """
    for path in paths:
        if Path(path).suffix.lower() not in writers:
            raise InputError(f"cannot write {path!r}: its name must end with one of {', '.join(writers)}")
        if not Path(path).parent.is_dir():
            raise InputError(f"cannot write {path!r}: there is no such folder")


def write_outputs(paths: tuple[str, ...], writers: dict[str, Callable[[str], None]]) -> None:
    """Write each result in the format of its ending, and name it."""
    for path in paths:
        try:
            writers[Path(path).suffix.lower()](path)
        except OSError as error:
            raise InputError(f"cannot write {path!r}: {error.strerror}") from None
        click.echo(f"wrote {path}", err=True)
