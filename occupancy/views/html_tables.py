"""Numbers and tables of the HTML page. Every text of a log goes through `escaped`."""

import html
import os
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from occupancy.analysis.columns import MISSING, Columns
from occupancy.analysis.comparison import Change, Comparison, LabelChange
from occupancy.analysis.groups import Group
from occupancy.analysis.summary import Summary
from occupancy.call import Frame
from occupancy.views.call_bars import CallBars, label_name, printable
from occupancy.views.text import count, duration, duration_of_ms, shorten

MAX_CALLS = 500
MAX_STEPS = 50
MAX_RUNS = 50
MAX_CELL = 60
"""Characters of a text in a table."""
CALL_HEADERS = ("start", "duration", "first byte", "step", "ended", "in flight at start", "attempt", "run", "request",
                "model", "called at")  # fmt: skip
ALWAYS_TOLD = 5
"""So many of these columns are there even where they tell nothing of any call."""
ASCENDING, DESCENDING = "ascending", "descending"


class Cell(NamedTuple):
    """One cell: what is read, and the number it is sorted by; text sorts by itself."""

    text: str
    value: float | None = None


class Figure(NamedTuple):
    """One number of the summary."""

    key: str
    """Its name for programs: the `data-figure` of its element."""
    name: str
    text: str
    value: float | None
    """Exact, in base units (ns for times); None where it is not known."""


def escaped(text: object) -> str:
    """Make a text safe in HTML, in an element and in an attribute, and free of what no font shows."""
    return html.escape(printable(str(text)))


def percent(share: float) -> str:
    """Give a share in whole percent; what is not quite nothing or all is not rounded to it."""
    if 0 < share < 0.01:
        return "<1%"
    return ">99%" if 0.99 < share < 1 else f"{share:.0%}"


def figures(summary: Summary) -> list[Figure]:
    """Choose the numbers that stand at the top of the page; those of rare things only where they are not 0."""
    busy = summary.busy_ns / summary.wall_ns if summary.wall_ns else 0.0
    shown = [
        Figure("n", "calls", f"{summary.n:,}", summary.n),
        Figure("wall_ns", "wall time", duration(summary.wall_ns), summary.wall_ns),
        Figure("peak", "peak in flight", f"{summary.peak:,}", summary.peak),
        Figure("mean_in_flight", "mean in flight", f"{summary.mean_in_flight:.2f}", summary.mean_in_flight),
        Figure("busy_ns", "at least one in flight", percent(busy), summary.busy_ns),
    ]
    if summary.wire_peak != summary.peak:
        shown.insert(3, Figure("wire_peak", "peak on the wire", f"{summary.wire_peak:,}", summary.wire_peak))
    for key, name, spread in (("first_byte", "first byte", summary.first_byte), ("total", "call", summary.total)):
        if spread.n:
            told = f"{duration_of_ms(spread.p50_ms)} / {duration_of_ms(spread.p95_ms)}"
            shown.append(Figure(f"{key}_p50_ms", f"{name}, p50 / p95 of {spread.n:,}", told, spread.p50_ms))
    if summary.connection_reuse is not None:
        shown.append(Figure("connection_reuse", "connections reused", percent(summary.connection_reuse),
                            summary.connection_reuse))  # fmt: skip
    rare = (
        ("n_errors", "failed", summary.n_errors),
        ("n_429", "of status 429", summary.n_429),
        ("n_retries", "further attempts", summary.n_retries),
        ("n_open", "still open", summary.n_open),
        ("n_released_late", "held after their end", summary.n_released_late),
        ("n_dropped", "unusable", summary.n_dropped),
        ("n_other", "telemetry, not counted", summary.n_other),
    )
    return shown + [Figure(key, name, f"{n:,}", n) for key, name, n in rare if n or key == "n_errors"]


def figure_list(shown: Iterable[Figure]) -> str:
    """Lay numbers out as a description list; `<data>` holds the exact value."""
    items = "".join(
        f'<div class="figure"><dt>{escaped(figure.name)}</dt>'
        f'<dd><data data-figure="{figure.key}" value="{figure.value}">{escaped(figure.text)}</data></dd></div>'
        for figure in shown
    )
    return f'<dl class="figures">{items}</dl>\n'


