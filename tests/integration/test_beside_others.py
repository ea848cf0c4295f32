"""Beside what else traces an agent: Logfire, OpenInference, OpenLLMetry, Anthropic's own spans, Sentry.

The real SDKs talk to the mock server on loopback, in a process of their own: once as the host has it, once with us.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from . import host_program
from .collector import collector

START = """
    from host_program import *
    import logging, warnings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the SDKs, at their import
        import anthropic, openai
    import mock_server
    from opentelemetry import trace
    WITH_US = {with_us}
"""
PROVIDER = """
    provider, exporter = set_up_provider()
"""
LOGFIRE = """
    import logfire
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    exporter = InMemorySpanExporter()
    logfire.configure(
        send_to_logfire=False, console=False, inspect_arguments=False,
        additional_span_processors=[SimpleSpanProcessor(exporter)],
    )
    provider = trace.get_tracer_provider()
"""
OURS = """
    if WITH_US:
        import occupancy
        processor = occupancy.OccupancySpanProcessor()
        provider.add_span_processor(processor)
"""
OTHERS = {
    "anthropic": [PROVIDER],
    "openinference": [
        PROVIDER,
        """
    from openinference.instrumentation.openai import OpenAIInstrumentor
    OpenAIInstrumentor().instrument(tracer_provider=provider)
        """,
    ],
    "openllmetry": [
        PROVIDER,
        """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own, at its import
        from opentelemetry.instrumentation.openai import OpenAIInstrumentor as OpenLLMetry
        OpenLLMetry().instrument(tracer_provider=provider)
        """,
    ],
    "logfire": [
        LOGFIRE,
        """
    logfire.instrument_openai()
    logfire.instrument_anthropic()
        """,
    ],
    "logfire and httpx": [
        LOGFIRE,
        """
    logfire.instrument_openai()
    logfire.instrument_httpx()
        """,
    ],
}
ASK = """
    asked = [{"role": "user", "content": "hello"}]
    def ask_openai(client):
        client.chat.completions.create(model="m", messages=asked)
        list(client.chat.completions.create(model="m", messages=asked, stream=True))
        client.responses.create(model="m", input="hello")
    def ask_anthropic(client):
        client.messages.create(model="m", max_tokens=9, messages=asked)
        with client.messages.create(model="m", max_tokens=9, messages=asked, stream=True) as events:
            list(events)
    headers = {"x-mock-status": "503", "x-mock-fail-first": "1", "x-mock-key": "first", "x-mock-retry-after-ms": "1"}
    with mock_server.serve(delay_ms=0) as url, trace.get_tracer("app").start_as_current_span("agent"):
        options = {"api_key": "any", "max_retries": 1}
        with openai.OpenAI(base_url=url + "/v1", **options) as client:
            ask_openai(client)
            client.chat.completions.create(model="m", messages=asked, extra_headers=headers)
        with anthropic.Anthropic(base_url=url, **options) as client:
            ask_anthropic(client)
"""
TELL = """
    spans = span_dicts(exporter)
    calls = call_dicts(processor.log) if WITH_US else []
    tell({"spans": spans, "calls": calls})
"""
ASKED = ["/v1/chat/completions"] * 2 + ["/v1/responses"] + ["/v1/chat/completions"] * 2 + ["/v1/messages"] * 2
"""The paths of all requests: the second but last but one is the retry."""
HTTPX = "opentelemetry.instrumentation.httpx"
VOLATILE = ("duration", "time_to_first", "base_url", "api_base", "url.full", "server.port", "response.id",
            "request.id", "response_data", "logfire.msg", "thread.id", "code.", "output", "events")  # fmt: skip
"""Parts of names of attributes that differ from run to run, or hold what the server numbers."""


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing is shared with the process of the tests."""


def run(folder: Path, *steps: str, with_us: bool = True) -> Any:
    """Run a host's program, with us or without."""
    program = START.format(with_us=with_us) + "".join(steps) + ASK + TELL
    return host_program.run(folder, program, ignore="DeprecationWarning")


def others(spans: list[dict[str, Any]]) -> list[Any]:
    """The spans of others, without what differs from run to run and the numbers on the root."""
    return [
        (span["name"], span["scope"], span["status"], sorted(span["events"]), stable(span["attributes"]))
        for span in spans
        if span["scope"] != HTTPX
    ]


def stable(attributes: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in attributes.items()
        if not name.startswith("occupancy.") and not any(part in name for part in VOLATILE)
    }


@pytest.fixture(scope="module", params=OTHERS)
def host(request: pytest.FixtureRequest) -> str:
    """Who else traces."""
    return str(request.param)


