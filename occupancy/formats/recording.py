"""What every reader gives."""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from occupancy.analysis.columns import MISSING, Columns, columns_of
from occupancy.call import FIELDS, NUMBERS, STAMPS, Call


@dataclasses.dataclass(slots=True)
class Recording:
    """Calls that were read, on one monotonic clock, each with a `call_id` of its own."""

    calls: list[Call] = dataclasses.field(default_factory=list)
    origin_ns: int = 0
    """Second 0 of the recording on the clock of the calls' stamps."""
    origin_unix_ns: int = 0
    """The same moment, ns since 1970."""
    bad_rows: list[str] = dataclasses.field(default_factory=list)
    """What could not be read, as `place: reason`; the good rows are kept."""


@dataclasses.dataclass(slots=True)
class ColumnRecording:
    """The same as columns: what a reader of files gives that may hold millions of calls."""

    columns: Columns
    """All fields."""
    origin_ns: int = 0
    origin_unix_ns: int = 0
    bad_rows: list[str] = dataclasses.field(default_factory=list)


def as_columns(recording: Recording | ColumnRecording) -> ColumnRecording:
    """Give a recording as columns."""
    if isinstance(recording, ColumnRecording):
        return recording
    return ColumnRecording(
        columns_of(recording.calls), recording.origin_ns, recording.origin_unix_ns, recording.bad_rows
    )


def joined(parts: Sequence[ColumnRecording]) -> ColumnRecording:
    """Put recordings together, on the clock of the first, each with its calls numbered behind those before it.

    Args:
        parts: One or more.
    """
    first, *others = parts
    if not others:
        return first
    offset_ns, highest = first.origin_unix_ns - first.origin_ns, 0
    columns = []
    for part in parts:
        shift_ns = part.origin_unix_ns - part.origin_ns - offset_ns
        stamps = {name: _shifted(part.columns[name], shift_ns, MISSING) for name in STAMPS}
        numbers = {name: _shifted(part.columns[name], highest, 0) for name in NUMBERS}
        columns.append({**part.columns, **stamps, **numbers})
        highest = int(columns[-1]["call_id"].max(initial=highest))
    origin_unix_ns = min((part.origin_unix_ns for part in parts if part.columns["start_ns"].size), default=offset_ns)
    return ColumnRecording(
        {name: np.concatenate([part[name] for part in columns]) for name in FIELDS},
        origin_unix_ns - offset_ns,
        origin_unix_ns,
        [row for part in parts for row in part.bad_rows],
    )


def _shifted(column: NDArray[Any], by: int, above: int) -> NDArray[Any]:
    """A column, of which the values above one are shifted."""
    return np.where(column > above, column + by, column)


def number_calls(calls: Sequence[tuple[Hashable, Call]]) -> None:
    """Give each call a `call_id` of its own: the one it has, where all have different ones, else its place.

    Args:
        calls: Each with what tells its process from others, which number theirs alike; an attempt after the first.
    """
    ids = [call.call_id for _, call in calls]
    if 0 in ids or len(set(ids)) < len(ids):
        firsts: dict[Hashable, int] = {}
        for number, (process, call) in enumerate(calls, start=1):
            call.call_id = number
            if call.logical_id:
                call.logical_id = firsts.setdefault((process, call.logical_id), number)
            if call.needs:
                call.needs = firsts.get((process, call.needs))
    for _, call in calls:
        call.logical_id = call.logical_id or call.call_id