def table(
    caption: str, headers: Sequence[str], rows: Iterable[Sequence[Cell]], *, key: str, sorted_by: tuple[int, str] | None
) -> str:
    """Lay out a table that scrolls sideways where it is too wide.

    Args:
        caption: What it shows; read aloud, and seen.
        headers: One for each column.
        rows: Cells, as many as headers.
        key: Its id.
        sorted_by: Column and direction in which the rows stand, where a click on a header may sort them anew; None for
            a table that stays as it is.
    """
    rows = list(rows)
    numeric = [bool(rows) and rows[0][at].value is not None for at in range(len(headers))]
    head = "".join(_header(at, text, sorted_by, numeric[at]) for at, text in enumerate(headers))
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in rows)
    sortable = ' class="sortable"' if sorted_by else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-labelledby="{key}-caption">\n'
        f'<table id="{key}"{sortable}><caption id="{key}-caption">{escaped(caption)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
    )


def _header(at: int, text: str, sorted_by: tuple[int, str] | None, numeric: bool) -> str:
    side = ' class="n"' if numeric else ""
    if sorted_by is None:
        return f'<th scope="col"{side}>{escaped(text)}</th>'
    direction = f' aria-sort="{sorted_by[1]}"' if at == sorted_by[0] else ""
    return f'<th scope="col"{side}{direction}><button type="button">{escaped(text)}</button></th>'


def _cell(cell: Cell) -> str:
    text = escaped(shorten(cell.text, MAX_CELL)).replace("/", "/<wbr>")  # where paper is narrow, a path may break
    title = f' title="{escaped(cell.text)}"' if len(cell.text) > MAX_CELL else ""
    return f"<td{title}>{text}</td>" if cell.value is None else f'<td class="n" data-v="{cell.value:.17g}">{text}</td>'


def calls_table(columns: Columns, bars: CallBars) -> str:
    """List calls, the longest where there are too many; the caption tells how many are not listed.

    Args:
        columns: What the bars were made of.
        bars: All calls that can be drawn.
    """
    shown = bars.longest(MAX_CALLS)
    cut = shown.n < bars.n
    by = (
        np.lexsort((shown.start_ns, shown.start_ns - shown.end_ns))
        if cut
        else np.lexsort((shown.end_ns, shown.start_ns))
    )
    shown = shown.take(by)
    caption = count(bars.n, "call")
    if cut:
        caption = f"The {shown.n} longest of {bars.n:,} calls; {bars.n - shown.n:,} shorter ones are not listed"
    sites = _Sites(site[0] for site in columns["call_stack"][shown.place] if site)
    rows = [_call_row(columns, shown, bar, sites) for bar in range(shown.n)]
    told = [at for at in range(len(CALL_HEADERS)) if at < ALWAYS_TOLD or any(row[at].text not in "-0" for row in rows)]
    headers, rows = [CALL_HEADERS[at] for at in told], [[row[at] for at in told] for row in rows]
    return table(caption, headers, rows, key="calls", sorted_by=(1, DESCENDING) if cut else (0, ASCENDING))


def _call_row(columns: Columns, bars: CallBars, bar: int, sites: "_Sites") -> list[Cell]:
    place, start_ns = int(bars.place[bar]), int(bars.start_ns[bar])
    total_ns, first_ns = int(bars.end_ns[bar]) - start_ns, int(bars.first_byte_ns[bar])
    level, stack = int(columns["in_flight_start"][place]), columns["call_stack"][place]
    return [
        Cell(f"{start_ns / 1e9:.3f} s", start_ns),
        Cell((">" if bars.is_open[bar] else "") + duration(total_ns), total_ns),
        Cell("-", -1) if first_ns == MISSING else Cell(duration(first_ns - start_ns), first_ns - start_ns),
        Cell(label_name(bars.label[bar])),
        Cell(bars.note(bar) or "ok"),
        Cell("-", -1) if level == MISSING else Cell(f"{level:,}", level),
        Cell(str(max(int(columns["attempt"][place]), 0)), max(int(columns["attempt"][place]), 0)),
        Cell(_or_dash(bars.run[bar])),
        Cell(_request(columns, place)),
        Cell(_or_dash(columns["model"][place])),
        Cell(sites.name(stack[0]) if stack else "-"),
    ]


def _request(columns: Columns, place: int) -> str:
    """Method, host and path; a query that a foreign file may have left in the path is cut off."""
    method, host, path = (columns[name][place] or "" for name in ("method", "host", "path"))
    return f"{method} {host}{path.partition('?')[0].partition('#')[0]}".strip() or "-"


def _or_dash(text: str | None) -> str:
    return "-" if text is None else text


