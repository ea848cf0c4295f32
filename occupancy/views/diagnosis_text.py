"""Diagnoses, overlap and comparisons in words: plain ASCII, at most 80 columns."""

import os
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from occupancy.analysis.comparison import Change, Comparison
from occupancy.analysis.critical_path import SerialGroup
from occupancy.analysis.findings import Cause, Diagnosis, Finding, Verdict
from occupancy.analysis.overlap import Overlap, RunOverlap
from occupancy.call import Frame
from occupancy.views.text import MAX_ROWS, count, duration_of_ms, plain, shorten, table

WIDTH = 80
SHORT_FINDINGS = 2
"""Findings of the report at exit."""
RUNS = 8
"""Verdicts that are told one by one; what is beyond is counted."""
GROUPS = 5
"""Serial groups of one run that are told."""
INDENT = "  "
TELLS_SITES = (Cause.SERIAL, Cause.PARTLY_OVERLAPPED)
"""Causes whose sentence names the call sites itself."""
NO_NAME = "(no name)"


def verdict_line(diagnosis: Diagnosis, width: int = WIDTH) -> str:
    """Give the verdict in one line; `nothing to judge` without calls."""
    if diagnosis.process is None:
        return "nothing to judge: no call was seen"
    if not diagnosis.process.peak:
        told = "nothing to judge: no call took any time" if diagnosis.verdicts else diagnosis.process.sentence
        return _cut(told, width)
    runs = [verdict for verdict in diagnosis.verdicts if verdict.cause is not Cause.POLLER]
    if len(runs) > 1 and {verdict.cause for verdict in (diagnosis.process, *runs)} == {Cause.SERIAL}:
        told = f"serial {len(runs)} times: {len(runs)} runs, each serial in itself,"
        return _cut(f"{told} up to {diagnosis.process.peak} in flight together", width)
    if len(runs) > 1 and diagnosis.process.peak == 1:
        told = f"never more than 1 in flight over {diagnosis.process.n} calls in {len(runs)} runs:"
        return _cut(f"{told} serial, if one agent's", width)
    return _cut(plain(diagnosis.process.sentence), width)


def short_diagnosis(diagnosis: Diagnosis, width: int = WIDTH) -> str:
    """Give the verdict and the costliest findings: `verdict_line` and `finding_lines`, without a last newline."""
    return "\n".join([verdict_line(diagnosis, width), *finding_lines(diagnosis, width)])


def finding_lines(diagnosis: Diagnosis, width: int = WIDTH) -> list[str]:
    """Give the costliest findings, for the report at exit.

    Args:
        diagnosis: Of any log.
        width: Columns, at least 40; nothing is wider.

    Returns:
        Lines for at most `SHORT_FINDINGS` findings, and how many more there are; none without findings.
    """
    lines = []
    for finding in diagnosis.findings[:SHORT_FINDINGS]:
        lines += _wrapped(f"- {_with_sites(finding, folder_of(finding.call_sites))}", width)
        lines += _wrapped(f"{INDENT}-> {finding.action}", width, INDENT * 2 + " ")
    rest = len(diagnosis.findings) - SHORT_FINDINGS
    if rest > 0:
        lines.append(f"and {rest} more")
    return lines


def full_diagnosis(diagnosis: Diagnosis, width: int = WIDTH, *, verdict: bool = True) -> str:
    """Give the verdict of each run, every finding with its numbers, and the warnings.

    Args:
        diagnosis: Of any log.
        width: Columns, at least 40; nothing is wider.
        verdict: Whether to begin with the verdict on all runs, where nothing before has told it.

    Returns:
        Lines without a last newline.
    """
    lines = [verdict_line(diagnosis, width)] if verdict else []
    if len(diagnosis.verdicts) > 1:
        lines += [] if verdict else ["runs:"]
        lines += _runs(diagnosis.verdicts, width)
    for number, finding in enumerate(diagnosis.findings, start=1):
        lines += ["", *_finding(number, finding, width)]
    if not diagnosis.findings and diagnosis.process is not None:
        lines += ["", *_wrapped("nothing is known to hold the program back", width)]
    if diagnosis.warnings:
        lines += ["", *(line for told in diagnosis.warnings for line in _wrapped(f"note: {told}", width, " " * 6))]
    return "\n".join(lines).lstrip("\n")


