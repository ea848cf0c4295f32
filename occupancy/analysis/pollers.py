"""Background pollers: a thread or task that asks one thing again and again, with the same pause each time.

Beside such a one the calls of an agent overlap, and still the agent may be serial. All of the evidence must be there:
a thread or task of its own, one line that nobody else calls from, one target that is no model, one call at a time,
pauses that are alike and no mere hand-over, and other calls beside it.
"""

from collections.abc import Sequence

import numpy as np

from occupancy.analysis.unit import Unit
from occupancy.call import Kind

LEAST_CALLS = 5
"""Fewer do not tell a rhythm."""
PAUSE_SHARE = 0.2
"""Share of the period that it pauses for at least: a loop of calls goes on at once."""
EVEN_SHARE = 0.5
"""How far the shortest pause and the middle half of all may be from the usual pause, as a share of it: a busy machine
lengthens some."""


def find_pollers(roots: Sequence[Unit], others: Sequence[Unit]) -> frozenset[int]:
    """Find the pollers of one process.

    Args:
        roots: Runs that are a thread or task each.
        others: Its other runs.

    Returns:
        Places in `roots`; never all runs, since the only ones there are are no background.
    """
    runs = [*roots, *others]
    polling = [place for place in _alone_on_their_line(runs) if place < len(roots) and _is_regular(runs[place])]
    beside = [unit for place, unit in enumerate(runs) if place not in polling] if polling else []
    return frozenset(place for place in polling if any(_are_beside(runs[place], unit) for unit in beside))


def _alone_on_their_line(runs: Sequence[Unit]) -> list[int]:
    """Places of the runs of several calls that all come from one line, from which no other run calls."""
    if len(runs) < 2:
        return []
    calls, n_sites = runs[0].calls, len(runs[0].calls.frames)
    owner = np.repeat(np.arange(len(runs)), [unit.n for unit in runs])
    site = calls.site[np.concatenate([unit.place for unit in runs])]
    pairs, n_calls = np.unique(owner * n_sites + site, return_counts=True)
    owner, site = pairs // n_sites, pairs % n_sites
    is_alone = (np.bincount(site)[site] == 1) & (np.bincount(owner)[owner] == 1) & (n_calls >= LEAST_CALLS)
    places: list[int] = owner[is_alone].tolist()
    return [place for place in places if runs[place].frames[0] is not None]


def _is_regular(unit: Unit) -> bool:
    """Whether a run asks one thing, one call at a time, in a rhythm."""
    pauses_ns = unit.start_ns[1:] - unit.end_ns[:-1]
    if pauses_ns.min() < 0 or unit.n_logical < unit.n:
        return False
    if int(unit.target.max()) > 0 or (unit.column("kind") == Kind.GENERATE.value).any():
        return False
    usual_ns, low_ns, high_ns = np.quantile(pauses_ns, (0.5, 0.25, 0.75))
    if usual_ns < PAUSE_SHARE * float(np.median(np.diff(unit.start_ns))):
        return False
    return bool(pauses_ns.min() >= (1 - EVEN_SHARE) * usual_ns and high_ns - low_ns <= EVEN_SHARE * usual_ns)


def _are_beside(one: Unit, other: Unit) -> bool:
    return bool(one.start_ns[0] < other.end_ns.max() and other.start_ns[0] < one.end_ns.max())
