"""Causes that lie in the order of a run's calls: one after another, with pauses, or in step."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from occupancy.analysis.critical_path import TOGETHER_SHARE, Basis, Node, SerialGroup
from occupancy.analysis.distribution import MS
from occupancy.analysis.findings import Cause, Finding, place_of, sites_of
from occupancy.analysis.overlap import RunOverlap
from occupancy.analysis.steps import Int64
from occupancy.analysis.unit import Unit
from occupancy.analysis.unit_counts import UnitCounts
from occupancy.call import Frame

SERIAL_SHARE = TOGETHER_SHARE
"""Share of the busy time with two or more in flight up to which a run is serial."""
GAIN_SHARE = 0.1
"""Share of the wall that overlap must be able to gain before it is worth a change, and stands out of the noise."""
IDLE_SHARE = 0.5
"""Share of the wall with nothing in flight from which on calls are not what the time goes into."""
WAIT_SHARE = 0.2
"""Share of the steps' time that the first branch must wait for the last before it is more than scatter."""
SHOWN = 2
"""Needs that a sentence names."""
HANDOFF_SHARE = 0.25
"""A step that starts because another has ended starts within this share of the wait."""


def shape_of(unit: Unit, counts: UnitCounts, overlap: list[RunOverlap]) -> Cause:
    """Tell how far the calls of a run overlap.

    A run is partly overlapped when some calls are known that ran one after another without need, and would gain a good
    part of the wall; without such calls it is overlapped as far as is known.
    """
    if unit.is_poller:
        return Cause.POLLER
    if not unit.certain or _serve_in_turn(unit):
        return Cause.UNKNOWN
    if counts.n_logical < 2:
        return Cause.ONE_CALL
    if counts.peak <= 1 or counts.overlapped_share <= SERIAL_SHARE:
        return Cause.SERIAL
    return Cause.PARTLY_OVERLAPPED if any(_is_worth_it(part) for part in overlap) else Cause.OVERLAPPED


def _serve_in_turn(unit: Unit) -> bool:
    """Whether several threads of an executor made calls in turn with no work waiting, as those of a server do."""
    in_turn = unit.pool is not None and unit.steps.peak <= 1 and len(set(unit.column("thread").tolist())) > 1
    return in_turn and not bool((unit.column("siblings") > 2).any())  # one that has just ended may still count


def _is_worth_it(part: RunOverlap) -> bool:
    return bool(part.groups) and part.gain_ms >= GAIN_SHARE * part.wall_ms


def find_serial(unit: Unit, shape: Cause, overlap: list[RunOverlap], *, by_need: bool = True) -> list[Finding]:
    """Calls that ran one after another, with what overlap would gain; none unless the shape says so.

    Args:
        unit: The run.
        shape: What `shape_of` says of it.
        overlap: What overlap would gain in it.
        by_need: Whether to tell of calls that may need one another as well: not of workers that overlap.
    """
    if shape not in (Cause.SERIAL, Cause.PARTLY_OVERLAPPED):
        return []
    worth = [part for part in overlap if _is_worth_it(part)]
    if not worth and not by_need:
        return []
    if not worth:
        return [_serial_by_need(unit, [need for part in overlap for need in part.needs])]
    return [_serial_without_need(shape, part) for part in worth]


def _serial_by_need(unit: Unit, needs: list[tuple[Node, Node]]) -> Finding:
    told = list(dict.fromkeys(_need(later, earlier) for later, earlier in needs))
    is_chain = len(needs) == unit.n_logical - 1 and _is_chain(needs)
    if is_chain and len(told) > SHOWN:
        told = ["each needs the one before"]
    others = "each" if not needs else "each other" if len(needs) < unit.n_logical - 1 else ""
    reasons = [
        f"{' and '.join(told[:SHOWN])}, as requests show" if told else "",
        f"{others} may need the one before" if others else "",
    ]
    return Finding(
        Cause.SERIAL,
        f"{unit.n_logical} calls ran one after another{_at(sites_of(unit.frames))}; "
        + "; ".join(filter(None, reasons)),
        {
            "calls": unit.n_logical,
            "wall_ms": unit.steps.wall_ns / MS,
            "peak": unit.steps.peak,
            "gain_ms": 0.0,
            "shown_needs": len(needs),
        },
        sites_of(unit.frames),
        "nothing here may overlap: what is left is fewer calls, shorter ones, or several such runs at once"
        if is_chain
        else "where a step does not need the one before, start both at once, or say so with label(..., after=...)",
        (unit.name,),
        0.0,
    )


