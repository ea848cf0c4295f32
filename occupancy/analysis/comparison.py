"""Two logs of one program, before and after a change: did the wall fall, and did the calls stay as they were?

That a program is overlapped does not say that it is better for it: a server may answer each call more slowly when more
is in flight. One log alone never shows it. So "keep" takes both: a shorter wall, and calls that take no longer in sum.
"""

import dataclasses
import math
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from occupancy.analysis.columns import Columns
from occupancy.analysis.distribution import MS, Tally, number
from occupancy.analysis.groups import CountedCalls, Group
from occupancy.analysis.records import Records
from occupancy.analysis.summary import summary_of
from occupancy.analysis.unit_counts import counts_of
from occupancy.analysis.units import units

WALL_TOLERANCE = 0.03
"""Share by which the wall must have fallen: two runs of one program differ by less than that, or should."""
TOTAL_TOLERANCE = 0.05
"""Share by which the sum of all calls' durations may rise before it counts as slower; the noise of a few calls."""


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """One quantity, before and after."""

    before: float
    after: float

    @property
    def difference(self) -> float:
        """After minus before."""
        return self.after - self.before

    @property
    def share(self) -> float | None:
        """The difference as a share of what was before; None where that was 0."""
        return self.difference / self.before if self.before else None


@dataclasses.dataclass(frozen=True, slots=True)
class LabelChange:
    """The calls of one label, before and after."""

    label: str | None
    n: Change
    """Calls."""
    total_ms: Change
    """Sum of their durations."""
    mean_ms: Change | None
    """Mean duration of those that ended; None where there are none on one side."""


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """What changed between two logs."""

    wall_ms: Change
    peak: Change
    mean_in_flight: Change
    calls: Change
    total_ms: Change
    """Sum of the durations of all calls."""
    failed: Change
    """Calls that failed: status 400 and above, time-outs, errors."""
    outcomes: tuple[tuple[str, Change], ...]
    """Calls by outcome, the most frequent first."""
    labels: Records[LabelChange]
    """In the order of their first start; those that only came after the change last."""
    keep: bool
    """Whether the change is worth keeping: see `reason`."""
    reason: str
    """Why, or why not, in one sentence."""

    def largest(self, n: int) -> NDArray[np.int64]:
        """Places of the n labels with the longest time of all calls, before or after, whichever is more; that first."""
        total_ms = self.labels.column("total_ms")
        most_ms = np.maximum(total_ms.column("before"), total_ms.column("after"))
        return np.argsort(-most_ms, kind="stable")[:n]


def compare(before: Columns, after: Columns, until_ns: int | None = None) -> Comparison:
    """Compare two logs of one program.

    Only the sum of all calls decides whether they became slower, not each label: a label of few calls scatters.

    Args:
        before: The calls of the first log.
        after: Those of the second.
        until_ns: Where that is a live log, the time now, ns on its calls' clock.

    Returns:
        The changes. `keep` is False where either log is empty, and where they made different numbers of calls: less
        work done sooner is no better structure.
    """
    calls = (CountedCalls.of(before), CountedCalls.of(after, until_ns))
    both = [summary_of(one) for one in calls]
    walls = Change(both[0].wall_ns / MS, both[1].wall_ns / MS)
    totals = Change(*(float(one.by_label.column("in_flight_ms").sum()) for one in both))
    logical = Change(*map(_n_logical, calls))
    failures = Change(*(one.n_errors for one in both))
    keep, reason = _judge(walls, totals, logical, failures)
    labels = _labels(both[0].by_label, both[1].by_label)
    if keep and not any(change.n.before and change.n.after for change in labels):
        reason += "; no label is in both logs, as if they were of two programs"
    return Comparison(
        wall_ms=walls,
        peak=Change(*(one.peak for one in both)),
        mean_in_flight=Change(*(one.mean_in_flight for one in both)),
        calls=Change(*(one.n for one in both)),
        total_ms=totals,
        failed=failures,
        outcomes=_outcomes(both[0].outcomes, both[1].outcomes),
        labels=labels,
        keep=keep,
        reason=reason,
    )


def _n_logical(calls: CountedCalls) -> int:
    """Logical calls but those of pollers: retries, or questions whether something is done, are no other work."""
    return sum(counts.n_logical for counts in counts_of([unit for unit in units(calls) if not unit.is_poller]))


def _judge(walls: Change, totals: Change, logical: Change, failures: Change) -> tuple[bool, str]:
    """Whether to keep a change, and why."""
    if not walls.before or not walls.after:
        return False, "nothing to compare: a log holds no call that took any time"
    if logical.before != logical.after:
        return False, f"not comparable: {logical.before:.0f} calls before, {logical.after:.0f} after"
    if failures.difference > 0:
        return False, f"{failures.after:.0f} calls failed, {failures.before:.0f} before"
    fell, rose = -(walls.share or 0.0), totals.share or 0.0
    if fell < WALL_TOLERANCE:
        return False, f"the wall did not fall by {WALL_TOLERANCE:.0%} or more"
    if rose > TOTAL_TOLERANCE:
        return False, f"the wall fell by {fell:.0%}, but the calls took {rose:.0%} longer in sum"
    return True, f"the wall fell by {fell:.0%}, and the calls took no longer in sum"


def _outcomes(before: tuple[Tally, ...], after: tuple[Tally, ...]) -> tuple[tuple[str, Change], ...]:
    counts = Counter(dict(before)), Counter(dict(after))
    names = sorted(counts[0].keys() | counts[1].keys(), key=lambda name: (-counts[0][name] - counts[1][name], name))
    return tuple((name, Change(counts[0][name], counts[1][name])) for name in names)


def _labels(before: Records[Group], after: Records[Group]) -> Records[LabelChange]:
    labels, place = number([*before.column("label"), *after.column("label")])
    sides: list[tuple[NDArray[Any], ...]] = []
    for groups, mine in ((before, place[: len(before)]), (after, place[len(before) :])):
        n, total_ms, mean_ms = np.zeros(len(labels), np.int64), np.zeros(len(labels)), np.full(len(labels), np.nan)
        n[mine], total_ms[mine], total = groups.column("n"), groups.column("in_flight_ms"), groups.column("total")
        mean_ms[mine] = np.where(total.column("n") > 0, total.column("mean_ms"), np.nan)
        sides.append((n, total_ms, mean_ms))
    changes = [dict(zip(("before", "after"), both, strict=True)) for both in zip(*sides, strict=True)]
    columns = {
        "label": np.fromiter(labels, object, len(labels)),
        "n": Records(Change, changes[0]),
        "total_ms": Records(Change, changes[1]),
        "mean_ms": Records(_known_change, changes[2]),
    }
    return Records(LabelChange, columns)


def _known_change(before: float, after: float) -> Change | None:
    return None if math.isnan(before + after) else Change(before, after)
