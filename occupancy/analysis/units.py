"""What a verdict is for: the calls of one run, as far as it is known which calls belong to one.

A run is an agent run, a trace, or else a root task or thread. The last two are poor evidence, so these rules hold:

1. Runs of different processes are different, whatever their names; only a trace may cross processes.
2. Threads of one executor that are runs of their own belong together, unless two of them each make calls from two or
   more call sites in common. Such threads look alike: each may be a worker of one run, or serve a user of its own. Then
   the threads stay one group whose verdict is unknown.
3. Where a process has one other run (its main thread or root task), the executor's threads belong to it if it makes no
   call meanwhile: it waits for them. Plain threads belong to it if, besides, all their calls lie between its first and
   last call. Where its calls overlap theirs, nobody can tell, and the verdict is unknown.
4. A background poller (`pollers`) is by itself: it is no part of the run beside which it asks.
5. In a notebook each cell is judged by itself: the time between two cells is its reader's, not the program's. Threads
   whose calls all lie between the first and last call of one cell belong to it.

Tasks that were gathered share a root, and so are one run: marking each with `occupancy.agent_run` makes them several.
"""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from occupancy.analysis.columns import MISSING
from occupancy.analysis.distribution import combined, number
from occupancy.analysis.groups import CountedCalls
from occupancy.analysis.pollers import find_pollers
from occupancy.analysis.unit import Unit, known_spans, split
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
    joined = [unit for of_process in by_process.values() for unit in _grouped(of_process)]
    if any(map(_running_cell, calls.numbered("call_stack")[0])):
        joined = [cell for unit in joined for cell in _by_cell(unit)]
    starts_ns = calls.start_ns[np.array([unit.place[0] for unit in joined], dtype=np.int64)]
    return [joined[index] for index in np.argsort(starts_ns, kind="stable").tolist()]


def _named_runs(calls: CountedCalls) -> list[Unit]:
    place = known_spans(calls)
    if not place.size:
        return []
    runs, run = calls.numbered("run")
    pids, pid = np.unique(calls.columns["pid"][place], return_inverse=True)
    is_trace = np.array([name is not None and bool(_TRACE.fullmatch(name)) for name in runs])
    run = run[place]
    owner = combined([(run, len(runs)), (np.where(is_trace[run], 0, pid), pids.size)])
    names = calls.columns["run"]
    return [Unit(names[part[0]], calls, part) for part in split(place, owner)]


def _grouped(found: list[Unit]) -> Iterator[Unit]:
    """Apply rules 2 to 4 within one process."""
    may_poll = [_is_root(unit) and unit.name != "MainThread" for unit in found]
    roots = [unit for unit, may in zip(found, may_poll, strict=True) if may]
    others = [unit for unit, may in zip(found, may_poll, strict=True) if not may]
    pollers = find_pollers(roots, others)
    yield from (dataclasses.replace(roots[place], is_poller=True) for place in sorted(pollers))
    yield from _join_threads([*others, *(unit for place, unit in enumerate(roots) if place not in pollers)])


def _join_threads(found: list[Unit]) -> Iterator[Unit]:
    """Apply rules 2 and 3 within one process."""
    pools: dict[str, list[Unit]] = defaultdict(list)
    plain, mains = list[Unit](), list[Unit]()
    for unit in found:
        executor = executor_of(unit)
        if executor is not None:
            pools[executor].append(unit)
        elif not _is_root(unit):
            yield unit
        else:
            (plain if _is_plain_thread(unit) else mains).append(unit)
    helpers: dict[int, list[Unit]] = defaultdict(list)
    known = mains if len(mains) == 1 or all(_running_cell(main.first("call_stack")) for main in mains) else []
    for unit in [*(_one_pool(executor, threads) for executor, threads in pools.items()), *plain]:
        main = _main_of(unit, known)
        if main is None:
            yield unit
        else:
            helpers[main].append(unit)
    for place, main_run in enumerate(mains):
        yield from _with_helpers(main_run, helpers[place])


def _main_of(helper: Unit, mains: list[Unit]) -> int | None:
    """The place of the run that threads work for, of those that they may; None where that is not known."""
    if len(mains) == 1 and helper.pool is not None:
        return 0
    within = [place for place, main in enumerate(mains) if _is_within(helper, main)]
    return within[0] if len(within) == 1 else None


def _with_helpers(main: Unit, helpers: list[Unit]) -> list[Unit]:
    """Join a run and the threads that work for it; all are uncertain where it works beside them."""
    if not helpers:
        return [main]
    if any(_overlap(main, helper) for helper in helpers):
        return [dataclasses.replace(unit, certain=False) for unit in (main, *helpers)]
    together = np.concatenate([unit.place for unit in (main, *helpers)])
    order = np.argsort(main.calls.start_ns[together], kind="stable")
    return [Unit(main.name, main.calls, together[order], all(unit.certain for unit in helpers))]


def executor_of(unit: Unit) -> str | None:
    """Name the executor of a run that is one of its threads; None for any other run."""
    if not _is_root(unit) or unit.first("async_task") is not None:
        return None
    return _executor_name(unit.first("thread"), bool((unit.column("siblings") != MISSING).any()))


def _executor_name(thread: str | None, has_queue: bool) -> str | None:
    """Name the executor of a thread, which has a queue or a name that the standard library gives."""
    named = _WORKER.fullmatch(str(thread))
    return named[1] if named is not None and (has_queue or _EXECUTOR.fullmatch(named[1])) else None


def executors_of(process: Unit) -> list[Unit]:
    """Give the calls of each executor of a process, of whatever runs; none where no executor has had work waiting."""
    if not (process.column("siblings") > 1).any():
        return []
    has_task = np.array([task is not None for task in process.column("async_task").tolist()])
    in_thread = process.of(~has_task & (process.column("siblings") != MISSING))
    threads, thread = number(in_thread.column("thread").tolist())
    names, name = number([_executor_name(one, True) for one in threads])
    parts = split(np.arange(in_thread.n), name[thread])
    return [
        dataclasses.replace(in_thread, name=executor, place=in_thread.place[mine])
        for executor, mine in zip(names, parts, strict=True)
        if executor is not None
    ]


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
    """Apply rule 5. What runs a call that another thread made, or one deep in helpers, is not on its stack."""
    cells = [_running_cell(stack) for stack in unit.column("call_stack")]
    if len(set(cells) - {None}) == 1:
        cells = [max(filter(None, cells))] * unit.n
    before, after = _filled(cells), _filled(cells[::-1])[::-1]
    distinct, cell = number([one if one == other else None for one, other in zip(before, after, strict=True)])
    for index, name in enumerate(distinct):
        yield unit.of(cell == index, name=name or unit.name)


def _filled(cells: list[str | None]) -> list[str | None]:
    """Each None replaced by the last cell before it, None where there is none."""
    filled: list[str | None] = []
    for cell in cells:
        filled.append(cell or (filled[-1] if filled else None))
    return filled


def _running_cell(stack: Sequence[Frame]) -> str | None:
    """The cell that runs: known where a stack goes out to the lines of a cell itself, not only to its functions."""
    if not stack or not stack[-1].file.startswith("cell ") or stack[-1].function != "<module>":
        return None
    return stack[-1].file
