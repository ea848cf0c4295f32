"""What overlap would gain, run by run: see `critical_path` for the rules."""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from occupancy.analysis.columns import MISSING, Columns
from occupancy.analysis.critical_path import Depends, Node, SerialGroup, Step, critical_path
from occupancy.analysis.distribution import MS
from occupancy.analysis.groups import CountedCalls
from occupancy.analysis.steps import Int64
from occupancy.analysis.unit import Unit
from occupancy.analysis.units import units
from occupancy.analysis.workers import units_at_once
from occupancy.call import Kind

Needs = Mapping[Step, frozenset[Step]]
"""For each step those that it is shown to need."""

MOST_CALLS = 50_000
"""Logical calls of one run that are looked at: more take seconds, and are no agent's run."""
TOOL_LABELS = ("tool", "execute_tool")


@dataclasses.dataclass(frozen=True, slots=True)
class RunOverlap:
    """What overlap would gain in one run, or in one of its branches where several run at once."""

    run: str | None
    n: int
    """Logical calls."""
    wall_ms: float
    bound_ms: float
    """The least wall time, by the critical path; never more than `wall_ms`."""
    groups: tuple[SerialGroup, ...]
    """The largest gain first."""
    needs: tuple[tuple[Node, Node], ...] = ()
    """Calls that are shown to need an earlier one, each with the latest of those, in the order of their starts."""

    @property
    def gain_ms(self) -> float:
        """Wall time that overlap may gain."""
        return self.wall_ms - self.bound_ms


@dataclasses.dataclass(frozen=True, slots=True)
class Overlap:
    """What overlap would gain, run by run."""

    runs: tuple[RunOverlap, ...]
    """The largest gain first."""
    n_skipped: int
    """Runs of which nothing is said: not known to be one, a poller, or of more than `MOST_CALLS` calls."""

    @property
    def best(self) -> RunOverlap | None:
        """The run that would gain most; None where none would gain anything."""
        return self.runs[0] if self.runs and self.runs[0].gain_ms > 0 else None


def find_overlap(columns: Columns, until_ns: int | None = None, depends: Depends | None = None) -> Overlap:
    """Find what overlap would gain in each run.

    Args:
        columns: The calls of a log.
        until_ns: For a live log the time now, ns on the calls' clock.
        depends: What is shown about labels, besides what they declare, and what requests show (`Call.needs`).

    Returns:
        Runs of at least two logical calls; empty without any.
    """
    calls = CountedCalls.of(columns, until_ns)
    found, needs = units(calls), shown_needs(calls)
    at_once = units_at_once(found)
    fit = [(place, unit) for place, unit in enumerate(found) if is_judged(unit) and unit.n <= MOST_CALLS]
    runs = [run for place, unit in fit for run in overlap_of(unit, depends, needs, loops=place not in at_once)]
    return Overlap(tuple(sorted(runs, key=lambda run: -run.gain_ms)), len(found) - len(fit))


def shown_needs(calls: CountedCalls) -> Needs:
    """Give what requests show (`Call.needs`) by steps; empty where nobody looked."""
    pid, logical_id, needs = (calls.columns[name] for name in ("pid", "logical_id", "needs"))
    shown = np.flatnonzero(needs > 0)
    needed = np.flatnonzero(np.isin(logical_id, needs[shown]))
    keys = zip(pid[needed].tolist(), logical_id[needed].tolist(), strict=True)
    step_of = dict(zip(keys, _steps_of(calls, needed), strict=True))
    found: dict[Step, set[Step]] = defaultdict(set)
    for step, *key in zip(_steps_of(calls, shown), pid[shown].tolist(), needs[shown].tolist(), strict=True):
        earlier = step_of.get((key[0], key[1]))
        if earlier is not None:  # the log may have dropped it
            found[step].add(earlier)
    return {step: frozenset(earlier) for step, earlier in found.items()}


