"""How full each label was over time, as strips of colour, drawn with matplotlib."""

import dataclasses
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from occupancy.analysis.columns import Columns
from occupancy.analysis.steps import Int64
from occupancy.views.call_bars import CallBars, printable
from occupancy.views.label_rows import label_rows, wall_slots
from occupancy.views.text import count, duration, shorten

MAX_ROWS = 24
ROW_INCHES = 0.3
ROW_PX = 10
"""Least height of a row on axes of the caller's, in pixels."""
NAME_WIDTH = 26
MAX_COLOURS = 9
"""Peak up to which each level has a colour of its own."""
RAMP = ("#CFE4F3", "#7DB8DF", "#2F86C1", "#005A94", "#00294A")
"""From one call to the peak: one hue, ever darker, so that it reads in greyscale. Nothing in flight is white."""
INK, QUIET = "#222222", "#666666"
NS = 1e9


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Strip:
    """Rows by slots: what a heat strip shows."""

    names: list[str]
    """Of the rows."""
    edges_ns: Int64
    """Edges of the slots, ns, shape (n + 1,)."""
    highest: Int64
    """Most calls of each row in flight in each slot, shape (rows, n)."""

    @classmethod
    def of(cls, bars: CallBars, limit: int, n_slots: int) -> "Strip":
        """Sort calls into at most `limit` rows by label and `n_slots` slots of equal width; no row without a wall.

        Times are from the first start on.
        """
        edges_ns = wall_slots(bars, n_slots)
        rows = label_rows(bars, limit) if edges_ns[-1] else []
        levels = [row.in_flight.envelope(edges_ns)[1] for row in rows]
        return cls([row.name for row in rows], edges_ns, np.array(levels, dtype=np.int64).reshape(len(rows), n_slots))

    @property
    def peak(self) -> int:
        """Most calls of one row in flight; 0 when empty."""
        return int(self.highest.max(initial=0))


def heat_strip(
    columns: Columns, ax: Axes | None = None, *, title: str | None = None, until_ns: int | None = None
) -> Axes:
    """Draw how many calls of each label were in flight, as colour over wall seconds.

    A row is one label; the busiest have one each, all others share the last. A slot is a pixel wide and shows the
    **highest** level in it, so that no peak is lost. Up to a peak of 9 each level has its own colour.

    Args:
        columns: The calls.
        ax: Axes to draw on, from which the scale takes a part; None for new ones on a figure of their own, outside of
            pyplot.
        title: Line above the numbers; None for "Calls in flight by label".
        until_ns: For a live log the time now, ns on the calls' clock.

    Returns:
        The axes. Without calls they are empty and say so.
    """
    bars = CallBars.of(columns, until_ns)
    limit = MAX_ROWS if ax is None else max(min(MAX_ROWS, int(ax.bbox.height / ROW_PX)), 2)
    rows = min(len(set(bars.label.tolist())), limit)
    ax = new_axes(rows) if ax is None else ax
    strip = Strip.of(bars, limit, max(int(ax.bbox.width), 100))
    draw_head(ax, "Calls in flight by label" if title is None else title, _told(bars, strip))
    if strip.peak:
        draw_strip(ax, strip, strip.edges_ns / NS, "wall time in s")
    else:
        ax.set(xticks=[], yticks=[])
        ax.text(0.5, 0.5, "no calls in flight", transform=ax.transAxes, ha="center", va="center", color=QUIET)
        ax.spines[:].set_visible(False)
    return ax


def new_axes(rows: int) -> Axes:
    """Give axes for so many rows, on a figure of their own outside of pyplot."""
    return Figure(figsize=(9, 1.3 + ROW_INCHES * max(rows, 2)), layout="constrained").add_subplot()


def _told(bars: CallBars, strip: Strip) -> str:
    if not bars.n:
        return "no calls"
    slot = duration(int(strip.edges_ns[-1]) / (strip.edges_ns.size - 1))
    told = f"{bars.n:,} calls" if bars.n > 1 else count(bars.n, "call")
    return f"{told}, highest level in each slot of {slot}"


def draw_head(ax: Axes, title: str, told: str) -> None:
    """Write a title and a line below it."""
    ax.set_title(f"{printable(title)}\n", loc="left", fontsize=11, fontweight="bold", color=INK, parse_math=False)
    ax.annotate(told, (0, 1), (0, 6), "axes fraction", textcoords="offset points", fontsize=9, color=QUIET)


def draw_strip(ax: Axes, strip: Strip, x: NDArray[Any], x_name: str) -> None:
    """Draw rows of colour, with their names and a scale.

    Args:
        ax: Empty axes.
        strip: With at least one call.
        x: Edges of the slots on the axis, numbers or `datetime64`, shape (n + 1,).
        x_name: What the axis shows.
    """
    n_rows = len(strip.names)
    colours, scale = _colours(strip.peak)
    mesh = ax.pcolormesh(
        x,
        np.arange(n_rows + 1) - 0.5,
        np.ma.masked_equal(strip.highest, 0),
        cmap=colours,
        norm=scale,
        rasterized=True,
    )
    ax.hlines(np.arange(1, n_rows) - 0.5, *ax.get_xlim(), color="white", linewidth=2.5)
    ax.hlines(np.arange(n_rows + 1) - 0.5, *ax.get_xlim(), color="#DDDDDD", linewidth=0.6)
    ax.set_ylim(n_rows - 0.5, -0.5)
    ax.set_yticks(range(n_rows), [shorten(name, NAME_WIDTH) for name in strip.names], parse_math=False)
    ax.tick_params(axis="y", length=0, labelcolor=INK, labelsize=9)
    ax.tick_params(axis="x", colors=QUIET, length=3)
    ax.set_xlabel(x_name, color=QUIET)
    ticks = MaxNLocator(nbins=6, integer=True, min_n_ticks=1) if strip.peak > MAX_COLOURS else range(1, strip.peak + 1)
    bar = ax.figure.colorbar(mesh, ax=ax, pad=0.02, aspect=max(4 * n_rows, 8), fraction=0.05, ticks=ticks)
    bar.set_label("in flight", color=QUIET)
    bar.ax.tick_params(colors=QUIET, length=0)
    bar.outline.set_visible(False)
    ax.spines[:].set_visible(False)


def _colours(peak: int) -> tuple[LinearSegmentedColormap, Normalize]:
    """Give a ramp from 1 to the peak: in whole steps where there are few levels."""
    colours = LinearSegmentedColormap.from_list("occupancy", RAMP)
    if peak > MAX_COLOURS:
        return colours, Normalize(1, peak)
    if peak == 1:
        return LinearSegmentedColormap.from_list("occupancy", RAMP[2:3] * 2), BoundaryNorm([0.5, 1.5], 256)
    return colours, BoundaryNorm(np.arange(peak + 1) + 0.5, colours.N)
