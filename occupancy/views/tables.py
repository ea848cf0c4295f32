"""Aligned tables and the short report, in plain ASCII."""

import os
import textwrap
from collections.abc import Sequence

import numpy as np

from occupancy.analysis.columns import Columns
from occupancy.analysis.diagnosis import diagnosis_of
from occupancy.analysis.findings import Diagnosis
from occupancy.analysis.groups import CountedCalls, Group
from occupancy.analysis.records import Records
from occupancy.analysis.summary import Summary, summary_of
from occupancy.views.diagnosis_text import finding_lines, verdict_line
from occupancy.views.sparkline import skyline
from occupancy.views.text import GAP, count, duration, duration_of_ms, plain, shorten, table
from occupancy.views.timeline import NO_LABEL

REPORT_ROWS = 5
"""Lines of its table of steps."""
LABEL_ROWS = 20
"""Lines of a table of labels."""
REPORT_HEIGHT = 4
"""Rows of a report's skyline."""
IDLE_SHARE = 0.1
"""Share of the wall with nothing in flight from which on a report says so."""
LABEL_WIDTH = 18
NO_SITE = "-"


def site_table(summary: Summary, n: int = REPORT_ROWS, width: int = 80) -> str:
    """List the steps that take most time, by label and call site.

    Args:
        summary: Of any log.
        n: Lines below the headers; where there are more steps, the last line tells how many.
        width: Columns; call sites lose the folder they share, and are cut from the left.

    Returns:
        Lines without a last newline; the headers alone when empty.
    """
    groups = _longest(summary.by_site, n)
    folder = _common_folder(groups)
    rows = [
        (_label(group), str(group.n), _mean(group), duration_of_ms(group.first_byte.mean_ms), _site(group, folder))
        for group in groups
    ]
    headers = ("step", "calls", "mean", "first byte", "called at")
    return "\n".join([_step_table(headers, rows, "<>>><", width), *_rest(summary.by_site[len(groups) :])])


def label_table(summary: Summary, n: int = LABEL_ROWS, width: int = 80) -> str:
    """List the labels that take most time, in the order of their first start.

    Args:
        summary: Of any log.
        n: Lines below the headers; where there are more labels, the last line tells how many.
        width: Columns; call sites are cut from the left.

    Returns:
        Lines without a last newline; the headers alone when empty.
    """
    headers = ("label", "calls", "start", "mean", "min", "max", "first byte", "called at")
    by_time = summary.by_label.take(np.argsort(-summary.by_label.column("in_flight_ms"), kind="stable"))
    longest = _longest(by_time, n)
    groups = longest.take(np.argsort(longest.column("first_start_ns"), kind="stable"))
    folder = _common_folder(groups)
    rows = [
        (
            _label(group),
            str(group.n),
            duration(group.first_start_ns - summary.start_ns),
            _mean(group),
            duration_of_ms(group.total.min_ms),
            duration_of_ms(group.total.max_ms),
            duration_of_ms(group.first_byte.mean_ms),
            _site(group, folder),
        )
        for group in groups
    ]
    return "\n".join([_step_table(headers, rows, "<>>>>>><", width), *_rest(by_time[len(longest) :])])


def _step_table(headers: Sequence[str], rows: Sequence[Sequence[str]], align: str, width: int) -> str:
    """A table from labels to call sites. Where no site is known, as of others' traces, labels have its place."""
    label_width = LABEL_WIDTH
    if all(site == NO_SITE for *_, site in rows):
        headers, rows, align = headers[:-1], [row[:-1] for row in rows], align[:-1]
        others = [max(map(len, column)) + len(GAP) for column in zip(headers, *rows, strict=True)][1:]
        label_width = max(width - sum(others), 8)
    return table(headers, [(shorten(label, label_width), *told) for label, *told in rows], align, width)


def _longest(groups: Records[Group], n: int) -> Records[Group]:
    """The first of groups that are sorted, with a line left to count the others where there are more than `n`."""
    return groups[: n if len(groups) <= n else n - 1]


def _rest(groups: Records[Group]) -> list[str]:
    time = duration_of_ms(float(groups.column("in_flight_ms").sum()))
    return [f"... and {len(groups)} more, {time} of calls"] if groups else []