def _steps_of(calls: CountedCalls, place: Int64) -> list[Step]:
    return list(map(Step, calls.columns["label"][place].tolist(), calls.columns["call_stack"][place].tolist()))


def is_judged(unit: Unit) -> bool:
    """Whether it is asked what overlap would gain in a unit: it is known to be one run, and no poller."""
    return unit.certain and not unit.is_poller


def overlap_of(
    unit: Unit, depends: Depends | None = None, needs: Needs | None = None, *, loops: bool = True
) -> list[RunOverlap]:
    """Find what overlap would gain in one unit.

    Branches that run at once (tasks or threads that each make several calls, as gathered agents do) are looked at one
    by one: what they do together is overlapped already.

    Returns:
        One for the unit or for each branch; empty where there are not two logical calls.
    """
    branches = branches_of(unit)
    found = []
    for branch in branches:
        chain = nodes_of(branch, needs or {}, loops=loops and len(branches) == 1)
        if len(chain) > 1:
            bound_ns, groups = critical_path(chain, depends)
            wall_ns = max(node.end_ns for node in chain) - chain[0].start_ns
            found.append(RunOverlap(unit.name, len(chain), wall_ns / MS, bound_ns / MS, groups, _needing(chain)))
    return found


def branches_of(unit: Unit) -> list[Unit]:
    """Split a unit into flows where two that make several calls each are under way at once; else give it whole."""
    if unit.pool is not None:
        return [unit]  # an executor's threads are no flows of the program's
    several = np.flatnonzero(unit.logical_of_flows > 1)
    last_end_ns = -1
    for flow in sorted(several.tolist(), key=lambda flow: int(unit.start_ns[np.argmax(unit.flow == flow)])):
        mine = unit.flow == flow
        if last_end_ns > int(unit.start_ns[mine][0]):
            return [unit.of(unit.flow == flow) for flow in several.tolist()]
        last_end_ns = max(last_end_ns, int(unit.end_ns[mine].max()))
    return [unit]


def _needing(chain: list[Node]) -> tuple[tuple[Node, Node], ...]:
    latest: dict[Step, tuple[int, Node]] = {}
    found = []
    for place, node in enumerate(chain):
        earlier = [latest[step] for step in node.needs if step in latest]
        if earlier:
            found.append((node, max(earlier)[1]))
        latest[node.step] = place, node
    return tuple(found)


def nodes_of(unit: Unit, needs: Needs, *, loops: bool = True) -> list[Node]:
    """Give the logical calls of a unit in the order of their starts.

    Args:
        unit: The calls.
        needs: What is shown of their steps.
        loops: Whether the turns of a loop may be independent. Not in one of several branches or processes: workers that
            share a list of work are loops too, and overlap as much as they are meant to.
    """
    end_ns = np.zeros(unit.n_logical, dtype=np.int64)
    np.maximum.at(end_ns, unit.logical, unit.end_ns)
    first = np.unique(unit.logical, return_index=True)[1]
    labels, after, kinds = (unit.column(name)[first].tolist() for name in ("label", "after", "kind"))
    stacks, frames = unit.column("call_stack")[first].tolist(), [unit.frames[place] for place in first]
    starts_ns, looked_at = unit.start_ns[first].tolist(), (unit.column("needs") != MISSING)[first].tolist()
    nodes, seen_model = [], False
    for place, label in enumerate(labels):
        is_tool = kinds[place] == Kind.TOOL or (label or "").startswith(TOOL_LABELS)
        seen_model = seen_model or not is_tool
        flavor: tuple[object, ...] | None = (stacks[place],) if loops and stacks[place] else None
        if is_tool and seen_model:
            flavor = ("tool",)
        declared = frozenset((after[place] or "").split("\n")) - {""}
        step = Step(label, stacks[place])
        nodes.append(
            Node(
                starts_ns[place], int(end_ns[place]), step, declared, flavor, frames[place],
                needs.get(step, frozenset()), looked_at[place],
            )
        )  # fmt: skip
    return nodes
