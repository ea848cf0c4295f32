"""Colours are the highest levels of each label in each slot, and no label is left out."""

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from occupancy.analysis.columns import DTYPES, MISSING, Columns, columns_of
from occupancy.call import Call
from occupancy.views.call_bars import CallBars
from occupancy.views.heat_strip import MAX_ROWS, Strip, heat_strip

MS = 1_000_000
ORIGIN = 3_000 * MS


def step(label: str | None, start_ms: int, end_ms: int) -> Call:
    return Call(label=label, outcome="ok", start_ns=ORIGIN + start_ms * MS, end_ns=ORIGIN + end_ms * MS)


OVERLAPPED = [step("plan", 0, 200), step("fetch", 200, 500), step("fetch", 300, 500), step("recap", 500, 1000)]


def many(n: int, peak_at: int) -> Columns:
    """Calls of 5 ms every 10 ms, and two more that last 1 ns within one of them."""
    columns = {
        name: np.full(n + 2, MISSING) if dtype is np.int64 else np.full(n + 2, None, dtype=dtype)
        for name, dtype in DTYPES.items()
    }
    columns["start_ns"] = np.append(np.arange(n) * 10 * MS, [peak_at * 10 * MS] * 2)
    columns["end_ns"] = np.append(np.arange(n) * 10 * MS + 5 * MS, [peak_at * 10 * MS + 1] * 2)
    columns["kind"][:], columns["outcome"][:], columns["label"][:] = "tool", "ok", "step"
    return columns


def mesh(ax: Axes) -> QuadMesh:
    return next(drawn for drawn in ax.collections if isinstance(drawn, QuadMesh))


def levels(ax: Axes) -> NDArray[np.int64]:
    """Levels by row and slot, 0 for nothing."""
    drawn = mesh(ax).get_array()
    assert drawn is not None
    return np.ma.filled(np.ma.asarray(drawn), 0).astype(np.int64)


def names(ax: Axes) -> list[str]:
    return [tick.get_text() for tick in ax.get_yticklabels()]


def pixels(ax: Axes) -> NDArray[np.uint8]:
    assert isinstance(ax.figure, Figure)
    canvas = FigureCanvasAgg(ax.figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    return np.asarray(canvas.buffer_rgba())[..., :3]  # type: ignore[no-untyped-call]


def test_slots_hold_the_highest_level_of_each_label() -> None:
    strip = Strip.of(CallBars.of(columns_of(OVERLAPPED)), limit=5, n_slots=4)
    assert strip.names == ["plan", "fetch", "recap"]
    assert (strip.edges_ns / MS).tolist() == [0, 250, 500, 750, 1000]
    assert strip.highest.tolist() == [[1, 0, 0, 0], [1, 2, 0, 0], [0, 0, 1, 1]]
    assert strip.peak == 2


def test_rows_and_times_are_those_of_the_calls() -> None:
    ax = heat_strip(columns_of(OVERLAPPED))
    assert names(ax) == ["plan", "fetch", "recap"]
    drawn = levels(ax)
    share = [np.flatnonzero(row)[[0, -1]] / drawn.shape[1] for row in drawn]
    assert np.array(share) == pytest.approx(np.array([[0, 0.2], [0.2, 0.5], [0.5, 1]]), abs=0.002)
    assert [row.max() for row in drawn] == [1, 2, 1]
    edges = np.asarray(mesh(ax).get_coordinates())[0, :, 0]
    assert edges[[0, -1]].tolist() == [0, 1]


@pytest.mark.parametrize("n", [10_000, 1_000_000])
def test_a_peak_of_one_nanosecond_has_its_colour(n: int) -> None:
    ax = heat_strip(many(n, peak_at=n // 3))
    drawn = levels(ax)[0]
    assert drawn.max() == 3
    assert np.count_nonzero(drawn == 3) == 1
    assert drawn.argmax() / drawn.size == pytest.approx(1 / 3, abs=0.01)
    image = pixels(ax)
    x, y = ax.transData.transform((n // 3 * 0.01, 0)).astype(int)
    row = image[image.shape[0] - y]
    darkest = row[x - 5 : x + 6].sum(axis=1).min()
    assert darkest < row[x + 20 : x + 200].sum(axis=1).min() - 100


def test_many_labels_share_the_last_row() -> None:
    calls = [step(f"s{n:02}", 10 * n, 10 * n + 10 + n) for n in range(40)]
    ax = heat_strip(columns_of(calls))
    assert len(names(ax)) == MAX_ROWS
    assert names(ax) == [f"s{n}" for n in range(17, 40)] + ["17 others"]
    in_others = levels(ax)[-1]
    assert in_others.max() == 3  # s14, s15 and s16, for 4 ms
    small = Figure(figsize=(6, 1)).add_subplot()
    heat_strip(columns_of(calls), small)
    assert 2 <= len(names(small)) < 10
    assert names(small)[-1].endswith("others")


def test_few_levels_have_a_colour_each_and_darker_is_more() -> None:
    ax = heat_strip(columns_of(OVERLAPPED))
    scale = mesh(ax).norm
    assert isinstance(scale, BoundaryNorm)
    assert list(scale.boundaries) == [0.5, 1.5, 2.5]
    high = heat_strip(columns_of([step("s", 0, 10 * n) for n in range(1, 31)]))
    colours = mesh(high)
    luminance = [float(np.dot(colours.to_rgba(level)[:3], (0.2126, 0.7152, 0.0722))) for level in (1, 8, 15, 22, 30)]
    assert luminance == sorted(luminance, reverse=True)
    assert luminance[0] - luminance[-1] > 0.6


def test_the_scale_tells_whole_levels() -> None:
    ax = heat_strip(columns_of(OVERLAPPED))
    assert isinstance(ax.figure, Figure)
    (scale,) = (other for other in ax.figure.axes if other is not ax)
    assert [float(tick) for tick in scale.get_yticks()] == [1, 2]
    assert scale.get_ylabel() == "in flight"


def test_no_calls_and_one_call_draw() -> None:
    empty = heat_strip(columns_of([]))
    assert {text.get_text() for text in empty.texts} == {"no calls", "no calls in flight"}
    pixels(empty)
    nothing_lasted = heat_strip(columns_of([step("blink", 5, 5)]))
    assert "no calls in flight" in {text.get_text() for text in nothing_lasted.texts}
    one = heat_strip(columns_of([step("only", 0, 1234)]))
    assert levels(one).tolist() == [[1] * levels(one).shape[1]]
    pixels(one)


def test_open_calls_are_in_flight_up_to_now() -> None:
    calls = [step("done", 0, 100), Call(label="stuck", start_ns=ORIGIN)]
    ax = heat_strip(columns_of(calls), until_ns=ORIGIN + 1000 * MS)
    share = levels(ax).mean(axis=1)
    assert dict(zip(names(ax), share, strict=True)) == pytest.approx({"done": 0.1, "stuck": 1}, abs=0.002)


def test_labels_and_titles_are_text_and_nothing_else() -> None:
    ax = heat_strip(columns_of([step("$\\frac{$\n", 0, 10)]), title="$\\sum{$")
    pixels(ax)
    assert names(ax) == ["$\\frac{$?"]
    assert ax.get_title(loc="left").strip() == "$\\sum{$"
