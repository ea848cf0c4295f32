"""Which frame of a call stack tells calls apart that come through one helper."""

from collections import defaultdict
from collections.abc import Iterable

from occupancy.call import Frame

Stack = tuple[Frame, ...]
"""User frames of a call, innermost first."""


def common_depth(stacks: Iterable[Stack]) -> int:
    """How many of the innermost frames all stacks share; 0 without stacks."""
    depth = 0
    for frames in zip(*stacks, strict=False):
        if len(set(frames)) > 1:
            break
        depth += 1
    return depth


def differing_frames(first: Stack, second: Stack) -> tuple[Frame | None, Frame | None]:
    """The innermost frames in which two stacks differ.

    Returns:
        One frame of each. Equal stacks give their call site twice; where one stack ends inside the other it gives its
        outermost frame; an empty stack gives None.
    """
    depth = 0 if first == second else common_depth((first, second))
    return _frame_at(first, depth), _frame_at(second, depth)


def telling_frames(stacks: Iterable[Stack]) -> dict[Stack, Frame | None]:
    """The frame that names each stack in a report.

    It is the call site where that is reached in one way only. Where a call site is reached in several ways (a helper),
    it is the innermost frame in which those ways differ: two calls through one `llm()` are named by the lines that
    called `llm()`.

    Args:
        stacks: Any number, repeats allowed.

    Returns:
        One frame for each distinct stack; None for the empty stack. Empty for no stacks.
    """
    ways: dict[Frame | None, list[Stack]] = defaultdict(list)
    for stack in dict.fromkeys(stacks):
        ways[stack[0] if stack else None].append(stack)
    depths = ((sharing, common_depth(sharing) if len(sharing) > 1 else 0) for sharing in ways.values())
    return {stack: _frame_at(stack, depth) for sharing, depth in depths for stack in sharing}


def _frame_at(stack: Stack, depth: int) -> Frame | None:
    return stack[min(depth, len(stack) - 1)] if stack else None
