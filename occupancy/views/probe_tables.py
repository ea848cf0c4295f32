"""Sweeps in words and tables, for a terminal and for Markdown."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from occupancy.analysis.capacity import Capacity
from occupancy.analysis.latency import Quantile
from occupancy.analysis.levels import Label, Level
from occupancy.views.text import count, duration, plain

if TYPE_CHECKING:
    from occupancy.probe.sweep_result import SweepResult

HEADERS = ("workers", "ok", "E", "+-", "E/c", "mean", "p50", "p95", "429", "time-outs", "errors", "found")
ALIGN = ">>>>>>>>>>><"
MOST_FAULTS = 3
WIDTH = 100
"""Columns of a line of text. A table may be wider, and so may a word, such as a URL."""


def sweep_report(result: "SweepResult") -> str:
    """Say what a sweep found, how many workers to use, and on what that rests.

    Returns:
        Lines of ASCII without a last newline.
    """
    capacity = result.capacity
    head = [f"occupancy sweep: {plain(result.conditions.target)}{_model(result)}", f"{verdict(capacity)}"]
    if result.is_interrupted:
        head.append("interrupted: what follows rests on the levels that were completed")
    lines = [*head, "", layout(HEADERS, [level_row(level) for level in capacity.levels], ALIGN), "", baseline(capacity)]
    told = [*_faults(capacity), *result.notes, *_client_notes(capacity), *_first_bytes(result), *_law(capacity)]
    lines += [fill(f"note: {note}") for note in [*told, *_cautions(result)]]
    lines += ["", f"use {count(result.recommended, 'worker')}:", f"    {result.code}"]
    return "\n".join(lines)


def verdict(capacity: Capacity) -> str:
    """Say in one line what the endpoint can take."""
    over = capacity.over_limit_at
    told = [limit(capacity)]
    if over is not None:
        told.append(f"over the limit at {over}")
    if not capacity.baseline.is_stable:
        told.append(f"unstable: {capacity.baseline.drift:+.0%} from start to end, so measure again")
    return "; ".join(told)


def limit(capacity: Capacity) -> str:
    """Say how many requests are worked on at once."""
    fit, last = capacity.fit, capacity.levels[-1]
    if fit.capacity is not None:
        serial = fit.capacity < 1.3
        about = f"{fit.capacity:.2f} +- {fit.error99:.2f} (99 %)"
        return f"serial: {about} worked on at once" if serial else f"limit: {about} worked on at once"
    if Label.CLIENT_BOUND in last.labels:
        return f"no limit of the endpoint seen up to {fit.at_least} at once; beyond, this client was the bottleneck"
    if len(capacity.levels) == 1:
        return "one worker alone was measured: nothing to compare"
    if capacity.over_limit_at is not None:
        return f"worked on at once: {fit.at_least}"
    return f"no limit up to {fit.at_least} at once"


def level_row(level: Level) -> tuple[str, ...]:
    """Give a level in the columns of `HEADERS`."""
    return (
        str(level.workers),
        f"{level.n_ok}/{level.n}",
        f"{level.best:.2f}",
        f"{level.standard_error:.2f}",
        f"{level.efficiency:.2f}",
        duration(level.mean_s * 1e9) if level.n_ok else "-",
        _quantile(level.p50),
        _quantile(level.p95),
        str(level.n_refused),
        str(level.n_timeout),
        str(level.n_error),
        ", ".join(level.labels),
    )


def baseline(capacity: Capacity) -> str:
    """Say what one request at a time took, and what E is."""
    base = capacity.baseline
    drift = "" if base.drift is None else f", {base.drift:+.1%} at the end"
    own = (
        f"\nOf T1, {duration(base.own_s * 1e9)} were this client's, until a request was sent: the limit is "
        f"{base.endpoint_share:.3f} of the plateau."
        if base.own_s and capacity.fit.plateau
        else ""
    )
    return (
        f"T1, the mean of {count(base.n, 'request')} one at a time: {duration(base.mean_s * 1e9)}{drift}.\n"
        f"E = T1 x ok / wall at full load, +- its standard error.{own}"
    )


def markdown(result: "SweepResult") -> str:
    """Give the same as Markdown, for an issue or a job's summary."""
    rows = [HEADERS, tuple("--:" if side == ">" else ":--" for side in ALIGN)]
    rows += [level_row(level) for level in result.capacity.levels]
    table = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
    code = result.code
    return (
        f"### {plain(result.conditions.target)}{_model(result)}\n\n{verdict(result.capacity)}\n\n{table}\n\n"
        f"{baseline(result.capacity)}\n\nUse {count(result.recommended, 'worker')}:\n\n```python\n{code}\n```\n"
    )


def fill(text: str) -> str:
    """Break a plain text into lines of `WIDTH` columns, the further ones indented."""
    return textwrap.fill(plain(text), WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def layout(headers: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    """Set a table, each column as wide as its widest cell; without rows the headers alone."""
    widths = [max(len(row[column]) for row in (headers, *rows)) for column in range(len(headers))]
    lines = [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)).rstrip()
        for row in (headers, *rows)
    ]
    return "\n".join(lines)


def _model(result: "SweepResult") -> str:
    return f", {plain(result.conditions.model)}" if result.conditions.model else ""


def _quantile(found: Quantile | None) -> str:
    if found is None:
        return "-"
    return f"{'>=' if found.is_at_least else ''}{duration(found.value_s * 1e9)}"


def _client_notes(capacity: Capacity) -> list[str]:
    levels = [level for level in capacity.levels if level.client_reasons]
    return [
        f"{count(level.workers, 'worker')}: client-bound, {' and '.join(level.client_reasons)}: no finding about the "
        f"endpoint{', recommended for what the other levels show' * (level.workers == capacity.recommended)}"
        for level in levels
    ]


def _faults(capacity: Capacity) -> list[str]:
    """Name what went wrong, the three most frequent of each level."""
    return [
        f"{count(level.workers, 'worker')}: {fault.n} x {fault.value}"
        for level in capacity.levels
        for fault in level.faults[:MOST_FAULTS]
    ]


def _first_bytes(result: "SweepResult") -> list[str]:
    """Give the median time to the first event of each level, where a stream was asked for."""
    if not result.conditions.stream:
        return []
    known = [
        f"{level.workers}: {duration(level.first_byte_s * 1e9)}"
        for level in result.capacity.levels
        if level.first_byte_s is not None
    ]
    return [f"median time to the first event, by workers: {', '.join(known)}"] if known else []


def _law(capacity: Capacity) -> list[str]:
    law = capacity.fit.usl
    if law is None:
        return []
    return [
        f"a bend tells more than a limit (AICc): contention {law.contention:.3f}, coherency {law.coherency:.4f} "
        "(Universal Scalability Law)"
    ]


def _cautions(result: "SweepResult") -> list[str]:
    conditions = result.conditions
    told = [f"prompt of {count(conditions.prompt_chars, 'character')}"] if conditions.prompt_chars is not None else []
    told += [f"at most {count(conditions.max_tokens, 'token')} of output"] if conditions.max_tokens is not None else []
    told += ["the same prompt each time: a prefix cache may flatter it"] if not conditions.nonce else []
    return [f"holds for this model, quota, place and time: {', '.join(told)}"] if told else []
