"""The journal, read back: several processes on one time axis, calls without an end as open ones."""

import dataclasses
import functools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from occupancy.call import FIELD_TYPES, FIELDS, STAMPS, Call, Frame, Kind
from occupancy.errors import ReadError
from occupancy.formats.recording import Recording
from occupancy.journal import SCHEMA

PREFIX = '{"event":'
"""How each line begins."""
FAR_NS = 2**62
"""From here on, 146 years away, a stamp is an error, and no array of int64 could be reckoned with."""
_HEAD = re.compile(rb'{"event":"(start|end)","process":"(\w+)","call_id":(\d+),')
"""How we write a call; any other order of its fields is understood too."""
_HEAD_START = PREFIX.encode()
_START = re.compile(r'\{"event":"start","process":"(\w+)","call_id":(\d+),')
ENDED_FIELDS = ("call_id", "pid", "kind", "start_ns", "end_ns", "released_ns", "status", "outcome")
"""What `Tail` gives of a call that has ended."""


class Clock(NamedTuple):
    """A monotonic clock."""

    boot_id: str | None
    """What tells it from others, where that is known."""
    unix_offset_ns: int
    """What makes Unix time of its stamps."""


@dataclasses.dataclass(slots=True)
class _Process:
    """One process of a journal: where its clock stands, and its calls by their ids."""

    shift_ns: int
    pid: int | None
    same_clock: bool
    ancestors: tuple[str, ...]
    calls: dict[int, Call] = dataclasses.field(default_factory=dict)


def read(text: str, name: str) -> Recording:
    """Read the calls of a journal.

    A torn line (a full disk, a killed process) is counted as bad; what another process wrote behind it is kept.

    Args:
        text: Its contents.
        name: The file's name, for messages.

    Returns:
        The calls on the clock of the first process. Processes of one boot share that clock; others are placed by Unix
        time.

    Raises:
        ReadError: A line is of a newer version.
    """
    reader = _Reader(name)
    reader.take_all(text)
    return reader.recording(reader.processes.values())


class Family(NamedTuple):
    """What a process and those that it has forked have written to a journal, and what others have."""

    recording: Recording
    n_other_calls: int
    n_other_processes: int


def read_family(text: str, name: str, process: str) -> Family:
    """Read the calls of one process of a journal, and of all that it has forked.

    Args:
        text: Its contents, or what has been written since the process began.
        name: The file's name, for messages.
        process: The name under which it writes.

    Raises:
        ReadError: A line is of a newer version.
    """
    reader = _Reader(name)
    reader.take_all(text)
    family: list[_Process] = []
    others: list[_Process] = []
    for key, known in reader.processes.items():
        (family if key == process or process in known.ancestors else others).append(known)
    n_calls = [sum(call.kind != Kind.OTHER for call in known.calls.values()) for known in others]
    return Family(reader.recording(family), sum(n_calls), sum(map(bool, n_calls)))


