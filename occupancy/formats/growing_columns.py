"""Calls gathered as columns while a file is read: a fraction of the time and memory of a record for each."""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import lt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from occupancy.analysis.columns import ABSENT, DTYPES
from occupancy.analysis.steps import Int64

Kept: TypeAlias = "list[Any] | array[Any]"
Convert = Callable[[Sequence[Any]], Kept]
"""Makes of values as they are in a file what is kept of them, or raises."""


class GrowingColumns:
    """Rows of calls, kept by column. Rows that give the same fields lie together.

    Args:
        converters: For each field that is kept, how its values are converted: those of `Call`, and others, which are
            whole numbers.
    """

    def __init__(self, converters: Mapping[str, Convert]) -> None:
        self._converters = converters
        self._parts: dict[tuple[str, ...], _Part] = {}

    def add(self, names: tuple[str, ...], rows: Sequence[Iterable[Any]], places: Sequence[int]) -> None:
        """Add rows that give the same fields: all, or none where a value cannot be converted.

        Args:
            names: The fields.
            rows: For each row its values, in that order.
            places: For each row its place in the file: rows come out in the order of places.

        Raises:
            Exception: What a converter raises.
        """
        part = self._parts.get(names)
        if part is None:
            part = self._parts[names] = _Part([(name, self._converters.get(name)) for name in names])
        part.add(rows, places)

    def take(self) -> dict[str, NDArray[Any]]:
        """Take everything out: all fields of `Call` and what was kept besides, as columns in the order of places.

        The array of a field that no row gives is read-only.
        """
        parts = list(self._parts.values())
        self._parts = {}
        places = np.concatenate([np.array(part.places, dtype=np.int64) for part in parts] or [np.array([], np.int64)])
        order = np.argsort(places, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(order.size)
        ranks = np.split(rank, np.cumsum([len(part.places) for part in parts], dtype=np.int64))[: len(parts)]
        return {name: _column(name, parts, ranks, places.size) for name in {**ABSENT, **self._converters}}


class _Part:
    """Rows that give the same fields."""

    def __init__(self, converters: Sequence[tuple[str, Convert | None]]) -> None:
        self.places = array("q")
        self._converters = converters
        self.kept: dict[str, Kept] = {}

    def add(self, rows: Sequence[Iterable[Any]], places: Sequence[int]) -> None:
        converted = [
            (name, convert(values))
            for (name, convert), values in zip(self._converters, zip(*rows, strict=True), strict=True)
            if convert is not None
        ]
        found = dict(converted)
        if any(map(lt, found.get("end_ns", ()), found.get("start_ns", ()))):
            raise ValueError(f"ends at {found['end_ns'][0]}, before it starts, at {found['start_ns'][0]}")
        for name, values in converted:
            if name in self.kept:
                self.kept[name].extend(values)
            else:
                self.kept[name] = values
        self.places.extend(places)


def _column(name: str, parts: list[_Part], ranks: list[Int64], n: int) -> NDArray[Any]:
    """Put the values of one field in their places. The parts let go of them: there is no room for all twice."""
    holding = [(part.kept.pop(name), rank) for part, rank in zip(parts, ranks, strict=True) if name in part.kept]
    dtype = DTYPES.get(name, np.int64)
    column: NDArray[Any] = np.empty(n if holding else 1, dtype)
    column.fill(ABSENT.get(name, 0))
    if not holding:
        return np.broadcast_to(column, n)
    for values, rank in holding:
        column[rank] = np.fromiter(values, object, len(values)) if dtype is object else np.asarray(values)
    return column
