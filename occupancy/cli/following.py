"""A text file that others write to, followed as `tail -F` does: it may come later, be emptied, or be replaced."""

import os
import stat

from occupancy.errors import ReadError

PIECE_BYTES = 1 << 20
"""Read at once."""
LONGEST_LINE_BYTES = 1 << 24
"""A longer line is given in pieces."""
OVERLAP_BYTES = 64
"""Compared with the file before reading on: it may have been written anew to a greater length."""
FILES = 4
"""Files of one name that are read at once: a program writes on into a file that was renamed."""


class FollowedFile:
    """Gives what has been added since, in whole lines.

    Args:
        path: The file.
        skip_bytes: What is left out of it, from its begin.
    """

    def __init__(self, path: str, skip_bytes: int = 0) -> None:
        self._path = path
        self._skip_bytes = skip_bytes
        self._sources: list[_Source] = []

    @property
    def found(self) -> bool:
        """Whether the file has been there."""
        return bool(self._sources)

    @property
    def behind_bytes(self) -> int:
        """How much is written and not read yet."""
        return sum(max(source.size() - source.position, 0) for source in self._sources)

    def read(self) -> bytes:
        """Give the next lines, about `PIECE_BYTES` at most; empty where none was added.

        Raises:
            ReadError: It is no regular file, or cannot be read.
        """
        try:
            self._open_new()
            return next(filter(None, (source.read() for source in self._sources)), b"")
        except OSError as error:
            raise ReadError(f"cannot read {self._path!r}: {error.strerror}") from error

    def _open_new(self) -> None:
        """Open the file of this name, unless that is done."""
        try:
            found = os.stat(self._path)
            if any(source.is_file(found) for source in self._sources):
                return
            if not stat.S_ISREG(found.st_mode):
                raise ReadError(f"cannot read {self._path!r}: it is no regular file")
            self._sources.append(_Source(self._path, self._skip_bytes))
            self._skip_bytes = 0
        except FileNotFoundError:  # not there yet, or just about to be replaced
            return
        while len(self._sources) > FILES:
            self._sources.pop(0).close()


class _Source:
    """One open file, and how far it is read."""

    def __init__(self, path: str, position: int) -> None:
        self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self._forget()
        self.position = position

    def _forget(self) -> None:
        self.position = 0
        self._rest: list[bytes] = []  # the line that has no end yet
        self._overlap = b""

    def close(self) -> None:
        os.close(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def is_file(self, found: os.stat_result) -> bool:
        return os.path.samestat(found, os.fstat(self._fd))

    def read(self) -> bytes:
        """Give the next whole lines; empty where there is none."""
        size = self.size()
        if size == self.position:
            return b""
        if size < self.position or not self._is_unchanged():
            self._forget()
        while data := self._read_at(self.position, PIECE_BYTES):
            self.position += len(data)
            self._overlap = (self._overlap + data)[-OVERLAP_BYTES:]
            lines = self._take(data)
            if lines:
                return lines
        return b""

    def _take(self, data: bytes) -> bytes:
        """Put what was read behind the line that has no end yet; give what has become whole."""
        whole, newline, rest = data.rpartition(b"\n")
        if not newline and sum(map(len, self._rest)) < LONGEST_LINE_BYTES:
            self._rest.append(rest)
            return b""
        lines = b"".join([*self._rest, whole, newline or rest])
        self._rest = [rest] if newline and rest else []
        return lines

    def _is_unchanged(self) -> bool:
        """Whether what was read last is still where it was."""
        return self._read_at(self.position - len(self._overlap), len(self._overlap)) == self._overlap

    def _read_at(self, position: int, size: int) -> bytes:
        os.lseek(self._fd, position, os.SEEK_SET)
        return os.read(self._fd, size)
