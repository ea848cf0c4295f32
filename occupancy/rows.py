"""Finished calls as packed rows, the newest kept: a few hundred bytes for each call, whatever its strings."""

import math
import struct
from collections.abc import Hashable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from occupancy.call import FIELDS, MISSING, Call

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MISSING_SHORT, MOST_SHORT = -(2**31), 2**31 - 1
MISSING_SMALL, MOST_SMALL = -(2**15), 2**15 - 1
NAN = float("nan")
OTHER = "other"
"""What a string becomes once its table is full."""
TABLE_LIMIT = 2**16 - 2
"""Distinct values a column of strings keeps, besides None and `other`."""

LONGS = (
    "call_id", "logical_id", "start_ns", "headers_ns", "first_byte_ns", "first_event_ns", "last_byte_ns",
    "end_ns", "released_ns", "client_ns", "gate_ns", "pool_ns", "connect_ns", "tls_ns", "send_ns", "wait_ns",
    "receive_ns", "request_bytes", "bytes_received", "max_gap_ns", "max_gap_after_ns", "limit_tokens",
    "remaining_tokens",
)  # fmt: skip
SHORTS = (
    "pid", "in_flight_start", "in_flight_end", "limit_requests", "remaining_requests", "chunks", "input_tokens",
    "output_tokens", "needs",
)  # fmt: skip
"""Integers of four bytes: what is larger is kept as the largest."""
SMALLS = ("attempt", "status", "siblings", "chunks_after_gap")
"""The same, of two bytes."""
FLAGS = ("connection_reused", "idempotency_key", "sync_in_event_loop", "siblings_held")
FLOATS = ("retry_after_s",)
NAMES = (
    "run", "kind", "label", "after", "async_task", "thread", "client", "method", "host", "path", "model", "key_id",
    "outcome", "error_type", "call_stack",
)  # fmt: skip
HEX = {"trace_id": 16, "span_id": 8, "parent_span_id": 8}
TEXTS = ("request_id",)
"""Different in every call, so not worth a table."""

ABSENT = {
    **dict.fromkeys(SHORTS, MISSING_SHORT),
    **dict.fromkeys(SMALLS, MISSING_SMALL),
    **dict.fromkeys(FLAGS, -1),
}
"""What stands for None in the columns that are narrower than an int64."""

ROW = struct.Struct(f"<{len(LONGS)}q{len(SHORTS)}i{len(SMALLS)}h{len(FLAGS)}b{len(FLOATS)}d{len(NAMES)}H16s8s8s")
GROW_ROWS = 256
LOOK_BACK = 10_000
"""Rows that are looked through for one that is to be renewed."""

_longs, _shorts, _smalls, _flags, _names, _ids = (
    attrgetter(*group) for group in (LONGS, SHORTS, SMALLS, FLAGS, NAMES, HEX)
)
_LONG_END = len(LONGS)
_SHORT_END = _LONG_END + len(SHORTS)
_SMALL_END = _SHORT_END + len(SMALLS)
_FLAG_END = _SMALL_END + len(FLAGS)
_FLOAT_END = _FLAG_END + len(FLOATS)
_NAME_END = _FLOAT_END + len(NAMES)

if {*LONGS, *SHORTS, *SMALLS, *FLAGS, *FLOATS, *NAMES, *HEX, *TEXTS} != set(FIELDS):
    raise AssertionError("rows.py and Call differ")


class Table(dict[Hashable, int]):
    """Numbers for the distinct values of a column; that of None is 0. Once it is full, `other` stands for new ones."""

    __slots__ = ("by_number", "other")

    def __init__(self, other: Hashable) -> None:
        super().__init__({None: 0})
        self.by_number: list[Any] = [None]
        self.other = other

    def __missing__(self, value: Hashable) -> int:
        if len(self.by_number) > TABLE_LIMIT:
            value = self.other
            if value in self:
                return self[value]
        self[value] = number = len(self.by_number)
        self.by_number.append(value)
        return number


