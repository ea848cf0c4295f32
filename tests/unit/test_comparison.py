"""Two logs, before and after a change."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from occupancy.analysis.columns import columns_of
from occupancy.analysis.comparison import Change, Comparison, compare
from occupancy.call import Call

MS = 1_000_000


def step(label: str | None, start_ms: int, end_ms: int, **fields: object) -> Call:
    values = {"label": label, "start_ns": start_ms * MS, "end_ns": end_ms * MS, "outcome": "ok", "run": "agent#1"}
    return Call(**(values | fields))  # type: ignore[arg-type]


def serial() -> list[Call]:
    return [step("plan", 0, 200), step("search", 200, 550), step("fetch", 550, 900), step("recap", 900, 1100)]


def overlapped(tool_ms: int = 350) -> list[Call]:
    end = 200 + tool_ms
    return [step("plan", 0, 200), step("search", 200, end), step("fetch", 200, end), step("recap", end, end + 200)]


def comparison_of(before: list[Call], after: list[Call]) -> Comparison:
    return compare(columns_of(before), columns_of(after))


def test_a_live_log_is_compared_up_to_now() -> None:
    opened = Call(label="recap", start_ns=550 * MS, run="agent#1")
    after = columns_of([*overlapped()[:3], opened])
    assert compare(columns_of(serial()), after, until_ns=900 * MS).wall_ms == Change(1100, 900)
    assert compare(columns_of(serial()), after).wall_ms.after == pytest.approx(550, abs=1e-3)


def test_the_overlapped_agent_is_kept() -> None:
    found = comparison_of(serial(), overlapped())
    assert (found.wall_ms, found.peak, found.total_ms) == (Change(1100, 750), Change(1, 2), Change(1100, 1100))
    assert (found.calls, found.failed, found.outcomes) == (Change(4, 4), Change(0, 0), (("ok", Change(4, 4)),))
    assert found.mean_in_flight.after == pytest.approx(1100 / 750)
    assert (found.keep, found.reason) == (True, "the wall fell by 32%, and the calls took no longer in sum")
    assert [change.label for change in found.labels] == ["plan", "search", "fetch", "recap"]
    assert all(change.total_ms.difference == 0 for change in found.labels)


def test_overlap_that_makes_the_calls_slower_is_not() -> None:
    found = comparison_of(serial(), overlapped(tool_ms=500))
    assert (found.keep, found.reason) == (False, "the wall fell by 18%, but the calls took 27% longer in sum")
    assert found.labels[1].total_ms.share == pytest.approx(150 / 350)
    assert found.labels[1].mean_ms == Change(350, 500)


def test_two_logs_without_a_common_label_may_be_of_two_programs() -> None:
    renamed = [dataclasses.replace(call, label=f"{call.label}_async") for call in overlapped()]
    found = comparison_of(serial(), renamed)
    assert found.reason.endswith("took no longer in sum; no label is in both logs, as if they were of two programs")
    renamed[0].label = "plan"
    assert comparison_of(serial(), renamed).reason.endswith("took no longer in sum")


def test_what_changes_nothing_is_not_kept() -> None:
    found = comparison_of(serial(), serial())
    assert (found.keep, found.reason) == (False, "the wall did not fall by 3% or more")


def test_less_work_is_no_better_structure() -> None:
    found = comparison_of(serial(), serial()[:3])
    assert (found.keep, found.reason) == (False, "not comparable: 4 calls before, 3 after")
    assert [(change.label, change.n, change.mean_ms) for change in found.labels][-1] == ("recap", Change(1, 0), None)


def test_further_attempts_are_no_other_work_but_failures_are_none_to_keep() -> None:
    before, after = serial(), overlapped()
    for number, call in enumerate((*before, *after)):
        call.logical_id = number + 1
    retried = dataclasses.replace(after[1], end_ns=210 * MS, status=429, outcome="http_error")
    assert comparison_of(before, [*after, retried]).reason == "1 calls failed, 0 before"
    assert comparison_of([*before, dataclasses.replace(retried, logical_id=1)], after).keep


def test_an_empty_log_says_nothing() -> None:
    for before, after in (([], serial()), (serial(), []), ([], [])):
        found = comparison_of(before, after)
        assert (found.keep, found.reason) == (False, "nothing to compare: a log holds no call that took any time")
    assert comparison_of([], serial()).wall_ms.share is None


def test_labels_that_are_new_come_last_and_none_is_a_label() -> None:
    found = comparison_of([step(None, 0, 10)], [step("new", 0, 5), step(None, 5, 9)])
    assert [(change.label, change.n) for change in found.labels] == [(None, Change(1, 1)), ("new", Change(0, 1))]


CALLS = st.lists(
    st.builds(step, st.sampled_from((None, "a", "b")), st.integers(0, 50), st.integers(50, 90)), max_size=8
)


@given(CALLS, CALLS)
def test_sums_and_directions(before: list[Call], after: list[Call]) -> None:
    there, back = comparison_of(before, after), comparison_of(after, before)
    assert there.total_ms.before == pytest.approx(sum(change.total_ms.before for change in there.labels))
    assert (there.wall_ms.difference, there.calls.difference) == (-back.wall_ms.difference, -back.calls.difference)
    assert not (there.keep and back.keep)
    if there.keep:
        assert there.wall_ms.after < there.wall_ms.before
    assert not comparison_of(before, before).keep
