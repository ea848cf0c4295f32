"""How many requests an endpoint works on at once, what that means, and how many to send."""

import dataclasses
import math
from collections.abc import Sequence

from occupancy.analysis.baseline import Baseline
from occupancy.analysis.capacity_fit import PARALLEL_FROM, Fit, fit_capacity
from occupancy.analysis.levels import Label, Level, measure
from occupancy.analysis.samples import Round

SERIAL_BELOW = 1.3
"""Effective concurrency of several workers below which requests are worked on one at a time."""
PLATEAU_BELOW = 1.15
"""What twice the workers bring, at a plateau less than this."""
STALLED_BELOW = 0.9
QUEUEING_ABOVE = 1.5
"""Mean latency over that of one request at a time."""
LAG_LEAST_S = 0.005
LAG_SHARE = 0.02
LATE_SHARE = 0.5
IN_FLIGHT_SHARE = 0.9
CPU_SHARE = 0.9


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a sweep found."""

    baseline: Baseline
    levels: tuple[Level, ...]
    """In the order of their workers."""
    fit: Fit
    recommended: int
    """Workers to use: the most that are still worked on in parallel with nothing refused."""

    @property
    def over_limit_at(self) -> int | None:
        """The least workers at which the endpoint refused or timed out; None where it never did."""
        return next((level.workers for level in self.levels if level.is_over_limit), None)


def find_capacity(rounds: Sequence[Round], end: Round | None = None) -> Capacity:
    """Judge the rounds of a sweep.

    Args:
        rounds: One for each number of workers, one of them with a single worker; incomplete ones are left out.
        end: One worker again, at the end.

    Raises:
        ValueError: There is no complete round of one worker with a good answer.
    """
    complete = sorted((r for r in rounds if r.is_complete and r.samples), key=lambda r: r.workers)
    single = next((r for r in complete if r.workers == 1 and r.n_ok), None)
    if single is None:
        raise ValueError("no good answer with one worker: nothing to compare with")
    baseline = Baseline.of(single, end)
    if not baseline.mean_s:
        raise ValueError("requests took no time at all: nothing to measure")
    levels = label_levels([measure(r, baseline) for r in complete], baseline)
    fit = fit_capacity(
        [(level.workers, level.best, level.relative_error) for level in levels if is_usable(level)],
        baseline.uncertainty,
        # Where the client gave out above, one level that fell short may be its first sign, and no limit of the server.
        least_on_plateau=2 if levels and levels[-1].is_client_bound else 1,
        endpoint_share=baseline.endpoint_share,
        degrees=max(baseline.n - 1, 1),
    )
    return Capacity(baseline=baseline, levels=levels, fit=fit, recommended=recommend(levels, fit))


def is_limit_known(capacity: Capacity) -> bool:
    """Whether more workers would tell nothing new.

    So it is over the limit, and where twice the workers bring nothing: at two levels that tell of the server, or at
    any two doublings.
    """
    levels = {level.workers: level for level in capacity.levels}
    pairs = [(level, levels[2 * c]) for c, level in levels.items() if 2 * c in levels]
    plateaus = sum(high.best < PLATEAU_BELOW * low.best for low, high in pairs)
    surely = (capacity.fit.plateau or math.inf) + (capacity.fit.error99 or 0.0)
    beyond = sum(level.workers > surely for level in capacity.levels if is_usable(level))
    return capacity.over_limit_at is not None or plateaus >= 2 or (plateaus == 1 and beyond >= 2)


def is_usable(level: Level) -> bool:
    """Whether a level tells of the server's capacity: nothing refused, and the client kept up."""
    return not level.is_over_limit and not level.is_client_bound and level.n_ok > 0


def label_levels(levels: Sequence[Level], baseline: Baseline) -> tuple[Level, ...]:
    """Give the levels with their labels; in the order of their workers."""
    labelled: list[Level] = []
    for measured in levels:
        half = next((lower for lower in reversed(labelled) if 2 * lower.workers <= measured.workers), None)
        level = dataclasses.replace(measured, client_reasons=client_reasons(measured, baseline))
        labelled.append(dataclasses.replace(level, labels=label_level(level, half)))
    return tuple(labelled)


def label_level(level: Level, half: Level | None) -> tuple[Label, ...]:
    """Give what a level shows.

    Args:
        level: With its `client_reasons`.
        half: The level with half as many workers, or the next below; None where there is none.
    """
    gain = level.best / half.best if half is not None and half.best else math.inf
    clean = not level.is_over_limit
    checks = {
        Label.SERIAL: level.workers > 1 and level.best < SERIAL_BELOW and clean,
        Label.PARALLEL: level.efficiency >= PARALLEL_FROM,
        Label.PLATEAU: gain < PLATEAU_BELOW,
        Label.STALLED: gain < STALLED_BELOW and clean,
        Label.QUEUEING: level.queueing > QUEUEING_ABOVE,
    }
    of_server = [] if level.is_client_bound else [label for label, holds in checks.items() if holds]
    over = [Label.OVER_LIMIT] if level.is_over_limit else []
    return (*of_server, *over, *([Label.CLIENT_BOUND] if level.is_client_bound else []))


def client_reasons(level: Level, baseline: Baseline) -> tuple[str, ...]:
    """Say why the client, not the server, limited a level; empty where it kept up.

    A busy client alone is no reason: where requests were worked on in parallel all the same, it limited nothing.
    """
    if level.workers == 1 or level.efficiency >= PARALLEL_FROM:
        return ()
    load, reasons = level.client, []
    if load.lag_p99_s > max(LAG_LEAST_S, LAG_SHARE * baseline.mean_s) and explains(level, baseline):
        reasons.append(f"the event loop was up to {load.lag_p99_s * 1000:.0f} ms late")
    elif load.late_share > LATE_SHARE:
        reasons.append(f"the event loop was late {load.late_share:.0%} of the time")
    if load.cpu_share > CPU_SHARE:
        reasons.append(f"the process used {load.cpu_share:.0%} of a core")
    busy = level.in_flight_full_load
    if busy is not None and busy < IN_FLIGHT_SHARE * level.workers:
        reasons.append(f"only {busy:.1f} of {level.workers} workers had a request in flight")
    return tuple(reasons)


def explains(level: Level, baseline: Baseline) -> bool:
    """Whether the client's own time accounts for half of what requests took longer than one at a time did."""
    return level.client_s - baseline.client_s >= 0.5 * baseline.mean_s * (level.queueing - 1)


def recommend(levels: Sequence[Level], fit: Fit) -> int:
    """Give the largest number of workers that work in parallel with nothing over the limit; 1 where none does.

    A level at which the client gave out says nothing of the endpoint: the fit of the others speaks for it.
    """
    fitting = [level.workers for level in levels if _is_parallel(level, fit)]
    return max(fitting, default=1)


def _is_parallel(level: Level, fit: Fit) -> bool:
    if level.is_client_bound and fit.plateau is not None:
        return not level.is_over_limit and min(level.workers, fit.plateau) >= PARALLEL_FROM * level.workers
    return level.efficiency >= PARALLEL_FROM and not level.is_over_limit and level.n_ok > 0
