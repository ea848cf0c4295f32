"""The number of slots behind measured effective concurrencies."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from occupancy.analysis.samples import Float64

PARALLEL_FROM = 0.85
"""Share of the workers from which on a level counts as parallel."""
USL_LEVELS = 6
"""Levels from which on the Universal Scalability Law may be shown."""
Z95 = 1.96
Z99 = 2.576


@dataclasses.dataclass(frozen=True, slots=True)
class Usl:
    """Gunther's Universal Scalability Law: `E = c / (1 + contention (c - 1) + coherency c (c - 1))`."""

    contention: float
    coherency: float

    def at(self, workers: float) -> float:
        """Give the effective concurrency of so many workers."""
        return workers / (1 + self.contention * (workers - 1) + self.coherency * workers * (workers - 1))


@dataclasses.dataclass(frozen=True, slots=True)
class Fit:
    """`E = min(c, capacity)`."""

    capacity: float | None
    """Requests the endpoint works on at once; None where no limit was reached."""
    at_least: int
    """Largest number of workers that were worked on in parallel."""
    standard_error: float | None = None
    plateau: float | None = None
    """Workers that keep the endpoint busy: more than its capacity by what a client takes of a request's time."""
    degrees: float = math.inf
    """Degrees of freedom of the standard error."""
    usl: Usl | None = None
    """Only with 6 levels or more, and where it tells more than the fit above."""

    @property
    def error99(self) -> float | None:
        """Half the width of the capacity's 99 % interval."""
        return None if self.standard_error is None else quantile_of_t(Z99, self.degrees) * self.standard_error

    def __str__(self) -> str:
        if self.capacity is None:
            return f"no limit up to {self.at_least}"
        return f"{self.capacity:.2f} +- {self.error99:.2f}"


def quantile_of_t(z: float, degrees: float) -> float:
    """Give the quantile of Student's distribution that belongs to the normal quantile z; good to 1 % from 9 degrees on.

    Abramowitz and Stegun 1964, 26.7.5, to its second order.
    """
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def fit_capacity(
    points: Sequence[tuple[int, float, float]],
    baseline_error: float,
    least_on_plateau: int = 1,
    endpoint_share: float = 1.0,
    degrees: float = math.inf,
) -> Fit:
    """Fit `E = min(c, C)`.

    For each split j, C_j is the geometric mean of E from level j on; the C_j with the least squared log error is kept.
    While the highest level is still parallel there is no limit to fit.

    Args:
        points: Workers, effective concurrency, and its standard error as a share, in the order of workers.
        baseline_error: Standard error of T1 as a share: the same in all points, so that more of them do not lessen it.
        least_on_plateau: Levels with more workers than C that it takes for a limit.
        endpoint_share: Part of T1 that the endpoint took. The rest, a client's, lies outside its slots.
        degrees: Of freedom, of the standard errors.

    Returns:
        The fit; without points no capacity, and `at_least` 0.
    """
    parallel = [c for c, e, _ in points if e >= PARALLEL_FROM * c]
    at_least = max(parallel, default=0)
    if not points or points[-1][1] >= PARALLEL_FROM * points[-1][0]:
        return Fit(None, at_least)
    c, e = np.array([p[0] for p in points], dtype=float), np.array([p[1] for p in points])
    splits = [(_log_error(c, e, _geometric(e[j:])), -j) for j in range(len(points))]
    first = -min(splits)[1]
    plateau = _geometric(e[first:])
    if np.count_nonzero(c > plateau) < least_on_plateau:
        return Fit(None, at_least)
    own = math.hypot(*(p[2] for p in points[first:])) / (len(points) - first)
    capacity = endpoint_share * plateau
    error = capacity * math.hypot(max(own, _scatter(e[first:])), baseline_error)
    return Fit(capacity, at_least, error, plateau, degrees, _fit_usl(c, e, plateau))


def _geometric(e: Float64) -> float:
    return math.exp(float(np.mean(np.log(e))))


def _scatter(e: Float64) -> float:
    """Standard error of the mean of ln E over the levels at the plateau; 0 for one level."""
    return float(np.std(np.log(e), ddof=1)) / math.sqrt(e.size) if e.size > 1 else 0.0


def _log_error(c: Float64, e: Float64, capacity: float) -> float:
    return float(np.sum((np.log(e) - np.log(np.minimum(c, capacity))) ** 2))


def _fit_usl(c: Float64, e: Float64, capacity: float) -> Usl | None:
    """Fit the law by least squares of `c / E - 1`; None with few levels, or where the simpler fit tells as much."""
    n = c.size
    if n < USL_LEVELS:
        return None
    terms = np.stack((c - 1, c * (c - 1)), axis=1)
    found = [_non_negative(terms, c / e - 1, keep) for keep in ([0, 1], [0], [1])]
    laws = [Usl(*pair) for pair in found if pair is not None]
    errors = [float(np.sum((np.log(e) - np.log([law.at(float(x)) for x in c])) ** 2)) for law in laws]
    if not errors:
        return None
    best = int(np.argmin(errors))
    return laws[best] if _aicc(errors[best], n, 2) < _aicc(_log_error(c, e, capacity), n, 1) else None


def _non_negative(terms: Float64, values: Float64, keep: list[int]) -> tuple[float, float] | None:
    solved = np.linalg.lstsq(terms[:, keep], values, rcond=None)[0]
    if (solved < 0).any():
        return None
    pair = np.zeros(2)
    pair[keep] = solved
    return float(pair[0]), float(pair[1])


def _aicc(squares: float, n: int, parameters: int) -> float:
    """Akaike's criterion, corrected for few points; the error's variance counts as one more parameter."""
    k = parameters + 1
    return n * math.log(max(squares, 1e-12) / n) + 2 * k + 2 * k * (k + 1) / (n - k - 1)
