"""Tables of requests to a model as traces of clusters have them: when each came, and how long it took."""

import csv
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from occupancy.call import Call, Kind, Outcome
from occupancy.errors import ReadError
from occupancy.formats.call_records import checked
from occupancy.formats.csv_rows import rows_of
from occupancy.formats.recording import Recording, number_calls
from occupancy.formats.span_fields import text, whole
from occupancy.formats.spans import UNREADABLE, reason_of
from occupancy.formats.times import FAR_NS, unix_ns

_ARRIVALS = ("timestamp",)
_ELAPSED = ("elapsed time", "elapsed", "duration", "latency")
_MODEL, _SESSION = ("model",), ("session id",)
_INPUT, _OUTPUT = ("request tokens", "contexttokens"), ("response tokens", "generatedtokens")


def recognise(head: str) -> bool:
    """Whether the first line of a file names the columns of such a table."""
    return any(column in _ARRIVALS for column in _columns(head))


def _columns(head: str) -> list[str]:
    rows = (row for _, row in rows_of(head) if not isinstance(row, csv.Error))
    return [column.strip().lower() for column in next(rows, [])]


def read(text: str, name: str) -> Recording:
    """Read the requests of a table: BurstGPT's, or any with a time of arrival and a duration, both in seconds.

    Args:
        text: Its contents.
        name: The file's name, for messages.

    Returns:
        The calls; times that count from the beginning of the trace are taken as such, from 1970.

    Raises:
        ReadError: It says when requests came, and not how long they took.
    """
    head, _, body = text.partition("\n")
    columns = _columns(head)
    if not any(column in columns for column in _ELAPSED):
        raise ReadError(
            f"{name}: column {head.split(',')[_index(columns)]!r} says when requests came, and no column how long they "
            f"took ({', '.join(_ELAPSED)}, in seconds): without durations nothing is known to be in flight"
        )
    recording = Recording()
    for line, row in rows_of(body):
        try:
            if isinstance(row, csv.Error):
                raise ValueError(str(row))
            recording.calls.append(checked(_to_call(dict(zip(columns, row, strict=False)))))
        except UNREADABLE as error:
            recording.bad_rows.append(f"{name}:{line + 1}: {reason_of(error)}")
    number_calls([(None, call) for call in recording.calls])
    recording.origin_ns = recording.origin_unix_ns = min((call.start_ns for call in recording.calls), default=0)
    return recording


def _index(columns: list[str]) -> int:
    return next(number for number, column in enumerate(columns) if column in _ARRIVALS)


def _to_call(row: Mapping[str, Any]) -> Call:
    start_ns, elapsed = _arrival_ns(_of(row, _ARRIVALS)), _of(row, _ELAPSED)
    elapsed_ns = _seconds_ns(elapsed)
    if elapsed_ns is None:
        raise ValueError(f"no duration: {elapsed!r}")
    return Call(
        run=text(_of(row, _SESSION)),
        label=text(_of(row, _MODEL)),
        kind=Kind.GENERATE,
        model=text(_of(row, _MODEL)),
        start_ns=start_ns,
        end_ns=start_ns + elapsed_ns,
        outcome=Outcome.OK,
        input_tokens=whole(_of(row, _INPUT)),
        output_tokens=whole(_of(row, _OUTPUT)),
    )


def _arrival_ns(value: Any) -> int:
    arrival_ns = _seconds_ns(value)
    return unix_ns(value) if arrival_ns is None else arrival_ns


def _seconds_ns(value: Any) -> int | None:
    try:
        ns = int(Decimal(value) * 10**9)
    except (ArithmeticError, TypeError, ValueError):  # no number, infinite
        return None
    return ns if 0 <= ns < FAR_NS else None


def _of(row: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((row[name] for name in names if row.get(name)), None)
