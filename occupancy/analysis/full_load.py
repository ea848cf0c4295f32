"""A round while all its workers were busy: effective concurrency without ramp-up and ramp-down, and its error."""

import math

import numpy as np

from occupancy.analysis.baseline import Baseline
from occupancy.analysis.samples import Round, starts_and_ends

MOST_TRIES = 3
"""Times that slots and batches are worked out from one another."""
ROUNDING = 1e-9


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