def _is_chain(needs: list[tuple[Node, Node]]) -> bool:
    """Whether the needs are those of each call of the one before it, of all but the first."""
    return all(needs[place][1] is needs[place - 1][0] for place in range(1, len(needs)))


def _need(later: Node, earlier: Node) -> str:
    """Name two steps by their labels, or where those are the same, by their lines."""
    if later.step == earlier.step:
        return f"{later.label or 'a call'} needs the one before"
    names = [node.label for node in (later, earlier)]
    if None in names or names[0] == names[1]:
        names = ["a call" if node.frame is None else place_of(node.frame) for node in (later, earlier)]
    return f"{names[0]} needs {names[1]}"


def _serial_without_need(shape: Cause, part: RunOverlap) -> Finding:
    group = part.groups[0]
    at, how = _at(group.call_sites), "one after another" if group.at_once == 1 else f"{group.at_once} at once at most"
    return Finding(
        shape,
        f"{_named(group.labels, group.n)} ran {how}{at}; overlapped, about {part.bound_ms / 1e3:.2f} s "
        f"instead of {part.wall_ms / 1e3:.2f} s{_doubt(group)}",
        {
            "calls": group.n,
            "wall_ms": part.wall_ms,
            "bound_ms": part.bound_ms,
            "gain_ms": part.gain_ms,
            "serial_ms": group.serial_ms,
            "overlapped_ms": group.overlapped_ms,
        },
        group.call_sites,
        "start them at once (asyncio.gather, a task group, an executor) and wait for all"
        + ("; to look for needs first: OCCUPANCY_DEPENDENCE=1" if group.basis is Basis.POSSIBLE else ""),
        (part.run,),
        part.gain_ms,
    )


def _doubt(group: SerialGroup) -> str:
    are_two = len(group.labels) <= 2 and group.n <= 2
    if group.basis is Basis.POSSIBLE:
        return ", if neither needs the other" if are_two else ", if none needs another"
    if group.basis is Basis.NO_SIGN:
        return "; neither request shows a need of the other" if are_two else "; no request shows a need of another"
    return ""


def _at(frames: tuple[Frame, ...]) -> str:
    """Where calls came from, as part of a sentence; empty where that is not known."""
    return " at " + " and ".join(dict.fromkeys(place_of(frame) for frame in frames)) if frames else ""


def _named(labels: tuple[str | None, ...], n: int) -> str:
    names = [label or "unnamed" for label in labels]
    if len(names) == 1:
        return f"{n} calls of {names[0]}"
    if len(names) > 3:
        return f"{n} calls ({', '.join(names[:3])}, ...)"
    return ", ".join(names[:-1]) + f" and {names[-1]}"


def find_idle(unit: Unit) -> list[Finding]:
    """Most of the wall passes with nothing in flight: the program's own time. Needs two calls."""
    drawn = unit.steps
    idle_ns = drawn.time_at_level[0]
    if not drawn.wall_ns or idle_ns < IDLE_SHARE * drawn.wall_ns or not unit.certain:
        return []
    length_ns = np.where(drawn.in_flight[:-1] == 0, np.diff(drawn.t_ns), 0)
    longest = int(np.argmax(length_ns))
    before, after = unit.end_ns == drawn.t_ns[longest], unit.start_ns == drawn.t_ns[longest + 1]
    return [
        Finding(
            Cause.MOSTLY_IDLE,
            f"nothing was in flight for {idle_ns / drawn.wall_ns:.0%} of the time: the program did something else",
            {
                "idle_ms": idle_ns / MS,
                "wall_ms": drawn.wall_ns / MS,
                "longest_ms": int(length_ns[longest]) / MS,
                "calls": unit.n,
            },
            sites_of(unit.frames[int(np.argmax(mask))] for mask in (before, after)),
            "profile what the program does between these calls, or do it while a call is in flight",
            (unit.name,),
            idle_ns / MS,
        )
    ]


