"""Latency budgets: verdicts at the edge, what few samples prove, and the measurement on a virtual clock."""

import asyncio
import dataclasses
import datetime
import json
import math
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from mock_server.admission import Desk, OverdueError
from mock_server.gateway import Limits, RefusedError
from mock_server.virtual_time import run
from occupancy.analysis.latency import (
    Evidence,
    binomial_at_most,
    calls_to_prove,
    evidence,
    quantile,
    upper_bound,
    weakest,
)
from occupancy.analysis.latency_budget import Budget, Measured, check_p95, compare, judge
from occupancy.analysis.samples import ClientLoad, Ending, Sample
from occupancy.errors import InputError, ReadError
from occupancy.formats.budget_json import read_before
from occupancy.formats.junit import to_junit
from occupancy.probe.api import BudgetJob, latency_budget
from occupancy.probe.budget import BudgetOptions
from occupancy.probe.budget_file import read_budget
from occupancy.probe.client import Answer
from occupancy.views.probe_budget import budget_report, markdown


def samples(*latencies_s: float, ending: Ending = Ending.OK) -> tuple[Sample, ...]:
    return tuple(
        Sample(number=number, start_s=0.0, end_s=end_s, ending=ending) for number, end_s in enumerate(latencies_s)
    )


def measured(warm: tuple[Sample, ...], concurrent: tuple[Sample, ...] | None = None, **more: Any) -> Measured:
    burst = samples(*[1.0] * 10) if concurrent is None else concurrent
    return Measured(cold=samples(9.0)[0], warm=warm, concurrent=burst, **more)


# What few samples prove


def test_figures_that_are_known() -> None:
    assert [calls_to_prove(0.05, bad) for bad in range(4)] == [59, 93, 124, 153]
    assert calls_to_prove(0.01) == 299
    assert upper_bound(0, 20) == pytest.approx(1 - 0.05 ** (1 / 20))
    assert upper_bound(0, 20) == pytest.approx(0.139, abs=5e-4)
    assert (upper_bound(20, 20), upper_bound(0, 0)) == (1.0, 1.0)
    assert pytest.approx(0.64, abs=0.002) == 1 - 0.95**20  # P(max >= q95) with n = 20


def test_the_binomial_is_exact() -> None:
    assert binomial_at_most(2, 4, 0.5) == 11 / 16
    assert binomial_at_most(-1, 4, 0.5) == 0.0
    assert binomial_at_most(9, 4, 0.5) == 1.0


@pytest.mark.parametrize(
    ("bad", "n", "share", "expected"),
    [
        (0, 58, 0.05, Evidence.CONSISTENT),
        (0, 59, 0.05, Evidence.PROVEN),
        (1, 92, 0.05, Evidence.CONSISTENT),
        (1, 93, 0.05, Evidence.PROVEN),
        (3, 20, 0.05, Evidence.CONSISTENT),  # P(X >= 3) = 0.075
        (4, 20, 0.05, Evidence.CONTRADICTED),  # 0.016
        (0, 298, 0.01, Evidence.CONSISTENT),
        (0, 299, 0.01, Evidence.PROVEN),
        (1, 31, 0.01, Evidence.CONSISTENT),
        (2, 31, 0.01, Evidence.CONTRADICTED),
        (0, 0, 0.05, Evidence.CONSISTENT),
    ],
)
def test_evidence_at_the_edge(bad: int, n: int, share: float, expected: Evidence) -> None:
    assert evidence(bad, n, share) is expected


def test_evidence_for_several_claims() -> None:
    assert weakest([Evidence.PROVEN, Evidence.PROVEN]) is Evidence.PROVEN
    assert weakest([Evidence.PROVEN, Evidence.CONSISTENT]) is Evidence.CONSISTENT
    assert weakest([Evidence.PROVEN, Evidence.CONTRADICTED]) is Evidence.CONTRADICTED


@pytest.mark.parametrize("n", [20, 31, 100])
@pytest.mark.parametrize("share", [0.01, 0.05, 0.2])
def test_bounds_cover_what_they_claim(n: int, share: float) -> None:
    """A 95 % bound must lie above the truth in 95 % of the cases, and a proof be wrong in 5 % at most."""
    bad = np.random.default_rng(5).binomial(n, share, 4000).tolist()
    bounds = {k: upper_bound(k, n) for k in set(bad)}
    by_chance = 3 * math.sqrt(0.05 * 0.95 / 4000)
    assert np.mean([bounds[k] >= share for k in bad]) >= 0.95 - by_chance
    for verdict in (Evidence.PROVEN, Evidence.CONTRADICTED):
        # At the very edge neither claim is true by more than nothing: each may be wrong in 5 % of the cases.
        assert np.mean([evidence(k, n, share) is verdict for k in bad]) <= 0.05 + by_chance


