"""Work that was handed over together, and whether a lock or semaphore holds some of it."""

import threading
import weakref
from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

from occupancy._guard import report
from occupancy.caller.frames import suspended
from occupancy.caller.tasks import MAX_LEVELS, awaiter, cell, current_task

LOOKED_AT = 2
"""Siblings that are looked at: who has waited longest for its turn is the last of a `gather`."""
_SKIPPED = 8
"""Siblings that are passed over since they are done."""
_TAKES = frozenset({"acquire", "acquire_on_behalf_of"})
"""What locks, semaphores and limiters of asyncio, anyio, trio and others call the wait for one's turn."""


class Siblings(NamedTuple):
    """Work that was handed over together and is not done yet, the caller's own included."""

    n: int | None = None
    """In a task: the tasks that are left of a `gather`, `wait`, `as_completed`, task group or nursery, the largest of
    those above the task. In an executor's thread: what the executor runs and what waits in its queue. None where there
    is no such group, or where anything fails."""
    is_held: bool | None = None
    """Whether one of the tasks is seen to wait for its turn at a lock or semaphore; None where nobody can see."""


def siblings() -> Siblings:
    """Look at what was handed over together with what runs now."""
    try:
        task = current_task()
        if task is None:
            return Siblings(_executor_work())
        n, members = _largest_group(task)
        return Siblings(n or None, _is_any_held(members, task) if n > 1 and members is not None else None)
    except Exception as error:
        report("caller.siblings", error)
        return Siblings()


def _largest_group(task: Any) -> tuple[int, Iterable[Any] | None]:
    """Climb as `root_task` does, and count at each level."""
    largest: tuple[int, Iterable[Any] | None] = 0, None
    for _ in range(MAX_LEVELS):
        largest = max(largest, _group(task), key=lambda group: group[0])
        above = awaiter(task)
        if above is None:
            break
        task = above.task
    return largest


def _group(task: Any) -> tuple[int, Iterable[Any] | None]:
    """Count what is left of the group that a task was started in, 0 without one; no group is walked, all keep count."""
    nursery = getattr(task, "parent_nursery", None)
    if nursery is not None:
        is_user_s = nursery.parent_task.parent_nursery is not None
        return (len(nursery.child_tasks), nursery.child_tasks) if is_user_s else (0, None)
    for callback, _context in getattr(task, "_callbacks", None) or ():
        owner = getattr(callback, "__self__", None)
        if owner is not None:
            if hasattr(owner, "_parent_task"):  # TaskGroup._on_task_done
                return len(owner._tasks), owner._tasks
        elif getattr(callback, "__module__", None) == "asyncio.tasks":
            n, n_done = cell(callback, "nfuts"), cell(callback, "nfinished")
            if n is not None and n_done is not None:  # gather
                return int(n - n_done), reversed(cell(callback, "children") or [])
            left = cell(callback, "counter")  # wait
            return (len(cell(callback, "todo") or ()) if left is None else int(left)), None
        elif getattr(callback, "__module__", None) == "anyio._backends._asyncio":
            tasks = getattr(cell(callback, "self"), "_tasks", ())
            return len(tasks), tasks
    return 0, None


def _is_any_held(members: Iterable[Any], but: Any) -> bool:
    """Whether one of a few members waits for its turn."""
    others = [task for task in islice(members, _SKIPPED) if task is not but and not _is_done(task)]
    return any(_is_held(task) for task in others[:LOOKED_AT])


def _is_done(task: Any) -> bool:
    return bool(task.done()) if hasattr(task, "done") else False  # a nursery keeps only those that are not


def _is_held(task: Any) -> bool:
    """Whether a task stands still in `acquire`, and not in that of an HTTP client: there its call has begun."""
    coroutine = task.get_coro() if hasattr(task, "get_coro") else getattr(task, "coro", None)
    codes = [code for code, _ in suspended(coroutine)]
    return any(code.co_name in _TAKES for code in codes) and not any("httpcore" in code.co_filename for code in codes)


def _executor_work() -> int | None:
    """Count what the `ThreadPoolExecutor` of this thread runs and has queued; None in any other thread."""
    arguments = getattr(threading.current_thread(), "_args", None) or (None,)
    executor: Any = arguments[0]() if isinstance(arguments[0], weakref.ref) else None
    queue = getattr(executor, "_work_queue", None)
    if queue is None:
        return None
    idle = getattr(getattr(executor, "_idle_semaphore", None), "_value", 0)
    return int(max(len(executor._threads) - idle, 1) + queue.qsize())
