"""Causes that lie in retries: loops around loops, and time spent waiting between attempts."""

import numpy as np

from occupancy.analysis.distribution import MS
from occupancy.analysis.findings import Cause, Finding, sites_of
from occupancy.analysis.steps import Int64, steps
from occupancy.analysis.summary import TOO_MANY_REQUESTS, failed
from occupancy.analysis.unit import Unit, split

BACKOFF_SHARE = 0.2
"""Share of the wall that passes between attempts before it is named: with nothing in flight, or after a 429."""

Attempts = list[Int64]
"""Places in a unit of the attempts of each logical call, in the order of the first ones."""


def has_retries(unit: Unit) -> bool:
    """Whether any logical call has several attempts."""
    return unit.n_logical < unit.n


def find_stacked(unit: Unit) -> list[Finding]:
    """A loop that retries around a client that retries: attempts multiply.

    Known by logical calls of several attempts each, all failed, that follow each other in one flow, from one line, to
    one target, with requests of one size: the same request again. Sizes that differ, or are not known, are other
    requests.
    """
    stacks = [stack for stack in _repeats(unit, _in_failing_flows(unit)) if len(stack) > 1]
    if not stacks:
        return []
    largest = max(stacks, key=lambda stack: sum(len(attempts) for attempts in stack))
    n_attempts = sum(len(attempts) for attempts in largest)
    spans = [unit.end_ns[stack[-1]].max() - unit.start_ns[stack[0]].min() for stack in stacks]
    return [
        Finding(
            Cause.STACKED_RETRIES,
            f"retries within retries: {len(largest)} tries of up to {max(map(len, largest))} attempts made "
            f"{n_attempts} requests of one",
            {
                "tries": len(largest),
                "attempts_each": max(map(len, largest)),
                "requests": n_attempts,
                "stacks": len(stacks),
                "wall_ms": int(sum(spans)) / MS,
            },
            sites_of(unit.frames[int(attempts[0])] for stack in stacks for attempts in stack),
            "retry in one place: set max_retries=0 on the client, or take the outer loop out",
            (unit.name,),
            int(sum(spans)) / MS,
        )
    ]


def _in_failing_flows(unit: Unit) -> Attempts:
    """The logical calls of flows in which one of several attempts failed in all of them: others repeat nothing."""
    n_bad = np.bincount(unit.logical[failed({name: unit.column(name) for name in ("status", "outcome")})])
    n = np.bincount(unit.logical)
    n_bad = np.pad(n_bad, (0, n.size - n_bad.size))
    in_vain = ((n > 1) & (n_bad == n))[unit.logical]
    flows = np.bincount(unit.flow[in_vain], minlength=unit.n) > 0
    first = np.unique(unit.logical, return_index=True)[1]
    mine = flows[unit.flow[first]][unit.logical]
    return split(np.flatnonzero(mine), np.unique(unit.logical[mine], return_inverse=True)[1])


def _repeats(unit: Unit, logical: Attempts) -> list[Attempts]:
    """Runs of logical calls that are one request, made again since all attempts before failed."""
    bad = failed({name: unit.column(name) for name in ("status", "outcome")})
    sizes = unit.column("request_bytes")
    marks = [unit.column(name) for name in ("host", "path", "method", "model", "call_stack")]
    latest: dict[tuple[object, ...], Attempts] = {}
    found = []
    for attempts in logical:
        first = int(attempts[0])
        key = (int(unit.flow[first]), *(column[first] for column in marks))
        stack = latest.get(key)
        if stack is not None and _goes_on(stack[-1], attempts, bad, sizes):
            stack.append(attempts)
        else:
            latest[key] = [attempts]
            found.append(latest[key])
    return found


def _goes_on(before: Int64, attempts: Int64, bad: np.ndarray[tuple[int], np.dtype[np.bool_]], sizes: Int64) -> bool:
    size = int(sizes[before[0]])
    return len(before) > 1 and bool(bad[before].all()) and size > 0 and size == int(sizes[attempts[0]])


def find_backoff(unit: Unit) -> list[Finding]:
    """Time between a failed attempt and the next, with nothing else in flight."""
    earlier, later = _tried_again(unit)
    if not earlier.size:
        return []
    from_ns, until_ns = unit.end_ns[earlier], unit.start_ns[later]
    idle_ns = _idle(unit, from_ns, until_ns)
    if idle_ns < BACKOFF_SHARE * unit.steps.wall_ns:
        return []
    return [
        Finding(
            Cause.RETRY_BACKOFF,
            f"{idle_ns / unit.steps.wall_ns:.0%} of the time nothing was in flight but a retry was waited for",
            {
                "retries": int(earlier.size),
                "idle_ms": idle_ns / MS,
                "longest_ms": int((until_ns - from_ns).max()) / MS,
                "wall_ms": unit.steps.wall_ns / MS,
            },
            sites_of(unit.frames[place] for place in earlier.tolist()),
            "find out why the first attempts fail; do other work while a retry waits",
            (unit.name,),
            idle_ns / MS,
        )
    ]


def find_refused(unit: Unit) -> list[Finding]:
    """Requests that are answered 429 and made again, with a good part of the wall between, whatever else goes on."""
    earlier, later = _tried_again(unit)
    is_refused = unit.column("status")[earlier] == TOO_MANY_REQUESTS
    earlier, later = earlier[is_refused], later[is_refused]
    wait = steps(unit.end_ns[earlier], unit.start_ns[later])
    if not wait.busy_ns or wait.busy_ns < BACKOFF_SHARE * unit.steps.wall_ns:
        return []
    n = int(np.count_nonzero(unit.column("status") == TOO_MANY_REQUESTS))
    return [
        Finding(
            Cause.REFUSED,
            f"{n} of {unit.n} requests were answered 429, and made again after up to "
            f"{int((unit.start_ns[later] - unit.end_ns[earlier]).max()) / MS:.0f} ms, with up to {unit.steps.peak} in "
            "flight",
            {
                "refused": n,
                "calls": unit.n,
                "peak": unit.steps.peak,
                "waited_ms": wait.busy_ns / MS,
                "wall_ms": unit.steps.wall_ns / MS,
            },
            sites_of(unit.frames[place] for place in earlier.tolist()),
            "keep fewer in flight or send more slowly, or ask for a higher limit; occupancy sweep finds how many the "
            "endpoint takes",
            (unit.name,),
            wait.busy_ns / MS,
        )
    ]


def _tried_again(unit: Unit) -> tuple[Int64, Int64]:
    """Places of the attempts that failed and were followed by another after their end, and of those others."""
    bad = failed({name: unit.column(name) for name in ("status", "outcome")})
    order = np.argsort(unit.logical, kind="stable")
    earlier, later = order[:-1], order[1:]
    waited = (unit.logical[earlier] == unit.logical[later]) & bad[earlier]
    waited &= unit.start_ns[later] > unit.end_ns[earlier]
    return earlier[waited], later[waited]


def _idle(unit: Unit, from_ns: Int64, until_ns: Int64) -> int:
    """How much of some waits, taken together, passes with nothing in flight."""
    waiting = steps(from_ns, until_ns)
    edges = np.unique(np.concatenate((waiting.t_ns, unit.steps.t_ns)))
    idle = (waiting.at(edges[:-1]) > 0) & (unit.steps.at(edges[:-1]) == 0)
    return int(np.diff(edges)[idle].sum())
