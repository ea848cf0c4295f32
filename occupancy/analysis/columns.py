"""Calls as columns: one numpy array for each field of `Call`, the input of every analysis."""

import typing
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from occupancy.call import FIELDS, Call

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
    rows = list(calls)
    return {name: _column([getattr(call, name) for call in rows], DTYPES[name]) for name in FIELDS}


def _column(values: list[Any], dtype: type) -> NDArray[Any]:
    if dtype is object:
        return np.fromiter(values, dtype=object, count=len(values))
    missing = np.nan if dtype is np.float64 else MISSING
    return np.array([missing if value is None else value for value in values], dtype=dtype)


def _dtype(hint: Any) -> type:
    types = {hint, *typing.get_args(hint)}
    if types & {int, bool}:
        return np.int64
    return np.float64 if float in types else object


DTYPES: dict[str, type] = {name: _dtype(hint) for name, hint in typing.get_type_hints(Call).items() if name in FIELDS}
"""numpy type of the column of each field."""
