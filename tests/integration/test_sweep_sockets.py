"""Sweeps over real sockets, of gateways whose capacity is known."""

import asyncio
import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest

import mock_server
from occupancy.analysis.levels import Label
from occupancy.probe.api import sweep
from occupancy.probe.client import Answer
from occupancy.probe.sweep import SweepOptions
from occupancy.probe.sweep_result import SweepResult
from occupancy.probe.target import Api, Target

pytestmark = pytest.mark.alone

SERVICE_S = 0.15


@contextlib.contextmanager
def gateway_of(*options: str) -> Iterator[str]:
    """A gateway in a process of its own, as a server is: its work must not make the client late."""
    command = [sys.executable, "-m", "mock_server", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield re.findall(r"http://\S+", line)[0]
        finally:
            process.terminate()


def swept(url: str, options: SweepOptions | None = None, **target: Any) -> SweepResult:
    target.setdefault("model", "mock")
    return asyncio.run(sweep(Target(url=url, **target), options=options or SweepOptions()))


@pytest.mark.timeout(180)
@pytest.mark.parametrize("jitter", [0.0, 0.25])
@pytest.mark.parametrize("slots", [1, 2, 3, 6])
def test_finds_the_capacity_within_the_reported_error(slots: int, jitter: float) -> None:
    with gateway_of("--capacity", str(slots), "--service", str(SERVICE_S), "--jitter", str(jitter)) as url:
        result = swept(url)
    fit = result.capacity.fit
    assert fit.capacity is not None, result
    assert fit.error99 is not None
    assert abs(fit.capacity - slots) <= fit.error99 < 0.25 * slots, result
    # 7 workers on 6 slots: 0.86 each, parallel by definition
    assert result.recommended in ((6, 7) if slots == 6 and jitter else (slots,)), result
    assert (Label.SERIAL in result.labels) == (slots == 1)
    assert result.log is not None
    assert result.log.peak >= 2 * slots  # every request of the sweep was traced


@pytest.mark.timeout(180)
def test_no_limit_is_found_where_there_is_none() -> None:
    with gateway_of("--service", str(SERVICE_S)) as url:
        result = swept(url, SweepOptions(levels=(1, 2, 4, 8)))
    assert is_unlimited(result), result


def is_unlimited(result: SweepResult) -> bool:
    """No limit is named: what is not worked on in parallel is told to be this client's doing."""
    parallel = all(level.is_client_bound or Label.PARALLEL in level.labels for level in result.capacity.levels)
    return result.capacity.fit.capacity is None and parallel


def test_ten_accepted_connections_of_which_one_is_worked_on_are_serial() -> None:
    with gateway_of("--capacity", "1", "--service", "0.05") as url:
        result = swept(url, SweepOptions(levels=(1, 10)))
        assert httpx2.get(f"{url}/stats").json()["peak"] == 10
    assert result.labels[0] == Label.SERIAL
    assert result.recommended == 1
    assert str(result).splitlines()[1].startswith("serial: ")


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "options",
    [["--cache-speedup", "3"], ["--cold", "0.6"]],
    ids=["prefix cache", "cold start"],
)
@pytest.mark.parametrize("nonce", [True, False])
def test_what_is_no_limit_is_not_taken_for_one(options: list[str], nonce: bool) -> None:
    with gateway_of("--service", str(SERVICE_S), *options) as url:
        result = swept(url, SweepOptions(levels=(1, 2, 4)), nonce=nonce)
    assert is_unlimited(result), result
    assert "unstable" not in result.labels


def test_drift_is_called_unstable() -> None:
    with gateway_of("--service", "0.05", "--drift", "0.02") as url:
        result = swept(url, SweepOptions(levels=(1, 4)))
    assert "unstable" in result.labels
    assert not result.is_valid


def test_a_slow_client_is_not_taken_for_a_limit() -> None:
    with gateway_of("--service", "0.1") as url:

        async def main() -> SweepResult:
            async with httpx2.AsyncClient() as client:

                async def request() -> None:
                    time.sleep(0.04)  # noqa: ASYNC251 - a client that is busy with itself
                    await client.post(f"{url}/v1/chat/completions", json={"model": "mock"})

                return await sweep(request, options=SweepOptions(levels=(1, 2, 8), end_requests=0))

        result = asyncio.run(main())
    assert result.capacity.levels[-1].labels == (Label.CLIENT_BOUND,)
    assert result.capacity.fit.capacity is None
    assert "client-bound" in str(result)


