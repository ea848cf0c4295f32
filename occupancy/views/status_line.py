"""Calls in flight now in a single line, for below a program's own output."""

from collections.abc import Iterator

from occupancy.views.live import Snapshot, age
from occupancy.views.sparkline import sparkline
from occupancy.views.text import plain, shorten
from occupancy.views.timeline import NO_LABEL

SPARKLINE = 30, 80
"""Columns from which on there is a sparkline, and that it has at most."""
SEPARATOR = " | "


def status_line(seen: Snapshot, now_ns: int, width: int = 80) -> str:
    """Say how many calls are in flight, which is open longest, what has ended, and draw the last minute.

    Args:
        seen: What is known.
        now_ns: The time now.
        width: Columns; what does not fit is left out, the last first.

    Returns:
        ASCII of at most `width` columns.
    """
    line = ""
    for part in _parts(seen, now_ns):
        if len(line) + len(part) > width:
            return line or part[:width]
        line += part
    rest = width - len(line) - len(SEPARATOR)
    least, most = SPARKLINE
    return line + SEPARATOR + sparkline(seen.in_flight, min(rest, most)) if rest >= least else line


def _parts(seen: Snapshot, now_ns: int) -> Iterator[str]:
    yield f"occupancy: {len(seen.open_calls)} in flight"
    if seen.open_calls:
        oldest = seen.open_calls[0]
        label = NO_LABEL if oldest.label is None else shorten(plain(oldest.label), 18)
        yield f", longest {label} {age(max(now_ns - oldest.start_ns, 0))}"
    yield f"{SEPARATOR}{seen.all.ended} ended" + (f", {seen.all.failed} failed" if seen.all.failed else "")
    if seen.left_open:
        yield f", {len(seen.left_open)} left open"
