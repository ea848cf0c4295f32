"""The figure holds the exact step function, names what has room, and draws the peak of any number of calls."""

import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from occupancy.analysis.columns import DTYPES, MISSING, Columns, columns_of
from occupancy.analysis.steps import steps_in_flight
from occupancy.call import Call
from occupancy.views.step_plot import IN_FLIGHT, compare_plot, plot

MS = 1_000_000
ORIGIN = 5_000 * MS


def step(label: str | None, start_ms: int, end_ms: int, **fields: int) -> Call:
    call = Call(label=label, outcome="ok", start_ns=ORIGIN + start_ms * MS, end_ns=ORIGIN + end_ms * MS)
    call.first_byte_ns = call.end_ns and call.end_ns - 10 * MS
    for name, value in fields.items():
        setattr(call, name, value)
    return call


SERIAL = [
    step("plan", 0, 200),
    step("tool_search", 200, 550),
    step("tool_fetch", 550, 900),
    step("recap", 900, 1100),
]
OVERLAPPED = [
    step("plan", 0, 200),
    step("tool_search", 200, 550),
    step("tool_fetch", 200, 550),
    step("recap", 550, 750),
]


def many(n: int, peak_at: int) -> Columns:
    """Calls of 5 ms every 10 ms, and two more that last 1 ns within one of them."""
    columns = {
        name: np.full(n + 2, MISSING) if dtype is np.int64 else np.full(n + 2, None, dtype=dtype)
        for name, dtype in DTYPES.items()
    }
    columns["start_ns"] = np.append(np.arange(n) * 10 * MS, [peak_at * 10 * MS] * 2)
    columns["end_ns"] = np.append(np.arange(n) * 10 * MS + 5 * MS, [peak_at * 10 * MS + 1] * 2)
    columns["first_byte_ns"] = columns["start_ns"] + 1
    columns["kind"][:], columns["outcome"][:] = "tool", "ok"
    return columns


def line(ax: Axes, label: str) -> Line2D:
    return next(line for line in ax.lines if line.get_label() == label)


def has_line(ax: Axes, label: str) -> bool:
    return any(line.get_label() == label for line in ax.lines)


def points(drawn: Line2D) -> list[tuple[float, float]]:
    data = np.asarray(drawn.get_xydata())
    return [(round(float(x), 6), float(y)) for x, y in data]


def texts(ax: Axes) -> set[str]:
    return {text.get_text() for text in ax.texts}


def pixels(figure: Figure) -> np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    return np.asarray(canvas.buffer_rgba())[..., :3]  # type: ignore[no-untyped-call]


def figure_of(ax: Axes) -> Figure:
    assert isinstance(ax.figure, Figure)
    return ax.figure


def test_the_curve_is_the_step_function_in_seconds_from_the_first_start() -> None:
    ax = plot(columns_of(OVERLAPPED))
    curve = line(ax, "in flight")
    assert points(curve) == [(0, 0), (0, 1), (0.2, 2), (0.55, 1), (0.75, 0)]
    assert curve.get_drawstyle() == "steps-post"
    assert "4 calls in 750 ms, peak 2, mean 1.47" in texts(ax)


def test_the_axis_of_calls_starts_at_zero_and_has_whole_numbers() -> None:
    for calls in ([], SERIAL, OVERLAPPED, [step("fetch", 0, 10 * n) for n in range(1, 40)]):
        ax = plot(columns_of(calls))
        low, high = ax.get_ylim()
        assert low == 0
        assert high > steps_in_flight(columns_of(calls)).peak
        assert all(float(tick).is_integer() for tick in ax.get_yticks())


def test_on_the_wire_is_a_second_line_where_it_differs() -> None:
    calls = [step("fetch", 0, 200 * (wave + 1), pool_ns=200 * MS * wave) for wave in range(2) for _ in range(2)]
    assert points(line(plot(columns_of(calls)), "on the wire")) == [(0, 0), (0, 2), (0.4, 0)]
    a_little = [step("fetch", 0, 200, pool_ns=4 * MS)]
    assert points(line(plot(columns_of(a_little)), "on the wire"))[0] == (0.004, 0)
    hardly = [step("fetch", 0, 200, client_ns=5_000)]
    assert not has_line(plot(columns_of(hardly)), "on the wire")
    assert not has_line(plot(columns_of(SERIAL)), "on the wire")


