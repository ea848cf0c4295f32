"""What a log amounts to: how full it was, how long calls took, what failed, and when nothing was in flight."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from occupancy.analysis.columns import MISSING, Columns
from occupancy.analysis.distribution import MS, Spread, Tally, elapsed, sorted_tally
from occupancy.analysis.groups import CountedCalls, Group, Run, by_label, by_run, by_site
from occupancy.analysis.records import Records
from occupancy.analysis.steps import Int64, Steps, count_intervals
from occupancy.call import Outcome

PHASES = ("client", "gate", "pool", "connect", "tls", "send", "wait", "receive")
"""In the order in which a call goes through them; the column of each is its name and `_ns`."""
FAILED = (Outcome.HTTP_ERROR.value, Outcome.TIMEOUT.value, Outcome.ERROR.value)
TOO_MANY_REQUESTS = 429
LATE_NS = 1_000_000
"""Between end and release, what is shorter is the bookkeeping of the client and of ours, not the program."""
GAPS = 5
"""Gaps that a summary names."""


@dataclasses.dataclass(frozen=True, slots=True)
class Phase:
    """One phase, over the `n` calls for which it is known."""

    name: str
    n: int
    sum_ms: float
    median_ms: float | None
    """None when `n` is 0."""


@dataclasses.dataclass(frozen=True, slots=True)
class Gap:
    """A stretch with nothing in flight between two calls: the program's own time."""

    start_ns: int
    duration_ns: int
    label_before: str | None
    """Of a call that ended where the gap starts."""
    label_after: str | None
    """Of a call that started where the gap ends."""


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """A log in numbers. Calls of kind `other` are in `n_other` and nowhere else."""

    n: int
    """Calls that count, the open and the dropped ones among them."""
    n_open: int
    """Never ended; in flight from their start to the last stamp of their process (`steps.closed_end`)."""
    n_other: int
    n_dropped: int
    """In no curve and no duration: they end before they start, or have no end without being open."""
    n_released_late: int
    """Held by the program for more than `LATE_NS` after their end: there the running count is the higher one."""
    n_processes: int
    """That made them."""
    start_ns: int
    """First start; 0 without calls."""
    wall_ns: int
    """From the first start to the last end of calls that last longer than 0."""
    busy_ns: int
    """With at least one call in flight."""
    mean_in_flight: float
    """Sum of durations / wall."""
    peak: int
    wire_peak: int
    """Most calls on the wire, past the program's own queues."""
    level_ns: tuple[int, ...]
    """Exact time of the wall at 0, 1, ... peak in flight."""
    total: Spread
    """From start to end, of the calls that ended."""
    first_byte: Spread
    """From start to the first byte of the body, of the calls that had one."""
    phases: tuple[Phase, ...]
    """As in `PHASES`."""
    n_connection_known: int
    n_connection_reused: int
    n_errors: int
    """As `failed` says; what the program itself cancelled is in `outcomes` only."""
    n_429: int
    n_retries: int
    """Further attempts (`attempt` > 0): retries and redirect hops."""
    outcomes: tuple[Tally, ...]
    models: tuple[Tally, ...]
    hosts: tuple[Tally, ...]
    gaps: tuple[Gap, ...]
    """The longest first, at most `GAPS`."""
    by_label: Records[Group]
    """In the order of their first start."""
    by_site: Records[Group]
    """By label and call site, the longest time in flight first."""
    by_run: Records[Run]
    """In the order of their first start."""

    @property
    def level_share(self) -> tuple[float, ...]:
        """Share of the wall at 0, 1, ... peak in flight; `(0.0,)` without calls."""
        return tuple(ns / self.wall_ns if self.wall_ns else 0.0 for ns in self.level_ns)

    @property
    def connection_reuse(self) -> float | None:
        """Share of calls that used an open connection again; None where it is not known of any call."""
        return self.n_connection_reused / self.n_connection_known if self.n_connection_known else None


