"""Measures whether environments keep a latency budget: a few requests each."""

import asyncio
import dataclasses
import math
from collections.abc import Callable
from typing import Any

from occupancy.analysis.latency_budget import Budget, Measured
from occupancy.analysis.samples import ClientLoad, Sample
from occupancy.errors import InputError
from occupancy.probe.client import Opener, take_sample
from occupancy.probe.errors import UnreachableError
from occupancy.probe.rounds import RoundRun, wait_out
from occupancy.probe.target import Target

DEFAULT_BUDGET = Budget()
QUICK_PROMPTS = ("Return the single word ok.", "What is 2 + 2? Answer with the number.", "Name one colour.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BudgetOptions:
    """How to measure an environment.

    Raises:
        InputError: A value cannot be used; names it.
    """

    budget: Budget = DEFAULT_BUDGET
    warm: int = 20
    """Requests one after another."""
    concurrent: int = 10
    """Requests at once."""
    timeout_s: float = 30.0
    """For one request; above the budget."""
    deadline_s: float = 600.0
    """For the warm requests together."""
    cold_after_s: float = 0.0
    """Idling before the first request."""

    def __post_init__(self) -> None:
        for name, value in (("p95_s", self.budget.p95_s), ("timeout_s", self.timeout_s), ("warm", self.warm)):
            if not 0 < value < math.inf:
                raise InputError(f"{name} must be a number above 0, not {value!r}")
        if not 0 < self.budget.errors <= 1:
            raise InputError(f"errors must be a share above 0 and at most 1, not {self.budget.errors!r}")
        if self.timeout_s <= self.budget.p95_s:
            raise InputError(f"timeout_s must be above the budget of {self.budget.p95_s:g} s, not {self.timeout_s!r}")
        if self.concurrent < 1 or self.cold_after_s < 0:
            raise InputError("concurrent must be at least 1, and cold_after_s not below 0")

    @property
    def requests(self) -> int:
        """Requests to one environment."""
        return 1 + self.warm + self.concurrent


class BudgetRun:
    """The measurement of one environment under way. What has been measured is kept when it is cancelled.

    Args:
        options: How many requests of each kind.
        on_sample: Told of each request that has ended.
    """

    def __init__(self, options: BudgetOptions, on_sample: Callable[[Sample], None] | None = None) -> None:
        self._options = options
        self._on_sample = on_sample
        self._cold: Sample | None = None
        self._runs: list[RoundRun] = []
        self._loads: list[ClientLoad] = []

    async def run(self, open_request: Opener) -> None:
        """Send one request after idling, some one after another, some at once.

        Raises:
            UnreachableError: The first request got no answer that can be used.
        """
        options = self._options
        await asyncio.sleep(options.cold_after_s)
        origin_s = asyncio.get_running_loop().time()
        async with open_request(1) as request:
            cold = self._cold = await take_sample(request, 0, options.timeout_s, origin_s)
        if self._on_sample is not None:
            self._on_sample(cold)
        if not cold.is_ok and not _may_recover(cold):
            raise UnreachableError(f"the first request failed: {cold.error or cold.ending}")
        await wait_out([cold])
        shared: dict[str, Any] = {"timeout_s": options.timeout_s, "origin_s": origin_s, "on_sample": self._on_sample}
        # Each request waits for what the one before was asked to wait: outside of its latency, all that is judged.
        warm = RoundRun(1, options.warm, deadline_s=options.deadline_s, stops_early=False, **shared)
        burst = RoundRun(options.concurrent, options.concurrent, stops_early=False, **shared)
        for run in (warm, burst):
            self._runs.append(run)
            async with open_request(run.workers) as request:
                self._loads.append((await run.run(request)).client)

    def so_far(self) -> Measured:
        """Give what has been measured."""
        phases = [run.so_far().samples for run in self._runs]
        warm, concurrent = [*phases, (), ()][:2]
        return Measured(
            cold=self._cold,
            warm=warm,
            concurrent=concurrent,
            client=ClientLoad(
                lag_mean_s=max((load.lag_mean_s for load in self._loads), default=0.0),
                lag_p99_s=max((load.lag_p99_s for load in self._loads), default=0.0),
                cpu_share=max((load.cpu_share for load in self._loads), default=0.0),
            ),
        )


def _may_recover(first: Sample) -> bool:
    """Whether later requests may fare better: a busy server may, a wrong key, model or URL does not."""
    return first.status is not None and (first.status in (408, 425, 429) or first.status >= 500)


async def measure_quick(target: Target, timeout_s: float) -> list[Sample]:
    """Send three prompts, each on a connection of its own: what `curl -w '%{time_total}'` measures.

    Args:
        target: What to ask; a plain request is sent three times as it is.
        timeout_s: For one request, in s.
    """
    from occupancy.probe.http_client import open_target

    samples = []
    for number, prompt in enumerate(QUICK_PROMPTS):
        asked = dataclasses.replace(target, prompt=prompt)
        async with open_target(asked, 1) as opener, opener(1) as request:
            samples.append(await take_sample(request, number, timeout_s))
    return samples
