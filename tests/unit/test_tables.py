"""The report is short, plain and never wraps, and says in words what the numbers mean."""

import dataclasses

import pytest

from occupancy.analysis.columns import columns_of
from occupancy.analysis.diagnosis import diagnose
from occupancy.analysis.summary import summarize
from occupancy.call import Call, Frame
from occupancy.views.diagnosis_text import verdict_line
from occupancy.views.tables import headline, label_table, report, site_table
from occupancy.views.text import count, duration, duration_of_ms, plain, shorten, table

MS = 1_000_000


def step(label: str | None, start_ms: int, end_ms: int, line: int = 1, run: str = "agent") -> Call:
    return Call(
        label=label,
        run=run,
        start_ns=start_ms * MS,
        end_ns=end_ms * MS,
        first_byte_ns=end_ms * MS - 5 * MS,
        outcome="ok",
        status=200,
        call_stack=(Frame("/home/me/agent/agent.py", line, str(label)),),
    )


SERIAL = [step("plan", 0, 200, 5), step("tool_search", 200, 550, 6), step("tool_fetch", 550, 900, 7)]
OVERLAPPED = [step("plan", 0, 200, 5), step("tool_search", 200, 550, 6), step("tool_fetch", 200, 550, 7)]


def verdict_of(*calls: Call) -> str:
    return verdict_line(diagnose(columns_of(calls)))


def test_the_report_of_the_serial_agent() -> None:
    assert report(columns_of(SERIAL), width=66).splitlines() == [
        "occupancy: 3 calls in 900 ms, peak 1 in flight, mean 1.00",
        "serial: 3 calls, one after another",
        "",
        "1 |##############|#######################|########################",
        "  +--------------+-------------+-------------+-------------+------",
        "  0 ms           200           400           600           800",
        "",
        "step         calls    mean  first byte  called at",
        "tool_search      1  350 ms      345 ms  agent.py:6",
        "tool_fetch       1  350 ms      345 ms  agent.py:7",
        "plan             1  200 ms      195 ms  agent.py:5",
        "",
        "- 3 calls ran one after another at agent.py:5 and agent.py:6 and",
        "  agent.py:7; each may need the one before",
        "  -> where a step does not need the one before, start both at",
        "     once, or say so with label(..., after=...)",
    ]


def test_the_report_names_the_lines_that_called_a_helper() -> None:
    helper = Frame("/home/me/agent/llm.py", 3, "llm")
    calls = [
        dataclasses.replace(step("llm", 0, 100), call_stack=(helper, Frame("/home/me/agent/agent.py", 41, "main"))),
        dataclasses.replace(step("llm", 100, 200), call_stack=(helper, Frame("/home/me/agent/agent.py", 42, "main"))),
    ]
    drawn = report(columns_of(calls))
    assert "agent.py:41" in drawn
    assert "agent.py:42" in drawn
    assert "llm.py" not in drawn


def worst_calls() -> list[Call]:
    calls = []
    for number in range(60):
        call = step(
            f"\x1b[1m{'long name ' * 20}\n{number}", number * 5, number * 900, 10**6 + number, f"run {number % 7}"
        )
        call.call_stack = (Frame("/very/long/folder\u2603" * 20 + f"/{number}.py", 10**6, "f"),)
        call.attempt = number
        call.status = (200, 429, 500, None)[number % 4]
        call.released_ns = call.end_ns and call.end_ns + 2 * MS
        call.pool_ns = 400 * MS
        calls.append(call)
    calls += [Call(label=None, start_ns=10**9), Call(start_ns=5, end_ns=3, outcome="ok"), Call(kind="other")]
    calls += [Call(label="late", start_ns=10**12, end_ns=2 * 10**12, outcome="timeout")]
    return calls


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_longest_report_has_twenty_lines_of_ascii_and_never_wraps(width: int) -> None:
    drawn = report(columns_of(worst_calls()), width)
    lines = drawn.splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= width
    assert drawn.isascii()
    assert "\x1b" not in drawn


def test_the_report_tells_what_is_wrong_with_calls_and_is_silent_where_all_is_well() -> None:
    notes = " ".join(report(columns_of(worst_calls()), 200).splitlines()[2:4])
    for note in (
        "1 still open",
        "31 failed",
        "15 of them of status 429",
        "59 further attempts",
        "59 held after their end",
        "1 unusable",
        "1 not counted (telemetry)",
    ):
        assert note in notes
    assert "calls: " not in report(columns_of(SERIAL))


