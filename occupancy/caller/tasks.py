"""Which task runs, which task waits for it, and which one is at the root of them all.

asyncio and trio are looked up in `sys.modules` when a call is made: a program that does not use them does not pay for
them. Their tasks are read through attributes that both the C and the Python versions have, and nothing keeps a task
alive.
"""

import inspect
import itertools
import re
import sys
import threading
import weakref
from types import FrameType
from typing import Any, NamedTuple

from occupancy._guard import report
from occupancy.caller.user_code import LOOP, LOOP_FUNCTIONS, origin

_ASYNC_FLAGS = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
MAX_LEVELS = 32
"""Tasks above a task, and futures between two tasks, that are looked at."""
_MAX_NAMES = 10_000
"""Names given to roots that are remembered, so that no other root gets the same."""

_NUMBERED = re.compile(r"Task-\d+")
"""Names that asyncio gives by itself, each once."""
_root_names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_flow_names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_taken_names: dict[str, object] = {}
_serial = itertools.count(2)


class RootFlow(NamedTuple):
    """Where a call runs, and on whose behalf."""

    task: str | None
    """Name of the asyncio or trio task; None outside of one."""
    thread: str
    """Name of the thread."""
    root: str
    """The task at the top of those that wait for this one, as `task Task-1`, else the thread's name. No two roots of a
    process share it: a second `task agent` is `task agent #2`."""


class Awaiter(NamedTuple):
    """The task that another one reports to."""

    task: Any
    waits: bool
    """Whether it stands still until the other ends. False while it is still in the body of a task group: its current
    line has then nothing to do with the other task."""


def root_flow() -> RootFlow:
    """Name the current task, thread and root; without a task, or where anything fails, the thread is the root."""
    thread = threading.current_thread()
    try:
        task = current_task()
        if task is None:
            return RootFlow(None, thread.name, _unique_name(thread, thread.name))
        top = root_task(task)
        return RootFlow(_own_name(task), thread.name, _unique_name(top, f"task {_task_name(top)}"))
    except Exception as error:
        report("caller.root_flow", error)
        return RootFlow(None, thread.name, thread.name)


def sync_in_event_loop() -> bool:
    """Tell whether a running asyncio or trio loop owns this thread: a synchronous call stops its other tasks.

    A notebook's kernel runs a loop of its own. There only code of the user's that is itself async counts.
    """
    try:
        if running_loop() is not None:
            return "ipykernel" not in sys.modules or _is_below_async_user_code()
        trio = sys.modules.get("trio")
        return trio is not None and bool(trio.lowlevel.in_trio_run())
    except Exception as error:
        report("caller.sync_in_event_loop", error)
        return False


def _is_below_async_user_code() -> bool:
    """Tell whether a coroutine of the user's is on the stack, up to the loop that runs it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        path = origin(code.co_filename)
        if path is LOOP and code.co_name in LOOP_FUNCTIONS:
            return False
        if path is not None and code.co_flags & _ASYNC_FLAGS:
            return True
        frame = frame.f_back
    return False


def running_loop() -> Any | None:
    """Give the asyncio loop that runs in this thread, or None."""
    lookup = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    return None if lookup is None else lookup()


def current_task() -> Any | None:
    """Give the asyncio or trio task that runs in this thread, or None."""
    loop = running_loop()
    task = None if loop is None else sys.modules["asyncio"].current_task(loop)
    return _current_trio_task() if task is None else task


def root_task(task: Any) -> Any:
    """Climb from a task to the one at the top of those that wait for it: itself where none does."""
    loop = running_loop()
    if loop is not None and loop.get_task_factory() is not None:
        task = _stepping_task() or task
    for _ in range(MAX_LEVELS):
        above = awaiter(task)
        if above is None:
            break
        task = above.task
    return task


def task_of_loop_frame(frame: FrameType) -> Any | None:
    """Find the task whose step an event loop's frame runs; None where it runs a plain callback.

    An eager task (Python 3.12) takes its first step inside its creator's: the loop's frame then belongs to the creator.
    """
    name = frame.f_code.co_name
    if name == "unrolled_run":
        return _current_trio_task()
    if name == "_run":
        handle = frame.f_locals.get("self")
        task = getattr(getattr(handle, "_callback", None), "__self__", None)
        return task if hasattr(task, "get_coro") else None
    return current_task()


def awaiter(task: Any) -> Awaiter | None:
    """Find the task that waits for another one through `gather` or a task group.

    Followed are asyncio's `gather`, `TaskGroup`, `wait`, `shield` and `wait_for` (a task of its own on Python 3.11),
    anyio's task groups and trio's nurseries. A task that was only created, even if one awaits it directly later, runs
    on its own.

    Args:
        task: An asyncio or trio task.

    Returns:
        The task above, or None.
    """
    if hasattr(task, "parent_nursery"):
        return _trio_awaiter(task)
    return _waiter(task, task) or _recorded_awaiter(task)


def awaiter_of_work(future: Any) -> Awaiter | None:
    """Find the task that stands still until a piece of an executor's work is done.

    Args:
        future: Of `concurrent.futures`, as `loop.run_in_executor` and `asyncio.to_thread` get it.

    Returns:
        The task, or None: nobody waits, or not yet.
    """
    for callback in tuple(getattr(future, "_done_callbacks", None) or ()):
        awaited = cell(callback, "destination")  # asyncio's own future, which this one is chained to
        above = None if awaited is None else _waiter(awaited, None)
        if above is not None:
            return above
    return None


def _waiter(future: Any, task: Any) -> Awaiter | None:
    """Go from a future, or from a task as one, to the task that waits for it."""
    for _ in range(MAX_LEVELS):
        above: Any = None
        for callback, _context in tuple(getattr(future, "_callbacks", None) or ()):
            above = _follow(callback, future, task)
            if above is not None:
                break
        if above is None or isinstance(above, Awaiter):
            return above
        future = above
    return None


def _follow(callback: Any, future: Any, task: Any) -> Any | None:
    """Go where a done-callback leads: to an `Awaiter`, to the next future, or nowhere (None)."""
    owner = getattr(callback, "__self__", None)
    if owner is not None:
        parent = getattr(owner, "_parent_task", None)  # TaskGroup._on_task_done
        if parent is not None:
            return Awaiter(parent, bool(getattr(owner, "_exiting", True)))
        if future is not task and getattr(owner, "_fut_waiter", None) is future:  # the wake-up of a task
            return Awaiter(owner, True)
        return None
    module = getattr(callback, "__module__", None)
    if module == "asyncio.tasks":
        # gather and shield call it `outer`, wait calls it `waiter`.
        return cell(callback, "outer") or cell(callback, "waiter")
    if module == "anyio._backends._asyncio":
        return _anyio_awaiter(callback)
    function = getattr(callback, "func", None)  # wait_for on Python 3.11: partial(_release_waiter, waiter)
    return callback.args[0] if getattr(function, "__name__", None) == "_release_waiter" else None


def _anyio_awaiter(callback: Any) -> Any | None:
    """Go from the done-callback of an anyio task to what waits: the caller of `start()`, else the group's host task."""
    starting = cell(callback, "task_status_future")
    if starting is not None and not starting.done():
        return starting
    group = cell(callback, "self")
    host = getattr(getattr(group, "cancel_scope", None), "_host_task", None)
    return None if host is None else Awaiter(host, getattr(group, "_on_completed_fut", None) is not None)


