"""The least wall time of a run, and the calls that ran one after another although none is known to need another.

A program is taken as a graph. Its nodes are logical calls (attempts of one taken together) of the lengths they had; an
edge says that a call needs an earlier one. What the program does itself between what a call needs and its start stays
as long as it was. The longest path through the graph (the critical path) is then the least wall time, with every call
as slow as before: a bound, not a promise, since a server or a limit may answer more slowly when more is in flight.

What a call B needs, among the calls that ended before it starts:

1. What its label declares: `label("fetch", after="plan")` needs the calls labelled `plan`, and nothing else; where none
   was seen, the declaration tells nothing, since nobody knows what `plan` itself needs.
2. What is shown of labels: `depends[(label of A, label of B)]`.
3. What its request shows (`Call.needs`), besides the above: a call of B's place in the program needs the calls of A's
   place, each time where it was shown once. A request that shows nothing proves nothing.
4. Otherwise everything, except its neighbours in a stage: a stretch of calls without another kind in between, either
   - tool calls after a model call: a model usually asks for several tools at once, so one does not need another;
   - calls from one line, reached in one way: the turns of a loop.
   Two model calls on different lines are never in one stage: the second usually reads what the first wrote.

Rule 4 makes calls "possibly independent", no more. A tool is a call of kind `tool`, or one whose label begins with
`tool` or `execute_tool`, as OpenTelemetry names the spans of tools.
"""

import dataclasses
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple

from occupancy.analysis.call_sites import Stack
from occupancy.analysis.distribution import MS
from occupancy.analysis.findings import sites_of
from occupancy.call import Frame

Depends = Mapping[tuple[str | None, str | None], bool]
"""For labels (A, B): whether B is shown to need A, or shown not to. A pair that is absent is not known."""
TOGETHER_SHARE = 0.02
"""A last byte that is read as the next request goes out overlaps too, but is nobody's design."""
Ends = tuple[int, int]
"""An end, ns: as it was, and as early as it could be."""


class Basis(StrEnum):
    """Why calls are taken not to need each other."""

    DECLARED = "declared"
    SHOWN = "shown"
    NO_SIGN = "possibly independent, no request shows a need"
    POSSIBLE = "possibly independent"


class Step(NamedTuple):
    """What the calls of one place in the program have in common."""

    label: str | None
    stack: Stack


@dataclasses.dataclass(frozen=True, slots=True)
class SerialGroup:
    """Calls that ran one after another, none of which is known to need another."""

    labels: tuple[str | None, ...]
    """Distinct, in the order of their starts."""
    call_sites: tuple[Frame, ...]
    """Distinct, in the same order, at most `SITES`."""
    n: int
    basis: Basis
    """The weakest of those it rests on."""
    serial_ms: float
    """Time with at least one of them in flight, as they ran."""
    overlapped_ms: float
    """The longest of them: the least time all would take at once."""
    at_once: int = 1
    """Most of them that were in flight at once; 1 where no two were for more than `TOGETHER_SHARE` of their time."""

    @property
    def gain_ms(self) -> float:
        """What overlapping these alone would gain at most."""
        return self.serial_ms - self.overlapped_ms


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """One logical call."""

    start_ns: int
    end_ns: int
    step: Step
    after: frozenset[str]
    flavor: tuple[object, ...] | None
    """Nodes of one flavor may share a stage; None shares with nobody."""
    frame: Frame | None = None
    needs: frozenset[Step] = frozenset()
    """Steps that its own is shown to need."""
    is_looked_at: bool = False
    """Whether its request was looked at for what it shows."""

    @property
    def label(self) -> str | None:
        """What the step is called."""
        return self.step.label

    @property
    def length_ns(self) -> int:
        """Its duration."""
        return self.end_ns - self.start_ns


class _Done:
    """The latest ends of calls by step, and of all."""

    def __init__(self) -> None:
        self.ends: dict[Step, Ends] = {}
        self.latest: Ends | None = None

    def add(self, step: Step, ends: Ends) -> None:
        self.ends[step] = _later(self.ends.get(step), ends)
        self.latest = _later(self.latest, ends)

    def absorb(self, other: "_Done") -> None:
        for step, ends in other.ends.items():
            self.add(step, ends)
        other.ends, other.latest = {}, None


