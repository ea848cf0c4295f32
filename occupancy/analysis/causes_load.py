"""Causes that grow with the number in flight: a server's queue, and errors."""

from math import lgamma

import numpy as np
from numpy.typing import NDArray

from occupancy.analysis.columns import MISSING
from occupancy.analysis.distribution import MS, number
from occupancy.analysis.findings import Cause, Finding, sites_of
from occupancy.analysis.groups import CountedCalls
from occupancy.analysis.steps import Int64, steps, wire_start

LEAST_CALLS = 12
"""Calls to one target below which errors cannot be told from chance."""
QUEUE_TIMES = 2.0
"""Times as long as with little in flight that the wait with much in flight is."""
LEAST_EACH = 4
"""Calls with little and with much in flight: below or above half of the highest level."""
QUEUE_ORDER = 0.8
"""Least probability that a wait with much in flight is longer than one with little: who comes first does not queue."""
CLIENT_SHARE = 0.2
"""Share of the difference that sending takes where the client is as slow as the server."""
CHANCE = 0.01
"""Greatest probability that errors fall on the high levels by chance (Fisher's exact test, one-sided)."""
LOAD_STATUSES = (408, 429, 500, 502, 503, 504, 529)
"""Statuses by which a server says that it is overloaded; 400 or 404 have other reasons."""
ERROR_TIMES = 2.0
"""Times the error rate at low levels that the rate at high levels is."""


def find_server_queue(calls: CountedCalls, place: Int64) -> list[Finding]:
    """Calls wait longer for the server's headers while much is on the wire than other calls while little is.

    A burst alone does not tell: answers differ in length, and nothing shows how long they would take by themselves. Nor
    does one that the client was slow to send.
    """
    found = []
    for mine in _by_target(calls, place):
        waits_ns = calls.columns["wait_ns"][mine]
        known = mine[(waits_ns != MISSING) & ~_is_overload(calls, mine)]
        wait_ns, level = calls.columns["wait_ns"][known], _highest_levels(calls, place, known)
        high = level > level.max(initial=0) / 2
        if min(np.count_nonzero(high), np.count_nonzero(~high)) < LEAST_EACH:
            continue
        low_ns, high_ns = float(np.median(wait_ns[~high])), float(np.median(wait_ns[high]))
        sending_ns = float(np.median(np.maximum(calls.columns["send_ns"][known][high], 0)))
        is_client = sending_ns > CLIENT_SHARE * (high_ns - low_ns)
        if high_ns >= QUEUE_TIMES * low_ns and not is_client and _order(wait_ns[~high], wait_ns[high]) >= QUEUE_ORDER:
            found.append(_queue_finding(calls, known, level, (low_ns, high_ns)))
    return found


def _queue_finding(calls: CountedCalls, place: Int64, level: Int64, waits_ns: tuple[float, float]) -> Finding:
    low_ns, high_ns = waits_ns
    crowded = place[level > level.max() / 2]
    return Finding(
        Cause.LATE_SERVER,
        f"the server answers after {low_ns / MS:.0f} ms with little in flight, after {high_ns / MS:.0f} ms with up to "
        f"{int(level.max())}: requests queue there",
        {
            "calls": int(place.size),
            "wait_low_ms": low_ns / MS,
            "wait_high_ms": high_ns / MS,
            "level_low": int(level.min()),
            "level_high": int(level.max()),
        },
        sites_of(calls.frames[site] for site in calls.site[crowded].tolist()),
        "more in flight does not help here: cap the program where the wait begins to rise, or ask for more capacity",
        cost_ms=(high_ns - low_ns) / MS,
    )


def find_rising_errors(calls: CountedCalls, place: Int64) -> list[Finding]:
    """Overload errors fall on the calls that meet more than half of the highest level on the wire."""
    found = []
    for mine in _by_target(calls, place):
        if mine.size < LEAST_CALLS:
            continue
        bad, level = _is_overload(calls, mine), _highest_levels(calls, place, mine)
        high = level > level.max() / 2
        n_high, n_bad, n_both = (int(np.count_nonzero(mask)) for mask in (high, bad, bad & high))
        if not n_both or min(n_high, mine.size - n_high) < LEAST_EACH:
            continue
        rate_high, rate_low = n_both / n_high, (n_bad - n_both) / (mine.size - n_high)
        if rate_high < ERROR_TIMES * rate_low or _chance(mine.size, n_high, n_bad, n_both) > CHANCE:
            continue
        found.append(
            Finding(
                Cause.ERRORS_RISE,
                f"{rate_high:.0%} of calls fail above {int(level.max()) // 2} on the wire, {rate_low:.0%} up to there",
                {
                    "calls": int(mine.size),
                    "errors": n_bad,
                    "rate_high": rate_high,
                    "rate_low": rate_low,
                    "level": int(level.max()) // 2,
                },
                sites_of(calls.frames[site] for site in calls.site[mine[bad]].tolist()),
                "cap what is in flight at the level where errors begin; retries of them only add to it",
                cost_ms=int((calls.end_ns - calls.start_ns)[mine[bad]].sum()) / MS,
            )
        )
    return found


def _by_target(calls: CountedCalls, place: Int64) -> list[Int64]:
    """Places of the calls to each host, path and model, whose times are alike."""
    _, target = number(zip(*(calls.columns[name][place] for name in ("host", "path", "model")), strict=True))
    return [place[target == index] for index in range(int(target.max(initial=-1)) + 1)]


def _is_overload(calls: CountedCalls, place: Int64) -> NDArray[np.bool_]:
    late = (calls.columns["outcome"][place] == "timeout") & (calls.columns["error_type"][place] != "PoolTimeout")
    return np.asarray(np.isin(calls.columns["status"][place], LOAD_STATUSES) | late)


def _highest_levels(calls: CountedCalls, place: Int64, mine: Int64) -> Int64:
    """The most of the process's calls that are on the wire at once while each of some is there."""
    wire_ns = wire_start(calls.columns)
    wire = steps(wire_ns[place], calls.end_ns[place])
    levels = np.concatenate(([0], wire.in_flight, [0]))
    first = np.searchsorted(wire.t_ns, wire_ns[mine], side="right")
    stop = np.maximum(np.searchsorted(wire.t_ns, calls.end_ns[mine], side="left") + 1, first + 1)
    highest: Int64 = np.maximum.reduceat(levels, np.column_stack((first, stop)).ravel())[::2]
    return highest


def _order(low: Int64, high: Int64) -> float:
    """Probability that one of the high values is larger than one of the low (Mann and Whitney's U, as a share)."""
    below = np.searchsorted(np.sort(low), high, side="left")
    return float(below.mean() / low.size)


def _chance(n: int, n_high: int, n_bad: int, n_both: int) -> float:
    """Probability that of `n_bad` of n calls at least `n_both` are among `n_high`: the hypergeometric tail."""

    def log_choose(of: int, k: int) -> float:
        return lgamma(of + 1) - lgamma(k + 1) - lgamma(of - k + 1)

    ways = (
        np.exp(log_choose(n_high, k) + log_choose(n - n_high, n_bad - k) - log_choose(n, n_bad))
        for k in range(n_both, min(n_high, n_bad) + 1)
        if n_bad - k <= n - n_high
    )
    return float(sum(ways))
