"""Calls in flight over time, drawn with matplotlib."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from occupancy.analysis.columns import MISSING, Columns
from occupancy.analysis.steps import Int64, Steps, closed_end, counted, steps, wire_start
from occupancy.views.text import count, duration, shorten

IN_FLIGHT = "#0072B2"
"""Blue of Okabe and Ito's palette: the darker of the two in greyscale."""
ON_WIRE = "#E69F00"
"""Orange of the same palette; dashed as well."""
FILL, PARTLY = "#D3E6F2", "#94C3E0"
"""Where calls are in flight for all of a pixel column, and for a part of it."""
INK, QUIET = "#222222", "#666666"
MAX_LABELS = 30
"""Calls up to which each is named and set apart."""
MAX_MARKS = 150
"""First bytes up to which each is marked."""
WAITING_SHARE = 0.005
"""Share of the calls' time off the wire from which on the second curve differs to the eye."""
CUT_PX = 4
"""Gap between calls that is too small to be seen, and drawn as a cut."""
LABEL_INDENT_PX = 5
MIN_LABEL = 5
"""Shortest piece of a label worth drawing."""
NARROW_INCHES = 5.5
NS = 1e9


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Picture:
    """What is drawn, with times in ns from the first start."""

    n: int
    """Calls that count, those that occupy nothing too."""
    in_flight: Steps
    on_wire: Steps
    start_ns: Int64
    end_ns: Int64
    first_byte_ns: Int64
    labels: list[str | None]

    @classmethod
    def of(cls, columns: Columns, until_ns: int | None = None) -> "_Picture":
        mask, end_ns = counted(columns), closed_end(columns, until_ns)
        used = mask & (end_ns > columns["start_ns"])
        start_ns, end_ns, first_byte_ns = columns["start_ns"][used], end_ns[used], columns["first_byte_ns"][used]
        origin_ns = int(start_ns.min()) if start_ns.size else 0
        return cls(
            n=int(np.count_nonzero(mask)),
            in_flight=steps(start_ns - origin_ns, end_ns - origin_ns),
            on_wire=steps(wire_start(columns)[used] - origin_ns, end_ns - origin_ns),
            start_ns=start_ns - origin_ns,
            end_ns=end_ns - origin_ns,
            first_byte_ns=first_byte_ns[first_byte_ns != MISSING] - origin_ns,
            labels=columns["label"][used].tolist(),
        )

    @property
    def waits(self) -> bool:
        """Whether calls are off the wire for long enough to be seen."""
        in_flight_ns = self.in_flight.mean * self.in_flight.wall_ns
        on_wire_ns = self.on_wire.mean * self.on_wire.wall_ns
        return in_flight_ns - on_wire_ns > WAITING_SHARE * in_flight_ns

    @property
    def numbers(self) -> str:
        """The line under the title."""
        if not self.n:
            return "no calls"
        flight = self.in_flight
        return f"{count(self.n, 'call')} in {duration(flight.wall_ns)}, peak {flight.peak}, mean {flight.mean:.2f}"


def plot(columns: Columns, ax: Axes | None = None, *, title: str | None = None, until_ns: int | None = None) -> Axes:
    """Draw the step function of calls in flight over wall seconds.

    Blue is what the program asked for; a dashed orange line is what went on the wire, where the program's own queues
    hold calls back. Circles are first bytes. Up to 30 calls are named and set apart, as far as there is room. With more
    steps than pixel columns, each column shows its lowest and its highest level: the peak is always drawn.

    Args:
        columns: The calls.
        ax: Axes to draw on; None for new ones on a figure of their own, outside of pyplot. Save it by
            `ax.figure.savefig(path)`.
        title: Line above the numbers; None for "Calls in flight".
        until_ns: For a live log the time now, ns on the calls' clock.

    Returns:
        The axes. Without calls they are empty and say so.
    """
    if ax is None:
        figure = Figure(figsize=(9, 3.4), layout="constrained")
        ax = figure.add_subplot()
    picture = _Picture.of(columns, until_ns)
    _frame(ax, picture.in_flight.wall_ns, picture.in_flight.peak)
    _draw(ax, picture, "Calls in flight" if title is None else title)
    ax.set_xlabel("wall time in s", color=QUIET)
    return ax


