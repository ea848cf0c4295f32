"""The SDKs of OpenAI and Anthropic against the mock server: their calls, their retries, and none of their secrets."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest

import occupancy
from occupancy import OccupancyLog

SECRET = "sk-Sesame-7421"
PROMPT = "my prompt is nobody's business"
ASKED = [{"role": "user", "content": PROMPT}]
SECRETS = (SECRET, PROMPT, "prompt-in-the-query", "header-secret")


def options(gateway: Any, **headers: str) -> dict[str, Any]:
    return {
        "api_key": SECRET,
        "default_headers": {"x-secret": "header-secret", **headers},
        "default_query": {"q": "prompt-in-the-query"},
    }


async def finish(value: Any) -> Any:
    return await value if hasattr(value, "__await__") else value


async def everything(stream: Any) -> list[Any]:
    if hasattr(stream, "__aiter__"):
        return [event async for event in stream]
    return list(stream)


@pytest.fixture(params=["sync", "async"])
def flavour(request: pytest.FixtureRequest, fresh: None) -> str:
    return str(request.param)


def make_openai(flavour: str, gateway: Any, **extra: Any) -> Any:
    headers = extra.pop("headers", {})
    kind = openai.OpenAI if flavour == "sync" else openai.AsyncOpenAI
    return kind(base_url=f"{gateway}/v1", **options(gateway, **headers), **extra)


def make_anthropic(flavour: str, gateway: Any, **extra: Any) -> Any:
    headers = extra.pop("headers", {})
    kind = anthropic.Anthropic if flavour == "sync" else anthropic.AsyncAnthropic
    return kind(base_url=gateway, **options(gateway, **headers), **extra)


def record(use: Callable[[], Any]) -> tuple[Any, OccupancyLog]:
    """Run without us and with us; the same must come out."""
    without = asyncio.run(use())
    with occupancy.record() as log:
        seen = asyncio.run(use())
    assert seen == without
    assert log.in_flight == 0
    text = repr(log.calls) + repr(log.columns())
    assert not [secret for secret in SECRETS if secret in text]
    return seen, log


def outcomes(log: OccupancyLog) -> list[tuple[str, int | None, int]]:
    return [(str(call.outcome), call.status, call.attempt) for call in log.calls]


async def close(client: Any) -> None:
    await finish(client.close())


def test_openai_chat(flavour: str, gateway: Any) -> None:
    async def use() -> Any:
        client = make_openai(flavour, gateway)
        answer = await finish(client.chat.completions.create(model="gpt-test", messages=ASKED))
        await close(client)
        return answer.choices[0].message.content

    seen, log = record(use)
    assert seen
    (call,) = log.calls
    assert (call.outcome, call.status, call.kind, call.model) == ("ok", 200, "generate", "gpt-test")
    assert (call.client, call.path) == ("httpx2", "/v1/chat/completions")
    assert call.call_site is not None
    assert call.call_site.file == __file__ or flavour == "async"
    assert call.first_event_ns is None
    assert call.sync_in_event_loop is (flavour == "sync")


@pytest.mark.parametrize("way", ["chat", "responses"])
def test_openai_streams(flavour: str, gateway: Any, way: str) -> None:
    async def use() -> Any:
        client = make_openai(flavour, gateway)
        if way == "chat":
            stream = await finish(client.chat.completions.create(model="gpt-test", messages=ASKED, stream=True))
        else:
            stream = await finish(client.responses.create(model="gpt-test", input=PROMPT, stream=True))
        events = await everything(stream)
        await close(client)
        return [type(event).__name__ for event in events]

    seen, log = record(use)
    assert len(seen) > 3
    (call,) = log.calls
    assert (call.outcome, call.model, call.end_ns) == ("ok", "gpt-test", call.last_byte_ns)
    assert call.first_event_ns is not None


def test_openai_raw_and_streaming_responses(flavour: str, gateway: Any) -> None:
    async def use() -> Any:
        client = make_openai(flavour, gateway)
        raw = await finish(client.chat.completions.with_raw_response.create(model="gpt-test", messages=ASKED))
        streaming = client.chat.completions.with_streaming_response.create(model="gpt-test", messages=ASKED)
        if flavour == "sync":
            with streaming as response:
                lines = len(list(response.iter_lines()))
        else:
            async with streaming as response:
                lines = len([line async for line in response.iter_lines()])
        await close(client)
        return raw.status_code, raw.parse().choices[0].message.role, lines, response.status_code

    seen, log = record(use)
    assert seen == (200, "assistant", 1, 200)
    assert outcomes(log) == [("ok", 200, 0), ("ok", 200, 0)]


def test_openai_stream_left_early(flavour: str, gateway: Any) -> None:
    async def use() -> Any:
        client = make_openai(flavour, gateway, headers={"x-mock-hang": "mid-body"})
        stream = await finish(client.chat.completions.create(model="gpt-test", messages=ASKED, stream=True))
        if flavour == "sync":
            with stream:
                first = next(iter(stream))
        else:
            async with stream:
                first = await stream.__anext__()
        await close(client)
        return first.object

    seen, log = record(use)
    assert seen == "chat.completion.chunk"
    assert outcomes(log) == [("closed_early", 200, 0)]


@pytest.mark.parametrize("status", [429, 500])
@pytest.mark.parametrize("make", [make_openai, make_anthropic])
def test_retries_are_one_logical_call(flavour: str, gateway: Any, status: int, make: Any) -> None:
    keys = iter(range(100))

    async def use() -> Any:
        key = f"{make.__name__}-{flavour}-{status}-{next(keys)}"
        faults = {
            "x-mock-status": str(status),
            "x-mock-fail-first": "2",
            "x-mock-key": key,
            "x-mock-retry-after-ms": "1",
        }
        client = make(flavour, gateway, max_retries=2, headers=faults)
        for _ in range(2):
            await finish(ask(client))
        await close(client)
        return True

    _, log = record(use)
    failed = ("http_error", status)
    assert outcomes(log) == [(*failed, 0), (*failed, 1), ("ok", 200, 2), ("ok", 200, 0)]
    assert [call.logical_id for call in log.calls] == [log.calls[0].call_id] * 3 + [log.calls[3].call_id]
    assert [call.retry_after_s for call in log.calls] == [0.001, 0.001, None, None]
    assert len({call.request_id for call in log.calls}) == 4


def ask(client: Any) -> Any:
    if hasattr(client, "chat"):
        return client.chat.completions.create(model="gpt-test", messages=ASKED)
    return client.messages.create(model="claude-test", max_tokens=9, messages=ASKED)


def test_retries_of_tasks_side_by_side(gateway: Any, fresh: None) -> None:
    """Two tasks of one client retry at once: each its own."""
    keys = iter(range(100))

    async def use() -> Any:
        number = next(keys)
        faults = {"x-mock-status": "429", "x-mock-fail-first": "1", "x-mock-retry-after-ms": "1"}
        client = make_openai("async", gateway, max_retries=1, headers=faults)

        async def one(name: str) -> None:
            headers = {"x-mock-key": f"side-{name}-{number}"}
            await client.chat.completions.create(model=name, messages=ASKED, extra_headers=headers)

        await asyncio.gather(one("a"), one("b"))
        await close(client)
        return True

    _, log = record(use)
    for name in ("a", "b"):
        first, second = [call for call in log.calls if call.model == name]
        assert (first.attempt, second.attempt) == (0, 1)
        assert first.logical_id == second.logical_id == first.call_id


def test_retries_end_with_the_sdks_own_error(flavour: str, gateway: Any) -> None:
    async def use() -> Any:
        faults = {"x-mock-status": "429", "x-mock-retry-after-ms": "1"}
        client = make_openai(flavour, gateway, max_retries=1, headers=faults)
        with pytest.raises(openai.RateLimitError) as caught:
            await finish(ask(client))
        await close(client)
        return re.sub(r"\d+", "N", str(caught.value)), caught.value.status_code

    _, log = record(use)
    assert outcomes(log) == [("http_error", 429, 0), ("http_error", 429, 1)]


def test_anthropic_messages(flavour: str, gateway: Any) -> None:
    async def use() -> Any:
        client = make_anthropic(flavour, gateway)
        answer = await finish(client.messages.create(model="claude-test", max_tokens=9, messages=ASKED))
        stream = await finish(client.messages.create(model="claude-test", max_tokens=9, messages=ASKED, stream=True))
        events = await everything(stream)
        await close(client)
        return answer.content[0].text, [event.type for event in events]

    seen, log = record(use)
    assert seen[1][-1] == "message_stop"
    assert outcomes(log) == [("ok", 200, 0), ("ok", 200, 0)]
    assert {call.model for call in log.calls} == {"claude-test"}
    assert {call.path for call in log.calls} == {"/v1/messages"}
    assert log.calls[1].first_event_ns is not None


def test_anthropic_stream_helper(gateway: Any, fresh: None) -> None:
    async def use() -> Any:
        async with (
            make_anthropic("async", gateway) as client,
            client.messages.stream(model="claude-test", max_tokens=9, messages=ASKED) as stream,
        ):
            text = "".join([part async for part in stream.text_stream])
            return text, (await stream.get_final_message()).stop_reason

    seen, log = record(use)
    assert seen[0]
    assert outcomes(log) == [("ok", 200, 0)]
