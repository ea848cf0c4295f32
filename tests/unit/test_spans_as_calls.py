"""Spans of others as calls, by OpenTelemetry's own SDK: which count, with what, and none twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.trace import SpanKind

import occupancy
from occupancy import OccupancyLog, _guard, caller, rows
from occupancy.call import Call
from occupancy.caller import open_spans as registry
from occupancy.caller.open_spans import OpenSpan, OpenSpans, open_spans
from occupancy.formats.journal_lines import Clock, Tail
from occupancy.instrumentation import run_counts, spans, spans_as_calls
from occupancy.instrumentation.retries import Retries
from occupancy.instrumentation.run_counts import Total, runs
from occupancy.journal import boot_id
from occupancy.ledger import ledger

RPC = {"rpc.system": "grpc", "server.address": "models.example", "server.port": 8443}
MODEL = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
USAGE = {"gen_ai.usage.input_tokens": 8, "gen_ai.usage.output_tokens": 4}


class Processor(SpanProcessor):
    """What ours does with spans, without switching hooks on."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        spans_as_calls.begin(span)

    def on_end(self, span: Any) -> None:
        spans_as_calls.end(span)


class Traced(NamedTuple):
    """A tracer of the SDK's and the log that counts."""

    tracer: trace.Tracer
    log: OccupancyLog


@contextmanager
def tracing(journal: Path | None = None) -> Iterator[Traced]:
    provider, log = TracerProvider(shutdown_on_exit=False), OccupancyLog(journal=journal)
    provider.add_span_processor(Processor())
    ledger.attach(log)
    ledger.observe(runs)
    try:
        yield Traced(provider.get_tracer("test.client"), log)
    finally:
        ledger.detach(log)
        ledger.disregard(runs)
        open_spans.clear()
        open_spans.requested_ns = None


@pytest.fixture
def traced() -> Iterator[Traced]:
    with tracing() as found:
        yield found


# Which count


class Node(NamedTuple):
    """A span, or a call that is captured, with what happens below it."""

    kind: str
    below: tuple[Any, ...] = ()


SPANS = {
    "step": (SpanKind.INTERNAL, {}),
    "agent": (SpanKind.INTERNAL, {"gen_ai.operation.name": "invoke_agent"}),
    "database": (SpanKind.CLIENT, {"db.system": "postgresql"}),
    "rpc": (SpanKind.CLIENT, RPC),
    "model": (SpanKind.CLIENT, MODEL),
    "model, known at its end": (SpanKind.INTERNAL, MODEL),
    "server": (SpanKind.SERVER, RPC),
}
CAPTURED = ("tool", "generate", "other")
nodes = st.recursive(
    st.sampled_from([*SPANS, *CAPTURED]).map(Node),
    lambda below: st.builds(Node, st.sampled_from(list(SPANS)), st.lists(below, max_size=3).map(tuple)),
    max_leaves=12,
)


def happen(node: Node, traced: Traced) -> None:
    """Let a node and what is below it happen, one after another."""
    if node.kind in CAPTURED:
        with traced.log.track(node.kind, kind=node.kind):
            return
    kind, attributes = SPANS[node.kind]
    at_start = {} if "end" in node.kind else attributes
    with traced.tracer.start_as_current_span(node.kind, kind=kind, attributes=at_start) as span:
        for below in node.below:
            happen(below, traced)
        span.set_attributes(attributes)


class Expected(NamedTuple):
    """What there is in a node."""

    calls: int
    is_below: bool
    """Whether one of them lies below the span above."""
    may_be_the_one: bool
    """Whether there is a request that a GenAI span beside it may tell of."""
    tool_below: bool = False
    """Whether there is a captured tool call, which under a GenAI span is a request to its model."""


def expected(node: Node) -> Expected:
    """Count by the rules, from the inside out."""
    if node.kind in CAPTURED:
        return Expected(int(node.kind != "other"), node.kind != "other", node.kind == "generate", node.kind == "tool")
    found = [expected(below) for below in node.below]
    calls, is_below = sum(one.calls for one in found), any(one.is_below for one in found)
    request, tool = (any(one[field] for one in found) for field in (2, 3))
    match node.kind:
        case "rpc":
            return Expected(calls + (not is_below), True, True, tool)
        case "model":
            return Expected(calls + (not is_below and not request), is_below or not request, request or tool)
        case "model, known at its end":
            return Expected(calls + (not is_below and not request), is_below or not request, request, tool)
        case "server":
            return Expected(calls, False, request)
    return Expected(calls, is_below, request, tool)


