"""A bar for each call with its phases, or a ridge for each label, drawn with matplotlib."""

import dataclasses
import math
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from occupancy.analysis.columns import MISSING, Columns
from occupancy.analysis.distribution import number
from occupancy.analysis.steps import Int64
from occupancy.views.call_bars import COLOURS, FAILURE, HATCHES, REST, SEGMENTS, CallBars, label_name, printable
from occupancy.views.label_rows import LabelRow, label_rows, segment_shares, wall_slots
from occupancy.views.text import count, duration, shorten

MAX_ROWS = 60
"""Rows up to which each call has a bar of its own."""
MAX_RIDGES = 16
BAR_PX, RIDGE_PX = 8, 16
"""Least height of a row on axes of the caller's, in pixels, so that bars and ridges are told apart."""
BAR_INCHES, RIDGE_INCHES = 0.2, 0.42
BAR_HEIGHT, RIDGE_HEIGHT = 0.72, 0.86
NAME_WIDTH = 26
VISIBLE_PX = 1
"""Width from which on a phase is seen, and named in the legend."""
FAILURE_PX = 6
"""A ridge has one mark of a failure in so many pixels."""
INK, QUIET, BAND = "#222222", "#666666", "#F4F4F4"
NS = 1e9


def waterfall(
    columns: Columns, ax: Axes | None = None, *, title: str | None = None, until_ns: int | None = None
) -> Axes:
    """Draw calls as bars over wall seconds, coloured by phase.

    Bars are grouped by run, then by label, then by start. A circle is the first byte, a cross a failed call, an arrow
    one that is still open; how a call ended is written behind its bar where that was not `ok`. Calls too short to be
    seen are hairlines.

    Where there is no room for a bar for each call, there is a ridge for each of the busiest labels and one for all
    others: its height is the highest number of calls in flight in each pixel column, on a scale of its own whose peak
    is written beside it, and its colours are how the calls' time there is shared out among the phases.

    Args:
        columns: The calls.
        ax: Axes to draw on; None for new ones on a figure of their own, outside of pyplot, as high as it needs to be.
        title: Line above the numbers; None for "Calls".
        until_ns: For a live log the time now, ns on the calls' clock.

    Returns:
        The axes. Without calls they are empty and say so.
    """
    bars = CallBars.of(columns, until_ns)
    lines: list[_Line] = []
    if bars.n <= MAX_ROWS:
        bars = bars.grouped()
        lines = _lines(bars)
    if bars.n <= MAX_ROWS and _fits(len(lines), ax):
        rows: list[LabelRow] = []
        ax = ax or _new_axes(len(lines), BAR_INCHES)
    else:
        rows = label_rows(bars, MAX_RIDGES if ax is None else max(min(MAX_RIDGES, int(ax.bbox.height / RIDGE_PX)), 2))
        ax = ax or _new_axes(len(rows), RIDGE_INCHES)
    _frame(ax, bars, len(rows or lines))
    if rows:
        _draw_ridges(ax, bars, rows)
    elif lines:
        _draw_bars(ax, bars, lines)
    else:
        ax.text(0.5, 0.5, "no calls", transform=ax.transAxes, ha="center", va="center", color=QUIET)
    _draw_head(ax, bars, "Calls" if title is None else title, rows)
    return ax


@dataclasses.dataclass(frozen=True, slots=True)
class _Line:
    """One row of the picture with bars: a call, or the heading of a run."""

    bar: int | None
    heading: str = ""
    name: str = ""
    """Of the call's label, at the first of its calls only."""
    group: int = 0
    """Counts the labels: every other one lies on a band."""


