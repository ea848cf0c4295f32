"""A latency budget, drawn: every latency as a point against the budget's line."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from occupancy.analysis.latency_budget import Measured
from occupancy.analysis.samples import Ending, Sample

if TYPE_CHECKING:
    from occupancy.probe.budget_result import BudgetResult

COLORS = {"cold": "#E69F00", "warm": "#0072B2", "concurrent": "#009E73"}
"""Orange, blue and green of Okabe and Ito's palette; each phase has a place of its own as well."""
FORMS = {"o": "", "^": "timed out", "x": "failed"}
"""What each form of a point stands for; a dot is a good answer."""
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
    drawn: set[str] = set()
    for place, one in enumerate(result.environments):
        if one.measured is not None:
            drawn |= _draw(ax, place, one.measured)
    names = [f"{one.name}\n{one.word}" for one in result.environments]
    ax.set_xticks(range(len(names)), names, color=INK, parse_math=False)
    ax.set_xlim(-0.6, len(names) - 0.4)
    _draw_budgets(ax, [one.budget.p95_s for one in result.environments])
    ax.set_ylim(bottom=0)
    ax.set_ylabel("latency in s", color=QUIET)
    ax.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    ax.tick_params(colors=QUIET, length=3)
    ax.tick_params(axis="x", length=0, labelcolor=INK)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color("#AAAAAA")
    _explain(ax, drawn)
    return ax


def _draw(ax: Axes, place: int, measured: Measured) -> set[str]:
    """Draw an environment's points, and give the forms that they have."""
    drawn = set()
    for offset, phase in ((-0.25, "cold"), (0.0, "warm"), (0.25, "concurrent")):
        samples = _phase(measured, phase)
        x = place + offset + (np.linspace(-SPREAD, SPREAD, len(samples)) if len(samples) > 1 else np.zeros(1))
        for form, chosen in _marked(samples):
            drawn.add(form)
            y = [samples[i].latency_s for i in chosen]
            # A refusal takes next to no time: its cross on the axis must not be cut in half.
            ax.plot(x[chosen], y, form, color=COLORS[phase], markersize=5, alpha=0.8, clip_on=False, zorder=3)
    return drawn


def _draw_budgets(ax: Axes, limits_s: list[float]) -> None:
    """Draw one line across where all have the same budget, else a line for each."""
    style: dict[str, Any] = {"color": BUDGET, "linestyle": (0, (5, 2))}
    if len(set(limits_s)) == 1:
        ax.axhline(limits_s[0], **style)
        ax.annotate(
            f"budget\n{limits_s[0]:g} s", (1, limits_s[0]), (4, 0), xycoords=("axes fraction", "data"),
            textcoords="offset points", va="center", fontsize=8, color=BUDGET,
        )  # fmt: skip
        return
    for place, limit_s in enumerate(limits_s):
        ax.hlines(limit_s, place - 0.42, place + 0.42, **style)
        ax.annotate(
            f"budget {limit_s:g} s", (place - 0.42, limit_s), (0, 3), textcoords="offset points", fontsize=8,
            color=BUDGET,
        )  # fmt: skip


def _explain(ax: Axes, drawn: set[str]) -> None:
    """Say above the axes what colours and forms stand for, those that occur."""
    if not drawn:
        return
    points = [Line2D([], [], linestyle="none", marker="o", color=color, label=name) for name, color in COLORS.items()]
    points += [
        Line2D([], [], linestyle="none", marker=form, color=QUIET, label=told)
        for form, told in FORMS.items()
        if told and form in drawn
    ]
    ax.legend(
        handles=points, fontsize=8, frameon=False, labelcolor=QUIET, ncols=len(points), loc="lower right",
        bbox_to_anchor=(1, 1), handletextpad=0.2,
    )  # fmt: skip


def _phase(measured: Measured, phase: str) -> Sequence[Sample]:
    if phase == "cold":
        return () if measured.cold is None else (measured.cold,)
    return measured.warm if phase == "warm" else measured.concurrent


def _marked(samples: Sequence[Sample]) -> list[tuple[str, list[int]]]:
    """Give the places of the samples of each form, for those forms that occur."""
    of_ending = {Ending.OK: "o", Ending.TIMEOUT: "^"}
    forms = [of_ending.get(sample.ending, "x") for sample in samples]
    return [(form, [i for i, its in enumerate(forms) if its == form]) for form in FORMS if form in forms]
