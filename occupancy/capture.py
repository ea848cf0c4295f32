"""Switching the capture on and off, and the process's log."""

import atexit
import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager

from occupancy import _guard
from occupancy.errors import InputError
from occupancy.instrumentation import hooks
from occupancy.ledger import ledger
from occupancy.log import OccupancyLog
from occupancy.settings import Settings, read_settings

_process_log: OccupancyLog | None = None
_span_log: OccupancyLog | None = None
"""The log that an `OccupancySpanProcessor` was given: its counts go on the spans, whatever else records."""


def process_log() -> OccupancyLog | None:
    """The process's log, or None before `instrument`."""
    return _process_log


def instrument(log: OccupancyLog | None = None, *, dependence: bool | None = None) -> OccupancyLog:
    """Record every call of this process from now on.

    Clients made before and after are seen, and clients imported later. Repeats are harmless.

    Args:
        log: What the process's log is to be; by default a new one, which streams to `OCCUPANCY_JOURNAL`.
        dependence: Whether to look for signs that one call needs another; by default what `OCCUPANCY_DEPENDENCE` says.

    Returns:
        The process's log: the same one each time.

    Raises:
        InputError: `OCCUPANCY_JOURNAL` names a file that cannot be opened, or the process has another log already.
    """
    global _process_log
    settings = _settings(dependence)
    if _process_log is None:
        _process_log = OccupancyLog(journal=settings.journal) if log is None else log
    elif log not in (None, _process_log):
        raise InputError("the process has a log already: occupancy.instrument() gives it")
    record_into(_process_log, settings, first=True)
    if _span_log in ledger.logs:
        record_for_spans(_span_log)
    return _process_log


def begin() -> OccupancyLog:
    """`instrument`, also where the journal cannot be written: that is told, and recording goes on without it."""
    try:
        return instrument()
    except InputError as error:
        _guard.tell(f"{error}; recording goes on without it")
        return instrument(OccupancyLog())


def uninstrument() -> None:
    """Record no further calls in the process's log; those in flight are kept to their ends.

    The hooks are taken out unless a `record()` block still needs them. Without `instrument()` before it, nothing
    happens.
    """
    if _process_log is not None:
        stop_recording(_process_log)


@contextmanager
def record(
    capacity: int = 100_000, journal: str | os.PathLike[str] | None = None, *, dependence: bool | None = None
) -> Iterator[OccupancyLog]:
    """Record the calls that start in a block, in any thread or task, in a log of its own.

    Args:
        capacity: Calls kept, the newest.
        journal: A file to append each start and end to, as they happen.
        dependence: Whether to look for signs that one call needs another, from now on until nothing records; by default
            what `OCCUPANCY_DEPENDENCE` says.

    Yields:
        The log. It goes on to count the calls that are in flight when the block ends, to their ends.

    Raises:
        InputError: `capacity` is below 1, or the journal cannot be opened.
    """
    log = OccupancyLog(capacity, journal)
    record_into(log, _settings(dependence))
    try:
        yield log
    finally:
        stop_recording(log)


def _settings(dependence: bool | None) -> Settings:
    settings = read_settings()
    return settings if dependence is None else dataclasses.replace(settings, dependence=dependence)


def record_into(log: OccupancyLog, settings: Settings | None = None, *, first: bool = False) -> None:
    """Let a log record every call from now on."""
    hooks.install(settings or read_settings())
    ledger.attach(log, first=first)


def record_for_spans(log: OccupancyLog) -> None:
    """Let a log record every call from now on, and put its counts on the spans."""
    global _span_log
    _span_log = log
    record_into(log, first=True)


def stop_recording(log: OccupancyLog) -> None:
    """Let a log record no further calls; take the hooks out with the last one."""
    ledger.detach(log)
    if not ledger.logs:
        hooks.remove()


# After the reports that are registered later and before the interpreter goes: what is still open ends as abandoned.
atexit.register(_guard.guarded(ledger.abandon_open))
