"""Rounds of a sweep in numbers: effective concurrency and its error.

Effective concurrency is `E = T1 * ok / wall`, T1 the mean latency of one request at a time: by Little's law the mean
number of requests that are worked on, as far as the others stand in a queue.
"""

import dataclasses
import math
from collections.abc import Sequence
from enum import StrEnum

import numpy as np

from occupancy.analysis.distribution import Tally
from occupancy.analysis.latency import Quantile, mean_and_deviation, quantile
from occupancy.analysis.samples import ClientLoad, Ending, Round, faults, latencies, starts_and_ends

OK_SHARE = 0.95
DRIFT_SHARE = 0.1
MOST_TRIES = 3
"""Times that slots and batches are worked out from one another."""
ROUNDING = 1e-9


class Label(StrEnum):
    """What a level shows. Several may hold."""

    SERIAL = "serial"
    PARALLEL = "parallel"
    PLATEAU = "plateau"
    STALLED = "stalled"
    QUEUEING = "queueing"
    OVER_LIMIT = "over the limit"
    CLIENT_BOUND = "client-bound"
    """The client was the bottleneck: no finding about the server."""


@dataclasses.dataclass(frozen=True, slots=True)
class Baseline:
    """One request at a time: the measure of everything else."""

    mean_s: float
    """T1; NaN without a good answer."""
    deviation_s: float
    n: int
    start_mean_s: float
    """The same at the start alone; `mean_s` is over start and end."""
    end_mean_s: float | None = None
    """The same at the end of the sweep."""
    n_end: int = 0
    own_s: float = 0.0
    """Part of T1 that was not the endpoint's: this client's, until the request was sent; 0 where nobody looked."""
    lag_s: float = 0.0
    """Mean time by which the event loop was late: as much of T1 may be this client's too."""

    @property
    def client_s(self) -> float:
        """What this client may have taken of T1 in all, in s."""
        return self.own_s + self.lag_s

    @property
    def endpoint_share(self) -> float:
        """Part of T1 that was the endpoint's."""
        return 1 - self.own_s / self.mean_s

    @property
    def relative_error(self) -> float:
        """Standard error of T1, as a share of it."""
        return self.deviation_s / math.sqrt(self.n) / self.mean_s if self.n else math.nan

    @property
    def uncertainty(self) -> float:
        """The same of the endpoint's part of T1, with what a late event loop may have added to it."""
        return math.hypot(self.deviation_s / math.sqrt(self.n), self.lag_s) / (self.mean_s - self.own_s)

    @property
    def variation(self) -> float:
        """Standard deviation of one latency, as a share of what the endpoint took of the mean."""
        return self.deviation_s / (self.mean_s - self.own_s)

    @property
    def drift(self) -> float | None:
        """By what share the end is slower than the start; None before the end."""
        return None if self.end_mean_s is None else self.end_mean_s / self.start_mean_s - 1

    @property
    def is_stable(self) -> bool:
        """Whether start and end are at most 10 % apart, or no further than chance puts them (two standard errors)."""
        if self.drift is None or self.end_mean_s is None:
            return True
        apart_s = abs(self.end_mean_s - self.start_mean_s)
        by_chance_s = 2 * self.deviation_s * math.sqrt(1 / (self.n - self.n_end) + 1 / self.n_end)
        return apart_s <= max(DRIFT_SHARE * self.start_mean_s, by_chance_s)

    @classmethod
    def of(cls, start: Round, end: Round | None = None) -> "Baseline":
        """Take T1 over the good answers of both rounds with one worker."""
        start_s = latencies(start.samples)
        end_s = latencies(end.samples) if end is not None else start_s[:0]
        mean_s, deviation_s = mean_and_deviation(np.concatenate((start_s, end_s)))
        return cls(
            mean_s=mean_s,
            deviation_s=deviation_s,
            n=start_s.size + end_s.size,
            start_mean_s=mean_and_deviation(start_s)[0],
            end_mean_s=float(end_s.mean()) if end_s.size else None,
            n_end=end_s.size,
            own_s=_mean(own_times(start) + ([] if end is None else own_times(end))),
            lag_s=start.client.lag_mean_s,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A number of workers, and what came of it. Times are s."""

    workers: int
    n: int
    n_ok: int
    n_refused: int
    n_timeout: int
    n_error: int
    """Failed in any other way."""
    wall_s: float
    mean_s: float
    """Mean latency of good answers; NaN without any."""
    p50: Quantile | None
    p95: Quantile | None
    mean_in_flight: float
    """Sum of all latencies over the wall."""
    effective: float
    """Effective concurrency of the whole level: `T1 * ok / wall`."""
    effective_full_load: float | None
    """The same without ramp-up and ramp-down, by Little's law; None with less than two requests for each worker."""
    in_flight_full_load: float | None
    """Mean in flight then."""
    relative_error: float
    """Standard error of the effective concurrency, as a share of it, without that of T1."""
    standard_error: float
    """Standard error of the effective concurrency, with that of T1."""
    window_rate: float | None
    """Completions per s from the c-th completion to the last issue; None with less than four requests a worker."""
    client: ClientLoad
    client_s: float
    """Mean part of a latency that this client took; see `Baseline`."""
    first_byte_s: float | None = None
    """Median time from the issue to the first event of a stream, else to the first byte of the body."""
    faults: tuple[Tally, ...] = ()
    """What went wrong, and how often: the most frequent first."""
    labels: tuple[Label, ...] = ()
    client_reasons: tuple[str, ...] = ()
    """Why the client was the bottleneck."""

    @property
    def best(self) -> float:
        """Effective concurrency at full load where it is known, else of the whole level."""
        return self.effective if self.effective_full_load is None else self.effective_full_load

    @property
    def efficiency(self) -> float:
        """Effective concurrency for each worker."""
        return self.best / self.workers

    @property
    def queueing(self) -> float:
        """Workers for each request that is worked on: mean latency over T1."""
        return self.workers / self.best if self.best else math.inf

    @property
    def is_over_limit(self) -> bool:
        """Whether the endpoint refused, timed out, or failed more than 5 %."""
        return bool(self.n_refused or self.n_timeout or self.n_ok < OK_SHARE * self.n)

    @property
    def is_client_bound(self) -> bool:
        """Whether the client was the bottleneck."""
        return bool(self.client_reasons)


def own_times(measured: Round) -> list[float]:
    """Give the parts of latencies, in s, that the client took before the request was sent, where somebody looked.

    The first request of each worker is left out where there are more: it may open a connection.
    """
    later = measured.samples[measured.workers :] or measured.samples
    return [sample.latency_s - sample.wire_s for sample in later if sample.is_ok and sample.wire_s is not None]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def measure(measured: Round, baseline: Baseline) -> Level:
    """Put one round in numbers, without labels.

    Args:
        measured: At least one sample.
        baseline: One request at a time.
    """
    c, n, n_ok, wall_s = measured.workers, len(measured.samples), measured.n_ok, measured.wall_s
    start_s, end_s = starts_and_ends(measured.samples)
    effective = baseline.mean_s * n_ok / wall_s if wall_s else 0.0
    full, in_flight = full_load(measured, baseline) or (None, None)
    relative = relative_error(measured, baseline, effective if full is None else full)
    return Level(
        workers=c,
        n=n,
        n_ok=n_ok,
        n_refused=measured.count(Ending.REFUSED),
        n_timeout=measured.count(Ending.TIMEOUT),
        n_error=measured.count(Ending.HTTP_ERROR, Ending.ERROR),
        wall_s=wall_s,
        mean_s=mean_and_deviation(latencies(measured.samples))[0],
        p50=quantile(measured.samples, 0.5),
        p95=quantile(measured.samples, 0.95),
        mean_in_flight=float(np.sum(end_s - start_s)) / wall_s if wall_s else 0.0,
        effective=effective,
        effective_full_load=full,
        in_flight_full_load=in_flight,
        relative_error=relative,
        standard_error=(effective if full is None else full) * math.hypot(relative, baseline.relative_error),
        window_rate=window_rate(measured),
        client=measured.client,
        # Of a callable that several workers use, it is known for one at a time alone.
        client_s=(_mean(own_times(measured)) or baseline.own_s) + measured.client.lag_mean_s,
        first_byte_s=_first_byte_s(measured),
        faults=faults(measured.samples),
    )


def _first_byte_s(measured: Round) -> float | None:
    known = [(s, s.first_byte_s if s.first_event_s is None else s.first_event_s) for s in measured.samples if s.is_ok]
    waits_s = [first_s - sample.start_s for sample, first_s in known if first_s is not None]
    return float(np.median(waits_s)) if waits_s else None


def full_load(measured: Round, baseline: Baseline) -> tuple[float, float] | None:
    """Give effective concurrency while all workers were busy, `T1 * ok share * L / W` (Little's law), and L.

    L is the mean in flight from the first end to the last issue, W the mean latency of the requests issued then, each
    behind a full line. Of these, whole batches are taken, as many as the endpoint works on at once: c workers that fill
    m slots, m no divisor of c, wait for `i // m - (i - c) // m` services, whose mean over m requests in a row is c / m.

    Returns:
        None for one worker, with less than two requests for each, or no time between first end and last issue.
    """
    c, n = measured.workers, len(measured.samples)
    if c == 1 or n < 2 * c:
        return None
    start_s, end_s = starts_and_ends(measured.samples)
    from_s, to_s = float(start_s[c]), float(start_s[-1])
    if to_s <= from_s:
        return None
    in_flight = float(np.sum(np.clip(end_s, from_s, to_s) - np.clip(start_s, from_s, to_s))) / (to_s - from_s)
    later = measured.samples[c:]
    ok_share = sum(sample.is_ok for sample in later) / len(later)
    scale = baseline.mean_s * ok_share * in_flight
    latency_s = end_s[c:] - start_s[c:]
    effective = scale / float(np.mean(latency_s))
    for _ in range(MOST_TRIES):
        whole = _whole_batches(effective, measured, baseline)
        effective = scale / float(np.mean(latency_s[:whole]))
    return effective, in_flight


def _slots(effective: float, measured: Round, baseline: Baseline) -> int:
    return min(max(round(effective * baseline.endpoint_share), 1), measured.workers)


def _whole_batches(effective: float, measured: Round, baseline: Baseline) -> int:
    """Give how many of the requests behind a full line come before the last whole batch ends; all where none does."""
    later, slots = len(measured.samples) - measured.workers, _slots(effective, measured, baseline)
    return later // slots * slots or later


def relative_error(measured: Round, baseline: Baseline, effective: float) -> float:
    """Give the standard error of a level's effective concurrency, as a share of it, without that of T1.

    Independent parts: service times vary as much as those of one request at a time did, so the mean over n of them by
    `variation / sqrt(n)`; a late event loop adds its mean lag to each latency; the share of good answers is a binomial
    one. Where fewer than c, and no whole number of slots within these, batches are of unknown size, and shift the mean
    latency by up to `m^2 / (4 c n)` of it (a telescoping sum of the rounded-down i / m), taken as uniform.
    """
    c, n = measured.workers, len(measured.samples)
    if c == 1:
        return 0.0  # it is the measure itself
    later = n - c if n >= 2 * c else n
    slots = _slots(effective, measured, baseline)
    random = baseline.variation / math.sqrt(later)
    lag = measured.client.lag_mean_s / (baseline.mean_s * c / slots)
    share = measured.n_ok / n
    failures = math.sqrt((1 - share) / (share * n)) if share else 0.0
    known = math.sqrt(random**2 + lag**2 + failures**2)
    tolerance = 2 * math.hypot(known, baseline.uncertainty) + ROUNDING
    is_whole = abs(effective * baseline.endpoint_share / slots - 1) <= tolerance
    batches = 0.0 if is_whole or slots == c else slots**2 / (4 * c * later) / math.sqrt(3)
    return math.hypot(known, batches)


def window_rate(measured: Round) -> float | None:
    """Give good answers per s after the c-th completion until the last issue: exact for deterministic service."""
    c, n = measured.workers, len(measured.samples)
    if n < 4 * c:
        return None
    start_s, end_s = starts_and_ends(measured.samples)
    from_s, to_s = float(np.sort(end_s)[c - 1]), float(start_s[-1])
    if to_s <= from_s:
        return None
    done = sum(sample.is_ok and from_s < sample.end_s <= to_s for sample in measured.samples)
    return done / (to_s - from_s)
