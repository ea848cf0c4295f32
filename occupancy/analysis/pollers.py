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
    polling = [place for place, unit in enumerate(roots) if _is_regular(unit)]
    if not polling:
        return frozenset()
    sites = [set(unit.calls.site[unit.place].tolist()) for unit in (*roots, *others)]
    beside = [unit for place, unit in enumerate((*roots, *others)) if place not in polling]
    return frozenset(
        place
        for place in polling
        if not any(sites[place] & mine for other, mine in enumerate(sites) if other != place)
        and any(_are_beside(roots[place], unit) for unit in beside)
    )


def _is_regular(unit: Unit) -> bool:
    """Whether a run asks one thing, one call at a time, in a rhythm."""
    if unit.n < LEAST_CALLS or unit.steps.peak > 1 or unit.n_logical < unit.n:
        return False
    if len(set(unit.frames)) > 1 or unit.frames[0] is None:
        return False
    if int(unit.target.max()) > 0 or (unit.column("kind") == Kind.GENERATE.value).any():
        return False
    pauses_ns = unit.start_ns[1:] - unit.end_ns[:-1]
    usual_ns, low_ns, high_ns = np.quantile(pauses_ns, (0.5, 0.25, 0.75))
    if usual_ns < PAUSE_SHARE * float(np.median(np.diff(unit.start_ns))):
        return False
    return bool(pauses_ns.min() >= (1 - EVEN_SHARE) * usual_ns and high_ns - low_ns <= EVEN_SHARE * usual_ns)


def _are_beside(one: Unit, other: Unit) -> bool:
    return bool(one.start_ns[0] < other.end_ns.max() and other.start_ns[0] < one.end_ns.max())
