"""What holds a program back: a verdict for each run, and the causes, each with its evidence.

A finding is made only where the columns show its evidence; where they do not, nothing is said. Structure is judged run
by run (`units`), what happens in a client, a loop or a connection process by process. Where one cause brings another
about, only the first is told: `EXPLAINS`.
"""

from collections.abc import Iterator

import numpy as np

from occupancy.analysis.causes_capped import find_pool_cap, find_semaphore_cap, places_by_process
from occupancy.analysis.causes_exchange import find_buffered, find_late, find_not_reused, find_unclosed
from occupancy.analysis.causes_executor import find_executor_caps
from occupancy.analysis.causes_load import find_rising_errors, find_server_queue
from occupancy.analysis.causes_loop import find_stalls, find_sync, threads_of
from occupancy.analysis.causes_retries import find_backoff, find_refused, find_stacked, has_retries
from occupancy.analysis.causes_shape import find_barrier, find_idle, find_serial, shape_of
from occupancy.analysis.columns import Columns
from occupancy.analysis.findings import Cause, Diagnosis, Finding, Verdict, merged
from occupancy.analysis.groups import CountedCalls
from occupancy.analysis.overlap import MOST_CALLS, RunOverlap, is_judged, overlap_of, shown_needs
from occupancy.analysis.steps import count_intervals
from occupancy.analysis.unit import Unit
from occupancy.analysis.unit_counts import counts_of
from occupancy.analysis.units import units
from occupancy.analysis.verdicts import process_verdict, verdict_of
from occupancy.analysis.workers import units_at_once

MOST_OVERLAP_CALLS = 100_000
"""Calls of all runs together for which it is computed what overlap would gain, those of the largest runs first."""
MOST_RUNS = 1_000
"""Runs whose causes are looked for, those with the most calls: what holds more of them back holds these back too. The
others are judged by their levels alone."""

EXPLAINS: dict[Cause, frozenset[Cause]] = {
    Cause.SYNC_IN_EVENT_LOOP: frozenset(
        {Cause.SERIAL, Cause.PARTLY_OVERLAPPED, Cause.CAPPED_SEMAPHORE, Cause.LOOP_STALLS, Cause.BARRIER,
         Cause.LATE_POOL, Cause.BUFFERED_STREAM, Cause.MOSTLY_IDLE}
    ),
    Cause.CAPPED_EXECUTOR: frozenset({Cause.SERIAL, Cause.PARTLY_OVERLAPPED, Cause.BARRIER}),
    Cause.CAPPED_SEMAPHORE: frozenset({Cause.SERIAL, Cause.PARTLY_OVERLAPPED, Cause.BARRIER}),
    Cause.CAPPED_POOL: frozenset({Cause.LATE_POOL, Cause.PARTLY_OVERLAPPED, Cause.BARRIER}),
    Cause.BARRIER: frozenset({Cause.PARTLY_OVERLAPPED}),
    Cause.UNCLOSED_RESPONSES: frozenset({Cause.CAPPED_POOL, Cause.LATE_POOL, Cause.SERIAL, Cause.PARTLY_OVERLAPPED}),
    Cause.NOT_REUSED: frozenset({Cause.LATE_CONNECT, Cause.LATE_TLS}),
    Cause.STACKED_RETRIES: frozenset(
        {Cause.RETRY_BACKOFF, Cause.REFUSED, Cause.MOSTLY_IDLE, Cause.SERIAL, Cause.PARTLY_OVERLAPPED, Cause.BARRIER}
    ),
    Cause.RETRY_BACKOFF: frozenset({Cause.MOSTLY_IDLE, Cause.REFUSED}),
    Cause.MOSTLY_IDLE: frozenset({Cause.SERIAL, Cause.PARTLY_OVERLAPPED}),
    Cause.LOOP_STALLS: frozenset({Cause.LATE_POOL, Cause.BUFFERED_STREAM}),
    Cause.ERRORS_RISE: frozenset({Cause.LATE_SERVER, Cause.REFUSED}),
}  # fmt: skip
"""Causes that another one brings about, in the same run or where one of the two is about the whole process."""


