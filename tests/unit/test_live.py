"""What a live view shows, at moments that the test chooses."""

import itertools
from typing import Any

import pytest

from occupancy.call import Call, Frame, Kind, Outcome
from occupancy.views.live import LiveCalls, frame

S = 1_000_000_000
NOW_NS = 1000 * S


def opened(call_id: int, start_s: float, **fields: Any) -> Call:
    return Call(call_id=call_id, pid=7, start_ns=round(start_s * S), **fields)


def ended(call_id: int, start_s: float, end_s: float, **fields: Any) -> Call:
    end_ns = round(end_s * S)
    fields = {"outcome": Outcome.OK, "status": 200, **fields}
    return opened(call_id, start_s, end_ns=end_ns, released_ns=end_ns, **fields)


def live(*calls: Call, process: str = "a") -> LiveCalls:
    known = LiveCalls()
    for call in calls:
        known.take(process, call)
    return known


def drawn(known: LiveCalls, now_ns: int = NOW_NS, **options: Any) -> list[str]:
    text = frame(known.snapshot(now_ns), now_ns, **options).plain
    assert text.isascii()
    return text.split("\n")


def test_nothing_yet() -> None:
    assert drawn(LiveCalls()) == [
        "in flight now 0   calls/s 0.0, over the last minute 0.0",
        "",
        "no calls in flight",
        "",
        "last minute  0 ended, 0 failed",
        "in all       0 ended, 0 failed",
    ]


def test_a_whole_frame() -> None:
    site = (Frame("/agent.py", 41, "search"),)
    target = {"method": "POST", "host": "api.example.com", "path": "/v1/chat"}
    known = live(
        ended(1, 900, 910),
        ended(2, 940, 970, status=429, outcome=Outcome.HTTP_ERROR),
        ended(3, 955, 995, status=None, outcome=Outcome.TIMEOUT),
        opened(4, 985, label="search", call_stack=site, **target),
        opened(5, 999.5),
    )
    assert drawn(known, width=67, notes=["", "1 bad line"]) == [
        "in flight now 2   calls/s 0.1, over the last minute 0.0",
        "",
        "111111111111111222222222222222111111111111111222222222211112 peak 2",
        "-60 s                                                    now",
        "",
        "last minute  2 ended, 2 failed, 1 of them of status 429",
        "in all       3 ended, 2 failed, 1 of them of status 429",
        "",
        "open for  step        request                       called at",
        "  15.0 s  search      POST api.example.com/v1/chat  /agent.py:41",
        "   0.5 s  (no label)  -                             -",
        "",
        "1 bad line",
    ]


def test_a_call_that_ends_is_open_no_more_also_where_its_start_was_not_seen() -> None:
    known = live(opened(1, 990), ended(1, 990, 991), ended(2, 980, 992))
    assert (known.snapshot(NOW_NS).open_calls, known.all.ended) == ([], 2)


def test_processes_number_their_calls_alike() -> None:
    known = live(opened(1, 990))
    known.take("b", ended(1, 991, 992))
    assert [call.start_ns for call in known.snapshot(NOW_NS).open_calls] == [990 * S]


def test_a_call_that_changes_is_looked_at_when_drawn() -> None:
    call = opened(1, 990, label="before")
    known = live(call)
    call.label = "after"
    assert any("after" in line for line in drawn(known))


def test_telemetry_does_not_count() -> None:
    known = live(opened(1, 990, kind=Kind.OTHER), ended(2, 990, 991, kind=Kind.OTHER))
    assert drawn(known) == drawn(LiveCalls())


def test_the_longest_open_calls_come_first_and_the_others_are_counted() -> None:
    known = live(*(opened(number, 900 + number, label=f"step {number}") for number in (3, 1, 4, 2)))
    assert [line.partition("step ")[2][0] for line in drawn(known, rows=3)[9:-1]] == ["1", "2"]
    assert drawn(known, rows=3)[-1] == "... and 2 more, open for less"
    assert [line.partition("step ")[2][0] for line in drawn(known, rows=4)[9:]] == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("age_s", "shown"),
    [
        (-5, "0.0 s"),  # the clock of another machine
        (0.099, "0.0 s"),
        (59.999, "59.9 s"),
        (60, "1 min 00 s"),
        (3599, "59 min 59 s"),
        (3600, "1 h 00 min"),
        (90061, "25 h 01 min"),
    ],
)
def test_ages_stand_still(age_s: float, shown: str) -> None:
    now_ns = 100_000 * S
    assert drawn(live(opened(1, 100_000 - age_s)), now_ns)[-1].startswith(f"{shown:>8}  (no label)")