def _later(one: Ends | None, other: Ends | None) -> Ends:
    if one is None or other is None:
        return other or one or (0, 0)
    return max(one[0], other[0]), max(one[1], other[1])


class _Cover:
    """The union of the intervals of calls that have ended, which come in the order of their ends."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._before: list[int] = []

    def add(self, start_ns: int, end_ns: int) -> None:
        while self._starts and self._ends[-1] >= start_ns:
            start_ns = min(start_ns, self._starts.pop())
            self._ends.pop()
            self._before.pop()
        self._before.append(self._before[-1] + self._ends[-1] - self._starts[-1] if self._starts else 0)
        self._starts.append(start_ns)
        self._ends.append(end_ns)

    def since(self, t_ns: int) -> int:
        """How much of the time from `t_ns` on is covered."""
        if not self._starts:
            return 0
        all_ns = self._before[-1] + self._ends[-1] - self._starts[-1]
        place = bisect_right(self._starts, t_ns) - 1
        if place < 0:
            return all_ns
        return all_ns - self._before[place] - min(t_ns, self._ends[place]) + self._starts[place]


def critical_path(nodes: list[Node], depends: Depends | None = None) -> tuple[int, tuple[SerialGroup, ...]]:
    """Find the least wall time, and the groups that ran one after another without need.

    Each call starts as early as what it needs allows, later by what the program did itself in between: the time from
    the last end it needs to its start that no call which ended before covers. So no call starts later than it did.

    Args:
        nodes: Logical calls in the order of their starts.
        depends: What is shown about labels.

    Returns:
        `(ns from the first start to the last end, groups)`; `(0, ())` for no nodes.
    """
    if not nodes:
        return 0, ()
    first_ns, done, in_stage, cover = nodes[0].start_ns, _Done(), _Done(), _Cover()
    early_ends = [0] * len(nodes)
    stages = stages_of(nodes, depends)
    stage = -1
    for place, starts in _events(nodes):
        node = nodes[place]
        if not starts:
            cover.add(node.start_ns, node.end_ns)
            (in_stage if stages[place][0] == stage else done).add(node.step, (node.end_ns, early_ends[place]))
            continue
        if stages[place][0] != stage:
            done.absorb(in_stage)
            stage = stages[place][0]
        needed_ns, early_ns = _needed(node, done, in_stage, depends) or (first_ns, first_ns)
        own_ns = node.start_ns - needed_ns - cover.since(needed_ns)
        early_ends[place] = early_ns + own_ns + node.length_ns
    return max(early_ends) - first_ns, _groups(nodes, stages)


def _events(nodes: list[Node]) -> Iterator[tuple[int, bool]]:
    """Starts and ends as `(place, whether it starts)` in order of time, ends first, but of no call before its start."""
    events = [(node.start_ns, True, place, 0) for place, node in enumerate(nodes)]
    events += [(node.end_ns, node.end_ns == node.start_ns, place, 1) for place, node in enumerate(nodes)]
    for _, _, place, ends in sorted(events):
        yield place, not ends


def _needed(node: Node, done: _Done, in_stage: _Done, depends: Depends | None) -> Ends | None:
    """The latest end among what a call needs; None where it needs nothing."""
    if not depends and not node.after:
        return done.latest
    ended = [(step, ends, one is done) for one in (done, in_stage) for step, ends in one.ends.items()]
    shown = [ends for step, ends, _ in ended if step in node.needs]
    declared = [ends for step, ends, _ in ended if step.label in node.after]
    if not declared:
        if not depends:
            return done.latest
        declared = [ends for step, ends, by_default in ended if depends.get((step.label, node.label), by_default)]
    latest: Ends | None = None
    for ends in declared + shown:
        latest = _later(latest, ends)
    return latest


def stages_of(nodes: list[Node], depends: Depends | None = None) -> list[tuple[int, Basis | None]]:
    """Number the stages: a call that needs none of the stage before it, by any rule, joins it.

    Returns:
        For each call its stage, and why it needs none of those before it there; None for the first of a stage.
    """
    stages: list[tuple[int, Basis | None]] = []
    members, seen = _Members(set(), set(), set()), set[str | None]()
    for node in nodes:
        basis = _basis(node, members, seen, depends) if stages else None
        if basis is None:
            members = _Members(set(), set(), set())
        stages.append((stages[-1][0] + (basis is None) if stages else 0, basis))
        members.labels.add(node.label)
        members.steps.add(node.step)
        members.flavors.add(node.flavor)
        seen.add(node.label)
    return stages


class _Members(NamedTuple):
    """What the calls of a stage are."""

    labels: set[str | None]
    steps: set[Step]
    flavors: set[object]


def _basis(node: Node, members: _Members, seen: set[str | None], depends: Depends | None) -> Basis | None:
    """Why a call needs none of a stage; None where it may. A step never seen tells nothing of what it needs."""
    if node.needs & members.steps:
        return None
    if node.after & seen:
        return None if node.after & members.labels else Basis.DECLARED
    shown = {(depends or {}).get((label, node.label)) for label in members.labels}
    if True in shown:
        return None
    if shown == {False}:
        return Basis.SHOWN
    if node.flavor is None or members.flavors != {node.flavor}:
        return None
    return Basis.NO_SIGN if node.is_looked_at else Basis.POSSIBLE


def _groups(nodes: list[Node], stages: list[tuple[int, Basis | None]]) -> tuple[SerialGroup, ...]:
    """Join what ran one after another within each stage, by labels and call sites over all stages."""
    by_stage: dict[int, list[tuple[Node, Basis | None]]] = defaultdict(list)
    for node, (stage, basis) in zip(nodes, stages, strict=True):
        by_stage[stage].append((node, basis))
    alike: dict[tuple[object, ...], SerialGroup] = {}
    for members in by_stage.values():
        group = _serial_group(members)
        if group is not None:
            key = (group.labels, group.call_sites)
            alike[key] = group if key not in alike else _sum(alike[key], group)
    return tuple(sorted(alike.values(), key=lambda group: -group.gain_ms))


def _serial_group(stage: list[tuple[Node, Basis | None]]) -> SerialGroup | None:
    """What a stage could gain; None where all its calls were in flight together."""
    members = [node for node, _ in stage]
    serial_ns, until_ns = 0, members[0].start_ns
    for node in members:
        serial_ns += max(node.end_ns - max(node.start_ns, until_ns), 0)
        until_ns = max(until_ns, node.end_ns)
    longest_ns = max(node.length_ns for node in members)
    if members[-1].start_ns < min(node.end_ns for node in members) or serial_ns <= longest_ns:
        return None
    return SerialGroup(
        labels=tuple(dict.fromkeys(node.label for node in members)),
        call_sites=sites_of(node.frame for node in members),
        n=len(members),
        basis=max((basis for _, basis in stage if basis is not None), key=list(Basis).index),
        serial_ms=serial_ns / MS,
        overlapped_ms=longest_ns / MS,
        at_once=_at_once(members, serial_ns),
    )


def _at_once(members: list[Node], serial_ns: int) -> int:
    if sum(node.length_ns for node in members) <= (1 + TOGETHER_SHARE) * serial_ns:
        return 1
    changes = sorted([(node.end_ns, -1) for node in members] + [(node.start_ns, 1) for node in members])
    return max(accumulate(change for _, change in changes))


def _sum(one: SerialGroup, other: SerialGroup) -> SerialGroup:
    return dataclasses.replace(
        one,
        n=one.n + other.n,
        basis=max(one.basis, other.basis, key=list(Basis).index),
        serial_ms=one.serial_ms + other.serial_ms,
        overlapped_ms=one.overlapped_ms + other.overlapped_ms,
        at_once=max(one.at_once, other.at_once),
    )