def diagnose(columns: Columns, until_ns: int | None = None) -> Diagnosis:
    """Say what holds a program back.

    Args:
        columns: The calls of a log, all fields of `Call`.
        until_ns: For a live log the time now, ns on the calls' clock: open calls are in flight until then.

    Returns:
        No verdict and no finding without calls.
    """
    return diagnosis_of(CountedCalls.of(columns, until_ns))


def diagnosis_of(calls: CountedCalls) -> Diagnosis:
    """Say what holds a program back, as `diagnose` does."""
    calls, n_nested = _without_nested(calls)
    found = units(calls)
    counts = counts_of(found)
    largest = np.argsort([-unit.n for unit in found], kind="stable")[:MOST_RUNS].tolist()
    at_once = units_at_once(found)
    overlaps, n_skipped = _overlaps(found, largest, at_once)
    shapes = [
        shape_of(unit, count, overlaps.get(index, []))
        for index, (unit, count) in enumerate(zip(found, counts, strict=True))
    ]
    verdicts = tuple(map(verdict_of, found, counts, shapes))
    processes = [Unit(None, calls, place) for place in places_by_process(calls)]
    findings = [finding for process in processes for finding in find_executor_caps(process, found)]
    capped = {run for finding in findings for run in finding.runs}
    for index in sorted(largest):
        unit, overlap = found[index], overlaps.get(index, [])
        findings += _of_unit(unit, shapes[index], overlap, is_worker=index in at_once, is_capped=unit.name in capped)
    for process in processes:
        findings += _of_process(process)
    warnings = (*_warnings(calls, n_nested), *_bounds(verdicts, n_skipped))
    return Diagnosis(verdicts, process_verdict(calls, found, verdicts), merged(_unexplained(findings, found)), warnings)


def _overlaps(
    found: list[Unit], largest: list[int], at_once: frozenset[int]
) -> tuple[dict[int, list[RunOverlap]], int]:
    """What overlap would gain, by the places of the units; and how many it was not computed for, since they are large.

    Args:
        found: All units.
        largest: Places of those that are looked at, those with the most calls first.
        at_once: Places of those whose lines several processes run at once.
    """
    fit = [index for index in largest if found[index].n > 1 and is_judged(found[index])]
    needs = shown_needs(found[0].calls) if found else {}
    overlaps, n_left, n_skipped = {}, MOST_OVERLAP_CALLS, 0
    for index in fit:
        if found[index].n > min(MOST_CALLS, n_left):
            n_skipped += 1
            continue
        overlaps[index] = overlap_of(found[index], needs=needs, loops=index not in at_once)
        n_left -= found[index].n
    return overlaps, n_skipped


def _of_unit(unit: Unit, shape: Cause, overlap: list[RunOverlap], *, is_worker: bool, is_capped: bool) -> list[Finding]:
    """Causes that lie in one run.

    Args:
        unit: The run.
        shape: What `shape_of` says of it.
        overlap: What overlap would gain in it.
        is_worker: Whether several processes run its lines at once.
        is_capped: Whether its calls are known to wait for an executor.
    """
    retries = [*find_stacked(unit), *find_backoff(unit), *find_refused(unit)] if has_retries(unit) else []
    if unit.n < 2 or shape in (Cause.UNKNOWN, Cause.POLLER):
        return retries
    semaphore = [] if is_capped else find_semaphore_cap(unit)
    serial = find_serial(unit, shape, overlap, by_need=not is_worker)
    return [*retries, *semaphore, *find_barrier(unit), *find_idle(unit), *serial]


