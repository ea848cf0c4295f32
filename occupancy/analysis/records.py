"""Records kept as columns."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, overload

import numpy as np

from occupancy.analysis.steps import Int64

T = TypeVar("T")


class Records(Sequence[T], Generic[T]):
    """A sequence of records, each made when it is asked for: there may be as many as calls, and few are looked at.

    Args:
        make: Makes a record of its values.
        columns: The values by name, in the order in which `make` takes them: arrays or further records of one length.
    """

    def __init__(self, make: Callable[..., T], columns: Mapping[str, Any], places: Int64 | None = None) -> None:
        self._make = make
        self._columns = columns
        self._places = places
        """Where in the columns the values of each record are; None for one after another."""

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())) if self._places is None else self._places)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> "Records[T]": ...
    def __getitem__(self, index: int | slice) -> "T | Records[T]":
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        place = index if self._places is None else int(self._places[index])
        values = [column[place] for column in self._columns.values()]
        return self._make(*(value.item() if isinstance(value, np.generic) else value for value in values))

    def __iter__(self) -> Iterator[T]:
        columns = map(self.column, self._columns)
        return map(self._make, *(column.tolist() if isinstance(column, np.ndarray) else column for column in columns))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} records>"

    def column(self, name: str) -> Any:
        """The values of one name, of all records."""
        column = self._columns[name]
        return column if self._places is None else column.take(self._places)

    def take(self, places: Int64) -> "Records[T]":
        """The records at some places, in that order."""
        return Records(self._make, self._columns, places if self._places is None else self._places[places])
