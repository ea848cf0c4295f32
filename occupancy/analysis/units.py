"""What a verdict is for: the calls of one run, as far as it is known which calls belong to one.

A run is an agent run, a trace, or else a root task or thread. The last two are poor evidence, so these rules hold:

1. Runs of different processes are different, whatever their names; only a trace may cross processes.
2. Threads of one executor that are runs of their own belong together, unless two of them each make calls from two or
   more call sites in common. Such threads look alike: each may be a worker of one run, or serve a user of its own. Then
   the threads stay one group whose verdict is unknown.
3. Where a process has one other run (its main thread or root task), the executor's threads belong to it if it makes no
   call meanwhile: it waits for them. Plain threads belong to it if, besides, all their calls lie between its first and
   last call. Where its calls overlap theirs, nobody can tell, and the verdict is unknown.
4. In a notebook each cell is judged by itself: the time between two cells is its reader's, not the program's.

Tasks that were gathered share a root, and so are one run: marking each with `occupancy.agent_run` makes them several.
"""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from occupancy.analysis.columns import MISSING
from occupancy.analysis.distribution import number
from occupancy.analysis.groups import CountedCalls
from occupancy.analysis.unit import Unit, combined, known_spans, split
from occupancy.call import Frame

_TRACE = re.compile(r"[0-9a-f]{32}")
_SECOND_OF_ITS_NAME = re.compile(r" #\d+$")
_WORKER = re.compile(r"(.+)_\d+")
_EXECUTOR = re.compile(r"ThreadPoolExecutor-\d+|asyncio")
"""Names that the standard library gives: with `_` and a number, of `concurrent.futures` and of `asyncio.to_thread`."""


def units(calls: CountedCalls) -> list[Unit]:
    """Group calls into what is judged together.

    Args:
        calls: The calls that count.

    Returns:
        Each call that starts and ends is in one unit, by the rules of this module; in the order of their first starts.
    """
    by_process: dict[int, list[Unit]] = defaultdict(list)
    for unit in _named_runs(calls):
        by_process[int(unit.first("pid"))].append(unit)
    joined = [unit for of_process in by_process.values() for unit in _join_threads(of_process)]
    stacks = {id(stack): stack for stack in calls.columns["call_stack"].tolist()}  # a log gives equal ones as one
    if any(_cell_of(stack) for stack in stacks.values()):
        joined = [cell for unit in joined for cell in _by_cell(unit)]
    starts_ns = calls.start_ns[np.array([unit.place[0] for unit in joined], dtype=np.int64)]
    return [joined[index] for index in np.argsort(starts_ns, kind="stable").tolist()]


def _named_runs(calls: CountedCalls) -> list[Unit]:
    place = known_spans(calls)
    if not place.size:
        return []
    runs, run = number(calls.columns["run"][place].tolist())
    pids, pid = np.unique(calls.columns["pid"][place], return_inverse=True)
    is_trace = np.array([name is not None and bool(_TRACE.fullmatch(name)) for name in runs])
    owner = combined([(run, len(runs)), (np.where(is_trace[run], 0, pid), pids.size)])
    names = calls.columns["run"]
    return [Unit(names[part[0]], calls, part) for part in split(place, owner)]


def _join_threads(found: list[Unit]) -> Iterable[Unit]:
    """Apply rules 2 and 3 within one process."""
    workers = [(unit, executor_of(unit)) for unit in found]
    pools: dict[str, list[Unit]] = defaultdict(list)
    for unit, executor in workers:
        if executor is not None:
            pools[executor].append(unit)
    pooled = [_one_pool(executor, threads) for executor, threads in pools.items()]
    rest = [unit for unit, executor in workers if executor is None]
    roots = [unit for unit in rest if _is_root(unit)]
    mains = [unit for unit in roots if not _is_plain_thread(unit)]
    if len(mains) != 1:
        return [*rest, *pooled]
    main, plain = mains[0], [unit for unit in roots if _is_plain_thread(unit)]
    helpers = pooled + [thread for thread in plain if _is_within(thread, main)]
    joined = {id(unit) for unit in (main, *helpers)}
    others = [unit for unit in rest if id(unit) not in joined]
    if not helpers:
        return rest
    if any(_overlap(main, helper) for helper in helpers):
        return [dataclasses.replace(unit, certain=False) for unit in (main, *helpers)] + others
    together = np.concatenate([unit.place for unit in (main, *helpers)])
    order = np.argsort(main.calls.start_ns[together], kind="stable")
    certain = all(unit.certain for unit in helpers)
    return [Unit(main.name, main.calls, together[order], certain), *others]


def executor_of(unit: Unit) -> str | None:
    """Name the executor of a run that is one of its threads; None for any other run."""
    if not _is_root(unit) or unit.first("async_task") is not None:
        return None
    named = _WORKER.fullmatch(str(unit.first("thread")))
    if named is None:
        return None
    has_queue = bool((unit.column("siblings") != MISSING).any())
    return named[1] if has_queue or _EXECUTOR.fullmatch(named[1]) else None


def _one_pool(executor: str, threads: list[Unit]) -> Unit:
    """Join the threads of an executor by rule 2."""
    sites = [set(unit.calls.site[unit.place].tolist()) for unit in threads]
    seen: dict[int, int] = defaultdict(int)
    for mine in sites:
        if len(mine) > 1:
            for site in mine:
                seen[site] += 1
    alike = sum(n > 1 for n in seen.values()) > 1
    calls = threads[0].calls
    place = np.concatenate([unit.place for unit in threads])
    return Unit(executor, calls, place[np.argsort(calls.start_ns[place], kind="stable")], not alike, executor)


def _is_root(unit: Unit) -> bool:
    """Whether a run is a root task or thread, since nothing better was known."""
    if unit.name is None:
        return False
    if not unit.name.startswith(("task ", str(unit.first("thread")))):
        return False
    return unit.name.startswith("task ") or _SECOND_OF_ITS_NAME.sub("", unit.name) == unit.first("thread")


def _is_plain_thread(unit: Unit) -> bool:
    return _is_root(unit) and unit.name != "MainThread" and unit.first("async_task") is None


def _is_within(thread: Unit, main: Unit) -> bool:
    return bool(main.start_ns[0] <= thread.start_ns[0] and thread.end_ns.max() <= main.end_ns.max())


def _overlap(one: Unit, other: Unit) -> bool:
    """Whether two units ever have calls in flight at once."""
    edges = np.unique(np.concatenate((one.steps.t_ns, other.steps.t_ns)))
    return bool(((one.steps.at(edges) > 0) & (other.steps.at(edges) > 0)).any())


def _by_cell(unit: Unit) -> Iterator[Unit]:
    """Apply rule 4. A call without a cell on its stack belongs to the cell of the call before it."""
    cells: list[str | None] = []
    for stack in unit.column("call_stack"):
        cells.append(_cell_of(stack) or (cells[-1] if cells else None))
    distinct, cell = number(cells)
    if distinct == [None]:
        yield unit
        return
    for index, name in enumerate(distinct):
        yield unit.of(cell == index, name=name or unit.name)


def _cell_of(stack: Iterable[Frame]) -> str | None:
    """The outermost cell on a stack: it is the one that runs; those below it define what it calls."""
    return next((frame.file for frame in reversed(list(stack)) if frame.file.startswith("cell ")), None)
