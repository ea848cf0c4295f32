"""Writing a file of calls, compressed where its name says so."""

import gzip
import io
import os
from collections.abc import Iterable
from typing import Any, TextIO, cast

from occupancy.errors import InputError

_TEXT: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace", "newline": ""}
"""JSON of others may hold half a character, which UTF-8 cannot write."""


def write(path: str | os.PathLike[str], pieces: Iterable[str]) -> None:
    """Write a file anew, from pieces of its text; with gzip where its name ends with `.gz`.

    Raises:
        InputError: It cannot be written; names it.
    """
    name = os.fspath(path)
    try:
        with _open(name) as file:
            file.writelines(pieces)
    except OSError as error:
        raise InputError(f"cannot write {name!r}: {error.strerror}") from error


def _open(name: str) -> TextIO:
    if name.endswith(".gz"):
        return cast(TextIO, io.TextIOWrapper(gzip.open(name, "wb", compresslevel=6), **_TEXT))
    return cast(TextIO, open(name, "w", **_TEXT))
