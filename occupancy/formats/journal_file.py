"""A journal, read whole: several processes on one time axis, calls without an end as open ones."""

from array import array
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from occupancy.analysis.columns import MISSING
from occupancy.analysis.steps import counted
from occupancy.call import FIELD_TYPES, NUMBERS, STAMPS
from occupancy.formats import json_values
from occupancy.formats.growing_columns import GrowingColumns
from occupancy.formats.journal_lines import HEAD, HEAD_START, Process, Processes, parse, parts_of, reason_of
from occupancy.formats.recording import ColumnRecording

PIECE_BYTES = 1 << 18
"""Read at once: so much, and what is made of it, is still in the processor's cache when it is looked at again."""
Columns = dict[str, NDArray[Any]]
Line = tuple[int, bytes, bytes]
"""Its number, what names its call, itself."""


def read(file: BinaryIO, name: str) -> ColumnRecording:
    """Read the calls of a journal.

    A torn line (a full disk, a killed process) is counted as bad; what another process wrote behind it is kept.

    Args:
        file: The journal.
        name: Its name, for messages.

    Returns:
        The calls on the clock of the first process. Processes of one boot share that clock; others are placed by Unix
        time.

    Raises:
        ReadError: A line is of a newer version.
    """
    reader = _Reader(name)
    reader.take_all(file)
    return reader.recording(reader.calls(), reader.processes.by_name.values())


class Family(NamedTuple):
    """What a process and those that it has forked have written to a journal, and what others have."""

    recording: ColumnRecording
    n_other_calls: int
    n_other_processes: int


def read_family(file: BinaryIO, name: str, process: str) -> Family:
    """Read the calls of one process of a journal, and of all that it has forked.

    Args:
        file: The journal, or what has been written since the process began.
        name: Its name, for messages.
        process: The name under which it writes.

    Raises:
        ReadError: A line is of a newer version.
    """
    reader = _Reader(name)
    reader.take_all(file)
    known = reader.processes.by_name.items()
    family = [one for key, one in known if key == process or process in one.ancestors]
    columns = reader.calls()
    mine = np.isin(columns["process"], [one.number for one in family])
    others = np.unique(columns["process"][~mine & counted(columns)], return_counts=True)[1]
    recording = reader.recording({field: column[mine] for field, column in columns.items()}, family)
    return Family(recording, int(others.sum()), int(others.size))


