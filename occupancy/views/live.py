"""Calls as they happen: what is in flight now, the last minute, the slowest that are open.

`LiveCalls` is told of each start and each end, by a journal that grows or by a log that records; `frame` draws what it
knows as rich text, `frame(...).plain` as ASCII. Neither looks at a clock: times are ns on that of the calls' stamps.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from rich.text import Text

from occupancy.analysis.steps import Int64, Steps, steps
from occupancy.call import Call, Kind, Outcome
from occupancy.views.sparkline import sparkline
from occupancy.views.text import count, plain, shorten, table
from occupancy.views.timeline import NO_LABEL

SECOND_NS = 1_000_000_000
WINDOW_NS = 60 * SECOND_NS
"""What is drawn."""
RATE_NS = 10 * SECOND_NS
"""Over which the present rate of calls is taken."""
SILENCE_NS = 60 * SECOND_NS
"""After which the open calls of a process that is not found any more count as left open."""
FAILED = frozenset({Outcome.HTTP_ERROR, Outcome.TIMEOUT, Outcome.ERROR})
TOO_MANY_REQUESTS = 429
OPEN_ROWS = 10
"""Open calls that are listed."""
OPEN_FIELDS = ("pid", "label", "run", "method", "host", "path", "model")
"""What the JSON tells of them besides their age and call site."""
NARROWEST = 50

BOLD, QUIET, BAD = "bold", "dim", "bold red"


class _Ended(NamedTuple):
    start_ns: int
    released_ns: int
    failed: bool
    too_many: bool


@dataclasses.dataclass(slots=True)
class Tallies:
    """Calls that have ended."""

    ended: int = 0
    failed: int = 0
    """Status of 400 or more, or no whole answer."""
    too_many: int = 0
    """Status 429."""

    def add(self, call: _Ended) -> None:
        """Count one more."""
        self.ended += 1
        self.failed += call.failed
        self.too_many += call.too_many


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """What a frame shows."""

    open_calls: list[Call]
    """In flight now, the longest first."""
    left_open: list[Call]
    """Of processes that are gone: they will not end."""
    minute: Tallies
    """Of the last minute."""
    all: Tallies
    """Of all that was seen."""
    in_flight: Steps
    """Over the last minute, from its begin to now, as `_clipped` says."""
    rate_now: float
    """Calls that ended, each second, over the last 10 s."""
    rate_minute: float
    """The same over the last minute."""


class LiveCalls:
    """What is known of calls that happen now: those that are open, and the last minute of those that have ended."""

    def __init__(self) -> None:
        self.all = Tallies()
        self._open: dict[tuple[str, int], Call] = {}
        self._recent: deque[_Ended] = deque()
        self._newest_ns: dict[str, int] = {}
        self._found: set[str] = set()
        self._gone: set[str] = set()
        self._first_ns: int | None = None

    def take(self, process: str, call: Call) -> None:
        """Note a call that has started, or one that has ended.

        Args:
            process: Whose `call_id` it is.
            call: Without an end it is open. It may be changed later: it is looked at when drawn.
        """
        if call.kind == Kind.OTHER:
            return
        released_ns = call.end_ns if call.released_ns is None else call.released_ns
        key = process, call.call_id
        newest_ns = call.start_ns if released_ns is None else released_ns
        self._newest_ns[process] = max(newest_ns, self._newest_ns.get(process, newest_ns))
        self._first_ns = call.start_ns if self._first_ns is None else min(self._first_ns, call.start_ns)
        self._gone.discard(process)
        if released_ns is None:
            self._open[key] = call
            return
        self._open.pop(key, None)
        failed = call.outcome in FAILED or (call.status is not None and call.status >= 400)
        self._end(_Ended(call.start_ns, released_ns, failed, call.status == TOO_MANY_REQUESTS))

    def _end(self, ended: _Ended) -> None:
        self.all.add(ended)
        self._recent.append(ended)
        while self._recent[0].released_ns < ended.released_ns - WINDOW_NS:
            self._recent.popleft()

    def look_for_processes(self, now_ns: int, is_running: Callable[[str], bool]) -> None:
        """Find out which processes are gone: what they left open is not in flight.

        That is so when a process was found before and is not now; or was never found (it may run in a container, or on
        another machine) and has given no sign of life for a minute. With its next sign of life it is there again.

        Args:
            now_ns: The time now.
            is_running: Tells whether a process is found.
        """
        for process in {process for process, _ in self._open}:
            if is_running(process):
                self._found.add(process)
            elif process in self._found or now_ns - self._newest_ns[process] >= SILENCE_NS:
                self._gone.add(process)

    def snapshot(self, now_ns: int) -> Snapshot:
        """Sum up what is known now."""
        begin_ns = now_ns - WINDOW_NS
        recent = [ended for ended in self._recent if ended.released_ns > begin_ns]
        minute = Tallies()
        for ended in recent:
            minute.add(ended)
        n_now = sum(ended.released_ns > now_ns - RATE_NS for ended in recent)
        calls = sorted(self._open.items(), key=lambda item: item[1].start_ns)
        age_ns = SECOND_NS if self._first_ns is None else max(now_ns - self._first_ns, SECOND_NS)
        return Snapshot(
            open_calls=[call for (process, _), call in calls if process not in self._gone],
            left_open=[call for (process, _), call in calls if process in self._gone],
            minute=minute,
            all=self.all,
            in_flight=_clipped(steps(*self._intervals(recent, now_ns)), begin_ns, now_ns),
            rate_now=n_now * SECOND_NS / min(RATE_NS, age_ns),
            rate_minute=minute.ended * SECOND_NS / min(WINDOW_NS, age_ns),
        )

    def _intervals(self, recent: Iterable[_Ended], now_ns: int) -> tuple[Int64, Int64]:
        """Starts and releases; what is open ends now, or with the last sign of life of a process that is gone."""
        pairs = [(ended.start_ns, ended.released_ns) for ended in recent]
        for (process, _), call in self._open.items():
            end_ns = self._newest_ns[process] + 1 if process in self._gone else now_ns
            pairs.append((call.start_ns, end_ns))
        start_ns, released_ns = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return start_ns, released_ns


def _clipped(in_flight: Steps, begin_ns: int, now_ns: int) -> Steps:
    """Cut steps to a window, whose two ends become steps too: what is drawn is the window, however full it is."""
    inside = (in_flight.t_ns > begin_ns) & (in_flight.t_ns < now_ns)
    return Steps(
        t_ns=np.concatenate(([begin_ns], in_flight.t_ns[inside], [now_ns])),
        in_flight=np.concatenate(([in_flight.at(begin_ns)], in_flight.in_flight[inside], [0])),
    )


def to_json(seen: Snapshot, now_ns: int) -> dict[str, Any]:
    """Give what a frame shows as what `json.dumps` takes, with all calls that are open."""
    return {
        "in_flight": len(seen.open_calls),
        "peak_last_minute": seen.in_flight.peak,
        "calls_per_s_last_10_s": seen.rate_now,
        "calls_per_s_last_minute": seen.rate_minute,
        "last_minute": dataclasses.asdict(seen.minute),
        "all": dataclasses.asdict(seen.all),
        "open_calls": [
            {
                "open_for_ms": max(now_ns - call.start_ns, 0) / 1e6,
                **{name: getattr(call, name) for name in OPEN_FIELDS},
                "call_site": None if call.call_site is None else str(call.call_site),
            }
            for call in seen.open_calls
        ],
        "n_left_open": len(seen.left_open),
    }


def frame(seen: Snapshot, now_ns: int, width: int = 80, rows: int = OPEN_ROWS, notes: Iterable[str] = ()) -> Text:
    """Draw one frame.

    Args:
        seen: What is known.
        now_ns: The time now.
        width: Columns, at least 50; nothing is wider.
        rows: Open calls that are listed, at least 1.
        notes: Further lines, at the end.

    Returns:
        Lines of ASCII without a last newline, with styles for a terminal.
    """
    lines = [
        *_head(seen),
        Text(),
        *_minute(seen, width),
        Text(),
        _tally("last minute", seen.minute, is_now=True),
        _tally("in all     ", seen.all, is_now=False),
        *_open_calls(seen.open_calls, now_ns, width, rows),
        *_left_open(seen.left_open),
        *(Text(plain(note), style=QUIET) for note in notes),
    ]
    for line in lines:
        line.truncate(width)
    return Text("\n").join(lines)


def _head(seen: Snapshot) -> Iterator[Text]:
    yield Text.assemble(
        ("in flight now ", QUIET),
        (str(len(seen.open_calls)), BOLD),
        ("   calls/s ", QUIET),
        (f"{seen.rate_now:.1f}", BOLD),
        (f", over the last minute {seen.rate_minute:.1f}", QUIET),
    )


def _minute(seen: Snapshot, width: int) -> Iterator[Text]:
    line = sparkline(seen.in_flight, width)
    columns = line.find(" ") if seen.in_flight.peak else 0
    yield Text.assemble(line[:columns], (line[columns:].lstrip() if not columns else line[columns:], QUIET))
    if columns > len("-60 s now"):
        yield Text(f"{'-60 s':<{columns - 3}}now", style=QUIET)


def _tally(name: str, tallies: Tallies, *, is_now: bool) -> Text:
    line = Text.assemble((f"{name}  ", QUIET), f"{tallies.ended} ended, ")
    line.append(f"{tallies.failed} failed", style=BAD if tallies.failed and is_now else "")
    if tallies.too_many:
        line.append(f", {tallies.too_many} of them of status 429", style=BAD if is_now else "")
    return line


def _open_calls(calls: list[Call], now_ns: int, width: int, rows: int) -> Iterator[Text]:
    if not calls:
        return
    yield Text()
    shown = calls[: rows if len(calls) <= rows else max(rows - 1, 1)]
    drawn = table(("open for", "step", "request", "called at"), [_row(call, now_ns) for call in shown], "><<<", width)
    for number, line in enumerate(drawn.splitlines()):
        yield Text(line, style="" if number else QUIET)
    if len(calls) > len(shown):
        yield Text(f"... and {len(calls) - len(shown)} more, open for less", style=QUIET)


def _row(call: Call, now_ns: int) -> tuple[str, str, str, str]:
    label = NO_LABEL if call.label is None else shorten(plain(call.label), 18)
    request = f"{call.method or ''} {call.host or ''}{call.path or ''}".strip()
    site = "-" if call.call_site is None else str(call.call_site)
    return age(max(now_ns - call.start_ns, 0)), label, shorten(plain(request), 32) or "-", plain(site)


def age(ns: int) -> str:
    """Give an age in a unit that stands still: tenths of a second, then minutes or hours."""
    tenths = ns // (SECOND_NS // 10)
    if tenths < 600:
        return f"{tenths // 10}.{tenths % 10} s"
    minutes, seconds = divmod(tenths // 10, 60)
    return f"{minutes} min {seconds:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _left_open(calls: list[Call]) -> Iterator[Text]:
    if calls:
        pids = sorted({call.pid for call in calls})
        named = ", ".join(map(str, pids[:4])) + (", ..." if len(pids) > 4 else "")
        yield Text()
        yield Text(f"{count(len(calls), 'call')} left open by processes that are gone: {named}", style=QUIET)