def test_the_report_tells_the_programs_own_time_where_it_is_a_good_part() -> None:
    drawn = report(columns_of([step("plan", 0, 200), step("fetch", 600, 900), step("recap", 1000, 1000 + 1000)]))
    assert "nothing in flight 25% of the time, longest 400 ms between plan and fetch" in drawn.splitlines()
    assert "nothing in flight" not in report(columns_of([step("plan", 0, 200), step("fetch", 210, 900)]))


def test_a_report_of_nothing_has_two_lines() -> None:
    assert report(columns_of([])).splitlines() == [
        "occupancy: 0 calls in 0 ns, peak 0 in flight, mean 0.00",
        "nothing to judge: no call was seen",
    ]
    assert report(columns_of([Call(kind="other", end_ns=5)])).splitlines()[2] == "calls: 1 not counted (telemetry)"


def test_a_report_of_calls_that_took_no_time() -> None:
    assert verdict_of(step("a", 5, 5), step("b", 5, 5)) == "nothing to judge: no call took any time"
    assert len(report(columns_of([step("a", 5, 5)])).splitlines()) == 2


# Verdicts


def test_peak_one_over_several_calls_is_serial() -> None:
    assert verdict_of(*SERIAL) == "serial: 3 calls, one after another"


def test_two_in_flight_are_overlapped() -> None:
    assert verdict_of(*OVERLAPPED) == "overlapped: up to 2 in flight, mean 1.64"


def test_one_call_is_right_at_one() -> None:
    assert verdict_of(step("plan", 0, 200)) == "one call: 1 in flight is right"


def test_serial_users_of_one_server_are_serial() -> None:
    users = [dataclasses.replace(call, run=f"user {user}") for user in range(5) for call in SERIAL]
    assert verdict_of(*users) == "serial 5 times: 5 runs, each serial in itself, up to 5 in flight together"


def test_one_overlapped_run_among_serial_ones_is_told() -> None:
    calls = [dataclasses.replace(call, run=run) for run, rows in (("a", SERIAL), ("b", OVERLAPPED)) for call in rows]
    assert verdict_of(*calls) == "2 runs: 1 serial, 1 overlapped; up to 3 in flight together"


def test_one_call_in_each_run_is_no_serial_program() -> None:
    calls = [step("fetch", 0, 100, run=f"thread {number}") for number in range(3)]
    assert verdict_of(*calls) == "one call in each of 3 runs, up to 3 in flight together"


def test_one_call_in_each_run_and_never_two_at_once_is_serial_if_the_runs_are_one_agent() -> None:
    calls = [step("llm", 100 * n, 100 * n + 100, run=f"task {n}") for n in range(4)]
    assert verdict_of(*calls) == "never more than 1 in flight over 4 calls in 4 runs: serial, if one agent's"


def test_a_serial_thread_beside_others_with_one_call_each_is_told_apart() -> None:
    main = [step("plan", 0, 200, run="main"), step("recap", 550, 750, run="main")]
    tools = [step("tool", 200, 550, run=f"thread {number}") for number in range(2)]
    assert verdict_of(*main, *tools) == "3 runs: 1 serial, 2 one call per run; up to 2 in flight together"


# Tables


def test_a_table_is_aligned_and_cut_from_the_left() -> None:
    drawn = table(
        ("name", "n", "path"), [("a", "1000", "/short.py"), ("long", "2", "/far/too/long/path.py")], "<><", 24
    )
    assert (
        drawn.splitlines()
        == [
            "name     n  path",
            "a     1000  /short.py",
            "long     2  .../path.py",
        ]
        or drawn
    )


def test_steps_beyond_those_named_are_told() -> None:
    calls = [step(f"step {number}", number * 10, number * 10 + 10 + number, number) for number in range(8)]
    lines = site_table(summarize(columns_of(calls))).splitlines()
    assert [line.split("  ")[0] for line in lines[1:5]] == ["step 7", "step 6", "step 5", "step 4"]
    assert lines[5:] == ["... and 4 more, 46.0 ms of calls"]