# Percentiles


def test_time_outs_are_values_that_are_at_least_so_large() -> None:
    fast = samples(*[1.0] * 18)
    found = quantile(fast + samples(5.0, 5.0, ending=Ending.TIMEOUT), 0.95)
    assert found is not None
    assert (found.value_s, found.is_at_least, found.n) == (5.0, True, 20)
    median = quantile(fast + samples(5.0, 5.0, ending=Ending.TIMEOUT), 0.5)
    assert median is not None
    assert (median.value_s, median.is_at_least) == (1.0, False)


def test_a_time_out_is_slower_than_all_that_were_answered() -> None:
    found = quantile(samples(1.0, 7.0) + samples(5.0, ending=Ending.TIMEOUT), 1.0)
    assert found is not None
    assert (found.value_s, found.is_at_least) == (7.0, True)


def test_other_failures_are_no_latencies() -> None:
    assert quantile(samples(0.01, ending=Ending.ERROR), 0.5) is None
    assert quantile((), 0.5) is None
    found = quantile(samples(2.0) + samples(0.01, ending=Ending.HTTP_ERROR), 0.5)
    assert found is not None
    assert (found.value_s, found.n) == (2.0, 1)


# Verdicts


def test_a_p95_on_the_budget_fails() -> None:
    assert not check_p95("warm p95", samples(*[3.0] * 20), 3.0).passed
    assert check_p95("warm p95", samples(*[2.999] * 20), 3.0).passed


def test_one_slow_of_twenty_fails_though_it_proves_nothing() -> None:
    check = check_p95("warm p95", samples(*[1.0] * 19, 9.0), 3.0)
    assert check.value is not None
    assert check.value == pytest.approx(np.quantile([1.0] * 19 + [9.0], 0.95, method="median_unbiased"))
    assert (check.passed, check.evidence) == (False, Evidence.CONSISTENT)


def test_no_answer_at_all_fails() -> None:
    check = check_p95("warm p95", samples(1.0, ending=Ending.ERROR), 3.0)
    assert (check.value, check.passed, check.n) == (None, False, 0)


@pytest.mark.parametrize(("n_bad", "passed", "of"), [(0, True, "consistent"), (1, False, "consistent")])
def test_errors_of_thirty_one(n_bad: int, passed: bool, of: str) -> None:
    warm = samples(*[1.0] * (20 - n_bad)) + samples(*[0.1] * n_bad, ending=Ending.HTTP_ERROR)
    verdict = judge(measured(warm), Budget())
    check = verdict.checks[2]
    assert (check.passed, str(check.evidence), check.n) == (passed, of, 31)
    assert verdict.passed == passed


def test_the_budget_holds_for_concurrent_requests_too() -> None:
    verdict = judge(measured(samples(*[1.0] * 20), samples(*[float(i) for i in range(1, 11)])), Budget())
    assert [check.passed for check in verdict.checks] == [True, False, True]
    assert verdict.cold_s == 9.0  # the cold start is shown, and judged by nothing
    assert verdict.stages.slowest is None  # nobody looked


def test_a_slow_client_makes_the_measurement_invalid() -> None:
    late = ClientLoad(lag_mean_s=0.1, lag_p99_s=0.2)
    verdict = judge(measured(samples(*[3.1] * 20), client=late), Budget())
    assert verdict.invalid == "warm p95 is over by less than this client was late itself (up to 200 ms)"
    assert judge(measured(samples(*[3.3] * 20), client=late), Budget()).invalid is None  # too slow all the same
    assert judge(measured(samples(*[2.9] * 20), client=late), Budget()).invalid is None  # it would only be faster


def test_a_buffered_stream_is_told() -> None:
    held = [dataclasses.replace(sample, first_byte_s=0.99) for sample in samples(*[1.0] * 20)]
    flowing = [dataclasses.replace(sample, first_byte_s=0.25) for sample in samples(*[1.0] * 20)]
    assert judge(measured(tuple(held), ()), Budget(), stream=True).stages.is_buffered
    assert not judge(measured(tuple(held), ()), Budget(), stream=False).stages.is_buffered
    assert not judge(measured(tuple(flowing), ()), Budget(), stream=True).stages.is_buffered


def test_regressions() -> None:
    rng = np.random.default_rng(3)
    old, same, slower = (samples(*rng.normal(mean, 0.1, 20).tolist()) for mean in (1.0, 1.0, 1.5))
    for now, expected in ((same, False), (slower, True)):
        change = compare(old, now)
        assert change is not None
        assert change.is_regression == expected
    assert compare(old, samples(1.0)) is None


# The measurement, on a virtual clock


