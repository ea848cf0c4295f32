"""Causes that lie in single exchanges: late first bytes, buffered streams, connections that are lost or held."""

import numpy as np
from numpy.typing import NDArray

from occupancy.analysis.causes_capped import BUSY_SHARE, reused_share, waiting_level
from occupancy.analysis.columns import MISSING
from occupancy.analysis.distribution import MS, elapsed
from occupancy.analysis.findings import Cause, Finding, sites_of
from occupancy.analysis.groups import CountedCalls
from occupancy.analysis.steps import Int64
from occupancy.analysis.unit import Unit
from occupancy.call import Frame, Outcome

LATE_SHARE = 0.3
"""Share of all waiting for first bytes that a phase takes when it is what makes them late."""
LATE_MS = 100.0
"""What the phase usually takes at least in the calls that have it: a burst of calls on one processor takes less."""
NEW_SHARE = 0.5
"""Share of calls that open a connection of their own, where connections are not kept."""
NEW_TIMES = 2
"""Times the peak on the wire, plus 2: connections that even a pool which lets some expire does not need."""
LEAST_CONNECTIONS = 8
"""Calls whose connection must be known."""
BUFFERED_SHARE = 0.1
"""Share of its time in which all of a buffered stream comes, at the end."""
BUFFERED_BYTES = 2048
BUFFERED_CHUNKS = 16
"""A stream of less is too short to tell; about 8 events of a model's answer, or 16 pieces."""
CHUNKS_PER_S, BYTES_PER_S = 1000.0, 250_000.0
"""Faster than models write: the fastest send some hundred events of some hundred bytes in a second."""

PHASES = (
    ("pool_ns", Cause.LATE_POOL, "before a connection, though connections were free: the client's own processor time",
     "put fewer in flight in one client or process (200 to 300), or use several clients"),
    ("connect_ns", Cause.LATE_CONNECT, "for the connection (DNS and TCP)",
     "open connections before they are needed, keep them, and look at DNS"),
    ("tls_ns", Cause.LATE_TLS, "for the TLS handshake",
     "keep connections open, one client for the whole program, so that handshakes are rare"),
)  # fmt: skip


def find_late(process: Unit) -> list[Finding]:
    """A phase before the request is sent takes a good part of the wait for first bytes; the largest one is named."""
    calls, place = process.calls, process.place
    wait_ns = elapsed(process.start_ns, process.column("first_byte_ns"))
    total_ns = elapsed(process.start_ns, process.column("end_ns"))
    wait_ns = np.where(wait_ns == MISSING, total_ns, wait_ns)  # failed before: it waited all its time
    known = wait_ns != MISSING
    all_ns = int(wait_ns[known].sum())
    sums = {}
    for name, *_ in PHASES:
        phase_ns = calls.columns[name][place]
        sums[name] = int(phase_ns[known & (phase_ns != MISSING)].sum())
    name, cause, what, action = max(PHASES, key=lambda phase: sums[phase[0]])
    phase_ns = calls.columns[name][place]
    if not all_ns or sums[name] < LATE_SHARE * all_ns or np.median(phase_ns[phase_ns > 0]) < LATE_MS * MS:
        return []
    slow = place[known & (phase_ns >= phase_ns.max() / 2)]
    if cause is Cause.LATE_POOL and not _is_own_time(process, slow):
        return []
    return [
        Finding(
            cause,
            f"{sums[name] / all_ns:.0%} of the wait for first bytes passes {what}",
            {
                "share": sums[name] / all_ns,
                f"{name.removesuffix('_ns')}_ms": sums[name] / MS,
                "first_byte_wait_ms": all_ns / MS,
                "calls": int(np.count_nonzero(known)),
            },
            _sites(calls, slow),
            action,
            cost_ms=sums[name] / MS / max(process.steps.peak, 1),
        )
    ]


def _is_own_time(process: Unit, slow: Int64) -> bool:
    """Whether connections were free while calls waited for one: few were on the wire, and who waited opened its own."""
    level, _ = waiting_level(process, np.maximum(process.column("pool_ns"), 0))
    reused = reused_share(process.calls.columns["connection_reused"][slow])
    return level < BUSY_SHARE * process.wire.peak and reused is not None and reused < NEW_SHARE


