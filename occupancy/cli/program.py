"""Runs a program of the user's as `python` itself would, in this process.

The program gets its own `sys.argv`, `sys.path[0]` and a `__main__` module that is its own and stays in `sys.modules`,
so that pickling and multiprocessing find it. What it raises goes up as it is; a traceback begins with its own frames.
"""

import builtins
import importlib.util
import io
import os
import pkgutil
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any, NamedTuple

from occupancy.errors import OccupancyError


class CannotRunError(OccupancyError):
    """There is no such program; the exit code is the one that `python` would have."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Program(NamedTuple):
    """What to run."""

    module: ModuleType
    """Its new `__main__`."""
    get_code: Callable[[], CodeType]
    """Gives its code; a syntax error in it is the program's own."""


def find_script(path: str, args: list[str]) -> Program:
    """Find a script, or a folder or zip file with a `__main__.py`; set `sys.argv`, and `sys.path[0]` to its folder.

    Raises:
        CannotRunError: It is missing, or has no `__main__.py`.
    """
    importer: Any = pkgutil.get_importer(path)
    program = _find_file(path) if importer is None else _find_inside(path, importer)
    sys.argv = [path, *args]
    return program


def find_module(name: str, args: list[str]) -> Program:
    """Find a module, or the `__main__` of a package, as `python -m` does; packages above it are imported.

    Sets `sys.argv`, and `sys.path[0]` to the current folder.

    Raises:
        CannotRunError: There is no such module, or it is a package that cannot be run.
    """
    sys.argv = ["-m", *args]
    _set_path0(os.getcwd())
    spec = _spec_of(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name += ".__main__"
        spec = _spec_of(name)
    if spec is None:
        raise CannotRunError(f"no module named {name}", 1)
    sys.argv = [spec.origin or name, *args]
    return _of_spec(spec)


def run(program: Program) -> None:
    """Run a program to its end.

    Raises:
        BaseException: What the program raises.
    """
    sys.modules["__main__"] = program.module
    code = None
    try:
        code = program.get_code()
        exec(code, vars(program.module))
    except SystemExit:
        raise
    except BaseException as error:
        _hide_our_frames(error, code)
        raise


def _find_file(path: str) -> Program:
    absolute = os.path.abspath(path)
    try:
        with io.open_code(absolute) as file:
            source = file.read()
    except OSError as error:
        raise CannotRunError(f"can't open file {absolute!r}: {error.strerror}", 2) from error
    _set_path0(os.path.dirname(os.path.realpath(path)))
    module = _new_main(absolute, SourceFileLoader("__main__", absolute), None)
    return Program(module, lambda: compile(source, absolute, "exec", dont_inherit=True))


def _find_inside(path: str, importer: Any) -> Program:
    spec = importer.find_spec("__main__")
    if spec is None:
        raise CannotRunError(f"can't find '__main__' module in {path!r}", 1)
    _set_path0(os.path.abspath(path))
    return _of_spec(spec)


def _spec_of(name: str) -> ModuleSpec | None:
    if not name or name.startswith("."):
        return None
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # not of the name, but of what a package above it imports
        return None


def _of_spec(spec: ModuleSpec) -> Program:
    loader: Any = spec.loader
    return Program(_new_main(spec.origin, loader, spec), lambda: loader.get_code(spec.name))


def _new_main(file: str | None, loader: Any, spec: ModuleSpec | None) -> ModuleType:
    module = ModuleType("__main__")
    module.__spec__ = spec
    module.__loader__ = loader
    module.__package__ = None if spec is None else spec.parent
    cached = None if spec is None else spec.cached
    if sys.version_info < (3, 14):
        module.__annotations__ = {}
    vars(module).update(__builtins__=builtins, __file__=file, __cached__=cached)
    return module


def _set_path0(folder: str) -> None:
    if not sys.flags.safe_path:  # with it, python puts nothing in front
        sys.path[0] = folder


def _hide_our_frames(error: BaseException, code: CodeType | None) -> None:
    """Let the traceback that ends the process begin where the program begins."""
    hook = sys.excepthook

    def excepthook(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        sys.excepthook = hook
        if value is error:
            traceback = _from_code(traceback, code)
            value.__traceback__ = traceback
        hook(kind, value, traceback)

    sys.excepthook = excepthook


def _from_code(traceback: TracebackType | None, code: CodeType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_frame.f_code is not code:
        traceback = traceback.tb_next
    return traceback
