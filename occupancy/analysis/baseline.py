"""One request at a time: what everything else of a sweep is measured by."""

import dataclasses
import math
from collections.abc import Iterable

import numpy as np

from occupancy.analysis.latency import mean_and_deviation
from occupancy.analysis.samples import Round, latencies

DRIFT_SHARE = 0.1


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
            own_s=own_time_s([start] if end is None else [start, end]),
            lag_s=start.client.lag_mean_s,
        )


def own_time_s(rounds: Iterable[Round]) -> float:
    """Give the mean part of a latency, in s, that the client took before the request was sent; 0 where nobody looked.

    The first request of each worker is left out where there are more: it may open a connection.
    """
    later = [sample for one in rounds for sample in one.samples[one.workers :] or one.samples]
    own_s = [sample.latency_s - sample.wire_s for sample in later if sample.is_ok and sample.wire_s is not None]
    return float(np.mean(own_s)) if own_s else 0.0