def test_first_bytes_lie_on_the_curve_and_are_left_out_when_there_are_too_many() -> None:
    assert points(line(plot(columns_of(OVERLAPPED)), "first byte")) == [(0.19, 1), (0.54, 2), (0.54, 2), (0.74, 1)]
    at_its_end = step("plan", 0, 200)
    at_its_end.first_byte_ns = at_its_end.end_ns
    assert points(line(plot(columns_of([at_its_end])), "first byte")) == [(0.2, 1)]
    assert not has_line(plot(many(1000, 3)), "first byte")
    at_its_end.first_byte_ns = None
    assert not has_line(plot(columns_of([at_its_end])), "first byte")


def test_steps_are_named_where_there_is_room() -> None:
    names = {"plan", "tool_search", "tool_fetch", "recap"}
    assert names <= texts(plot(columns_of(SERIAL)))
    assert names <= texts(plot(columns_of(OVERLAPPED)))
    short = [*SERIAL, step("a blink", 1100, 1101)]
    assert "a blink" not in texts(plot(columns_of(short)))
    assert not texts(plot(columns_of([step(f"s{n}", n * 100, n * 100 + 100) for n in range(31)]))) & {"s0", "s30"}


def test_a_long_name_is_cut_to_its_room() -> None:
    drawn = texts(plot(columns_of([step("first", 0, 1000), step("a" * 300 + " the end", 1000, 2000)])))
    assert any(text.startswith("...") and text.endswith("the end") for text in drawn)


def test_names_lie_under_the_curve_inside_their_call() -> None:
    ax = plot(columns_of([step("long", 0, 1000), step("short", 100, 600), step("after", 500, 2000)]))
    flight = steps_in_flight(columns_of([step("long", 0, 1000), step("short", 100, 600), step("after", 500, 2000)]))
    placed = {text.get_text(): text.get_position() for text in ax.texts}
    for name, (begin, end) in {"long": (0, 1), "short": (0.1, 0.6), "after": (0.5, 2)}.items():
        x, y = placed[name]
        assert begin < x < end
        assert y < flight.at(ORIGIN + int(x * 1e9))


def test_names_of_calls_that_touch_are_on_one_row() -> None:
    heights = {text.get_text(): text.get_position()[1] for text in plot(columns_of(SERIAL)).texts}
    assert {heights[call.label] for call in SERIAL if call.label} == {0.5}


def test_a_hill_after_a_gap_keeps_its_edge() -> None:
    ax = plot(columns_of([step("plan", 0, 400), step("fetch", 600, 1000)]))
    image = pixels(figure_of(ax))
    x, y = ax.transData.transform((0.6, 0.3)).astype(int)
    assert image[image.shape[0] - y, x - 2 : x + 3].min() < 100


def test_hills_that_touch_are_cut_apart() -> None:
    apart, joined = plot(columns_of(SERIAL)), plot(columns_of([step(None, 0, 1100)]))
    for ax, expected in ((apart, 4), (joined, 1)):
        image = pixels(figure_of(ax))
        x, y = ax.transData.transform([(0.0, 0.3), (1.1, 0.3)]).astype(int).T
        row = image[image.shape[0] - y[0], x[0] + 3 : x[1] - 3]
        filled = row.min(axis=1) < 250
        assert np.count_nonzero(np.diff(filled.astype(int)) == 1) + filled[0] == expected


