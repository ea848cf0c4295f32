"""Causes that grow with the number in flight: a server's queue, and errors."""

from collections.abc import Iterator
from math import lgamma

import numpy as np
from numpy.typing import NDArray

from occupancy.analysis.columns import MISSING
from occupancy.analysis.distribution import MS
from occupancy.analysis.findings import Cause, Finding, sites_of
from occupancy.analysis.steps import Int64
from occupancy.analysis.unit import Unit, split

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


def find_server_queue(process: Unit) -> list[Finding]:
    """Calls wait longer for the server's headers while much is on the wire than other calls while little is.

    A burst alone does not tell: answers differ in length, and nothing shows how long they would take by themselves. Nor
    does one that the client was slow to send.
    """
    known = np.flatnonzero((process.column("wait_ns") != MISSING) & ~_is_overload(process))
    wait_ns, sending_ns = process.column("wait_ns"), np.maximum(process.column("send_ns"), 0)
    found = []
    for low, high in _low_and_high(process, known):
        low_ns, high_ns = float(np.median(wait_ns[low])), float(np.median(wait_ns[high]))
        if high_ns < QUEUE_TIMES * low_ns or _order(wait_ns[low], wait_ns[high]) < QUEUE_ORDER:
            continue
        if float(np.median(sending_ns[high])) <= CLIENT_SHARE * (high_ns - low_ns):
            found.append(_queue_finding(process, low, high))
    return found


def _queue_finding(process: Unit, low: Int64, high: Int64) -> Finding:
    low_ns, high_ns = (float(np.median(process.column("wait_ns")[mine])) for mine in (low, high))
    level_low, level_high = int(process.most_on_wire[low].min()), int(process.most_on_wire[high].max())
    return Finding(
        Cause.LATE_SERVER,
        f"the server answers after {low_ns / MS:.0f} ms with little in flight, after {high_ns / MS:.0f} ms with up to "
        f"{level_high}: requests queue there",
        {
            "calls": int(low.size + high.size),
            "wait_low_ms": low_ns / MS,
            "wait_high_ms": high_ns / MS,
            "level_low": level_low,
            "level_high": level_high,
        },
        sites_of(process.frames[place] for place in high.tolist()),
        "more in flight does not help here: cap the program where the wait begins to rise, or ask for more capacity",
        cost_ms=(high_ns - low_ns) / MS,
    )


def find_rising_errors(process: Unit) -> list[Finding]:
    """Overload errors fall on the calls that meet more than half of the highest level on the wire."""
    bad = _is_overload(process)
    n_bad = np.bincount(process.target[bad], minlength=process.n)
    found = []
    for low, high in _low_and_high(process, np.flatnonzero(n_bad[process.target])):
        n_low, n_high = (int(np.count_nonzero(bad[mine])) for mine in (low, high))
        rate_high, rate_low, n = n_high / high.size, n_low / low.size, int(low.size + high.size)
        if not n_high or n < LEAST_CALLS or rate_high < ERROR_TIMES * rate_low:
            continue
        if _chance(n, high.size, n_low + n_high, n_high) <= CHANCE:
            found.append(_errors_finding(process, np.sort(np.concatenate((low, high))), (rate_low, rate_high)))
    return found


def _errors_finding(process: Unit, mine: Int64, rates: tuple[float, float]) -> Finding:
    bad, level = mine[_is_overload(process)[mine]], int(process.most_on_wire[mine].max()) // 2
    return Finding(
        Cause.ERRORS_RISE,
        f"{rates[1]:.0%} of calls fail above {level} on the wire, {rates[0]:.0%} up to there",
        {
            "calls": int(mine.size),
            "errors": int(bad.size),
            "rate_high": rates[1],
            "rate_low": rates[0],
            "level": level,
        },
        sites_of(process.frames[place] for place in bad.tolist()),
        "cap what is in flight at the level where errors begin; retries of them only add to it",
        cost_ms=int((process.end_ns - process.start_ns)[bad].sum()) / MS,
    )


def _low_and_high(process: Unit, place: Int64) -> Iterator[tuple[Int64, Int64]]:
    """Places of the calls to each target that meet up to half of its highest level on the wire, and of the others.

    Targets without `LEAST_EACH` of both are left out: a log may have as many targets as calls.
    """
    target, level = process.target[place], process.most_on_wire[place]
    highest = np.zeros(process.n, dtype=np.int64)
    np.maximum.at(highest, target, level)
    high = level > highest[target] / 2
    least = np.minimum(*(np.bincount(target[mask], minlength=process.n) for mask in (high, ~high)))
    fit = least[target] >= LEAST_EACH
    owner = 2 * np.unique(target[fit], return_inverse=True)[1] + high[fit]
    parts = split(place[fit], owner)
    yield from zip(parts[::2], parts[1::2], strict=True)


def _is_overload(process: Unit) -> NDArray[np.bool_]:
    late = (process.column("outcome") == "timeout") & (process.column("error_type") != "PoolTimeout")
    return np.asarray(np.isin(process.column("status"), LOAD_STATUSES) | late)


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