class _Reader:
    """Reads lines, many at once where they are as we write them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.processes = Processes(name)
        self._calls = GrowingColumns(
            {**json_values.converters(), "process": lambda names: array("q", map(self._number_of, names))}
        )
        self._starts: dict[bytes, tuple[int, bytes]] = {}
        """Lines of calls that have not ended, by what names them: an end has all that its start has."""
        self._bad: list[tuple[int, str]] = []
        """Numbers of lines, and why they could not be read."""

    def _number_of(self, process: str) -> int:
        known = self.processes.by_name.get(process)
        if known is None:
            raise ValueError(f"no line of process {process!r} says which clock is its own")
        return known.number

    def take_all(self, file: BinaryIO) -> None:
        """Read a file, then the starts that no end has followed."""
        number = 1
        while piece := file.read(PIECE_BYTES) + file.readline():
            lines = piece.split(b"\n")
            self.take(lines, number)
            number += len(lines) - 1
        opened = [(number, name, line) for name, (number, line) in self._starts.items()]
        for first in range(0, len(opened), 100):
            self._take_calls(opened[first : first + 100])

    def take(self, lines: Sequence[bytes], first: int) -> None:
        """Read lines; `first` is the number of the first."""
        ends: list[Line] = []
        for number, line in enumerate(lines, first):
            head = HEAD.match(line)
            if head is None or not line.endswith(b"}") or line.find(HEAD_START, 1) > 0:
                self._take_calls(ends)  # a process that begins here has no calls before
                ends.clear()
                self._take_other(number, line)
            elif head[1] == b"start":
                self._starts[head[2]] = number, line
            else:
                ends.append((number, head[2], line))
        self._take_calls(ends)

    def _take_calls(self, lines: Sequence[Line]) -> None:
        """Read lines of one call each, as we write it."""
        numbers = [number for number, _, _ in lines]
        try:
            records = orjson.loads(b"[%b]" % b",".join([line for _, _, line in lines]))
        except ValueError:
            records = []
        left = set(numbers) if len(records) != len(lines) else self._add(numbers, records)
        for number, name, line in lines:
            if number in left:
                self._take_other(number, line)
            else:
                self._starts.pop(name, None)

    def _add(self, numbers: Sequence[int], records: Sequence[dict[str, Any]]) -> set[int]:
        """Keep the calls of some lines; give the numbers of those that must be looked at one by one."""
        alike: dict[tuple[str, ...], tuple[list[int], list[Any]]] = {}
        for number, record in zip(numbers, records, strict=True):
            names = tuple(record)
            mine = alike.get(names)
            if mine is None:
                mine = alike[names] = [], []
            mine[0].append(number)
            mine[1].append(record.values())
        left = set()
        for names, (places, rows) in alike.items():
            try:
                self._calls.add(names, rows, places)
            except (ValueError, KeyError, TypeError):
                left.update(places)
        return left

    def _take_other(self, number: int, line: bytes) -> None:
        """Read a line of a process, a torn one, or one that is not as we write it."""
        for part in parts_of(line):
            try:
                record = parse(part)
                if record["event"] == "process":
                    self.processes.take(record)
                else:
                    self._take_call(number, record)
            except (ValueError, KeyError, TypeError) as error:
                self._bad.append((number, reason_of(error)))

    def _take_call(self, number: int, record: dict[str, Any]) -> None:
        process, call_id = record["process"], record["call_id"]
        given = {
            name: value
            for name, value in record.items()
            if value is not None or type(None) not in FIELD_TYPES.get(name, ())
        }
        self._calls.add(tuple(given), [tuple(given.values())], [number])
        self._starts.pop(f'"process":"{process}","call_id":{call_id}'.encode("utf-8", "replace"), None)

    def calls(self) -> Columns:
        """Give each call once, with the number of its process: what was read till now."""
        return _latest(self._calls.take())

    def recording(self, columns: Columns, processes: Iterable[Process]) -> ColumnRecording:
        """Give the calls of some processes; the columns are changed."""
        _join(columns, processes)
        del columns["process"]
        origin_ns = int(columns["start_ns"].min()) if len(columns["start_ns"]) else 0
        unix_offset_ns = 0 if self.processes.clock is None else self.processes.clock.unix_offset_ns
        bad_rows = [f"{self._name}:{number}: {reason}" for number, reason in sorted(self._bad)]
        return ColumnRecording(columns, origin_ns, origin_ns + unix_offset_ns, bad_rows)


def _latest(columns: Columns) -> Columns:
    """Keep one line of each call, the last, but of an end where there is one: a file may hold another twice."""
    process, call_id = columns["process"], columns["call_id"]
    order = np.lexsort((columns["end_ns"] != MISSING, call_id, process))
    again = (np.diff(process[order]) == 0) & (np.diff(call_id[order]) == 0)
    if not again.any():
        return columns
    keep = np.ones(order.size, dtype=np.bool_)
    keep[order[:-1][again]] = False
    return {name: column[keep] for name, column in columns.items()}


def _join(columns: Columns, processes: Iterable[Process]) -> None:
    """Put all calls on one clock, and number them anew where several processes have numbered theirs alike."""
    highest = 0
    for process in processes:
        mine = columns["process"] == process.number
        if process.shift_ns:
            for name in STAMPS:
                columns[name] = columns[name] + np.where(mine & (columns[name] != MISSING), process.shift_ns, 0)
        shift, highest = highest, highest + int(columns["call_id"][mine].max(initial=0))
        if shift:
            for name in NUMBERS:
                columns[name] = columns[name] + np.where(mine & (columns[name] > 0), shift, 0)
