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
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from occupancy.analysis.columns import MISSING
from occupancy.analysis.distribution import number
from occupancy.analysis.groups import CountedCalls
from occupancy.analysis.steps import Int64, Steps, steps, wire_start
from occupancy.call import Frame

_TRACE = re.compile(r"[0-9a-f]{32}")
_SECOND_OF_ITS_NAME = re.compile(r" #\d+$")
_WORKER = re.compile(r"(.+)_\d+")
_EXECUTOR = re.compile(r"ThreadPoolExecutor-\d+|asyncio")
"""Names that the standard library gives: with `_` and a number, of `concurrent.futures` and of `asyncio.to_thread`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Unit:
    """Calls that are judged together, in the order of their starts."""

    name: str | None
    calls: CountedCalls
    place: Int64
    """Their places among all counted calls, shape (n,); all have an end."""
    certain: bool = True
    """Whether they are known to be one run."""
    pool: str | None = None
    """The executor whose threads they come from, where they are of no other run."""

    @property
    def n(self) -> int:
        """How many there are."""
        return int(self.place.size)

    @cached_property
    def start_ns(self) -> Int64:
        """Starts, ns, ascending."""
        return self.calls.start_ns[self.place]

    @cached_property
    def end_ns(self) -> Int64:
        """Ends, ns."""
        return self.calls.end_ns[self.place]

    @cached_property
    def steps(self) -> Steps:
        """Calls in flight over time."""
        return steps(self.start_ns, self.end_ns)

    @cached_property
    def wire_ns(self) -> Int64:
        """When each went on the wire, ns; after its end where it never got there."""
        return wire_start({name: self.column(name) for name in ("start_ns", "client_ns", "gate_ns", "pool_ns")})

    @cached_property
    def wire(self) -> Steps:
        """Calls on the wire over time."""
        return steps(self.wire_ns, self.end_ns)

    @cached_property
    def most_on_wire(self) -> Int64:
        """For each call the most of these calls that are on the wire at once while it is there."""
        levels = np.concatenate(([0], self.wire.in_flight, [0]))
        first = np.searchsorted(self.wire.t_ns, self.wire_ns, side="right")
        stop = np.maximum(np.searchsorted(self.wire.t_ns, self.end_ns, side="left") + 1, first + 1)
        highest: Int64 = np.maximum.reduceat(levels, np.column_stack((first, stop)).ravel())[::2]
        return highest

    @cached_property
    def flow(self) -> Int64:
        """For each call the number of its thread and task, which make one call at a time."""
        return self._numbered("pid", "thread", "async_task")

    @cached_property
    def target(self) -> Int64:
        """For each call the number of its target: the calls to one are alike."""
        return self._numbered("host", "path", "model")

    @cached_property
    def logical(self) -> Int64:
        """For each call the number of its logical call, in the order of first starts; its own where none is known."""
        ids = self.column("logical_id")
        distinct, known = np.unique(np.where(ids > 0, ids, -1 - self.place), return_inverse=True)
        pids, pid = np.unique(self.column("pid"), return_inverse=True)
        return _combined([(pid, pids.size), (known, distinct.size)])

    @property
    def n_logical(self) -> int:
        """Logical calls: attempts of one taken together."""
        return int(self.logical.max(initial=-1)) + 1

    @cached_property
    def frames(self) -> list[Frame | None]:
        """For each call its place in the program."""
        return [self.calls.frames[site] for site in self.calls.site[self.place].tolist()]

    def _numbered(self, *names: str) -> Int64:
        """For each call the number of what some columns together hold for it, in the order of their firsts."""
        columns = (number(self.column(name).tolist()) for name in names)
        return _combined([(place, len(values)) for values, place in columns])

    def first(self, name: str) -> Any:
        """What a column holds for the first of these calls."""
        return self.calls.columns[name][self.place[0]]

    def column(self, name: str) -> NDArray[Any]:
        """A column of `Call`, for these calls."""
        column: NDArray[Any] = self.calls.columns[name][self.place]
        return column

    def of(self, mask: NDArray[np.bool_], **changes: Any) -> "Unit":
        """Some of these calls."""
        return dataclasses.replace(self, place=self.place[mask], **changes)


def _combined(parts: list[tuple[Int64, int]]) -> Int64:
    """Number the combinations of several numberings, `(numbers, how many)`, in the order in which they first come."""
    key = np.zeros(parts[0][0].shape, dtype=np.int64)
    for place, n in parts:
        _, key = np.unique(key * n + place, return_inverse=True)
    _, first, key = np.unique(key, return_index=True, return_inverse=True)
    rank = np.empty(first.size, dtype=np.int64)
    rank[np.argsort(first)] = np.arange(first.size)
    return rank[key]


def split(place: Int64, owner: Int64) -> list[Int64]:
    """Split places by owner, 0, 1, ..., all of which occur, in one sort: there may be as many owners as calls."""
    if not place.size:
        return []
    ordered = place[np.argsort(owner, kind="stable")]
    return [ordered[first:stop] for first, stop in pairwise([0, *np.cumsum(np.bincount(owner)).tolist()])]


def known_spans(calls: CountedCalls) -> Int64:
    """Places of the calls that start and end, in the order of their starts: the others occupy nothing."""
    usable = np.flatnonzero((calls.start_ns != MISSING) & (calls.end_ns >= calls.start_ns))
    return usable[np.lexsort((calls.end_ns[usable], calls.start_ns[usable]))]


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
    owner = _combined([(run, len(runs)), (np.where(is_trace[run], 0, pid), pids.size)])
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
