"""Bars lie where their calls and phases lie; where bars have no room, every call and every peak is in a ridge."""

import warnings
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from numpy.typing import NDArray

from occupancy.analysis.columns import DTYPES, MISSING, Columns, columns_of
from occupancy.analysis.steps import steps
from occupancy.call import Call
from occupancy.views.call_bars import COLOURS, HATCHES, REST, SEGMENTS, CallBars
from occupancy.views.label_rows import label_rows, segment_shares, wall_slots
from occupancy.views.waterfall import MAX_ROWS, RIDGE_HEIGHT, waterfall

MS = 1_000_000
ORIGIN = 7_000 * MS


def step(label: str | None, start_ms: int, end_ms: int | None, **fields: int | str) -> Call:
    """A call; what ends with `_ms` is a phase."""
    call = Call(label=label, outcome="ok" if end_ms is not None else "open", start_ns=ORIGIN + start_ms * MS)
    call.end_ns = None if end_ms is None else ORIGIN + end_ms * MS
    for name, value in fields.items():
        if name.endswith("_ms") and isinstance(value, int):
            setattr(call, name.replace("_ms", "_ns"), value * MS)
        else:
            setattr(call, name, value)
    return call


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


def bars(ax: Axes) -> dict[str, list[tuple[float, float, float]]]:
    """Left end, width and row of each rectangle in s, by segment."""
    found = {}
    for container in ax.containers:
        assert isinstance(container, BarContainer)
        name = str(container.get_label()).lstrip("_")
        found[name] = [
            (round(bar.get_x(), 6), round(bar.get_width(), 6), round(bar.get_y() + bar.get_height() / 2, 6))
            for bar in container.patches
        ]
    return found


def marks(ax: Axes, name: str) -> list[tuple[float, float]]:
    for line in ax.lines:
        if line.get_label() == name:
            return [(round(float(x), 6), float(y)) for x, y in np.asarray(line.get_xydata())]
    return []


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def row_names(ax: Axes) -> list[tuple[float, str]]:
    return [(float(at), tick.get_text()) for at, tick in zip(ax.get_yticks(), ax.get_yticklabels(), strict=True)]


