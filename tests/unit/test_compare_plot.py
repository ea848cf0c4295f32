"""Beside the steps of two logs stand the totals of each label, which tell whether calls overlap or there are fewer."""

from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from occupancy.analysis.columns import columns_of
from occupancy.call import Call
from occupancy.views.compare_plot import MAX_LABELS, compare_plot

MS = 1_000_000


def step(label: str | None, start_ms: int, end_ms: int) -> Call:
    return Call(label=label, outcome="ok", start_ns=start_ms * MS, end_ns=end_ms * MS)


SERIAL = [step("plan", 0, 200), step("fetch", 200, 500), step("fetch", 500, 800), step("check", 800, 850)]
OVERLAPPED = [step("plan", 0, 200), step("fetch", 200, 500), step("fetch", 200, 520), step("judge", 520, 530)]


def totals(ax: Axes) -> dict[str, list[float]]:
    """Lengths of the bars in ms from the top, by log."""
    containers: list[Any] = list(ax.containers)
    return {str(bars.get_label()): [bar.get_width() for bar in bars.patches] for bars in containers}


def told(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def draw(figure: Figure) -> None:
    FigureCanvasAgg(figure).draw()  # type: ignore[no-untyped-call]


def test_bars_are_the_sums_of_the_durations_of_each_label() -> None:
    figure = compare_plot(columns_of(SERIAL), columns_of(OVERLAPPED))
    draw(figure)
    ax = figure.axes[2]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["fetch", "plan", "check", "judge"]
    assert totals(ax) == {"before": [600, 200, 50, 0], "after": [620, 200, 0, 10]}
    for text in ("600 ms, 2 calls", "620 ms, 2 calls", "50.0 ms, 1 call", "10.0 ms, 1 call"):
        assert text in told(ax)
    assert told(ax).count("none") == 2


def test_the_steps_share_their_axes_beside_the_totals() -> None:
    figure = compare_plot(columns_of(SERIAL), columns_of(OVERLAPPED), names=("old", "new"))
    draw(figure)
    old, new, sums = figure.axes
    assert [ax.get_title(loc="left").strip() for ax in (old, new)] == ["old", "new"]
    assert old.get_xlim() == new.get_xlim()
    assert old.get_ylim() == new.get_ylim()
    assert set(totals(sums)) == {"old", "new"}
    assert old.get_position().x1 < sums.get_position().x0
    assert old.get_position().width > 1.5 * sums.get_position().width


def test_labels_beyond_the_room_are_counted() -> None:
    many = [step(f"s{n}", 10 * n, 20 * n + 10) for n in range(MAX_LABELS + 3)]
    ax = compare_plot(columns_of(many), columns_of(many)).axes[2]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == [f"s{n}" for n in range(MAX_LABELS + 2, 2, -1)]
    assert ax.get_xlabel() == "and 3 labels with less time in flight"


@pytest.mark.parametrize(("before", "after"), [([], []), (SERIAL, []), ([], SERIAL), ([step("blink", 5, 5)], [])])
def test_logs_without_calls_draw(before: list[Call], after: list[Call]) -> None:
    draw(compare_plot(columns_of(before), columns_of(after)))


def test_labels_and_names_are_text_and_nothing_else() -> None:
    figure = compare_plot(columns_of([step("$\\frac{$\n", 0, 9)]), columns_of([]), names=("$\\a{$", "b"))
    draw(figure)
    assert [tick.get_text() for tick in figure.axes[2].get_yticklabels()] == ["$\\frac{$?"]
