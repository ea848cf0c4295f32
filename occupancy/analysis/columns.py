"""Calls as columns: one numpy array for each field of `Call`, the input of every analysis."""

import typing
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from occupancy.call import FIELD_TYPES, FIELDS, Call

MISSING: int = int(np.iinfo(np.int64).min)
"""None in an int64 column; the bit pattern of NaT, so that a view as `datetime64` or `timedelta64` shows NaT."""

Columns = Mapping[str, NDArray[Any]]
"""Arrays of one length, keyed by the names in `FIELDS`.

int64 for integers and ns (`MISSING` for None), int64 0 / 1 / `MISSING` for booleans, float64 for `retry_after_s` (NaN
for None), object arrays of str or None for strings, and for `call_stack` an object array of tuples of `Frame`.
"""


def columns_of(calls: Iterable[Call]) -> dict[str, NDArray[Any]]:
    """Give calls as columns.

    Args:
        calls: Any number of calls, in any order, which is kept.

    Returns:
        One array for each name in `FIELDS`, as long as there are calls; without calls, empty arrays of the same types.
    """
    # Each call is looked at once: a million of them, in another order than they lie in memory, are slow to visit.
    values = list(zip(*map(attrgetter(*FIELDS), calls), strict=True)) or [()] * len(FIELDS)
    return {name: _column(values[place], DTYPES[name]) for place, name in enumerate(FIELDS)}


def _column(values: Sequence[Any], dtype: type) -> NDArray[Any]:
    if dtype is object:
        return np.fromiter(values, dtype=object, count=len(values))
    missing = np.nan if dtype is np.float64 else MISSING
    return np.array([missing if value is None else value for value in values], dtype=dtype)


def calls_of(columns: Columns, origin_ns: int = 0) -> list[Call]:
    """Give columns as calls: what `columns_of` undoes.

    Args:
        columns: All fields.
        origin_ns: Second 0 of the calls' log on the clock of their stamps.

    Returns:
        One call for each row, in order; empty for columns of no length.
    """
    values = (values_of(name, columns[name]) for name in FIELDS)
    return [Call(*row) for row in zip(*values, repeat(origin_ns), strict=False)]


def values_of(name: str, column: NDArray[Any]) -> list[Any]:
    """Give the column of a field as what the field holds: ints, bools, None, ..."""
    if column.dtype == object:
        return list(column)
    is_absent = np.isnan(column) if column.dtype == np.float64 else column == MISSING
    if is_absent.all():
        return [None] * column.size
    values: list[Any] = column.tolist()
    if bool in FIELD_TYPES[name]:
        values = list(map({0: False, 1: True}.get, values))
    elif is_absent.any():
        values = [None if absent else value for absent, value in zip(is_absent.tolist(), values, strict=True)]
    return values


def _dtype(hint: Any) -> type:
    types = {hint, *typing.get_args(hint)}
    if types & {int, bool}:
        return np.int64
    return np.float64 if float in types else object


DTYPES: dict[str, type] = {name: _dtype(hint) for name, hint in typing.get_type_hints(Call).items() if name in FIELDS}
"""numpy type of the column of each field."""

ABSENT: dict[str, Any] = {name: column[0] for name, column in columns_of([Call()]).items()}
"""What the column of each field holds where a call does not tell: the default of `Call`."""
