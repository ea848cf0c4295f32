"""How values are spread: durations as percentiles, names as counts."""

import dataclasses
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from occupancy.analysis.columns import MISSING
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
    return spreads(durations_ns, np.zeros(durations_ns.shape, dtype=np.int64), 1)[0]


def spreads(durations_ns: Int64, group: Int64, n_groups: int) -> list[Spread]:
    """Describe the durations of each group, all in one sort: a log may have as many labels as calls.

    Args:
        durations_ns: ns, shape (n,); `MISSING` ones are left out.
        group: The group of each, 0 to n_groups - 1, shape (n,).
        n_groups: How many groups there are.

    Returns:
        One distribution for each group, in ms; `Spread(0)` for a group without durations.
    """
    known = durations_ns != MISSING
    ms, group = durations_ns[known] / MS, group[known]
    if not ms.size:
        return [Spread(0)] * n_groups
    ms = ms[np.lexsort((ms, group))]
    n = np.bincount(group, minlength=n_groups)
    first = np.minimum(np.cumsum(n) - n, ms.size - 1)  # where a group is empty, any place will do
    last = np.maximum(first + n - 1, first)
    sums = np.bincount(np.repeat(np.arange(n_groups), n), weights=ms, minlength=n_groups)
    columns = (n, sums / np.maximum(n, 1), ms[first], ms[last], *(_percentile(ms, first, last, p) for p in PERCENTILES))
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [Spread(*row) if row[0] else Spread(0) for row in rows]


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


def tally(values: Iterable[str | None]) -> tuple[Tally, ...]:
    """Count values, the most frequent first, equally frequent ones by name; None is left out."""
    counts = Counter(values)
    found = [Tally(value, n) for value, n in counts.items() if value is not None]
    return tuple(sorted(found, key=lambda item: (-item.n, item.value)))