@settings(max_examples=200, deadline=None)
@given(st.lists(nodes, max_size=4))
def test_a_call_never_counts_twice_and_none_is_lost(program: list[Node]) -> None:
    with tracing() as traced:
        for node in program:
            happen(node, traced)
        log = traced.log
        calls = [call for call in log.calls if call.kind != "other"]
        assert len(calls) == sum(expected(node).calls for node in program)
        assert log.in_flight == 0
        assert not open_spans._spans
        # Counted anew, each with every other one.
        for call in calls:
            assert call.in_flight_start == in_flight_at(call, calls)
        assert log.peak == max((call.in_flight_start or 0 for call in calls), default=0)
        assert log.summary().n == len(calls)
        if calls:
            first = min(call.start_ns for call in calls)
            assert sum(log.time_at_level_ns.values()) == max(call.released_ns or 0 for call in calls) - first


def in_flight_at(call: Any, calls: list[Any]) -> int:
    """How many calls are in flight just after one has started, itself included."""
    others = [other for other in calls if other is not call]
    return 1 + sum(
        other.start_ns <= call.start_ns < other.released_ns
        for other in others
        if (other.start_ns, other.call_id) != (call.start_ns, call.call_id)
    )


def test_spans_that_overlap_are_in_flight_together(traced: Traced) -> None:
    spans = [traced.tracer.start_span("call", kind=SpanKind.CLIENT, attributes=RPC) for _ in range(3)]
    assert (traced.log.in_flight, traced.log.peak) == (0, 0)  # not known to be calls yet
    for span in spans:
        span.end()
    assert (traced.log.in_flight, traced.log.peak, traced.log.finished) == (0, 3, 3)
    assert [call.in_flight_start for call in traced.log.calls] == [1, 2, 3]
    assert traced.log.steps().peak == 3


def test_span_inside_of_a_captured_call_is_a_part_of_it(traced: Traced) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        with traced.tracer.start_as_current_span("below", kind=SpanKind.CLIENT, attributes=RPC):
            return httpx.Response(200)

    with occupancy.record() as log, httpx.Client(transport=httpx.MockTransport(answer)) as client:
        client.get("http://models.example/chat")
    with traced.log.track("by hand"), traced.tracer.start_as_current_span("chat", attributes=MODEL):
        pass
    assert [call.client for call in log.calls] == ["httpx"]
    assert [call.path for call in traced.log.calls] == ["/chat", None]


def test_span_of_a_task_that_outlives_a_tracked_call_counts(traced: Traced) -> None:
    with traced.log.track("by hand"):
        context = copy_context()
    context.run(lambda: traced.tracer.start_span("chat", attributes=MODEL).end())
    assert [call.label for call in traced.log.calls] == ["by hand", "chat"]


def test_model_span_that_is_not_current_leaves_the_captured_call_to_count(traced: Traced) -> None:
    """As instrumentations by callbacks make them: the request lies beside the span, not below it."""
    span = traced.tracer.start_span("ChatOpenAI", attributes=MODEL)
    with traced.log.track("post", kind="generate"):
        pass
    span.end()
    assert [call.label for call in traced.log.calls] == ["post"]


def test_model_span_beside_the_span_of_a_client_leaves_that_to_count(traced: Traced) -> None:
    span = traced.tracer.start_span("ChatGemini", attributes=MODEL)
    traced.tracer.start_span("Generate", kind=SpanKind.CLIENT, attributes=RPC).end()
    span.end()
    assert [call.label for call in traced.log.calls] == ["Generate"]


def test_model_span_that_is_made_when_the_response_is_there_leaves_the_captured_call_to_count(traced: Traced) -> None:
    began_ns = time.time_ns()
    with traced.log.track("post", kind="generate"):
        pass
    traced.tracer.start_span("response", attributes=MODEL, start_time=began_ns).end()
    assert [call.label for call in traced.log.calls] == ["post"]
    traced.tracer.start_span("another", attributes=MODEL).end()
    assert [call.label for call in traced.log.calls] == ["post", "another"]


def test_nothing_is_counted_while_nothing_records(traced: Traced) -> None:
    span = traced.tracer.start_span("chat", attributes=MODEL)
    ledger.detach(traced.log)
    span.end()
    traced.tracer.start_span("chat", attributes=MODEL).end()
    ledger.attach(traced.log)
    assert traced.log.finished == 0