class Rows:
    """The newest `capacity` calls.

    Args:
        capacity: Calls kept, at least 1.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.total = 0
        """Calls ever added."""
        self._rows = bytearray()
        self._texts: list[bytes | None] = []
        self._tables = [Table(() if name == "call_stack" else OTHER) for name in NAMES]

    def __len__(self) -> int:
        return min(self.total, self.capacity)

    @property
    def dropped(self) -> int:
        """Calls that had to make room for newer ones."""
        return self.total - len(self)

    def add(self, call: Call, in_flight_start: int | None, in_flight_end: int | None) -> None:
        """Keep a call, with the counts of the log that keeps it."""
        slot = self.total % self.capacity
        offset = slot * ROW.size
        if offset >= len(self._rows):
            self._rows.extend(bytes(ROW.size * min(GROW_ROWS, self.capacity - slot)))
        if slot == len(self._texts):
            self._texts.append(None)
        ROW.pack_into(self._rows, offset, *self._encode(call, in_flight_start, in_flight_end))
        request_id = call.request_id
        self._texts[slot] = None if request_id is None else request_id.encode("utf-8", "replace")
        self.total += 1

    def amend(self, call: Call) -> bool:
        """Renew the row of a call that was added not long ago, but for its counts; False where it is not found."""
        for number in range(self.total - 1, max(self.total - LOOK_BACK, self.dropped) - 1, -1):
            offset = number % self.capacity * ROW.size
            if int.from_bytes(self._rows[offset : offset + 8], "little") == call.call_id:
                counts = ROW.unpack_from(self._rows, offset)[_LONG_END + 1 : _LONG_END + 3]
                start, end = (None if value == MISSING_SHORT else value for value in counts)
                ROW.pack_into(self._rows, offset, *self._encode(call, start, end))
                return True
        return False

    def _encode(self, call: Call, in_flight_start: int | None, in_flight_end: int | None) -> Iterable[Any]:
        shorts = [MISSING_SHORT if n is None else n if n < MOST_SHORT else MOST_SHORT for n in _shorts(call)]
        shorts[1] = MISSING_SHORT if in_flight_start is None else in_flight_start
        shorts[2] = MISSING_SHORT if in_flight_end is None else in_flight_end
        retry_after_s = call.retry_after_s
        return (
            *[MISSING if n is None else n for n in _longs(call)],
            *shorts,
            *[MISSING_SMALL if n is None else n if n < MOST_SMALL else MOST_SMALL for n in _smalls(call)],
            *[-1 if flag is None else flag for flag in _flags(call)],
            NAN if retry_after_s is None else retry_after_s,
            *[table[value] for table, value in zip(self._tables, _names(call), strict=True)],
            *[bytes.fromhex(value) if value else b"" for value in _ids(call)],
        )

    def calls(self, origin_ns: int) -> list[Call]:
        """All kept calls, oldest first, as copies."""
        first = self.total - len(self)
        return [self._decode(number % self.capacity, origin_ns) for number in range(first, self.total)]

    def _decode(self, slot: int, origin_ns: int) -> Call:
        row = ROW.unpack_from(self._rows, slot * ROW.size)
        values: dict[str, Any] = {name: None if v == MISSING else v for name, v in zip(LONGS, row, strict=False)}
        values |= {
            name: None if v == MISSING_SHORT else v for name, v in zip(SHORTS, row[_LONG_END:_SHORT_END], strict=True)
        }
        values |= {
            name: None if v == MISSING_SMALL else v for name, v in zip(SMALLS, row[_SHORT_END:_SMALL_END], strict=True)
        }
        values |= {name: None if v < 0 else bool(v) for name, v in zip(FLAGS, row[_SMALL_END:_FLAG_END], strict=True)}
        retry_after_s = row[_FLAG_END]
        values["retry_after_s"] = None if math.isnan(retry_after_s) else retry_after_s
        for table, name, number in zip(self._tables, NAMES, row[_FLOAT_END:_NAME_END], strict=True):
            values[name] = table.by_number[number]
        for name, raw in zip(HEX, row[_NAME_END:], strict=True):
            values[name] = raw.hex() if any(raw) else None
        text = self._texts[slot]
        return Call(**values, request_id=text.decode() if text is not None else None, origin_ns=origin_ns)

    def arrays(self, names: Iterable[str]) -> "dict[str, NDArray[Any]]":
        """Columns as numpy arrays of length `len(self)`, oldest call first, copied.

        Integers are int64 with `MISSING` for None, booleans 0 and 1 with `MISSING`, seconds float64 with NaN,
        everything else an object array with None.
        """
        import numpy as np

        rows = np.frombuffer(bytes(self._rows), dtype=_dtype())[: len(self)]
        order = np.arange(self.total - len(self), self.total) % self.capacity
        return {name: self._array(name, rows, order) for name in names}

    def _array(self, name: str, rows: "NDArray[Any]", order: "NDArray[np.int64]") -> "NDArray[Any]":
        import numpy as np

        if name in TEXTS:
            return _objects([None if text is None else text.decode() for text in self._texts])[order]
        values = rows[name][order]
        if name in NAMES:
            named: NDArray[Any] = _objects(self._tables[NAMES.index(name)].by_number)[values]
            return named
        if name in HEX:
            return _objects([raw.hex() if any(raw) else None for raw in values.tolist()])
        absent = ABSENT.get(name)
        return values if absent is None else np.where(values == absent, MISSING, values.astype(np.int64))


def _objects(values: list[Any]) -> "NDArray[np.object_]":
    import numpy as np

    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _dtype() -> "np.dtype[Any]":
    import numpy as np

    kinds: list[tuple[tuple[str, ...], str]] = [
        (LONGS, "<i8"), (SHORTS, "<i4"), (SMALLS, "<i2"), (FLAGS, "i1"), (FLOATS, "<f8"), (NAMES, "<u2"),
    ]  # fmt: skip
    fields = [(name, kind) for names, kind in kinds for name in names]
    return np.dtype(fields + [(name, f"V{size}") for name, size in HEX.items()])
