"""Before and after: the steps of two logs, and beside them what each label's calls cost in all."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from occupancy.analysis.columns import Columns
from occupancy.analysis.comparison import Comparison, compare
from occupancy.views.call_bars import label_name, printable
from occupancy.views.step_plot import IN_FLIGHT, INK, QUIET
from occupancy.views.step_plot import compare_plot as step_panels
from occupancy.views.text import count, duration, shorten

BEFORE, AFTER = "#A9A9A9", IN_FLIGHT
MAX_LABELS = 12
NAME_WIDTH = 20
WIDTH_INCHES = 13.0
MS = 1e6


def compare_plot(before: Columns, after: Columns, *, names: tuple[str, str] = ("before", "after")) -> Figure:
    """Draw the steps of two logs below each other, and beside them the summed time of each label's calls.

    The steps tell whether the wall fell; the bars whether it fell because calls overlapped (they stay as long as they
    were) or because there was less to do.

    Args:
        before: Calls of the first log.
        after: Calls of the second.
        names: What to call them.

    Returns:
        A figure outside of pyplot. A log without calls has an empty panel that says so.
    """
    figure = step_panels(list(zip(names, (before, after), strict=True)))
    panels = list(figure.axes)
    figure.set_size_inches(WIDTH_INCHES, figure.get_figheight())
    grid = figure.add_gridspec(2, 2, width_ratios=(2.6, 1))
    for row, ax in enumerate(panels):
        ax.set_subplotspec(grid[row, 0])
    _draw_totals(figure.add_subplot(grid[:, 1]), compare(before, after), names)
    return figure


def _draw_totals(ax: Axes, comparison: Comparison, names: tuple[str, str]) -> None:
    shown = list(comparison.labels.take(comparison.largest(MAX_LABELS)))
    ax.set_title("Time of all calls, by label\n", loc="left", fontsize=11, fontweight="bold", color=INK)
    ax.annotate(
        "sum of durations", (0, 1), (0, 6), "axes fraction", textcoords="offset points", fontsize=9, color=QUIET
    )
    if rest := len(comparison.labels) - len(shown):
        ax.set_xlabel(f"and {count(rest, 'label')} with less time in flight", color=QUIET)
    ax.spines[["top", "right", "bottom"]].set_visible(False)
    ax.spines["left"].set_color("#AAAAAA")
    ax.set_xticks([])
    if not shown:
        ax.set_yticks([])
        ax.text(0.5, 0.5, "no calls", transform=ax.transAxes, ha="center", va="center", color=QUIET)
        return
    rows = np.arange(len(shown))
    ax.set_ylim(len(shown) - 0.4, -0.6)
    ax.set_xlim(0, 1.55 * max(max(change.total_ms.before, change.total_ms.after) for change in shown) or 1)
    ax.set_yticks(rows, [shorten(label_name(change.label), NAME_WIDTH) for change in shown], parse_math=False)
    ax.tick_params(axis="y", length=0, labelcolor=INK, labelsize=9)
    _draw_side(ax, rows - 0.19, [(change.total_ms.before, change.n.before) for change in shown], names[0], BEFORE)
    _draw_side(ax, rows + 0.19, [(change.total_ms.after, change.n.after) for change in shown], names[1], AFTER)
    legend = ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, fontsize=9, frameon=False, borderaxespad=0.2,
                       handlelength=1.2, columnspacing=1.2, labelcolor=QUIET)  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)


def _draw_side(ax: Axes, y: NDArray[Any], totals: list[tuple[float, float]], name: str, colour: str) -> None:
    ax.barh(y, [ms for ms, _ in totals], 0.34, color=colour, label=printable(name))
    for at, (ms, n) in zip(y.tolist(), totals, strict=True):
        told = f"{duration(ms * MS)}, {count(int(n), 'call')}" if n else "none"
        ax.annotate(told, (ms, at), (5, 0), textcoords="offset points", va="center", fontsize=8, color=QUIET)
