"""What a diagnosis says: a verdict for each run, and the causes with their evidence."""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum

from occupancy.call import Frame

SITES = 4
"""Call sites that a finding names."""


class Cause(StrEnum):
    """What holds a program back, or that nothing does."""

    SERIAL = "serial"
    PARTLY_OVERLAPPED = "partly overlapped"
    OVERLAPPED = "overlapped"
    ONE_CALL = "one call per run"
    POLLER = "background poller"
    """Asks one thing again and again beside other runs, and holds nothing back."""
    UNKNOWN = "unknown"
    """The evidence does not tell."""
    MOSTLY_IDLE = "mostly idle"
    LATE_POOL = "late first byte: before the connection"
    LATE_CONNECT = "late first byte: connect"
    LATE_TLS = "late first byte: TLS"
    LATE_SERVER = "late first byte: server queue"
    ERRORS_RISE = "errors rise with occupancy"
    CAPPED_POOL = "capped by the connection pool"
    CAPPED_EXECUTOR = "capped by an executor"
    CAPPED_SEMAPHORE = "capped by a semaphore or lock"
    SYNC_IN_EVENT_LOOP = "sync call inside the event loop"
    LOOP_STALLS = "event loop stalls"
    BARRIER = "a branch waits for its sibling"
    STACKED_RETRIES = "stacked retries"
    RETRY_BACKOFF = "idle between retries"
    REFUSED = "refused with 429"
    BUFFERED_STREAM = "buffered stream"
    UNCLOSED_RESPONSES = "unclosed responses"
    NOT_REUSED = "connections not reused"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One cause, with its evidence."""

    cause: Cause
    sentence: str
    """What is the matter, in one sentence; it names call sites only for serial calls."""
    numbers: Mapping[str, float]
    """The evidence, with units in the names."""
    call_sites: tuple[Frame, ...]
    """Where in the program, at most `SITES`; empty where that is not known."""
    action: str
    """One thing to do, in plain words."""
    runs: tuple[str | None, ...] = ()
    """The runs that it was seen in, in order; empty for the process as a whole."""
    cost_ms: float = 0.0
    """The time it is about: what findings are ordered by. An estimate, and no promise."""


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """How far the calls of one run overlap."""

    run: str | None
    """The run, `cell 12`, or what the threads of an executor have in common; None for the process or no name."""
    cause: Cause
    """`SERIAL`, `PARTLY_OVERLAPPED`, `OVERLAPPED`, `ONE_CALL`, `POLLER` or `UNKNOWN`."""
    n: int
    """Calls, every attempt."""
    n_logical: int
    """Calls, the attempts of one taken together."""
    peak: int
    mean_in_flight: float
    wall_ms: float
    sentence: str


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnosis:
    """What holds a program back."""

    verdicts: tuple[Verdict, ...]
    """One for each run, in the order of their first starts."""
    process: Verdict | None
    """All runs together; None without calls. Runs of several users overlap here while each is serial."""
    findings: tuple[Finding, ...]
    """The costliest first; empty where nothing is known to hold the program back."""
    warnings: tuple[str, ...]
    """What makes the picture false or incomplete."""

    @property
    def causes(self) -> frozenset[Cause]:
        """The causes that were found."""
        return frozenset(finding.cause for finding in self.findings)


def sites_of(frames: Iterable[Frame | None]) -> tuple[Frame, ...]:
    """Give distinct call sites in the order in which they come, at most `SITES`; None is left out."""
    return tuple(dict.fromkeys(frame for frame in frames if frame is not None))[:SITES]


def place_of(frame: Frame) -> str:
    """Name a call site in a sentence: the file without its folder, and the line."""
    return re.split(r"[/\\]", str(frame))[-1]


def merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Join findings of one cause at the same call sites in several runs: the costliest speaks for all.

    Returns:
        The costliest first, each with all its runs and the sum of their costs.
    """
    alike: dict[tuple[Cause, tuple[Frame, ...]], list[Finding]] = {}
    for finding in findings:
        alike.setdefault((finding.cause, finding.call_sites), []).append(finding)
    joined = [_join(group) for group in alike.values()]
    return tuple(sorted(joined, key=lambda finding: -finding.cost_ms))


def _join(group: list[Finding]) -> Finding:
    costliest = max(group, key=lambda finding: finding.cost_ms)
    runs = tuple(dict.fromkeys(run for finding in group for run in finding.runs))
    numbers = costliest.numbers if len(group) == 1 else {**costliest.numbers, "runs": len(group)}
    return dataclasses.replace(costliest, runs=runs, numbers=numbers, cost_ms=sum(one.cost_ms for one in group))
