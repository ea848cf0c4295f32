"""Causes that stop an event loop: then every task on its thread stands still, whatever the servers do."""

from collections.abc import Iterator

import numpy as np

from occupancy.analysis.columns import MISSING
from occupancy.analysis.distribution import MS, number
from occupancy.analysis.findings import Cause, Finding, sites_of
from occupancy.analysis.groups import CountedCalls
from occupancy.analysis.steps import Int64, steps

LEAST_CHUNKS = 4
"""Pieces of a stream below which its longest gap says nothing about the others."""
GAP_TIMES = 3.0
"""A stall is this many times as long as the other gaps of its stream on average."""
STALL_SHARE = 0.15
"""Share of a stream's time, from start to last byte, that a stall takes: a busy machine stops a loop for less."""
SAME_SHARE = 0.8
"""Share of two gaps that is common where they are one stall, and of the streams under way that must share it."""
TOGETHER_SHARE = 0.5
"""Share of the stalled streams that found several pieces waiting: that is what tells the client from the server."""


def threads_of(calls: CountedCalls, place: Int64) -> Iterator[Int64]:
    """Places of the calls of each thread of one process: an event loop has one."""
    _, thread = number(calls.columns["thread"][place])
    for index in range(int(thread.max(initial=-1)) + 1):
        yield place[thread == index]


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
    streams = place[_is_stream(calls, place)]
    from_ns = calls.start_ns[streams] + calls.columns["max_gap_after_ns"][streams]
    until_ns = from_ns + calls.columns["max_gap_ns"][streams]
    stalls = []
    left = np.argsort(from_ns, kind="stable")
    while left.size:
        same = _shared(from_ns[left], until_ns[left])
        stall, left = left[same], left[~same]
        middle_ns = int(np.median(from_ns[stall] // 2 + until_ns[stall] // 2))
        if _is_stall(calls, streams, stall, middle_ns) and not _is_sync_at(calls, place, middle_ns):
            stalls.append(stall)
    if not stalls:
        return []
    sites = sites_of(calls.frames[site] for stall in stalls for site in calls.site[streams[stall]].tolist())
    longest_ns = [int((until_ns - from_ns)[stall].max()) for stall in stalls]
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
            sites,
            "find what blocks the loop (time.sleep, a threading.Lock, CPU work; asyncio's debug mode names it) "
            "and move it to a thread; if nothing does, the machine has no processor free",
            tuple(dict.fromkeys(calls.columns["run"][streams[stopped]].tolist())),
            sum(longest_ns) / MS,
        )
    ]


def _is_stream(calls: CountedCalls, place: Int64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    known = (calls.columns["max_gap_after_ns"][place] != MISSING) & (calls.columns["max_gap_ns"][place] != MISSING)
    known &= (calls.columns["chunks"][place] >= LEAST_CHUNKS) & (calls.columns["last_byte_ns"][place] != MISSING)
    return np.asarray(known)


def _shared(from_ns: Int64, until_ns: Int64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which gaps are one stall with the first: most of each is common. The first is always among them."""
    common = np.minimum(until_ns, until_ns[0]) - np.maximum(from_ns, from_ns[0])
    longer = np.maximum(until_ns - from_ns, until_ns[0] - from_ns[0])
    same = np.asarray(common >= SAME_SHARE * longer)
    same[0] = True
    return same


def _is_stall(calls: CountedCalls, streams: Int64, stall: Int64, middle_ns: int) -> bool:
    if stall.size < 2:
        return False
    columns = calls.columns
    first_ns, last_ns = columns["first_byte_ns"][streams], columns["last_byte_ns"][streams]
    under_way = np.count_nonzero((first_ns < middle_ns) & (last_ns > middle_ns))
    if stall.size < SAME_SHARE * under_way:
        return False
    mine = streams[stall]
    gap_ns, span_ns = columns["max_gap_ns"][mine], columns["last_byte_ns"][mine] - columns["first_byte_ns"][mine]
    whole_ns = columns["last_byte_ns"][mine] - calls.start_ns[mine]
    others_ns = (span_ns - gap_ns) / np.maximum(columns["chunks"][mine] - 2, 1)
    large = (gap_ns >= GAP_TIMES * others_ns) & (gap_ns >= STALL_SHARE * whole_ns)
    together = columns["chunks_after_gap"][mine] > 1
    return bool(large.mean() >= SAME_SHARE and together.mean() >= TOGETHER_SHARE)


def _is_sync_at(calls: CountedCalls, place: Int64, t_ns: int) -> bool:
    sync = place[calls.columns["sync_in_event_loop"][place] == 1]
    return steps(calls.start_ns[sync], calls.end_ns[sync]).at(t_ns) > 0
