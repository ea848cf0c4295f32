"""The running count of calls that were recorded elsewhere: what a log counts as they start and are released."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from occupancy.analysis.columns import Columns
from occupancy.analysis.steps import counted
from occupancy.call import MISSING

Int64 = NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class RunningCount:
    """Counts of n calls. A release counts before a start at the same time, but never before its own call's start."""

    in_flight_start: Int64
    """Calls in flight just after each start, shape (n,), the call itself among them."""
    in_flight_end: Int64
    """Calls in flight just before each release, shape (n,), the call itself among them; `MISSING` where it is open."""
    level_ns: Int64
    """Time with 0, 1, ... calls in flight, ns, from the first event to the last; `[0]` without calls."""

    @property
    def peak(self) -> int:
        """Most calls in flight at once; 0 without calls."""
        return int(self.in_flight_start.max(initial=0))


def count_running(start_ns: Int64, released_ns: Int64, number: Int64) -> RunningCount:
    """Count calls by their starts and releases.

    Args:
        start_ns: Starts, ns, shape (n,), in any order.
        released_ns: Releases, ns, shape (n,), none before its start; `MISSING` for a call that is still open. Of those
            at one time the first comes first.
        number: What orders starts at one time, shape (n,).

    Returns:
        The counts, in the order given.
    """
    lasting = np.flatnonzero(released_ns > start_ns)
    opened = released_ns == MISSING
    # A call of no length is counted at its start and gone: for the others nothing changes.
    change = np.where(opened | (released_ns > start_ns), 1, 0)
    # Starts are odd and releases even, so that one stable sort puts releases first.
    numbered = np.argsort(number, kind="stable")
    keys = np.concatenate((2 * start_ns[numbered] + 1, 2 * released_ns[lasting]))
    order = np.argsort(keys, kind="stable")
    changes = np.concatenate((change[numbered], np.full(lasting.size, -1)))
    level = np.empty(keys.size, dtype=np.int64)
    level[order] = np.cumsum(changes[order])
    n = start_ns.size
    in_flight_start = np.empty(n, dtype=np.int64)
    in_flight_start[numbered] = level[:n]
    in_flight_start += change == 0
    in_flight_end = np.where(opened, MISSING, in_flight_start)
    in_flight_end[lasting] = level[n:] + 1
    return RunningCount(in_flight_start, in_flight_end, _time_at_level(keys[order] >> 1, level[order]))


def count_again(columns: Columns) -> RunningCount:
    """Count calls by their starts and releases, whatever was counted as they happened.

    Args:
        columns: `kind`, `call_id`, `start_ns` and `released_ns`, each of shape (n,).

    Returns:
        The counts of n calls: `MISSING` for those that are in no count (`Kind.OTHER`).
    """
    mask = counted(columns)
    running = count_running(*(columns[name][mask] for name in ("start_ns", "released_ns", "call_id")))
    in_flight_start, in_flight_end = (np.full(mask.size, MISSING) for _ in range(2))
    in_flight_start[mask], in_flight_end[mask] = running.in_flight_start, running.in_flight_end
    return RunningCount(in_flight_start, in_flight_end, running.level_ns)


def _time_at_level(t_ns: Int64, level: Int64) -> Int64:
    level_ns = np.zeros(int(level.max(initial=0)) + 1, dtype=np.int64)
    np.add.at(level_ns, level[:-1], np.diff(t_ns))
    return level_ns
