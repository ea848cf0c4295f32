"""A round: so many workers, each of which issues its next request when the last has ended."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

import numpy as np

from occupancy.analysis.levels import OK_SHARE
from occupancy.analysis.samples import ClientLoad, Ending, Round, Sample
from occupancy.probe.client import Request, take_sample

MOST_WAIT_S = 120.0
"""Longest Retry-After that is waited for."""
NO_RETRY_AFTER_S = 1.0
"""Wait after a refusal that names none."""
TICK_S = 1 / 64
"""How often the event loop's lag is looked at."""


class RoundRun:
    """A round under way. What has been measured is kept when it is cancelled.

    Args:
        workers: Requests to keep in flight.
        n: Requests in all.
        timeout_s: For one request, in s.
        deadline_s: For the round, in s: nothing is issued after it, and what is in flight then has timed out.
        origin_s: Second 0 of the samples, on the event loop's clock.
        on_sample: Told of each sample, for a progress bar.
        stops_early: Whether the first refusal or time-out ends it.
    """

    def __init__(
        self,
        workers: int,
        n: int,
        *,
        timeout_s: float,
        deadline_s: float = math.inf,
        origin_s: float = 0.0,
        on_sample: Callable[[Sample], None] | None = None,
        stops_early: bool = True,
    ) -> None:
        self.workers = workers
        self.n = n
        self._timeout_s = timeout_s
        self._deadline_s = deadline_s
        self._origin_s = origin_s
        self._on_sample = on_sample
        self._stops_early = stops_early
        self._samples: list[Sample] = []
        self._bad = 0
        self._is_over = False

    async def run(self, request: Request) -> Round:
        """Run to the end, or until nothing more can be learned: at the first refusal or time-out."""
        until_s = asyncio.get_running_loop().time() + self._deadline_s
        numbers = iter(range(self.n))
        async with _watch_client() as load, asyncio.TaskGroup() as group:
            for _ in range(min(self.workers, self.n)):
                group.create_task(self._work(request, numbers, until_s))
        return self.so_far(load(), is_complete=True)

    def so_far(self, client: ClientLoad | None = None, *, is_complete: bool = False) -> Round:
        """Give what has been measured, in the order of issue."""
        samples = tuple(sorted(self._samples, key=lambda sample: sample.number))
        return Round(workers=self.workers, samples=samples, client=client or ClientLoad(), is_complete=is_complete)

    async def _work(self, request: Request, numbers: Iterator[int], until_s: float) -> None:
        loop = asyncio.get_running_loop()
        while not self._is_over and (left_s := until_s - loop.time()) > 0:
            number = next(numbers, None)
            if number is None:
                return
            sample = await take_sample(request, number, min(self._timeout_s, left_s), self._origin_s)
            self._keep(sample)
            if not self._stops_early:
                await wait_out([sample])

    def _keep(self, sample: Sample) -> None:
        self._samples.append(sample)
        self._bad += not sample.is_ok
        # Over the limit for certain: more requests would cost, and tell nothing new.
        decided = sample.ending in (Ending.REFUSED, Ending.TIMEOUT) or self._bad > (1 - OK_SHARE) * self.n
        self._is_over = self._is_over or (decided and self._stops_early)
        if self._on_sample is not None:
            self._on_sample(sample)


def wait_asked(samples: Sequence[Sample]) -> float:
    """Give how long the server asked to wait, in s; 0 where it refused nothing, 1 where it named no time."""
    refused = [sample for sample in samples if sample.ending is Ending.REFUSED]
    asked_s = (NO_RETRY_AFTER_S if sample.retry_after_s is None else sample.retry_after_s for sample in refused)
    return max(asked_s, default=0.0)


async def wait_out(samples: Sequence[Sample]) -> None:
    """Wait for as long as the server asked, outside of any measured time; two minutes at most."""
    await asyncio.sleep(min(wait_asked(samples), MOST_WAIT_S))


@asynccontextmanager
async def _watch_client() -> AsyncIterator[Callable[[], ClientLoad]]:
    """Look at the event loop's lag and the process's CPU time for the time of a block."""
    loop = asyncio.get_running_loop()
    lags_s: list[float] = []
    start_s, start_cpu_s = loop.time(), time.process_time()

    async def tick() -> None:
        due_s = loop.time()
        while True:
            due_s = max(due_s, loop.time()) + TICK_S
            await asyncio.sleep(due_s - loop.time())
            lags_s.append(max(loop.time() - due_s, 0.0))

    def load() -> ClientLoad:
        wall_s = loop.time() - start_s
        cpu_s = time.process_time() - start_cpu_s
        lags = np.array(lags_s or [0.0])
        return ClientLoad(
            lag_mean_s=float(lags.mean()),
            lag_p99_s=float(np.quantile(lags, 0.99, method="median_unbiased")),
            late_share=float(lags.sum()) / wall_s if wall_s else 0.0,
            cpu_share=cpu_s / wall_s if wall_s else 0.0,
        )

    ticking = asyncio.create_task(tick())
    try:
        yield load
    finally:
        ticking.cancel()