def compare_plot(panels: Sequence[tuple[str, Columns]]) -> Figure:
    """Draw several logs below each other on the same axes of time and of calls.

    Args:
        panels: Title and calls of each, from the top; each starts at 0 s.

    Returns:
        A figure outside of pyplot; without panels it has no axes.
    """
    pictures = [(title, _Picture.of(columns)) for title, columns in panels]
    figure = Figure(figsize=(9, 0.6 + 2.3 * max(len(panels), 1)), layout="constrained")
    if not pictures:
        return figure
    rows = figure.subplots(len(pictures), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    wall_ns = max(picture.in_flight.wall_ns for _, picture in pictures)
    peak = max(picture.in_flight.peak for _, picture in pictures)
    for ax in rows:
        _frame(ax, wall_ns, peak)
    for ax, (title, picture) in zip(rows, pictures, strict=True):
        _draw(ax, picture, title)
    rows[-1].set_xlabel("wall time in s")
    return figure


def _frame(ax: Axes, wall_ns: int, peak: int) -> None:
    ax.set_xlim(0, 1.005 * wall_ns / NS or 1)
    ax.set_ylim(0, max(peak * 1.12, peak + 0.2, 1.2))
    ax.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    ax.set_ylabel("in flight", color=QUIET)
    ax.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.tick_params(colors=QUIET, length=3)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color("#AAAAAA")


def _draw(ax: Axes, picture: _Picture, title: str) -> None:
    ax.set_title(f"{_printable(title)}\n", loc="left", fontsize=11, fontweight="bold", color=INK, parse_math=False)
    ax.annotate(picture.numbers, (0, 1), (0, 6), "axes fraction", textcoords="offset points", fontsize=9, color=QUIET)
    if not picture.in_flight.peak:
        ax.text(0.5, 0.5, "no calls in flight", transform=ax.transAxes, ha="center", va="center", color=QUIET)
        return
    pixels = max(int(ax.bbox.width), 100)
    _draw_curve(ax, picture.in_flight, pixels)
    if len(picture.labels) <= MAX_LABELS:
        _draw_boundaries(ax, picture)
        _draw_labels(ax, picture)
    if picture.waits:
        x_s, _, highest = _curve(picture.on_wire, pixels)
        ax.step(x_s, highest, where="post", color=ON_WIRE, linewidth=1.8, linestyle=(0, (4, 1.5)), label="on the wire")
    if 0 < picture.first_byte_ns.size <= MAX_MARKS:
        _draw_first_bytes(ax, picture)
    if len(ax.get_legend_handles_labels()[1]) > 1:
        _draw_legend(ax)


def _curve(drawn: Steps, pixels: int) -> tuple[NDArray[np.float64], Int64, Int64]:
    """Give x in s and the lowest and highest level from there on: exact, or an envelope of one value per pixel."""
    if drawn.t_ns.size <= 2 * pixels:
        t_ns, lowest, highest = drawn.t_ns, drawn.in_flight, drawn.in_flight
    else:
        t_ns = drawn.slots(pixels)
        lowest, highest = (np.append(levels, 0) for levels in drawn.envelope(t_ns))
    x_s = np.concatenate((t_ns[:1], t_ns)) / NS  # rises from 0 at the first start
    return x_s, np.append(0, lowest), np.append(0, highest)


def _draw_curve(ax: Axes, in_flight: Steps, pixels: int) -> None:
    x_s, lowest, highest = _curve(in_flight, pixels)
    ax.fill_between(x_s, lowest, step="post", color=FILL, linewidth=0)
    if not np.array_equal(lowest, highest):
        ax.fill_between(x_s, lowest, highest, step="post", color=PARTLY, linewidth=0)
    width = 1.8 if x_s.size < pixels // 4 else 0.8
    ax.step(x_s, highest, where="post", color=IN_FLIGHT, linewidth=width, label="in flight", solid_joinstyle="miter")


def _draw_boundaries(ax: Axes, picture: _Picture) -> None:
    """Cut the area where a call starts while others run, or less than a cut after they ended: calls are seen apart."""
    start_ns = np.unique(picture.start_ns[picture.start_ns > 0])
    cut_ns = int(CUT_PX * ax.get_xlim()[1] * NS / ax.bbox.width)
    level = np.minimum(picture.in_flight.at(start_ns - max(cut_ns, 1)), picture.in_flight.at(start_ns))
    ax.vlines(start_ns / NS, 0, level + 0.02 * ax.get_ylim()[1], color="white", linewidth=2.2, zorder=2.5)


def _draw_first_bytes(ax: Axes, picture: _Picture) -> None:
    """Mark first bytes on the curve; one that is also the last byte lies on the level it ends."""
    at_ns = picture.first_byte_ns
    level = np.maximum(picture.in_flight.at(at_ns - 1), picture.in_flight.at(at_ns))
    ax.plot(
        at_ns / NS,
        level,
        linestyle="none",
        marker="o",
        markersize=4.5,
        markerfacecolor="white",
        markeredgecolor=INK,
        markeredgewidth=1,
        label="first byte",
        clip_on=False,
        zorder=4,
    )


def _draw_legend(ax: Axes) -> None:
    """Put the legend right above the axes: beside the numbers, or beside the title where it is narrow."""
    narrow = ax.bbox.width < NARROW_INCHES * ax.figure.dpi
    legend = ax.legend(
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=3,
        fontsize=8 if narrow else 9,
        frameon=False,
        borderaxespad=1.8 if narrow else 0.2,
        handlelength=1.6,
        columnspacing=1.2,
    )
    for text in legend.get_texts():
        text.set_color(QUIET)


def _draw_labels(ax: Axes, picture: _Picture) -> None:
    """Write each call's label under the curve where there is room for it."""
    row_px = ax.bbox.height / ax.get_ylim()[1]
    if row_px < 11:
        return
    px_per_ns = ax.bbox.width / (ax.get_xlim()[1] * NS)
    for call, row in _rows(picture):
        label = picture.labels[call]
        if label is None:
            continue
        from_ns, to_ns = int(picture.start_ns[call]), _room_end(picture, call, row)
        text = ax.text(
            from_ns / NS + LABEL_INDENT_PX / px_per_ns / NS,
            row + 0.5,
            _printable(label),
            va="center",
            color=INK,
            parse_math=False,
        )
        _fit(text, (to_ns - from_ns) * px_per_ns - 2 * LABEL_INDENT_PX)


def _rows(picture: _Picture) -> list[tuple[int, int]]:
    """Give calls in the order of their starts, each with the lowest row that no earlier one still holds."""
    free_at_ns: list[int] = []
    placed = []
    for call in np.argsort(picture.start_ns, kind="stable").tolist():
        start_ns, end_ns = int(picture.start_ns[call]), int(picture.end_ns[call])
        row = next((row for row, free_ns in enumerate(free_at_ns) if free_ns <= start_ns), len(free_at_ns))
        free_at_ns[row : row + 1] = [end_ns]
        placed.append((call, row))
    return placed


def _room_end(picture: _Picture, call: int, row: int) -> int:
    """Until when the curve stays above the call's row: at its start it is, since all rows below are taken."""
    t_ns, level = picture.in_flight.t_ns, picture.in_flight.in_flight
    below = t_ns[(t_ns > picture.start_ns[call]) & (level <= row)]
    return min(int(below[0]), int(picture.end_ns[call]))


def _fit(text: Text, room_px: float) -> None:
    """Make a text smaller, then shorter, until it has room; else remove it."""
    for size in (9, 7.5):
        text.set_fontsize(size)
        width_px = text.get_window_extent().width
        if width_px <= room_px:
            return
    fits = int(len(text.get_text()) * room_px / width_px)
    if fits < MIN_LABEL:
        text.remove()
    else:
        text.set_text(shorten(text.get_text(), fits))


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
