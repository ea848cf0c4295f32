"""A latency budget, drawn: every latency as a point against the budget's line."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from occupancy.analysis.samples import Ending

if TYPE_CHECKING:
    from occupancy.probe.budget_result import BudgetResult

COLORS = {"cold": "#E69F00", "warm": "#0072B2", "concurrent": "#009E73"}
"""Orange, blue and green of Okabe and Ito's palette; each phase has a place of its own as well."""
BUDGET = "#D55E00"
INK, QUIET = "#222222", "#666666"
SPREAD = 0.08
"""Half the width over which points of one phase are spread."""


def plot_budget(result: "BudgetResult", ax: Axes | None = None) -> Axes:
    """Draw each latency, by environment and phase; a triangle is a time-out, a cross any other failure.

    Args:
        result: Any; without measured environments the axes stay empty.
        ax: Axes to draw on; None for new ones on a figure of their own, outside of pyplot.

    Returns:
        The axes.
    """
    if ax is None:
        width = 3 + 1.8 * max(len(result.environments), 1)
        ax = Figure(figsize=(max(width, 6), 4), layout="constrained").add_subplot()
    for place, one in enumerate(result.environments):
        for offset, phase in ((-0.25, "cold"), (0.0, "warm"), (0.25, "concurrent")):
            samples = [] if one.measured is None else _phase(one.measured, phase)
            x = place + offset + (np.linspace(-SPREAD, SPREAD, len(samples)) if len(samples) > 1 else np.zeros(1))
            for marker, chosen in _marked(samples):
                ax.plot(
                    [x[i] for i in chosen],
                    [samples[i].latency_s for i in chosen],
                    marker,
                    color=COLORS[phase],
                    markersize=5,
                    alpha=0.8,
                    label=_label(phase, marker, place),
                )
        ax.hlines(one.budget.p95_s, place - 0.42, place + 0.42, color=BUDGET, linestyle=(0, (5, 2)))
        ax.annotate(
            f"budget {one.budget.p95_s:g} s", (place - 0.42, one.budget.p95_s), (0, 3), textcoords="offset points",
            ha="left", fontsize=8, color=BUDGET,
        )  # fmt: skip
    names = [f"{one.name}\n{one.word}" for one in result.environments]
    ax.set_xticks(range(len(names)), names, color=INK, parse_math=False)
    ax.set_xlim(-0.6, len(names) - 0.4)
    ax.set_ylim(bottom=0)
    ax.set_ylabel("latency in s", color=QUIET)
    ax.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    ax.tick_params(axis="y", colors=QUIET, length=3)
    ax.spines[["top", "right"]].set_visible(False)
    if ax.get_legend_handles_labels()[1]:
        ax.legend(fontsize=8, frameon=False, labelcolor=QUIET, ncols=3, loc="lower right", bbox_to_anchor=(1, 1))
    return ax


def _label(phase: str, marker: str, place: int) -> str:
    """Name each phase once; those that begin with `_` are in no legend."""
    return f"_{phase}" if place or marker != "o" else phase


def _phase(measured: object, phase: str) -> list:  # type: ignore[type-arg]
    found = getattr(measured, phase)
    return [found] if phase == "cold" and found is not None else list(found or ())


def _marked(samples: list) -> list[tuple[str, list[int]]]:  # type: ignore[type-arg]
    kinds = {"o": [Ending.OK], "^": [Ending.TIMEOUT], "x": [Ending.ERROR, Ending.HTTP_ERROR, Ending.REFUSED]}
    found = [(marker, [i for i, s in enumerate(samples) if s.ending in endings]) for marker, endings in kinds.items()]
    return [(marker, chosen) for marker, chosen in found if chosen]
