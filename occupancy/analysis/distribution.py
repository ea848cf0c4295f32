"""How values are spread: durations as percentiles, names as counts."""

import dataclasses
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from occupancy.analysis.columns import MISSING
from occupancy.analysis.records import Records
from occupancy.analysis.steps import Int64

Float64 = NDArray[np.float64]

MS = 1e6
"""ns in a ms."""
PERCENTILES = (0.5, 0.95, 0.99)

T = TypeVar("T", bound=Hashable)


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
    """A distribution of durations, in ms; all None when `n` is 0.

    Percentiles are median-unbiased (Hyndman and Fan 1996, definition 8; as `numpy.quantile(method="median_unbiased")`).
    Where n values cannot tell a percentile it is the largest of them: read p99 with its n.
    """

    n: int
    mean_ms: float | None = None
    min_ms: float | None = None
    max_ms: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None


class Tally(NamedTuple):
    """How often a value was seen."""

    value: str
    n: int


def elapsed(from_ns: Int64, to_ns: Int64) -> Int64:
    """Give the time between two stamps.

    Args:
        from_ns: The earlier stamps, ns, shape (n,).
        to_ns: The later ones, ns, shape (n,).

    Returns:
        ns, shape (n,); `MISSING` where a stamp is missing or the later is the earlier.
    """
    known = (from_ns != MISSING) & (to_ns >= from_ns)
    duration_ns = np.full(from_ns.shape, MISSING, dtype=np.int64)
    return np.subtract(to_ns, from_ns, out=duration_ns, where=known)


def spread(durations_ns: Int64) -> Spread:
    """Describe durations.

    Args:
        durations_ns: ns, shape (n,); `MISSING` ones are left out.

    Returns:
        The distribution of what is left, in ms; `Spread(0)` when nothing is.
    """
    return Durations(durations_ns).spread()


class Durations:
    """Durations, sorted once: a log may have as many labels as calls, and is grouped in several ways.

    Args:
        durations_ns: ns, shape (n,); `MISSING` ones are left out.
    """

    def __init__(self, durations_ns: Int64) -> None:
        known = np.flatnonzero(durations_ns != MISSING)
        self._place = known[np.argsort(durations_ns[known])]
        self._ms = durations_ns[self._place] / MS

    def spread(self) -> Spread:
        """Describe them all, in ms."""
        return self._described(self._ms, np.array([self._ms.size]))[0]

    def spreads(self, group: Int64, n_groups: int) -> Records[Spread]:
        """Describe those of each group.

        Args:
            group: The group of each, 0 to n_groups - 1, shape (n,).
            n_groups: How many groups there are.

        Returns:
            One distribution for each group, in ms; `Spread(0)` for a group without durations.
        """
        owner = group[self._place]
        # numpy sorts integers of two bytes in one pass.
        order = np.argsort(owner.astype(np.uint16) if n_groups <= 2**16 else owner, kind="stable")
        return self._described(self._ms[order], np.bincount(owner, minlength=n_groups))

    def _described(self, ms: Float64, n: Int64) -> Records[Spread]:
        """Describe stretches of n durations each, ascending in each."""
        sums = np.bincount(np.repeat(np.arange(n.size), n), weights=ms, minlength=n.size)
        ms = np.append(ms, 0.0)  # where a group is empty, any place will do
        first = np.cumsum(n) - n
        last = np.maximum(first + n - 1, first)
        columns = {"n": n, "mean_ms": sums / np.maximum(n, 1), "min_ms": ms[first], "max_ms": ms[last]}
        columns |= {f"p{100 * p:.0f}_ms": _percentile(ms, first, last, p) for p in PERCENTILES}
        return Records(lambda n, *values: Spread(n, *values) if n else Spread(0), columns)


def _percentile(ascending: Float64, first: Int64, last: Int64, p: float) -> Float64:
    """Take the percentile p of each stretch first to last: definition 8 puts it at place (n + 1/3) p + 1/3, from 1."""
    place = np.clip((last - first + 4 / 3) * p - 2 / 3, 0, last - first)
    below = first + place.astype(np.int64)
    above = np.minimum(below + 1, last)
    result: Float64 = ascending[below] + (ascending[above] - ascending[below]) * (place % 1)
    return result


def number(values: Iterable[T]) -> tuple[list[T], Int64]:
    """Number values in the order in which they first come.

    Returns:
        The distinct values, and for each value its place among them, int64, shape (n,).
    """
    values = list(values)
    distinct = list(dict.fromkeys(values))
    place = {value: place for place, value in enumerate(distinct)}
    return distinct, np.fromiter(map(place.__getitem__, values), dtype=np.int64, count=len(values))


def combined(parts: Sequence[tuple[Int64, int]]) -> Int64:
    """Number the combinations of several numberings, `(numbers, how many)`, in the order in which they first come.

    Args:
        parts: At least one; the numbers are from 0, shape (n,).
    """
    key, size = np.zeros(parts[0][0].shape, dtype=np.int64), 1
    for place, n in parts:
        key, size = _dense(key * n + place, size * n)
    rank = np.empty(size, dtype=np.int64)
    rank[np.argsort(first_places(key, size))] = np.arange(size)
    return rank[key]


def _dense(key: Int64, size: int) -> tuple[Int64, int]:
    """Number the keys that occur, of those below `size`, in ascending order; and tell how many they are."""
    if size > 8 * key.size:
        occurring, key = np.unique(key, return_inverse=True)
        return key, occurring.size
    occurs = np.zeros(size, dtype=np.bool_)  # a place for each takes less time than a sort
    occurs[key] = True
    return (np.cumsum(occurs) - 1)[key], int(np.count_nonzero(occurs))


def first_places(number: Int64, n: int) -> Int64:
    """Where each of the numbers 0 to n - 1 first comes, shape (n,); each must."""
    first = np.empty(n, dtype=np.int64)
    first[number[::-1]] = np.arange(number.size)[::-1]  # of several the last one stays
    return first


def tally(values: Iterable[str | None]) -> tuple[Tally, ...]:
    """Count values, the most frequent first, equally frequent ones by name; None is left out."""
    return sorted_tally(Counter(values).items())


def sorted_tally(counts: Iterable[tuple[str | None, int]]) -> tuple[Tally, ...]:
    """Give counts in the order of `tally`."""
    found = [Tally(value, n) for value, n in counts if value is not None]
    return tuple(sorted(found, key=lambda item: (-item.n, item.value)))
