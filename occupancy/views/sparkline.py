"""Calls in flight as ASCII: one line, or a skyline of several rows."""

import numpy as np

from occupancy.analysis.steps import Int64, Steps
from occupancy.views.text import UNITS

RAMP = "_.:-=+*#%@"
"""Levels of a `sparkline` whose peak needs two digits: `_` is 0, `@` the peak, in nine equal parts between."""
EMPTY = "no calls in flight"
MARK_SHARE = 6
"""Marks at the starts of calls are drawn up to one in so many slots; beyond that they are no longer read."""
QUEUE_LEGEND = "# on the wire, . asked for, not yet on the wire"
MAX_ROWS = 8
"""Rows of a `skyline` that is not told its height."""


def sparkline(in_flight: Steps, width: int = 72) -> str:
    """Draw calls in flight in one line.

    Each character is a slot of equal time and shows the **highest** level in it, so that no short peak is lost. Up to
    a peak of 9 it is the level's digit, with `_` for nothing in flight; above, one of `RAMP`, which is then written
    behind it. The line ends with the peak.

    Args:
        in_flight: Any steps.
        width: Columns of the whole line, at least 40 for a ramp.

    Returns:
        One line of ASCII without its newline; `no calls in flight` when empty.
    """
    if not in_flight.peak:
        return EMPTY
    legend = f" peak {in_flight.peak}" if in_flight.peak <= 9 else f" {RAMP} peak {in_flight.peak}"
    _, highest = in_flight.envelope(in_flight.slots(max(width - len(legend), 1)))
    return level_strip(highest, in_flight.peak) + legend


def level_strip(levels: Int64, peak: int) -> str:
    """Draw levels, a character each: up to a peak of 9 digits, above it `RAMP`, in which one call is never nothing.

    Args:
        levels: Calls in flight, shape (n,), none above the peak.
        peak: What the last character of the ramp stands for, at least 1.
    """
    if peak <= 9:
        return "".join(str(level) if level else RAMP[0] for level in levels.tolist())
    return "".join(RAMP[-(-level * (len(RAMP) - 1) // peak)] for level in levels.tolist())


def skyline(
    in_flight: Steps,
    width: int = 72,
    height: int | None = None,
    wire: Steps | None = None,
    starts_ns: Int64 | None = None,
) -> str:
    """Draw calls in flight as a skyline with both axes.

    A row is filled where at least as many calls as its number are in flight at some moment of the slot, so that the top
    row is reached by the peak and by nothing else.

    Args:
        in_flight: Any steps.
        width: Columns of the whole picture, at least 30.
        height: Rows, at most the peak; None for the peak, at most 8.
        wire: The calls on the wire. Where fewer are on the wire than in flight, `.` stands for a call that waits in the
            program's own queues.
        starts_ns: Starts of the calls, ns, any order. A call that starts where the line does not break is marked by `|`
            in the lowest row: calls that touch are seen apart. Left out where there are too many to read.

    Returns:
        Lines of ASCII without a last newline; `no calls in flight` when empty.
    """
    if not in_flight.peak:
        return EMPTY
    gutter = len(str(in_flight.peak)) + 2
    edges_ns = in_flight.slots(max(width - gutter, 1))
    _, highest = in_flight.envelope(edges_ns)
    on_wire = highest if wire is None else np.minimum(wire.envelope(edges_ns)[1], highest)
    thresholds = _thresholds(in_flight.peak, height)
    rows = [_row(highest, on_wire, threshold) for threshold in thresholds]
    rows[-1] = _marked(rows[-1], starts_ns, edges_ns)
    drawn = [f"{threshold:>{gutter - 2}} |{row}".rstrip() for threshold, row in zip(thresholds, rows, strict=True)]
    legend = [QUEUE_LEGEND] if any("." in row for row in rows) else []
    return "\n".join(drawn + time_axis(in_flight.wall_ns, gutter, width) + legend)


def _thresholds(peak: int, height: int | None) -> list[int]:
    """The levels of the rows, from the peak down to 1."""
    rows = min(peak, MAX_ROWS if height is None else max(height, 1))
    if rows == 1:
        return [1]
    return [1 + round((peak - 1) * row / (rows - 1)) for row in reversed(range(rows))]


def _row(highest: Int64, on_wire: Int64, threshold: int) -> str:
    return "".join(np.where(on_wire >= threshold, "#", np.where(highest >= threshold, ".", " ")).tolist())


def _marked(row: str, starts_ns: Int64 | None, edges_ns: Int64) -> str:
    if starts_ns is None:
        return row
    slots = set((np.searchsorted(edges_ns, starts_ns, side="right") - 1).tolist())
    marks = {slot for slot in slots if 0 < slot < len(row) and row[slot - 1] != " "}
    if len(marks) > len(row) // MARK_SHARE:
        return row
    return "".join("|" if slot in marks else char for slot, char in enumerate(row))


def time_axis(wall_ns: int, gutter: int, width: int) -> list[str]:
    """Draw a line with ticks, and below it their times.

    Args:
        wall_ns: Time from the left end to the right end, at least 1 ns.
        gutter: Columns left of the axis, its own `+` included.
        width: Columns in all.

    Returns:
        Two lines; the unit stands behind the first time, 0.
    """
    columns = width - gutter
    unit, unit_ns = [pair for pair in UNITS if pair[1] == 1 or wall_ns >= 2 * pair[1]][-1]
    line, labels = ["-"] * (columns + 1), [" "] * width
    for at_ns in range(0, wall_ns, _tick_ns(wall_ns, max(columns // 9, 1))):
        column = at_ns * columns // wall_ns + (at_ns > 0)  # 0 is the corner, the first slot is right of it
        text = f"{at_ns / unit_ns:g}" + (f" {unit}" if at_ns == 0 else "")
        line[column] = "+"
        if gutter - 1 + column + len(text) <= width:
            labels[gutter - 1 + column : gutter - 1 + column + len(text)] = text
    return [" " * (gutter - 1) + "".join(line), "".join(labels).rstrip()]


def _tick_ns(wall_ns: int, ticks: int) -> int:
    """The smallest of 1, 2, 5, 10, 20, ... ns that gives at most so many ticks."""
    size = 1
    while True:
        for step in (1, 2, 5):
            if size * step * ticks >= wall_ns:
                return size * step
        size *= 10