def measure(options: BudgetOptions | None = None, **limits: Any) -> Any:
    async def main() -> Any:
        desk = Desk(Limits(**limits))

        async def request() -> Answer:
            try:
                async with desk.admit() as ticket:
                    await asyncio.sleep(ticket.service_s)
            except RefusedError as error:
                return Answer(status=429, error="refused", retry_after_s=error.retry_after_s)
            except OverdueError:
                return Answer(status=504, error="overdue")
            return Answer(status=200)

        job = BudgetJob({"local": (request, options or BudgetOptions())})
        await job.run()
        return job.result()

    return run(main())


def test_five_numbers() -> None:
    result = measure(capacity=2, service_s=0.5, cold_s=4.0)
    verdict = result.environments[0].verdict
    assert (verdict.cold_s, verdict.warm_p50.value_s, verdict.warm_p95.value_s) == (4.5, 0.5, 0.5)
    assert verdict.concurrent_p95.value_s == 2.5
    assert (verdict.error_rate, verdict.n, result.passed) == (0.0, 31, True)
    assert result.exit_code() == 0
    assert result.exit_code(require_proof=True) == 3


def test_refusals_are_errors_and_do_not_end_the_measurement() -> None:
    result = measure(capacity=2, queue=0, service_s=0.5)
    verdict = result.environments[0].verdict
    assert (verdict.n, verdict.error_rate) == (31, pytest.approx(8 / 31))
    assert (result.passed, result.exit_code()) == (False, 1)
    assert "local: 8 x refused" in budget_report(result)


def test_a_refused_request_is_waited_out_before_the_next() -> None:
    result = measure(BudgetOptions(warm=4, concurrent=1), rpm=2, retry_after_s=70.0)
    warm = result.environments[0].measured.warm
    assert [sample.ending for sample in warm] == [Ending.OK, Ending.REFUSED, Ending.OK, Ending.OK]
    assert warm[2].start_s - warm[1].end_s == 70.0


def test_time_outs_count_as_slow() -> None:
    result = measure(BudgetOptions(timeout_s=4.0), capacity=1, service_s=1.0)
    verdict = result.environments[0].verdict
    assert verdict.concurrent_p95.is_at_least
    assert verdict.concurrent_p95.value_s == 4.0
    assert not result.passed


def test_proof_with_enough_requests() -> None:
    result = measure(BudgetOptions(budget=Budget(errors=0.05), warm=60, concurrent=60), service_s=0.5)
    assert result.environments[0].verdict.evidence is Evidence.PROVEN
    assert result.exit_code(require_proof=True) == 0


def test_idles_before_the_cold_request() -> None:
    result = measure(BudgetOptions(cold_after_s=100.0), service_s=0.5)
    assert result.wall_s == 111.0  # 100 of idling, 21 in a row, 10 at once


def several(**passing: bool) -> Any:
    async def main() -> Any:
        def request_of(service_s: float) -> Any:
            async def request() -> None:
                await asyncio.sleep(service_s)

            return request

        async def gone() -> None:
            raise ConnectionRefusedError("nobody there")

        named: dict[str, Any] = {name: request_of(0.5 if passes else 5.0) for name, passes in passing.items()}
        return await latency_budget({**named, "gone": gone})

    return run(main())


def test_the_cheapest_that_passes_is_named() -> None:
    result = several(free=False, paid=True)
    assert result.advice == "paid is the cheapest that keeps the budget"
    assert [one.exit_code() for one in result.environments] == [1, 0, 4]
    assert (result.exit_code(), result.exit_code(any_suffices=True)) == (4, 0)
    assert result.environments[2].error == "the first request failed: ConnectionRefusedError: nobody there"


def test_a_bigger_plan_buys_nothing_where_the_weakest_passes() -> None:
    assert several(free=True, paid=True).advice == "free keeps the budget: a bigger plan buys nothing"
    assert several(free=False).advice == "no environment keeps the budget"


