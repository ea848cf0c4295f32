"""The SQL of a fleet, run by ClickHouse's engine over Parquet, against numpy on the calls that a file reader finds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from otel_traces import write_parquet

import occupancy
from occupancy.analysis.buckets import bucket
from occupancy.errors import ReadError
from occupancy.fleet import sql
from occupancy.fleet.api import ask
from occupancy.fleet.connection import connect
from occupancy.fleet.question import Question, parse
from occupancy.formats.selection import Selection
from occupancy.formats.span_calls import to_recording
from occupancy.formats.spans import Span, Spans

S = 10**9
ORIGIN = 1_800_000_000 * S
HTTP = {"http.request.method": "POST", "url.full": "https://api.example/v1/chat"}
CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "large"}
UPLOADS = (
    ("client", {"http.request.method": "POST", "url.full": "https://cloud.langfuse.com/api/public/ingestion"}),
    ("client", {**HTTP, "occupancy.kind": "other"}),
)
"""Of telemetry."""
KINDS_OF_SPAN = (
    ("client", HTTP),
    ("client", {"http.method": "GET", "http.url": "http://127.0.0.1:8377/generate/plan"}),
    ("client", {"occupancy.call_id": 3, "occupancy.kind": "generate", "occupancy.label": "plan", **HTTP}),
    ("client", {"occupancy.call_id": 4, "occupancy.kind": "tool", "gen_ai.request.model": "large"}),
    ("client", {"rpc.system": "grpc"}),
    ("client", {"db.system": "postgresql"}),
    ("client", CHAT),
    ("internal", CHAT),
    ("internal", {"gen_ai.operation.name": "invoke_agent", "gen_ai.request.model": "large"}),
    ("internal", {**CHAT, "logfire.span_type": "pending_span"}),
    ("internal", {"openinference.span.kind": "LLM", "llm.model_name": "small"}),
    ("internal", {"openinference.span.kind": "AGENT"}),
    ("internal", {"traceloop.span.kind": "workflow", "gen_ai.request.model": "large"}),
    ("internal", {"llm.request.model": "small"}),
    ("internal", {}),
    ("server", {"http.request.method": "POST", "http.route": "/chat"}),
    ("consumer", {}),
)
"""A kind and the attributes of a span, each another case of what counts as a call."""
SELECTS = (None, "http", "genai", "client", "all", "gen_ai.request.model=large", "service.name=agent", "name=step",
           "label=plan", "kind=internal")  # fmt: skip


@st.composite
def traces(draw):
    """Spans of some traces of one service, each below an earlier one of its trace, or below one that is not there.

    A span begins while the one above it is there, and may end after it.
    """
    spans = []
    for trace in range(draw(st.integers(1, 3))):
        starts, ends = [], []
        for number in range(draw(st.integers(1, 8))):
            parent = draw(st.integers(-2, number - 1))
            kind, attributes = draw(st.sampled_from(KINDS_OF_SPAN if parent >= 0 else KINDS_OF_SPAN + UPLOADS))
            starts.append(draw(st.integers(starts[parent], ends[parent]) if parent >= 0 else st.integers(0, 90)))
            ends.append(starts[-1] + draw(st.integers(0, 60)))
            spans.append(
                Span(
                    name=draw(st.sampled_from(["step", "chat"])),
                    trace_id=f"{trace + 1:032x}",
                    span_id=f"{number + 1:016x}",
                    parent_id=None if parent == -2 else "f" * 16 if parent == -1 else f"{parent + 1:016x}",
                    kind=kind,
                    start_ns=ORIGIN + starts[-1] * S,
                    end_ns=ORIGIN + ends[-1] * S,
                    attributes=attributes,
                    resource={"service.name": "agent"},
                )
            )
    return spans + draw(st.lists(st.sampled_from(spans), max_size=2))  # a collector that tries again


def counted_intervals(spans, select):
    """Start and end of each call that `occupancy.read` would count, ns."""
    try:
        recording = to_recording(Spans(spans), Selection(select), "spans")
    except ReadError:  # none is a call
        return np.empty((0, 2), dtype=np.int64)
    calls = [call for call in recording.calls if call.kind != occupancy.Kind.OTHER]
    offset_ns = recording.origin_unix_ns - recording.origin_ns
    stamps = np.array([(call.start_ns, call.end_ns) for call in calls], dtype=np.int64).reshape(-1, 2)
    return stamps + offset_ns


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    """A file to write spans to, and a connection that reads it."""
    path = tmp_path_factory.mktemp("fleet") / "spans.parquet"
    place, _ = parse(f"chdb://{path}")
    with connect(place) as connection:
        yield path, connection


@st.composite
def questions(draw):
    """A question about a window that is cut into buckets of whole seconds, and the edges of these, ns."""
    start_s, length_s, width_s = draw(st.integers(0, 80)), draw(st.integers(1, 60)), draw(st.integers(1, 30))
    edges_s = [*range(start_s, start_s + length_s, width_s), start_s + length_s]
    edges_ns = ORIGIN + S * np.array(edges_s, dtype=np.int64)
    select, window = draw(st.sampled_from(SELECTS)), {"since_ns": int(edges_ns[0]), "until_ns": int(edges_ns[-1])}
    return Question(select=select, bucket_ns=width_s * S, **window), edges_ns


@pytest.mark.timeout(240)  # a minute where others keep the machine busy
@settings(max_examples=100, deadline=None)
@given(traces(), questions(), st.sampled_from(sorted(sql.PEAKS)))
def test_buckets_are_those_of_numpy_on_the_calls_of_a_file(parquet, spans, question_and_edges, peak):
    question, edges_ns = question_and_edges
    path, connection = parquet
    place, _ = parse(write_parquet(path, spans))
    intervals = counted_intervals(spans, question.select)
    expected = bucket(intervals[:, 0], intervals[:, 1], edges_ns)
    if not expected.n:
        with pytest.raises(ReadError, match=r"no spans of that time|none of \d+ spans is a call"):
            ask(connection, place, question, peak)
        return
    found = ask(connection, place, question, peak).total
    assert found.edges_ns.tolist() == expected.edges_ns.tolist()
    assert found.in_flight_ns.tolist() == expected.in_flight_ns.tolist()
    assert found.peak.tolist() == expected.peak.tolist()
    assert found.begun.tolist() == expected.begun.tolist()
