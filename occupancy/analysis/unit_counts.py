"""What a verdict needs to know of each unit, counted for all units at once: there may be as many runs as calls."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from occupancy.analysis.steps import Int64
from occupancy.analysis.unit import Unit


class UnitCounts(NamedTuple):
    """What a verdict says of one unit."""

    n_logical: int
    """Logical calls: attempts of one taken together."""
    n_branches: int
    """Flows (threads and tasks) that make several logical calls each."""
    peak: int
    wall_ns: int
    """From the first start to the last end of calls that last longer than 0."""
    area_ns: int
    """Sum of their durations."""
    busy_ns: int
    """With at least one call in flight."""
    overlapped_ns: int
    """With at least two."""

    @property
    def mean(self) -> float:
        """Mean in flight; 0.0 without a wall."""
        return self.area_ns / self.wall_ns if self.wall_ns else 0.0

    @property
    def overlapped_share(self) -> float:
        """Share of the busy time with two or more in flight; 0.0 when never busy."""
        return self.overlapped_ns / self.busy_ns if self.busy_ns else 0.0


def counts_of(units: Sequence[Unit]) -> list[UnitCounts]:
    """Count each unit.

    Args:
        units: Units of the same calls; none has a call of another.

    Returns:
        One for each, in their order.
    """
    if not units:
        return []
    n = len(units)
    owner = np.repeat(np.arange(n), [unit.n for unit in units])
    whole = Unit(None, units[0].calls, np.concatenate([unit.place for unit in units]))
    n_logical = n_logical_of(whole, owner, n)
    has_retries = int(n_logical.sum()) < whole.n
    columns = (n_logical, _n_branches(whole, owner, n, has_retries=has_retries), *_levels(whole, owner, n))
    return [UnitCounts(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def n_logical_of(whole: Unit, owner: Int64, n: int) -> Int64:
    """Count the logical calls of each of n owners: a call of none that is known is one by itself."""
    ids = whole.column("logical_id")
    known = ids > 0
    own = np.bincount(owner[~known], minlength=n)
    keys = (ids[known], whole.column("pid")[known], owner[known])
    order = np.lexsort(keys)
    is_new = np.ones(order.size, dtype=np.bool_)
    is_new[1:] = np.logical_or.reduce([np.diff(key[order]) != 0 for key in keys])
    return own + np.bincount(keys[-1][order][is_new], minlength=n)


def _n_branches(whole: Unit, owner: Int64, n: int, *, has_retries: bool) -> Int64:
    """Count the flows of each of n owners that make several logical calls: one that retries one call is no branch."""
    flow = owner
    for name in ("pid", "thread", "async_task"):
        values, place = whole.calls.numbered(name)
        if len(values) > 1:
            flow = np.unique(flow * len(values) + place[whole.place], return_inverse=True)[1]
    first = np.unique(flow, return_index=True)[1]
    mine = np.unique(flow * whole.n + whole.logical) // whole.n if has_retries else flow
    return np.bincount(owner[first][np.bincount(mine) > 1], minlength=n)


def _levels(whole: Unit, owner: Int64, n: int) -> tuple[Int64, ...]:
    """Peak, wall, sum of durations, and time with one or more and with two or more in flight, of each of n owners.

    Starts and ends by owner, then time, ends first, add up to 0 within each owner.
    """
    used = whole.end_ns > whole.start_ns
    owner, start_ns, end_ns = owner[used], whole.start_ns[used], whole.end_ns[used]
    sums = [np.zeros(n, dtype=np.int64) for _ in range(5)]
    if not owner.size:
        return tuple(sums)
    owners, change = np.concatenate((owner, owner)), np.repeat(np.array([-1, 1]), owner.size)
    at_ns = np.concatenate((end_ns, start_ns))
    order = np.lexsort((change, at_ns, owners))
    owners, at_ns, level = owners[order], at_ns[order], np.cumsum(change[order])
    length_ns = np.append(np.where(owners[1:] == owners[:-1], np.diff(at_ns), 0), 0)
    first = np.flatnonzero(np.append(True, owners[1:] != owners[:-1]))
    peak, *others = sums
    peak[owners[first]] = np.maximum.reduceat(level, first)
    weights = (1, level, level > 0, level > 1)
    for total_ns, weight in zip(others, weights, strict=True):
        total_ns[owners[first]] = np.add.reduceat(length_ns * weight, first)
    return tuple(sums)
