"""What the metrics tell, counted: calls and seconds in flight for each target, the recent peak, and what has ended.

Calls are counted in the ledger's order and under its lock, as a log counts them, and read whenever somebody collects.
"""

from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic_ns
from typing import NamedTuple

from occupancy import _guard
from occupancy.call import Call, Kind, Outcome
from occupancy.ledger import Ledger

PEAK_WINDOW_NS = 60_000_000_000
"""The peak is that of the time up to now that is so long: long enough for usual intervals of collection."""
MOST_TARGETS = 1000
"""Sets of attributes that are told apart; what comes later is told as one."""
MOST_ENDED = 100_000
"""Calls that wait for the next collection; of more, the oldest are in no histogram."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"})
FAILED = frozenset({Outcome.TIMEOUT, Outcome.ERROR, Outcome.CANCELLED})

Attributes = dict[str, str | int]
OTHER_TARGETS: Attributes = {"otel.metric.overflow": True}
"""As OpenTelemetry's SDK tells what is beyond its own limit."""


class Target:
    """The calls with one set of attributes."""

    __slots__ = ("_told_ns", "_total_ns", "attributes", "open")

    def __init__(self, attributes: Attributes) -> None:
        self.attributes = attributes
        self.open: set[int] = set()
        """Calls in flight, by their ids."""
        self._total_ns = (0, 0)  # up to a moment, and that moment: one value, so that no interrupt comes between
        self._told_ns = 0

    def advance(self, now_ns: int) -> None:
        """Add the times in flight up to now."""
        self._total_ns = self.total_ns(now_ns), now_ns

    def total_ns(self, now_ns: int) -> int:
        """The sum of the times in flight up to now."""
        total_ns, since_ns = self._total_ns
        return total_ns + len(self.open) * (now_ns - since_ns)

    def tell_ns(self, now_ns: int) -> int:
        """Give that sum to a collector; a counter never falls, also where an end is counted after a collection."""
        self._told_ns = max(self._told_ns, self.total_ns(now_ns))
        return self._told_ns

    def add(self, lasted_ns: int) -> None:
        """Add the time in flight of a call that has ended."""
        total_ns, since_ns = self._total_ns
        self._total_ns = total_ns + lasted_ns, since_ns


class RecentPeak:
    """The highest level of the last `window_ns`, exactly, in memory for as many numbers as the highest level."""

    def __init__(self, window_ns: int) -> None:
        self._window_ns = window_ns
        self._left: deque[tuple[int, int]] = deque()
        """Levels that were left, each higher than the next, and when."""

    def leave(self, level: int, now_ns: int) -> None:
        """Note that the level, which was this, falls now."""
        while self._left and self._left[-1][1] <= level:
            self._left.pop()
        self._left.append((now_ns, level))

    def at(self, now_ns: int, level: int) -> int:
        """Give the peak up to now, where the level is this."""
        while self._left and self._left[0][0] <= now_ns - self._window_ns:
            self._left.popleft()
        return max(level, self._left[0][1]) if self._left else level


class Ended(NamedTuple):
    """A call that has ended, as far as histograms tell of it."""

    attributes: Attributes
    client: str | None
    host: str | None
    path: str | None
    status: int | None
    error_type: str | None
    duration_ns: int
    first_event_ns: int | None
    """From the start to the first event of an event stream."""
    pool_ns: int | None


class Counts:
    """Counts the calls that start while the ledger tells it of them.

    Args:
        ledger: The process's.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.keeps_ended: Callable[[], bool] = lambda: False
        """Whether somebody will collect what has ended."""
        self._ledger = ledger
        self.restart()

    def restart(self) -> None:
        """Begin at nothing, as in a forked child: sums over processes then count each second once."""
        self._targets: dict[object, Target] = {}
        self._open: dict[int, Target] = {}
        self._peak = RecentPeak(PEAK_WINDOW_NS)
        self._ended: deque[Ended] = deque(maxlen=MOST_ENDED)

    # Told by the ledger. Each is a no-op the second time, so that an interrupt in the middle loses and doubles nothing.

    @_guard.guarded
    def _start(self, call: Call) -> None:
        if call.kind == Kind.OTHER or call.call_id in self._open:
            return
        target = self._target(call)
        target.advance(call.start_ns)
        target.open.add(call.call_id)
        self._open[call.call_id] = target

    @_guard.guarded
    def _release(self, call: Call) -> None:
        target = self._open.get(call.call_id)
        if target is None:
            return
        now_ns = call.released_ns or 0
        target.advance(now_ns)
        target.open.discard(call.call_id)
        self._peak.leave(len(self._open), now_ns)
        del self._open[call.call_id]
        if self.keeps_ended():
            self._ended.append(_ended(call, target.attributes))

    @_guard.guarded
    def _add(self, call: Call) -> None:
        """Its seconds count from now on; it was never known to be in flight, and is no HTTP request to tell of."""
        if call.kind != Kind.OTHER:
            self._target(call).add((call.end_ns or call.start_ns) - call.start_ns)

    def _target(self, call: Call) -> Target:
        key = call.host, call.port, call.method, call.model, call.kind
        target = self._targets.get(key)
        if target is None:
            if len(self._targets) < MOST_TARGETS:
                target = self._targets[key] = Target(attributes_of(call))
            else:
                target = self._targets.setdefault(None, Target(OTHER_TARGETS))
        return target

    # Read by whoever collects

    def in_flight(self) -> list[tuple[Attributes, int]]:
        """The calls in flight now, for each set of attributes."""
        with self._ledger.settled():
            return [(target.attributes, len(target.open)) for target in self._targets.values()]

    def in_flight_s(self) -> list[tuple[Attributes, float]]:
        """The sum of the times in flight up to now, in seconds, for each set of attributes."""
        with self._ledger.settled():
            now_ns = monotonic_ns()
            return [(target.attributes, target.tell_ns(now_ns) / 1e9) for target in self._targets.values()]

    def peak(self) -> int:
        """The most calls in flight at once in the last `PEAK_WINDOW_NS`, of all attributes together."""
        with self._ledger.settled():
            return self._peak.at(monotonic_ns(), len(self._open))

    def take_ended(self) -> Iterator[Ended]:
        """Give each call once that has ended since."""
        self._ledger.settle()
        while self._ended:
            try:
                yield self._ended.popleft()
            except IndexError:  # somebody else collects too
                return


def attributes_of(call: Call) -> Attributes:
    """What metrics tell of a call's target: nothing that takes many values. What is not known is left out."""
    address, port = _address(call)
    method = call.method if call.method is None or call.method in METHODS else "_OTHER"
    attributes = {
        "server.address": address,
        "server.port": port,
        "http.request.method": method,
        "gen_ai.request.model": call.model,
        "occupancy.kind": str(call.kind),
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _address(call: Call) -> tuple[str | None, int | None]:
    host, port = call.host, call.port
    if host is not None and port is None and host.count(":") == 1:  # more are those of an IPv6 address
        name, _, digits = host.partition(":")
        return (name, int(digits)) if digits.isdecimal() else (host, None)
    return (host, None) if host is None or port is None else (host.removesuffix(f":{port}"), port)


def _ended(call: Call, attributes: Attributes) -> Ended:
    failed = call.error_type is not None or call.outcome in FAILED
    return Ended(
        attributes,
        call.client,
        call.host,
        call.path,
        call.status,
        (call.error_type or str(call.outcome)) if failed else None,
        (call.end_ns or call.start_ns) - call.start_ns,
        None if call.first_event_ns is None else call.first_event_ns - call.start_ns,
        call.pool_ns,
    )
