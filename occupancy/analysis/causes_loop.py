"""Causes that stop an event loop: then every task on its thread stands still, whatever the servers do."""

from collections.abc import Iterator

import numpy as np

from occupancy.analysis.columns import MISSING
from occupancy.analysis.distribution import MS
from occupancy.analysis.findings import Cause, Finding, sites_of
from occupancy.analysis.groups import CountedCalls
from occupancy.analysis.steps import Int64, steps
from occupancy.analysis.unit import Unit, split

LEAST_CHUNKS = 4
"""Pieces of a stream below which its longest gap says nothing about the others."""
GAP_TIMES = 3.0
"""A stall is this many times as long as the other gaps of its stream on average."""
STALL_SHARE = 0.15
"""Share of a stream's time, from start to last byte, that a stall takes: a busy machine stops a loop for less."""
SAME_SHARE = 0.8
"""Share of two gaps that is common where they are one stall, and of the streams under way that must share it."""
SLACK_NS = 1_000
"""What rounding may move a time by, and more."""
TOGETHER_SHARE = 0.5
"""Share of the stalled streams that found several pieces waiting: that is what tells the client from the server."""


def threads_of(process: Unit) -> list[Int64]:
    """Places of the calls of each thread of one process: an event loop has one. Threads that show no loop are left out.

    That is those without a stream and without a synchronous call inside a loop: there may be as many threads as calls.
    """
    names, thread = process.calls.numbered("thread")
    thread = thread[process.place]
    telling = _is_stream(process.calls, process.place) | (process.column("sync_in_event_loop") == 1)
    mine = (np.bincount(thread[telling], minlength=len(names)) > 0)[thread]
    return split(process.place[mine], np.unique(thread[mine], return_inverse=True)[1])


def find_sync(calls: CountedCalls, place: Int64) -> list[Finding]:
    """Synchronous calls on the thread of an event loop that had something else to do.

    That is known where other tasks of the loop make calls, or wait with the caller in one group. A program of one task
    that uses a synchronous client loses nothing by the loop: it is serial.
    """
    sync = place[calls.columns["sync_in_event_loop"][place] == 1]
    if not sync.size:
        return []
    siblings = calls.columns["siblings"][sync]
    tasks = set(calls.columns["async_task"][place].tolist()) - {None}
    if len(tasks) < 2 and not (siblings > 1).any():
        return []
    blocked_ns = int((calls.end_ns[sync] - calls.start_ns[sync]).sum())
    runs = tuple(dict.fromkeys(calls.columns["run"][sync].tolist()))
    return [
        Finding(
            Cause.SYNC_IN_EVENT_LOOP,
            f"{sync.size} synchronous calls inside a running event loop stopped all its tasks for "
            f"{blocked_ns / MS:.0f} ms in all",
            {
                "calls": int(sync.size),
                "blocked_ms": blocked_ns / MS,
                "siblings": max(int(siblings.max()), 0),
                "tasks": len(tasks),
            },
            sites_of(calls.frames[site] for site in calls.site[sync].tolist()),
            "use the async client there, or move the call off the loop with asyncio.to_thread",
            runs,
            blocked_ns / MS,
        )
    ]


def find_stalls(calls: CountedCalls, place: Int64) -> list[Finding]:
    """All streams of one loop stand still at once, and find several pieces waiting when they go on.

    A server that pauses sends on piece by piece; only pieces that came meanwhile come together. Where a stream is so
    slow that nothing came meanwhile, or a synchronous call explains it, nothing is said.
    """
    streams = _Streams(Unit(None, calls, place[_is_stream(calls, place)]))
    sync = place[calls.columns["sync_in_event_loop"][place] == 1]
    blocked = steps(calls.start_ns[sync], calls.end_ns[sync])
    stalls = [
        stall for stall in streams.alike() if _is_stall(streams, stall) and not blocked.at(streams.middle_ns(stall))
    ]
    if not stalls:
        return []
    frames, runs = streams.unit.frames, streams.unit.column("run")
    longest_ns = [int((streams.until_ns - streams.from_ns)[stall].max()) for stall in stalls]
    stopped = np.unique(np.concatenate(stalls))
    return [
        Finding(
            Cause.LOOP_STALLS,
            f"all {max(stall.size for stall in stalls)} streams stood still at once, for up to "
            f"{max(longest_ns) / MS:.0f} ms, then found several pieces waiting: the client's event loop stopped, "
            "not the server",
            {
                "stalls": len(stalls),
                "longest_ms": max(longest_ns) / MS,
                "stalled_ms": sum(longest_ns) / MS,
                "streams": int(stopped.size),
            },
            sites_of(frames[place] for stall in stalls for place in stall.tolist()),
            "find what blocks the loop (time.sleep, a threading.Lock, CPU work; asyncio's debug mode names it) "
            "and move it to a thread; if nothing does, the machine has no processor free",
            tuple(dict.fromkeys(runs[stopped].tolist())),
            sum(longest_ns) / MS,
        )
    ]