@pytest.mark.parametrize("n", [10_000, 1_000_000])
def test_a_peak_of_one_nanosecond_is_drawn_among_any_number_of_calls(n: int) -> None:
    columns = many(n, peak_at=n // 3)
    ax = plot(columns)
    curve = line(ax, "in flight")
    data = np.asarray(curve.get_xydata())
    assert data[:, 1].max() == 3
    assert data[:, 1].argmax() / len(data) == pytest.approx(1 / 3, abs=0.01)
    assert len(data) < 2000
    image = pixels(figure_of(ax))
    x, y = ax.transData.transform((n // 3 * 0.01, 2.9)).astype(int)
    assert (image[image.shape[0] - y, x - 5 : x + 6].min(axis=1) < 200).any()
    assert not (image[image.shape[0] - y, x + 20 : x + 200].min(axis=1) < 200).any()


def test_a_dense_picture_shows_the_lowest_level_too() -> None:
    ax = plot(many(10_000, peak_at=5))
    lowest, band = (np.asarray(area.get_paths()[0].vertices)[:, 1] for area in ax.collections)
    assert lowest.max() == 0  # every pixel column has an idle moment
    assert band.max() == 3


def test_no_calls_and_one_call_draw() -> None:
    empty = plot(columns_of([]))
    assert {"no calls", "no calls in flight"} <= texts(empty)
    pixels(figure_of(empty))
    one = plot(columns_of([step("only", 0, 1234)]))
    assert points(line(one, "in flight")) == [(0, 0), (0, 1), (1.234, 0)]
    nothing_lasted = plot(columns_of([step("blink", 5, 5)]))
    assert "no calls in flight" in texts(nothing_lasted)


def test_open_calls_are_drawn_to_now() -> None:
    still = Call(label="stuck", start_ns=ORIGIN)
    assert points(line(plot(columns_of([still]), until_ns=ORIGIN + 500 * MS), "in flight"))[-1] == (0.5, 0)


def test_the_users_axes_are_drawn_on() -> None:
    figure = Figure(figsize=(4, 2.5))
    ax = figure.add_subplot()
    assert plot(columns_of(SERIAL), ax, title="mine") is ax
    assert ax.get_title(loc="left").strip() == "mine"


def test_labels_and_titles_are_text_and_nothing_else() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ax = plot(columns_of([step("$\\frac{$ _x\n\x1b", 0, 1000)]), title="$\\sum{$")
        pixels(figure_of(ax))
    assert "$\\frac{$ _x??" in texts(ax)


def test_compare_has_a_panel_for_each_log_on_the_same_axes() -> None:
    figure = compare_plot([("serial", columns_of(SERIAL)), ("overlapped", columns_of(OVERLAPPED))])
    first, second = figure.axes
    assert [ax.get_title(loc="left").strip() for ax in figure.axes] == ["serial", "overlapped"]
    assert first.get_xlim() == second.get_xlim()
    assert first.get_ylim() == second.get_ylim()
    assert first.get_xlim()[1] == pytest.approx(1.1, rel=0.01)
    assert [points(line(ax, "in flight"))[-1] for ax in figure.axes] == [(1.1, 0), (0.75, 0)]
    pixels(figure)


def test_compare_takes_an_empty_log_and_no_log() -> None:
    pixels(compare_plot([("serial", columns_of(SERIAL)), ("nothing", columns_of([]))]))
    assert compare_plot([]).axes == []


def test_colours_differ_in_greyscale() -> None:
    calls = [step("fetch", 0, 200 * (wave + 1), pool_ns=200 * MS * wave) for wave in range(2)]
    ax = plot(columns_of(calls))
    weights = np.array([0.2126, 0.7152, 0.0722])

    def luminance(colour: str) -> float:
        return float(weights @ [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])

    wire = line(ax, "on the wire")
    assert abs(luminance(str(wire.get_color())) - luminance(IN_FLIGHT)) > 0.2
    assert wire.get_linestyle() == "--"


def test_the_hosts_backend_and_pyplot_are_left_alone(tmp_path: Path) -> None:
    program = """
        import sys
        import matplotlib
        matplotlib.use("svg")
        from occupancy.analysis.columns import columns_of
        from occupancy.call import Call
        from occupancy.views.step_plot import plot
        plot(columns_of([Call(start_ns=0, end_ns=5, outcome="ok")])).figure.savefig(sys.argv[1])
        assert matplotlib.get_backend() == "svg"
        assert "matplotlib.pyplot" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), tmp_path / "plot.png"], check=True)
