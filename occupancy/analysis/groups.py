"""The calls that count, summed up by label, by call site and by run."""

import dataclasses
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from occupancy.analysis.call_sites import telling_frames
from occupancy.analysis.columns import MISSING, Columns
from occupancy.analysis.distribution import MS, Durations, Spread, combined, elapsed, first_places, number
from occupancy.analysis.records import Records
from occupancy.analysis.steps import Int64, Steps, closed_end, counted, is_open, steps, wire_start
from occupancy.call import Frame

LATEST = np.iinfo(np.int64).max
CALL_SITES = 3
"""Call sites that a group names."""


class CallSite(NamedTuple):
    """How often calls came from one place in the program."""

    frame: Frame
    n: int


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Calls that share a label, or a label and a call site."""

    label: str | None
    n: int
    n_open: int
    first_start_ns: int
    in_flight_ms: float
    """Sum of the durations, open calls up to where they were last known to run."""
    total: Spread
    """From start to end, of the calls that ended."""
    first_byte: Spread
    """From start to the first byte of the body, of the calls that had one."""
    call_sites: tuple[CallSite, ...]
    """The most frequent first, at most `CALL_SITES`; calls without a stack have none."""


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """One agent run: is it serial in itself?"""

    run: str | None
    n: int
    first_start_ns: int
    wall_ns: int
    """From the first start to the last end of calls that last longer than 0."""
    peak: int
    mean_in_flight: float
    """Sum of durations / wall; 0.0 without a wall."""


@dataclasses.dataclass(frozen=True, eq=False)
class CountedCalls:
    """The calls that count, with what all that is made of them shares; each part is made once."""

    columns: Columns
    start_ns: Int64
    end_ns: Int64
    """With an end for open calls."""
    is_open: NDArray[np.bool_]
    frames: list[Frame | None]
    """The places in the program that calls came from, as `telling_frames` names them."""
    site: Int64
    """For each call its place in `frames`."""
    n_other: int = 0
    """Calls that do not count."""
    until_ns: int | None = None
    """Of a live log the time until which open calls are in flight."""
    _numbered: dict[str, tuple[list[Any], Int64]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, columns: Columns, until_ns: int | None = None) -> "CountedCalls":
        """Leave kind `other` out and give open calls an end, as `closed_end` says."""
        mask = counted(columns)
        # Most logs have nothing to leave out, and a copy of a million calls takes longer than what is made of it.
        kept = columns if mask.all() else {name: column[mask] for name, column in columns.items()}
        stacks, stack_of_call = number(kept["call_stack"].tolist())
        frame_of = telling_frames(stacks)
        frames, frame_of_stack = number([frame_of[stack] for stack in stacks])
        return cls(
            columns=kept,
            start_ns=kept["start_ns"],
            end_ns=closed_end(columns, until_ns)[mask],
            is_open=is_open(kept),
            frames=frames,
            site=frame_of_stack[stack_of_call],
            n_other=int(mask.size - np.count_nonzero(mask)),
            until_ns=until_ns,
        )

    @property
    def n(self) -> int:
        """How many there are."""
        return int(self.start_ns.size)

    @cached_property
    def in_flight(self) -> Steps:
        """Calls in flight over time."""
        return steps(self.start_ns, self.end_ns)

    @cached_property
    def on_wire(self) -> Steps:
        """Calls on the wire over time."""
        return steps(wire_start(self.columns), self.end_ns)

    @cached_property
    def total(self) -> Durations:
        """From start to end, of those that ended, and not before they started."""
        return Durations(elapsed(self.start_ns, self.columns["end_ns"]))

    @cached_property
    def first_byte_wait(self) -> Durations:
        """From start to the first byte of the body, of those that had one."""
        return Durations(elapsed(self.start_ns, self.columns["first_byte_ns"]))

    def numbered(self, name: str) -> tuple[list[Any], Int64]:
        """Number the values of a column in the order in which they first come, as `number` does."""
        if name not in self._numbered:
            self._numbered[name] = number(self.columns[name].tolist())
        return self._numbered[name]


def by_label(calls: CountedCalls) -> Records[Group]:
    """Sum calls up by label, in the order of their first start."""
    labels, label = calls.numbered("label")
    groups = _groups(calls, label, len(labels))
    return groups.take(np.argsort(groups.column("first_start_ns"), kind="stable"))


def by_site(calls: CountedCalls) -> Records[Group]:
    """Sum calls up by label and call site, the longest time in flight first."""
    labels, label = calls.numbered("label")
    pair = combined([(label, len(labels)), (calls.site, len(calls.frames))])
    groups = _groups(calls, pair, int(pair.max(initial=-1)) + 1)
    return groups.take(np.lexsort((groups.column("first_start_ns"), -groups.column("in_flight_ms"))))


def _groups(calls: CountedCalls, group: Int64, n_groups: int) -> Records[Group]:
    """Sum up the calls of each group: 0, 1, ..., all of which occur."""
    in_flight_ns = np.maximum(elapsed(calls.start_ns, calls.end_ns), 0)
    columns = {
        "label": calls.columns["label"][first_places(group, n_groups)],
        "n": np.bincount(group, minlength=n_groups),
        "n_open": np.bincount(group[calls.is_open], minlength=n_groups),
        "first_start_ns": _fold(np.minimum, group, calls.start_ns, np.full(n_groups, LATEST)),
        "in_flight_ms": _fold(np.add, group, in_flight_ns, np.zeros(n_groups, np.int64)) / MS,
        "total": calls.total.spreads(group, n_groups),
        "first_byte": calls.first_byte_wait.spreads(group, n_groups),
        "call_sites": _most_frequent(calls, group, n_groups),
    }
    return Records(Group, columns)


def _most_frequent(calls: CountedCalls, group: Int64, n_groups: int) -> Records[tuple[CallSite, ...]]:
    """The call sites of each group, the most frequent first."""
    n_frames = max(len(calls.frames), 1)
    known = np.array([frame is not None for frame in calls.frames], dtype=np.bool_)[calls.site]
    pairs, counts = np.unique((group * n_frames + calls.site)[known], return_counts=True)
    order = np.lexsort((pairs, -counts, pairs // n_frames))
    frame, counts = pairs[order] % n_frames, counts[order]
    stop = np.cumsum(np.bincount(pairs // n_frames, minlength=n_groups))
    first = np.concatenate((np.zeros(1, np.int64), stop[:-1]))

    def sites(first: int, stop: int) -> tuple[CallSite, ...]:
        named = [calls.frames[place] for place in frame[first:stop].tolist()]
        return tuple(
            CallSite(one, n) for one, n in zip(named, counts[first:stop].tolist(), strict=True) if one is not None
        )

    return Records(sites, {"first": first, "stop": np.minimum(stop, first + CALL_SITES)})


def by_run(calls: CountedCalls) -> Records[Run]:
    """Sum calls up by run, in the order of their first start."""
    runs, run = calls.numbered("run")
    n = len(runs)
    used = (calls.start_ns != MISSING) & (calls.end_ns > calls.start_ns)
    owner, start_ns, end_ns = run[used], calls.start_ns[used], calls.end_ns[used]
    first_ns = _fold(np.minimum, owner, start_ns, np.full(n, LATEST))
    wall_ns = np.maximum(_fold(np.maximum, owner, end_ns, first_ns.copy()) - first_ns, 0)
    area_ns = _fold(np.add, owner, end_ns - start_ns, np.zeros(n, np.int64))
    columns = {
        "run": np.fromiter(runs, object, n),
        "n": np.bincount(run, minlength=n),
        "first_start_ns": _fold(np.minimum, run, calls.start_ns, np.full(n, LATEST)),
        "wall_ns": wall_ns,
        "peak": _peaks(n, owner, start_ns, end_ns),
        "mean_in_flight": area_ns / np.maximum(wall_ns, 1),
    }
    return Records(Run, columns).take(np.argsort(columns["first_start_ns"], kind="stable"))


def _fold(how: np.ufunc, place: Int64, values: Int64, start: Int64) -> Int64:
    how.at(start, place, values)
    return start


def _peaks(n: int, owner: Int64, start_ns: Int64, end_ns: Int64) -> Int64:
    """Give the peak of each of n owners: events by owner, then time, ends first, add up to 0 within each owner."""
    change = np.repeat(np.array([1, -1]), owner.size)
    owners = np.concatenate((owner, owner))
    order = np.lexsort((change, np.concatenate((start_ns, end_ns)), owners))
    return _fold(np.maximum, owners[order], np.cumsum(change[order]), np.zeros(n, np.int64))
