"""Where in the user's program a call comes from."""

import gc
import sys
from collections.abc import Iterator
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any

from occupancy._guard import report
from occupancy.call import Frame
from occupancy.caller import tasks
from occupancy.caller.user_code import LOOP, LOOP_FUNCTIONS, cell_name, origin

MAX_FRAMES = 4
"""User frames in a call stack."""
_MAX_LEVELS = 16
"""Tasks above the running one whose frames are looked at."""
_MAX_CHAIN = 256
"""Coroutines that await one another in one task."""

_ATTRIBUTES: dict[type, tuple[str, str, str]] = {
    CoroutineType: ("cr_code", "cr_frame", "cr_await"),
    GeneratorType: ("gi_code", "gi_frame", "gi_yieldfrom"),
    AsyncGeneratorType: ("ag_code", "ag_frame", "ag_await"),
}
"""Where a suspended piece of code keeps its code, its frame, and what it waits for."""
_WRAPPERS = frozenset({"async_generator_asend", "async_generator_athrow", "anext_awaitable", "coroutine_wrapper"})


def call_stack(skip: int = 0) -> tuple[Frame, ...]:
    """Give the user frames that lead to the caller.

    The walk stops at the event loop and goes on in the tasks that wait for the running one: see `tasks.awaiter`. It
    keeps no frame and no task.

    Args:
        skip: Frames to leave out first; 0 starts with the caller's own.

    Returns:
        Up to four user frames, innermost first; empty where none is known, or where anything fails.
    """
    try:
        return _walk(sys._getframe(1 + skip))
    except Exception as error:
        report("caller.call_stack", error)
        return ()


def _walk(start: FrameType) -> tuple[Frame, ...]:
    """Collect user frames from a frame outwards, through the event loop to the tasks that wait."""
    found: list[Frame] = []
    frame: FrameType | None = start
    outermost = _outermost_task_frame()
    while frame is not None:
        code = frame.f_code
        path = origin(code.co_filename)
        if path is not None:
            if path is not LOOP:
                found.append(_user_frame(path, code, frame.f_lineno))
                if len(found) == MAX_FRAMES:
                    return tuple(found)
            elif code.co_name in LOOP_FUNCTIONS:
                break
        if frame is outermost:
            break
        frame = frame.f_back
    try:
        if frame is not None:
            task = tasks.current_task() if frame is outermost else tasks.task_of_loop_frame(frame)
            _add_frames_of(found, None if task is None else tasks.awaiter(task))
        elif not found:
            _add_submitting_frames(found, start)
    except Exception as error:  # what was found before is true all the same
        report("caller.call_stack", error)
    return tuple(found[:MAX_FRAMES])


def _outermost_task_frame() -> FrameType | None:
    """Give the first frame of the current task where the loop has no frames in Python (uvloop), else None."""
    loop = tasks.running_loop()
    if loop is None or isinstance(loop, sys.modules["asyncio"].BaseEventLoop):
        return None
    get_coroutine = getattr(tasks.current_task(), "get_coro", None)
    return None if get_coroutine is None else getattr(get_coroutine(), "cr_frame", None)


def _add_submitting_frames(found: list[Frame], start: FrameType) -> None:
    """Add the user frames of the task that waits for this thread's work, where the work is a library's own function."""
    frame: FrameType | None = start
    while frame is not None:
        if frame.f_code.co_name == "run" and frame.f_globals.get("__name__") == "concurrent.futures.thread":
            break
        frame = frame.f_back
    future = None if frame is None else getattr(frame.f_locals.get("self"), "future", None)  # of the _WorkItem
    _add_frames_of(found, tasks.awaiter_of_work(future))
    if tasks.awaiter_of_work(future) is None:  # it goes on meanwhile: its line is no longer that one
        found.clear()


def _add_frames_of(found: list[Frame], above: tasks.Awaiter | None) -> None:
    """Add the user frames of a task that waits and of those that wait for it, innermost first."""
    for _ in range(_MAX_LEVELS):
        if above is None or not above.waits or len(found) >= MAX_FRAMES:
            return
        task = above.task
        coroutine = task.get_coro() if hasattr(task, "get_coro") else task.coro
        for path, frame in reversed(list(_suspended_frames(coroutine))):
            found.append(_user_frame(path, frame.f_code, frame.f_lineno))
        above = tasks.awaiter(task)


def _suspended_frames(awaited: Any) -> Iterator[tuple[str, FrameType]]:
    """Follow the coroutines and generators that a suspended task waits in; outermost first, the user's only."""
    for code, frame in suspended(awaited):
        path = origin(code.co_filename)
        if path is not None and path is not LOOP and frame is not None:
            yield path, frame


def suspended(awaited: Any) -> Iterator[tuple[CodeType, FrameType | None]]:
    """Follow the coroutines and generators that a suspended task waits in; outermost first."""
    for _ in range(_MAX_CHAIN):
        if awaited is None:
            return
        if type(awaited).__name__ in _WRAPPERS:
            awaited = _unwrap(awaited)
            continue
        # Coroutines of Cython have the attributes but not the type; a future has none of them, and is the end.
        code_name, frame_name, awaited_name = _ATTRIBUTES.get(type(awaited), _ATTRIBUTES[CoroutineType])
        code = getattr(awaited, code_name, None)
        if code is not None:
            yield code, getattr(awaited, frame_name, None)
        awaited = getattr(awaited, awaited_name, None)


def _unwrap(wrapper: Any) -> Any | None:
    """Give what one of the interpreter's own awaitables stands for: it has no attribute that tells."""
    for inner in gc.get_referents(wrapper):
        if type(inner) in _ATTRIBUTES or type(inner).__name__ in _WRAPPERS:
            return inner
    return None


def _user_frame(path: str, code: CodeType, line: int | None) -> Frame:
    """Make a record of a user's frame, with the cell's name in a notebook."""
    return Frame(cell_name(code.co_filename) or path, line or 0, code.co_qualname)
