"""The journal: JSON lines, written as calls happen, so that `kill -9` loses nothing.

Each line is one `os.write` to a descriptor opened for appending, so many processes may share one file. A process begins
with a line that says where its clocks stood; then comes a line for each start and one, complete, for each end.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from occupancy import _guard
from occupancy.call import FIELDS, Call
from occupancy.errors import InputError

SCHEMA = 1
"""Version of the lines; a reader of a newer one says so."""

MOST_ANCESTORS = 16
"""Processes that a line of one tells, the nearest: each was forked by the one before."""

_DEFAULTS = {name: getattr(Call(), name) for name in FIELDS}


def boot_id() -> str | None:
    """What tells whether two processes share a monotonic clock, or None where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


def to_record(call: Call) -> dict[str, Any]:
    """The fields of a call that are not at their defaults, ready for JSON."""
    record = {}
    for name in FIELDS:
        value = getattr(call, name)
        if value != _DEFAULTS[name]:
            record[name] = value
    return record


class Journal:
    """Writes calls to a file as they start and end. Counting goes on when writing fails: that is told once.

    Args:
        path: The file; made when missing, appended to when there.

    Raises:
        InputError: The file cannot be opened; the message names it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._prepare(Path(path))
        self._open()

    def _prepare(self, path: Path) -> None:
        self.path = path
        self.begin_bytes = path.stat().st_size if path.is_file() else 0
        """How long the file was before this process, or the one that forked it, wrote to it."""
        self.process = _new_name()
        """The name under which this process writes."""
        self._ancestors: tuple[str, ...] = ()
        self._introduced = False
        self._written_bytes = 0
        self._fd: int | None = None

    def _open(self) -> None:
        try:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise InputError(f"cannot write the journal {str(self.path)!r}: {error.strerror}") from error

    @property
    def is_shared(self) -> bool:
        """Whether other processes have written to it since this one began."""
        size = self.path.stat().st_size if self.path.is_file() else 0
        return size - self.begin_bytes != self._written_bytes

    def start(self, call: Call) -> None:
        """Write that a call has started."""
        self._write("start", call)

    def end(self, call: Call) -> None:
        """Write a call that has ended, with all its fields."""
        self._write("end", call)

    def amend(self, call: Call) -> None:
        """Write what has become known of a call after its end."""
        self._write("amend", call)

    def restart(self) -> None:
        """Go on as another process, after a fork."""
        self._ancestors = (*self._ancestors, self.process)[-MOST_ANCESTORS:]
        self.process, self._introduced, self._written_bytes = _new_name(), False, 0

    def close(self) -> None:
        """Write no more."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _write(self, event: str, call: Call) -> None:
        if self._fd is None:
            return
        if not self._introduced:
            self._introduced = True
            forked = {"ancestors": self._ancestors} if self._ancestors else {}
            self._append({"event": "process", "process": self.process, **_clocks(), **forked})
        self._append({"event": event, "process": self.process, **to_record(call)})

    def _append(self, record: dict[str, Any]) -> None:
        if self._fd is None:
            return
        line = _to_json(record) + b"\n"
        try:
            written = os.write(self._fd, line)
            self._written_bytes += written
            if written != len(line):
                raise OSError(f"only {written} of {len(line)} bytes were written")
        except OSError as error:
            _guard.report(f"the journal {str(self.path)!r}", error)


def _to_json(record: dict[str, Any]) -> bytes:
    import orjson  # only where there is a journal

    try:
        return orjson.dumps(record, default=list)  # a frame is a tuple by another name
    except TypeError:  # half a surrogate, an integer of more than 64 bits, an object that is no field's
        return json.dumps(record, separators=(",", ":"), default=str).encode()


def _new_name() -> str:
    return os.urandom(6).hex()


def _clocks() -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "pid": os.getpid(),
        "boot_id": boot_id(),
        "unix_offset_ns": time.time_ns() - time.monotonic_ns(),
    }
