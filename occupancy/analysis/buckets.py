"""Calls in flight in buckets of time: what of a fleet's calls travels, and what is made of calls in memory."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from occupancy.analysis.columns import MISSING, Columns
from occupancy.analysis.steps import Int64, Steps, closed_end, counted, steps
from occupancy.errors import InputError

MAX_BUCKETS = 10_000


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Buckets:
    """Calls in flight within a window that is cut into n buckets, none of them empty of time.

    Bucket i is `edges_ns[i] <= t < edges_ns[i + 1]`. A call counts where it is in flight for longer than nothing within
    the window, whenever it began.
    """

    edges_ns: Int64
    """Ascending edges, ns, shape (n + 1,)."""
    in_flight_ns: Int64
    """Sum of the durations, each clipped to the bucket, ns, shape (n,)."""
    peak: Int64
    """Most calls in flight at once, shape (n,)."""
    begun: Int64
    """Calls that begin in the bucket, shape (n,); the first also has those in flight at the window's left edge."""

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean in flight of each bucket, shape (n,): clipped durations / width."""
        return self.in_flight_ns / np.diff(self.edges_ns)

    @property
    def n(self) -> int:
        """Calls in the window."""
        return int(self.begun.sum())

    @property
    def highest(self) -> int:
        """Most calls in flight at once in the window."""
        return int(self.peak.max(initial=0))

    @property
    def mean_in_flight(self) -> float:
        """Mean in flight over the whole window; 0.0 without a bucket."""
        in_flight_ns: int = sum(self.in_flight_ns.tolist())  # Python's integers do not overflow
        return in_flight_ns / max(int(self.edges_ns[-1] - self.edges_ns[0]), 1)


def edges(start_ns: int, end_ns: int, width_ns: int) -> Int64:
    """Edges of buckets of one width from the start of a window on; the last may be shorter.

    Args:
        start_ns: Start of the window, ns.
        end_ns: Its end, ns, not before its start.
        width_ns: Width of a bucket, ns, at least 1.

    Returns:
        Edges of n buckets, ns, shape (n + 1,); the start alone where the window holds no time.

    Raises:
        InputError: There would be more than `MAX_BUCKETS`.
    """
    n = -(-(end_ns - start_ns) // width_ns)
    if n > MAX_BUCKETS:
        raise InputError(f"{width_ns / 1e9:g} s makes {n} buckets of the window; at most {MAX_BUCKETS}")
    return np.append(start_ns + width_ns * np.arange(n, dtype=np.int64), end_ns)


def bucket(start_ns: Int64, end_ns: Int64, edges_ns: Int64) -> Buckets:
    """Put calls into buckets of time.

    Args:
        start_ns: Starts, ns, shape (n,), in any order.
        end_ns: Ends, ns, shape (n,). A call that does not end after its start, or lacks a stamp, is left out.
        edges_ns: Ascending edges, ns, on the same clock, shape (n + 1,).

    Returns:
        The buckets; all 0 without calls.
    """
    used = (start_ns != MISSING) & (end_ns > start_ns) & (start_ns < edges_ns[-1]) & (end_ns > edges_ns[0])
    start_ns, end_ns = start_ns[used], end_ns[used]
    in_flight = steps(start_ns, end_ns)
    first = np.maximum(np.searchsorted(edges_ns, start_ns, side="right") - 1, 0)
    return Buckets(
        edges_ns=edges_ns,
        in_flight_ns=np.diff(_time_until(in_flight, edges_ns)),
        peak=in_flight.envelope(edges_ns)[1],
        begun=np.bincount(first, minlength=edges_ns.size - 1),
    )


def bucket_calls(columns: Columns, width_ns: int, until_ns: int | None = None) -> Buckets:
    """Put the calls that count into buckets of one width, from the first start to the last end.

    Args:
        columns: The calls; open ones have an end as `closed_end` says.
        width_ns: Width of a bucket, ns.
        until_ns: For a live log the time now, on the same clock.

    Returns:
        The buckets; none without calls.

    Raises:
        InputError: The width is not above 0, or there would be more than `MAX_BUCKETS`.
    """
    if width_ns <= 0:
        raise InputError(f"a bucket must be wider than 0, not {width_ns / 1e9:g} s")
    mask = counted(columns)
    start_ns, end_ns = columns["start_ns"][mask], closed_end(columns, until_ns)[mask]
    wall = steps(start_ns, end_ns).t_ns
    first_ns, last_ns = (int(wall[0]), int(wall[-1])) if wall.size else (0, 0)
    return bucket(start_ns, end_ns, edges(first_ns, last_ns, width_ns))


def _time_until(in_flight: Steps, t_ns: Int64) -> Int64:
    """Sum of the time that calls have been in flight by each of some times, ns: the area below the steps."""
    area_ns = np.concatenate(([0, 0], np.cumsum(in_flight.in_flight[:-1] * np.diff(in_flight.t_ns))))
    since_ns, level = np.concatenate((t_ns[:1], in_flight.t_ns)), np.concatenate(([0], in_flight.in_flight))
    place = np.searchsorted(in_flight.t_ns, t_ns, side="right")
    until: Int64 = area_ns[place] + level[place] * (t_ns - since_ns[place])
    return until
