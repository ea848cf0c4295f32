"""`occupancy.sweep` and `occupancy.latency_budget`: measure from a program, a notebook or a test."""

import asyncio
import dataclasses
import datetime
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from occupancy import capture
from occupancy.analysis.latency_budget import Budget, Measured
from occupancy.analysis.samples import Round, Sample
from occupancy.errors import InputError
from occupancy.formats.budget_json import Before
from occupancy.log import OccupancyLog
from occupancy.probe.budget import BudgetOptions, BudgetRun
from occupancy.probe.budget_result import BudgetResult, EnvironmentResult
from occupancy.probe.client import Opener, Request, opener_of
from occupancy.probe.errors import InvalidError, UnreachableError
from occupancy.probe.sweep import Sweep, SweepOptions
from occupancy.probe.sweep_result import Conditions, SweepResult
from occupancy.probe.target import Api, Target
from occupancy.probe.wire import with_wire_times

Swept = str | Target | Request
"""A URL, a target, or a coroutine function without arguments that sends one request."""


class SweepJob:
    """A sweep of one target, from the client to the result. It may be cancelled, and tells what was done until then.

    Args:
        swept: What to ask.
        options: How to sweep.
        done: Complete rounds of an earlier sweep.
        on_level: Told when a level begins: its workers and requests.
        on_sample: Told of each request that has ended.
    """

    def __init__(
        self,
        swept: Target | Request,
        options: SweepOptions,
        *,
        done: Sequence[Round] = (),
        on_level: Callable[[int, int], None] | None = None,
        on_sample: Callable[[Sample], None] | None = None,
    ) -> None:
        self._swept = swept
        self._options = options
        self._done = done
        self._sweep = Sweep(self._open, options, done=done, on_level=on_level, on_sample=on_sample)
        self._opener: Opener | None = None
        self._measured_at = now()
        self._log: OccupancyLog | None = None

    async def run(self) -> None:
        """Measure.

        Raises:
            UnreachableError: The first request got no answer that can be used.
        """
        with capture.record() as self._log:
            async with opened(self._swept, self._options.workers[-1]) as self._opener:
                await self._sweep.run()

    def result(self, *, is_interrupted: bool = False) -> SweepResult:
        """Give what has been measured.

        Raises:
            InvalidError: That is not even one level with a good answer.
        """
        sweep = self._sweep
        calls = [] if self._log is None else self._log.calls
        retries = sum(call.attempt > 0 for call in calls)
        hidden = [f"{retries} retries are hidden in these latencies: measure with the client's own retries off"]
        try:
            return SweepResult(
                conditions=conditions_of(self._swept),
                rounds=tuple(r if r in self._done else with_wire_times(r, calls, sweep.origin_s) for r in sweep.rounds),
                end=None if sweep.end is None else with_wire_times(sweep.end, calls, sweep.origin_s),
                warm_up=sweep.warm_up,
                measured_at=self._measured_at,
                wall_s=sweep.wall_s,
                sent=sweep.sent,
                partial=sweep.partial,
                notes=(*sweep.notes, *(hidden if retries else [])),
                is_interrupted=is_interrupted,
                log=self._log,
            )
        except ValueError as error:
            raise InvalidError(f"nothing to judge: {error}") from None

    def _open(self, workers: int) -> Any:
        if self._opener is None:
            raise InvalidError("the sweep is not running")
        return self._opener(workers)


async def sweep(
    target: Swept, *, model: str | None = None, api: str = Api.OPENAI, options: SweepOptions | None = None, **more: Any
) -> SweepResult:
    """Measure how many requests an endpoint works on at once.

    Args:
        target: A URL, a `Target`, or a coroutine function without arguments, such as an SDK's call or a whole agent.
        model: The model to ask, with a URL.
        api: `openai` or `anthropic`, with a URL.
        options: How to sweep.
        **more: Fields of `SweepOptions`, in place of `options`; with a URL also fields of `Target`.

    Returns:
        The result; `result.recommended` is the number of workers to use.

    Raises:
        InputError: An argument cannot be used.
        UnreachableError: The first request got no answer that can be used.
        InvalidError: There was nothing to judge.
    """
    names = {field.name for field in dataclasses.fields(SweepOptions)}
    given = {name: more.pop(name) for name in list(more) if name in names}
    if options is not None and given:
        raise InputError(f"give either options or {', '.join(given)}")
    job = SweepJob(_swept(target, model, api, more), options or SweepOptions(**_tuples(given)))
    await job.run()
    return job.result()


async def latency_budget(
    environments: "Swept | Mapping[str, Swept]",
    *,
    p95_s: float = 3.0,
    errors: float = 0.01,
    model: str | None = None,
    api: str = Api.OPENAI,
    before: Mapping[str, Before] | None = None,
    **more: Any,
) -> BudgetResult:
    """Measure whether environments keep a latency budget, one after another.

    Args:
        environments: What to ask, as in `sweep`; several by name, the cheapest first.
        p95_s: Must be above the p95 of warm and of concurrent requests, in s.
        errors: Must be above the share of failed requests.
        model: The model to ask, with URLs.
        api: `openai` or `anthropic`, with URLs.
        before: Environments of an earlier measurement by name, to compare with.
        **more: Fields of `BudgetOptions`; with URLs also fields of `Target`.

    Returns:
        The result; `assert result.passed`.

    Raises:
        InputError: An argument cannot be used.
    """
    names = {field.name for field in dataclasses.fields(BudgetOptions)}
    given = {name: more.pop(name) for name in list(more) if name in names}
    options = BudgetOptions(budget=Budget(p95_s=p95_s, errors=errors), **given)
    named = environments if isinstance(environments, Mapping) else {"endpoint": environments}
    job = BudgetJob({name: (_swept(one, model, api, more), options) for name, one in named.items()}, before=before)
    await job.run()
    return job.result()


