"""The lines of a journal: which process they are of, on which clock, and the calls of one that grows."""

import functools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from occupancy.call import FIELD_TYPES, FIELDS, STAMPS, Call, Frame, Kind
from occupancy.errors import ReadError
from occupancy.formats.times import FAR_NS
from occupancy.journal import SCHEMA

PREFIX = '{"event":'
"""How each line begins."""
HEAD_START = PREFIX.encode()
HEAD = re.compile(rb'{"event":"(start|end|amend)",("process":"\w+","call_id":\d+),')
"""How we write a call; any other order of its fields is understood too."""
ENDED_FIELDS = ("call_id", "pid", "kind", "start_ns", "end_ns", "released_ns", "status", "outcome")
"""What `Tail` gives of a call that has ended."""


class Clock(NamedTuple):
    """A monotonic clock."""

    boot_id: str | None
    """What tells it from others, where that is known."""
    unix_offset_ns: int
    """What makes Unix time of its stamps."""


class Process(NamedTuple):
    """One process of a journal."""

    number: int
    """From 0, in the order in which they begin to write."""
    shift_ns: int
    """What puts its stamps on the journal's clock."""
    pid: int | None
    same_clock: bool
    ancestors: tuple[str, ...]
    """Those that have forked it, as far as it tells."""


class Processes:
    """The processes of a journal, by their names; the clock of the first is that of all, unless another is given.

    Args:
        file: The file's name, for messages.
        clock: The clock to put stamps on.
    """

    def __init__(self, file: str, clock: Clock | None = None) -> None:
        self._file = file
        self.clock = clock
        self.by_name: dict[str, Process] = {}

    def take(self, record: dict[str, Any]) -> None:
        """Know a process from the line it begins with. Repeats are harmless.

        Raises:
            ValueError, KeyError, TypeError: It cannot be read.
            ReadError: It is of a newer version.
        """
        schema = int(record["schema"])
        if schema > SCHEMA:
            raise ReadError(f"{self._file}: version {schema} is newer than this occupancy, which reads up to {SCHEMA}")
        clock = Clock(record.get("boot_id"), int(record["unix_offset_ns"]))
        if self.clock is None:
            self.clock = clock
        same_clock = clock.boot_id is not None and clock.boot_id == self.clock.boot_id
        shift_ns = 0 if same_clock else clock.unix_offset_ns - self.clock.unix_offset_ns
        if abs(shift_ns) >= FAR_NS:
            raise ValueError(f"unix_offset_ns cannot be {clock.unix_offset_ns}")
        pid, name = record.get("pid"), record["process"]
        known = self.by_name.get(name)
        number = len(self.by_name) if known is None else known.number
        pid = pid if isinstance(pid, int) else None
        self.by_name[name] = Process(number, shift_ns, pid, same_clock, tuple(record.get("ancestors", ())))


class Tail:
    """Reads a journal that grows, piece by piece: no line twice, and only what a live view shows.

    Args:
        name: The file's name, for messages.
        clock: The reader's own clock: all stamps are given on it, so that "now" can be told.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self._processes = Processes(name, clock)
        self.bad = 0
        """Lines that could not be read."""
        self.last_bad: str | None = None
        """What was wrong with the last of them."""

    @property
    def processes(self) -> int:
        """How many processes have written so far."""
        return len(self._processes.by_name)

    def pid(self, process: str) -> int | None:
        """The process id of one that shares the reader's clock, so on the same machine; None of others."""
        known = self._processes.by_name.get(process)
        return known.pid if known is not None and known.same_clock else None

    def feed(self, data: bytes) -> Iterator[tuple[str, Call]]:
        """Read the next whole lines.

        Args:
            data: Any number of lines, each with its newline.

        Yields:
            `(process, call)`: the calls that have ended, with `ENDED_FIELDS` alone, then those that have started
            and have not ended within `data`, whole. `call_id` is that of the process.

        Raises:
            ReadError: A line is of a newer version.
        """
        started: dict[bytes, bytes] = {}
        for line in data.split(b"\n"):
            head = HEAD.match(line)
            if head is None or line.find(HEAD_START, 1) > 0:
                yield from self._take(line, FIELDS)
            elif head[1] == b"start":
                started[head[2]] = line
            else:
                started.pop(head[2], None)
                yield from self._take(line, ENDED_FIELDS)
        for line in started.values():
            yield from self._take(line, FIELDS)

    def _take(self, line: bytes, names: Iterable[str]) -> Iterator[tuple[str, Call]]:
        for part in parts_of(line):
            try:
                record = parse(part)
                call = self._call(record, names)
            except (ValueError, KeyError, TypeError) as error:
                self.bad += 1
                self.last_bad = reason_of(error)
            else:
                if call is not None and call.kind != Kind.OTHER:
                    yield record["process"], call

    def _call(self, record: dict[str, Any], names: Iterable[str]) -> Call | None:
        if record["event"] == "process":
            self._processes.take(record)
            return None
        if record["event"] == "amend":  # tells nothing that a live view shows
            return None
        return _to_call(record, self._processes.by_name[record["process"]].shift_ns, names)


def parts_of(line: bytes) -> Iterator[bytes]:
    """The records of a line: one, unless another process has written behind a torn one; none of a blank line."""
    start = 0
    while (following := line.find(HEAD_START, start + 1)) >= 0:
        yield line[start:following]
        start = following
    if line[start:].strip():
        yield line[start:]


def parse(part: bytes) -> dict[str, Any]:
    """Read one record.

    Raises:
        ValueError: It is none.
    """
    try:
        record = json.loads(part.decode("utf-8", "replace"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError("not a record")
    return record


def _to_call(record: dict[str, Any], shift_ns: int, names: Iterable[str] = FIELDS) -> Call:
    values: dict[str, Any] = {name: record[name] for name in names if name in record}
    values["call_id"] = record["call_id"]
    stack = values.pop("call_stack", ())
    for name, value in values.items():
        if not isinstance(value, FIELD_TYPES[name]):
            raise ValueError(f"{name} cannot be {value!r}")
    for name in STAMPS:
        value = values.get(name)
        if value is not None:
            values[name] = value + shift_ns
            if abs(value) >= FAR_NS:
                raise ValueError(f"{name} cannot be {value!r}")
    try:
        values["call_stack"] = _frames(tuple(map(tuple, stack)))
    except TypeError:
        raise ValueError(f"call_stack cannot be {stack!r}") from None
    return Call(**values)


@functools.lru_cache(maxsize=10_000)
def _frames(stack: tuple[tuple[Any, ...], ...]) -> tuple[Frame, ...]:
    return tuple(Frame(*frame) for frame in stack)


def reason_of(error: Exception) -> str:
    """Why a line could not be read."""
    if isinstance(error, json.JSONDecodeError):
        return "a torn line"
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
