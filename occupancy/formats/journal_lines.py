"""The journal, read back: several processes on one time axis, calls without an end as open ones."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from occupancy.call import FIELD_TYPES, FIELDS, STAMPS, Call, Frame
from occupancy.errors import ReadError
from occupancy.formats.recording import Recording
from occupancy.journal import SCHEMA

PREFIX = '{"event":'
"""How each line begins."""


@dataclasses.dataclass(slots=True)
class _Process:
    """One process of a journal: where its clock stands, and its calls by their ids."""

    shift_ns: int
    calls: dict[int, Call] = dataclasses.field(default_factory=dict)


def read(text: str, name: str) -> Recording:
    """Read the calls of a journal.

    A torn line (a full disk, a process that was killed) is counted as bad; what another process wrote behind it is kept.

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
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            reader.take(f"{name}:{number}", line)
    return reader.recording()


class _Reader:
    def __init__(self, name: str) -> None:
        self._name = name
        self._bad_rows: list[str] = []
        self._processes: dict[str, _Process] = {}
        self._boot: str | None = None
        self._unix_offset_ns = 0

    def take(self, place: str, line: str) -> None:
        for part in _parts(line):
            try:
                self._take_record(json.loads(part))
            except (ValueError, KeyError, TypeError) as error:
                self._bad_rows.append(f"{place}: {_reason(error)}")

    def _take_record(self, record: Any) -> None:
        if not isinstance(record, dict):
            raise ValueError("not a record")
        event = record["event"]
        if event == "process":
            self._take_process(record)
            return
        process = self._processes[record["process"]]
        call = _to_call(record, process.shift_ns)
        process.calls[call.call_id] = call

    def _take_process(self, record: dict[str, Any]) -> None:
        schema = int(record["schema"])
        if schema > SCHEMA:
            raise ReadError(f"{self._name}: version {schema} is newer than this occupancy, which reads up to {SCHEMA}")
        boot, unix_offset_ns = record.get("boot_id"), int(record["unix_offset_ns"])
        if not self._processes:
            self._boot, self._unix_offset_ns = boot, unix_offset_ns
        same_clock = boot is not None and boot == self._boot
        shift_ns = 0 if same_clock else unix_offset_ns - self._unix_offset_ns
        self._processes[record["process"]] = _Process(shift_ns)

    def recording(self) -> Recording:
        calls = list(_renumbered(list(self._processes.values())))
        origin_ns = min((call.start_ns for call in calls), default=0)
        return Recording(calls, origin_ns, origin_ns + self._unix_offset_ns, self._bad_rows)


def _parts(line: str) -> Iterator[str]:
    """The records of a line: one, unless another process has written behind a torn one."""
    start = 0
    while (following := line.find(PREFIX, start + 1)) >= 0:
        yield line[start:following]
        start = following
    yield line[start:]


def _to_call(record: dict[str, Any], shift_ns: int) -> Call:
    values = {name: record[name] for name in FIELDS if name in record}
    values["call_id"] = record["call_id"]
    stack = values.pop("call_stack", ())
    for name, value in values.items():
        if not isinstance(value, FIELD_TYPES[name]):
            raise ValueError(f"{name} cannot be {value!r}")
        if name in STAMPS:
            values[name] = value + shift_ns
    try:
        values["call_stack"] = tuple(Frame(*frame) for frame in stack)
    except TypeError:
        raise ValueError(f"call_stack cannot be {stack!r}") from None
    return Call(**values)


def _renumbered(processes: list[_Process]) -> Iterator[Call]:
    """All calls. Processes number theirs alike, so where there are several each call gets a number of its own."""
    highest = 0
    for process in processes:
        shift, highest = highest, highest + max(process.calls, default=0)
        for call in process.calls.values():
            call.call_id += shift
            call.logical_id += shift
            yield call


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return "a torn line"
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