def test_excluded_spans_are_kept_and_not_counted(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    import re

    from occupancy.instrumentation import attempts
    from occupancy.settings import Settings

    monkeypatch.setattr(attempts, "settings", Settings(exclude=(re.compile("models.example"),)))
    traced.tracer.start_span("call", kind=SpanKind.CLIENT, attributes=RPC).end()
    assert [(call.kind, call.in_flight_start) for call in traced.log.calls] == [("other", None)]
    assert traced.log.peak == 0


# What they say


def test_a_span_says_what_a_call_has(traced: Traced) -> None:
    attributes = {**RPC, **MODEL, "gen_ai.response.time_to_first_chunk": 0.25}
    with occupancy.label("plan"), occupancy.agent_run("research"):
        span = traced.tracer.start_span("chat m", kind=SpanKind.CLIENT, attributes=attributes, start_time=10**18)
    span.set_attributes(USAGE)
    span.end(end_time=10**18 + 10**9)
    (call,) = traced.log.calls
    assert (call.end_ns or 0) - call.start_ns == 10**9
    assert (call.released_ns, call.wait_first_ms, call.total_ms) == (call.end_ns, 250, 1000)
    assert (call.label, call.model, call.input_tokens, call.output_tokens) == ("plan", "m", 8, 4)
    assert (call.kind, call.outcome, call.client, call.host) == ("generate", "ok", "client", "models.example:8443")
    assert (call.run or "").startswith("research#")
    assert call.span_id == f"{span.get_span_context().span_id:016x}"
    assert "test_a_span_says_what_a_call_has" in [frame.function for frame in call.call_stack]
    assert (call.attempt, call.logical_id) == (0, call.call_id)


def test_a_span_is_placed_by_the_clock_of_its_start(traced: Traced) -> None:
    before = time.monotonic_ns()
    span = traced.tracer.start_span("chat", attributes=MODEL)
    span.end()
    (call,) = traced.log.calls
    assert abs(call.start_ns - before) < 10**9  # the clocks are read one after another
    assert (call.end_ns or 0) - call.start_ns == span.end_time - span.start_time  # type: ignore[attr-defined]


def test_a_span_that_failed_is_a_call_that_failed(traced: Traced) -> None:
    with pytest.raises(TimeoutError), traced.tracer.start_as_current_span("chat", attributes=MODEL):
        raise TimeoutError
    (call,) = traced.log.calls
    assert (call.outcome, call.error_type, call.label) == ("timeout", "TimeoutError", "chat")


# What a span above says of a captured call


def test_the_step_above_is_the_label_and_tells_the_model(traced: Traced) -> None:
    tracer = traced.tracer
    with tracer.start_as_current_span("chat m", attributes=MODEL), tracer.start_as_current_span("attempt"):
        with traced.log.track("by hand"):  # its own label counts
            pass
        call = described()
    assert (call.label, call.model, call.kind) == ("chat m", "m", "generate")
    with tracer.start_as_current_span("search", attributes={"gen_ai.operation.name": "execute_tool"}):
        call = described()
    assert (call.label, call.model, call.kind) == ("search", None, "tool")
    with tracer.start_as_current_span("outer"), tracer.start_as_current_span("plain"):
        assert described().label == "plain"


def described() -> Any:
    call = Call()
    caller.describe(call)
    return call


@pytest.mark.parametrize("ends_first", ["call", "span"])
def test_tokens_of_the_model_span_belong_to_the_last_call_below_it(
    traced: Traced, ends_first: str, tmp_path: Path
) -> None:
    journal = tmp_path / "calls.jsonl"
    with tracing(journal) as (tracer, log):
        span = tracer.start_span("chat", attributes=MODEL)
        with trace.use_span(span):
            with log.track("first", kind="generate"):
                pass
            if ends_first == "call":
                with log.track("last", kind="generate"):
                    pass
                end(span)
            else:
                with log.track("last", kind="generate"):
                    end(span)
        for found in (log, occupancy.read(journal)):
            assert [(call.label, call.input_tokens, call.output_tokens, call.model) for call in found.calls] == [
                ("first", None, None, "m"),
                ("last", 8, 4, "m"),
            ]
            assert (found.peak, found.finished) == (1, 2)


def end(span: Any) -> None:
    span.set_attributes(USAGE)
    span.end()


def test_a_live_view_takes_no_call_twice_of_which_more_became_known(tmp_path: Path) -> None:
    journal = tmp_path / "calls.jsonl"
    with tracing(journal) as (tracer, log):
        span = tracer.start_span("chat", attributes=MODEL)
        with trace.use_span(span), log.track("post", kind="generate"):
            pass
        end(span)
    tail = Tail("calls.jsonl", Clock(boot_id(), 0))
    assert [call.end_ns is not None for _, call in tail.feed(journal.read_bytes())] == [True]
    assert tail.bad == 0


def test_only_recent_calls_are_looked_through(monkeypatch: pytest.MonkeyPatch, traced: Traced) -> None:
    monkeypatch.setattr(rows, "LOOK_BACK", 2)
    for label in ("first", "second", "third"):
        with traced.log.track(label):
            pass
    for call in traced.log.calls:
        call.input_tokens = call.call_id
        ledger.amend(call)
    assert [call.input_tokens == call.call_id for call in traced.log.calls] == [False, True, True]


def test_a_row_that_was_dropped_is_not_renewed() -> None:
    kept = rows.Rows(1)
    calls = [Call(call_id=number, logical_id=number) for number in (1, 2)]
    for call in calls:
        kept.add(call, 1, 1)
    assert [kept.amend(call) for call in calls] == [False, True]


# Retries


@pytest.mark.parametrize(
    ("before", "is_retry"),
    [
        ({"outcome": "http_error", "status": 503}, True),
        ({"outcome": "timeout"}, True),
        ({"outcome": "ok", "status": 307}, True),
        ({"outcome": "abandoned", "status": 429}, True),
        ({"outcome": "ok", "status": 200}, False),
        ({"outcome": "error", "end_ns": 200}, False),
        ({"outcome": "open", "end_ns": None}, False),
    ],
)
def test_what_is_sent_again_under_one_model_span_is_one_logical_call(
    traced: Traced, before: dict[str, Any], is_retry: bool
) -> None:
    retries = Retries()
    with traced.tracer.start_as_current_span("chat", attributes=MODEL):
        first = described()
        first.call_id = first.logical_id = 5
        retries.remember(first)
        for name, value in {"end_ns": 100, **before}.items():
            setattr(first, name, value)
        second = described()
        second.start_ns = 150
        retries.link(second, None)
    assert (second.logical_id, second.attempt) == ((5, 1) if is_retry else (0, 0))
    with traced.tracer.start_as_current_span("chat", attributes=MODEL):
        other = described()
        other.start_ns = 150
        retries.link(other, "0")
    assert (other.logical_id, other.attempt) == (0, 0)


# Suppression


def test_below_a_model_span_that_is_open_nothing_is_an_export(traced: Traced) -> None:
    with suppress_instrumentation():
        assert spans.is_suppressed()
        with traced.tracer.start_as_current_span("agent"):
            assert spans.is_suppressed()
            with traced.tracer.start_as_current_span("chat", attributes=MODEL) as model:
                assert not spans.is_suppressed()
                with traced.tracer.start_as_current_span("below"):
                    assert not spans.is_suppressed()
                model.end()
                assert spans.is_suppressed()


def test_a_note_about_a_request_is_no_request(traced: Traced) -> None:
    for sort in ("log", "pending_span", "span"):
        traced.tracer.start_span(sort, attributes={**MODEL, "logfire.span_type": sort}).end()
    assert [call.label for call in traced.log.calls] == ["span"]


# The registry


def test_registry_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "LIMIT", 3)
    spans = OpenSpans()
    for number in range(1, 10):
        spans.begin(number, OpenSpan(None, number - 1, False))
    assert [span.parent_id for span in spans.upwards(9)] == [8, 7, 6]


