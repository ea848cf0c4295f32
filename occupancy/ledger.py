"""Starts and releases of all calls of this process, in one order, for every log that records.

Nothing on a request's path ever waits here. Events are appended to a queue and counted by whoever gets the lock without
waiting; a thread that does not get it leaves its event to the one that has it, which looks again after letting go. So
neither a finalizer nor a signal handler that runs inside our own code can hang the process, and a thread that is held
up while it counts holds up nobody else. The price is that two threads may stamp in one order and queue in the other,
some microseconds apart: the later event is then moved to the earlier one's time, so the order of counts is the order of
stamps.
"""

import itertools
import os
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, NamedTuple, Protocol

from occupancy import _guard
from occupancy.call import Call
from occupancy.flight import Flight

if TYPE_CHECKING:
    from occupancy.log import OccupancyLog


CROWDED = 1000
"""Events that wait to be counted when those who bring more are slowed down."""


START, RELEASE, ADD, AMEND = "_start", "_release", "_add", "_amend"
"""What happens to a call: the method of a log that is told of it."""


class Counter(Protocol):
    """What counts starts and releases, as a log does: each is told once or more, in the order of the stamps."""

    def _start(self, call: Call) -> None: ...

    def _release(self, call: Call) -> None: ...

    def _add(self, call: Call) -> None:
        """It is known only now that it was a call, since it has ended."""


class _Known(NamedTuple):
    """A call of which something is known only after its end."""

    call: Call
    epoch: int
    logs: "tuple[Counter, ...]"


class Ledger:
    """The process's order of starts and releases."""

    def __init__(self) -> None:
        self.logs: tuple[OccupancyLog, ...] = ()
        """The logs that record now; empty means that calls are not looked at."""
        self.observers: tuple[Counter, ...] = ()
        """What counts the calls of all logs besides. It must not raise."""
        self.epoch = 0
        """Rises in a forked child: a call of the parent's is not the child's."""
        self.forked = 0
        """Processes that this one has forked while a log recorded: they record too."""
        self._call_ids = itertools.count(1)
        self._reset_lock()

    def _reset_lock(self) -> None:
        self._lock = RLock()
        self._draining = False
        self._events: deque[tuple[Flight | _Known, int, str]] = deque()
        self._flights: weakref.WeakSet[Flight] = weakref.WeakSet()
        self._last_ns = 0

    def attach(self, log: "OccupancyLog", *, first: bool = False) -> None:
        """Let a log record every call that starts from now on; the first log's counts go on the spans."""
        with self.settled():
            others = tuple(other for other in self.logs if other is not log)
            self.logs = (log, *others) if first else (*others, log)

    def detach(self, log: "OccupancyLog") -> None:
        """Let a log record no further starts; the calls it has are kept to their ends."""
        with self.settled():
            self.logs = tuple(other for other in self.logs if other is not log)

    def observe(self, observer: Counter) -> None:
        """Tell an observer of every call that starts from now on. Repeats are harmless."""
        self.observers = (*(other for other in self.observers if other is not observer), observer)

    def disregard(self, observer: Counter) -> None:
        """Tell an observer of no further starts."""
        self.observers = tuple(other for other in self.observers if other is not observer)

    def start(self, call: Call, logs: "tuple[OccupancyLog, ...] | None" = None) -> Flight:
        """Count a call from `call.start_ns` on, in `logs`, or in all that record."""
        self._number(call)
        flight = Flight(call, self, (*(self.logs if logs is None else logs), *self.observers))
        self._flights.add(flight)
        self._events.append((flight, call.start_ns, START))
        self.settle()
        return flight

    def add(self, call: Call) -> None:
        """Count a call that is known to be one only now that it has ended, in all logs that record."""
        self._number(call)
        self._events.append((_Known(call, self.epoch, (*self.logs, *self.observers)), time.monotonic_ns(), ADD))
        self.settle()

    def amend(self, call: Call) -> None:
        """Keep what has become known of a call after its end: model and tokens."""
        self._events.append((_Known(call, self.epoch, self.logs), time.monotonic_ns(), AMEND))
        self.settle()

    def _number(self, call: Call) -> None:
        call.call_id = next(self._call_ids)
        call.pid = os.getpid()
        call.logical_id = call.logical_id or call.call_id

    def release(self, flight: Flight, now_ns: int, *, settle: bool) -> None:
        """Let a call go at `now_ns`; `Flight` alone calls this, once. Without `settle` it takes no lock."""
        self._events.append((flight, now_ns, RELEASE))
        if settle:
            self.settle()

    def settle(self) -> None:
        """Count what is queued, unless somebody is at it: then they count ours too."""
        while self._events and self._lock.acquire(blocking=False):
            released: list[Flight] = []
            try:
                if self._draining:
                    return  # inside a finalizer or signal handler of the thread that counts
                self._drain(released)
            finally:
                self._lock.release()
                self._tell(released)
        if len(self._events) > CROWDED:
            time.sleep(0.001)  # whoever counts is behind: let it have the processor

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Hold the lock with everything counted, for a consistent read."""
        released: list[Flight] = []
        try:
            with self._lock:
                if not self._draining:
                    self._drain(released)
                yield
        finally:
            self._tell(released)
            self.settle()

    def has_open(self) -> bool:
        """Whether a call is open."""
        return any(not flight.ended for flight in list(self._flights))

    def awaits_headers(self) -> bool:
        """Whether a call is open whose response has not begun."""
        return any(flight.call.headers_ns is None and not flight.ended for flight in list(self._flights))

    def abandon_open(self) -> None:
        """End every call that is still open, as at exit."""
        for flight in list(self._flights):
            flight.abandon()
        self.settle()

    def _drain(self, released: list[Flight]) -> None:
        self._draining = True
        try:
            for _ in range(len(self._events)):  # those that are there, or a busy program would keep us here for ever
                # Taken off only when counted: an interrupt in between loses nothing, and counting twice changes
                # nothing.
                known, at_ns, event = self._events[0]
                if known.epoch == self.epoch:
                    self._last_ns = at_ns = max(at_ns, self._last_ns)
                    self._count(known, at_ns, event, released)
                self._events.popleft()
        finally:
            self._draining = False

    def _count(self, known: "Flight | _Known", at_ns: int, event: str, released: list[Flight]) -> None:
        call = known.call
        try:
            if event == START:
                call.start_ns = at_ns
            elif isinstance(known, Flight):
                call.released_ns = at_ns
                released.append(known)
            for log in reversed(known.logs):  # the first one's counts stay on the call
                getattr(log, event)(call)
        except Exception as error:
            _guard.report("occupancy.ledger", error)

    def _tell(self, released: list[Flight]) -> None:
        for flight in released:
            on_release, flight.on_release = flight.on_release, None
            if on_release is not None:
                try:
                    on_release(flight.call)
                except Exception as error:
                    _guard.report("occupancy.ledger.on_release", error)

    def forget_parent(self) -> None:
        """Begin anew in a forked child, where another thread of the parent may have held the lock."""
        self._reset_lock()
        self.forked = 0
        self.epoch += 1
        for log in self.logs:
            log._restart(time.monotonic_ns())

    def note_child(self) -> None:
        """Count a process that this one has forked."""
        self.forked += bool(self.logs)


ledger = Ledger()
"""The process's own."""

if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=ledger.forget_parent, after_in_parent=ledger.note_child)