def _runs(verdicts: Sequence[Verdict], width: int) -> list[str]:
    """A line for each run; those of one name and verdict, as of several processes, share one."""
    told = list(Counter(map(_verdict, verdicts)).items())
    lines = [_cut(f"{INDENT}{f'{n} x ' if n > 1 else ''}{sentence}", width) for sentence, n in told[:RUNS]]
    rest = sum(n for _, n in told[RUNS:])
    return lines + ([f"{INDENT}... and {rest} more runs"] if rest else [])


def _verdict(verdict: Verdict) -> str:
    name = NO_NAME if verdict.run is None else shorten(plain(verdict.run), 24)
    return f"{name}: {plain(verdict.sentence)}"


def _finding(number: int, finding: Finding, width: int) -> list[str]:
    """One finding: its cause and sentence, where, what to do, and the numbers it rests on."""
    lines = _wrapped(f"{number}. {finding.cause}: {plain(finding.sentence)}", width, INDENT + " ")
    if finding.call_sites and finding.cause not in TELLS_SITES:
        places = ", ".join(_sites(finding.call_sites, ""))
        lines += _wrapped(f"   at {places}", width, " " * 6)
    if len(finding.runs) > 1:
        names = ", ".join(plain(run or NO_NAME) for run in finding.runs[:4])
        more = f" and {len(finding.runs) - 4} more" if len(finding.runs) > 4 else ""
        lines += _wrapped(f"   in {len(finding.runs)} runs: {names}{more}", width, " " * 6)
    numbers = ", ".join(f"{name} {_number(value)}" for name, value in finding.numbers.items())
    return [*lines, *_wrapped(f"   -> {finding.action}", width, " " * 6), *_wrapped(f"   ({numbers})", width, " " * 4)]


def _number(value: float) -> str:
    return f"{value:.2f}" if isinstance(value, float) and abs(value) < 10 else f"{value:.0f}"


def _with_sites(finding: Finding, folder: str) -> str:
    """The sentence, with the call sites after the words that it is about."""
    if finding.cause in TELLS_SITES:
        return plain(finding.sentence)
    places = " and ".join(_sites(finding.call_sites[:2], folder))
    return plain(finding.sentence) + (f" (at {places})" if places else "")


def _sites(frames: Sequence[Frame], folder: str) -> list[str]:
    return [shorten(plain(str(frame).removeprefix(folder)), 60) for frame in frames]


def folder_of(frames: Iterable[Frame]) -> str:
    """The folder, with its separator, that all files share; empty where there is none."""
    folders = {os.path.dirname(frame.file) for frame in frames if not frame.file.startswith("cell ")}
    try:
        shared = os.path.commonpath(folders)
    except ValueError:  # none, other drives, or absolute and relative paths
        return ""
    return os.path.join(shared, "") if os.path.dirname(shared) != shared else ""


def overlap_text(overlap: Overlap, width: int = WIDTH) -> str:
    """Say what overlap would gain, run by run.

    Args:
        overlap: Of any log.
        width: Columns, at least 40; nothing is wider.

    Returns:
        Lines without a last newline; one line where nothing would be gained.
    """
    gaining = [run for run in overlap.runs if run.groups and run.gain_ms > 0]
    lines: list[str] = []
    for run in gaining[:RUNS]:
        lines += _run_overlap(run, width, len(gaining) > 1)
    if len(gaining) > RUNS:
        lines.append(f"... and {len(gaining) - RUNS} more runs")
    if overlap.n_skipped:
        lines += _wrapped(
            f"note: nothing is said of {overlap.n_skipped} runs that cannot be told apart, or are too long", width
        )
    return "\n".join(lines or ["no calls are known that ran one after another without need"])