def test_spans_that_are_above_each_other_end_the_way_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "LIMIT", 5)
    spans = OpenSpans()
    spans.begin(1, OpenSpan(None, 2, False))
    spans.begin(2, OpenSpan(None, 1, False))
    spans.mark_call_above(1)
    assert len(list(spans.upwards(1))) == 5


# The numbers of a run


def test_root_span_has_the_numbers_of_its_run(traced: Traced) -> None:
    tracer = traced.tracer
    with tracer.start_as_current_span("agent") as root, tracer.start_as_current_span("step") as step:
        spans = [tracer.start_span("call", kind=SpanKind.CLIENT, attributes=RPC, start_time=at) for at in (100, 200)]
        spans[0].end(end_time=500)
        spans[1].end(end_time=300)
        with traced.log.track("by hand", kind="other"):
            pass
    with tracer.start_as_current_span("idle") as idle:
        pass
    found = dict(root.attributes)  # type: ignore[attr-defined]
    assert found == {"occupancy.calls": 2, "occupancy.peak": 2, "occupancy.mean_in_flight": 500 / 400}
    assert dict(step.attributes) == dict(idle.attributes) == {}  # type: ignore[attr-defined]
    assert "end" not in vars(root)
    assert not runs._by_root
    assert not runs._by_call