class BudgetJob:
    """Environments measured one after another. It may be cancelled, and tells what was done until then.

    Args:
        environments: What to ask and how, by name, the cheapest first.
        before: Environments of an earlier measurement, to compare with.
        on_environment: Told when one begins: its name and requests.
        on_sample: Told of each request that has ended.
    """

    def __init__(
        self,
        environments: Mapping[str, tuple[Target | Request, BudgetOptions]],
        *,
        before: Mapping[str, Before] | None = None,
        on_environment: Callable[[str, int], None] | None = None,
        on_sample: Callable[[Sample], None] | None = None,
    ) -> None:
        if not environments:
            raise InputError("there is no environment to measure")
        self._environments = environments
        self._before = before or {}
        self._on_environment = on_environment
        self._on_sample = on_sample
        self._results: list[EnvironmentResult] = []
        self._measured_at = now()
        self._wall_s = 0.0
        self._log: OccupancyLog | None = None

    async def run(self) -> None:
        """Measure all; one that cannot be reached does not keep the others from it."""
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        with capture.record() as self._log:
            for name, (asked, options) in self._environments.items():
                if self._on_environment is not None:
                    self._on_environment(name, options.requests)
                try:
                    await self._measure(name, asked, options)
                finally:
                    self._wall_s = loop.time() - start_s

    def result(self, *, is_interrupted: bool = False) -> BudgetResult:
        """Give the environments that have been measured, the last one incomplete where it was interrupted."""
        return BudgetResult(
            environments=tuple(self._results),
            measured_at=self._measured_at,
            wall_s=self._wall_s,
            is_interrupted=is_interrupted,
            log=self._log,
        )

    async def _measure(self, name: str, asked: Target | Request, options: BudgetOptions) -> None:
        """Measure one environment; what was measured of it is kept when it is cancelled."""
        run = BudgetRun(options, self._on_sample)
        try:
            async with opened(asked, options.concurrent) as opener:
                await run.run(opener)
        except UnreachableError as unreachable:
            self._keep(name, asked, options, None, error=str(unreachable))
        except asyncio.CancelledError:
            if run.so_far().all:
                self._keep(name, asked, options, run.so_far(), is_complete=False)
            raise
        else:
            self._keep(name, asked, options, run.so_far())

    def _keep(
        self, name: str, asked: Target | Request, options: BudgetOptions, measured: Measured | None, **more: Any
    ) -> None:
        conditions, before = conditions_of(asked), self._before.get(name)
        self._results.append(
            EnvironmentResult(
                name=name,
                conditions=conditions,
                budget=options.budget,
                measured=measured,
                before=() if before is None else before.warm,
                warnings=() if before is None else tuple(differences(conditions, before)),
                **more,
            )
        )


def differences(conditions: Conditions, before: Before) -> list[str]:
    """Say why an earlier measurement may not be comparable: other conditions, or its age."""
    now_fields = dataclasses.asdict(conditions)
    told = [
        f"compared with another {name}: {before.conditions.get(name)!r} then, {value!r} now"
        for name, value in now_fields.items()
        if before.conditions.get(name) != value
    ]
    age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(before.measured_at)
    return told + ([f"compared with a measurement of {age.days} days ago"] if age.days > 7 else [])


@asynccontextmanager
async def opened(swept: Target | Request, workers: int) -> AsyncIterator[Opener]:
    """Open a target's client, or take a callable as it is."""
    if not isinstance(swept, Target):
        yield opener_of(swept)
        return
    from occupancy.probe.http_client import open_target

    async with open_target(swept, workers) as opener:
        yield opener


def conditions_of(swept: Target | Request) -> Conditions:
    """Give what a result will hold for."""
    if not isinstance(swept, Target):
        return Conditions(target=getattr(swept, "__qualname__", type(swept).__qualname__), nonce=True)
    is_plain = swept.api is Api.PLAIN
    return Conditions(
        target=swept.shown_url,
        model=swept.model,
        stream=swept.stream,
        nonce=swept.nonce,
        prompt_chars=None if is_plain else len(swept.prompt),
        max_tokens=None if is_plain else swept.max_tokens,
        region=swept.region,
        place=swept.place,
    )


def now() -> str:
    """Give the time as ISO 8601 with its zone."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _swept(target: Swept, model: str | None, api: str, more: dict[str, Any]) -> Target | Request:
    if isinstance(target, str):
        if api not in list(Api):
            raise InputError(f"api must be one of {', '.join(Api)}, not {api!r}")
        try:
            return Target(url=target, model=model, api=Api(api), **more)
        except TypeError as error:
            raise InputError(f"an argument is not known: {str(error).rpartition('argument ')[2]}") from None
    if more:
        raise InputError(f"arguments are not known: {', '.join(more)}")
    return target


def _tuples(given: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