def _run_overlap(run: RunOverlap, width: int, is_named: bool) -> list[str]:
    named = f"{plain(run.run or NO_NAME)}: " if is_named else ""
    head = f"{named}about {_seconds(run.bound_ms)} instead of {_seconds(run.wall_ms)}, if these overlapped:"
    lines = _wrapped(head, width, INDENT)
    for group in run.groups[:GROUPS]:
        lines += _wrapped(f"{INDENT}{_group(group)}", width, INDENT * 2)
    return lines + ([f"{INDENT}... and {len(run.groups) - GROUPS} more"] if len(run.groups) > GROUPS else [])


def _group(group: SerialGroup) -> str:
    names = " and ".join(plain(label or NO_NAME) for label in group.labels[:3])
    more = f" and {len(group.labels) - 3} more" if len(group.labels) > 3 else ""
    times = f", {group.n} calls" if group.n != len(group.labels) else ""
    places = " and ".join(_sites(group.call_sites[:2], folder_of(group.call_sites)))
    where = f" at {places}" if places else ""
    gain = f"{_seconds(group.overlapped_ms)} instead of {_seconds(group.serial_ms)}"
    return f"{names}{more}{times}{where}: {gain} ({group.basis})"


def _seconds(ms: float) -> str:
    return f"{ms / 1e3:.2f} s"


def comparison_text(comparison: Comparison, width: int = WIDTH) -> str:
    """Say what changed between two logs.

    Args:
        comparison: Of two logs.
        width: Columns, at least 60; labels are cut from the left.

    Returns:
        Lines without a last newline: whether to keep the change, a table of quantities, a table of labels, those with
        the most time where there are many.
    """
    head = _wrapped(f"{'keep' if comparison.keep else 'do not keep'}: {plain(comparison.reason)}", width, INDENT)
    rows = [
        ("wall", *_times(comparison.wall_ms)),
        ("sum of calls", *_times(comparison.total_ms)),
        ("calls", *_counts(comparison.calls)),
        ("peak in flight", *_counts(comparison.peak)),
        ("mean in flight", f"{comparison.mean_in_flight.before:.2f}", f"{comparison.mean_in_flight.after:.2f}",
         _share(comparison.mean_in_flight)),
        *((f"outcome {plain(name)}", *_counts(change)) for name, change in comparison.outcomes),
    ]  # fmt: skip
    labels = [
        (
            f"{change.n.before:.0f}, {change.n.after:.0f}",
            *_times(change.total_ms),
            f"{change.total_ms.difference:+.0f} ms",
            NO_NAME if change.label is None else plain(change.label),
        )
        for change in comparison.labels.take(np.sort(comparison.largest(MAX_ROWS)))
    ]
    by_label = table(("calls", "before", "after", "change", "", "label"), labels, ">>>>><", width)
    rest = len(comparison.labels) - len(labels)
    more = [f"... and {count(rest, 'more label')} with less time"] if rest else []
    return "\n".join([*head, "", table(("", "before", "after", "change"), rows, "<>>>", width), "", by_label, *more])


def _times(change: Change) -> tuple[str, str, str]:
    return duration_of_ms(change.before), duration_of_ms(change.after), _share(change)


def _counts(change: Change) -> tuple[str, str, str]:
    return f"{change.before:.0f}", f"{change.after:.0f}", _share(change)


def _share(change: Change) -> str:
    return "-" if change.share is None else f"{change.share:+.0%}"


def _wrapped(text: str, width: int, indent: str = INDENT) -> list[str]:
    return [line.rstrip() for line in textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)]


def _cut(text: str, width: int) -> str:
    return (text if len(text) <= width else text[: width - 3] + "...").rstrip()
