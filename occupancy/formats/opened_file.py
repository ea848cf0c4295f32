"""A file as it is read: what gzip has compressed in it, in UTF-8, as far as it is whole."""

import gzip
import io
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from occupancy.errors import ReadError

MAGIC = b"\x1f\x8b"
"""How gzip begins."""
PIECE_BYTES = 1 << 16


class OpenedFile:
    """A file that is open.

    Args:
        file: What it holds.
        unpacked: Where it is compressed, what unpacks it.
    """

    def __init__(self, file: "io.BufferedReader[Any]", unpacked: "_Unpacked | None") -> None:
        self.file = file
        """Without the mark that some editors begin a text with."""
        self._unpacked = unpacked

    @property
    def damage(self) -> str | None:
        """What is wrong with the gzip that has been read till now, or None: `file` ends there."""
        return None if self._unpacked is None else self._unpacked.damage


@contextmanager
def opened(name: str) -> Iterator[OpenedFile]:
    """Open a file, or what gzip has compressed in it. UTF-16, as some shells write it, is read as UTF-8.

    Raises:
        ReadError: It cannot be read.
    """
    try:
        with Path(name).open("rb") as plain:
            compressed = plain.peek(len(MAGIC)).startswith(MAGIC)
            unpacked = _Unpacked(gzip.GzipFile(fileobj=plain)) if compressed else None
            with plain if unpacked is None else io.BufferedReader(unpacked, PIECE_BYTES) as file:
                yield OpenedFile(_in_utf8(file), unpacked)
    except OSError as error:
        raise ReadError(f"cannot read {name!r}: {error.strerror}") from error


def _in_utf8(file: "io.BufferedReader[Any]") -> "io.BufferedReader[Any]":
    beginning = file.peek(len(BOM_UTF8))
    if beginning.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        text = file.read().decode("utf-16", errors="replace")
        return io.BufferedReader(io.BytesIO(text.encode("utf-8", errors="replace")))
    if beginning.startswith(BOM_UTF8):
        file.read(len(BOM_UTF8))
    return file


class _Unpacked(io.RawIOBase):
    """What gzip has compressed. Where it is torn or broken it ends, and says why."""

    def __init__(self, packed: gzip.GzipFile) -> None:
        self._packed = packed
        self.damage: str | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer: less than that is the end."""
        filled = 0
        while filled < len(buffer) and self.damage is None:
            try:
                piece = self._packed.read1(len(buffer) - filled)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                self.damage = f"broken gzip: {error}"
                break
            if not piece:
                break
            buffer[filled : filled + len(piece)] = piece
            filled += len(piece)
        return filled
