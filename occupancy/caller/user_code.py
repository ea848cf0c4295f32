"""Whose file is it: the user's, or a library's?

The standard library, installed packages and occupancy itself are libraries; everything else is the user's program,
wherever it lives. A decision is made once for each file name.
"""

import os
import sys

LOOP = "<event loop>"
"""What `origin` gives for the files that hold an event loop: see `LOOP_FUNCTIONS`."""

LOOP_FUNCTIONS = frozenset({"_run", "_run_once", "run_forever", "run_until_complete", "run", "unrolled_run"})
"""Functions of those files under which no frame belongs to the task that runs."""

_CAPACITY = 4096
"""Decisions and directory listings kept; a program that makes up file names without end only loses speed."""

_OWN_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_DEMO = _OWN_PACKAGE + "demo.py"  # the demo agent is a user's program, even when it is installed
_COMMAND = os.path.join(os.path.dirname(os.path.abspath(sys.executable)), "occupancy")  # runs a user's program
_STDLIB_FOLDERS = {os.path.dirname(os.__file__), getattr(sys, "_stdlib_dir", None)}
_STDLIB = tuple(folder + os.sep for folder in _STDLIB_FOLDERS if folder)
_INSTALLED_PARTS = frozenset({"site-packages", "dist-packages", "__pypackages__"})
_LOOP_FILES = tuple(
    os.sep + os.path.join(*parts)
    for parts in (
        ("asyncio", "events.py"),
        ("asyncio", "base_events.py"),
        ("asyncio", "runners.py"),
        ("trio", "_core", "_run.py"),
    )
)
_PROMPTS = ("<stdin>", "<string>", "<python-input-")
_CELL_PREFIX = "<ipython-input-"

_origins: dict[str, str | None] = {}
_distributions: dict[str, frozenset[str]] = {}


def origin(filename: str) -> str | None:
    """Tell whose code a file holds.

    Args:
        filename: `co_filename` of a code object.

    Returns:
        The absolute path of a user's file, `LOOP` for a file that holds an event loop, None for a library's.
    """
    try:
        return _origins[filename]
    except KeyError:
        pass
    if len(_origins) >= _CAPACITY:
        _origins.clear()
    _origins[filename] = found = _classify(filename)
    return found


def cell_name(filename: str) -> str | None:
    """Name a notebook cell as its reader knows it, by its execution count.

    Args:
        filename: `co_filename` of a user's code object.

    Returns:
        `cell 12`, or None where the file is no cell, or no IPython shell runs.
    """
    count = None
    ipython = sys.modules.get("IPython")
    if ipython is not None:
        shell = ipython.get_ipython()
        # Not kept: running the same text again moves the cell to a new count.
        count = None if shell is None else shell.compile._filename_map.get(filename)
    if count is None and filename.startswith(_CELL_PREFIX):
        count = filename[len(_CELL_PREFIX) :].partition("-")[0]
    return None if count is None else f"cell {count}"


def _classify(filename: str) -> str | None:
    """Decide for one file name; see `origin`."""
    if filename.startswith("<"):
        return filename if _is_prompt(filename) else None
    path = os.path.abspath(filename)
    if path == _DEMO:
        return path
    if path.endswith(_LOOP_FILES) and _is_library(path):
        return LOOP
    return None if path == _COMMAND or path.startswith(_OWN_PACKAGE) or _is_library(path) else path


def _is_prompt(filename: str) -> bool:
    """Tell whether code without a file is the user's: a cell, `python -c`, a prompt; not what a library generates."""
    if filename.startswith(_CELL_PREFIX):
        return True
    return filename.startswith(_PROMPTS) and getattr(sys.modules.get("__main__"), "__file__", None) is None


def _is_library(path: str) -> bool:
    """Tell whether an absolute path is the standard library's or an installed package's."""
    if path.startswith(_STDLIB) or not _INSTALLED_PARTS.isdisjoint(path.split(os.sep)):
        return True
    # `pip install --target`, pex and the like put packages beside the program, in a directory of any name.
    folder = max((entry for entry in map(_folder, sys.path) if path.startswith(entry)), key=len, default="")
    return bool(folder) and _is_distribution(folder, path[len(folder) :].split(os.sep, maxsplit=1)[0])


def _folder(entry: object) -> str:
    """Give an entry of `sys.path` as the start that paths under it have; the user may have put anything there."""
    folder = os.path.abspath(entry) if isinstance(entry, str) else os.sep
    return folder if folder.endswith(os.sep) else folder + os.sep


def _is_distribution(folder: str, name: str) -> bool:
    """Tell whether a top-level name in a directory of `sys.path` was installed there with its metadata."""
    names = _distributions.get(folder)
    if names is None:
        if len(_distributions) >= _CAPACITY:
            _distributions.clear()
        names = _distributions[folder] = _list_distributions(folder)
    if not names:
        return False
    package = name.removesuffix(".py").lower()
    if package in names:
        return True
    is_namespace = not os.path.exists(os.path.join(folder, name, "__init__.py")) and not name.endswith(".py")
    return is_namespace and any(other.startswith(package + "_") for other in names)


def _list_distributions(folder: str) -> frozenset[str]:
    """List the import names of the packages installed in a directory, in lower case; empty where it cannot be read."""
    names: set[str] = set()
    try:
        metadata = [entry for entry in os.listdir(folder) if entry.endswith(".dist-info")]
    except OSError:
        return frozenset()
    for entry in metadata:
        names.add(entry.partition("-")[0].lower().replace(".", "_"))
        try:
            with open(os.path.join(folder, entry, "top_level.txt"), encoding="utf-8") as lines:
                names.update(line.strip().lower() for line in lines if line.strip())
        except (OSError, UnicodeDecodeError):
            pass
    return frozenset(names)
