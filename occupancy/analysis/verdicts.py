"""Verdicts: how far the calls of a run overlap, and those of all runs together, in words."""

import dataclasses
from collections import Counter

import numpy as np

from occupancy.analysis.causes_shape import SERIAL_SHARE
from occupancy.analysis.distribution import MS
from occupancy.analysis.findings import Cause, Verdict, place_of, sites_of
from occupancy.analysis.groups import CountedCalls
from occupancy.analysis.steps import count_intervals
from occupancy.analysis.unit import Unit, known_spans
from occupancy.analysis.unit_counts import UnitCounts
from occupancy.analysis.workers import overlap_share


def verdict_of(unit: Unit, counts: UnitCounts, shape: Cause) -> Verdict:
    """Give the verdict on one unit, whose shape is known."""
    sentence = _sentence(unit, counts, shape)
    return Verdict(unit.name, shape, unit.n, counts.n_logical, counts.peak, counts.mean, counts.wall_ns / MS, sentence)


def _sentence(unit: Unit, counts: UnitCounts, shape: Cause) -> str:
    if shape is Cause.ONE_CALL:
        return "one call: 1 in flight is right"
    if shape is Cause.UNKNOWN and counts.peak <= 1:
        return f"never more than 1 in flight over {counts.n_logical} calls: serial, if one agent's"
    if shape is Cause.UNKNOWN:
        return (
            f"up to {counts.peak} in flight at once, but whether these calls are of one run is not known: "
            "mark runs with occupancy.agent_run"
        )
    if shape is Cause.POLLER:
        every_ms = float(np.median(np.diff(unit.start_ns))) / MS
        return f"a background poller: {unit.n} calls, one every {every_ms:.0f} ms"
    if shape is Cause.SERIAL:
        return f"serial: {counts.n_logical} calls, one after another"
    n_branches = 0 if unit.pool is not None else min(counts.n_branches, counts.peak)  # an executor's threads are none
    inside = f"; {n_branches} serial branches at once" if n_branches > 1 else ""
    return f"{shape}: up to {counts.peak} in flight, mean {counts.mean:.2f}{inside}"


def process_verdict(calls: CountedCalls, found: list[Unit], verdicts: tuple[Verdict, ...]) -> Verdict | None:
    """Give the verdict on all runs together: what they are each, and what they are at once; None without calls.

    Runs of one process may serve one user each, and are what each is. Where processes overlap, the whole is no serial
    program, whatever each of its workers is.
    """
    if not verdicts:
        return _no_verdict(calls) if calls.n else None
    runs = [verdict for verdict in verdicts if verdict.cause is not Cause.POLLER]
    if len(runs) == 1:
        return dataclasses.replace(runs[0], sentence=runs[0].sentence + _beside(found))
    whole = Unit(None, calls, known_spans(calls))
    drawn = whole.steps
    several = [verdict for verdict in runs if verdict.cause is not Cause.ONE_CALL]
    causes = {verdict.cause for verdict in several}
    cause = next(iter(causes)) if len(causes) == 1 else Cause.ONE_CALL if not causes else Cause.UNKNOWN
    whose, at_once = f"{len(verdicts)} runs", f"up to {drawn.peak} in flight together"
    if overlap_share(found) > SERIAL_SHARE:
        cause, whose = Cause.OVERLAPPED, f"{whose} in {len(set(whole.column('pid').tolist()))} processes at once"
    if not several:
        sentence = f"one call in each of {whose}, {at_once}"
    else:
        kinds = Counter(verdict.cause for verdict in verdicts)
        told = ", ".join(f"{kinds[kind]} {kind}" for kind in Cause if kinds[kind])
        sentence = f"{whose}: {told}; {at_once}"
    return Verdict(None, cause, whole.n, sum(v.n_logical for v in verdicts), drawn.peak, drawn.mean,
                   drawn.wall_ns / MS, sentence)  # fmt: skip


def _beside(found: list[Unit]) -> str:
    """The pollers beside a run, for its sentence; empty without any."""
    pollers = [unit for unit in found if unit.is_poller]
    if not pollers:
        return ""
    at = " and ".join(place_of(frame) for frame in sites_of(frame for unit in pollers for frame in unit.frames))
    whose = "a poller" if len(pollers) == 1 else f"{len(pollers)} pollers"
    return f", beside {whose} ({sum(unit.n for unit in pollers)} calls at {at})"


def _no_verdict(calls: CountedCalls) -> Verdict:
    """Calls are there, but not one whose start and end are in their order."""
    n_backwards = count_intervals(calls.start_ns, calls.end_ns).end_before_start
    why = "end before they start" if n_backwards == calls.n else "lack a stamp or end before they start"
    sentence = f"nothing to judge: all {calls.n} calls {why}"
    return Verdict(None, Cause.UNKNOWN, calls.n, calls.n, 0, 0.0, 0.0, sentence)
