"""Percentiles of few samples, and what they prove."""

import dataclasses
import math
from collections.abc import Iterable
from enum import StrEnum

import numpy as np

from occupancy.analysis.samples import Ending, Float64, Sample

QUANTILE_METHOD = "median_unbiased"
"""Hyndman and Fan 1996, definition 8."""
CONFIDENCE = 0.95


class Evidence(StrEnum):
    """What samples say about the claim that a budget holds."""

    PROVEN = "proven"
    """If it did not hold, so good a result would come in 5 % of the cases at most."""
    CONSISTENT = "consistent"
    """It may hold or not."""
    CONTRADICTED = "contradicted"
    """If it held, so bad a result would come in 5 % of the cases at most."""


@dataclasses.dataclass(frozen=True, slots=True)
class Quantile:
    """A percentile of latencies."""

    value_s: float
    n: int
    is_at_least: bool = False
    """The true value is this or more: it falls on requests that timed out."""

    def __str__(self) -> str:
        return f"{'>= ' if self.is_at_least else ''}{self.value_s:.3f} s (n={self.n})"


def quantile(samples: Iterable[Sample], p: float) -> Quantile | None:
    """Give the percentile p of the latencies of good answers and of time-outs.

    A time-out is a value known only to be larger than the time it waited: leaving it out would hide overload. Other
    failures are no latencies.

    Args:
        samples: Requests, in any order.
        p: From 0 to 1.

    Returns:
        The percentile, by numpy's `median_unbiased`; None when there is neither a good answer nor a time-out.
    """
    timed = [sample for sample in samples if sample.ending in (Ending.OK, Ending.TIMEOUT)]
    if not timed:
        return None
    ok_s = np.array([sample.latency_s for sample in timed if sample.is_ok])
    censored_s = np.array([sample.latency_s for sample in timed if not sample.is_ok])
    # What timed out is slower than all that did not, also where it was given up earlier than some others answered.
    floor_s = max(ok_s.max(initial=0.0), censored_s.min(initial=math.inf)) if censored_s.size else 0.0
    values_s = np.sort(np.concatenate((ok_s, np.maximum(censored_s, floor_s))))
    place = min(max((len(values_s) + 1 / 3) * p + 1 / 3, 1), len(values_s))
    value_s = float(np.quantile(values_s, p, method="median_unbiased"))
    return Quantile(value_s, len(values_s), is_at_least=math.ceil(place) > ok_s.size)


def binomial_at_most(k: int, n: int, p: float) -> float:
    """Give P(X <= k) of a binomial X(n, p), summed exactly: n is at most a few thousand here."""
    return math.fsum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(min(k, n) + 1)) if k >= 0 else 0.0


def evidence(bad: int, n: int, share: float, confidence: float = CONFIDENCE) -> Evidence:
    """Say whether the true share of bad outcomes is below `share`, by two exact one-sided binomial tests.

    For p95 < B, bad outcomes are those that took B or more, and the share is 0.05: 59 calls with none prove it, 93 with
    one, 124 with two, 153 with three.

    Args:
        bad: Bad outcomes seen.
        n: All outcomes seen; 0 says nothing.
        share: The share that must not be reached.
        confidence: Of either test.
    """
    if n and binomial_at_most(bad, n, share) <= 1 - confidence:
        return Evidence.PROVEN
    if bad and 1 - binomial_at_most(bad - 1, n, share) <= 1 - confidence:
        return Evidence.CONTRADICTED
    return Evidence.CONSISTENT


def weakest(parts: Iterable[Evidence]) -> Evidence:
    """Give the evidence for several claims together: proven where all are, contradicted where one is."""
    found = set(parts)
    if Evidence.CONTRADICTED in found:
        return Evidence.CONTRADICTED
    return Evidence.PROVEN if found == {Evidence.PROVEN} else Evidence.CONSISTENT


def upper_bound(bad: int, n: int, confidence: float = CONFIDENCE) -> float:
    """Give the largest true share of bad outcomes that is not ruled out.

    Clopper and Pearson 1934, one-sided: the share p at which P(X <= bad) = 1 - confidence. 0 of 20 give 0.139.

    Args:
        bad: Bad outcomes seen.
        n: All outcomes seen.
        confidence: Of the bound.

    Returns:
        A share; 1 where all were bad, or none were seen.
    """
    if bad >= n:
        return 1.0
    low, high = bad / n, 1.0
    for _ in range(60):  # halves to the last bit of a double
        middle = (low + high) / 2
        low, high = (middle, high) if binomial_at_most(bad, n, middle) > 1 - confidence else (low, middle)
    return (low + high) / 2


def calls_to_prove(share: float, bad: int = 0, confidence: float = CONFIDENCE) -> int:
    """Give the number of calls that prove a share below `share`, when `bad` of them are bad: 59 for p95 and none."""
    n = bad + 1
    while binomial_at_most(bad, n, share) > 1 - confidence:
        n += 1
    return n


def mean_and_deviation(values: Float64) -> tuple[float, float]:
    """Give mean and standard deviation (n - 1); NaN for the mean of none, 0 for the deviation of less than two."""
    if not values.size:
        return math.nan, 0.0
    return float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else 0.0
