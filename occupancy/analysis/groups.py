"""The calls that count, summed up by label, by call site and by run."""

import dataclasses
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from occupancy.analysis.call_sites import telling_frames
from occupancy.analysis.columns import MISSING, Columns
from occupancy.analysis.distribution import MS, Spread, elapsed, number, spreads
from occupancy.analysis.steps import Int64, closed_end, counted, is_open
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


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class CountedCalls:
    """The calls that count, with what the parts of a summary need of them."""

    columns: Columns
    start_ns: Int64
    end_ns: Int64
    """With an end for open calls."""
    is_open: NDArray[np.bool_]
    frames: list[Frame | None]
    """The places in the program that calls came from, as `telling_frames` names them."""
    site: Int64
    """For each call its place in `frames`."""

    @classmethod
    def of(cls, columns: Columns, until_ns: int | None = None) -> "CountedCalls":
        """Leave kind `other` out and give open calls an end, as `closed_end` says."""
        mask = counted(columns)
        # Most logs have nothing to leave out, and a copy of a million calls takes longer than what is made of it.
        kept = columns if mask.all() else {name: column[mask] for name, column in columns.items()}
        stacks, stack_of_call = number(kept["call_stack"])
        frame_of = telling_frames(stacks)
        frames, frame_of_stack = number([frame_of[stack] for stack in stacks])
        end_ns = closed_end(columns, until_ns)[mask]
        return cls(kept, kept["start_ns"], end_ns, is_open(kept), frames, frame_of_stack[stack_of_call])

    @property
    def n(self) -> int:
        """How many there are."""
        return int(self.start_ns.size)

    @property
    def total_ns(self) -> Int64:
        """From start to end, ns; `MISSING` where a call is open or ends before it starts."""
        return elapsed(self.start_ns, self.columns["end_ns"])

    @property
    def first_byte_wait_ns(self) -> Int64:
        """From start to the first byte of the body, ns; `MISSING` where there was none."""
        return elapsed(self.start_ns, self.columns["first_byte_ns"])


def by_label(calls: CountedCalls) -> tuple[Group, ...]:
    """Sum calls up by label, in the order of their first start."""
    _, label = number(calls.columns["label"])
    return tuple(sorted(_groups(calls, label), key=lambda group: group.first_start_ns))


def by_site(calls: CountedCalls) -> tuple[Group, ...]:
    """Sum calls up by label and call site, the longest time in flight first."""
    _, label = number(calls.columns["label"])
    _, pair = np.unique(label * len(calls.frames) + calls.site, return_inverse=True)
    return tuple(sorted(_groups(calls, pair), key=lambda group: (-group.in_flight_ms, group.first_start_ns)))


def _groups(calls: CountedCalls, group: Int64) -> list[Group]:
    """Sum up the calls of each group: 0, 1, ..., all of which occur."""
    _, first_call = np.unique(group, return_index=True)
    n_groups = int(first_call.size)
    in_flight_ns = np.maximum(elapsed(calls.start_ns, calls.end_ns), 0)
    columns = (
        calls.columns["label"][first_call].tolist(),
        np.bincount(group, minlength=n_groups).tolist(),
        np.bincount(group[calls.is_open], minlength=n_groups).tolist(),
        _fold(np.minimum, group, calls.start_ns, np.full(n_groups, LATEST)).tolist(),
        (_fold(np.add, group, in_flight_ns, np.zeros(n_groups, np.int64)) / MS).tolist(),
        spreads(calls.total_ns, group, n_groups),
        spreads(calls.first_byte_wait_ns, group, n_groups),
        _most_frequent(calls, group, n_groups),
    )
    return [Group(*row) for row in zip(*columns, strict=True)]


def _most_frequent(calls: CountedCalls, group: Int64, n_groups: int) -> list[tuple[CallSite, ...]]:
    n_frames = max(len(calls.frames), 1)
    pairs, counts = np.unique(group * n_frames + calls.site, return_counts=True)
    sites: list[list[CallSite]] = [[] for _ in range(n_groups)]
    for place in np.lexsort((pairs, -counts)).tolist():
        owner, frame = int(pairs[place]) // n_frames, calls.frames[int(pairs[place]) % n_frames]
        if frame is not None and len(sites[owner]) < CALL_SITES:
            sites[owner].append(CallSite(frame, int(counts[place])))
    return [tuple(found) for found in sites]


def by_run(calls: CountedCalls) -> tuple[Run, ...]:
    """Sum calls up by run, in the order of their first start."""
    runs, run = number(calls.columns["run"])
    n = len(runs)
    used = (calls.start_ns != MISSING) & (calls.end_ns > calls.start_ns)
    owner, start_ns, end_ns = run[used], calls.start_ns[used], calls.end_ns[used]
    first_ns = _fold(np.minimum, owner, start_ns, np.full(n, LATEST))
    wall_ns = np.maximum(_fold(np.maximum, owner, end_ns, first_ns.copy()) - first_ns, 0)
    area_ns = _fold(np.add, owner, end_ns - start_ns, np.zeros(n, np.int64))
    columns = (
        runs,
        np.bincount(run, minlength=n).tolist(),
        _fold(np.minimum, run, calls.start_ns, np.full(n, LATEST)).tolist(),
        wall_ns.tolist(),
        _peaks(n, owner, start_ns, end_ns).tolist(),
        (area_ns / np.maximum(wall_ns, 1)).tolist(),
    )
    return tuple(sorted((Run(*row) for row in zip(*columns, strict=True)), key=lambda row: row.first_start_ns))


def _fold(how: np.ufunc, place: Int64, values: Int64, start: Int64) -> Int64:
    how.at(start, place, values)
    return start


def _peaks(n: int, owner: Int64, start_ns: Int64, end_ns: Int64) -> Int64:
    """Give the peak of each of n owners: events by owner, then time, ends first, add up to 0 within each owner."""
    change = np.repeat(np.array([1, -1]), owner.size)
    owners = np.concatenate((owner, owner))
    order = np.lexsort((change, np.concatenate((start_ns, end_ns)), owners))
    return _fold(np.maximum, owners[order], np.cumsum(change[order]), np.zeros(n, np.int64))