class _Reader:
    """Reads line by line; the clock of the first process is that of all, unless there is another to go by."""

    def __init__(self, name: str, clock: Clock | None = None) -> None:
        self._name = name
        self._bad_rows: list[str] = []
        self.processes: dict[str, _Process] = {}
        self._clock = clock
        self._starts: dict[tuple[str, str], tuple[str, str]] = {}

    def take_all(self, text: str) -> None:
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                self.take(f"{self._name}:{number}", line)
        for place, line in list(self._starts.values()):
            self._read(place, line)

    def take(self, place: str, line: str) -> None:
        started = _START.match(line)
        if started is None or not line.endswith("}") or line.find(PREFIX, 1) > 0:
            self._read(place, line)
        else:  # read only if no end follows: an end has all that its start has
            self._starts[started[1], started[2]] = place, line

    def _read(self, place: str, line: str) -> None:
        for part in _parts(line):
            try:
                record = json.loads(part)
                call = self.take_record(record)
                if call is not None:
                    self._starts.pop((record["process"], str(call.call_id)), None)
                    self.processes[record["process"]].calls[call.call_id] = call
            except (ValueError, KeyError, TypeError) as error:
                self._bad_rows.append(f"{place}: {_reason(error)}")

    def take_record(self, record: Any, names: Iterable[str] = FIELDS) -> Call | None:
        """Give the call of a line, None where it tells of a process.

        Raises:
            ValueError, KeyError, TypeError: It cannot be read.
            ReadError: It is of a newer version.
        """
        if not isinstance(record, dict):
            raise ValueError("not a record")
        if record["event"] == "process":
            self._take_process(record)
            return None
        return _to_call(record, self.processes[record["process"]].shift_ns, names)

    def _take_process(self, record: dict[str, Any]) -> None:
        schema = int(record["schema"])
        if schema > SCHEMA:
            raise ReadError(f"{self._name}: version {schema} is newer than this occupancy, which reads up to {SCHEMA}")
        clock = Clock(record.get("boot_id"), int(record["unix_offset_ns"]))
        if self._clock is None:
            self._clock = clock
        same_clock = clock.boot_id is not None and clock.boot_id == self._clock.boot_id
        shift_ns = 0 if same_clock else clock.unix_offset_ns - self._clock.unix_offset_ns
        pid = record.get("pid")
        self.processes[record["process"]] = _Process(
            shift_ns, pid if isinstance(pid, int) else None, same_clock, tuple(record.get("ancestors", ()))
        )

    def recording(self, processes: Iterable[_Process]) -> Recording:
        calls = list(_renumbered(processes))
        origin_ns = min((call.start_ns for call in calls), default=0)
        unix_offset_ns = 0 if self._clock is None else self._clock.unix_offset_ns
        return Recording(calls, origin_ns, origin_ns + unix_offset_ns, self._bad_rows)


class Tail:
    """Reads a journal that grows, piece by piece: no line twice, and only what a live view shows.

    Args:
        name: The file's name, for messages.
        clock: The reader's own clock: all stamps are given on it, so that "now" can be told.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self._reader = _Reader(name, clock)
        self.bad = 0
        """Lines that could not be read."""
        self.last_bad: str | None = None
        """What was wrong with the last of them."""

    @property
    def processes(self) -> int:
        """How many processes have written so far."""
        return len(self._reader.processes)

    def pid(self, process: str) -> int | None:
        """The process id of one that shares the reader's clock, so on the same machine; None of others."""
        known = self._reader.processes.get(process)
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
            head = _HEAD.match(line)
            if head is None or line.find(_HEAD_START, 1) > 0:
                yield from self._take(line, FIELDS)
            elif head[1] == b"start":
                started[line[head.start(2) : head.end(3)]] = line
            else:
                started.pop(line[head.start(2) : head.end(3)], None)
                yield from self._take(line, ENDED_FIELDS)
        for line in started.values():
            yield from self._take(line, FIELDS)

    def _take(self, line: bytes, names: Iterable[str]) -> Iterator[tuple[str, Call]]:
        for part in _parts(line.decode("utf-8", "replace")) if line.strip() else ():
            try:
                record = json.loads(part)
                call = self._reader.take_record(record, names)
            except (ValueError, KeyError, TypeError) as error:
                self.bad += 1
                self.last_bad = _reason(error)
            else:
                if call is not None and call.kind != Kind.OTHER:
                    yield record["process"], call


def _parts(line: str) -> Iterator[str]:
    """The records of a line: one, unless another process has written behind a torn one."""
    start = 0
    while (following := line.find(PREFIX, start + 1)) >= 0:
        yield line[start:following]
        start = following
    yield line[start:]


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


def _renumbered(processes: Iterable[_Process]) -> Iterator[Call]:
    """All calls. Processes number theirs alike, so where there are several each call gets a number of its own."""
    highest = 0
    for process in processes:
        shift, highest = highest, highest + max(process.calls, default=0)
        for call in process.calls.values():
            call.call_id += shift
            call.logical_id += shift
            if call.needs:
                call.needs += shift
            yield call


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return "a torn line"
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
