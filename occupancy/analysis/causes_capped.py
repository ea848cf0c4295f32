"""Causes that cap the number in flight: the connection pool, a semaphore or lock. See also `causes_executor`."""

import numpy as np

from occupancy.analysis.columns import MISSING
from occupancy.analysis.distribution import MS
from occupancy.analysis.findings import Cause, Finding, sites_of
from occupancy.analysis.groups import CountedCalls
from occupancy.analysis.steps import Int64, steps
from occupancy.analysis.unit import Unit, known_spans, split

POOL_LIMITS = {
    "aiohttp": "TCPConnector(limit=..., limit_per_host=...)",
    "requests": "HTTPAdapter(pool_maxsize=...)",
    "urllib3": "maxsize",
}
"""What libraries call the size of their pool, where it is not httpx's `max_connections`."""
POOL_WAIT_SHARE = 0.1
"""Share of the calls' time that passes before the wire from which on it counts: less is the client's own work."""
FLAT_SHARE = 0.8
"""How near to the cap the level on the wire stays, on average, while calls wait for a connection."""
BUSY_SHARE = 0.5
"""The same where those that waited took over connections of others: then the pool had no other, and it is the machine
that is slow to hand them over."""
REUSED_SHARE = 0.8
"""Share of the calls that waited longest that took over a connection."""
CAP_SHARE = 0.7
"""Share of the time at the cap, exactly, while work waits: a place that is free is taken at once, but a busy machine
needs its time for that. Branches with pauses of their own scatter around a mean instead."""
QUEUED_SHARE = 0.8
"""Share of the starts with work waiting that must come just after an end: what a limit lets in."""
HANDOFF_SHARE = 0.25
"""A start within this share of a usual call after an end is one that the end has let in."""
SAME_FLOW_SHARE = 0.5
"""A limit lets in who has waited longest: mostly another flow than the one that has just ended its call."""
HELD_SHARE = 0.5
"""Share of the calls with more siblings than ever are in flight that meet one that waits: the last meets none."""
HELD_CAP_SHARE = 0.2
"""Share of the time at the cap in that case: a lock that holds something else leaves the level to chance."""
LEAST_QUEUED = 2
"""Starts with work waiting: one alone is chance, unless as many calls have seen it wait for its turn."""


def find_pool_cap(process: Unit) -> list[Finding]:
    """Calls wait for a connection while as many are on the wire as ever: flat on the wire, more asked for."""
    pool_ns = _known(process.column("pool_ns"))
    waited_ns, time_ns = int(pool_ns.sum()), int((process.end_ns - process.start_ns).sum())
    if not time_ns or waited_ns < POOL_WAIT_SHARE * time_ns:
        return []
    level, cap = waiting_level(process, pool_ns)
    queued, asked_for = pool_ns >= pool_ns.max() / 2, process.steps.peak
    reused = reused_share(process.column("connection_reused")[queued])
    if not cap or asked_for <= cap or not is_full(level / cap, reused):
        return []
    return [
        Finding(
            Cause.CAPPED_POOL,
            f"never more than {cap} on the wire while up to {asked_for} were asked for: the client's pool holds {cap}",
            {
                "cap": cap,
                "asked_for": asked_for,
                "pool_wait_ms": waited_ns / MS,
                "longest_pool_wait_ms": int(pool_ns.max()) / MS,
                "calls": process.n,
            },
            sites_of(process.of(queued).frames),
            f"raise {_pool_limit(process.of(queued))} to what should be in flight, if the server allows it",
            cost_ms=waited_ns / MS / max(cap, 1),
        )
    ]


def _pool_limit(waiting: Unit) -> str:
    """What the limit is called where the calls that wait were made by one library."""
    names = {POOL_LIMITS.get(client, "max_connections") for client in waiting.column("client").tolist()}
    return f"the client's {names.pop()}" if len(names) == 1 else "the limit of the client's pool"


def is_full(level_share: float, reused: float | None) -> bool:
    """Whether calls wait for a pool that is full, not for the client's own processor.

    Args:
        level_share: Mean level on the wire while calls wait, as a share of the highest.
        reused: Share of those calls that then took over a connection of another; None where that is not known.
    """
    taken_over = reused is not None and reused >= REUSED_SHARE
    return level_share >= (BUSY_SHARE if taken_over else FLAT_SHARE)


def reused_share(reused: Int64) -> float | None:
    """Share of calls that used an open connection again, of those for which it is known; None where of none."""
    known = reused[reused != MISSING]
    return float((known == 1).mean()) if known.size else None


def waiting_level(process: Unit, pool_ns: Int64) -> tuple[float, int]:
    """Mean and highest level on the wire while calls wait for it.

    Args:
        process: The calls of one process.
        pool_ns: How long each waited before it went on the wire, ns.

    Returns:
        `(0.0, 0)` where none waits.
    """
    wire_ns, wire = np.minimum(process.wire_ns, process.end_ns), process.wire
    waiting = steps(wire_ns - pool_ns, wire_ns)
    edges = np.unique(np.concatenate((waiting.t_ns, wire.t_ns)))
    if edges.size < 2 or not waiting.peak:
        return 0.0, 0
    length_ns = np.diff(edges) * (waiting.at(edges[:-1]) > 0)
    levels = wire.at(edges[:-1])
    return float((levels * length_ns).sum() / length_ns.sum()), int(levels[length_ns > 0].max(initial=0))


