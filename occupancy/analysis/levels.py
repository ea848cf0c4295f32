"""Rounds of a sweep in numbers: effective concurrency and its error.

Effective concurrency is `E = T1 * ok / wall`, T1 the mean latency of one request at a time: by Little's law the mean
number of requests that are worked on, as far as the others stand in a queue.
"""

import dataclasses
import math
from enum import StrEnum

import numpy as np

from occupancy.analysis.baseline import Baseline, own_time_s
from occupancy.analysis.distribution import Tally
from occupancy.analysis.full_load import full_load, relative_error, window_rate
from occupancy.analysis.latency import Quantile, mean_and_deviation, quantile
from occupancy.analysis.samples import ClientLoad, Ending, Round, faults, latencies, starts_and_ends

OK_SHARE = 0.95


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
        client_s=(own_time_s([measured]) or baseline.own_s) + measured.client.lag_mean_s,
        first_byte_s=_first_byte_s(measured),
        faults=faults(measured.samples),
    )


def _first_byte_s(measured: Round) -> float | None:
    known = [(s, s.first_byte_s if s.first_event_s is None else s.first_event_s) for s in measured.samples if s.is_ok]
    waits_s = [first_s - sample.start_s for sample, first_s in known if first_s is not None]
    return float(np.median(waits_s)) if waits_s else None
