"""Coroutines on a clock that stands still while they run, and jumps while they sleep.

looptime does the same for pytest-asyncio's users; we have no other use for that plugin, and this is all it takes here.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that begins at second 0, and whose sleeps take no real time."""

    def __init__(self) -> None:
        super().__init__(_Jumps(self))
        self.now_s = 0.0

    def time(self) -> float:
        """The virtual time, in s."""
        return self.now_s


class _Jumps(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits, and nothing is due")
        self._loop.now_s += timeout
        return super().select(0)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to its end in an event loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)
