"""Calls that were recorded elsewhere, counted anew: what a log of them is made of."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from occupancy.analysis.columns import MISSING, Columns, calls_of
from occupancy.analysis.running_count import RunningCount, count_again
from occupancy.call import Call
from occupancy.errors import InputError


class RecordedCalls:
    """Calls that have ended, all of them, as the columns they came in; to a log what `Rows` is while it records.

    Args:
        columns: All fields; they are not copied, and not to be changed from now on.
    """

    dropped = 0

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self.total = len(columns["start_ns"])

    def __len__(self) -> int:
        return self.total

    def add(self, call: Call, in_flight_start: int | None, in_flight_end: int | None) -> None:
        """Refuse a call.

        Raises:
            InputError: Always.
        """
        raise InputError("a log of recorded calls records no further ones")

    def calls(self, origin_ns: int) -> list[Call]:
        """All calls, in order."""
        return calls_of(self._columns, origin_ns)

    def arrays(self, names: Iterable[str]) -> dict[str, NDArray[Any]]:
        """Columns, which are read-only."""
        return {name: self._columns[name] for name in names}


class Recorded(NamedTuple):
    """A log's contents."""

    ended: RecordedCalls
    """In the order of their releases."""
    opened: list[Call]
    running: RunningCount


def recount(columns: Columns) -> Recorded:
    """Put calls in the order of their releases, and count them by their stamps, whatever was counted before.

    Args:
        columns: All fields, in any order, each call with a `call_id` of its own; those without an end are open. Where
            it is not known when a call was released, that was at its end.
    """
    start_ns, end_ns, released_ns = (columns[name] for name in ("start_ns", "end_ns", "released_ns"))
    left_ns = np.where(released_ns == MISSING, end_ns, released_ns)
    left_ns = np.where(left_ns == MISSING, MISSING, np.maximum(left_ns, start_ns))
    found = {**columns, "released_ns": left_ns}
    running = count_again(found)
    found |= {"in_flight_start": running.in_flight_start, "in_flight_end": running.in_flight_end}
    order = np.argsort(np.where(left_ns == MISSING, np.iinfo(np.int64).max, left_ns), kind="stable")
    if (np.diff(order) != 1).any():  # most files are in order
        found = {name: column[order] for name, column in found.items()}
    n_ended = int(np.count_nonzero(left_ns != MISSING))
    ended = {name: column[:n_ended] for name, column in found.items()}
    for column in ended.values():
        column.setflags(write=False)
    opened = calls_of({name: column[n_ended:] for name, column in found.items()})
    return Recorded(RecordedCalls(ended), opened, running)
