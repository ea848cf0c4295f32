"""What a latency budget's measurement found: typed, and what can be made of it."""

import dataclasses
import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

from occupancy.analysis.latency import Evidence
from occupancy.analysis.latency_budget import Budget, Change, Measured, Verdict, compare, judge
from occupancy.analysis.samples import Round, Sample
from occupancy.probe.sweep_result import Conditions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

    from occupancy.log import OccupancyLog

PASSED, FAILED, NOT_PROVEN, UNREACHABLE, INVALID = 0, 1, 3, 4, 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvironmentResult:
    """One environment: measured, or why it could not be."""

    name: str
    conditions: Conditions
    budget: Budget
    measured: Measured | None
    error: str | None = None
    """Why it could not be measured."""
    is_complete: bool = True
    """False where it was interrupted: what was measured is shown, and passes nothing."""
    before: tuple[Sample, ...] = ()
    """Warm requests of an earlier measurement."""
    warnings: tuple[str, ...] = ()

    @cached_property
    def verdict(self) -> Verdict | None:
        """Five numbers and the checks; None where nothing was measured."""
        return None if self.measured is None else judge(self.measured, self.budget, stream=self.conditions.stream)

    @property
    def passed(self) -> bool:
        """Whether it was measured, keeps the budget, and the measurement says something of the endpoint."""
        return self.is_complete and self.verdict is not None and self.verdict.passed and self.verdict.invalid is None

    @property
    def word(self) -> str:
        """The verdict in one word."""
        if self.verdict is None:
            return "unreachable"
        if not self.is_complete:
            return "incomplete"
        return "invalid" if self.verdict.invalid else "pass" if self.passed else "FAIL"

    @property
    def change(self) -> Change | None:
        """Against the earlier measurement; None without one."""
        return compare(self.before, self.measured.warm) if self.measured is not None and self.before else None

    def exit_code(self, *, require_proof: bool = False) -> int:
        """Give 0 passed, 1 failed, 3 not proven, 4 unreachable, 5 invalid or incomplete."""
        if self.verdict is None:
            return UNREACHABLE
        if self.verdict.invalid is not None or not self.is_complete:
            return INVALID
        if not self.verdict.passed:
            return FAILED
        return NOT_PROVEN if require_proof and self.verdict.evidence is not Evidence.PROVEN else PASSED


@dataclasses.dataclass(frozen=True, kw_only=True)
class BudgetResult:
    """Environments side by side, the cheapest first."""

    environments: tuple[EnvironmentResult, ...]
    measured_at: str
    """Start, ISO 8601 with its zone."""
    wall_s: float
    is_interrupted: bool = False
    log: "OccupancyLog | None" = dataclasses.field(default=None, compare=False, repr=False)
    """The trace of every HTTP request."""

    @property
    def passed(self) -> bool:
        """Whether every environment keeps its budget."""
        return bool(self.environments) and all(one.passed for one in self.environments)

    @property
    def cheapest(self) -> EnvironmentResult | None:
        """The first environment that passes."""
        return next((one for one in self.environments if one.passed), None)

    @property
    def advice(self) -> str:
        """What to choose, in one line."""
        if self.cheapest is None:
            kept = "interrupted: no environment was found to keep" if self.is_interrupted else "no environment keeps"
            return f"{kept} the budget"
        if self.cheapest is self.environments[0] and len(self.environments) > 1:
            return f"{self.cheapest.name} keeps the budget: a bigger plan buys nothing"
        return f"{self.cheapest.name} is the cheapest that keeps the budget"

    def exit_code(self, *, require_proof: bool = False, any_suffices: bool = False) -> int:
        """Give the code of the worst environment, or of the best where any suffices.

        What could not be measured or is invalid weighs more than a failure, and that more than a missing proof.
        """
        order = (PASSED, NOT_PROVEN, FAILED, INVALID, UNREACHABLE)
        codes = [one.exit_code(require_proof=require_proof) for one in self.environments]
        return (min if any_suffices else max)(codes, key=order.index, default=INVALID)

    def to_dict(self) -> dict[str, Any]:
        """Give what `json.dumps` takes; see `occupancy.formats.budget_json`."""
        from occupancy.formats.budget_json import to_dict

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
        """One row for each request, with its environment and phase."""
        import pandas as pd

        from occupancy.formats.samples_table import to_dataframe

        frames = []
        for one in self.environments:
            for phase, samples in phases(one.measured):
                frame = to_dataframe(
                    [Round(workers=max(len(samples), 1) if phase == "concurrent" else 1, samples=samples)]
                )
                frame.insert(0, "phase", phase)
                frame.insert(0, "environment", one.name)
                frames.append(frame)
        return pd.concat(frames, ignore_index=True) if frames else to_dataframe([])

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw each latency as a point against the budget's line, on new axes unless some are given."""
        from occupancy.views.budget_plot import plot_budget

        return plot_budget(self, ax)

    def __str__(self) -> str:
        from occupancy.views.probe_budget import budget_report

        return budget_report(self)


def phases(measured: Measured | None) -> list[tuple[str, tuple[Sample, ...]]]:
    """Give the requests of an environment by phase, those that exist."""
    if measured is None:
        return []
    cold = (measured.cold,) if measured.cold is not None else ()
    named = [("cold", cold), ("warm", measured.warm), ("concurrent", measured.concurrent)]
    return [(phase, samples) for phase, samples in named if samples]
