"""Whether an endpoint keeps a latency budget, and what its few samples prove."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from occupancy.analysis.latency import Evidence, Quantile, evidence, quantile, weakest
from occupancy.analysis.samples import ClientLoad, Ending, Sample, latencies

P95_SHARE = 0.05
"""Requests that may be slower than a p95."""
LAG_LEAST_S = 0.005
"""Lag of the event loop, p99, below which no failure is the client's own."""
BUFFERED_SHARE = 0.05
"""A stream whose first byte comes in the last 5 % of its time was held back."""
SLOWER_BY = 0.2
"""Median that is worse by this share, and by more than chance, is a regression."""
Z95_ONE_SIDED = 1.645


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What must hold; both strictly below."""

    p95_s: float = 3.0
    errors: float = 0.01


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The requests to one environment."""

    cold: Sample | None
    """One request after idling; None where it was not reached."""
    warm: tuple[Sample, ...]
    """One after another."""
    concurrent: tuple[Sample, ...]
    """All at once."""
    client: ClientLoad = dataclasses.field(default_factory=ClientLoad)

    @property
    def all(self) -> tuple[Sample, ...]:
        """Every request."""
        return (*([self.cold] if self.cold else []), *self.warm, *self.concurrent)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One claim of a budget."""

    name: str
    value: float | None
    """What was measured: s, or a share; None where nothing was."""
    limit: float
    passed: bool
    """Strictly below the limit."""
    evidence: Evidence
    n: int
    is_at_least: bool = False
    """The true value is `value` or more."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Where the time of a good answer goes: medians in s, None where nothing is known."""

    connect_s: float | None
    tls_s: float | None
    first_byte_s: float | None
    """From the issue to the first byte, without connecting and TLS."""
    body_s: float | None
    """From the first byte to the last."""
    is_buffered: bool
    """A stream was asked for, but held back to its end."""

    @property
    def slowest(self) -> str | None:
        """The stage that takes longest; None where none is known."""
        named = {
            "connect": self.connect_s,
            "TLS": self.tls_s,
            "first byte": self.first_byte_s,
            "body after the first byte": self.body_s,
        }
        known = {name: took_s for name, took_s in named.items() if took_s is not None}
        return max(known, key=lambda name: known[name], default=None)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Five numbers, and whether they keep the budget."""

    cold_s: float | None
    """One request: no percentile."""
    warm_p50: Quantile | None
    warm_p95: Quantile | None
    concurrent_p95: Quantile | None
    error_rate: float
    n: int
    checks: tuple[Check, ...]
    stages: Stages
    invalid: str | None
    """Why the measurement says nothing of the endpoint."""

    @property
    def passed(self) -> bool:
        """Whether every check holds."""
        return all(check.passed for check in self.checks)

    @property
    def evidence(self) -> Evidence:
        """For the claim that the budget is kept."""
        return weakest(check.evidence for check in self.checks)


def judge(measured: Measured, budget: Budget, *, stream: bool = False) -> Verdict:
    """Judge an environment.

    Args:
        measured: At least one request.
        budget: What must hold. The p95 must hold for warm and for concurrent requests.
        stream: Whether a stream was asked for.
    """
    bad, n = sum(not sample.is_ok for sample in measured.all), len(measured.all)
    error_rate = bad / n if n else 1.0
    error_check = Check(
        name="errors",
        value=error_rate,
        limit=budget.errors,
        passed=error_rate < budget.errors,
        evidence=evidence(bad, n, budget.errors),
        n=n,
    )
    named = [("warm p95", measured.warm), ("concurrent p95", measured.concurrent)]
    p95s = [check_p95(name, samples, budget.p95_s) for name, samples in named]
    return Verdict(
        cold_s=measured.cold.latency_s if measured.cold is not None and measured.cold.is_ok else None,
        warm_p50=quantile(measured.warm, 0.5),
        warm_p95=quantile(measured.warm, 0.95),
        concurrent_p95=quantile(measured.concurrent, 0.95),
        error_rate=error_rate,
        n=n,
        checks=(*p95s, error_check),
        stages=stages(measured, stream=stream),
        invalid=_client_fault(measured.client, p95s) if measured.client.lag_p99_s > LAG_LEAST_S else None,
    )


def check_p95(name: str, samples: Sequence[Sample], limit_s: float) -> Check:
    """Judge a p95: slow are good answers that took the limit or longer, and time-outs."""
    found = quantile(samples, 0.95)
    timed = [sample for sample in samples if sample.ending in (Ending.OK, Ending.TIMEOUT)]
    slow = sum(not sample.is_ok or sample.latency_s >= limit_s for sample in timed)
    return Check(
        name=name,
        value=None if found is None else found.value_s,
        limit=limit_s,
        passed=found is not None and found.value_s < limit_s,
        evidence=evidence(slow, len(timed), P95_SHARE),
        n=len(timed),
        is_at_least=found is not None and found.is_at_least,
    )


def stages(measured: Measured, *, stream: bool) -> Stages:
    """Tell the stages of good answers apart."""
    ok = [sample for sample in measured.all if sample.is_ok]
    opened = [sample for sample in ok if sample.connect_s is not None]
    answered = [sample for sample in ok if sample.first_byte_s is not None]
    first_s = [_to_first_byte(sample) for sample in answered]
    body_s = [sample.end_s - (sample.first_byte_s or 0.0) for sample in answered]
    held = [body <= BUFFERED_SHARE * sample.latency_s for body, sample in zip(body_s, answered, strict=True)]
    return Stages(
        connect_s=_median([sample.connect_s or 0.0 for sample in opened]),
        tls_s=_median([sample.tls_s for sample in opened if sample.tls_s is not None]),
        first_byte_s=_median(first_s),
        body_s=_median(body_s),
        is_buffered=stream and bool(held) and sum(held) > len(held) / 2,
    )


def _to_first_byte(sample: Sample) -> float:
    waited_s = (sample.first_byte_s or 0.0) - sample.start_s
    return waited_s - (sample.connect_s or 0.0) - (sample.tls_s or 0.0)


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def _client_fault(client: ClientLoad, checks: Sequence[Check]) -> str | None:
    """Say where a failure may be the client's own: a late event loop makes latencies longer, so that a pass stands."""
    for check in checks:
        if not check.passed and check.value is not None and check.value - client.lag_p99_s < check.limit:
            return (
                f"{check.name} is over by less than this client was late itself "
                f"(up to {client.lag_p99_s * 1000:.0f} ms)"
            )
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """How warm latency differs from an earlier measurement."""

    before_s: float
    """Median."""
    now_s: float
    is_regression: bool
    """Slower by a fifth or more, and by more than chance makes likely."""

    @property
    def share(self) -> float:
        """By what share it is slower."""
        return self.now_s / self.before_s - 1


def compare(before: Sequence[Sample], now: Sequence[Sample]) -> Change | None:
    """Compare warm latencies by their medians, and by Mann and Whitney's rank test (1947), one-sided at 5 %.

    Returns:
        None where either has less than four good answers: too few for any order to be unlikely.
    """
    old_s, new_s = latencies(before), latencies(now)
    if min(old_s.size, new_s.size) < 4:
        return None
    above = np.sum(new_s[:, None] > old_s) + 0.5 * np.sum(new_s[:, None] == old_s)
    pairs, total = old_s.size * new_s.size, old_s.size + new_s.size
    z = (float(above) - pairs / 2) / math.sqrt(pairs * (total + 1) / 12)
    medians = float(np.median(old_s)), float(np.median(new_s))
    return Change(*medians, is_regression=z > Z95_ONE_SIDED and medians[1] > (1 + SLOWER_BY) * medians[0])