def _of_process(process: Unit) -> Iterator[Finding]:
    """Causes that lie in one process."""
    for detect in (
        find_pool_cap, find_late, find_not_reused, find_buffered, find_unclosed, find_server_queue, find_rising_errors,
    ):  # fmt: skip
        yield from detect(process)
    for thread in threads_of(process):
        yield from find_sync(process.calls, thread)
        yield from find_stalls(process.calls, thread)


def _unexplained(findings: list[Finding], found: list[Unit]) -> list[Finding]:
    """Leave out what another finding brings about."""
    named = {run for finding in findings for run in finding.runs}
    runs_of = {unit.name: {unit.name, *unit.column("run").tolist()} for unit in found if unit.name in named}
    reach: dict[Cause, set[str | None] | None] = {}  # the runs where a cause is explained; None: wherever it is
    mine = [{run for name in finding.runs for run in runs_of.get(name, {name})} for finding in findings]
    for finding, runs in zip(findings, mine, strict=True):
        for effect in EXPLAINS.get(finding.cause, ()):
            known = reach.get(effect, set())
            reach[effect] = None if not runs or known is None else known | runs

    def is_explained(finding: Finding, runs: set[str | None]) -> bool:
        if finding.cause not in reach:
            return False
        where = reach[finding.cause]
        return where is None or not runs or bool(where & runs)

    return [one for one, runs in zip(findings, mine, strict=True) if not is_explained(one, runs)]


def _without_nested(calls: CountedCalls) -> tuple[CountedCalls, int]:
    """Leave out calls that are the parent span of another call which lies inside them: one call, told twice."""
    parents = {*calls.columns["parent_span_id"].tolist()} - {None}
    if parents.isdisjoint(calls.columns["span_id"].tolist()):
        return calls, 0
    place_of = {span: place for place, span in enumerate(calls.columns["span_id"].tolist()) if span is not None}
    nested = set()
    for child, parent in enumerate(calls.columns["parent_span_id"].tolist()):
        above = place_of.get(parent) if parent is not None else None
        if above is not None and above != child and _contains(calls, above, child):
            nested.add(above)
    if not nested:
        return calls, 0
    keep = np.array([place not in nested for place in range(calls.n)])
    return CountedCalls.of({name: column[keep] for name, column in calls.columns.items()}, calls.until_ns), len(nested)


def _contains(calls: CountedCalls, outer: int, inner: int) -> bool:
    return bool(calls.start_ns[outer] <= calls.start_ns[inner] and calls.end_ns[inner] <= calls.end_ns[outer])


def _warnings(calls: CountedCalls, n_nested: int) -> Iterator[str]:
    if n_nested:
        yield f"{n_nested} calls hold another call's span inside: one call told twice, which would look like overlap"
    n_open = int(np.count_nonzero(calls.is_open))
    if n_open and calls.until_ns is None:
        told = "1 call" if n_open == 1 else f"{n_open} calls"
        yield f"{told} never ended: taken as in flight to the next of its thread or task, else the process's last sign"
    n_backwards = count_intervals(calls.start_ns, calls.end_ns).end_before_start
    if n_backwards:
        told = "1 call ends before it starts" if n_backwards == 1 else f"{n_backwards} calls end before they start"
        yield f"{told}, as where a clock was set back: nothing is said of them"


def _bounds(verdicts: tuple[Verdict, ...], n_without_overlap: int) -> Iterator[str]:
    """What is not known of all runs: there is too much of it, or too little evidence."""
    if len(verdicts) > MOST_RUNS:
        yield f"causes were looked for in the {MOST_RUNS} runs with the most calls"
    if n_without_overlap:
        runs = "1 run" if n_without_overlap == 1 else f"{n_without_overlap} runs"
        yield (
            f"what overlap would gain was not computed for {runs}: it is for up to {MOST_CALLS} calls of a run and "
            f"{MOST_OVERLAP_CALLS} in all"
        )
    if any(verdict.cause is Cause.UNKNOWN for verdict in verdicts):
        yield "some calls cannot be told apart by run: mark runs with occupancy.agent_run"