def test_every_label_has_a_row_with_its_first_start() -> None:
    calls = [*SERIAL, step("plan", 900, 1300, 5), Call(label="stuck", start_ns=1000 * MS)]
    lines = label_table(summarize(columns_of(calls))).splitlines()
    assert lines[0].split() == ["label", "calls", "start", "mean", "min", "max", "first", "byte", "called", "at"]
    assert " ".join(lines[1].split()) == "plan 2 0 ns 300 ms 200 ms 400 ms 295 ms agent.py:5"
    assert " ".join(lines[4].split()) == "stuck 1 1.00 s open - - - -"


def test_of_many_labels_the_longest_are_listed_and_the_others_counted() -> None:
    calls = [step(f"step {number}", number * 10, number * 10 + 10 + number, number) for number in range(8)]
    lines = label_table(summarize(columns_of(calls)), n=4).splitlines()
    assert [line.split("  ")[0] for line in lines[1:4]] == ["step 5", "step 6", "step 7"]
    assert lines[4:] == ["... and 5 more, 60.0 ms of calls"]


def test_where_no_call_site_is_known_labels_have_its_place() -> None:
    calls = [step("call_llm mistral/mistral-small-latest", 0, 9)]
    assert "...al-small-latest" in site_table(summarize(columns_of(calls)))
    calls[0].call_stack = ()
    summary = summarize(columns_of(calls))
    assert site_table(summary).splitlines() == [
        "step                                   calls     mean  first byte",
        f"call_llm mistral/mistral-small-latest      1  9.00 ms     {duration_of_ms(4.0)}",
    ]
    for width in (60, 80, 200):
        assert max(map(len, site_table(summary, width=width).splitlines())) <= width
        assert len(label_table(summary, width=width).splitlines()[1]) <= max(width, 70)


def test_call_sites_lose_the_folder_they_share_and_nothing_else() -> None:
    def sites(*files: str) -> list[str]:
        calls = [step(file, 0, 9 - place) for place, file in enumerate(files)]
        for call, file in zip(calls, files, strict=True):
            call.call_stack = (Frame(file, 1, "f"),)
        return [line.split("  ")[-1].strip() for line in site_table(summarize(columns_of(calls))).splitlines()[1:]]

    assert sites("/p/agent/a.py", "/p/agents/b.py") == ["agent/a.py:1", "agents/b.py:1"]
    assert sites("/p/agent/a.py", "/p/agent/tools/b.py") == ["a.py:1", "tools/b.py:1"]
    assert sites("/a/x.py", "/b/y.py") == ["/a/x.py:1", "/b/y.py:1"]
    assert sites("cell 12", "/p/tools.py") == ["cell 12, line 1", "tools.py:1"]
    assert sites("relative.py", "/p/tools.py") == ["relative.py:1", "/p/tools.py:1"]


def test_the_headline_speaks_of_one_call_as_one() -> None:
    found = headline(summarize(columns_of([step("plan", 0, 1500)])))
    assert found == "occupancy: 1 call in 1.50 s, peak 1 in flight, mean 1.00"


# Words


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1000, "1.00 us"),
        (36_000, "36.0 us"),
        (350 * MS, "350 ms"),
        (999_499_000, "999 ms"),
        (999_500_000, "1.00 s"),
        (1_100 * MS, "1.10 s"),
        (9_994_999_999, "9.99 s"),
        (9_995 * MS, "10.0 s"),
        (99_950 * MS, "100 s"),
        (3_600_000 * MS, "3600 s"),
    ],
)
def test_durations_have_three_digits_and_a_unit(ns: int, text: str) -> None:
    assert duration(ns) == text
    assert duration_of_ms(ns / MS) == text


def test_an_absent_duration_is_a_dash() -> None:
    assert duration_of_ms(None) == "-"


def test_text_is_cut_from_the_left() -> None:
    assert shorten("agent.py:41", 11) == "agent.py:41"
    assert shorten("/home/me/agent.py:41", 14) == "...agent.py:41"
    assert [shorten("agent", width) for width in (3, 1, 0)] == ["ent", "t", ""]


def test_text_is_made_plain() -> None:
    assert plain("a\x1b[31m\n\u2603 b") == "a?[31m?? b"


def test_numbers_have_their_noun() -> None:
    assert [count(n, "call") for n in (0, 1, 2)] == ["0 calls", "1 call", "2 calls"]
