"""A bar for each step on one time axis, in ASCII."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from occupancy.analysis.columns import Columns
from occupancy.analysis.distribution import number
from occupancy.analysis.steps import Int64, Steps, closed_end, counted, is_open, steps, wire_start
from occupancy.views.sparkline import EMPTY, QUEUE_LEGEND, time_axis
from occupancy.views.text import count, duration, plain, shorten

MAX_BARS = 12
"""Calls that get a bar each; with more, a bar is a label, and so many labels are drawn."""
LABEL_WIDTH = 20
NO_LABEL = "(no label)"


@dataclasses.dataclass(frozen=True, slots=True)
class _Bar:
    label: str
    in_flight: Steps
    on_wire: Steps
    note: str


def timeline(columns: Columns, width: int = 72, until_ns: int | None = None) -> str:
    """Draw when each step ran.

    Up to 12 calls have a line each; with more, each label has one, and the 12 with most time in flight are drawn. `=`
    is a call on the wire, `.` one that waits in the program's own queues; a digit tells how many calls of a label run
    at once, `+` more than 9. Behind a bar stands how long the call is, with `>` where it is still open, or how many
    calls the label has.

    Args:
        columns: The calls.
        width: Columns of the whole picture, at least 50.
        until_ns: For a live log the time now, ns on the calls' clock.

    Returns:
        Lines of ASCII without a last newline; `no calls in flight` when empty.
    """
    mask = counted(columns)
    kept = {name: column[mask] for name, column in columns.items()}
    end_ns = closed_end(columns, until_ns)[mask]
    whole = steps(kept["start_ns"], end_ns)
    if not whole.peak:
        return EMPTY
    bars = list(_call_bars(kept, end_ns) if end_ns.size <= MAX_BARS else _label_bars(kept, end_ns))
    gutter = max(len(bar.label) for bar in bars) + 2
    note = max(len(bar.note) for bar in bars) + 1
    edges_ns = whole.slots(width - gutter - note)
    lines = [f"{bar.label:<{gutter - 2}} |{_drawn(bar, edges_ns)} {bar.note:>{note - 1}}" for bar in bars]
    legend = [QUEUE_LEGEND.replace("#", "=")] if any("." in line[gutter:-note] for line in lines) else []
    axis = time_axis(whole.wall_ns, gutter, width - note)
    return "\n".join([*lines, *axis, *legend, *_left_out(kept, len(bars))])


def _call_bars(columns: Columns, end_ns: Int64) -> Iterator[_Bar]:
    start_ns, wire_ns, still = columns["start_ns"], wire_start(columns), is_open(columns)
    for call in np.lexsort((end_ns, start_ns)).tolist():
        one = slice(call, call + 1)
        yield _Bar(
            label=_label(columns["label"][call]),
            in_flight=steps(start_ns[one], end_ns[one]),
            on_wire=steps(wire_ns[one], end_ns[one]),
            note=(">" if still[call] else "") + duration(max(int(end_ns[call] - start_ns[call]), 0)),
        )


def _label_bars(columns: Columns, end_ns: Int64) -> Iterator[_Bar]:
    start_ns, wire_ns = columns["start_ns"], wire_start(columns)
    labels, label = number(columns["label"])
    for place in _longest(label, start_ns, end_ns):
        mine = label == place
        yield _Bar(
            label=_label(labels[place]),
            in_flight=steps(start_ns[mine], end_ns[mine]),
            on_wire=steps(wire_ns[mine], end_ns[mine]),
            note=f"x {np.count_nonzero(mine)}",
        )


def _longest(label: Int64, start_ns: Int64, end_ns: Int64) -> list[int]:
    """Give the labels with most time in flight, in the order of their first start."""
    in_flight_ns = np.bincount(label, weights=np.maximum(end_ns - start_ns, 0))
    longest = np.argsort(-in_flight_ns, kind="stable")[:MAX_BARS].tolist()
    return sorted(longest, key=lambda place: int(start_ns[label == place].min()))


def _label(label: str | None) -> str:
    return NO_LABEL if label is None else shorten(plain(label), LABEL_WIDTH)


def _drawn(bar: _Bar, edges_ns: Int64) -> str:
    _, highest = bar.in_flight.envelope(edges_ns)
    _, on_wire = bar.on_wire.envelope(edges_ns)
    return "".join(map(_char, highest.tolist(), on_wire.tolist()))


def _char(level: int, on_wire: int) -> str:
    if not level:
        return " "
    if not on_wire:
        return "."
    return "=" if level == 1 else str(level) if level <= 9 else "+"


def _left_out(columns: Columns, n_bars: int) -> list[str]:
    if columns["label"].size <= MAX_BARS:
        return []
    rest = len(set(columns["label"].tolist())) - n_bars
    return [f"and {count(rest, 'more label')} with less time in flight"] if rest else []
