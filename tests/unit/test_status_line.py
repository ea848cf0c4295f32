"""What is in flight now in one line, at moments that the test chooses."""

import pytest

from occupancy.call import Call, Outcome
from occupancy.views.live import LiveCalls
from occupancy.views.status_line import status_line

S = 1_000_000_000
NOW_NS = 1000 * S


def live(*calls: Call) -> LiveCalls:
    known = LiveCalls()
    for call in calls:
        known.take("a", call)
    return known


def opened(call_id: int, start_s: float, label: str | None = None) -> Call:
    return Call(call_id=call_id, pid=7, start_ns=round(start_s * S), label=label)


def ended(call_id: int, start_s: float, end_s: float, status: int = 200) -> Call:
    end_ns = round(end_s * S)
    outcome = Outcome.OK if status < 400 else Outcome.HTTP_ERROR
    return Call(call_id=call_id, start_ns=round(start_s * S), end_ns=end_ns, outcome=outcome, status=status)


def line(known: LiveCalls, width: int = 80) -> str:
    return status_line(known.snapshot(NOW_NS), NOW_NS, width)


def test_nothing_yet() -> None:
    assert line(LiveCalls()) == "occupancy: 0 in flight | 0 ended | no calls in flight"


TOLD = "occupancy: 2 in flight, longest plan 30.0 s | 2 ended, 1 failed"
KNOWN = live(ended(1, 940, 970), ended(2, 955, 985, 500), opened(3, 970, "plan"), opened(4, 999.95))


@pytest.mark.parametrize(
    ("width", "told"),
    [
        (133, f"{TOLD} | {'1' * 15}{'2' * 30}{'1' * 14}2 peak 2"),
        (95, TOLD),
        (63, TOLD),
        (62, "occupancy: 2 in flight, longest plan 30.0 s"),
        (43, "occupancy: 2 in flight, longest plan 30.0 s"),
        (42, "occupancy: 2 in flight"),
        (20, "occupancy: 2 in flig"),
    ],
)
def test_what_does_not_fit_is_left_out_from_the_end(width: int, told: str) -> None:
    assert line(KNOWN, width) == told


def test_a_wide_terminal_has_no_longer_sparkline() -> None:
    assert len(line(KNOWN, 500)) == len(TOLD) + len(" | ") + 80


def test_a_label_cannot_move_the_cursor() -> None:
    assert line(live(opened(1, 990, "\x1b[2J\n")), 44) == "occupancy: 1 in flight, longest ?[2J? 10.0 s"


def test_without_a_label_it_says_so() -> None:
    assert line(live(opened(1, 990)), 50) == "occupancy: 1 in flight, longest (no label) 10.0 s"


def test_calls_of_processes_that_are_gone_are_not_in_flight() -> None:
    known = live(opened(1, 990, "plan"))
    known.look_for_processes(NOW_NS, lambda process: True)
    known.look_for_processes(NOW_NS, lambda process: False)
    assert line(known, 48) == "occupancy: 0 in flight | 0 ended, 1 left open"
