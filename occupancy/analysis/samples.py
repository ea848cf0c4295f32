"""Requests of a probe: the raw material of a sweep and of a latency budget."""

import dataclasses
from collections.abc import Iterable, Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from occupancy.analysis.distribution import Tally, tally

Float64 = NDArray[np.float64]


class Ending(StrEnum):
    """How a request of a probe ended."""

    OK = "ok"
    """A complete and usable answer."""
    REFUSED = "refused"
    """Status 429."""
    HTTP_ERROR = "http_error"
    """Any other status from 400 on."""
    TIMEOUT = "timeout"
    """No complete answer within the time-out, or a status that says so (408, 504)."""
    ERROR = "error"
    """No answer, or one that cannot be used."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One request of a probe. Times are s on the probe's monotonic clock, 0 at its start."""

    number: int
    """From 0 within its level, in the order of issue."""
    start_s: float
    end_s: float
    ending: Ending
    first_byte_s: float | None = None
    """First byte of the body."""
    first_event_s: float | None = None
    """First event of a stream that is no comment."""
    status: int | None = None
    error: str | None = None
    """What went wrong, without secrets, in one line."""
    retry_after_s: float | None = None
    """What the server asked for, in s."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    pool_s: float | None = None
    """Waiting for a connection of the client's pool."""
    connect_s: float | None = None
    """Opening the connection, name look-up included; None where one was used again."""
    tls_s: float | None = None
    wire_s: float | None = None
    """From the request sent to the last byte: what the client itself took is not in it. None where nobody looked."""

    @property
    def latency_s(self) -> float:
        """From the issue to the last byte, or to the failure, in s."""
        return self.end_s - self.start_s

    @property
    def is_ok(self) -> bool:
        """Whether it counts as completed."""
        return self.ending is Ending.OK


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClientLoad:
    """How busy the client itself was while it measured."""

    lag_mean_s: float = 0.0
    """Mean time by which the event loop was late, in s."""
    lag_p99_s: float = 0.0
    late_share: float = 0.0
    """Share of the time for which the event loop was late: near 1, it is what limits."""
    cpu_share: float = 0.0
    """CPU time of the process per second of wall time: 1 is one core."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Requests of a fixed number of workers, each of which issues its next one when the last has ended."""

    workers: int
    samples: tuple[Sample, ...]
    """In the order of issue."""
    client: ClientLoad = ClientLoad()
    is_complete: bool = True
    """False where it was interrupted: kept, but not judged."""

    @property
    def wall_s(self) -> float:
        """From the first issue to the last end, in s; 0 without samples."""
        if not self.samples:
            return 0.0
        return max(sample.end_s for sample in self.samples) - min(sample.start_s for sample in self.samples)

    @property
    def n_ok(self) -> int:
        """Requests that count as completed."""
        return sum(sample.is_ok for sample in self.samples)

    def count(self, *endings: Ending) -> int:
        """Requests that ended in one of these ways."""
        return sum(sample.ending in endings for sample in self.samples)


def faults(samples: Iterable[Sample]) -> tuple[Tally, ...]:
    """Give what went wrong, and how often: the most frequent first."""
    return tally(sample.error or str(sample.ending) for sample in samples if not sample.is_ok)


def latencies(samples: Iterable[Sample]) -> Float64:
    """Give the latencies of the good answers, in s, shape (n,)."""
    return np.array([sample.latency_s for sample in samples if sample.is_ok], dtype=np.float64)


def starts_and_ends(samples: Sequence[Sample]) -> tuple[Float64, Float64]:
    """Give issues and ends, in s, shape (n,) each."""
    start_s = np.array([sample.start_s for sample in samples], dtype=np.float64)
    return start_s, np.array([sample.end_s for sample in samples], dtype=np.float64)
