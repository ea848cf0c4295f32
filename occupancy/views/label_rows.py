"""Many calls as few rows: one for each of the busiest labels, and one for all others together."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from occupancy.analysis.distribution import number
from occupancy.analysis.steps import Int64, Steps, steps
from occupancy.views.call_bars import SEGMENTS, CallBars, label_name
from occupancy.views.text import count


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LabelRow:
    """The calls of one label, or of all labels that have no row of their own."""

    name: str
    bars: CallBars
    in_flight: Steps
    """Times as in `CallBars`: ns from the first start of the whole log."""


def label_rows(bars: CallBars, limit: int) -> list[LabelRow]:
    """Sort calls into rows by label.

    Args:
        bars: Any number of calls.
        limit: Most rows, at least 2.

    Returns:
        The labels with most time in flight, in the order of their first start; where there are more labels than rows,
        the last row is `N others` and has all the rest, so that every call is in one row. Empty without calls.
    """
    labels, label = number(bars.label)
    in_flight_ns = np.bincount(label, weights=bars.end_ns - bars.start_ns, minlength=len(labels))
    busiest = np.argsort(-in_flight_ns, kind="stable")[: limit if len(labels) <= limit else limit - 1]
    row_of_label = np.full(len(labels), busiest.size)
    row_of_label[busiest] = np.arange(busiest.size)
    row = row_of_label[label]
    by_row = bars.take(np.argsort(row, kind="stable"))
    ends = np.cumsum(np.bincount(row, minlength=busiest.size))
    parts = [by_row.take(slice(start, end)) for start, end in zip([0, *ends], ends, strict=False)]
    rows = [_row(label_name(labels[place]), part) for place, part in zip(busiest.tolist(), parts, strict=False)]
    rows.sort(key=lambda row: int(row.bars.start_ns.min()))
    others = [_row(count(len(labels) - len(rows), "other"), part) for part in parts[len(rows) :]]
    return rows + others


def _row(name: str, bars: CallBars) -> LabelRow:
    return LabelRow(name, bars, steps(bars.start_ns, bars.end_ns))


def wall_slots(bars: CallBars, n: int) -> Int64:
    """Edges of n slots of equal width over the wall of calls, ns, shape (n + 1,); zeros when nothing lasts."""
    lasting = bars.end_ns > bars.start_ns
    wall_ns = int(bars.end_ns[lasting].max(initial=0))
    return np.array([wall_ns * slot // n for slot in range(n + 1)], dtype=np.int64)


def segment_shares(bars: CallBars, edges_ns: Int64) -> NDArray[np.float64]:
    """How the time that calls spend in each slot is shared out among the parts of a call.

    Args:
        bars: Any number of calls.
        edges_ns: Ascending edges of n slots, ns, shape (n + 1,).

    Returns:
        Shares in the order of `SEGMENTS`, shape (`len(SEGMENTS)`, n): they add up to 1 in a slot in which a call is in
        flight, and are 0 in any other.
    """
    spent = np.array(
        [_time_in_slots(bars.edges_ns[at], bars.edges_ns[at + 1], edges_ns) for at in range(len(SEGMENTS))]
    )
    total = spent.sum(axis=0)
    shares: NDArray[np.float64] = np.divide(spent, total, out=np.zeros_like(spent), where=total > 0)
    return shares


def _time_in_slots(start_ns: Int64, end_ns: Int64, edges_ns: Int64) -> NDArray[np.float64]:
    """Sum, for each slot, of the time that intervals spend in it, ns, shape (n,).

    Each interval is given all of its first slot from its start on and all slots up to that of its end; what of the last
    one lies behind its end is taken back. No sort is needed.
    """
    busy = end_ns > start_ns
    start_ns, end_ns, n = start_ns[busy], end_ns[busy], edges_ns.size - 1
    first, last = (np.clip(np.searchsorted(edges_ns, at, side="right") - 1, 0, n - 1) for at in (start_ns, end_ns))
    whole = np.bincount(first + 1, minlength=n + 2) - np.bincount(last + 1, minlength=n + 2)
    spent = np.cumsum(whole)[:n] * np.diff(edges_ns).astype(np.float64)
    spent += np.bincount(first, weights=edges_ns[first + 1] - start_ns, minlength=n)
    spent -= np.bincount(last, weights=edges_ns[last + 1] - end_ns, minlength=n)
    positive: NDArray[np.float64] = np.maximum(spent, 0)  # rounding, where the sums are beyond 2**53 ns
    return positive
