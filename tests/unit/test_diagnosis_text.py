"""Words for diagnoses, overlap and comparisons: what they say, and that they fit."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from occupancy.analysis.columns import columns_of
from occupancy.analysis.comparison import compare
from occupancy.analysis.critical_path import Basis, SerialGroup
from occupancy.analysis.diagnosis import diagnose
from occupancy.analysis.findings import Cause, Diagnosis, Finding, Verdict
from occupancy.analysis.overlap import Overlap, RunOverlap, find_overlap
from occupancy.call import Call, Frame
from occupancy.views.diagnosis_text import (
    comparison_text,
    full_diagnosis,
    overlap_text,
    short_diagnosis,
    verdict_line,
)

MS = 1_000_000
LINES = {"plan": 10, "tool_search": 11, "tool_fetch": 12, "recap": 13}


def step(label: str, start_ms: int, end_ms: int, **fields: object) -> Call:
    values = {
        "label": label, "kind": "tool" if label.startswith("tool") else "generate", "start_ns": start_ms * MS,
        "end_ns": end_ms * MS, "outcome": "ok", "run": "agent#1",
        "call_stack": (Frame("/home/me/agent.py", LINES.get(label, 1), "run"),),
    }  # fmt: skip
    return Call(**(values | fields))  # type: ignore[arg-type]


def serial() -> list[Call]:
    return [step("plan", 0, 200), step("tool_search", 200, 550), step("tool_fetch", 550, 900), step("recap", 900, 1100)]


def overlapped() -> list[Call]:
    return [step("plan", 0, 200), step("tool_search", 200, 550), step("tool_fetch", 200, 550), step("recap", 550, 750)]


def finding(cause: Cause = Cause.BARRIER, **fields: object) -> Finding:
    numbers = {"waited_ms": 440.4, "share": 0.25, "calls": 6}
    sites = (Frame("/home/me/a.py", 3, "f"), Frame("/home/me/b.py", 4, "g"))
    given = Finding(cause, "branches wait for each other", numbers, sites, "let each branch go on")
    return dataclasses.replace(given, **fields)  # type: ignore[arg-type]


def verdict(run: str | None = None, cause: Cause = Cause.OVERLAPPED, sentence: str = "overlapped: up to 2") -> Verdict:
    return Verdict(run, cause, 4, 4, 2, 1.5, 750.0, sentence)


def check(text: str, width: int = 80) -> None:
    assert text
    assert text.isascii()
    assert all(len(line) <= width for line in text.splitlines())
    assert not text.endswith("\n")
    assert not any(line != line.rstrip() for line in text.splitlines())


def test_the_reference_agent_at_exit() -> None:
    assert short_diagnosis(diagnose(columns_of(serial()))) == (
        "serial: 4 calls, one after another\n"
        "- tool_search and tool_fetch ran one after another at agent.py:11 and\n"
        "  agent.py:12; overlapped, about 0.75 s instead of 1.10 s, if neither needs the\n"
        "  other\n"
        "  -> start them at once (asyncio.gather, a task group, an executor) and wait for\n"
        "     all; to look for needs first: OCCUPANCY_DEPENDENCE=1"
    )


def test_the_reference_agent_in_full() -> None:
    assert full_diagnosis(diagnose(columns_of(serial()))) == (
        "serial: 4 calls, one after another\n"
        "\n"
        "1. serial: tool_search and tool_fetch ran one after another at agent.py:11 and\n"
        "   agent.py:12; overlapped, about 0.75 s instead of 1.10 s, if neither needs the\n"
        "   other\n"
        "   -> start them at once (asyncio.gather, a task group, an executor) and wait\n"
        "      for all; to look for needs first: OCCUPANCY_DEPENDENCE=1\n"
        "   (calls 2, wall_ms 1100, bound_ms 750, gain_ms 350, serial_ms 700,\n"
        "    overlapped_ms 350)"
    )


def test_nothing_is_the_matter() -> None:
    assert full_diagnosis(diagnose(columns_of(overlapped()))) == (
        "overlapped: up to 2 in flight, mean 1.47\n\nnothing is known to hold the program back"
    )
    assert short_diagnosis(diagnose(columns_of([]))) == "nothing to judge: no call was seen"
    assert full_diagnosis(diagnose(columns_of([]))) == "nothing to judge: no call was seen"


def test_five_serial_users() -> None:
    calls = [dataclasses.replace(call, run=f"user#{n}") for n in range(5) for call in serial()]
    found = diagnose(columns_of(calls))
    assert verdict_line(found) == "serial 5 times: 5 runs, each serial in itself, up to 5 in flight together"
    text = full_diagnosis(found)
    check(text)
    assert "  user#0: serial: 4 calls, one after another\n" in text
    assert "   in 5 runs: user#0, user#1, user#2, user#3 and 1 more\n" in text


def test_runs_of_one_name_and_verdict_share_a_line() -> None:
    verdicts = tuple(verdict(name) for name in ("MainThread", "poll", "MainThread"))
    text = full_diagnosis(Diagnosis(verdicts, verdict(), (), ()), verdict=False)
    assert text.splitlines()[:3] == [
        "runs:",
        "  2 x MainThread: overlapped: up to 2",
        "  poll: overlapped: up to 2",
    ]
    assert full_diagnosis(Diagnosis((verdict(),), verdict(), (), ()), verdict=False) == (
        "nothing is known to hold the program back"
    )


def test_the_costliest_two_are_told_at_exit_and_the_rest_counted() -> None:
    findings = tuple(finding(cost_ms=cost) for cost in (9, 5, 1))
    text = short_diagnosis(Diagnosis((verdict(),), verdict(), findings, ()))
    check(text)
    assert text.splitlines()[0] == "overlapped: up to 2"
    assert text.count("- branches wait for each other (at a.py:3 and b.py:4)") == 2
    assert text.splitlines()[-1] == "and 1 more"


def test_numbers_sites_and_warnings_of_a_finding() -> None:
    text = full_diagnosis(Diagnosis((verdict(),), verdict(), (finding(),), ("2 calls never ended",)))
    assert text == (
        "overlapped: up to 2\n"
        "\n"
        "1. a branch waits for its sibling: branches wait for each other\n"
        "   at /home/me/a.py:3, /home/me/b.py:4\n"
        "   -> let each branch go on\n"
        "   (waited_ms 440, share 0.25, calls 6)\n"
        "\n"
        "note: 2 calls never ended"
    )


def test_many_runs_are_counted() -> None:
    verdicts = tuple(verdict(f"agent#{number}") for number in range(20))
    text = full_diagnosis(Diagnosis(verdicts, verdict(), (), ()))
    check(text)
    assert "  ... and 12 more runs" in text.splitlines()


def test_what_overlap_would_gain() -> None:
    assert overlap_text(find_overlap(columns_of(serial()))) == (
        "about 0.75 s instead of 1.10 s, if these overlapped:\n"
        "  tool_search and tool_fetch at agent.py:11 and agent.py:12: 0.35 s instead of\n"
        "    0.70 s (possibly independent)"
    )
    nothing = "no calls are known that ran one after another without need"
    assert overlap_text(find_overlap(columns_of(overlapped()))) == nothing
    assert overlap_text(Overlap((), 0)) == nothing
    check(overlap_text(Overlap((), 3)))


def test_overlap_of_many_runs_and_groups() -> None:
    group = SerialGroup((None, "b", "c", "d"), (), 9, Basis.DECLARED, 900, 100)
    runs = tuple(RunOverlap(f"agent#{number}", 9, 1000, 200, (group,) * 7) for number in range(10))
    text = overlap_text(Overlap(runs, 0))
    check(text)
    assert text.startswith("agent#0: about 0.20 s instead of 1.00 s")
    assert "(no name) and b and c and 1 more, 9 calls: 0.10 s instead of 0.90 s" in text
    assert text.splitlines()[-1] == "... and 2 more runs"


def test_a_comparison() -> None:
    text = comparison_text(compare(columns_of(serial()), columns_of(overlapped())))
    check(text)
    lines = text.splitlines()
    assert lines[0] == "keep: the wall fell by 32%, and the calls took no longer in sum"
    assert lines[3].split() == ["wall", "1.10", "s", "750", "ms", "-32%"]
    assert lines[-1].split() == ["1,", "1", "200", "ms", "200", "ms", "+0%", "+0", "ms", "recap"]
    check(comparison_text(compare(columns_of([]), columns_of([]))))


@pytest.mark.parametrize("width", [40, 60, 80])
def test_nothing_is_wider_than_asked_for_or_moves_the_cursor(width: int) -> None:
    strange = "\x1b[31m\u2603" * 30 + "/x.py"
    calls = [dataclasses.replace(call, label=f"tool {strange}", run=strange * 3) for call in serial()]
    calls = [dataclasses.replace(call, call_stack=(Frame(strange, n, strange),)) for n, call in enumerate(calls)]
    columns = columns_of([*serial(), *calls])
    found = diagnose(columns)
    for text in (verdict_line(found, width), short_diagnosis(found, width), full_diagnosis(found, width),
                 overlap_text(find_overlap(columns), width)):  # fmt: skip
        check(text, width)
        assert text.isprintable() or "\x1b" not in text
    check(comparison_text(compare(columns, columns), max(width, 60)), max(width, 60))


SENTENCES = st.text(max_size=200)


@given(SENTENCES, SENTENCES, st.dictionaries(st.sampled_from(("a_ms", "b")), st.floats(0, 1e9), max_size=2))
def test_whatever_a_finding_says_it_fits(sentence: str, file: str, numbers: dict[str, float]) -> None:
    one = finding(sentence=sentence, call_sites=(Frame(file, 1, "f"),), numbers=numbers, runs=(sentence, None))
    found = Diagnosis((verdict(sentence), verdict(None)), verdict(sentence=sentence), (one,), ())
    check(short_diagnosis(found) + ".")
    check(full_diagnosis(found))
