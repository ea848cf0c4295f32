"""The occupancy of a fleet: typed, and what can be made of it."""

import dataclasses
import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from occupancy.analysis.buckets import Buckets

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


class Group(NamedTuple):
    """The calls of one model, service, ..."""

    name: str
    """Empty for calls that have none."""
    buckets: Buckets


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class FleetOccupancy:
    """How many calls of many processes were in flight, in buckets of time. Times are ns since 1970."""

    source: str
    """Where the spans are."""
    service: str | None
    """Whose they are; None for all."""
    select: str | None
    """Which of them were counted; None for what counts as a call."""
    by: str | None
    """What `groups` are made by."""
    total: Buckets
    """All calls together. The peaks of groups do not add up to its peak: they need not come at one time."""
    groups: tuple[Group, ...]
    """The busiest first."""
    n_groups: int
    """How many there are: more than `groups` has where there are very many."""
    n_bare: int
    """Requests whose spans `OccupancySpanProcessor` has not stamped: they may end with the headers."""
    longest_ns: int
    """Duration of the longest call."""
    lookback_ns: int
    """How long before the window calls that count could begin: as long as the longest span, if that is not too long."""
    is_lookback_short: bool
    """Whether there are spans that are longer."""
    is_live: bool
    """Whether the window ends now."""

    @property
    def n(self) -> int:
        """Calls in flight at some time of the window."""
        return self.total.n

    @property
    def peak(self) -> int:
        """Most calls in flight at once, exactly."""
        return self.total.highest

    @property
    def mean_in_flight(self) -> float:
        """Mean in flight over the window: sum of the durations within it / its length."""
        return self.total.mean_in_flight

    @property
    def limits(self) -> tuple[str, ...]:
        """What the numbers do not show, a sentence each."""
        from occupancy.views.fleet_text import limits

        return limits(self)

    def to_pandas(self) -> "DataFrame":
        """One row for each bucket of all calls, then of each group.

        Returns:
            `group` (None for all calls), `start` and `end` of the bucket (UTC), `mean`, `peak`, `begun`.
        """
        import pandas as pd

        parts = [(None, self.total), *self.groups]
        sizes = [buckets.peak.size for _, buckets in parts]
        edges = [buckets.edges_ns.view("M8[ns]") for _, buckets in parts]
        return pd.DataFrame(
            {
                "group": np.repeat(np.array([name for name, _ in parts], dtype=object), sizes),
                "start": pd.DatetimeIndex(np.concatenate([edge[:-1] for edge in edges]), tz="UTC"),
                "end": pd.DatetimeIndex(np.concatenate([edge[1:] for edge in edges]), tz="UTC"),
                "mean": np.concatenate([buckets.mean for _, buckets in parts]),
                "peak": np.concatenate([buckets.peak for _, buckets in parts]),
                "begun": np.concatenate([buckets.begun for _, buckets in parts]),
            }
        )

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw a strip of colour for each group over time, on new axes unless some are given."""
        from occupancy.views.fleet_plot import fleet_strip

        return fleet_strip(self, ax)

    def to_dict(self) -> dict[str, Any]:
        """Give what `json.dumps` takes; units are in the names."""
        edges_ns = self.total.edges_ns.tolist()
        return {
            "source": self.source,
            "service": self.service,
            "select": self.select,
            "by": self.by,
            "start": _iso(edges_ns[0]),
            "end": _iso(edges_ns[-1]),
            "edges_unix_ns": edges_ns,
            "n_bare": self.n_bare,
            "longest_ms": self.longest_ns / 1e6,
            "limits": list(self.limits),
            "all": _to_dict(self.total),
            "n_groups": self.n_groups,
            "groups": [{"name": group.name, **_to_dict(group.buckets)} for group in self.groups],
        }

    def __str__(self) -> str:
        from occupancy.views.fleet_text import fleet_report

        return fleet_report(self)


def _to_dict(buckets: Buckets) -> dict[str, Any]:
    return {
        "n": buckets.n,
        "peak": buckets.highest,
        "mean_in_flight": buckets.mean_in_flight,
        "bucket_peak": buckets.peak.tolist(),
        "bucket_mean": buckets.mean.tolist(),
        "bucket_begun": buckets.begun.tolist(),
    }


def _iso(unix_ns: int) -> str:
    return datetime.datetime.fromtimestamp(unix_ns // 10**9, datetime.UTC).isoformat()