def _recorded_awaiter(task: Any) -> Awaiter | None:
    """Read the awaiter that Python 3.14 records; it knows `gather` before anyone awaits it."""
    recorded = getattr(task, "_asyncio_awaited_by", None)
    if not recorded or len(recorded) != 1:
        return None
    (above,) = recorded
    is_direct = getattr(above, "_fut_waiter", None) is task
    return Awaiter(above, False) if hasattr(above, "get_coro") and not is_direct else None


def _trio_awaiter(task: Any) -> Awaiter | None:
    """Find the task whose nursery holds a trio task; trio's own init task does not count."""
    nursery = task.parent_nursery
    parent = None if nursery is None else nursery.parent_task
    if parent is None or parent.parent_nursery is None:
        return None
    return Awaiter(parent, bool(getattr(nursery, "_parent_waiting_in_aexit", True)))


def _current_trio_task() -> Any | None:
    """Give the trio task that runs in this thread, or None."""
    lowlevel = getattr(sys.modules.get("trio"), "lowlevel", None)
    if lowlevel is None:
        return None
    try:
        return lowlevel.current_task()
    except RuntimeError:
        return None


def _stepping_task() -> Any | None:
    """Find the asyncio task whose step the loop runs, below the eager tasks that were started in it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_run" and frame.f_globals.get("__name__") == "asyncio.events":
            return task_of_loop_frame(frame)
        frame = frame.f_back
    return None


def cell(function: Any, name: str) -> Any | None:
    """Read a variable that a nested function closes over; None where there is none, or it is not set yet."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    if name not in names:
        return None
    try:
        return function.__closure__[names.index(name)].cell_contents
    except ValueError:
        return None


def _task_name(task: Any) -> str:
    """Give the name of an asyncio or trio task."""
    return str(task.get_name() if hasattr(task, "get_name") else task.name)


def _own_name(task: Any) -> str:
    """Give the name of a task, with a number where another one has had it: anyio and trio name it as its function."""
    name = _task_name(task)
    return name if _NUMBERED.fullmatch(name) else _unique_name(task, name, _flow_names)


def _unique_name(root: Any, name: str, names: "weakref.WeakKeyDictionary[Any, str]" = _root_names) -> str:
    """Give a task or thread a name that no other one of this process has: its own, where that is still free."""
    try:
        known = names.get(root)
    except TypeError:  # a task of the host's own making that takes no weak reference
        return f"{name} at {id(root):#x}"
    if known is not None:
        return known
    mine = object()
    # One atomic step instead of a lock, which a finalizer could meet while its own thread holds it.
    if len(_taken_names) >= _MAX_NAMES or _taken_names.setdefault(name, mine) is not mine:
        name = f"{name} #{next(_serial)}"
    names[root] = name
    return name
