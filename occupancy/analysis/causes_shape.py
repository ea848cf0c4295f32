"""Causes that lie in the order of a run's calls: one after another, with pauses, or in step."""

from itertools import pairwise

import numpy as np

from occupancy.analysis.distribution import MS
from occupancy.analysis.findings import Cause, Finding, place_of, sites_of
from occupancy.analysis.overlap import Basis, RunOverlap
from occupancy.analysis.steps import Int64, Steps, steps
from occupancy.analysis.units import Unit
from occupancy.call import Frame

SERIAL_SHARE = 0.02
"""Share of the busy time with two or more in flight up to which a run is serial: a last byte that is read as the next
request goes out overlaps too, but is nobody's design."""
GAIN_SHARE = 0.1
"""Share of the wall that overlap must be able to gain before it is worth a change, and stands out of the noise."""
IDLE_SHARE = 0.5
"""Share of the wall with nothing in flight from which on calls are not what the time goes into."""
WAIT_SHARE = 0.2
"""Share of the steps' time that the first branch must wait for the last before it is more than scatter."""
HANDOFF_SHARE = 0.25
"""A step that starts because another has ended starts within this share of the wait."""


def overlapped_share(unit: Unit) -> float:
    """Share of the busy time with two or more in flight; 0.0 when never busy."""
    ns = unit.steps.time_at_level
    busy_ns = sum(ns[1:])
    return sum(ns[2:]) / busy_ns if busy_ns else 0.0


def shape_of(unit: Unit, overlap: list[RunOverlap]) -> Cause:
    """Tell how far the calls of a run overlap.

    A run is partly overlapped when some calls are known that ran one after another without need, and would gain a good
    part of the wall; without such calls it is overlapped as far as is known.
    """
    if not unit.certain or _serve_in_turn(unit):
        return Cause.UNKNOWN
    if unit.n_logical < 2:
        return Cause.ONE_CALL
    if unit.steps.peak <= 1 or overlapped_share(unit) <= SERIAL_SHARE:
        return Cause.SERIAL
    return Cause.PARTLY_OVERLAPPED if any(_is_worth_it(part) for part in overlap) else Cause.OVERLAPPED


def _serve_in_turn(unit: Unit) -> bool:
    """Whether several threads of an executor made calls in turn with no work waiting, as those of a server do."""
    in_turn = unit.pool is not None and unit.steps.peak <= 1 and len(set(unit.column("thread").tolist())) > 1
    return in_turn and not bool((unit.column("siblings") > 1).any())


def _is_worth_it(part: RunOverlap) -> bool:
    return bool(part.groups) and part.gain_ms >= GAIN_SHARE * part.wall_ms


def find_serial(unit: Unit, shape: Cause, overlap: list[RunOverlap]) -> list[Finding]:
    """Calls that ran one after another, with what overlap would gain; none unless the shape says so."""
    if shape not in (Cause.SERIAL, Cause.PARTLY_OVERLAPPED):
        return []
    worth = [part for part in overlap if _is_worth_it(part)]
    if not worth:
        return [_serial_by_need(unit)]
    return [_serial_without_need(shape, part) for part in worth]


def _serial_by_need(unit: Unit) -> Finding:
    return Finding(
        Cause.SERIAL,
        f"{unit.n_logical} calls ran one after another{_at(sites_of(unit.frames))}; each may need the one before",
        {"calls": unit.n_logical, "wall_ms": unit.steps.wall_ns / MS, "peak": unit.steps.peak, "gain_ms": 0.0},
        sites_of(unit.frames),
        "where a step does not need the one before, start both at once, or say so with label(..., after=...)",
        (unit.name,),
        0.0,
    )


def _serial_without_need(shape: Cause, part: RunOverlap) -> Finding:
    group = part.groups[0]
    at, doubt = _at(group.call_sites), ""
    if group.basis is Basis.POSSIBLE:
        doubt = ", if none needs another" if len(group.labels) > 2 or group.n > 2 else ", if neither needs the other"
    return Finding(
        shape,
        f"{_named(group.labels, group.n)} ran one after another{at}; overlapped, about {part.bound_ms / 1e3:.2f} s "
        f"instead of {part.wall_ms / 1e3:.2f} s{doubt}",
        {
            "calls": group.n,
            "wall_ms": part.wall_ms,
            "bound_ms": part.bound_ms,
            "gain_ms": part.gain_ms,
            "serial_ms": group.serial_ms,
            "overlapped_ms": group.overlapped_ms,
        },
        group.call_sites,
        "start them at once (asyncio.gather, a task group, an executor) and wait for all",
        (part.run,),
        part.gain_ms,
    )


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
            f"nothing was in flight for {idle_ns / drawn.wall_ns:.0%} of the time: the program itself is slow",
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
    hills = _hills(unit)
    waited_ns, time_ns, sites = 0, 0, []
    for hill, following in pairwise(hills):
        ends_ns = _branch_ends(unit, hill)
        if len(ends_ns) < 2 or not _begins_wide(unit, following) or _is_declared(unit, hill, following):
            continue
        wait_ns = int(ends_ns.max() - ends_ns.min())
        starts_ns = np.sort(unit.start_ns[following])[:2]
        if starts_ns.max() - ends_ns.max() > HANDOFF_SHARE * wait_ns:
            continue
        waited_ns += wait_ns
        time_ns += int(ends_ns.max() - unit.start_ns[hill].min())
        sites += [unit.frames[place] for place in hill[np.argsort(unit.end_ns[hill])[[-1, 0]]]]
    if not waited_ns or waited_ns < WAIT_SHARE * time_ns:
        return []
    return [
        Finding(
            Cause.BARRIER,
            f"branches wait for each other after each step: the fastest waited {waited_ns / MS:.0f} ms in all",
            {"waited_ms": waited_ns / MS, "steps_ms": time_ns / MS, "calls": unit.n, "peak": unit.steps.peak},
            sites_of(sites),
            "let each branch go on to its next step by itself, and join them once at the end",
            (unit.name,),
            waited_ns / MS,
        )
    ]


def _hills(unit: Unit) -> list[Int64]:
    """The calls of each stretch with something in flight, in the order of time."""
    drawn: Steps = steps(unit.start_ns, unit.end_ns)
    ends_ns = drawn.t_ns[drawn.in_flight == 0]
    hill = np.searchsorted(ends_ns, unit.start_ns, side="right")
    return [np.flatnonzero(hill == number) for number in range(ends_ns.size)] if ends_ns.size <= unit.n else []


def _branch_ends(unit: Unit, hill: Int64) -> Int64:
    """The last end of each branch, ns."""
    flows = np.unique(unit.flow[hill])
    return np.array([unit.end_ns[hill][unit.flow[hill] == flow].max() for flow in flows], dtype=np.int64)


def _begins_wide(unit: Unit, hill: Int64) -> bool:
    """Whether several branches begin in it while the first call is in flight."""
    if hill.size < 2:
        return False
    second = hill[np.argsort(unit.start_ns[hill])][:2]
    return bool(unit.flow[second[0]] != unit.flow[second[1]] and unit.start_ns[second[1]] < unit.end_ns[second[0]])


def _is_declared(unit: Unit, hill: Int64, following: Int64) -> bool:
    """Whether each call that follows is declared to need the slowest of the step before."""
    slowest = unit.column("label")[hill[np.argmax(unit.end_ns[hill])]]
    return all(slowest in (after or "").split("\n") for after in unit.column("after")[following])