def test_call_that_is_open_when_its_run_ends_counts_until_then(traced: Traced) -> None:
    root = traced.tracer.start_span("agent")
    with trace.use_span(root), traced.log.track("open"):
        root.end()
    assert root.attributes["occupancy.calls"] == 1  # type: ignore[attr-defined]
    assert not runs._by_call


def test_request_to_a_model_is_no_run(traced: Traced) -> None:
    span = traced.tracer.start_span("chat", attributes=MODEL)
    with trace.use_span(span), traced.log.track("post"):
        pass
    span.end()
    assert dict(span.attributes) == MODEL  # type: ignore[attr-defined]


def attributes(times: list[tuple[int, int]]) -> dict[str, int | float]:
    total = Total()
    total.add(times)
    return total.attributes()


def test_numbers_of_no_call_and_of_one_without_length() -> None:
    assert attributes([]) == {"occupancy.calls": 0, "occupancy.peak": 0}
    assert attributes([(5, 5)]) == {"occupancy.calls": 1, "occupancy.peak": 1}


some_times = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 20)).map(lambda pair: (pair[0], sum(pair))), min_size=1
)


@given(some_times)
def test_numbers_are_those_of_a_summary(times: list[tuple[int, int]]) -> None:
    found = attributes(times)
    begin, end = min(start for start, _ in times), max(end for _, end in times)
    levels = [sum(start <= at < end for start, end in times) for at in range(begin, end)]
    assert found["occupancy.calls"] == len(times)
    assert found["occupancy.peak"] == max(levels)
    assert found["occupancy.mean_in_flight"] == pytest.approx(sum(levels) / len(levels))


@given(some_times, st.integers(1, 5))
def test_a_run_of_many_calls_is_summed_up_in_between(times: list[tuple[int, int]], most: int) -> None:
    told: dict[str, int | float] = {}
    span = SimpleNamespace(end=lambda end_time: None, set_attributes=told.update)
    run = run_counts.Run(span)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_counts, "MOST_TIMES", most)
        events = [(start, 1, number) for number, (start, _) in enumerate(times)]
        events += [(end, 0, number) for number, (_, end) in enumerate(times)]
        for _, starts, number in sorted(events):
            call = Call(call_id=number, start_ns=times[number][0], end_ns=times[number][1])
            (run.started if starts else run.ended)(call)
    assert len(run._ended) <= most
    run(None)
    assert told == attributes(times)


# Our own faults


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        *((spans_as_calls, name) for name in ("view", "plain", "is_call", "_new_call", "_fill_in", "_amend")),
        *((OpenSpans, name) for name in ("begin", "end", "upwards", "mark_call_above")),
        *((run_counts, name) for name in ("_peak", "_is_root", "Run")),
        *((run_counts.Run, name) for name in ("started", "ended")),
        (OccupancyLog, "_add"),
        (rows.Rows, "amend"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_fault_of_ours_changes_nothing_for_the_host(
    traced: Traced, owner: Any, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(_guard, "_reported", set())
    monkeypatch.setattr(owner, name, fail)
    tracer, log = traced
    with tracer.start_as_current_span("agent") as root, log.track("by hand"):
        pass
    with tracer.start_as_current_span("agent"):
        with tracer.start_as_current_span("rpc", kind=SpanKind.CLIENT, attributes=RPC) as leaf:
            pass
        with tracer.start_as_current_span("chat", attributes=MODEL) as model:
            with log.track("post", kind="generate"):
                pass
            model.set_attributes(USAGE)
    assert [span.end_time is not None for span in (root, leaf, model)] == [True] * 3  # type: ignore[attr-defined]
    assert log.in_flight == 0
    assert [call.label for call in log.calls if call.label != "rpc"] == ["by hand", "post"]
    assert all(record.message.startswith("occupancy failed in ") for record in caplog.records)
    assert caplog.records
