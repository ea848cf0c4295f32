"""A sweep, drawn: effective concurrency and latency against workers."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from occupancy.analysis.capacity import Capacity, is_usable
from occupancy.analysis.capacity_fit import Z95

MEASURED = "#0072B2"
"""Blue of Okabe and Ito's palette."""
LIMIT = "#D55E00"
"""Vermilion of the same; the line is dashed as well."""
SLOW = "#E69F00"
HEADROOM = 1.6
"""Room above the highest point, for the legend."""
INK, QUIET = "#222222", "#666666"


def plot_sweep(capacity: Capacity, title: str = "Concurrency sweep") -> Figure:
    """Draw effective concurrency on the left and latency on the right; a figure outside of pyplot."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    plot_effective(capacity, left)
    plot_latency(capacity, right)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK, parse_math=False)
    return figure


def plot_effective(capacity: Capacity, ax: Axes | None = None) -> Axes:
    """Draw effective concurrency against workers, with the ideal line and the fitted limit.

    Bars are 95 % intervals. A cross marks a level that tells nothing of the server's slots: over the limit, or bound by
    the client.

    Args:
        capacity: At least one level.
        ax: Axes to draw on; None for new ones on a figure of their own, outside of pyplot.

    Returns:
        The axes.
    """
    ax = _axes(ax)
    workers = np.array([level.workers for level in capacity.levels])
    # Nothing at all may have been worked on: the axis is logarithmic, so such a level stands at its bottom.
    bottom = 0.9 * min([0.8, *(level.best for level in capacity.levels if level.best > 0)])
    ax.plot(workers, workers, color="#AAAAAA", linewidth=1, label="ideal: all worked on at once")
    _draw_limit(ax, capacity)
    for usable, marker, label in ((True, "o", "measured"), (False, "x", "over the limit or client-bound")):
        levels = [level for level in capacity.levels if is_usable(level) == usable]
        if levels:
            ax.errorbar(
                [level.workers for level in levels],
                [max(level.best, bottom) for level in levels],
                yerr=[Z95 * level.standard_error for level in levels],
                fmt=marker,
                color=MEASURED if usable else INK,
                markersize=6,
                capsize=3,
                label=label,
                zorder=3,
            )
    used = next(level.best for level in capacity.levels if level.workers == capacity.recommended)
    ax.vlines(capacity.recommended, bottom, max(used, bottom), color=QUIET, linewidth=0.8, linestyle=":")
    ax.annotate(
        f" use {capacity.recommended}", (capacity.recommended, 0.03), xycoords=("data", "axes fraction"), color=QUIET
    )
    _finish(ax, workers, "effective concurrency")
    # Both axes double: the ideal is a straight line, and small levels are as easy to tell from it as large ones.
    ax.set_yscale("log", base=2)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_ylim(bottom, max(workers) * HEADROOM)
    return ax


def _draw_limit(ax: Axes, capacity: Capacity) -> None:
    fit = capacity.fit
    if fit.capacity is None or fit.error99 is None or fit.plateau is None:
        return
    share = fit.error99 / fit.capacity
    ax.axhspan((1 - share) * fit.plateau, (1 + share) * fit.plateau, color=LIMIT, alpha=0.12, linewidth=0)
    ax.axhline(fit.plateau, color=LIMIT, linestyle=(0, (5, 2)), label=f"limit {fit.capacity:.2f} ± {fit.error99:.2f}")


def plot_latency(capacity: Capacity, ax: Axes | None = None) -> Axes:
    """Draw p50 and p95 against workers; a triangle marks a percentile that is at least so large."""
    ax = _axes(ax)
    workers = np.array([level.workers for level in capacity.levels])
    most_s, is_censored = capacity.baseline.mean_s, False
    # Open squares around dots: where the two percentiles are one, both are seen.
    for name, color, style, form in (("p50", MEASURED, "-", "o"), ("p95", SLOW, "--", "s")):
        known = [(level.workers, found) for level in capacity.levels if (found := getattr(level, name)) is not None]
        if not known:
            continue
        most_s = max([most_s, *(q.value_s for _, q in known)])
        face = color if form == "o" else "none"
        size = 5 if form == "o" else 8
        ax.plot(
            [c for c, _ in known], [q.value_s for _, q in known], style, color=color, marker=form, markersize=size,
            markerfacecolor=face, label=name,
        )  # fmt: skip
        censored = [(c, q.value_s) for c, q in known if q.is_at_least]
        if censored:
            label = "_" if is_censored else "at least that: it timed out"
            ax.plot(*zip(*censored, strict=True), linestyle="none", marker="^", markersize=10, color=color, label=label)
            is_censored = True
    ax.axhline(capacity.baseline.mean_s, color="#AAAAAA", linewidth=1, label="mean, one at a time")
    _finish(ax, workers, "latency in s")
    ax.set_ylim(0, most_s * HEADROOM)
    return ax


def _axes(ax: Axes | None) -> Axes:
    return Figure(figsize=(6, 4), layout="constrained").add_subplot() if ax is None else ax


def _finish(ax: Axes, workers: "np.ndarray[tuple[int], np.dtype[np.int64]]", what: str) -> None:
    ax.set_xscale("log", base=2)
    ax.set_xticks(sorted(set(workers.tolist())))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_ylim(bottom=0)
    ax.set_xlabel("workers", color=QUIET)
    ax.set_ylabel(what, color=QUIET)
    ax.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    ax.tick_params(colors=QUIET, length=3)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color("#AAAAAA")
    ax.legend(fontsize=8, frameon=False, labelcolor=QUIET, loc="upper left")
