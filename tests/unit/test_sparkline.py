"""What a terminal shows: no peak lost, hills told apart, never too wide."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from occupancy.analysis.columns import columns_of
from occupancy.analysis.steps import Steps, steps
from occupancy.call import Call
from occupancy.views.sparkline import RAMP, skyline, sparkline, time_axis
from occupancy.views.timeline import timeline

MS = 1_000_000
S = 1000 * MS
SERIAL = [("plan", 0, 200), ("tool_search", 200, 550), ("tool_fetch", 550, 900), ("recap", 900, 1100)]
OVERLAPPED = [("plan", 0, 200), ("tool_search", 200, 550), ("tool_fetch", 200, 550), ("recap", 550, 750)]


def of(*intervals: tuple[int, int]) -> Steps:
    return steps(*(np.array([pair[side] for pair in intervals], dtype=np.int64) for side in (0, 1)))


def starts(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def calls(rows: list[tuple[str, int, int]]) -> list[Call]:
    return [Call(label=label, start_ns=start * MS, end_ns=end * MS, outcome="ok") for label, start, end in rows]


# One line


def test_a_sparkline_shows_digits_and_ends_with_the_peak() -> None:
    assert sparkline(of((0, 10), (2, 4), (6, 8)), width=17) == "1122112211 peak 2"
    assert sparkline(of((0, 4), (6, 10)), width=17) == "1111__1111 peak 1"


def test_an_empty_sparkline_says_so() -> None:
    assert sparkline(of()) == "no calls in flight"


@pytest.mark.parametrize(("peak", "lowest", "highest"), [(9, "1", "9"), (10, ".", "@"), (250, ".", "@")])
def test_levels_beyond_nine_become_a_ramp_that_is_written_behind_it(peak: int, lowest: str, highest: str) -> None:
    line = sparkline(of((0, 100), *[(40, 60)] * (peak - 1)))
    drawn, _, legend = line.partition(" ")
    assert set(drawn) == {lowest, highest}
    assert legend == (f"peak {peak}" if peak <= 9 else f"{RAMP} peak {peak}")
    assert len(line) == 72


def test_a_ramp_has_its_levels_in_equal_parts() -> None:
    line = sparkline(of(*((slot, 18) for slot in range(18))), width=18 + len(f" {RAMP} peak 18"))
    assert line.split(" ")[0] == "..::--==++**##%%@@"
    assert sparkline(of((0, 4), *[(8, 10)] * 18), width=35).startswith(".......______@@@ ")


def test_a_peak_of_one_nanosecond_among_a_million_calls_is_shown() -> None:
    start = np.arange(1_000_000) * 10_000
    end = start + 5_000
    line = sparkline(steps(np.append(start, [start[700_000]] * 2), np.append(end, [start[700_000] + 1] * 2)))
    assert line.count("3") == 2  # once drawn, once told
    assert line.index("3") == 65 * 7 // 10


@given(
    st.lists(st.tuples(st.integers(0, 10**10), st.integers(1, 10**9)), min_size=1, max_size=40), st.integers(40, 200)
)
def test_the_peak_is_drawn_and_the_line_is_as_wide_as_asked(rows: list[tuple[int, int]], width: int) -> None:
    found = of(*((start, start + length) for start, length in rows))
    line = sparkline(found, width)
    drawn = line.split(" ")[0]
    assert len(line) == width
    assert (str(found.peak) if found.peak <= 9 else "@") in drawn


# Skyline


def test_the_serial_agent_is_four_hills_and_overlapped_its_tools_are_two_high() -> None:
    serial = of(*((start * MS, end * MS) for _, start, end in SERIAL))
    assert skyline(serial, 47, starts_ns=starts(0, 200 * MS, 550 * MS, 900 * MS)).splitlines() == [
        "1 |########|#############|#############|#######",
        "  +--------------------+-------------------+---",
        "  0 ms                 500                 1000",
    ]
    overlapped = of(*((start * MS, end * MS) for _, start, end in OVERLAPPED))
    assert skyline(overlapped, 33, starts_ns=starts(0, 200 * MS, 200 * MS, 550 * MS)).splitlines() == [
        "2 |        ##############",
        "1 |########|#############|#######",
        "  +--------------------+---------",
        "  0 ms                 500",
    ]


def test_a_gap_too_short_to_see_is_still_a_boundary() -> None:
    found = of((0, 500 * MS), (501 * MS, 1000 * MS))
    assert skyline(found, 23, starts_ns=starts(0, 501 * MS)).splitlines()[0] == "1 |##########|#########"


def test_a_call_that_starts_after_a_gap_one_can_see_needs_no_mark() -> None:
    found = of((0, 400 * MS), (600 * MS, 1000 * MS))
    assert skyline(found, 23, starts_ns=starts(0, 600 * MS)).splitlines()[0] == "1 |########    ########"


def test_boundaries_that_could_not_be_read_are_left_out() -> None:
    rows = [(start * MS, start * MS + 10 * MS) for start in range(0, 1000, 10)]
    assert "|" not in skyline(of(*rows), 33, starts_ns=starts(*(row[0] for row in rows))).splitlines()[0][3:]


def test_calls_that_wait_in_the_programs_own_queue_are_dotted() -> None:
    drawn = skyline(of(*[(0, 10 * S)] * 3), 13, wire=of((0, 10 * S), (0, 5 * S))).splitlines()
    assert drawn[:3] == ["3 |..........", "2 |#####.....", "1 |##########"]
    assert drawn[-1] == "# on the wire, . asked for, not yet on the wire"


def test_nothing_is_dotted_where_all_calls_are_on_the_wire() -> None:
    found = of((0, 10), (5, 10))
    assert skyline(found, wire=found) == skyline(found)


def test_a_high_peak_is_reached_by_the_top_row_alone() -> None:
    found = of(*((start * MS, 1000 * MS) for start in range(0, 1000, 10)))
    drawn = skyline(found, 34).splitlines()
    assert [line[:3].strip() for line in drawn[:8]] == ["100", "86", "72", "58", "43", "29", "15", "1"]
    assert [line.count("#") for line in drawn[:8]] == [1, 5, 9, 13, 17, 21, 25, 29]
    assert len(skyline(found, 34, height=3).splitlines()) == 5


@pytest.mark.parametrize("wall_ns", [1, 7, 36_000, 999_999, 1_999_999_999, 2_000_000_000, 3_600_000_000_000, 10**18])
def test_a_time_axis_has_a_few_round_times_in_one_unit(wall_ns: int) -> None:
    line, labels = time_axis(wall_ns, 4, 80)
    sizes = {"ns": 1, "us": 1000, "ms": MS, "s": S}
    first, unit, *later = labels.split()
    assert (first, len(line)) == ("0", 80)
    assert len(labels) <= 80
    for text in later:
        column = labels.index(f" {text}") + 1
        assert line[column] == "+"
        assert column - 4 == int(float(text) * sizes[unit]) * 76 // wall_ns


@given(
    st.lists(st.tuples(st.integers(0, 10**11), st.integers(1, 10**10)), min_size=1, max_size=60), st.integers(30, 120)
)
def test_a_skyline_is_never_too_wide_and_its_lowest_row_is_busy_time(rows: list[tuple[int, int]], width: int) -> None:
    found = of(*((start, start + length) for start, length in rows))
    lines = skyline(found, width).splitlines()
    assert max(map(len, lines)) <= width
    gutter = len(str(found.peak)) + 2
    _, highest = found.envelope(found.slots(width - gutter))
    assert lines[:-2][-1][gutter:] == "".join("#" if level else " " for level in highest.tolist()).rstrip()


# A bar for each step


def test_a_timeline_has_a_bar_for_each_call_and_its_length() -> None:
    assert timeline(columns_of(calls(OVERLAPPED)), width=60).splitlines() == [
        "plan        |===========                              200 ms",
        "tool_search |          ====================           350 ms",
        "tool_fetch  |          ====================           350 ms",
        "recap       |                             =========== 200 ms",
        "            +----------+----------+----------+-------",
        "            0 ms       200        400        600",
    ]


def test_bars_are_in_the_order_of_starts_whatever_the_order_of_the_log() -> None:
    drawn = timeline(columns_of(calls(SERIAL)[::-1])).splitlines()
    assert [line.split()[0] for line in drawn[:4]] == ["plan", "tool_search", "tool_fetch", "recap"]


def test_a_bar_shows_waiting_open_calls_and_no_telemetry() -> None:
    rows = [
        Call(label="a" * 40, start_ns=0, end_ns=100 * MS, pool_ns=50 * MS, outcome="ok"),
        Call(start_ns=20 * MS),
        Call(label="upload", kind="other", start_ns=0, end_ns=90 * MS, outcome="ok"),
    ]
    drawn = timeline(columns_of(rows), width=49, until_ns=100 * MS).splitlines()
    assert drawn[0] == "...aaaaaaaaaaaaaaaaa |.........=========   100 ms"
    assert drawn[1].startswith("(no label)           |   ===")
    assert drawn[1].endswith("= >80.0 ms")
    assert drawn[-1] == "= on the wire, . asked for, not yet on the wire"
    assert "upload" not in "".join(drawn)


def test_many_calls_have_a_bar_for_each_label_with_how_many_ran_at_once() -> None:
    rows = [("b", 500, 600)] * 11 + [("a", 0, 100)] * 2 + [(f"l{number}", 50, 60) for number in range(11)]
    drawn = timeline(columns_of(calls(rows)), width=60).splitlines()
    assert drawn[0].startswith("a  |222222222 ")
    assert drawn[0].endswith("x 2")
    assert drawn[11].endswith("+++++++++ x 11")
    assert drawn[-1] == "and 1 more label with less time in flight"


def test_a_timeline_is_plain_ascii_of_the_width_asked_for() -> None:
    rows = [dataclasses.replace(call, label=f"\x1b[31m{call.label}\n\u2603") for call in calls(SERIAL)]
    drawn = timeline(columns_of(rows), width=64)
    assert drawn.isascii()
    assert "\x1b" not in drawn
    assert len(drawn.splitlines()) == 6
    assert max(map(len, drawn.splitlines())) == 64


def test_nothing_to_draw_is_said() -> None:
    assert skyline(of()) == "no calls in flight"
    assert timeline(columns_of([])) == "no calls in flight"
