"""Which spans are calls, and what the spans around one say of it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from occupancy.call import Call, Frame
from occupancy.errors import InputError, ReadError
from occupancy.formats.selection import Selection
from occupancy.formats.span_calls import to_recording
from occupancy.formats.span_kinds import Tree, is_call, is_client, is_http, is_inference
from occupancy.formats.spans import Event, Span, Spans

TRACE = f"{1:032x}"
HTTP = {"http.request.method": "POST", "url.full": "https://api.example/v1/chat/completions"}
CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m-1"}


def span(number: int, parent: int | None = None, kind: str | None = "client", times: tuple[int, int] = (0, 10),
         name: str | None = None, **fields: Any) -> Span:  # fmt: skip
    return Span(
        name=name or f"span {number}",
        trace_id=TRACE,
        span_id=f"{number:016x}",
        parent_id=None if parent is None else f"{parent:016x}",
        kind=kind,
        start_ns=times[0],
        end_ns=times[1],
        attributes=fields.pop("attributes", {}),
        **fields,
    )


def calls_of(*spans: Span, select: str | None = None) -> list[Call]:
    recording = to_recording(Spans(list(spans)), Selection(select), "trace.json")
    assert recording.bad_rows == []
    return recording.calls


def numbers(calls: list[Call]) -> list[int]:
    return [int(call.span_id or "0", 16) for call in calls]


def test_a_model_request_above_its_http_request_counts_once() -> None:
    agent = span(
        1, kind="internal", attributes={"gen_ai.operation.name": "invoke_agent", "gen_ai.request.model": "m-1"}
    )
    chat = span(2, 1, kind="internal", attributes=CHAT)
    wrapper = span(3, 2, attributes=HTTP)
    inner = span(4, 3, attributes=HTTP)
    database = span(5, 1, attributes={"db.system.name": "postgresql"})
    tool = span(6, 1, kind="internal", attributes={"gen_ai.operation.name": "execute_tool"})
    grpc_chat = span(7, 1, attributes={**CHAT, "rpc.system": "grpc"})
    spans = (agent, chat, wrapper, inner, database, tool, grpc_chat)
    assert numbers(calls_of(*spans)) == [4, 7]
    assert numbers(calls_of(*spans, select="http")) == [4, 7]
    assert numbers(calls_of(*spans, select="genai")) == [2, 7]
    assert numbers(calls_of(*spans, select="client")) == [3, 4, 5, 7]
    assert numbers(calls_of(*spans, select="all")) == [1, 2, 3, 4, 5, 6, 7]
    assert numbers(calls_of(*spans, select="gen_ai.operation.name=execute_tool")) == [6]
    assert numbers(calls_of(*spans, select="kind=internal")) == [1, 2, 6]
    assert numbers(calls_of(*spans, select="name=span 5")) == [5]


def test_a_request_that_another_process_makes_for_it_is_a_call_too() -> None:
    client, server, onward = (
        span(1, attributes=HTTP),
        span(2, 1, kind="server", attributes=HTTP),
        span(3, 2, attributes=HTTP),
    )
    assert numbers(calls_of(client, server, onward)) == [1, 3]


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (CHAT, True),
        ({"gen_ai.operation.name": "embeddings"}, True),
        ({"gen_ai.operation.name": "invoke_agent", "gen_ai.request.model": "m"}, False),
        ({"gen_ai.operation.name": "retrieval"}, False),
        ({"gen_ai.system": "openai", "gen_ai.request.model": "m"}, True),
        ({"openinference.span.kind": "LLM"}, True),
        ({"openinference.span.kind": "CHAIN", "gen_ai.request.model": "m"}, False),
        ({"llm.request.type": "chat"}, True),
        ({"traceloop.span.kind": "workflow", "gen_ai.request.model": "m"}, False),
        ({"langfuse.observation.type": "generation"}, True),
        (HTTP, False),
        ({}, False),
    ],
)
def test_what_is_one_request_to_a_model(attributes: dict[str, Any], expected: bool) -> None:
    assert is_inference(span(1, attributes=attributes)) is expected


@pytest.mark.parametrize(
    ("kind", "attributes", "http", "client"),
    [
        ("client", {"http.method": "GET"}, True, True),
        ("client", {"url.full": "https://x/"}, True, True),
        ("client", {"rpc.system": "grpc"}, True, True),
        ("client", {"db.system": "redis"}, False, True),
        ("server", HTTP, False, False),
        ("internal", HTTP, False, False),
        (None, HTTP, True, True),
        (None, {"http.method": "GET", "http.url": "https://x/"}, True, True),
        (None, {**HTTP, "http.route": "/v1/{id}"}, False, False),
        (None, {"http.request.method": "GET"}, False, False),
        (None, {"occupancy.call_id": 3}, True, True),
        (None, {}, False, False),
    ],
)
def test_what_is_a_request_of_a_client(kind: str | None, attributes: dict[str, Any], http: bool, client: bool) -> None:
    found = span(1, kind=kind, attributes=attributes)
    assert (is_http(found), is_client(found)) == (http, client)


SHAPES = st.lists(
    st.tuples(st.integers(0, 7), st.sampled_from(["client", "internal", "server"]), st.booleans()), max_size=8
)
"""Of each span: which of those before it is the one above, its kind, and whether it is a request."""


@settings(max_examples=300, deadline=None)
@given(SHAPES, st.randoms())
def test_leaves_are_those_without_one_below(shapes: list[tuple[int, str, bool]], random: Any) -> None:
    spans = {
        number: span(number, above % number, kind, attributes=_attributes(kind, wanted))
        for number, (above, kind, wanted) in enumerate(shapes, start=1)
    }

    def is_below(lower: int, upper: int) -> bool:
        while lower in spans and spans[lower].kind != "server":
            lower = shapes[lower - 1][0] % lower
            if lower == upper:
                return True
        return False

    wanted = [number for number, found in spans.items() if is_call(found)]
    expected = {upper for upper in wanted if not any(is_below(lower, upper) for lower in wanted)}
    shuffled = list(spans.values())
    random.shuffle(shuffled)
    assert {int(leaf.span_id or "0", 16) for leaf in Tree(shuffled).leaves(shuffled, is_call)} == expected


def _attributes(kind: str, wanted: bool) -> dict[str, Any]:
    return (HTTP if kind == "client" else CHAT) if wanted else {}


def test_spans_that_are_above_each_other_are_read_all_the_same() -> None:
    ring = [span(1, 2, attributes=HTTP), span(2, 3), span(3, 1, attributes=CHAT), span(4, 4, attributes=HTTP)]
    assert set(numbers(calls_of(*ring))) >= {4}


def test_the_spans_above_give_label_model_and_tokens() -> None:
    agent = span(1, kind="internal", name="invoke_agent travel", attributes={"gen_ai.operation.name": "invoke_agent"})
    chat = span(
        2, 1, name="chat m-1", attributes={**CHAT, "gen_ai.usage.input_tokens": 7, "gen_ai.usage.output_tokens": 9}
    )
    asked = span(3, 2, attributes=HTTP)
    tool = span(4, 1, kind="internal", name="execute_tool search", attributes={"gen_ai.operation.name": "execute_tool"})
    between = span(5, 4, kind="internal")
    searched = span(6, 5, times=(20, 30), attributes={"http.method": "GET", "http.url": "http://tool.local:81/s?q=1"})
    first, second = calls_of(agent, chat, asked, tool, between, searched)
    assert (first.label, first.model, first.kind, first.input_tokens, first.output_tokens) == (
        "chat m-1", "m-1", "generate", 7, 9,
    )  # fmt: skip
    assert (second.label, second.model, second.kind, second.input_tokens) == ("execute_tool search", None, "tool", None)
    assert (second.host, second.path) == ("tool.local:81", "/s")


def test_a_failed_request_and_the_next_one_are_attempts_of_one_call() -> None:
    chat = span(1, times=(0, 100), attributes={**CHAT, "gen_ai.usage.output_tokens": 9})
    refused = span(2, 1, times=(0, 10), attributes={**HTTP, "http.response.status_code": 429})
    timed_out = span(3, 1, times=(20, 30), attributes={**HTTP, "error.type": "ReadTimeout"})
    answered = span(4, 1, times=(40, 90), attributes={**HTTP, "http.response.status_code": 200})
    another = span(5, 1, times=(95, 99), attributes=HTTP)
    beside = span(6, 1, times=(5, 8), attributes=HTTP)
    calls = {
        int(call.span_id or "0", 16): call for call in calls_of(chat, refused, timed_out, answered, another, beside)
    }
    assert {number: (call.logical_id, call.attempt) for number, call in calls.items()} == {
        2: (1, 0), 6: (2, 0), 3: (3, 0), 4: (3, 1), 5: (5, 0),
    }  # fmt: skip
    assert {number: call.outcome for number, call in calls.items()} == {
        2: "http_error", 3: "timeout", 4: "ok", 5: "ok", 6: "ok",
    }  # fmt: skip
    assert {number: call.output_tokens for number, call in calls.items()} == {2: None, 3: None, 4: None, 5: 9, 6: None}


def test_uploads_of_telemetry_are_kept_out_of_the_counts() -> None:
    upload = span(1, attributes={"http.method": "POST", "http.url": "https://cloud.langfuse.com/api/public/ingestion"})
    (call,) = calls_of(upload)
    assert call.kind == "other"


@pytest.mark.parametrize(
    ("attributes", "host", "path"),
    [
        ({"url.full": "https://api.example/v1"}, "api.example", "/v1"),
        ({"url.full": "https://api.example:443/v1"}, "api.example", "/v1"),
        ({"url.full": "http://api.example:443/v1"}, "api.example:443", "/v1"),
        ({"url.full": "http://[::1]:8080/"}, "::1:8080", "/"),
        ({"http.url": "https://user:password@api.example/a%2Fb?key=1#part"}, "api.example", "/a/b"),
        ({"url.full": "http://x:port/"}, None, None),
        ({"server.address": "api.example", "server.port": 8080, "url.path": "/v1"}, "api.example:8080", "/v1"),
        ({"server.address": "api.example", "server.port": 443}, "api.example", None),
        ({"server.address": "h", "server.port": 80, "url.scheme": "http"}, "h", None),
        (
            {"net.peer.name": "api.example", "net.peer.port": "8443", "http.target": "/v1?x=1"},
            "api.example:8443",
            "/v1",
        ),
        ({}, None, None),
        ({"http.url": "user:password@api.example/v1?key=1"}, None, None),
        ({"http.url": "/v1?key=1", "http.host": "user:password@api.example:8080"}, "api.example:8080", "/v1"),
        ({"server.address": "https://user:password@api.example/v1?key=1"}, "api.example", None),
        ({"server.address": "/var/run/x.sock", "url.path": "password"}, None, None),
        ({"http.target": "http://user:password@api.example/v1?key=1"}, None, "/v1"),
        ({"server.address": "::1", "url.path": "//v1#password"}, "::1", "//v1"),
    ],
)
def test_where_a_call_goes(attributes: dict[str, Any], host: str | None, path: str | None) -> None:
    (call,) = calls_of(span(1, attributes=attributes), select="all")
    assert (call.host, call.path) == (host, path)
    assert "password" not in repr(call)


def test_a_span_that_is_there_twice_counts_once() -> None:
    first, second = span(1, attributes=HTTP), span(2, times=(10, 20), attributes=HTTP)
    again = span(1, attributes=HTTP)
    longer = span(1, times=(0, 12), attributes=HTTP)
    assert numbers(calls_of(first, second, again)) == [1, 2]
    assert numbers(calls_of(first, again, longer)) == [1, 1]
    nameless = [span(1, attributes=HTTP) for _ in range(2)]
    for one in nameless:
        one.span_id = None
    assert len(calls_of(*nameless)) == 2


def test_attempts_that_share_a_span_are_two_calls() -> None:
    both = [span(1, attributes={"occupancy.call_id": number, "occupancy.outcome": "ok"}) for number in (1, 2, 1)]
    assert [call.call_id for call in calls_of(*both)] == [1, 2]


@pytest.mark.parametrize("attributes", [HTTP, CHAT])
def test_spans_above_each_other_are_above_nothing(attributes: dict[str, Any]) -> None:
    circle = [span(1, 3, attributes=attributes), span(2, 1, attributes=attributes), span(3, 2, attributes=attributes)]
    itself = span(4, 4, attributes=attributes)
    below = span(5, 1, attributes=attributes)
    assert numbers(calls_of(*circle, itself)) == [1, 2, 3, 4]
    assert numbers(calls_of(*circle, itself, below)) == [2, 3, 4, 5]


def test_a_server_that_has_the_id_of_its_client_serves_for_it() -> None:
    client, server = span(1, attributes=HTTP), span(1, kind="server", attributes=HTTP)
    onward = span(2, 1, attributes=HTTP)
    assert len(calls_of(client, server, onward)) == len(calls_of(server, client, onward)) == 2


def test_the_innermost_of_four_nested_model_spans_is_the_call() -> None:
    nested = [span(number, number - 1 or None, kind=None, attributes=CHAT) for number in (1, 2, 3, 4)]
    assert numbers(calls_of(*nested)) == numbers(calls_of(*nested, select="genai")) == [4]
    told = [span(n, n - 1 or None, attributes={**CHAT, "gen_ai.usage.input_tokens": 7}) for n in (1, 2)]
    (call,) = calls_of(*told, span(3, 2, attributes=HTTP))
    assert (call.span_id, call.input_tokens, call.label) == (f"{3:016x}", 7, "span 2")


def test_a_chain_of_thousands_of_spans_is_looked_at_once() -> None:
    looked = 0

    class Counted(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            nonlocal looked
            looked += name == "gen_ai.operation.name"
            return super().get(name, default)

    n = 5_000
    chain = [span(number, number - 1 or None, attributes=Counted(HTTP)) for number in range(1, n + 1)]
    assert numbers(calls_of(*chain)) == [n]
    assert len(calls_of(*chain, select="all")) == n
    assert looked < 20 * n


def test_what_we_have_stamped_counts_whatever_lies_below() -> None:
    stamped = {**HTTP, "occupancy.outcome": "ok"}
    outer = span(1, attributes={**stamped, "occupancy.call_id": 1, "occupancy.kind": "generate"})
    inner = span(2, 1, attributes={**stamped, "occupancy.call_id": 2, "occupancy.kind": "tool",
                                   "gen_ai.request.model": "m-1"})  # fmt: skip
    assert numbers(calls_of(outer, inner)) == numbers(calls_of(outer, inner, select="http")) == [1, 2]
    assert numbers(calls_of(outer, inner, select="genai")) == [1]  # its kind tells: the other only names a model


def test_what_we_have_stamped_is_selected_by_the_fields_of_its_call() -> None:
    plan, other = (
        span(number, attributes={"occupancy.call_id": number, "occupancy.label": label, "occupancy.kind": kind,
                                 "occupancy.siblings_held": True, "model": "theirs", "occupancy.model": "ours"})
        for number, label, kind in ((1, "plan", "generate"), (2, "tool", "tool"))
    )  # fmt: skip
    for select, expected in {
        "label=plan": [1], "occupancy.label=plan": [1], "kind=tool": [2], "kind=client": [1, 2], "model=theirs": [1, 2],
        "model=ours": [], "siblings_held=true": [1, 2], "label=": [],
    }.items():  # fmt: skip
        assert numbers(calls_of(plan, other, select=select)) == expected, select


@pytest.mark.parametrize("times", [(0, 2**62), (2**62, 2**62 + 1), (0, 10**400)])
def test_a_time_that_cannot_be_costs_its_span(times: tuple[int, int]) -> None:
    found = Spans([span(1, times=times, attributes=HTTP), span(2, attributes=HTTP)])
    recording = to_recording(found, Selection(None), "trace.json")
    assert numbers(recording.calls) == [2]
    assert len(recording.bad_rows) == 1
    assert recording.bad_rows[0].startswith("trace.json: span 0000000000000001: ")


def test_stamps_of_ours_that_cannot_be_cost_their_span() -> None:
    for name, value in (("total_ms", -1.0), ("total_ms", 4.5e12), ("call_stack", "[" * 100_000)):
        attributes = {**HTTP, "occupancy.call_id": 1, "occupancy.outcome": "ok", f"occupancy.{name}": value}
        recording = to_recording(Spans([span(1, attributes=attributes)]), Selection(None), "trace.json")
        assert (recording.calls, len(recording.bad_rows)) == ([], 1)


def test_spans_of_a_newer_version_of_ours_are_refused() -> None:
    newer = span(1, attributes=HTTP, resource={"occupancy.schema": 9})
    with pytest.raises(ReadError, match=r"trace\.json: version 9 is newer"):
        calls_of(newer)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("GET https://user:password@api.example/v1?key=password", "GET https://api.example/v1"),
        ("GET /v1?password", "GET /v1"),
        ("https://api.example/v1#password and more", "https://api.example/v1 and more"),
        ("POST https://api.example?password", "POST https://api.example"),
        ("what now? chat", "what now? chat"),
        ("yes/no?", "yes/no?"),
        ("a" * 300, "a" * 200),
    ],
)
def test_a_label_holds_no_query_of_a_span_that_is_named_by_its_url(name: str, label: str) -> None:
    assert calls_of(span(1, attributes=HTTP, name=name))[0].label == label
    under_it = calls_of(span(2, kind="internal", name=name), span(1, 2, attributes=HTTP))
    assert under_it[0].label == label


def test_the_line_of_the_program_and_the_first_chunk() -> None:
    attributes = {
        **CHAT,
        "code.filepath": "/srv/agent.py",
        "code.lineno": 12,
        "code.function": "plan",
        "gen_ai.response.time_to_first_chunk": 2e-9,
        "thread.name": "worker",
    }
    (call,) = calls_of(span(1, attributes=attributes))
    assert call.call_stack == (Frame("/srv/agent.py", 12, "plan"),)
    assert (call.first_byte_ns, call.thread) == (2, "worker")


def own(**fields: Any) -> dict[str, Any]:
    told = {
        "call_id": 5,
        "logical_id": 5,
        "outcome": "ok",
        "total_ms": 3.000001,
        "wait_first_ms": 1.5,
        "receive_ms": 1.25,
    }
    return {f"occupancy.{name}": value for name, value in (told | fields).items() if value is not None}


FIRST_BYTE = Event("first_byte", 7_500_000, {})
LAST_BYTE = Event("last_byte", 9_000_001, {})


@pytest.mark.parametrize("end_ns", [9_000_001, 7_400_000])
def test_stamps_that_we_put_on_a_span_are_exact_whether_its_end_was_held_or_not(end_ns: int) -> None:
    (call,) = calls_of(span(1, times=(6_100_000, end_ns), attributes=HTTP | own(), events=(FIRST_BYTE, LAST_BYTE)))
    assert (call.start_ns, call.first_byte_ns, call.end_ns) == (6_000_000, 7_500_000, 9_000_001)
    assert (call.last_byte_ns, call.headers_ns, call.receive_ns) == (9_000_001, 7_750_001, 1_250_000)
    assert (call.call_id, call.logical_id) == (5, 5)


def test_without_a_first_byte_the_end_and_the_duration_give_the_start() -> None:
    attributes = HTTP | own(outcome="timeout", wait_first_ms=None, receive_ms=None, label="plan", run="agent#1")
    (call,) = calls_of(span(1, times=(6_100_000, 9_000_001), attributes=attributes))
    assert (call.start_ns, call.end_ns, call.outcome) == (6_000_000, 9_000_001, "timeout")
    assert (call.label, call.run) == ("plan", "agent#1")


def test_where_the_end_was_not_held_a_call_began_while_the_client_was_at_work() -> None:
    attributes = HTTP | own(wait_first_ms=None, receive_ms=None, client_ms=0.25)
    (call,) = calls_of(span(1, times=(6_100_000, 7_000_000), attributes=attributes))
    assert (call.start_ns, call.end_ns) == (5_850_000, 8_850_001)


def test_calls_of_several_processes_get_numbers_of_their_own() -> None:
    spans = []
    for number, (pid, call_id, start) in enumerate([(7, 1, 0), (8, 1, 1), (7, 2, 10), (8, 2, 11)], start=1):
        told = own(call_id=call_id, logical_id=1, attempt=call_id - 1, total_ms=5e-6, wait_first_ms=None)
        spans.append(span(number, times=(start, start + 5), resource={"process.pid": pid}, attributes=HTTP | told))
    assert [(call.pid, call.call_id, call.logical_id, call.attempt) for call in calls_of(*spans)] == [
        (7, 1, 1, 0), (8, 2, 2, 0), (7, 3, 1, 1), (8, 4, 2, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "broken",
    [{"status": "good"}, {"chunks": True}, {"bytes_received": 2**63}, {"wait_ms": "long"}, {"call_stack": "[7]"}],
)
def test_an_attribute_of_ours_that_cannot_be_is_told(broken: dict[str, Any]) -> None:
    good, bad = span(1, attributes=HTTP), span(2, attributes=HTTP | own(**broken))
    recording = to_recording(Spans([good, bad]), Selection(None), "trace.json")
    assert numbers(recording.calls) == [1]
    assert recording.bad_rows[0].startswith(f"trace.json: span {2:016x}: ")


def test_spans_of_which_none_is_a_call_are_told() -> None:
    server = span(1, kind="server")
    with pytest.raises(ReadError, match=r"^trace.json: its one span is not a request .* --select all"):
        calls_of(server)
    assert calls_of(server, select="client") == []
    assert calls_of() == []


@pytest.mark.parametrize("select", ["", "calls", "=x", "Client"])
def test_a_selection_that_cannot_be(select: str) -> None:
    with pytest.raises(InputError, match="select must be client, http, genai, all, or an attribute test"):
        Selection(select)


@pytest.mark.parametrize(
    ("select", "n"), [("stream=true", 1), ("n=3", 1), ("x = 1.5 ", 1), ("model=", 1), ("missing=", 0), ("n=3.0", 0)]
)
def test_an_attribute_test_compares_what_is_written(select: str, n: int) -> None:
    found = span(1, attributes={"stream": True, "n": 3, "x": 1.5, "model": ""})
    assert len(calls_of(found, select=select)) == n
