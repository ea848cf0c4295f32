"""Latency budgets in words and tables, for a terminal and for Markdown."""

from typing import TYPE_CHECKING

from occupancy.analysis.latency import Evidence, Quantile, calls_to_prove, upper_bound
from occupancy.analysis.latency_budget import P95_SHARE, Check, Verdict
from occupancy.analysis.samples import faults
from occupancy.views.probe_tables import MOST_FAULTS, fill, layout
from occupancy.views.text import count, duration, duration_of_ms, plain

if TYPE_CHECKING:
    from occupancy.probe.budget_result import BudgetResult, EnvironmentResult

HEADERS = ("environment", "verdict", "cold", "warm p50", "warm p95", "10 at once p95", "errors", "evidence")
ALIGN = "<<>>>>><"


def budget_report(result: "BudgetResult") -> str:
    """Lay environments side by side, and say which is the cheapest that passes.

    Returns:
        Lines of ASCII without a last newline.
    """
    rows = [tuple(map(plain, environment_row(one))) for one in result.environments]
    head = fill("occupancy budget: p95 " + ", ".join(_limits(result)))
    told = "\n".join(fill(f"{names}: {note}") for names, note in _notes(result))
    parts = [head, layout(_headers(result), rows, ALIGN), told, fill(result.advice)]
    return "\n\n".join(part for part in parts if part)


def markdown(result: "BudgetResult") -> str:
    """Give the same as Markdown."""
    rows = [_headers(result), tuple("--:" if side == ">" else ":--" for side in ALIGN)]
    rows += [environment_row(one) for one in result.environments]
    table = "\n".join("| " + " | ".join(plain(cell).replace("|", "\\|") for cell in row) + " |" for row in rows)
    told = "\n".join(f"- {plain(names)}: {plain(note)}" for names, note in _notes(result))
    return f"### Latency budget: p95 {', '.join(_limits(result))}\n\n{table}\n\n{told}\n\n{plain(result.advice)}\n"


def environment_row(one: "EnvironmentResult") -> tuple[str, ...]:
    """Give an environment in the columns of `HEADERS`."""
    verdict = one.verdict
    if verdict is None:
        return (one.name, one.word, "-", "-", "-", "-", "-", "-")
    return (
        one.name,
        one.word,
        duration_of_ms(None if verdict.cold_s is None else verdict.cold_s * 1e3),
        _quantile(verdict.warm_p50),
        _quantile(verdict.warm_p95),
        _quantile(verdict.concurrent_p95),
        f"{verdict.error_rate:.1%} of {verdict.n}",
        str(verdict.evidence),
    )


def notes(one: "EnvironmentResult") -> list[str]:
    """Say why an environment fails, what its samples prove, and how it differs from before."""
    verdict = one.verdict
    if verdict is None:
        return [one.error or "not measured"]
    lines = [verdict.invalid] if verdict.invalid else []
    if not one.is_complete:
        return [f"interrupted after {count(verdict.n, 'request')}: what it would have shown is open", *lines]
    failed = [check for check in verdict.checks if not check.passed]
    lines += [f"{check.name}: {_value(check)}, not below {_limit(check)}" for check in failed]
    lines += [f"{fault.n} x {fault.value}" for fault in faults(one.measured.all if one.measured else ())[:MOST_FAULTS]]
    if verdict.stages.slowest is not None and any(check.name != "errors" for check in failed):
        lines.append(f"most of the time goes to: {verdict.stages.slowest}")
    if verdict.stages.is_buffered:
        lines.append("the stream is held back to its end: something on the way buffers it")
    return [*lines, *_proof(verdict), *_changes(one)]


def _notes(result: "BudgetResult") -> list[tuple[str, str]]:
    """Give each note once, with the names of all environments that it holds for."""
    of_note: dict[str, list[str]] = {}
    for one in result.environments:
        for note in notes(one):
            of_note.setdefault(note, []).append(one.name)
    return [(", ".join(names), note) for note, names in of_note.items()]


def _proof(verdict: Verdict) -> list[str]:
    """Say what so few requests can prove, where they leave it open."""
    if verdict.evidence is not Evidence.CONSISTENT:
        return []
    errors = next(check for check in verdict.checks if check.name == "errors")
    bad = round(verdict.error_rate * verdict.n)
    lines = []
    if errors.limit * verdict.n < 1:
        lines.append(f"with {verdict.n} requests an error budget of {errors.limit:g} means no error at all")
    lines.append(
        f"{count(bad, 'error')} of {verdict.n} still allow {upper_bound(bad, verdict.n):.1%}; proof would take "
        f"{calls_to_prove(P95_SHARE)} fast requests for a p95, {calls_to_prove(errors.limit)} clean ones for the errors"
    )
    return lines


def _changes(one: "EnvironmentResult") -> list[str]:
    change = one.change
    if change is None:
        return list(one.warnings)
    word = "REGRESSION: " if change.is_regression else ""
    before, now = duration(change.before_s * 1e9), duration(change.now_s * 1e9)
    return [f"{word}warm p50 {before} before, {now} now ({change.share:+.0%})", *one.warnings]


def _headers(result: "BudgetResult") -> tuple[str, ...]:
    """Name the true number of requests at once."""
    ns = {len(one.measured.concurrent) for one in result.environments if one.measured is not None and one.is_complete}
    at_once = f"{ns.pop()} at once p95" if len(ns) == 1 else "at once p95"
    return tuple(at_once if header == HEADERS[5] else header for header in HEADERS)


def _limits(result: "BudgetResult") -> list[str]:
    texts = [f"< {one.budget.p95_s:g} s, errors < {one.budget.errors:g}" for one in result.environments]
    return list(dict.fromkeys(texts))


def _value(check: Check) -> str:
    if check.value is None:
        return "unknown"
    text = f"{check.value:.1%}" if check.name == "errors" else f"{check.value:.3f} s"
    return f"at least {text}" if check.is_at_least else text


def _limit(check: Check) -> str:
    return f"{check.limit:.1%}" if check.name == "errors" else f"{check.limit:g} s"


def _quantile(found: Quantile | None) -> str:
    return "-" if found is None else f"{'>=' if found.is_at_least else ''}{duration(found.value_s * 1e9)}"
