"""`occupancy.read`: a file of calls as a log, its format known by its contents."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from occupancy.errors import ReadError
from occupancy.formats import journal_lines, occupancy_csv
from occupancy.formats.recording import Recording
from occupancy.log import OccupancyLog

_READERS: tuple[tuple[str, Callable[[str, str], Recording]], ...] = (
    (occupancy_csv.PREFIX, occupancy_csv.read),
    (journal_lines.PREFIX, journal_lines.read),
)


def read(path: str | os.PathLike[str]) -> OccupancyLog:
    """Read a file of calls: a CSV of `dump_csv` or a journal.

    Args:
        path: The file.

    Returns:
        A log of its calls; what could not be read is in `bad_rows`.

    Raises:
        ReadError: The file is missing, is of no format we read, or holds no call that can be read.
    """
    name = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ReadError(f"cannot read {name!r}: {error.strerror}") from error
    for prefix, reader in _READERS:
        if text.startswith(prefix):
            with _no_collection():
                return _to_log(reader(text, name), name)
    beginning = text[:40].splitlines()[0] if text.strip() else "nothing"
    raise ReadError(f"{name}: neither a CSV file nor a journal of occupancy; it begins with {beginning!r}")


@contextmanager
def _no_collection() -> Iterator[None]:
    """Records hold no cycles: to look for some among a million takes a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _to_log(recording: Recording, name: str) -> OccupancyLog:
    if not recording.calls and recording.bad_rows:
        raise ReadError(f"{name}: none of {len(recording.bad_rows)} rows can be read; first: {recording.bad_rows[0]}")
    return OccupancyLog.from_calls(
        recording.calls,
        origin_ns=recording.origin_ns,
        origin_unix_ns=recording.origin_unix_ns,
        bad_rows=recording.bad_rows,
    )
