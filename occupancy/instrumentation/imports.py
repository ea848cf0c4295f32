"""Runs a function when the program imports a module, so that importing us imports no client.

wrapt does the same, but importing it costs as much as all of ours may (asyncio and importlib.metadata come with it).
For the same reason nothing here inherits from `importlib.abc`: the import system asks for methods, not for classes.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from threading import get_ident
from types import ModuleType
from typing import TYPE_CHECKING, Any

from occupancy import _guard

if TYPE_CHECKING:
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec

Hook = Callable[[ModuleType], object]


class _Loader:
    """Loads as the real loader does, then runs the hook."""

    def __init__(self, loader: "Loader", hook: Hook) -> None:
        self._loader = loader
        self._hook = hook

    def __getattr__(self, name: str) -> Any:
        # Who finds the module without importing it gets this loader, and may ask it for its source or data.
        if name == "_loader":  # not there yet, in a copy
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec: "ModuleSpec") -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module must look as if we had not been there: pickling, resources and reloading ask its loader.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _guard.guarded(self._hook)(module)


class _Finder:
    """Finds the modules that hooks wait for, through the other finders."""

    def __init__(self) -> None:
        self.hooks: dict[str, Hook] = {}
        self._searching: set[tuple[int, str]] = set()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> "ModuleSpec | None":
        hook, search = self.hooks.get(name), (get_ident(), name)
        if hook is None or search in self._searching:  # another finder that asks all the others has come back to us
            return None
        self._searching.add(search)
        try:
            spec = self._ask_others(name, path, target)
        finally:
            self._searching.discard(search)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, hook)  # type: ignore[assignment]  # a loader by its methods
        return spec

    def _ask_others(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> "ModuleSpec | None":
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                return spec
        return None


_finder = _Finder()


def when_imported(name: str, hook: Hook) -> None:
    """Call `hook` with a top-level module as soon as it is imported, now where it has been.

    The hook may run again for a module that is reloaded; an exception of it is logged, never raised into the import.
    """
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.hooks[name] = hook
    module = sys.modules.get(name)
    if module is not None and _is_initialising(module):
        module = _when_initialised(name)
    if module is not None:
        _guard.guarded(hook)(module)


def forget(name: str) -> None:
    """Call no hook for this module any more."""
    _finder.hooks.pop(name, None)
    if not _finder.hooks and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


def _when_initialised(name: str) -> ModuleType | None:
    """Wait for another thread that is importing a module; None where that is this thread, or the import fails."""
    try:
        module = importlib.import_module(name)
    except Exception:  # told to the thread that imports it
        return None
    return None if _is_initialising(module) else module


def _is_initialising(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
