"""The processes beside the one that reports: those that it has forked or started, those that write to its journal."""

import io
import os
from typing import NamedTuple

from occupancy import _guard
from occupancy.journal import Journal
from occupancy.ledger import ledger
from occupancy.log import OccupancyLog

MOST_BYTES = 1 << 26
"""Of a journal, what is read for a report: some 100,000 calls, and about a second."""

FAULTS_OF_PYTHON = 500
"""Page faults that an interpreter has at least; `ldconfig` or `uname`, which libraries start, have fewer than 100."""

_faults_before = 0


class Beside(NamedTuple):
    """What is known of other processes."""

    family: OccupancyLog | None = None
    """The calls of this process and of all that it has forked, where those have made some and a journal tells."""
    n_other_calls: int = 0
    """Calls that were written to the journal meanwhile, by others than those."""
    n_other_processes: int = 0
    forked: int = 0
    """Processes that were forked, and of whose calls nothing is known here."""
    started: bool = False
    """Whether programs were started that may be in Python, and of which nothing is known here."""


def look(log: OccupancyLog) -> Beside:
    """Find out what other processes have done while this one recorded.

    Args:
        log: The process's log.
    """
    journal = log.journal
    found = None if journal is None else _guard.guarded(_read)(journal)
    if found is not None and (found.family is not None or found.n_other_calls):
        return found
    unknown = 0 if found is not None else ledger.forked
    started = not ledger.forked and _faults_of_children() - _faults_before >= FAULTS_OF_PYTHON
    return Beside(forked=unknown, started=started)


def begin() -> None:
    """Leave out the processes that have been started up to now."""
    global _faults_before
    _faults_before = _faults_of_children()


def _read(journal: Journal) -> Beside | None:
    """What the journal tells; None where it is too long to be read."""
    if not journal.is_shared:
        return Beside()
    from occupancy.formats.journal_file import read_family

    with journal.path.open("rb") as file:
        file.seek(journal.begin_bytes)
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        return None
    found = read_family(io.BytesIO(data), str(journal.path), journal.process)
    recording = found.recording
    if (recording.columns["pid"] == os.getpid()).all():
        return Beside(None, found.n_other_calls, found.n_other_processes)
    log = OccupancyLog.from_columns(
        recording.columns, origin_ns=recording.origin_ns, origin_unix_ns=recording.origin_unix_ns
    )
    return Beside(log, found.n_other_calls, found.n_other_processes)


def _faults_of_children() -> int:
    """Page faults of the child processes that have ended and were waited for: each has had some."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