def _is_stream(calls: CountedCalls, place: Int64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    known = (calls.columns["max_gap_after_ns"][place] != MISSING) & (calls.columns["max_gap_ns"][place] != MISSING)
    known &= (calls.columns["chunks"][place] >= LEAST_CHUNKS) & (calls.columns["last_byte_ns"][place] != MISSING)
    return np.asarray(known)


class _Streams:
    """The streams of one thread, with the longest gap of each."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.from_ns: Int64 = unit.start_ns + unit.column("max_gap_after_ns")
        self.until_ns: Int64 = self.from_ns + unit.column("max_gap_ns")
        first_ns, last_ns = unit.column("first_byte_ns"), unit.column("last_byte_ns")
        lasting = first_ns < last_ns
        self._first_ns, self._last_ns = np.sort(first_ns[lasting]), np.sort(last_ns[lasting])

    def middle_ns(self, stall: Int64) -> int:
        """The middle of some gaps."""
        return int(np.median(self.from_ns[stall] // 2 + self.until_ns[stall] // 2))

    def under_way(self, from_ns: Int64, until_ns: Int64) -> Int64:
        """How many streams are under way all the time between two times, at least; exact where the two are one."""
        begun = np.searchsorted(self._first_ns, from_ns, side="left")
        return begun - np.searchsorted(self._last_ns, until_ns, side="right")

    def alike(self) -> Iterator[Int64]:
        """Gaps that are one stall with the first of them, each in one group, in the order of time.

        A gap that begins later than 1 - `SAME_SHARE` of another one shares less with it. So only a stretch of the gaps,
        by their begin, may be one stall with a gap, and only where it is large enough are they looked at: the others of
        such a chain of stretches matter since they may take gaps out of it first.
        """
        order = np.argsort(self.from_ns, kind="stable")
        from_ns, until_ns = self.from_ns[order], self.until_ns[order]
        length_ns = np.maximum(until_ns - from_ns, 0)
        stop = np.searchsorted(from_ns, from_ns + (1 - SAME_SHARE) * length_ns + SLACK_NS, side="right")
        n_near = stop - np.arange(order.size)
        may = (n_near > 1) & (n_near >= SAME_SHARE * self.under_way(from_ns - SLACK_NS, until_ns + SLACK_NS))
        reach = np.maximum.accumulate(stop)
        chain = np.cumsum(np.concatenate(([0], reach[:-1] <= np.arange(1, order.size)))[: order.size])
        left = np.isin(chain, chain[may])
        for first in np.flatnonzero(left & (n_near > 1)).tolist():
            if left[first]:
                near = first + np.flatnonzero(left[first : stop[first]])
                same = near[_shared(from_ns[near], until_ns[near])]
                left[same] = False
                yield order[same]


def _shared(from_ns: Int64, until_ns: Int64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which gaps are one stall with the first: most of each is common. The first is always among them."""
    common = np.minimum(until_ns, until_ns[0]) - np.maximum(from_ns, from_ns[0])
    longer = np.maximum(until_ns - from_ns, until_ns[0] - from_ns[0])
    same = np.asarray(common >= SAME_SHARE * longer)
    same[0] = True
    return same


def _is_stall(streams: _Streams, stall: Int64) -> bool:
    if stall.size < 2:
        return False
    middle_ns = np.array(streams.middle_ns(stall))
    if stall.size < SAME_SHARE * int(streams.under_way(middle_ns, middle_ns)):
        return False
    calls, columns, mine = streams.unit.calls, streams.unit.calls.columns, streams.unit.place[stall]
    gap_ns, span_ns = columns["max_gap_ns"][mine], columns["last_byte_ns"][mine] - columns["first_byte_ns"][mine]
    whole_ns = columns["last_byte_ns"][mine] - calls.start_ns[mine]
    others_ns = (span_ns - gap_ns) / np.maximum(columns["chunks"][mine] - 2, 1)
    large = (gap_ns >= GAP_TIMES * others_ns) & (gap_ns >= STALL_SHARE * whole_ns)
    together = columns["chunks_after_gap"][mine] > 1
    return bool(large.mean() >= SAME_SHARE and together.mean() >= TOGETHER_SHARE)
