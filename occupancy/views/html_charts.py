"""What the charts of the HTML page draw, as values that JSON can hold: bounded, whatever the size of a log."""

import base64
import html
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from occupancy.analysis.columns import MISSING, Columns
from occupancy.analysis.distribution import number
from occupancy.analysis.steps import Int64, Steps, steps_in_flight, steps_on_wire
from occupancy.views.call_bars import SEGMENTS, CallBars, label_name, printable
from occupancy.views.heat_strip import Strip
from occupancy.views.label_rows import wall_slots
from occupancy.views.step_plot import WAITING_SHARE
from occupancy.views.text import shorten

POINTS = 50_000
"""Steps, and first bytes, up to which each is in the page; of more, the lowest and highest level of so many slots."""
STRIP_ROWS, STRIP_SLOTS = 20, 1_000
BAR_SLOTS, BARS_PER_SLOT = 100, 100
"""Calls that the waterfall can show: all up to 10,000, else so many of those that start in each part of the wall."""
NAME_WIDTH = 40


def step_chart(columns: Columns, until_ns: int | None = None) -> dict[str, Any]:
    """Give the curves and the first bytes of a log.

    Args:
        columns: The calls.
        until_ns: For a live log the time now, ns on the calls' clock.

    Returns:
        `wall_ns`, `peak`, and the curves `in_flight` and `on_wire`, each as `t` (ns from the first start), `highest`
        and `lowest` level from there on (`lowest` is None where each step is told); `waits`, whether the two differ to
        the eye; `first_bytes` as times `t` and their counts `n` (None where each is told). Arrays are base64 of
        little-endian float64 for times and int32 for counts.
    """
    in_flight, on_wire = steps_in_flight(columns, until_ns), steps_on_wire(columns, until_ns)
    origin_ns = int(in_flight.t_ns[0]) if in_flight.t_ns.size else 0
    bars = CallBars.of(columns, until_ns)
    return {
        "wall_ns": in_flight.wall_ns,
        "peak": in_flight.peak,
        "in_flight": _curve(in_flight, origin_ns),
        "on_wire": _curve(on_wire, origin_ns),
        "waits": _area_ns(in_flight) - _area_ns(on_wire) > WAITING_SHARE * _area_ns(in_flight),
        "first_bytes": _first_bytes(bars.first_byte_ns[bars.first_byte_ns != MISSING], in_flight.wall_ns),
    }


def _area_ns(drawn: Steps) -> float:
    return drawn.mean * drawn.wall_ns


def _curve(drawn: Steps, origin_ns: int) -> dict[str, str | None]:
    """Give each step, or the envelope of so many slots: every peak is in one of the two."""
    if drawn.t_ns.size <= POINTS:
        return {"t": _times(drawn.t_ns - origin_ns), "highest": _counts(drawn.in_flight), "lowest": None}
    edges_ns = drawn.slots(POINTS - 1)
    lowest, highest = (np.append(levels, 0) for levels in drawn.envelope(edges_ns))
    return {"t": _times(edges_ns - origin_ns), "highest": _counts(highest), "lowest": _counts(lowest)}


def _first_bytes(at_ns: Int64, wall_ns: int) -> dict[str, str | None]:
    at_ns = np.sort(at_ns)
    if at_ns.size <= POINTS:
        return {"t": _times(at_ns), "n": None}
    slot_ns = max(-(-wall_ns // POINTS), 1)
    slots, n = np.unique(at_ns // slot_ns, return_counts=True)
    return {"t": _times(slots * slot_ns), "n": _counts(n)}


def _times(t_ns: NDArray[Any]) -> str:
    return _base64(t_ns.astype("<f8"))


def _counts(n: Int64) -> str:
    return _base64(n.astype("<i4"))


def _base64(values: NDArray[Any]) -> str:
    return base64.b64encode(values.tobytes()).decode("ascii")


def strip_chart(bars: CallBars) -> dict[str, Any]:
    """Give the heat strip: names of the rows, edges of the slots in ns, and the highest levels row by row."""
    strip = Strip.of(bars, STRIP_ROWS, STRIP_SLOTS)
    return {
        "names": [_plotly_text(name) for name in strip.names],
        "peak": strip.peak,
        "n_slots": STRIP_SLOTS,
        "wall_ns": int(strip.edges_ns[-1]),
        "highest": _counts(strip.highest.ravel()),
    }


def waterfall_chart(bars: CallBars) -> dict[str, Any]:
    """Give the calls of which the waterfall shows the longest in view.

    Args:
        bars: All calls.

    Returns:
        `n` calls in all and `n_kept` in the page, grouped by run, then by label; `runs` and `labels` as texts, and as
        `endings` text, whether failed and whether open. For each call its `run`, `label` and `ending` by place, as
        base64 of int32; its `first_byte` in ns, NaN for none, and the `edges` of its segments in ns, one edge of all
        calls after the other, as base64 of float64.
    """
    kept = _longest_of_each_slot(bars).grouped()
    runs, run = number(kept.run)
    labels, label = number(kept.label)
    kinds = zip(kept.status.tolist(), kept.outcome, kept.failed.tolist(), kept.is_open.tolist(), strict=True)
    endings, ending = number(kinds)
    first = dict(zip(ending[::-1].tolist(), range(kept.n - 1, -1, -1), strict=True))
    first_byte = np.where(kept.first_byte_ns == MISSING, np.nan, kept.first_byte_ns)
    return {
        "n": bars.n,
        "n_kept": kept.n,
        "segments": [name.replace(" ", "-") for name in SEGMENTS],
        "runs": ["no run" if name is None else f"run {_plotly_text(name)}" for name in runs],
        "labels": [_plotly_text(label_name(name)) for name in labels],
        "endings": [[kept.note(first[place]), *endings[place][2:]] for place in range(len(endings))],
        "run": _counts(run),
        "label": _counts(label),
        "ending": _counts(ending),
        "first_byte": _times(first_byte),
        "edges": _times(kept.edges_ns.ravel()),
    }


def _longest_of_each_slot(bars: CallBars) -> CallBars:
    """Keep all calls, or the longest of those that start in each slot of the wall: a zoom finds some everywhere."""
    if bars.n <= BAR_SLOTS * BARS_PER_SLOT:
        return bars
    slot = np.searchsorted(wall_slots(bars, BAR_SLOTS), bars.start_ns, side="right")
    order = np.lexsort((bars.start_ns - bars.end_ns, slot))
    begins = np.concatenate(([0], np.cumsum(np.bincount(slot))[:-1]))
    rank = np.arange(bars.n) - begins[slot[order]]
    return bars.take(order[rank < BARS_PER_SLOT])


def _plotly_text(text: str) -> str:
    """Make a text stand for itself in plotly, which reads tags and entities in every text."""
    return html.escape(shorten(printable(text), NAME_WIDTH))


def segments_in(bars: CallBars) -> Sequence[str]:
    """Name the segments that any of the bars has, in their order."""
    return [name for at, name in enumerate(SEGMENTS) if np.any(bars.edges_ns[at + 1] > bars.edges_ns[at])]