def _lines(bars: CallBars) -> list[_Line]:
    """Give the rows of grouped bars from the top; only several runs have headings."""
    _, run = number(bars.run)
    _, pair = number(zip(run.tolist(), bars.label, strict=True))
    with_headings = run.size > 0 and int(run[-1]) > 0
    lines: list[_Line] = []
    for bar in range(bars.n):
        if with_headings and (bar == 0 or run[bar] != run[bar - 1]):
            lines.append(_Line(None, heading=_run_name(bars.run[bar]), group=-1))
        first = bar == 0 or pair[bar] != pair[bar - 1]
        name = shorten(label_name(bars.label[bar]), NAME_WIDTH) if first else ""
        lines.append(_Line(bar, name=name, group=int(pair[bar])))
    return lines


def _run_name(run: str | None) -> str:
    return "no run" if run is None else f"run {shorten(printable(run), NAME_WIDTH)}"


def _fits(n_lines: int, ax: Axes | None) -> bool:
    return n_lines <= MAX_ROWS and (ax is None or n_lines * BAR_PX <= ax.bbox.height)


def _new_axes(n_rows: int, row_inches: float) -> Axes:
    figure = Figure(figsize=(9, 1.5 + row_inches * max(n_rows, 3)), layout="constrained")
    return figure.add_subplot()