def sdk_swept(url: str, max_retries: int, options: SweepOptions) -> SweepResult:
    messages: Any = [{"role": "user", "content": "ok?"}]

    async def main() -> SweepResult:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=max_retries) as client:

            async def request() -> object:
                return await client.chat.completions.create(model="mock", messages=messages)

            return await sweep(request, options=options)

    return asyncio.run(main())


@pytest.mark.timeout(180)
def test_an_sdk_as_the_callable_agrees() -> None:
    options = SweepOptions(levels=(1, 2, 4))
    with gateway_of("--capacity", "2", "--service", str(SERVICE_S)) as url:
        plain = swept(url, options)
        sdk = sdk_swept(url, 0, options)
    for result in (plain, sdk):
        fit = result.capacity.fit
        assert fit.capacity is not None, result
        assert abs(fit.capacity - 2) <= (fit.error99 or 0), result
    assert sdk.recommended == plain.recommended == 2
    assert sdk.capacity.baseline.own_s > plain.capacity.baseline.own_s  # the SDK's work is no part of the endpoint
    assert sdk.log is not None
    assert len(sdk.log.calls) == sdk.sent


@pytest.mark.timeout(180)
def test_retries_of_an_sdk_hide_refusals_and_are_told() -> None:
    options = SweepOptions(levels=(1, 2, 4), end_requests=0)
    with gateway_of("--capacity", "2", "--queue", "0", "--service", "0.1", "--retry-after", "0.2") as url:
        off = sdk_swept(url, 0, options)
        on = sdk_swept(url, 8, options)
    assert off.capacity.over_limit_at == 4
    assert on.capacity.levels[-1].n_refused == 0
    assert any("retries are hidden" in note for note in on.notes)
    assert not any("retries are hidden" in note for note in off.notes)


@pytest.mark.parametrize("buffer", [False, True])
@pytest.mark.parametrize("api", [Api.OPENAI, Api.ANTHROPIC])
def test_streams_give_their_first_byte(api: Api, buffer: bool) -> None:
    with gateway_of("--service", "0.2", *(["--buffer"] if buffer else [])) as url:
        result = swept(url, SweepOptions(levels=(1, 2), least_requests=4, end_requests=0), api=api, stream=True)
    sample = result.rounds[0].samples[-1]
    assert sample.is_ok
    assert sample.first_byte_s is not None
    assert sample.first_event_s is not None
    assert (sample.end_s - sample.first_byte_s > 0.1) == (not buffer)  # four pieces, each after a quarter of 0.2 s
    assert sample.output_tokens == 4


# The gateway itself


def test_the_gateway_refuses_in_the_words_of_each_api() -> None:
    limits = mock_server.Limits(rpm=1, retry_after_s=7.2)
    for path, kind in (("/v1/chat/completions", "rate_limit_error"), ("/v1/messages", "rate_limit_error")):
        with mock_server.serve(limits=limits) as url:
            answers = [httpx2.post(f"{url}{path}", json={"model": "m"}) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 429]
        assert answers[1].headers["retry-after"] == "8"
        assert answers[1].headers["retry-after-ms"] == "7200"
        assert answers[1].json()["error"]["type"] == kind


def test_the_gateway_gives_up_after_its_time_out() -> None:
    with mock_server.serve(limits=mock_server.Limits(service_s=5.0, timeout_s=0.05)) as url:
        assert httpx2.post(f"{url}/v1/chat/completions", json={"model": "m"}).status_code == 504


@pytest.mark.parametrize("keep_working", [False, True])
def test_a_client_that_leaves_frees_its_slot_or_not(keep_working: bool) -> None:
    limits = mock_server.Limits(capacity=1, service_s=0.5, keep_working=keep_working)
    with mock_server.serve(limits=limits) as url:
        address = f"{url}/v1/chat/completions"
        with contextlib.suppress(httpx2.TimeoutException):
            httpx2.post(address, json={"model": "m"}, timeout=0.1)
        url.wait_in_flight(0)
        started_s = time.monotonic()
        assert httpx2.post(address, json={"model": "m"}).status_code == 200
        took_s = time.monotonic() - started_s
    assert took_s >= (0.75 if keep_working else 0.5)


def test_the_gateway_names_options_that_do_not_fit() -> None:
    command = [sys.executable, "-m", "mock_server", "--capacity", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2
    assert "capacity must be a number >= 1, got 0" in ended.stderr


def test_a_callable_may_answer_with_any_object() -> None:
    async def main() -> SweepResult:
        async def request() -> Answer:
            await asyncio.sleep(0.01)
            return Answer(status=200)

        return await sweep(request, levels=[1, 2], least_requests=4, end_requests=0)

    assert asyncio.run(main()).recommended == 2