def pixels(ax: Axes) -> NDArray[np.uint8]:
    assert isinstance(ax.figure, Figure)
    canvas = FigureCanvasAgg(ax.figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    return np.asarray(canvas.buffer_rgba())[..., :3]  # type: ignore[no-untyped-call]


WHOLE = step("plan", 100, 1000, client_ms=10, gate_ms=20, pool_ms=30, connect_ms=40, tls_ms=50, send_ms=60, wait_ms=90,
             receive_ms=600)  # fmt: skip


def test_a_bar_is_split_into_its_phases_from_start_to_end() -> None:
    drawn = bars(waterfall(columns_of([WHOLE])))
    widths = {"client": 0.01, "gate": 0.02, "pool": 0.03, "connect": 0.04, "tls": 0.05, "send": 0.06, "wait": 0.09}
    left = 0.0
    for name, width in widths.items():
        assert drawn[name] == [(pytest.approx(left), width, 0)]
        left += width
    assert drawn["receive"] == [(0.3, 0.6, 0)]  # the first start is 0 s
    assert REST not in drawn


def test_what_no_phase_tells_is_drawn_as_such() -> None:
    assert bars(waterfall(columns_of([step("plan", 0, 800)]))) == {REST: [(0, 0.8, 0)]}
    gap = step("plan", 0, 800, wait_ms=200, receive_ms=100)
    drawn = bars(waterfall(columns_of([gap])))
    assert drawn == {"wait": [(0, 0.2, 0)], REST: [(0.2, 0.5, 0)], "receive": [(0.7, 0.1, 0)]}


def test_receiving_begins_at_the_headers_also_in_an_open_call() -> None:
    call = step("plan", 0, None, wait_ms=300, headers_ns=ORIGIN + 300 * MS)
    ax = waterfall(columns_of([call]), until_ns=ORIGIN + 1000 * MS)
    assert bars(ax) == {"wait": [(0, 0.3, 0)], "receive": [(0.3, 0.7, 0)]}


def test_phases_longer_than_the_call_end_with_it() -> None:
    drawn = bars(waterfall(columns_of([step("plan", 0, 100, pool_ms=70, wait_ms=900)])))
    assert drawn == {"pool": [(0, 0.07, 0)], "wait": [(0.07, 0.03, 0)]}


def test_bars_are_grouped_by_run_then_label_then_start() -> None:
    calls = [
        step("plan", 0, 10, run="a"),
        step("fetch", 5, 30, run="b"),
        step("search", 10, 20, run="a"),
        step("plan", 20, 30, run="a"),
        step("plan", 40, 50, run="b"),
    ]
    ax = waterfall(columns_of(calls[::-1]))
    assert bars(ax)[REST] == [(0, 0.01, 1), (0.02, 0.01, 2), (0.01, 0.01, 3), (0.005, 0.025, 5), (0.04, 0.01, 6)]
    assert row_names(ax) == [(1, "plan"), (3, "search"), (5, "fetch"), (6, "plan")]
    headings = {text.get_text(): text.get_position()[1] for text in ax.texts if text.get_text().startswith("run ")}
    assert headings == {"run a": 0, "run b": 4}
    low, high = ax.get_ylim()
    assert low > high  # the first row is on top


def test_one_run_has_no_heading() -> None:
    ax = waterfall(columns_of([step("plan", 0, 10, run="a"), step("plan", 20, 30, run="a")]))
    assert bars(ax)[REST] == [(0, 0.01, 0), (0.02, 0.01, 1)]
    assert not any(text.startswith("run ") for text in texts(ax))


def test_first_bytes_failures_and_open_calls_have_marks_of_their_own() -> None:
    calls = [
        step("ok", 0, 100, first_byte_ns=ORIGIN + 60 * MS),
        step("limited", 100, 200, status=429, outcome="http_error"),
        step("late", 200, 300, outcome="timeout"),
        step("hung", 300, None),
        step("cut", 300, 350, outcome="closed_early"),
    ]
    ax = waterfall(columns_of(calls), until_ns=ORIGIN + 400 * MS)
    assert marks(ax, "first byte") == [(0.06, 0)]
    assert marks(ax, "failed") == [(0.2, 1), (0.3, 2)]
    assert marks(ax, "still open") == [(0.4, 4)]
    notes = texts(ax)
    for told in ("100 ms", "100 ms  429", "100 ms  timeout", "100 ms  open", "50.0 ms  closed early"):
        assert told in notes
    symbols = {line.get_label(): line.get_marker() for line in ax.lines}
    assert len({symbols[name] for name in ("first byte", "failed", "still open")}) == 3


def test_a_429_that_was_abandoned_says_both() -> None:
    ax = waterfall(columns_of([step("limited", 0, 100, status=429, outcome="abandoned")]))
    assert "100 ms  429 abandoned" in texts(ax)
    assert marks(ax, "failed") == [(0.1, 0)]


def test_the_legend_names_what_is_seen_and_nothing_else() -> None:
    ax = waterfall(columns_of([step("plan", 0, 1000, wait_ms=600, send_ms=0, receive_ms=400)]))
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["wait", "receive"]
    blink = step("plan", 0, 100_000, client_ms=1, wait_ms=99_999)
    legend = waterfall(columns_of([blink])).get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["wait"]


def test_a_call_of_no_length_is_a_hairline() -> None:
    ax = waterfall(columns_of([step("plan", 0, 1000), step("blink", 500, 500)]))
    image = pixels(ax)
    x, y = ax.transData.transform((0.5, 1)).astype(int)
    assert image[image.shape[0] - y, x - 2 : x + 3].min() < 150
    assert image[image.shape[0] - y, x - 40 : x - 10].min() > 200


def test_second_0_is_that_of_the_steps_the_first_start_of_a_call_that_lasts() -> None:
    ax = waterfall(columns_of([step("blink", 0, 0), step("plan", 100, 300)]))
    assert bars(ax)[REST] == [(0, 0.2, 1)]
    assert ax.get_xlim()[0] == pytest.approx(-0.1)


def test_neighbours_differ_in_greyscale_or_by_pattern() -> None:
    def luminance(colour: str) -> float:
        return float(np.array([0.2126, 0.7152, 0.0722]) @ [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])

    for left, right in pairwise(SEGMENTS):
        apart = abs(luminance(COLOURS[left]) - luminance(COLOURS[right])) > 0.15
        assert apart or (left in HATCHES) != (right in HATCHES), (left, right)


def test_no_calls_and_no_usable_call_say_so() -> None:
    ax = waterfall(columns_of([]))
    assert texts(ax).count("no calls") == 2  # in the middle and in the line of numbers
    pixels(ax)
    ax = waterfall(columns_of([step("back", 100, 50)]))
    assert "no calls\n1 call without a usable end not drawn" in texts(ax)
    telemetry = step("upload", 0, 100, kind="other")
    assert "no calls" in texts(waterfall(columns_of([telemetry])))


def test_labels_titles_and_runs_are_text_and_nothing_else() -> None:
    calls = [step("$\\frac{$ _x\n\x1b", 0, 1000, run="$a"), step(None, 0, 1000, run="$\\b{$")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ax = waterfall(columns_of(calls), title="$\\sum{$")
        pixels(ax)
    assert [name for _, name in row_names(ax)] == ["$\\frac{$ _x??", "(no label)"]
    assert ax.get_title(loc="left") == "$\\sum{$"


def test_as_many_calls_as_there_are_rows_have_bars() -> None:
    calls = [step(f"s{n % 3}", 10 * n, 10 * n + 5) for n in range(MAX_ROWS + 1)]
    assert len(bars(waterfall(columns_of(calls[:MAX_ROWS])))[REST]) == MAX_ROWS
    ax = waterfall(columns_of(calls))
    assert [name for _, name in row_names(ax)] == ["s0", "s1", "s2"]
    assert any("61 calls in 605 ms, too many for a bar each" in text for text in texts(ax))


def test_the_users_axes_are_drawn_on_and_small_ones_have_ridges() -> None:
    calls = [step("plan", 10 * n, 10 * n + 5) for n in range(40)]
    tall = Figure(figsize=(6, 8)).add_subplot()
    assert waterfall(columns_of(calls), tall) is tall
    assert len(bars(tall)[REST]) == 40
    low = Figure(figsize=(4, 2)).add_subplot()
    waterfall(columns_of(calls), low)
    assert row_names(low) == [(0, "plan")]
    assert "peak 1 of 40 calls" in texts(low)


def ridge_heights(ax: Axes, place: int) -> NDArray[np.float64]:
    """Heights of the outline of one ridge above its base, one for each pixel column."""
    outlines = [line for line in ax.lines if line.get_drawstyle() == "steps-post"]
    return place + 0.5 - np.asarray(outlines[place].get_xydata())[:, 1]


@pytest.mark.parametrize("n", [10_000, 1_000_000])
def test_a_peak_of_one_nanosecond_is_drawn_among_any_number_of_calls(n: int) -> None:
    ax = waterfall(many(n, peak_at=n // 3))
    heights = ridge_heights(ax, 0)
    assert heights.max() == pytest.approx(RIDGE_HEIGHT)
    assert heights.argmax() / heights.size == pytest.approx(1 / 3, abs=0.01)
    assert np.count_nonzero(heights > RIDGE_HEIGHT / 2) == 1
    assert f"peak 3 of {n + 2:,} calls" in texts(ax)
    image = pixels(ax)
    x, y = ax.transData.transform((n // 3 * 0.01, 0.5 - RIDGE_HEIGHT * 0.95)).astype(int)
    assert (image[image.shape[0] - y, x - 5 : x + 6].min(axis=1) < 200).any()
    assert not (image[image.shape[0] - y, x + 20 : x + 60].min(axis=1) < 200).any()


def test_every_call_is_in_one_ridge() -> None:
    calls = [
        step(f"s{n % 40}", 10 * n, 10 * n + 5 + n % 40, outcome="error" if n % 7 == 0 else "ok") for n in range(400)
    ]
    ax = waterfall(columns_of(calls))
    assert [name for _, name in row_names(ax)][-1] == "25 others"
    notes = [text.splitlines() for text in texts(ax) if text.startswith("peak ")]
    assert len(notes) == 16
    assert sum(int(note[0].split()[3]) for note in notes) == 400
    assert sum(int(note[1].split()[0]) for note in notes if len(note) > 1) == len(range(0, 400, 7))


def test_failures_above_a_ridge_are_marked_where_they_ended() -> None:
    calls = [step("plan", 10 * n, 10 * n + 5) for n in range(100)]
    calls[30].outcome = calls[70].outcome = "error"
    found = marks(waterfall(columns_of(calls)), "failed")
    assert [x for x, _ in found] == [0.305, 0.705]


def named_calls() -> st.SearchStrategy[list[tuple[int, int, int]]]:
    return st.lists(st.tuples(st.integers(0, 50), st.integers(0, 60), st.integers(0, 5)), min_size=1, max_size=25)


@given(named_calls(), st.integers(2, 5))
def test_rows_by_label_hold_each_call_once(drawn: Sequence[tuple[int, int, int]], limit: int) -> None:
    found = CallBars.of(columns_of([step(f"s{name}", start, start + length) for start, length, name in drawn]))
    rows = label_rows(found, limit)
    assert len(rows) == min(limit, len({name for *_, name in drawn}))
    assert sorted(place for row in rows for place in row.bars.place.tolist()) == list(range(len(drawn)))
    for row in rows:
        expected = steps(row.bars.start_ns, row.bars.end_ns)
        assert row.in_flight.t_ns.tolist() == expected.t_ns.tolist()
        assert len(set(row.bars.label.tolist())) == 1 or row.name.endswith(("other", "others"))
    if len(rows) == limit and rows[-1].name.endswith("others"):
        least = min(int((row.bars.end_ns - row.bars.start_ns).sum()) for row in rows[:-1])
        rest = rows[-1].bars
        for label in set(rest.label.tolist()):
            mine = rest.take(rest.label == label)
            assert int((mine.end_ns - mine.start_ns).sum()) <= least


@given(named_calls(), st.integers(1, 9))
def test_shares_of_the_segments_are_those_of_a_count_by_the_millisecond(
    drawn: Sequence[tuple[int, int, int]], n_slots: int
) -> None:
    calls = [step("s", start, start + length, wait_ms=wait, receive_ms=wait // 2) for start, length, wait in drawn]
    found = CallBars.of(columns_of(calls))
    edges_ns = wall_slots(found, n_slots)
    if not edges_ns[-1]:
        return
    shares = segment_shares(found, edges_ns)
    for slot in range(n_slots):
        spent = [
            sum(
                max(0, min(int(end), int(edges_ns[slot + 1])) - max(int(start), int(edges_ns[slot])))
                for start, end in zip(found.edges_ns[at], found.edges_ns[at + 1], strict=True)
            )
            for at in range(len(SEGMENTS))
        ]
        expected = [one / sum(spent) if sum(spent) else 0 for one in spent]
        assert shares[:, slot].tolist() == pytest.approx(expected)