def _known(values: Int64) -> Int64:
    return np.where(values == MISSING, 0, values)


def find_semaphore_cap(unit: Unit) -> list[Finding]:
    """More work was there than a semaphore or lock let in.

    Looked at are the starts with a call behind them and more siblings than ever are in flight. Where tasks are seen to
    wait for their turn, that is it, however slow the machine is. Else timing must show it: what is let in comes just
    after an end, mostly of another task, and meanwhile the level stays at the cap. A plain loop goes on in one task,
    and workers that share a list are no more siblings than are in flight.
    """
    siblings = unit.column("siblings")
    if not (siblings > 1).any():
        return []
    cap = unit.steps.peak
    # A thread that has just ended its work still counts as at work: one sibling more than in flight is none.
    in_thread = np.array([task is None for task in unit.column("async_task").tolist()])
    queued = np.flatnonzero(is_queued(unit, cap) & ~(in_thread & (siblings == cap + 1)))
    if not queued.size or len(set(unit.flow.tolist())) <= cap:
        return []
    held = _meet_held(unit)[siblings > cap]
    are_held = float(held.mean()) >= HELD_SHARE
    if queued.size < LEAST_QUEUED:
        is_cap = are_held and np.count_nonzero(held) >= LEAST_QUEUED and _are_let_in(unit, queued)
    else:
        at_cap = share_at_least(unit, cap, queued)
        is_cap = (are_held and at_cap >= HELD_CAP_SHARE) or (at_cap >= CAP_SHARE and _are_let_in(unit, queued))
    return [_semaphore(unit, cap, int(queued.size), queued)] if is_cap else []


def _meet_held(unit: Unit) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which calls see a sibling wait for its turn, or are in flight together with one that does, shape (n,).

    Of several that end at once only the first to end may see it: then it has its turn.
    """
    seen = unit.column("siblings_held") == 1
    begun = np.searchsorted(unit.start_ns[seen], unit.end_ns, side="left")
    over = np.searchsorted(np.sort(unit.end_ns[seen]), unit.start_ns, side="right")
    return np.asarray(seen | (begun > over))


def _are_let_in(unit: Unit, queued: Int64) -> bool:
    """Whether most of some starts come just after the end of another flow's call."""
    waited_ns, before = _last_ends(unit, queued)
    prompt = waited_ns <= HANDOFF_SHARE * float(np.median(unit.end_ns - unit.start_ns))
    same_flow = float(np.mean(unit.flow[queued] == unit.flow[before]))
    return bool(np.count_nonzero(prompt) >= QUEUED_SHARE * queued.size) and same_flow <= SAME_FLOW_SHARE


def is_queued(unit: Unit, cap: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which calls start after an end, and with more siblings than a cap, shape (n,)."""
    siblings = unit.column("siblings")
    after_an_end = unit.start_ns >= unit.end_ns.min()
    return np.asarray((siblings != MISSING) & (siblings > cap) & after_an_end)


def share_at_least(unit: Unit, level: float, queued: Int64) -> float:
    """Share of the time at a level or above, while work waits: from each of some starts to the next start."""
    queued = queued[queued < unit.n - 1]
    waiting = steps(unit.start_ns[queued], unit.start_ns[queued + 1])
    edges = np.unique(np.concatenate((waiting.t_ns, unit.steps.t_ns)))
    length_ns = np.diff(edges) * (waiting.at(edges[:-1]) > 0)
    at_level = unit.steps.at(edges[:-1]) >= level
    return float(length_ns[at_level].sum() / length_ns.sum()) if length_ns.any() else 1.0


def _last_ends(unit: Unit, queued: Int64) -> tuple[Int64, Int64]:
    """For each of some calls the time since the last end before its start, and the call that ended."""
    order = np.argsort(unit.end_ns, kind="stable")
    last = order[np.searchsorted(unit.end_ns[order], unit.start_ns[queued], side="right") - 1]
    return unit.start_ns[queued] - unit.end_ns[last], last


def _semaphore(unit: Unit, cap: int, n_queued: int, queued: Int64) -> Finding:
    what = "a lock, or a semaphore of 1," if cap == 1 else f"a semaphore of {cap}, or a like limit,"
    return Finding(
        Cause.CAPPED_SEMAPHORE,
        f"never more than {cap} in flight while up to {int(unit.column('siblings')[queued].max())} tasks were there: "
        f"{what} lets in no more",
        {
            "cap": cap,
            "tasks": len(set(unit.flow.tolist())),
            "calls": unit.n,
            "queued": n_queued,
            "wall_ms": unit.steps.wall_ns / MS,
        },
        sites_of(unit.frames),
        "look for the semaphore, lock or limiter around these calls, in the program or a library, and raise its limit",
        (unit.name,),
        saved_ms(unit, cap),
    )


def saved_ms(unit: Unit, cap: int) -> float:
    """What twice the cap would save."""
    return unit.steps.wall_ns / MS / 2 if unit.n >= 2 * cap else 0.0


def places_by_process(calls: CountedCalls) -> list[Int64]:
    """Places of the calls of each process that start and end, in the order of their starts."""
    place = known_spans(calls)
    return split(place, np.unique(calls.columns["pid"][place], return_inverse=True)[1])
