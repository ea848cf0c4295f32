"""Replaces methods of the host's clients by ours, and puts the originals back."""

import functools
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

MOST_WRAPPERS = 32

Owner = type | ModuleType
Make = Callable[[Any, "Patch"], Any]


class Patch:
    """One method replaced by ours, which calls the original.

    Args:
        owner: The class, or the module of a function.
        name: The method.
        make: Makes ours, of the original and the patch.
        in_use: Whether requests are under way that need it to their ends.
    """

    def __init__(self, owner: Owner, name: str, make: Make, in_use: Callable[[], bool]) -> None:
        self.owner = owner
        self.name = name
        self.active = True
        self._in_use = in_use
        # As it lies in the class: that is what is restored. A wrapper of wrapt's looks different when it is asked for.
        self._found = vars(owner).get(name)
        original = getattr(owner, name)
        self.ours = functools.wraps(original)(make(original, self))
        setattr(owner, name, self.ours)

    @property
    def is_reached(self) -> bool:
        """Whether ours is the method, or is known to lie below somebody's wrapper."""
        method = vars(self.owner).get(self.name)
        for _ in range(MOST_WRAPPERS):
            if method is self.ours:
                return True
            method = getattr(method, "__wrapped__", None)
        return False

    def remove(self) -> bool:
        """Restore the original. False where it stays, but begins nothing: wrapped by somebody, or in use."""
        self.active = False
        if vars(self.owner).get(self.name) is not self.ours or self._in_use():
            return False
        if self._found is None:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self._found)
        return True


_patches: list[Patch] = []
_patching = threading.Lock()


def replace_method(owner: Owner, name: str, make: Make, in_use: Callable[[], bool] = lambda: False) -> None:
    """Replace a method of a class by ours, unless ours is there already.

    Args:
        owner: The class: httpx may be another name of httpx2.
        name: The method.
        make: Makes ours, of the original and the patch.
        in_use: Whether requests are under way that need it to their ends, where one request passes through several.
    """
    with _patching:
        ours = [patch for patch in _patches if (patch.owner, patch.name) == (owner, name)]
        for patch in ours:
            patch.active = True
        # One that cannot be seen below a wrapper of somebody may still be called: the outermost then counts alone.
        if not any(patch.is_reached for patch in ours):
            _patches.append(Patch(owner, name, make, in_use))


def restore_methods() -> None:
    """Put back all originals; what somebody has wrapped or needs stays in place, and begins nothing."""
    with _patching:
        # The newest first, so that each finds its own where it has put it.
        _patches[:] = [patch for patch in reversed(_patches) if not patch.remove()][::-1]