def _frame(ax: Axes, bars: CallBars, n_rows: int) -> None:
    first_ns, last_ns = int(bars.start_ns.min(initial=0)), int(bars.end_ns.max(initial=0))
    ax.set_xlim(first_ns / NS, (last_ns + 0.005 * (last_ns - first_ns)) / NS or 1)
    ax.set_ylim(max(n_rows, 1) - 0.4, -0.7)
    ax.set_yticks([])
    ax.set_xlabel("wall time in s", color=QUIET)
    ax.grid(axis="x", color="#DDDDDD", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.tick_params(colors=QUIET, length=3)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.spines["bottom"].set_color("#AAAAAA")


def _draw_bars(ax: Axes, bars: CallBars, lines: list[_Line]) -> None:
    _name_lines(ax, lines)
    row_of = {line.bar: row for row, line in enumerate(lines) if line.bar is not None}
    rows = np.array([row_of[bar] for bar in range(bars.n)])
    _draw_segments(ax, bars, rows)
    ax.vlines(bars.start_ns / NS, rows - BAR_HEIGHT / 2, rows + BAR_HEIGHT / 2, color=INK, linewidth=0.6, zorder=3)
    _draw_marks(ax, bars, rows)
    _draw_notes(ax, bars, rows)


def _name_lines(ax: Axes, lines: list[_Line]) -> None:
    named = [row for row, line in enumerate(lines) if line.name]
    ax.set_yticks(named, [lines[row].name for row in named], parse_math=False)
    ax.tick_params(axis="y", length=0, labelcolor=INK, labelsize=9)
    for row, line in enumerate(lines):
        if line.heading:
            where = ax.get_yaxis_transform()
            ax.text(0, row, line.heading, transform=where, va="center", fontsize=9, fontweight="bold", color=INK,
                    parse_math=False)  # fmt: skip
        elif line.group % 2 == 0:
            ax.axhspan(row - 0.5, row + 0.5, color=BAND, linewidth=0, zorder=0)


def _draw_segments(ax: Axes, bars: CallBars, rows: Int64) -> None:
    """Draw each segment of all bars at once; those too thin to be seen are drawn, but not named."""
    seen_ns = VISIBLE_PX * _ns_per_px(ax)
    for at, name in enumerate(SEGMENTS):
        left_ns, width_ns = bars.edges_ns[at], bars.edges_ns[at + 1] - bars.edges_ns[at]
        drawn = width_ns > 0
        if not drawn.any():
            continue
        ax.barh(
            rows[drawn],
            width_ns[drawn] / NS,
            BAR_HEIGHT,
            left=left_ns[drawn] / NS,
            label=name if width_ns.max() >= seen_ns else f"_{name}",
            zorder=2,
            **_style(name),
        )


def _style(name: str) -> dict[str, Any]:
    hatch = HATCHES.get(name)
    return {"facecolor": COLOURS[name], "edgecolor": "#8A5A00" if hatch else "none", "linewidth": 0, "hatch": hatch}


def _ns_per_px(ax: Axes) -> float:
    left, right = ax.get_xlim()
    return (right - left) * NS / max(ax.bbox.width, 1)


def _draw_marks(ax: Axes, bars: CallBars, rows: Int64) -> None:
    came = bars.first_byte_ns != MISSING
    marks: tuple[tuple[str, Any, Int64, dict[str, Any]], ...] = (
        ("first byte", came, bars.first_byte_ns, {"marker": "o", "markersize": 4.5, "markerfacecolor": "white"}),
        ("failed", bars.failed, bars.end_ns, {"marker": "X", "markersize": 8, "markerfacecolor": FAILURE}),
        ("still open", bars.is_open, bars.end_ns, {"marker": ">", "markersize": 7, "markerfacecolor": "white"}),
    )
    for name, mask, at_ns, style in marks:
        if mask.any():
            ax.plot(at_ns[mask] / NS, rows[mask], linestyle="none", label=name, markeredgecolor=INK,
                    markeredgewidth=0.9, clip_on=False, zorder=4, **style)  # fmt: skip


def _draw_notes(ax: Axes, bars: CallBars, rows: Int64) -> None:
    """Write behind each bar how long the call is, and how it ended where that was not `ok`."""
    for bar, row in enumerate(rows.tolist()):
        told = duration(int(bars.end_ns[bar] - bars.start_ns[bar]))
        note = bars.note(bar)
        ax.annotate(
            f"{told}  {note}".rstrip(),
            (bars.end_ns[bar] / NS, row),
            (8, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=INK if note else QUIET,
            fontweight="bold" if bars.failed[bar] else "normal",
            annotation_clip=False,
            parse_math=False,
        )


def _draw_ridges(ax: Axes, bars: CallBars, rows: list[LabelRow]) -> None:
    ax.set_yticks(range(len(rows)), [shorten(row.name, NAME_WIDTH) for row in rows], parse_math=False)
    ax.tick_params(axis="y", length=0, labelcolor=INK, labelsize=9)
    edges_ns = wall_slots(bars, max(int(ax.bbox.width), 100))
    seen: set[str] = set()
    for place, row in enumerate(rows):
        ax.axhline(place + 0.5, color="#BBBBBB", linewidth=0.6, zorder=1)
        seen |= _draw_ridge(ax, row, place, edges_ns)
        _draw_ridge_failures(ax, row.bars, place)
        _draw_ridge_note(ax, row, place)
    for name in SEGMENTS:
        if name in seen:
            ax.bar(0, 0, label=name, **_style(name))


def _draw_ridge(ax: Axes, row: LabelRow, place: int, edges_ns: Int64) -> set[str]:
    """Draw one ridge upwards from its base; give the names of the segments in it."""
    _, highest = row.in_flight.envelope(edges_ns)
    height = highest * (RIDGE_HEIGHT / max(row.in_flight.peak, 1))
    shares = segment_shares(row.bars, edges_ns)
    shares[SEGMENTS.index(REST)] += np.where((shares.sum(axis=0) == 0) & (highest > 0), 1, 0)
    tops = np.vstack((np.zeros(highest.size), np.cumsum(shares, axis=0))) * height
    x_s, base = edges_ns / NS, place + 0.5
    for at, name in enumerate(SEGMENTS):
        if shares[at].any():
            lower, upper = (base - np.append(edge, edge[-1]) for edge in (tops[at], tops[at + 1]))
            ax.fill_between(x_s, lower, upper, step="post", zorder=2, **_style(name))
    ax.step(x_s, base - np.append(height, height[-1]), where="post", color=INK, linewidth=0.5, zorder=3)
    return {name for name, share in zip(SEGMENTS, shares, strict=True) if share.max() >= 1 / 20}


def _draw_ridge_failures(ax: Axes, bars: CallBars, place: int) -> None:
    """Mark failures at the top of their ridge, one in so many pixels: more would not be told apart."""
    at_ns = np.unique(bars.end_ns[bars.failed])
    _, first = np.unique((at_ns / (FAILURE_PX * _ns_per_px(ax))).astype(np.int64), return_index=True)
    if first.size:
        label = "failed" if "failed" not in ax.get_legend_handles_labels()[1] else "_failed"
        y = np.full(first.size, place + 0.5 - RIDGE_HEIGHT)
        ax.plot(at_ns[first] / NS, y, linestyle="none", marker="x", markersize=4, markeredgecolor=FAILURE,
                markeredgewidth=1.2, label=label, clip_on=False, zorder=4)  # fmt: skip


def _draw_ridge_note(ax: Axes, row: LabelRow, place: int) -> None:
    n_failed, n_open = int(np.count_nonzero(row.bars.failed)), int(np.count_nonzero(row.bars.is_open))
    told = [f"peak {row.in_flight.peak:,} of {row.bars.n:,} calls"]
    told += [", ".join(f"{n:,} {what}" for n, what in ((n_failed, "failed"), (n_open, "open")) if n)]
    ax.annotate("\n".join(told).rstrip(), (1, place), (6, 0), ("axes fraction", "data"), textcoords="offset points",
                va="center", fontsize=8, color=QUIET, annotation_clip=False)  # fmt: skip


def _draw_head(ax: Axes, bars: CallBars, title: str, rows: list[LabelRow]) -> None:
    """Write title and numbers above the axes, and the legend between them and the axes."""
    handles, names = ax.get_legend_handles_labels()
    legend_pt = _draw_legend(ax, handles, names) if names else 0
    lines = [_numbers(bars, rows)]
    if rows:
        lines.append("each label on its own scale: calls in flight, highest in each pixel")
    if bars.n_dropped:
        lines.append(f"{count(bars.n_dropped, 'call')} without a usable end not drawn")
    at_pt = legend_pt + 6
    ax.annotate("\n".join(lines), (0, 1), (0, at_pt), "axes fraction", textcoords="offset points", fontsize=9,
                color=QUIET, annotation_clip=False)  # fmt: skip
    ax.set_title(printable(title), loc="left", fontsize=11, fontweight="bold", color=INK, parse_math=False,
                 pad=at_pt + 12 * len(lines) + 5)  # fmt: skip


def _numbers(bars: CallBars, rows: list[LabelRow]) -> str:
    if not bars.n:
        return "no calls"
    wall = duration(int(bars.end_ns.max()) - min(int(bars.start_ns.min()), 0))
    if not rows:
        return f"{count(bars.n, 'call')} in {wall}"
    return f"{bars.n:,} calls in {wall}, too many for a bar each: all are in the ridge of their label"


def _draw_legend(ax: Axes, handles: list[Artist], names: list[str]) -> float:
    """Draw the legend right above the axes in as many lines as it needs; give its height in points."""
    width_pt = ax.bbox.width * 72 / ax.figure.dpi
    n_columns = min(max(int(width_pt / (4.5 * max(map(len, names)) + 30)), 1), len(names))
    # Phases before marks, read line by line: matplotlib fills column by column.
    order = sorted(range(len(names)), key=lambda at: (*SEGMENTS, *names).index(names[at]))
    order = [place for column in range(n_columns) for place in order[column::n_columns]]
    ax.legend(
        [handles[place] for place in order],
        [names[place] for place in order],
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=n_columns,
        fontsize=8,
        frameon=False,
        borderaxespad=0.2,
        borderpad=0,
        handlelength=1.4,
        handleheight=1,
        columnspacing=1.2,
        labelcolor=QUIET,
    )
    return 14.0 * math.ceil(len(names) / n_columns) + 2
