"""The occupancy of a fleet as text: a table with a strip of time for each group, and what the numbers do not show."""

import datetime
import textwrap
from typing import TYPE_CHECKING

import numpy as np

from occupancy.analysis.steps import Int64
from occupancy.views.sparkline import RAMP, level_strip
from occupancy.views.text import GAP, count, duration, plain, shorten, table

if TYPE_CHECKING:
    from occupancy.fleet.result import FleetOccupancy

MAX_ROWS = 20
"""Groups that are listed."""
NAME_WIDTH = 28
ALL, NONE = "(all)", "(none)"


def fleet_report(found: "FleetOccupancy", width: int = 80) -> str:
    """Say how many calls a fleet had in flight, in which groups, and when.

    Args:
        found: Any.
        width: Columns, at least 60. A strip has a column for each bucket, or for several where there are more.

    Returns:
        Lines of ASCII without a last newline.
    """
    edges_ns = found.total.edges_ns.tolist()
    whose = f" of {plain(found.service)}" if found.service else ""
    head = [
        f"occupancy: {count(found.n, 'call')} in {_length(edges_ns[-1] - edges_ns[0])}, "
        f"peak {found.peak} in flight, mean {found.mean_in_flight:.2f}",
        f"{plain(found.source)}{whose}",
        f"{_clock(edges_ns[0])} to {_clock(edges_ns[-1])} UTC, buckets of {_length(edges_ns[1] - edges_ns[0])}",
    ]
    notes = [textwrap.fill(f"- {limit}", width, subsequent_indent="  ") for limit in limits(found)]
    return "\n".join([*(line[:width] for line in head), "", _table(found, width), "", *notes])


def _length(ns: int) -> str:
    """A time in the unit in which people think of it."""
    units = ((86_400 * 10**9, "d"), (3600 * 10**9, "h"), (60 * 10**9, "min"))
    return next((f"{ns / size:.3g} {unit}" for size, unit in units if ns >= size), duration(ns))


def _clock(unix_ns: int) -> str:
    return datetime.datetime.fromtimestamp(unix_ns // 10**9, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")


def _table(found: "FleetOccupancy", width: int) -> str:
    groups = found.groups[: MAX_ROWS if len(found.groups) <= MAX_ROWS else MAX_ROWS - 1]
    named = [(ALL, found.total), *((shorten(plain(name), NAME_WIDTH) or NONE, buckets) for name, buckets in groups)]
    headers = (found.by or "calls of", "calls", "mean", "peak", "highest in each part of the window")
    numbers = [(name, str(part.n), f"{part.mean_in_flight:.2f}", str(part.highest)) for name, part in named]
    taken = sum(max(len(row[column]) for row in (headers, *numbers)) + len(GAP) for column in range(4))
    strips = [level_strip(_shrunk(part.peak, max(width - taken, 8)), found.peak) for _, part in named]
    lines = [table(headers, [(*row, strip) for row, strip in zip(numbers, strips, strict=True)], "<>>><", width)]
    if found.peak > 9:
        lines.append(f"{'':{taken}}{RAMP} 0 to {found.peak}")
    if found.n_groups > len(groups):
        lines.append(f"... and {found.n_groups - len(groups)} more, less busy")
    return "\n".join(lines)


def _shrunk(peaks: Int64, columns: int) -> Int64:
    """The highest level in each of at most so many equal runs of buckets."""
    size = -(-peaks.size // columns)
    highest: Int64 = np.maximum.reduceat(peaks, np.arange(0, peaks.size, size))
    return highest


def limits(found: "FleetOccupancy") -> tuple[str, ...]:
    """Say what the numbers do not show, a sentence each."""
    late = "calls that had not ended are not here"
    if found.is_live:
        late = f"the last {_length(found.longest_ns)}, the longest call, reads low, and what exporters hold back too"
    edge = f"calls that began up to {_length(found.lookback_ns)} before it, the longest span, count from it on"
    if found.is_lookback_short:
        edge = (
            f"calls that began more than {_length(found.lookback_ns)} before it are missed; lookback=... looks further"
        )
    told = (
        f"late export: spans come when they have ended; {late}",
        f"left edge: {edge}",
        "sampling: what was not kept does not count; the peak of a sample is not the fleet's",
    )
    if not found.n_bare:
        return told
    spans = f"{found.n_bare} of {found.n} spans are not stamped by OccupancySpanProcessor"
    return (*told, f"bodies: {spans} and may end with the headers: streams read low; see --select genai")