class _Sites:
    """Call sites without the folder that their files share: what is left tells them apart, and names no home folder."""

    def __init__(self, frames: Iterable[Frame]) -> None:
        folders = {os.path.dirname(frame.file) for frame in frames if not frame.file.startswith("cell ")}
        try:
            shared = os.path.commonpath(folders)
        except ValueError:  # no file, other drives, or absolute and relative paths
            shared = ""
        self._folder = os.path.join(shared, "") if os.path.dirname(shared) != shared else ""

    def name(self, frame: Frame) -> str:
        return str(frame).removeprefix(self._folder)


def steps_table(summary: Summary) -> str:
    """List the steps that take most time, by label and call site."""
    groups = summary.by_site[:MAX_STEPS]
    caption = "Steps, by the time of all their calls"
    if rest := len(summary.by_site) - len(groups):
        caption += f"; {rest:,} with less are not listed"
    sites = _Sites(group.call_sites[0].frame for group in groups if group.call_sites)
    headers = ("step", "calls", "time of all", "mean", "p50", "p95", "first byte", "called at")
    rows = [_step_row(group, sites) for group in groups]
    return table(caption, headers, rows, key="steps", sorted_by=(2, DESCENDING))


def _step_row(group: Group, sites: _Sites) -> list[Cell]:
    times = (group.in_flight_ms, group.total.mean_ms, group.total.p50_ms, group.total.p95_ms, group.first_byte.mean_ms)
    return [
        Cell(label_name(group.label)),
        Cell(f"{group.n:,}", group.n),
        *(Cell(duration_of_ms(ms), -1 if ms is None else ms) for ms in times),
        Cell(sites.name(group.call_sites[0].frame) if group.call_sites else "-"),
    ]


def runs_table(summary: Summary) -> str:
    """List the runs, the longest first; nothing where there is only one."""
    if len(summary.by_run) < 2:
        return ""
    longest = np.argsort(-summary.by_run.column("wall_ns"), kind="stable")[:MAX_RUNS]
    runs = summary.by_run.take(longest)
    caption = "Runs, the longest first"
    if rest := len(summary.by_run) - len(runs):
        caption += f"; {rest:,} shorter ones are not listed"
    rows = [
        [
            Cell(_or_dash(run.run)),
            Cell(f"{run.n:,}", run.n),
            Cell(duration(run.wall_ns), run.wall_ns),
            Cell(f"{run.peak:,}", run.peak),
            Cell(f"{run.mean_in_flight:.2f}", run.mean_in_flight),
        ]
        for run in runs
    ]
    return table(caption, ("run", "calls", "wall time", "peak", "mean"), rows, key="runs", sorted_by=(2, DESCENDING))


def compare_tables(comparison: Comparison) -> str:
    """Set two logs side by side: as a whole, and by label."""
    whole = (
        ("wall time", comparison.wall_ms, duration_of_ms),
        ("peak in flight", comparison.peak, "{:,.0f}".format),
        ("mean in flight", comparison.mean_in_flight, "{:.2f}".format),
        ("time of all calls", comparison.total_ms, duration_of_ms),
        ("calls", comparison.calls, "{:,.0f}".format),
        ("failed", comparison.failed, "{:,.0f}".format),
    )
    rows = [[Cell(name), *_change_cells(change, show)] for name, change, show in whole]
    labels = comparison.labels.take(comparison.largest(MAX_STEPS))
    caption = "Time of all calls, by label"
    if rest := len(comparison.labels) - len(labels):
        caption += f"; {rest:,} with less are not listed"
    headers = ("label", "calls before", "calls after", "before", "after", "change")
    return table("In all", ("", "before", "after", "change"), rows, key="compare", sorted_by=None) + table(
        caption, headers, map(_label_row, labels), key="labels", sorted_by=(3, DESCENDING)
    )


def _label_row(change: LabelChange) -> list[Cell]:
    n = [Cell(f"{n:,.0f}", n) for n in (change.n.before, change.n.after)]
    return [Cell(label_name(change.label)), *n, *_change_cells(change.total_ms, duration_of_ms)]


def _change_cells(change: Change, show: Callable[[float], str]) -> list[Cell]:
    share = change.share
    if share is None:
        told = Cell("new" if change.after else "-", 0)
    else:
        told = Cell("same" if abs(share) < 0.005 else f"{share:+.0%}", share)
    return [Cell(show(change.before), change.before), Cell(show(change.after), change.after), told]