def test_the_minute_is_left_behind() -> None:
    known = live(ended(1, 900, 940), ended(2, 900, 940.000000001))
    assert known.snapshot(NOW_NS).minute.ended == 1
    assert known.snapshot(NOW_NS + 1).minute.ended == 0
    assert known.snapshot(NOW_NS + 1).in_flight.peak == 0
    assert known.all.ended == 2


def test_only_a_minute_is_kept() -> None:
    known = live(*(ended(number, number, number + 1) for number in range(1000)))
    assert (len(known._recent), known.all.ended) == (61, 1000)


def test_rates_count_from_the_first_call() -> None:
    known = live(*(ended(number, 996, 999) for number in range(8)))
    seen = known.snapshot(NOW_NS)
    assert (seen.rate_now, seen.rate_minute) == (2.0, 2.0)
    later = known.snapshot(NOW_NS + 20 * S)
    assert (later.rate_now, later.rate_minute) == (0.0, 8 / 24)
    assert live(ended(1, 999.9, 1000)).snapshot(NOW_NS).rate_now == 1.0  # not 10: a tenth of a second tells no rate


def test_the_peak_of_the_minute_is_drawn_however_short_it_is() -> None:
    burst = [ended(number, 970, 970.000001) for number in range(12)]
    line = drawn(live(*burst, ended(99, 950, 990)))[2]
    assert line.endswith(" _.:-=+*#%@ peak 13")
    assert line.count("@") == 2  # one of them in the ramp


def test_a_process_that_was_found_and_is_not_found_any_more_leaves_its_calls_open() -> None:
    known = live(opened(1, 995), opened(2, 998))
    known.look_for_processes(NOW_NS, lambda process: True)
    assert len(known.snapshot(NOW_NS).open_calls) == 2
    known.look_for_processes(NOW_NS, lambda process: False)
    seen = known.snapshot(NOW_NS)
    assert (seen.open_calls, [call.call_id for call in seen.left_open]) == ([], [1, 2])
    assert drawn(known)[-1] == "2 calls left open by processes that are gone: 7"
    assert seen.in_flight.at(998 * S) == 2  # until its last sign of life
    assert seen.in_flight.at(998 * S + 1) == 0


def test_a_process_that_was_never_found_may_run_elsewhere_until_it_is_silent_for_a_minute() -> None:
    known = live(opened(1, 940.000000001))
    known.look_for_processes(NOW_NS, lambda process: False)
    assert len(known.snapshot(NOW_NS).open_calls) == 1
    known.look_for_processes(NOW_NS + 1, lambda process: False)
    assert len(known.snapshot(NOW_NS).left_open) == 1
    known.take("a", opened(2, 1001))  # it lives
    assert len(known.snapshot(NOW_NS + S).open_calls) == 2


def test_nothing_is_wider_than_asked_and_nothing_moves_the_cursor() -> None:
    name = "x\x1b[2Jy\n" * 30
    stack = (Frame("/f" * 200, 1, "f"),)
    many = [ended(number, 990, 999, status=429) for number in itertools.repeat(1, 10**5)]
    known = live(*many, *(opened(n, 990, label=name, host=name, path=name, call_stack=stack) for n in range(30)))
    for width in (50, 80, 200):
        lines = drawn(known, width=width, rows=5, notes=[name])
        assert max(map(len, lines)) <= width
        assert len(lines) == 15
        assert all(char.isprintable() for line in lines for char in line)


def test_failures_of_now_stand_out() -> None:
    known = live(ended(1, 990, 999, status=500))
    styled = frame(known.snapshot(NOW_NS), NOW_NS)
    assert [styled.plain[span.start : span.end] for span in styled.spans if span.style == "bold red"] == ["1 failed"]
    later_ns = NOW_NS + 60 * S
    assert not [span for span in frame(known.snapshot(later_ns), later_ns).spans if span.style == "bold red"]
