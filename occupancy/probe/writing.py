"""Results on disk."""

import os
from pathlib import Path

from occupancy.errors import InputError


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a file at once: whoever reads it meanwhile sees the old one or the new one.

    Raises:
        InputError: It cannot be written.
    """
    target = Path(path)
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(target)
    except OSError as error:
        raise InputError(f"cannot write {str(target)!r}: {error.strerror}") from error
