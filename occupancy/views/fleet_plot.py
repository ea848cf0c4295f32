"""The occupancy of a fleet as strips of colour, drawn with matplotlib: a row for each group."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes

from occupancy.views.call_bars import printable
from occupancy.views.fleet_text import ALL, NONE
from occupancy.views.heat_strip import MAX_ROWS, Strip, draw_head, draw_strip, new_axes

if TYPE_CHECKING:
    from occupancy.fleet.result import FleetOccupancy


def fleet_strip(found: "FleetOccupancy", ax: Axes | None = None, *, title: str | None = None) -> Axes:
    """Draw how many calls of a fleet were in flight, as colour over time in UTC.

    The first row is all calls together, the others are the busiest groups. A slot is a bucket and shows the **highest**
    level in it.

    Args:
        found: Any.
        ax: Axes to draw on, from which the scale takes a part; None for new ones on a figure of their own, outside of
            pyplot.
        title: Line above the numbers; None for "Calls in flight by model" or what the groups are by.

    Returns:
        The axes.
    """
    groups = found.groups[: MAX_ROWS - 1]
    names = [ALL, *(printable(group.name) or NONE for group in groups)]
    peaks = np.array([found.total.peak, *(group.buckets.peak for group in groups)])
    strip = Strip(names, found.total.edges_ns, peaks)
    ax = new_axes(len(names)) if ax is None else ax
    more = f"; {found.n_groups - len(groups)} more groups" if found.n_groups > len(groups) else ""
    told = f"{found.n:,} calls, peak {found.peak:,} in flight, mean {found.mean_in_flight:,.2f}{more}"
    draw_head(ax, title or "Calls in flight" + (f" by {found.by}" if found.by else ""), told)
    draw_strip(ax, strip, found.total.edges_ns.view("M8[ns]"), "UTC")
    return ax
