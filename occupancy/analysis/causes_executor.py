"""An executor that has fewer threads than there is work, whatever runs the work belongs to."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from occupancy.analysis.causes_capped import LEAST_QUEUED, is_queued, saved_ms, share_at_least
from occupancy.analysis.distribution import MS, number
from occupancy.analysis.findings import Cause, Finding, sites_of
from occupancy.analysis.steps import Int64
from occupancy.analysis.unit import Unit
from occupancy.analysis.units import executors_of

MOST_SHARE = 0.5
"""Share of the time for which half of an executor's threads are at calls, where calls are what its work is."""


def find_executor_caps(process: Unit, found: Sequence[Unit]) -> list[Finding]:
    """Find the executors of a process that cap it.

    Args:
        process: All calls of one process.
        found: The units of all processes.

    Returns:
        One for each such executor, in the runs that have several of its threads. Where each run has one, the executor's
        work is whole runs: then it is in none of them.
    """
    findings, owner = [], np.full(process.calls.n, -1)
    executors = executors_of(process)
    for index, unit in enumerate(found if executors else ()):
        owner[unit.place] = index
    for executor in executors:
        for finding in find_executor_cap(executor):
            runs = tuple(found[index].name for index in _runs_with_several(executor, owner[executor.place]))
            findings.append(dataclasses.replace(finding, runs=runs or (executor.name,)))
    return findings


def _runs_with_several(executor: Unit, owner: Int64) -> list[int]:
    """Those of some runs that have calls in several threads of an executor, or are the only one."""
    threads, thread = number(executor.column("thread").tolist())
    pairs = np.unique(owner * len(threads) + thread)
    runs, counts = np.unique(pairs // len(threads), return_counts=True)
    several: list[int] = runs[(counts > 1) | (runs.size == 1)].tolist()
    return several


def find_executor_cap(executor: Unit) -> list[Finding]:
    """More work was there than an executor has threads.

    An executor with work in its queue has all its threads at work: that is counted, and no timing is needed but that
    calls are what they do most of the time. A thread's number tells of those before it, which may have made no call.

    Args:
        executor: All calls of its threads, of whatever runs.
    """
    threads = set(executor.column("thread").tolist())
    cap = max(len(threads), *(int(thread.rpartition("_")[2]) + 1 for thread in threads))
    queued = np.flatnonzero(is_queued(executor, cap))
    if queued.size < LEAST_QUEUED or share_at_least(executor, cap / 2, queued) < MOST_SHARE:
        return []
    return [_executor(executor, cap, int(queued.size))]


def _executor(unit: Unit, cap: int, n_queued: int) -> Finding:
    return Finding(
        Cause.CAPPED_EXECUTOR,
        f"never more than {unit.steps.peak} in flight: the executor has {cap} threads, and more work waited for them",
        {"cap": cap, "peak": unit.steps.peak, "calls": unit.n, "queued": n_queued, "wall_ms": unit.steps.wall_ns / MS},
        sites_of(unit.frames),
        "give the executor as many threads as should be in flight (max_workers), or use an async client",
        (unit.name,),
        saved_ms(unit, cap),
    )
