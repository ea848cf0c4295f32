"""Chrome's trace format, which Perfetto and chrome://tracing show: written, not read.

Each call is an async slice, since calls overlap, with its phases nested in it; a counter shows the calls in flight.
"""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from occupancy.analysis.steps import closed_end
from occupancy.call import Call, Kind
from occupancy.formats.call_records import to_record
from occupancy.formats.span_fields import PHASES

if TYPE_CHECKING:
    from occupancy.log import OccupancyLog

US = 1e3
"""ns in a µs: the format's unit."""
COUNTER, SERIES = "calls", "in flight"
"""Shown as one name."""


def pieces(log: "OccupancyLog") -> Iterator[str]:
    """A log as the text of a trace, piece by piece: its second 0 is the log's, events in the order of their times.

    A call that never ended has an end here all the same, where `steps()` lets it end: a slice without one is cut off.
    """
    columns = log.columns()
    ends = dict(zip(columns["call_id"].tolist(), closed_end(columns).tolist(), strict=True))
    calls = sorted([*log.calls, *log.open_calls], key=lambda call: call.start_ns)
    events = [event for call in calls for event in _of_call(call, ends[call.call_id])]
    pid = min((_pid(call) for call in calls), default=1)
    steps = log.steps()
    for t_ns, in_flight in zip(steps.t_ns.tolist(), steps.in_flight.tolist(), strict=True):
        place = {"ph": "C", "name": COUNTER, "pid": pid, "tid": 0, "ts": (t_ns - log.origin_ns) / US}
        events.append({**place, "args": {SERIES: in_flight}})
    events.sort(key=lambda event: event["ts"])  # stable: what nests stays in its order
    names = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": "occupancy"}}
        for pid in sorted({_pid(call) for call in calls})
    ]
    about = {"source": "occupancy", "origin_unix_ns": str(log.origin_unix_ns), "peak": log.peak}
    yield f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)}, "traceEvents": ['
    separator = "\n"
    for event in [*names, *events]:
        yield separator + json.dumps(event)
        separator = ",\n"
    yield "\n]}\n"


def _pid(call: Call) -> int:
    return call.pid or 1  # 0 is the idle process of the kernel


def _of_call(call: Call, end_ns: int) -> Iterator[dict[str, Any]]:
    """The events of a call in an order in which slices nest: its beginning, its phases one by one, its end."""
    start_us = (call.start_ns - call.origin_ns) / US
    common = {
        "cat": "other" if call.kind == Kind.OTHER else "call",
        "id2": {"local": f"0x{call.call_id:x}"},
        "pid": _pid(call),
        "tid": 0,
    }
    name = call.label or call.path or "call"
    end_ns = max(end_ns, call.start_ns)
    yield {"ph": "b", "name": name, **common, "ts": start_us, "args": to_record(call)}
    for phase, from_ns, to_ns in _phases(call, end_ns):
        yield {"ph": "b", "name": phase, **common, "ts": (from_ns - call.origin_ns) / US}
        yield {"ph": "e", "name": phase, **common, "ts": (to_ns - call.origin_ns) / US}
    yield {"ph": "e", "name": name, **common, "ts": (end_ns - call.origin_ns) / US}


def _phases(call: Call, end_ns: int) -> Iterator[tuple[str, int, int]]:
    """The phases that are known, one after another within the call; the last one ends with it."""
    at_ns = call.start_ns
    for name in PHASES:
        spent_ns = getattr(call, name)
        if not spent_ns:
            continue
        from_ns = max(at_ns, end_ns - spent_ns) if name == "receive_ns" else at_ns
        at_ns = min(from_ns + spent_ns, end_ns)
        if at_ns > from_ns:
            yield name.removesuffix("_ns"), from_ns, at_ns