def summarize(columns: Columns, until_ns: int | None = None) -> Summary:
    """Sum a log up.

    Args:
        columns: Its calls.
        until_ns: For a live log the time now, ns on the calls' clock: open calls are in flight until then.

    Returns:
        Everything at 0, None or empty when no call counts.
    """
    return summary_of(CountedCalls.of(columns, until_ns))


def summary_of(calls: CountedCalls) -> Summary:
    """Sum calls up, as `summarize` does."""
    in_flight, kept = calls.in_flight, calls.columns
    intervals = count_intervals(calls.start_ns, calls.end_ns)
    return Summary(
        n=calls.n,
        n_open=_count(calls.is_open),
        n_other=calls.n_other,
        n_dropped=intervals.end_before_start + intervals.missing,
        n_released_late=_count(elapsed(kept["end_ns"], kept["released_ns"]) > LATE_NS),
        n_processes=len(np.unique(kept["pid"])),
        start_ns=int(calls.start_ns.min()) if calls.n else 0,
        wall_ns=in_flight.wall_ns,
        busy_ns=in_flight.busy_ns,
        mean_in_flight=in_flight.mean,
        peak=in_flight.peak,
        wire_peak=calls.on_wire.peak,
        level_ns=in_flight.time_at_level,
        total=calls.total.spread(),
        first_byte=calls.first_byte_wait.spread(),
        phases=tuple(_phase(name, kept[f"{name}_ns"]) for name in PHASES),
        n_connection_known=_count(kept["connection_reused"] != MISSING),
        n_connection_reused=_count(kept["connection_reused"] == 1),
        n_errors=_count(failed(kept)),
        n_429=_count(kept["status"] == TOO_MANY_REQUESTS),
        n_retries=_count(kept["attempt"] > 0),
        outcomes=_tally(calls, "outcome"),
        models=_tally(calls, "model"),
        hosts=_tally(calls, "host"),
        gaps=_gaps(in_flight, calls),
        by_label=by_label(calls),
        by_site=by_site(calls),
        by_run=by_run(calls),
    )


def failed(columns: Columns) -> NDArray[np.bool_]:
    """Mask of the calls that failed, shape (n,): status of 400 or more, or no whole answer (`timeout`, `error`)."""
    return np.asarray((columns["status"] >= 400) | np.isin(columns["outcome"], FAILED), dtype=np.bool_)


def _tally(calls: CountedCalls, name: str) -> tuple[Tally, ...]:
    values, place = calls.numbered(name)
    return sorted_tally(zip(values, np.bincount(place, minlength=len(values)).tolist(), strict=True))


def _count(mask: NDArray[np.bool_]) -> int:
    return int(np.count_nonzero(mask))


def _phase(name: str, durations_ns: Int64) -> Phase:
    known_ns = durations_ns[durations_ns != MISSING]
    median_ms = float(np.median(known_ns)) / MS if known_ns.size else None
    return Phase(name, int(known_ns.size), int(known_ns.sum()) / MS, median_ms)


def _gaps(in_flight: Steps, calls: CountedCalls) -> tuple[Gap, ...]:
    duration_ns = np.diff(in_flight.t_ns)
    idle = np.flatnonzero(in_flight.in_flight[:-1] == 0)
    longest = idle[np.argsort(-duration_ns[idle], kind="stable")][:GAPS]
    occupying = calls.end_ns > calls.start_ns
    return tuple(
        Gap(
            start_ns=int(in_flight.t_ns[step]),
            duration_ns=int(duration_ns[step]),
            label_before=_label_of_first(calls, occupying & (calls.end_ns == in_flight.t_ns[step])),
            label_after=_label_of_first(calls, occupying & (calls.start_ns == in_flight.t_ns[step + 1])),
        )
        for step in longest
    )


def _label_of_first(calls: CountedCalls, mask: NDArray[np.bool_]) -> str | None:
    label: str | None = calls.columns["label"][int(np.argmax(mask))]
    return label
