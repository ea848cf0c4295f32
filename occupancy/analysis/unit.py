"""Calls that are judged together, as arrays in the order of their starts."""

import dataclasses
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from occupancy.analysis.columns import MISSING
from occupancy.analysis.distribution import combined
from occupancy.analysis.groups import CountedCalls
from occupancy.analysis.steps import Int64, Steps, steps, wire_start
from occupancy.call import Frame


@dataclasses.dataclass(frozen=True, eq=False)
class Unit:
    """Calls that are judged together, in the order of their starts."""

    name: str | None
    calls: CountedCalls
    place: Int64
    """Their places among all counted calls, shape (n,); all have an end."""
    certain: bool = True
    """Whether they are known to be one run."""
    pool: str | None = None
    """The executor whose threads they come from, where they are of no other run."""
    is_poller: bool = False
    """Whether they are a background poller's."""

    @property
    def n(self) -> int:
        """How many there are."""
        return int(self.place.size)

    @property
    def is_whole(self) -> bool:
        """Whether they are all that count: then what is known of those is known of these."""
        return self.n == self.calls.n

    @cached_property
    def start_ns(self) -> Int64:
        """Starts, ns, ascending."""
        return self.calls.start_ns[self.place]

    @cached_property
    def end_ns(self) -> Int64:
        """Ends, ns."""
        return self.calls.end_ns[self.place]

    @cached_property
    def steps(self) -> Steps:
        """Calls in flight over time."""
        return self.calls.in_flight if self.is_whole else steps(self.start_ns, self.end_ns)

    @cached_property
    def wire_ns(self) -> Int64:
        """When each went on the wire, ns; after its end where it never got there."""
        return wire_start({name: self.column(name) for name in ("start_ns", "client_ns", "gate_ns", "pool_ns")})

    @cached_property
    def wire(self) -> Steps:
        """Calls on the wire over time."""
        return self.calls.on_wire if self.is_whole else steps(self.wire_ns, self.end_ns)

    @cached_property
    def most_on_wire(self) -> Int64:
        """For each call the most of these calls that are on the wire at once while it is there."""
        levels = np.concatenate(([0], self.wire.in_flight, [0]))
        first = np.searchsorted(self.wire.t_ns, self.wire_ns, side="right")
        stop = np.maximum(np.searchsorted(self.wire.t_ns, self.end_ns, side="left") + 1, first + 1)
        highest: Int64 = np.maximum.reduceat(levels, np.column_stack((first, stop)).ravel())[::2]
        return highest

    @cached_property
    def flow(self) -> Int64:
        """For each call the number of its thread and task, which make one call at a time."""
        return self._numbered("pid", "thread", "async_task")

    @cached_property
    def target(self) -> Int64:
        """For each call the number of its target: the calls to one are alike."""
        return self._numbered("host", "path", "model")

    @cached_property
    def logical(self) -> Int64:
        """For each call the number of its logical call, in the order of first starts; its own where none is known."""
        ids = self.column("logical_id")
        distinct, known = np.unique(np.where(ids > 0, ids, -1 - self.place), return_inverse=True)
        pids, pid = np.unique(self.column("pid"), return_inverse=True)
        return combined([(pid, pids.size), (known, distinct.size)])

    @property
    def n_logical(self) -> int:
        """Logical calls: attempts of one taken together."""
        return int(self.logical.max(initial=-1)) + 1

    @cached_property
    def logical_of_flows(self) -> Int64:
        """How many logical calls each flow makes: one that retries one call makes one."""
        return np.bincount(np.unique(self.flow * max(self.n, 1) + self.logical) // max(self.n, 1))

    @cached_property
    def frames(self) -> list[Frame | None]:
        """For each call its place in the program."""
        return [self.calls.frames[site] for site in self.calls.site[self.place].tolist()]

    def _numbered(self, *names: str) -> Int64:
        """For each call the number of what some columns together hold for it, in the order of their firsts."""
        columns = (self.calls.numbered(name) for name in names)
        return combined([(place[self.place], len(values)) for values, place in columns])

    def first(self, name: str) -> Any:
        """What a column holds for the first of these calls."""
        return self.calls.columns[name][self.place[0]]

    def column(self, name: str) -> NDArray[Any]:
        """A column of `Call`, for these calls."""
        column: NDArray[Any] = self.calls.columns[name][self.place]
        return column

    def of(self, mask: NDArray[np.bool_], **changes: Any) -> "Unit":
        """Some of these calls."""
        return dataclasses.replace(self, place=self.place[mask], **changes)


def split(place: Int64, owner: Int64) -> list[Int64]:
    """Split places by owner, 0, 1, ..., all of which occur, in one sort: there may be as many owners as calls."""
    if not place.size:
        return []
    ordered = place[np.argsort(owner, kind="stable")]
    return [ordered[first:stop] for first, stop in pairwise([0, *np.cumsum(np.bincount(owner)).tolist()])]


def known_spans(calls: CountedCalls) -> Int64:
    """Places of the calls that start and end, in the order of their starts: the others occupy nothing."""
    usable = np.flatnonzero((calls.start_ns != MISSING) & (calls.end_ns >= calls.start_ns))
    return usable[np.lexsort((calls.end_ns[usable], calls.start_ns[usable]))]
