"""Processes that run the same lines at once: the workers of a pool, or of a server."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from occupancy.analysis.steps import steps
from occupancy.analysis.unit import Unit


def units_at_once(found: Sequence[Unit]) -> frozenset[int]:
    """Find the units whose lines several processes run at once.

    One after another in itself, each such unit is a part of a program that overlaps: how many processes it has is its
    own choice, as the size of an executor is.

    Returns:
        Places in `found`; empty for the units of one process.
    """
    pids = [int(unit.first("pid")) for unit in found]
    if len(set(pids)) < 2:
        return frozenset()
    spans: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    sites_of_unit = [set(unit.calls.site[unit.place].tolist()) for unit in found]
    for unit, pid, sites in zip(found, pids, sites_of_unit, strict=True):
        for site in sites:
            if unit.calls.frames[site] is not None:
                spans[site].append((int(unit.start_ns[0]), int(unit.end_ns.max()), pid))
    at_once = {site for site, of_site in spans.items() if _overlap(of_site)}
    return frozenset(place for place, sites in enumerate(sites_of_unit) if sites & at_once)


def _overlap(spans: list[tuple[int, int, int]]) -> bool:
    """Whether spans `(start, end, pid)` of two processes have a time in common."""
    latest: dict[int, int] = {}
    for start_ns, end_ns, pid in sorted(spans):
        if any(end > start_ns for other, end in latest.items() if other != pid):
            return True
        latest[pid] = max(end_ns, latest.get(pid, end_ns))
    return False


def overlap_share(found: Sequence[Unit]) -> float:
    """Give the share of the busy time in which several processes have calls in flight; 0.0 without calls."""
    by_process: dict[int, list[Unit]] = defaultdict(list)
    for unit in found:
        by_process[int(unit.first("pid"))].append(unit)
    if len(by_process) < 2:
        return 0.0
    starts_ns, ends_ns = [], []
    for units in by_process.values():
        drawn = steps(*(np.concatenate([getattr(unit, name) for unit in units]) for name in ("start_ns", "end_ns")))
        turns_ns = drawn.t_ns[np.diff(drawn.in_flight > 0, prepend=False)]  # busy, idle, busy, ...
        starts_ns.append(turns_ns[::2])
        ends_ns.append(turns_ns[1::2])
    processes = steps(np.concatenate(starts_ns), np.concatenate(ends_ns))
    return sum(processes.time_at_level[2:]) / processes.busy_ns if processes.busy_ns else 0.0
