"""What a sweep found: typed, and what can be made of it."""

import dataclasses
import datetime
import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

from occupancy.analysis.capacity import Capacity, find_capacity
from occupancy.analysis.levels import Label
from occupancy.analysis.samples import Round, Sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

    from occupancy.log import OccupancyLog

STALE_DAYS = 7.0
"""Age from which on a result is warned of: quotas and models change."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a result holds for: another prompt, quota or place is another endpoint."""

    target: str
    """URL without query, or the name of the callable."""
    model: str | None = None
    stream: bool = False
    nonce: bool = True
    prompt_chars: int | None = None
    max_tokens: int | None = None
    region: str | None = None
    """Of the endpoint, as far as it was told."""
    place: str | None = None
    """Of this client, as far as it was told."""

    def differences(self, other: "Conditions") -> list[str]:
        """Name what differs, as `name: mine, not other's`."""
        pairs = [(f.name, getattr(self, f.name), getattr(other, f.name)) for f in dataclasses.fields(self)]
        return [f"{name}: {mine!r}, not {theirs!r}" for name, mine, theirs in pairs if mine != theirs]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepResult:
    """A sweep, with every raw sample. Times are s.

    Raises:
        ValueError: There is no complete round of one worker with a good answer.
    """

    conditions: Conditions
    rounds: tuple[Round, ...]
    end: Round | None
    """One worker again, at the end."""
    warm_up: Sample | None
    measured_at: str
    """Start, ISO 8601 with its zone."""
    wall_s: float
    sent: int
    """Requests of this run, warm-up included."""
    partial: Round | None = None
    """The round that was interrupted."""
    notes: tuple[str, ...] = ()
    is_interrupted: bool = False
    log: "OccupancyLog | None" = dataclasses.field(default=None, compare=False, repr=False)
    """The trace of every HTTP request of this run."""

    def __post_init__(self) -> None:
        _ = self.capacity

    @cached_property
    def capacity(self) -> Capacity:
        """The levels, the fit and the recommendation."""
        return find_capacity(self.rounds, self.end)

    @property
    def recommended(self) -> int:
        """Workers to use."""
        return self.capacity.recommended

    @property
    def labels(self) -> tuple[str, ...]:
        """What the sweep shows; the highest level's labels first, then `unstable`."""
        last = self.capacity.levels[-1].labels if len(self.capacity.levels) > 1 else ()
        unstable = () if self.capacity.baseline.is_stable else ("unstable",)
        return (*map(str, last), *unstable)

    @property
    def is_valid(self) -> bool:
        """Whether it tells of the server: stable, and not limited by the client at every level above one worker."""
        above = [level for level in self.capacity.levels if level.workers > 1]
        client = bool(above) and all(Label.CLIENT_BOUND in level.labels for level in above)
        return self.capacity.baseline.is_stable and not client

    @property
    def code(self) -> str:
        """A line to paste."""
        return f"limit = asyncio.Semaphore({self.recommended})  # async with limit: ..."

    def warnings(self, conditions: Conditions | None = None, now: datetime.datetime | None = None) -> list[str]:
        """Say why this result may not hold: other conditions, or more than seven days of age.

        Args:
            conditions: Where it is to be used; None: not compared.
            now: With its zone; None for the time now.
        """
        found = [] if conditions is None else conditions.differences(self.conditions)
        age = (now or datetime.datetime.now(datetime.UTC)) - datetime.datetime.fromisoformat(self.measured_at)
        days = age.total_seconds() / 86400
        return found + ([f"measured {days:.0f} days ago"] if days > STALE_DAYS else [])

    def to_dict(self) -> dict[str, Any]:
        """Give what `json.dumps` takes; see `occupancy.formats.sweep_json`."""
        from occupancy.formats.sweep_json import to_dict

        return to_dict(self)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Give it as JSON, and write it to a file if one is named."""
        from occupancy.formats.sweep_json import dumps
        from occupancy.probe.writing import write_text

        text = dumps(self.to_dict())
        if path is not None:
            write_text(path, text)
        return text

    def to_pandas(self) -> "DataFrame":
        """One row for each request, in the order of levels."""
        from occupancy.formats.samples_table import to_dataframe

        return to_dataframe([*self.rounds, *([self.end] if self.end else [])])

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw effective concurrency against workers, on new axes unless some are given."""
        from occupancy.views.sweep_plot import plot_effective

        return plot_effective(self.capacity, ax)

    def __str__(self) -> str:
        from occupancy.views.probe_tables import sweep_report

        return sweep_report(self)