@pytest.fixture(scope="module")
def told(host: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What is seen with us, who are there first."""
    set_up, *rest = OTHERS[host]
    return run(tmp_path_factory.mktemp("with"), set_up, OURS, *rest)


def assert_each_request_is_one_call(told: Any) -> None:
    """No call is lost or counted twice, and each span of ours is of one call."""
    calls = told["calls"]
    assert [call["path"] for call in calls] == ASKED
    assert [call["attempt"] for call in calls] == [0, 0, 0, 0, 1, 0, 0]
    assert calls[3]["logical_id"] == calls[4]["logical_id"]
    assert len({call["logical_id"] for call in calls}) == len(calls) - 1
    assert {(call["kind"], call["model"]) for call in calls} == {("generate", "m")}
    ids = [span["span_id"] for span in told["spans"] if span["scope"] == HTTPX]
    assert sorted(ids) == sorted(call["span_id"] for call in calls if call["span_id"])
    (root,) = [span for span in told["spans"] if span["name"] == "agent"]
    assert (root["attributes"]["occupancy.calls"], root["attributes"]["occupancy.peak"]) == (len(ASKED), 1)


def test_each_request_is_one_call(told: Any) -> None:
    assert_each_request_is_one_call(told)


@pytest.mark.parametrize("host", ["openllmetry", "logfire and httpx"])
def test_each_request_is_one_call_where_we_come_last(host: str, tmp_path: Path) -> None:
    assert_each_request_is_one_call(run(tmp_path, *OTHERS[host], OURS))


def test_spans_of_others_are_as_they_were(host: str, told: Any, tmp_path: Path) -> None:
    without = run(tmp_path, *OTHERS[host], with_us=False)
    assert others(told["spans"]) == others(without["spans"])


EXPECTED = {
    "anthropic": [*["agent"] * 5, *["anthropic.messages.create"] * 2],
    "openinference": [*["ChatCompletion"] * 2, "Response", *["ChatCompletion"] * 2, *["anthropic.messages.create"] * 2],
    # It makes the span of a response when that is there.
    "openllmetry": [*["openai.chat"] * 2, "agent", *["openai.chat"] * 2, *["anthropic.messages.create"] * 2],
}
TOKENS = {
    "anthropic": [None] * 5 + [8, 8],
    "openinference": [8, None, 8, None, 8, 8, 8],
    "openllmetry": [8, None, None, None, 8, 8, 8],
}


def test_the_genai_span_above_is_the_label_and_tells_the_tokens(host: str, told: Any) -> None:
    if host not in EXPECTED:
        pytest.skip("Logfire's names are its own affair")
    assert [call["label"] for call in told["calls"]] == EXPECTED[host]
    assert [call["input_tokens"] for call in told["calls"]] == TOKENS[host]
    names = {span["span_id"]: span["name"] for span in told["spans"]}
    for call in told["calls"]:
        assert names[call["parent_span_id"]] == call["label"]


def test_all_together(tmp_path: Path) -> None:
    steps = [LOGFIRE, OURS, *(step for host in OTHERS.values() for step in host[1:])]
    told = run(tmp_path, *steps)
    assert [call["path"] for call in told["calls"]] == ASKED
    (root,) = [span for span in told["spans"] if span["name"] == "agent"]
    assert (root["attributes"]["occupancy.calls"], root["attributes"]["occupancy.peak"]) == (len(ASKED), 1)


def assert_named(told: Any, present: str, absent: str) -> None:
    """Each httpx span has the names that the host has chosen, and ends with its body."""
    spans = [span for span in told["spans"] if span["scope"] == HTTPX]
    assert len(spans) == len(ASKED)
    for span in spans:
        assert span["attributes"][present] == "POST"
        assert absent not in span["attributes"]
        assert span["end"] == span["events"]["last_byte"]


def test_old_names_of_the_conventions_stay(host: str, told: Any) -> None:
    if "logfire" in host:
        pytest.skip("Logfire chooses the new ones, and keeps httpx spans away below its own")
    assert_named(told, "http.method", "http.request.method")


def test_stable_names_of_the_conventions_hold(tmp_path: Path) -> None:
    program = START.format(with_us=True) + PROVIDER + OURS + ASK + TELL
    env = {"OTEL_SEMCONV_STABILITY_OPT_IN": "http"}
    told = host_program.run(tmp_path, program, env=env, ignore="DeprecationWarning")
    assert_named(told, "http.request.method", "http.method")


# Sentry

SENTRY = """
    import sentry_sdk
    from sentry_sdk.integrations.otlp import OTLPIntegration
    def set_up_sentry(with_otlp):
        integrations = [OTLPIntegration(collector_url="{sink}/v1/traces")] if with_otlp else []
        sentry_sdk.init(dsn="{dsn}", traces_sample_rate=1.0, integrations=integrations)
"""


@pytest.mark.parametrize(("with_otlp", "order"), [(False, "ours first"), (True, "ours first"), (True, "ours last")])
def test_sentry(tmp_path: Path, with_otlp: bool, order: str) -> None:
    ours = """
    import occupancy.auto
    """
    theirs = f"""
    set_up_sentry({with_otlp})
    """
    with collector() as sink, collector() as envelopes:
        start = SENTRY.format(sink=sink.url, dsn=envelopes.url.replace("http://", "http://key@") + "/1")
        steps = [start, ours, theirs] if order == "ours first" else [start, theirs, ours]
        program = START.format(with_us=True) + "".join(steps)
        program += """
    import contextlib
    def transaction():
        return contextlib.nullcontext() if {with_otlp} else sentry_sdk.start_transaction(op="agent", name="agent")
    with transaction():
        import textwrap
        exec(textwrap.dedent(ask))
    sentry_sdk.flush(5)
    provider = trace.get_tracer_provider()
    if {with_otlp}:
        provider.force_flush()
    tell(call_dicts(occupancy.auto.log))
    """.replace("{with_otlp}", str(with_otlp))
        program = f"    ask = {ASK!r}\n" + program
        env = {"OCCUPANCY_REPORT": "0"}
        calls = host_program.run(tmp_path, program, ignore="DeprecationWarning", env=env)
    asked = [call for call in calls if call["kind"] != "other"]
    assert [call["path"] for call in asked] == ASKED
    assert {call["path"] for call in calls if call["kind"] == "other"} <= {"/api/1/envelope/"}
    spans = [span for span in sink.spans if span["scope"] == HTTPX]
    assert [span["span_id"] for span in spans] == ([call["span_id"] for call in asked] if with_otlp else [])
