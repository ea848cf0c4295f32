"""The concurrency sweep: rounds of 1, 2, 4, 8, ... workers, until the endpoint's limit is known."""

import asyncio
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

from occupancy.analysis.baseline import Baseline
from occupancy.analysis.capacity import find_capacity, is_limit_known
from occupancy.analysis.samples import Ending, Round, Sample
from occupancy.errors import InputError
from occupancy.probe.client import Opener, take_sample
from occupancy.probe.errors import UnreachableError
from occupancy.probe.rounds import MOST_WAIT_S, RoundRun, wait_asked, wait_out

DOUBLINGS = (1, 2, 4, 8, 16, 32)
PRECISION = 0.03
"""Standard error of a level's rate, as a share, from which on more requests are not worth their cost."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """How to sweep.

    Raises:
        InputError: A value cannot be used; names it.
    """

    levels: tuple[int, ...] | None = None
    """Numbers of workers; None for 1, 2, 4, ... with a refinement at the plateau."""
    least_requests: int = 20
    """Requests of a level, at the least."""
    most_requests: int = 64
    """At the most, but for two for each worker."""
    per_worker: int = 4
    """Requests for each worker; two suffice where latencies hardly vary."""
    end_requests: int = 10
    """One at a time again, at the end; 0 for none."""
    max_requests: int | None = None
    """Of the whole sweep: levels that would go over it are left out."""
    timeout_s: float = 60.0
    """For one request, from issue to last byte."""
    level_timeout_s: float = 600.0
    """For one level."""

    def __post_init__(self) -> None:
        for name in ("least_requests", "most_requests", "per_worker", "timeout_s", "level_timeout_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"{name} must be a number above 0, not {getattr(self, name)!r}")
        if self.levels is not None and (not self.levels or min(self.levels) < 1):
            raise InputError(f"levels must be numbers of workers from 1 on, not {list(self.levels)!r}")
        if self.max_requests is not None and self.max_requests < self.requests_of(1) + 1:
            raise InputError(
                f"max_requests must be at least {self.requests_of(1) + 1}, a warm-up and one level, "
                f"not {self.max_requests!r}"
            )

    def requests_of(self, workers: int, variation: float = math.inf) -> int:
        """Give the requests of a level: whole rounds of its workers, so that none stands idle in the last.

        Args:
            workers: Requests at once.
            variation: Standard deviation of one latency as a share of its mean, where it is known: with little of it,
                fewer requests behind a full line are as precise.
        """
        wanted = self.per_worker * workers
        if variation < math.inf:
            wanted = min(wanted, workers + math.ceil((variation / PRECISION) ** 2))
        wanted = min(max(self.least_requests, wanted), self.most_requests)
        return math.ceil(max(wanted, min(self.per_worker, 2) * workers) / workers) * workers

    @property
    def workers(self) -> tuple[int, ...]:
        """Levels in the order in which they are measured, the single worker first."""
        return tuple(sorted({1, *(DOUBLINGS if self.levels is None else self.levels)}))

    @property
    def most_planned(self) -> int:
        """Requests of the whole sweep if it stops nowhere early."""
        refined = max(map(self.requests_of, range(1, self.workers[-1] + 1))) if self.levels is None else 0
        total = 1 + sum(map(self.requests_of, self.workers)) + refined + self.end_requests
        return total if self.max_requests is None else min(total, self.max_requests)


class Sweep:
    """A sweep under way: it may be stopped at any time, and tells what it has measured.

    Args:
        open_request: Gives the request that is swept.
        options: How to sweep.
        done: Complete rounds of an earlier sweep, which are not measured again.
        on_level: Told when a level begins: its workers and requests.
        on_sample: Told of each request that has ended.
    """

    def __init__(
        self,
        open_request: Opener,
        options: SweepOptions,
        *,
        done: Sequence[Round] = (),
        on_level: Callable[[int, int], None] | None = None,
        on_sample: Callable[[Sample], None] | None = None,
    ) -> None:
        self.options = options
        self.rounds: list[Round] = [r for r in done if r.is_complete]
        """Complete rounds, one for each number of workers."""
        self.end: Round | None = None
        """One worker again."""
        self.partial: Round | None = None
        """The round that was interrupted."""
        self.warm_up: Sample | None = None
        self.notes: list[str] = []
        """What was left out, and why."""
        self.sent = 0
        """Requests of this run."""
        self.wall_s = 0.0
        self.origin_s = 0.0
        """Second 0 of the samples, on the event loop's clock."""
        self._open = open_request
        self._on_level = on_level
        self._on_sample = on_sample

    async def run(self) -> None:
        """Measure all levels.

        Raises:
            UnreachableError: The warm-up got no answer that can be used.
        """
        self.origin_s = asyncio.get_running_loop().time()
        try:
            await self._warm_up()
            for workers in self._plan():
                if not await self._measure(workers):
                    break
            await self._measure_end()
        finally:
            self.wall_s = asyncio.get_running_loop().time() - self.origin_s

    async def _warm_up(self) -> None:
        async with self._open(1) as request:
            for _ in range(2):
                sample = self.warm_up = await take_sample(request, 0, self.options.timeout_s, self.origin_s)
                self.sent += 1
                if sample.is_ok:
                    return
                if sample.ending is not Ending.REFUSED or (sample.retry_after_s or math.inf) > MOST_WAIT_S:
                    break
                await self._wait_out([sample])
        raise UnreachableError(f"the first request failed: {sample.error or sample.ending}")

    def _plan(self) -> Iterator[int]:
        """Give the next level, once the last has been measured, until the limit is known."""
        measured = {r.workers for r in self.rounds}
        for workers in self.options.workers:
            if workers not in measured:
                yield workers
            if self._is_limit_known(workers):
                break
        if self.options.levels is None:
            refined = self._refinement()
            if refined is not None:
                yield refined

    def _is_limit_known(self, workers: int) -> bool:
        found = find_capacity(self.rounds)
        if self.options.levels is None:
            return is_limit_known(found)
        return found.over_limit_at is not None and found.over_limit_at <= workers

    def _refinement(self) -> int | None:
        """Give the level at the plateau itself, where it has not been measured and could be recommended."""
        found = find_capacity(self.rounds)
        workers = round(found.fit.plateau or 0)
        return workers if workers > found.recommended and all(r.workers != workers for r in self.rounds) else None

    async def _measure(self, workers: int) -> bool:
        """Measure one level; False where the number of requests would be too large."""
        single = next((r for r in self.rounds if r.workers == 1), None)
        n = self.options.requests_of(workers, math.inf if single is None else Baseline.of(single).variation)
        if self._left() < n:
            self.notes.append(f"{workers} workers left out: {n} requests more than --max-requests allows")
            return False
        self.rounds.append(await self._run_round(workers, n))
        await self._wait_out(self.rounds[-1].samples)
        return True

    async def _measure_end(self) -> None:
        n = min(self.options.end_requests, int(min(self._left(), 2**31)))
        if n and len(self.rounds) > 1:
            self.end = await self._run_round(1, n)

    async def _run_round(self, workers: int, n: int) -> Round:
        if self._on_level is not None:
            self._on_level(workers, n)
        run = RoundRun(
            workers,
            n,
            timeout_s=self.options.timeout_s,
            deadline_s=self.options.level_timeout_s,
            origin_s=self.origin_s,
            on_sample=self._on_sample,
        )
        measured = None
        try:
            async with self._open(workers) as request:
                measured = await run.run(request)
            return measured
        finally:
            kept = measured or run.so_far()
            self.sent += len(kept.samples)
            self.partial = None if measured else kept

    async def _wait_out(self, samples: Sequence[Sample]) -> None:
        """Wait for as long as the server asked, outside of any measured time."""
        if (asked_s := wait_asked(samples)) > MOST_WAIT_S:
            self.notes.append(f"the server asked to wait {asked_s:g} s; only {MOST_WAIT_S:g} s were waited")
        await wait_out(samples)

    def _left(self) -> float:
        return math.inf if self.options.max_requests is None else self.options.max_requests - self.sent