def find_not_reused(process: Unit) -> list[Finding]:
    """Far more connections are opened than are ever needed at once."""
    calls, reused = process.calls, process.column("connection_reused")
    n_known, new = int(np.count_nonzero(reused != MISSING)), process.place[reused == 0]
    if n_known < LEAST_CONNECTIONS or new.size < NEW_SHARE * n_known:
        return []
    peak = process.wire.peak
    if new.size < NEW_TIMES * peak + 2:
        return []
    open_ns = sum(int(np.maximum(calls.columns[name][new], 0).sum()) for name in ("connect_ns", "tls_ns"))
    return [
        Finding(
            Cause.NOT_REUSED,
            f"{new.size} of {n_known} calls opened a connection of their own; never more than {peak} were needed",
            {"opened": int(new.size), "calls": n_known, "peak_on_wire": peak, "opening_ms": open_ns / MS},
            _sites(calls, new),
            "make one client and use it for all calls; a client for each call cannot keep its connections",
            cost_ms=open_ns / MS / max(peak, 1),
        )
    ]


def find_buffered(process: Unit) -> list[Finding]:
    """Event streams whose pieces all come at once, at the end: something on the way holds them back."""
    first_ns, last_ns, chunks, size = (
        process.column(name) for name in ("first_byte_ns", "last_byte_ns", "chunks", "bytes_received")
    )
    wait_ns, span_ns = elapsed(process.start_ns, first_ns), elapsed(first_ns, last_ns)
    streams = (process.column("first_event_ns") != MISSING) & (wait_ns != MISSING) & (span_ns != MISSING)
    long = streams & ((size >= BUFFERED_BYTES) | (chunks >= BUFFERED_CHUNKS))
    seconds = np.maximum(span_ns, 1) / 1e9
    fast = (chunks >= CHUNKS_PER_S * seconds) & (size >= BYTES_PER_S * seconds)
    buffered = long & fast & (span_ns <= BUFFERED_SHARE * (wait_ns + span_ns))
    n_long, n_buffered = int(np.count_nonzero(long)), int(np.count_nonzero(buffered))
    if not n_buffered or n_buffered * 2 < n_long:
        return []
    wait_ms = float(np.median(wait_ns[buffered])) / MS
    return [
        Finding(
            Cause.BUFFERED_STREAM,
            f"{n_buffered} of {n_long} event streams came all at once, at their end: something on the way buffers them",
            {
                "streams": n_long,
                "buffered": n_buffered,
                "wait_first_ms": wait_ms,
                "span_ms": float(np.median(span_ns[buffered])) / MS,
            },
            _sites(process.calls, process.place[buffered]),
            "switch buffering and compression of text/event-stream off in the proxy or gateway (x-accel-buffering: no)",
            cost_ms=wait_ms,
        )
    ]


def find_unclosed(process: Unit) -> list[Finding]:
    """Responses that nobody reads to the end or closes keep their connections, and others wait for those.

    Known by responses that were collected or still open at the end; or by calls that ran into the pool's time-out
    while far fewer were on the wire than before: something holds the connections.
    """
    place, has_response = process.place, process.column("status") != MISSING
    lost = place[(process.column("outcome") == Outcome.ABANDONED.value) & has_response]
    timed_out = process.column("error_type") == "PoolTimeout"
    if not lost.size and not timed_out.any():
        return []
    pool_ns, peak = np.maximum(process.column("pool_ns"), 0), process.wire.peak
    level, _ = waiting_level(process, pool_ns)
    starved = place[timed_out] if timed_out.any() and level < peak / 2 else place[:0]
    if not lost.size and not starved.size:
        return []
    told = f"{lost.size} responses were never read to their end or closed" if lost.size else ""
    if starved.size:
        told += " and " * bool(told) + (
            f"{starved.size} calls waited in vain for a connection while {level:.1f} of {peak} were on the wire"
        )
    return [
        Finding(
            Cause.UNCLOSED_RESPONSES,
            told + (": each holds a connection" if lost.size else ": responses that were not closed hold them"),
            {
                "unclosed": int(lost.size),
                "pool_timeouts": int(np.count_nonzero(timed_out)),
                "pool_wait_ms": int(pool_ns.sum()) / MS,
                "calls": int(place.size),
            },
            _sites(process.calls, lost if lost.size else _holders(process, timed_out)),
            "close every response, best with a with statement (async with client.stream(...) as response)",
            cost_ms=int(pool_ns.sum()) / MS,
        )
    ]


def _holders(process: Unit, timed_out: NDArray[np.bool_]) -> Int64:
    """Who may hold the connections: the calls on a connection before the first that found none."""
    first_ns = int(process.start_ns[timed_out].min())
    begun = np.minimum(process.wire_ns, process.end_ns) <= first_ns
    held: Int64 = process.place[begun & ~timed_out & (process.column("status") != MISSING)]
    return held


def _sites(calls: CountedCalls, place: Int64) -> tuple[Frame, ...]:
    return sites_of(calls.frames[site] for site in calls.site[place].tolist())