def _label(group: Group) -> str:
    return NO_LABEL if group.label is None else plain(group.label)


def _mean(group: Group) -> str:
    if group.total.n:
        return duration_of_ms(group.total.mean_ms)
    return "open" if group.n_open else "-"


def _site(group: Group, folder: str) -> str:
    return plain(str(group.call_sites[0].frame).removeprefix(folder)) if group.call_sites else NO_SITE


def _common_folder(groups: Sequence[Group]) -> str:
    """The folder, with its separator, of all files that calls came from; empty where they share none."""
    files = [site.frame.file for group in groups for site in group.call_sites[:1]]
    folders = {os.path.dirname(file) for file in files if not file.startswith("cell ")}
    try:
        shared = os.path.commonpath(folders)
    except ValueError:  # no file, other drives, or absolute and relative paths
        return ""
    return os.path.join(shared, "") if os.path.dirname(shared) != shared else ""


def report(
    columns: Columns, width: int = 80, until_ns: int | None = None, *, findings: bool = True, about: str = ""
) -> str:
    """Say in at most 30 lines how many requests the program had in flight, where its time went, and what to do.

    Args:
        columns: The calls.
        width: Columns, at least 60; nothing is wider, and nothing wraps.
        until_ns: For a live log the time now, ns on the calls' clock.
        findings: Whether to end with what holds the program back, the costliest first.
        about: What the verdict is about, where that is not the whole program.

    Returns:
        Lines of ASCII without a last newline. Without calls it says so.
    """
    calls = CountedCalls.of(columns, until_ns)
    return report_of(calls, summary_of(calls), diagnosis_of(calls), width, findings=findings, about=about)


def report_of(
    calls: CountedCalls,
    summary: Summary,
    diagnosis: Diagnosis,
    width: int = 80,
    *,
    findings: bool = True,
    table: bool = True,
    about: str = "",
) -> str:
    """Say what `report` does of calls that are summed up and diagnosed, without the table of steps if that is to be."""
    verdict = about + verdict_line(diagnosis, width - len(about))
    head = [headline(summary), verdict, *_notes(summary, width)]
    if not summary.peak:
        return "\n".join(head)
    picture = skyline(calls.in_flight, width, REPORT_HEIGHT, calls.on_wire, calls.start_ns)
    steps = ["", site_table(summary, width=width)] if table else []
    told = finding_lines(diagnosis, width) if findings else []
    return "\n".join([*head, "", picture, *steps, *([""] if told else []), *told])


def headline(summary: Summary) -> str:
    """Give calls, wall, peak and mean in one line."""
    calls = count(summary.n, "call") + (f" of {summary.n_processes} processes" if summary.n_processes > 1 else "")
    peak_and_mean = f"peak {summary.peak} in flight, mean {summary.mean_in_flight:.2f}"
    return f"occupancy: {calls} in {duration(summary.wall_ns)}, {peak_and_mean}"


def _notes(summary: Summary, width: int) -> list[str]:
    """What else there is to know, in at most two lines; nothing where all is well."""
    notes = [
        (summary.n_open, "still open"),
        (summary.n_errors, "failed"),
        (summary.n_429, "of them of status 429"),
        (summary.n_retries, "further attempts"),
        (summary.n_released_late, "held after their end"),
        (summary.n_dropped, "unusable"),
        (summary.n_other, "not counted (telemetry)"),
    ]
    told = ", ".join(f"{n} {what}" for n, what in notes if n)
    return (textwrap.wrap(f"calls: {told}", width, max_lines=2) if told else []) + _idle(summary, width)


def _idle(summary: Summary, width: int) -> list[str]:
    """The program's own time, where it is a good part of the wall."""
    if summary.level_share[0] < IDLE_SHARE:
        return []
    told = (
        f"nothing in flight {summary.level_share[0]:.0%} of the time, longest {duration(summary.gaps[0].duration_ns)}"
    )
    between = [label for label in (summary.gaps[0].label_before, summary.gaps[0].label_after) if label is not None]
    if len(between) == 2:
        told += " between " + " and ".join(shorten(plain(label), LABEL_WIDTH) for label in between)
    return [told[:width]]