def test_an_interrupted_measurement_keeps_what_it_has() -> None:
    async def main(after_s: float) -> Any:
        async def request() -> None:
            await asyncio.sleep(0.5)

        job = BudgetJob({name: (request, BudgetOptions()) for name in ("free", "paid", "best")})
        task = asyncio.create_task(job.run())
        await asyncio.sleep(after_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return job.result(is_interrupted=True)

    result = run(main(15.2))  # an environment takes 11 s; the second has had its cold request and seven warm ones
    free, paid = result.environments
    assert (free.word, paid.word) == ("pass", "incomplete")
    assert [len(part) for part in (paid.measured.all, paid.measured.warm, paid.measured.concurrent)] == [8, 7, 0]
    assert (paid.passed, result.passed, result.cheapest) == (False, False, free)
    assert (free.exit_code(), paid.exit_code()) == (0, 5)
    assert "paid: interrupted after 8 requests: what it would have shown is open" in budget_report(result)
    assert [one["is_complete"] for one in result.to_dict()["environments"]] == [True, False]
    assert ET.fromstring(to_junit(result))[1].get("errors") == "1"
    assert len(result.to_pandas()) == 31 + 8
    assert [one.name for one in run(main(0.3)).environments] == []  # nothing has ended yet
    nothing_passed = run(main(0.7))
    assert nothing_passed.advice == "interrupted: no environment was found to keep the budget"


def test_every_format_tells_the_same() -> None:
    result = several(free=False, paid=True)
    text = budget_report(result)
    assert "free: warm p95: 5.000 s, not below 3 s" in text
    assert "| paid | pass |" in markdown(result)
    suites = ET.fromstring(to_junit(result))
    assert [(s.get("tests"), s.get("failures"), s.get("errors")) for s in suites] == [
        ("3", "2", "0"),
        ("3", "0", "0"),
        ("1", "0", "1"),
    ]
    frame = result.to_pandas()
    assert frame.groupby(["environment", "phase"]).size().to_dict() == {
        (name, phase): n for name in ("free", "paid") for phase, n in (("cold", 1), ("warm", 20), ("concurrent", 10))
    }
    assert len(result.plot().get_lines()) >= 6


def test_json_is_read_back_as_the_baseline_of_a_comparison() -> None:
    result = several(free=False, paid=True)
    before = read_before(result.to_json(), "old.json")
    assert set(before) == {"free", "paid"}
    assert before["paid"].warm == result.environments[1].measured.warm
    old = dataclasses.replace(before["paid"], measured_at="2020-01-01T00:00:00+00:00")

    async def slower() -> None:
        await asyncio.sleep(0.7)

    now = run(latency_budget({"paid": slower}, before={"paid": old}))
    change = now.environments[0].change
    assert change is not None
    assert change.is_regression
    assert change.share == pytest.approx(0.4)
    age = (datetime.datetime.now(datetime.UTC) - datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)).days
    assert f"compared with a measurement of {age} days ago" in now.environments[0].warnings


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "old.json is no JSON"),
        ("[]", "old.json holds no latency budget"),
        (json.dumps({"schema": "occupancy.budget", "version": 2}), "version 2; this occupancy reads 1"),
        (json.dumps({"schema": "occupancy.budget", "version": 1}), "old.json is damaged: KeyError 'environments'"),
    ],
)
def test_other_files_are_no_baseline(text: str, told: str) -> None:
    with pytest.raises(ReadError, match=told):
        read_before(text, "old.json")


# The file

FILE = """
[budget]
p95_s = 2.0
warm = 30
[environments.local]
url = "http://127.0.0.1:1/v1"
model = "small"
[environments.paid]
url = "https://api.example.com"
model = "large"
api = "anthropic"
p95_s = 1.5
"""


def test_reads_environments_in_their_order() -> None:
    found = read_budget(FILE, "budget.toml", {"errors": 0.05})
    assert list(found) == ["local", "paid"]
    assert [target.full_url for target, _ in found.values()] == [
        "http://127.0.0.1:1/v1/chat/completions",
        "https://api.example.com/v1/messages",
    ]
    assert [options.budget for _, options in found.values()] == [
        Budget(p95_s=2.0, errors=0.05),
        Budget(p95_s=1.5, errors=0.05),
    ]
    assert [options.warm for _, options in found.values()] == [30, 30]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x", "budget.toml is no TOML"),
        ("[budget]", "names no environment"),
        ("[other]", "unknown table 'other'"),
        ("[environments.a]\nmodel = 'm'", "environments.a: a url is needed"),
        ("[environments.a]\nurl = 'http://h'", "environments.a: a model is needed"),
        ("[environments.a]\nurl = 'h'\nmodel = 'm'", "'h' is no http or https URL"),
        ("[environments.a]\nurl = 'http://h'\nmodel = 'm'\ncolour = 1", "unknown key 'colour'"),
        ("[environments.a]\nurl = 'http://h'\nmodel = 'm'\nkey_env = 'NOT_SET_1'", "NOT_SET_1 holds no key"),
        ("[environments.a]\nurl = 'http://h'\nmodel = 'm'\napi = 'x'", "api must be one of"),
        ("[environments.a]\nurl = 'http://h'\nmodel = 'm'\np95_s = '3'", "wrong type"),
        ("[environments.a]\nurl = 'http://h'\nmodel = 'm'\np95_s = 40.0", "timeout_s must be above the budget of 40 s"),
        ("[environments.a]\nurl = 'http://h'\nmodel = 'm'\nerrors = 0.0", "errors must be a share above 0"),
    ],
)
def test_bad_files_are_told_with_their_place(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        read_budget(text, "budget.toml", {})