def find_barrier(unit: Unit) -> list[Finding]:
    """Steps of several branches at once, each of which begins only when all branches of the one before have ended.

    A step is a stretch with calls in flight; a branch in it is a flow (task or thread), which ends with its last call.
    That one call follows two is a join, as of two tools and the model that reads both; that several follow several is a
    barrier, unless they are declared to need what was slowest.
    """
    bounds = _hills(unit)
    if bounds.size < 3:
        return []
    hill, slow, fast = _branches(unit, bounds, np.flatnonzero(_begins_wide(unit, bounds)[1:]))
    wait_ns = unit.end_ns[slow] - unit.end_ns[fast]
    is_prompt = unit.start_ns[bounds[hill + 1] + 1] - unit.end_ns[slow] <= HANDOFF_SHARE * wait_ns
    label, after = unit.column("label"), unit.column("after")
    waits = [
        step
        for step in np.flatnonzero(is_prompt).tolist()
        if not _is_declared(label[slow[step]], after[bounds[hill[step] + 1] : bounds[hill[step] + 2]])
    ]
    waited_ns = int(wait_ns[waits].sum())
    time_ns = int((unit.end_ns[slow] - unit.start_ns[bounds[hill]])[waits].sum())
    if not waited_ns or waited_ns < WAIT_SHARE * time_ns:
        return []
    return [
        Finding(
            Cause.BARRIER,
            f"branches wait for each other after each step: the fastest waited {waited_ns / MS:.0f} ms in all",
            {"waited_ms": waited_ns / MS, "steps_ms": time_ns / MS, "calls": unit.n, "peak": unit.steps.peak},
            sites_of(
                unit.frames[place] for step in waits for place in (slow[step], _first_to_end(unit, bounds, hill[step]))
            ),
            "let each branch go on to its next step by itself, and join them once at the end",
            (unit.name,),
            waited_ns / MS,
        )
    ]


def _hills(unit: Unit) -> Int64:
    """The first call of each stretch with something in flight, in the order of time, and the end of the last stretch.

    Calls of no length after all others are in none.
    """
    ends_ns = unit.steps.t_ns[unit.steps.in_flight == 0]
    hill = np.searchsorted(ends_ns, unit.start_ns, side="right")
    return np.searchsorted(hill, np.arange(ends_ns.size + 1))


def _begins_wide(unit: Unit, bounds: Int64) -> NDArray[np.bool_]:
    """Whether in each stretch several branches begin while the first call is in flight."""
    first = bounds[:-1]
    second = np.minimum(first + 1, unit.n - 1)
    at_once = (unit.flow[second] != unit.flow[first]) & (unit.start_ns[second] < unit.end_ns[first])
    return np.asarray(at_once & (np.diff(bounds) > 1))


def _branches(unit: Unit, bounds: Int64, hills: Int64) -> tuple[Int64, Int64, Int64]:
    """Give those stretches that have several branches, with the last call of the slowest and of the fastest branch."""
    hill = np.repeat(hills, np.diff(bounds)[hills])
    place = np.flatnonzero(np.isin(np.searchsorted(bounds, np.arange(unit.n), side="right") - 1, hills))
    order = np.lexsort((unit.end_ns[place], unit.flow[place], hill))
    hill, place = hill[order], place[order]
    is_last = np.append((hill[1:] != hill[:-1]) | (np.diff(unit.flow[place]) != 0), True)[: place.size]
    hill, place = hill[is_last], place[is_last]
    order = np.lexsort((place, unit.end_ns[place], hill))
    hill, place = hill[order], place[order]
    first, last = np.searchsorted(hill, hills, side="left"), np.searchsorted(hill, hills, side="right") - 1
    several = last > first
    return hills[several], place[last[several]], place[first[several]]


def _first_to_end(unit: Unit, bounds: Int64, hill: int) -> int:
    """The call of a stretch that ends first."""
    first, stop = bounds[hill : hill + 2]
    return int(first + np.argmin(unit.end_ns[first:stop]))


def _is_declared(slowest: str | None, following: NDArray[Any]) -> bool:
    """Whether each call that follows is declared to need the slowest of the step before."""
    return all(slowest in (after or "").split("\n") for after in following)
