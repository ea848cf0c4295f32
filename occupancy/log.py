"""`OccupancyLog`: counts the calls in flight, keeps them, streams them."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, Any

from occupancy import _guard, caller
from occupancy.call import FIELDS, MISSING, Call, Kind
from occupancy.errors import InputError
from occupancy.flight import Flight
from occupancy.journal import Journal
from occupancy.ledger import ledger
from occupancy.rows import Rows
from occupancy.step_names import LABEL_LENGTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray
    from pandas import DataFrame

    from occupancy.analysis.buckets import Buckets
    from occupancy.analysis.findings import Diagnosis
    from occupancy.analysis.running_count import RunningCount
    from occupancy.analysis.steps import Steps
    from occupancy.analysis.summary import Summary
    from occupancy.recorded import RecordedCalls


COUNTS = ("in_flight_start", "in_flight_end")
"""The fields of a call that are counts."""


class TrackedCall:
    """A call that is stamped by hand; see `OccupancyLog.track`."""

    __slots__ = ("_flight",)

    def __init__(self, flight: Flight) -> None:
        self._flight = flight

    def headers(self, status: int) -> None:
        """The response's headers have come, with this HTTP status.

        Raises:
            InputError: The status is no whole number.
        """
        if not isinstance(status, int):
            raise InputError(f"a status must be a whole number, not {status!r}")
        self._flight.headers(status, monotonic_ns())

    def first_byte(self) -> None:
        """The first byte of the body has come. Later calls change nothing."""
        if self._flight.call.first_byte_ns is None:
            self._flight.chunk(1, monotonic_ns())
            self._flight.call.bytes_received -= 1  # its size is not known

    def chunk(self, size: int) -> None:
        """A piece of the body has come: `size` bytes."""
        self._flight.chunk(size, monotonic_ns())


class OccupancyLog:
    """The calls of this process, or of a file.

    Counts are exact for ever: `peak`, `time_at_level_ns` and the totals cover all calls, also those that `capacity` has
    dropped; those that only a span tells of, once they have ended, are counted among the calls that are kept. Every
    method may be called from any thread at any time.

    Args:
        capacity: Calls kept, the newest; at most 400 bytes each.
        journal: A file to append each start and end to, as they happen.

    Raises:
        InputError: `capacity` is below 1, or the journal cannot be opened.
    """

    def __init__(self, capacity: int = 100_000, journal: str | os.PathLike[str] | None = None) -> None:
        if capacity < 1:
            raise InputError(f"capacity must be at least 1, not {capacity!r}")
        self.journal = None if journal is None else Journal(journal)
        """Where calls are streamed to, or None."""
        self._capacity = capacity
        self._live = True
        self._reset(monotonic_ns(), time_ns())

    def _reset(self, origin_ns: int, origin_unix_ns: int) -> None:
        self.origin_ns = origin_ns
        """Where the monotonic clock stood when the log began: second 0 of its times."""
        self.origin_unix_ns = origin_unix_ns
        """The same moment, ns since 1970."""
        self.bad_rows: list[str] = []
        """What a reader could not read, as `place: reason`."""
        self._rows: Rows | RecordedCalls = Rows(self._capacity)
        self._open: dict[int, tuple[Call, int]] = {}
        self._open_other: dict[int, Call] = {}
        self._peak = 0
        self._level_ns: list[int] = [0]
        self._changed_ns: int | None = None
        self._late = 0
        """Calls that were known only when they had ended: they are in no running count."""

    # Counting. Called by the ledger alone, under its lock, in the order of the stamps. Each is a no-op the second time,
    # so that an interrupt in the middle loses and doubles nothing.

    def _start(self, call: Call) -> None:
        if call.kind == Kind.OTHER:
            if call.call_id in self._open_other:
                return
            self._open_other[call.call_id] = call
        elif call.call_id not in self._open:
            self._advance(call.start_ns)
            self._open[call.call_id] = (call, len(self._open) + 1)
            level = call.in_flight_start = len(self._open)
            self._peak = max(self._peak, level)
        else:
            return
        if self.journal is not None:
            self.journal.start(call)

    def _release(self, call: Call) -> None:
        if call.call_id in self._open_other:
            in_flight_start = in_flight_end = None
        elif call.call_id in self._open:
            in_flight_start, in_flight_end = self._open[call.call_id][1], len(self._open)
            self._advance(call.released_ns or 0)
        else:
            return
        call.in_flight_start, call.in_flight_end = in_flight_start, in_flight_end
        try:
            self._rows.add(call, in_flight_start, in_flight_end)
            if self.journal is not None:
                self.journal.end(call)
        except Exception as error:  # a field of a wrong type must not keep the call in flight
            _guard.report("occupancy.log.release", error)
        self._open.pop(call.call_id, None)
        self._open_other.pop(call.call_id, None)

    def _add(self, call: Call) -> None:
        self._late += call.kind != Kind.OTHER
        self._rows.add(call, None, None)
        if self.journal is not None:
            self.journal.start(call)
            self.journal.end(call)

    def _amend(self, call: Call) -> None:
        if isinstance(self._rows, Rows) and self._rows.amend(call) and self.journal is not None:
            self.journal.amend(call)

    def _advance(self, now_ns: int) -> None:
        level = len(self._open)
        if self._changed_ns is not None:
            while len(self._level_ns) <= level:
                self._level_ns.append(0)
            self._level_ns[level] += now_ns - self._changed_ns
        self._changed_ns = now_ns

    def _restart(self, now_ns: int) -> None:
        """Begin anew in a forked child: the parent keeps its calls."""
        self._reset(now_ns, time_ns())
        if self.journal is not None:
            self.journal.restart()

    @classmethod
    def from_calls(
        cls, calls: Iterable[Call], *, origin_ns: int = 0, origin_unix_ns: int = 0, bad_rows: Iterable[str] = ()
    ) -> "OccupancyLog":
        """A log of calls that were recorded elsewhere, counted anew in the order of their stamps.

        Args:
            calls: In any order, each with a `call_id` of its own; those without an end are open.
            origin_ns: Second 0 on the clock of their stamps.
            origin_unix_ns: The same moment, ns since 1970.
            bad_rows: What could not be read, as `place: reason`.
        """
        from occupancy.analysis.columns import columns_of

        return cls.from_columns(
            columns_of(calls), origin_ns=origin_ns, origin_unix_ns=origin_unix_ns, bad_rows=bad_rows
        )

    @classmethod
    def from_columns(
        cls,
        columns: "Mapping[str, NDArray[Any]]",
        *,
        origin_ns: int = 0,
        origin_unix_ns: int = 0,
        bad_rows: Iterable[str] = (),
    ) -> "OccupancyLog":
        """As `from_calls`, of calls that are columns: all fields, as `columns` gives them. They are not copied."""
        from occupancy.recorded import recount

        log = cls()
        log._reset(origin_ns, origin_unix_ns)
        log._live = False
        log.bad_rows = list(bad_rows)
        log._rows, opened, running = recount(columns)
        log._peak, log._level_ns = running.peak, running.level_ns.tolist()
        for number, call in enumerate(opened):
            if call.kind == Kind.OTHER:
                log._open_other[number] = call
            else:
                log._open[number] = (call, call.in_flight_start or 0)
        return log

    # Reading

    @property
    def in_flight(self) -> int:
        """Calls in flight now, from start to release."""
        with ledger.settled():
            return len(self._open)

    @property
    def peak(self) -> int:
        """Most calls ever in flight at once; 0 without calls."""
        with ledger.settled():
            late, peak = self._late, self._peak
        return max(peak, self._count_again().peak) if late else peak

    @property
    def time_at_level_ns(self) -> dict[int, int]:
        """Time spent with 0, 1, 2, ... calls in flight, ns, from the first start to the last start or release."""
        with ledger.settled():
            late, level_ns = self._late, list(self._level_ns)
        return dict(enumerate(self._count_again().level_ns.tolist() if late else level_ns))

    @property
    def finished(self) -> int:
        """Calls that have ended, ever."""
        with ledger.settled():
            return self._rows.total

    @property
    def dropped(self) -> int:
        """Calls that are in the counts but no longer kept."""
        with ledger.settled():
            return self._rows.dropped

    @property
    def calls(self) -> list[Call]:
        """The calls that have ended, the newest `capacity`, in the order of their ends, as copies."""
        with ledger.settled():
            calls = self._rows.calls(self.origin_ns)
            if self._late:
                counts = self.columns(COUNTS)
                for call, start, end in zip(calls, *(counts[name].tolist() for name in COUNTS), strict=False):
                    call.in_flight_start, call.in_flight_end = (None if n == MISSING else n for n in (start, end))
        return calls

    @property
    def open_calls(self) -> list[Call]:
        """Copies of the calls that have not ended, in the order of their starts."""
        import copy

        with ledger.settled():
            calls = [call for call, _ in self._open.values()] + list(self._open_other.values())
            calls = [copy.copy(call) for call in calls]
        for call in calls:
            call.origin_ns = self.origin_ns
        return sorted(calls, key=lambda call: call.start_ns)

    def columns(self, names: Iterable[str] = FIELDS) -> "dict[str, NDArray[Any]]":
        """The calls as numpy arrays: those that have ended in the order of their ends, then the open ones.

        Args:
            names: Fields of `Call` to give.

        Returns:
            An array of one length for each name. Integers are int64 with the least int64 for None (numpy's "not a
            time"), booleans 0 and 1 likewise, seconds are float64 with NaN, everything else is an object array with
            None. Those of a log that was read are not copied: they are read-only.

        Raises:
            InputError: A name is no field of `Call`.
        """
        names = list(names)
        for name in names:
            if name not in FIELDS:
                raise InputError(f"{name!r} is no field of Call")
        with ledger.settled():
            columns = self._columns(names)
            if self._late and not columns.keys().isdisjoint(COUNTS):
                again = self._count_again()
                columns |= {name: getattr(again, name) for name in COUNTS if name in columns}
        return columns

    def _columns(self, names: list[str]) -> "dict[str, NDArray[Any]]":
        import numpy as np

        from occupancy.analysis.columns import columns_of

        ended = self._rows.arrays(names)
        opened = columns_of([*(call for call, _ in self._open.values()), *self._open_other.values()])
        if not len(opened["start_ns"]):
            return ended
        levels = [in_flight_start for _, in_flight_start in self._open.values()]
        opened["in_flight_start"] = np.array(levels + [MISSING] * (len(opened["start_ns"]) - len(levels)))
        return {name: np.concatenate([ended[name], opened[name]]) for name in names}

    def _count_again(self) -> "RunningCount":
        """The counts of the calls that are kept, by their stamps: late ones are in no running count."""
        from occupancy.analysis.running_count import count_again

        return count_again(self.columns(("kind", "call_id", "start_ns", "released_ns")))

    def _until_ns(self) -> int | None:
        """Up to when open calls are in flight: now in a live log, not known in one that was read."""
        return monotonic_ns() if self._live else None

    # What can be made of it: each imports what it needs when asked, so that recording costs none of it.

    def steps(self) -> "Steps":
        """The step function of calls in flight, from starts to ends; see `occupancy.analysis.steps`."""
        from occupancy.analysis.steps import steps_in_flight

        return steps_in_flight(self.columns(), self._until_ns())

    def buckets(self, width_s: float) -> "Buckets":
        """Mean and peak in flight in each `width_s` from the first start on; see `occupancy.analysis.buckets`."""
        from occupancy.analysis.buckets import bucket_calls

        return bucket_calls(self.columns(), round(width_s * 1e9), self._until_ns())

    def summary(self) -> "Summary":
        """The log in numbers; see `occupancy.analysis.summary`."""
        from occupancy.analysis.summary import summarize

        return summarize(self.columns(), self._until_ns())

    def diagnose(self) -> "Diagnosis":
        """What holds the program back; see `occupancy.analysis.diagnosis`."""
        from occupancy.analysis.diagnosis import diagnose

        return diagnose(self.columns(), self._until_ns())

    def sparkline(self, width: int = 72) -> str:
        """Calls in flight over time in one line of ASCII, at most `width` characters and the peak."""
        from occupancy.views.sparkline import sparkline

        return sparkline(self.steps(), width)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw calls in flight over time, on new axes unless some are given."""
        from occupancy.views.step_plot import plot

        return plot(self.columns(), ax, until_ns=self._until_ns())

    def to_pandas(self) -> "DataFrame":
        """One row for each call; see `occupancy.formats.dataframe`."""
        from occupancy.formats.dataframe import to_dataframe

        return to_dataframe(self.columns(), self.origin_ns, self.origin_unix_ns)

    def dump_csv(self, path: str | os.PathLike[str], what: str = "calls") -> None:
        """Write a CSV file: `what="calls"`, one row each, or `what="steps"`, the step function as `t_s,in_flight`.

        Raises:
            InputError: `what` is neither, or the file cannot be written.
        """
        from occupancy.formats.occupancy_csv import dump

        dump(self, path, what)

    # Recording

    @contextmanager
    def track(
        self,
        label: str,
        *,
        kind: str = Kind.TOOL,
        client: str | None = None,
        host: str | None = None,
        path: str | None = None,
        model: str | None = None,
    ) -> Iterator[TrackedCall]:
        """Count a call of any other client, by hand, in this log and in all that record.

        The call starts with the block and ends with it: `ok` (`http_error` after `headers(400)` and above), or what the
        exception says that leaves the block.

        Args:
            label: What the step is called.
            kind: A `Kind`.
            client: The library that sends it, such as `urllib`.
            host: Where it goes.
            path: The path of its URL, without the query.
            model: The model it asks.

        Yields:
            The call, to be told of headers and bytes.

        Raises:
            InputError: `kind` is no `Kind`, or `label` no text; or the log was read.
        """
        if not self._live:
            raise InputError("a log that was read records no calls")
        if not isinstance(label, str):
            raise InputError(f"a label must be text, not {label!r}")
        if kind not in set(Kind):
            raise InputError(f"kind must be one of {', '.join(Kind)}, not {kind!r}")
        call = Call(kind=kind, client=client, host=host, path=path, model=model)
        _guard.guarded(caller.describe)(call)
        call.label = label[:LABEL_LENGTH]
        call.start_ns = monotonic_ns()
        others = tuple(log for log in ledger.logs if log is not self)
        flight = ledger.start(call, (*others, self))
        try:
            with caller.within_tracked_call(flight):
                yield TrackedCall(flight)
        except BaseException as error:
            flight.fail(error)
            raise
        flight.complete(monotonic_ns())
