"""Our CSV: one row for each call, exact, with one line of metadata that pandas skips with `comment="#"`.

Stamps are ns since the log's origin, so they stay small; the metadata say when that was. The first columns repeat the
most asked for in seconds and ms. An absent value is an empty field.
"""

import csv
import json
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from occupancy.analysis.columns import Columns
from occupancy.call import FIELD_TYPES, FIELDS, Call
from occupancy.errors import InputError, ReadError
from occupancy.formats.call_records import checked, field_value
from occupancy.formats.csv_rows import rows_of
from occupancy.formats.csv_texts import texts_of, times_of
from occupancy.formats.recording import ColumnRecording, Recording, as_columns, joined, number_calls
from occupancy.formats.spans import UNREADABLE, reason_of, shown
from occupancy.formats.times import FAR_NS
from occupancy.formats.writing import write

if TYPE_CHECKING:
    from occupancy.log import OccupancyLog

SCHEMA = 1
PREFIX = "# occupancy "
"""How the file begins."""

BATCH = 1000
"""Rows that are written at once."""
HEADINGS = ("t0_s", "t_first_s", "t1_s", "wait_first_ms", "total_ms", *FIELDS)


def dump(log: "OccupancyLog", path: str | os.PathLike[str], what: str = "calls") -> None:
    """Write a log to a file.

    Args:
        log: The log; calls that are open are written too, without an end.
        path: The file; replaced when there.
        what: `calls`, or `steps` for the step function as `t_s,in_flight`.

    Raises:
        InputError: `what` is neither, or the file cannot be written.
    """
    writers: dict[str, Callable[[OccupancyLog], Iterator[str]]] = {"calls": pieces, "steps": _step_lines}
    if what not in writers:
        raise InputError(f"what must be one of {', '.join(writers)}, not {what!r}")
    write(path, writers[what](log))


def _metadata(log: "OccupancyLog") -> str:
    metadata = {"schema": SCHEMA, "origin_unix_ns": log.origin_unix_ns, "peak": log.peak, "dropped": log.dropped}
    return PREFIX + json.dumps(metadata) + "\n"


def pieces(log: "OccupancyLog") -> Iterator[str]:
    """A log as the text of a CSV file, line by line."""
    yield _metadata(log)
    yield ",".join(HEADINGS) + "\n"
    columns = log.columns()
    for first in range(0, len(columns["start_ns"]), BATCH):
        yield from _call_lines({name: column[first : first + BATCH] for name, column in columns.items()}, log.origin_ns)


def _call_lines(columns: Columns, origin_ns: int) -> Iterator[str]:
    start_ns, first_ns, end_ns = (columns[name] for name in ("start_ns", "first_byte_ns", "end_ns"))
    derived = [
        *(times_of(stamp_ns, origin_ns, 1e9) for stamp_ns in (start_ns, first_ns, end_ns)),
        *(times_of(stamp_ns, start_ns, 1e6) for stamp_ns in (first_ns, end_ns)),
    ]
    fields = [texts_of(name, columns[name], origin_ns) for name in FIELDS]
    return (",".join(row) + "\n" for row in zip(*derived, *fields, strict=True))


def _step_lines(log: "OccupancyLog") -> Iterator[str]:
    steps = log.steps()
    yield _metadata(log)
    yield "t_s,in_flight\n"
    for t_ns, in_flight in zip(steps.t_ns.tolist(), steps.in_flight.tolist(), strict=True):
        yield f"{(t_ns - log.origin_ns) / 1e9:.9f},{in_flight}\n"


def recognise(beginning: str) -> bool:
    """Whether a text begins as our CSV; a spreadsheet has put that into quotes."""
    return beginning.removeprefix('"').startswith(PREFIX)


def read(text: str, name: str) -> ColumnRecording:
    """Read the calls of a CSV file, or of several that were put one behind another.

    Args:
        text: Its contents.
        name: The file's name, for messages.

    Returns:
        The calls on a clock whose 0 is the first log's origin.

    Raises:
        ReadError: The metadata are missing, are of a newer version, or a needed column is missing.
    """
    parts: list[Recording] = []
    headings: list[str] = []
    seen: set[tuple[str, ...]] = set()
    for line, row in rows_of(text):
        try:
            if isinstance(row, csv.Error):
                raise ValueError(str(row))
            if row[0].startswith(PREFIX):
                origin_unix_ns, headings = _read_metadata(",".join(row).rstrip(","), f"{name}:{line}"), []
                parts.append(Recording(origin_unix_ns=origin_unix_ns))
                seen.clear()
            elif not headings:
                headings = _read_headings(row, name)
            elif tuple(row) not in seen:
                seen.add(tuple(row))
                parts[-1].calls.append(_read_call(dict(zip(headings, row, strict=False)), origin_unix_ns))
        except UNREADABLE as error:
            parts[-1].bad_rows.append(f"{name}:{line}: {reason_of(error)}")
    if not headings:
        _read_headings([], name)
    for part in parts:
        if len({call.call_id for call in part.calls}) < len(part.calls):  # rows of several files
            number_calls([(call.pid, call) for call in part.calls])
    return joined([as_columns(part) for part in _distinct(parts)])


def _distinct(parts: list[Recording]) -> list[Recording]:
    """Those that are no copy of one before: of calls with ids and stamps, no two logs hold the same."""
    found: list[Recording] = []
    for part in parts:
        if not any((part.origin_unix_ns, part.calls) == (one.origin_unix_ns, one.calls) for one in found):
            found.append(part)
        else:
            found[-1].bad_rows += part.bad_rows
    return found


def _read_headings(row: list[str], name: str) -> list[str]:
    if "start_ns" not in row:
        raise ReadError(f"{name}: no column start_ns: this is no CSV file of calls")
    return row


def _read_metadata(head: str, place: str) -> int:
    try:
        metadata = json.loads(head.removeprefix(PREFIX))
        schema, origin_unix_ns = int(metadata["schema"]), int(metadata["origin_unix_ns"])
        if not 0 <= origin_unix_ns < FAR_NS:
            raise ValueError(f"origin_unix_ns cannot be {shown(origin_unix_ns)}")
    except UNREADABLE as error:
        raise ReadError(f"{place}: the metadata cannot be read: {reason_of(error)}") from error
    if schema > SCHEMA:
        raise ReadError(f"{place}: version {schema} is newer than this occupancy, which reads up to {SCHEMA}")
    return origin_unix_ns


def _read_call(row: dict[str, str], origin_unix_ns: int) -> Call:
    values = {name: _read_value(name, row[name]) for name in FIELDS if row.get(name)}
    if "start_ns" not in values:
        raise ValueError("start_ns is missing")
    return checked(Call(**values), origin_unix_ns)


def _read_value(name: str, text: str) -> Any:
    try:
        value = json.loads(text) if name == "call_stack" else _PARSERS[name](text)
    except (ValueError, KeyError):
        raise ValueError(f"{name} cannot be {shown(text)}") from None
    return field_value(name, value)


def _parser(types: tuple[type, ...]) -> Callable[[str], Any]:
    if bool in types:
        return {"true": True, "false": False}.__getitem__
    return int if int in types else float if float in types else str


_PARSERS = {name: _parser(types) for name, types in FIELD_TYPES.items()}
