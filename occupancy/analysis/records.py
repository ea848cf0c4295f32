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

    def __init__(self, make: Callable[..., T], columns: Mapping[str, Any]) -> None:
        self._make = make
        self._columns = columns

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> "Records[T]": ...
    def __getitem__(self, index: int | slice) -> "T | Records[T]":
        values = {name: column[index] for name, column in self._columns.items()}
        if isinstance(index, slice):
            return Records(self._make, values)
        return self._make(*(value.item() if isinstance(value, np.generic) else value for value in values.values()))

    def __iter__(self) -> Iterator[T]:
        columns = (column.tolist() if isinstance(column, np.ndarray) else column for column in self._columns.values())
        return map(self._make, *columns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} records>"

    def column(self, name: str) -> Any:
        """The values of one name, of all records."""
        return self._columns[name]

    def take(self, places: Int64) -> "Records[T]":
        """The records at some places, in that order."""
        return Records(self._make, {name: column.take(places) for name, column in self._columns.items()})
