"""Calls in flight over time as a step function: exact integers of ns, half-open intervals.

A call is in flight for start <= t < end; at equal times ends come before starts. These rules and the quantities below
(mean in flight = sum of durations / wall, which is Little's law over one window) are those of the project's design.
"""

import dataclasses
import re
from bisect import bisect_right
from collections import defaultdict
from typing import overload

import numpy as np
from numpy.typing import NDArray

from occupancy.analysis.columns import MISSING, Columns
from occupancy.call import Kind, Outcome
from occupancy.errors import InputError

Int64 = NDArray[np.int64]

_OWN_NAME = re.compile(r"Task-\d+")

STAMPS = ("start_ns", "headers_ns", "first_byte_ns", "first_event_ns", "last_byte_ns", "end_ns", "released_ns")
"""Columns that are times; the latest of them is the last sign of life of a process."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """A step function that starts above 0 and ends at 0.

    `in_flight[i]` holds for `t_ns[i] <= t < t_ns[i + 1]`; before the first time and from the last one on it is 0.
    Times are strictly increasing and neighbouring levels differ. Without calls both arrays are empty.
    """

    t_ns: Int64
    """Times of change, ns, shape (n,)."""
    in_flight: Int64
    """Calls in flight from that time on, shape (n,); the last is 0."""

    @property
    def peak(self) -> int:
        """Highest level; 0 when empty."""
        return int(self.in_flight.max(initial=0))

    @property
    def wall_ns(self) -> int:
        """From the first start to the last end; 0 when empty."""
        return int(self.t_ns[-1] - self.t_ns[0]) if self.t_ns.size else 0

    @property
    def busy_ns(self) -> int:
        """Time with at least one call in flight; 0 when empty."""
        return self.wall_ns - self.time_at_level[0]

    @property
    def time_at_level(self) -> tuple[int, ...]:
        """Exact ns of the wall at 0, 1, ... peak in flight; they add up to `wall_ns`. `(0,)` when empty."""
        ns = np.zeros(self.peak + 1, dtype=np.int64)
        np.add.at(ns, self.in_flight[:-1], np.diff(self.t_ns))
        return tuple(ns.tolist())

    @property
    def mean(self) -> float:
        """Mean in flight: sum of durations / wall; 0.0 when empty."""
        area_ns = sum(level * ns for level, ns in enumerate(self.time_at_level))  # Python's integers do not overflow
        return area_ns / self.wall_ns if self.wall_ns else 0.0

    @overload
    def at(self, t_ns: int) -> int: ...
    @overload
    def at(self, t_ns: Int64) -> Int64: ...
    def at(self, t_ns: int | Int64) -> int | Int64:
        """Calls in flight at one time, or at an array of times of any shape; 0 outside of the wall."""
        found = np.concatenate(([0], self.in_flight))[np.searchsorted(self.t_ns, t_ns, side="right")]
        return found if isinstance(t_ns, np.ndarray) else int(found)

    def slots(self, n: int) -> Int64:
        """Edges of n slots of equal width over the wall, ns, shape (n + 1,), rounded down; zeros when empty."""
        first = int(self.t_ns[0]) if self.t_ns.size else 0
        return np.array([first + self.wall_ns * slot // n for slot in range(n + 1)], dtype=np.int64)

    def envelope(self, edges_ns: Int64) -> tuple[Int64, Int64]:
        """The lowest and the highest level in each slot, so that no peak is lost however many calls share a slot.

        Args:
            edges_ns: Ascending edges, ns, shape (n + 1,); slot i is `edges_ns[i] <= t < edges_ns[i + 1]`. A slot of no
                width has the level at its edge.

        Returns:
            `(lowest, highest)`, each of shape (n,); zeros when there are no steps.
        """
        levels = np.concatenate(([0], self.in_flight, [0]))
        first = np.searchsorted(self.t_ns, edges_ns[:-1], side="right")
        stop = np.maximum(np.searchsorted(self.t_ns, edges_ns[1:], side="left") + 1, first + 1)
        pairs = np.column_stack((first, stop)).ravel()
        return np.minimum.reduceat(levels, pairs)[::2], np.maximum.reduceat(levels, pairs)[::2]


@dataclasses.dataclass(frozen=True, slots=True)
class IntervalCounts:
    """What `steps` does with the intervals it is given; the four add up to their number."""

    used: int
    """Longer than nothing: they occupy."""
    zero_length: int
    """End at their start: they occupy nothing."""
    end_before_start: int
    """Dropped: a clock that was set back, or a bad row."""
    missing: int
    """Dropped: no start or no end."""


def count_intervals(start_ns: Int64, end_ns: Int64) -> IntervalCounts:
    """Count which intervals `steps` uses and which it drops.

    Args:
        start_ns: Starts, ns, shape (n,).
        end_ns: Ends, ns, shape (n,); `MISSING` for none.
    """
    known = (start_ns != MISSING) & (end_ns != MISSING)
    return IntervalCounts(
        used=int(np.count_nonzero(known & (end_ns > start_ns))),
        zero_length=int(np.count_nonzero(known & (end_ns == start_ns))),
        end_before_start=int(np.count_nonzero(known & (end_ns < start_ns))),
        missing=int(np.count_nonzero(~known)),
    )


def steps(start_ns: Int64, end_ns: Int64) -> Steps:
    """The step function of half-open intervals [start, end).

    Intervals of no length occupy nothing; those that end before they start, or lack a stamp, are dropped:
    `count_intervals` tells how many. An end and a start at one time cancel out and make no step.

    Args:
        start_ns: Starts, ns, shape (n,), in any order.
        end_ns: Ends, ns, shape (n,), each belonging to the start at its place.

    Returns:
        At most 2 n steps; empty for no intervals.

    Raises:
        InputError: The intervals span 2**62 ns (146 years) or more.
    """
    used = (start_ns != MISSING) & (end_ns > start_ns)  # MISSING is below every start
    if not used.any():
        return Steps(t_ns=np.array([], dtype=np.int64), in_flight=np.array([], dtype=np.int64))
    t_ns, level = _levels(start_ns[used], end_ns[used])
    changed = np.diff(level, prepend=0) != 0
    return Steps(t_ns=t_ns[changed], in_flight=level[changed])


def _levels(start_ns: Int64, end_ns: Int64) -> tuple[Int64, Int64]:
    """Give the distinct times, ascending, and the level after each.

    An event is its time doubled, plus 1 for a start: one plain sort of integers, with ends before starts at one time.
    Calls mostly come nearly in order, which a stable sort makes use of.
    """
    first, last = int(start_ns.min()), int(end_ns.max())
    if last - first >= 2**62:
        raise InputError(f"calls from {first} ns to {last} ns span more than 146 years")
    events = np.concatenate((2 * (start_ns - first) + 1, 2 * (end_ns - first)))
    events.sort(kind="stable")
    t_ns = events >> 1
    level = np.cumsum(2 * (events & 1) - 1)
    last_at_time = np.append(t_ns[1:] != t_ns[:-1], True)
    return t_ns[last_at_time] + first, level[last_at_time]


def counted(columns: Columns) -> NDArray[np.bool_]:
    """Mask of the calls that count, shape (n,): every kind but `other` (telemetry uploads, what the user excludes)."""
    return np.asarray(columns["kind"] != Kind.OTHER.value, dtype=np.bool_)


def is_open(columns: Columns) -> NDArray[np.bool_]:
    """Mask of the calls that never ended, shape (n,): outcome `open` and no end."""
    return np.asarray((columns["outcome"] == Outcome.OPEN.value) & (columns["end_ns"] == MISSING), dtype=np.bool_)


def wire_start(columns: Columns) -> Int64:
    """When each call went on the wire, ns, shape (n,): past the client, our gate and the pool's queue.

    A phase that is missing counts as 0: what is not known to be waiting is taken to be on the wire.
    """
    start: Int64 = columns["start_ns"].copy()
    for phase in ("client_ns", "gate_ns", "pool_ns"):
        start += np.where(columns[phase] == MISSING, 0, columns[phase])
    return start


def closed_end(columns: Columns, until_ns: int | None = None) -> Int64:
    """Ends, ns, shape (n,), with one for the calls that are still open.

    An open call is in flight from its start up to and including the last stamp seen of its process (`pid`): its end is
    1 ns later, so that three calls in flight at a `kill -9` are three, also when the last stamp is the start of the
    third. What a process did after its last sign of life is not known, and another process's stamps do not tell.
    Where the same thread or task starts another call before, its end is that start: it makes one call at a time, so the
    line that told the end was lost, or nobody reads the response.

    Args:
        columns: The calls.
        until_ns: For a live log the time now, on the same clock: open calls are in flight until then instead.

    Returns:
        `MISSING` where there is no end and the outcome is not `open`: a bad row, which `steps` drops.
    """
    end: Int64 = columns["end_ns"].copy()
    still = is_open(columns)
    if still.any():
        end[still] = until_ns if until_ns is not None else _last_known_ns(columns, still)
    return end


def _last_known_ns(columns: Columns, still: NDArray[np.bool_]) -> Int64:
    """Up to when each open call is known to have been in flight, ns."""
    end_ns = _last_of_process(columns)[still] + 1
    opened = np.flatnonzero(still)
    later = np.flatnonzero(columns["start_ns"] > columns["start_ns"][opened].min())
    later = later[np.argsort(columns["start_ns"][later], kind="stable")]
    starts_ns: dict[object, list[int]] = defaultdict(list)
    for flow, start_ns in zip(_flows(columns, later), columns["start_ns"][later].tolist(), strict=True):
        starts_ns[flow].append(start_ns)
    starts_ns.pop(None, None)
    for place, flow in enumerate(_flows(columns, opened)):
        mine = starts_ns.get(flow, [])
        following = bisect_right(mine, int(columns["start_ns"][opened[place]]))
        end_ns[place] = min([int(end_ns[place]), *mine[following : following + 1]])
    return end_ns


def _flows(columns: Columns, place: Int64) -> list[object]:
    """What makes one call at a time; None where that is not known: only asyncio gives each task a name of its own."""
    names = zip(*(columns[name][place].tolist() for name in ("pid", "run", "thread", "async_task")), strict=True)
    return [
        None if thread is None or (task is not None and not _OWN_NAME.fullmatch(task)) else (pid, run, thread, task)
        for pid, run, thread, task in names
    ]


def _last_of_process(columns: Columns) -> Int64:
    """The last stamp of the process of each call, ns, shape (n,)."""
    last = np.maximum.reduce([columns[name] for name in STAMPS])
    processes, process = np.unique(columns["pid"], return_inverse=True)
    latest = np.full(processes.size, MISSING, dtype=np.int64)
    np.maximum.at(latest, process, last)
    return latest[process]


def steps_in_flight(columns: Columns, until_ns: int | None = None) -> Steps:
    """Calls in flight over time: from start to end, without kind `other`, open calls as `closed_end` says."""
    mask = counted(columns)
    return steps(columns["start_ns"][mask], closed_end(columns, until_ns)[mask])


def steps_on_wire(columns: Columns, until_ns: int | None = None) -> Steps:
    """Calls on the wire over time: from `wire_start` to the end; a call that never got there occupies nothing."""
    mask = counted(columns)
    return steps(wire_start(columns)[mask], closed_end(columns, until_ns)[mask])
