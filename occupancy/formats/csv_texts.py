"""Columns of calls as the texts of our CSV, many of one field at a time: an absent value is empty."""

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from occupancy.analysis.columns import MISSING, values_of
from occupancy.analysis.steps import Int64
from occupancy.call import STAMPS, Frame


class _Texts(dict[Any, str]):
    """Values by what is written of them: equal ones are looked at once."""

    def __missing__(self, value: Any) -> str:
        self[value] = text = _text(value)
        return text


def texts_of(name: str, column: NDArray[Any], origin_ns: int) -> list[str]:
    """Write the column of a field; stamps as ns since `origin_ns`."""
    if name in STAMPS:
        column = np.where(column == MISSING, MISSING, column - origin_ns)
    values = values_of(name, column)
    if column.dtype == object or {*map(type, values)} & {bool}:
        return list(map(_Texts().__getitem__, values))
    return ["" if value is None else str(value) for value in values]


def times_of(stamp_ns: Int64, since_ns: Int64 | int, unit_ns: float) -> list[str]:
    """Write how long after some other time each stamp was, in a unit."""
    is_missing, times = (stamp_ns == MISSING).tolist(), ((stamp_ns - since_ns) / unit_ns).tolist()
    return ["" if missing else str(time) for missing, time in zip(is_missing, times, strict=True)]


def _text(value: str | bool | tuple[Frame, ...] | None) -> str:
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = json.dumps(value, separators=(",", ":")) if isinstance(value, tuple) else str(value)
    # pandas takes a "#" for a comment, unless it is quoted.
    return '"' + text.replace('"', '""') + '"' if any(sign in text for sign in ',"#\r\n') else text
