"""One call in flight: stamps it, and ends it exactly once, whatever happens.

Everything that sees calls (the httpx hooks, `OccupancyLog.track`, later other clients) drives a `Flight`; nobody else
sets stamps or outcomes.
"""

from collections.abc import Callable
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from occupancy import _guard
from occupancy.call import Call, Outcome

if TYPE_CHECKING:
    from occupancy.ledger import Counter, Ledger

TIMEOUTS = frozenset({"TimeoutException", "TimeoutError", "Timeout", "EmptyPoolError"})
"""Names of classes of time-outs. The last is urllib3's, of the wait for a connection."""
REFUSALS = frozenset({"NewConnectionError"})
"""urllib3's for what keeps a connection from opening, which is a time-out by its bases."""

TOGETHER_NS = 1_000_000
"""Pieces that come within this time, or within a hundredth of the gap before them, come together."""

_collecting_thread: int | None = None


@_guard.guarded
def note_collection(phase: str, info: dict[str, Any]) -> None:
    """Know, from `gc.callbacks`, when the garbage collector is at work.

    What it collects it also closes: a generator over a body runs its clean-up then, as if the program had closed the
    body. Only here the two can be told apart, and the collector's time is nobody's end.
    """
    global _collecting_thread
    _collecting_thread = get_ident() if phase == "start" else None


def is_collecting() -> bool:
    """Whether this code runs inside the garbage collector."""
    return _collecting_thread == get_ident()


def outcome_of(error: BaseException) -> Outcome:
    """What an exception that leaves an exchange says of it.

    Clients are known by the names of their exception classes: importing them is the host's business.
    """
    if isinstance(error, GeneratorExit):
        return Outcome.CLOSED_EARLY
    if not isinstance(error, Exception):
        return Outcome.CANCELLED  # CancelledError, trio.Cancelled, KeyboardInterrupt
    names = {base.__name__ for base in type(error).__mro__}
    return Outcome.ERROR if names.isdisjoint(TIMEOUTS) or not names.isdisjoint(REFUSALS) else Outcome.TIMEOUT


def _note_gap(call: Call, since_ns: int, now_ns: int) -> None:
    """Keep the longest gap between two pieces, and how many came at once when it was over.

    A server that had paused goes on piece by piece; what a stopped client finds has come meanwhile, and comes together.
    """
    gap_ns, longest_ns = now_ns - since_ns, call.max_gap_ns
    if longest_ns is None or gap_ns > longest_ns:
        call.max_gap_ns, call.max_gap_after_ns, call.chunks_after_gap = gap_ns, since_ns - call.start_ns, 1
        return
    over_ns = call.start_ns + (call.max_gap_after_ns or 0) + longest_ns
    if now_ns - over_ns <= max(TOGETHER_NS, longest_ns // 100):
        call.chunks_after_gap = (call.chunks_after_gap or 0) + 1


class Flight:
    """A call between its start and its release.

    Args:
        call: The record to fill. The flight owns it until the release.
        ledger: Where starts and releases are counted.
        logs: The logs that count this call, and what counts it besides.
    """

    __slots__ = ("__weakref__", "_open", "call", "epoch", "ledger", "logs", "on_release")

    def __init__(self, call: Call, ledger: "Ledger", logs: "tuple[Counter, ...]") -> None:
        self.call = call
        self.ledger = ledger
        self.logs = logs
        self.epoch = ledger.epoch
        self.on_release: Callable[[Call], None] | None = None
        """Told once, after the release and outside every lock."""
        self._open = [True]

    @_guard.guarded
    def __del__(self) -> None:
        # Nobody can end this call any more: its response was collected. No lock may be taken here.
        if self._open:
            self.abandon()

    @property
    def ended(self) -> bool:
        """Whether the end has been seen."""
        return not self._open

    def headers(self, status: int, now_ns: int) -> None:
        """The response's headers are there."""
        self.call.headers_ns = now_ns
        self.call.status = status

    def chunk(self, size: int, now_ns: int) -> None:
        """A piece of the body has come, `size` bytes as on the wire; an empty one is no byte.

        What came at the same moment as the piece before is one with it.
        """
        call = self.call
        if not size or not self._open:
            return
        call.bytes_received += size
        if now_ns == call.last_byte_ns:
            return
        if call.first_byte_ns is None:
            call.first_byte_ns = now_ns
        elif call.last_byte_ns is not None:
            _note_gap(call, call.last_byte_ns, now_ns)
        call.last_byte_ns = now_ns
        call.chunks += 1

    def complete(self, end_ns: int | None = None) -> None:
        """The exchange is complete: it ended at `end_ns`, else with the last byte, or the headers without a body."""
        call = self.call
        failed = call.status is not None and call.status >= 400
        if failed and call.error_type is None:
            call.error_type = str(call.status)
        now_ns = monotonic_ns()
        if end_ns is None:
            end_ns = self._last_seen_ns(now_ns)
        self._end(Outcome.HTTP_ERROR if failed else Outcome.OK, end_ns, now_ns)

    def close(self, *, settle: bool = True) -> None:
        """The program closes the body: early, unless the end was seen before.

        Where it is the garbage collector that closes, the body is abandoned. Without `settle` it takes no lock, as a
        finalizer needs it: the release is counted at the next start, end or read.
        """
        if is_collecting():
            self.abandon()
            return
        now_ns = monotonic_ns()
        self._end(Outcome.CLOSED_EARLY, now_ns, now_ns, settle=settle)

    def fail(self, error: BaseException) -> None:
        """The exchange ended with an exception."""
        if not self._open:
            return
        outcome = outcome_of(error)
        if outcome is Outcome.CLOSED_EARLY:
            self.close()
            return
        now_ns = monotonic_ns()
        self.call.error_type = type(error).__qualname__
        self._end(outcome, now_ns, now_ns)

    def abandon(self) -> None:
        """The response was collected, or is still open at exit: it ended with the last byte seen.

        Takes no lock, since finalizers come here.
        """
        now_ns = monotonic_ns()
        end_ns = now_ns if self.call.headers_ns is None else self._last_seen_ns(now_ns)
        self._end(Outcome.ABANDONED, end_ns, now_ns, settle=False)

    def _last_seen_ns(self, now_ns: int) -> int:
        call = self.call
        if call.last_byte_ns is not None:
            return call.last_byte_ns
        return now_ns if call.headers_ns is None else call.headers_ns

    def _end(self, outcome: Outcome, end_ns: int, now_ns: int, *, settle: bool = True) -> None:
        try:
            self._open.pop()  # atomic: of two threads that end a call, one wins
        except IndexError:
            if settle:  # what a finalizer has ended waits to be counted
                self.ledger.settle()
            return
        call = self.call
        call.outcome = outcome
        call.end_ns = end_ns
        if call.headers_ns is not None:
            call.receive_ns = end_ns - call.headers_ns
        self.ledger.release(self, now_ns, settle=settle)
