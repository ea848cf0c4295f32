"""Spans as calls: those that are selected, each with what its own span and the ones above say of it."""

from collections.abc import Iterable
from typing import Any

from occupancy.call import Call, Kind, Outcome
from occupancy.errors import ReadError
from occupancy.formats import span_fields
from occupancy.formats.call_records import SCHEMA, checked
from occupancy.formats.recording import Recording, number_calls
from occupancy.formats.selection import Selection
from occupancy.formats.span_kinds import OWN, Tree, is_http, is_inference, is_step
from occupancy.formats.spans import UNREADABLE, Span, Spans, hex_id, reason_of
from occupancy.formats.times import FAR_NS
from occupancy.kinds import kind_of
from occupancy.step_names import step_name

SCHEMA_NAME = "occupancy.schema"
"""Attribute of a resource: its spans were written by us, so each holds its call whole."""
ORIGIN_NAME = "occupancy.origin_unix_ns"
"""Attribute of a resource: when the log began that its spans are from."""
MADE_NAME = "occupancy.made_up"
"""Attribute of a span: which fields of its call it shows and the call has not."""


def to_recording(found: Spans, selection: Selection, name: str) -> Recording:
    """Make calls of the spans that are selected.

    Args:
        found: What a reader gave.
        selection: Which of them count.
        name: Where they are from, for messages.

    Returns:
        The calls on a clock that shows Unix time. Second 0 is the first start, or where our own log began.

    Raises:
        ReadError: There are spans, and none is a call; or a newer version of ours has written them.
    """
    spans = _distinct(found.spans)
    tree = Tree(spans)
    chosen = sorted(selection.spans(spans, tree), key=lambda span: span.start_ns)
    if spans and not chosen and selection.is_default:
        n = len(spans)
        subject = "its one span is not" if n == 1 else f"none of its {n} spans is"
        raise ReadError(f"{name}: {subject} a request of a client or to a model; --select all counts every span")
    recording = Recording(bad_rows=list(found.bad_rows))
    made: list[tuple[Span, Call]] = []
    for span in chosen:
        _check_version(span, name)
        try:
            made.append((span, checked(_to_call(span, tree))))
        except UNREADABLE as error:
            recording.bad_rows.append(f"{name}: span {span.span_id or repr(span.name)}: {reason_of(error)}")
    _number(made, tree)
    _count_tokens([(span, call) for span, call in made if SCHEMA_NAME not in span.resource], tree)
    recording.calls = [call for _, call in made]
    origins = [span_fields.whole(span.resource.get(ORIGIN_NAME), FAR_NS) for span, _ in made]
    known = [origin for origin in origins if origin is not None]
    first_ns = min((call.start_ns for call in recording.calls), default=0)
    recording.origin_ns = recording.origin_unix_ns = min(known, default=first_ns)
    return recording


def _distinct(spans: Iterable[Span]) -> list[Span]:
    """Each span once: a collector that tries again, or a file that was put together of others, has some twice."""
    found: dict[tuple[object, ...], Span] = {}
    for span in spans:
        number = str(span.attributes.get(OWN))  # of ours, the attempts of one request may share a span's id
        key = (span.trace_id, span.span_id, span.name, span.kind, span.start_ns, span.end_ns, number)
        found.setdefault((id(span),) if span.span_id is None else key, span)
    return list(found.values())


def _check_version(span: Span, name: str) -> None:
    version = span_fields.whole(span.resource.get(SCHEMA_NAME))
    if version is not None and version > SCHEMA:
        raise ReadError(f"{name}: version {version} is newer than this occupancy, which reads up to {SCHEMA}")


def _to_call(span: Span, tree: Tree) -> Call:
    own = span_fields.own_fields(span)
    if SCHEMA_NAME in span.resource:
        return _whole_call(span, own)
    model_span = span if is_inference(span) else _model_above(span, tree)
    target = span_fields.target(span)
    fields: dict[str, Any] = {
        **_ids(span),
        "run": span.trace_id,
        "label": _label(span, tree),
        "kind": _kind(span, model_span, target),
        "client": span_fields.client(span),
        "thread": span_fields.text(span.attributes.get("thread.name")),
        "pid": span_fields.whole(span.resource.get("process.pid")) or 0,
        "attempt": span_fields.whole(span.attributes.get("http.request.resend_count"), 2**15) or 0,
        "model": None if model_span is None else span_fields.model(model_span),
        "call_stack": span_fields.call_stack(span),
        **target,
        **span_fields.result(span),
        **(span_fields.tokens(span) if span is model_span else {}),
    }
    stamps = span_fields.own_stamps(span) if "outcome" in own else span_fields.others_stamps(span)
    return Call(**{**fields, **own, **stamps})


def _whole_call(span: Span, own: dict[str, Any]) -> Call:
    made = str(span.attributes.get(MADE_NAME, "")).split()
    fields = own | span_fields.event_stamps(span)
    fields |= {**_ids(span), "start_ns": span.start_ns, "end_ns": span.end_ns}
    return Call(**{name: value for name, value in fields.items() if name not in made})


def _ids(span: Span) -> dict[str, str | None]:
    return {
        "trace_id": hex_id(span.trace_id, 32),
        "span_id": hex_id(span.span_id, 16),
        "parent_span_id": hex_id(span.parent_id, 16),
    }


def _kind(span: Span, model_span: Span | None, target: dict[str, Any]) -> Kind:
    if model_span is not None:
        return Kind.GENERATE
    if is_http(span):
        return kind_of(target["host"] or "", target["path"] or "")
    return Kind.TOOL


def _model_above(span: Span, tree: Tree) -> Span | None:
    return tree.nearest(span, is_inference) if is_http(span) else None


def _label(span: Span, tree: Tree) -> str | None:
    """The step that a call belongs to: a request's is the model, agent or tool above it, else the span it is under."""
    if is_http(span):
        step = tree.nearest(span, is_step) or next(tree.ancestors(span), None)
        if step is not None:
            return step_name(step.name) or None
    return step_name(span.name) or None


def _number(made: list[tuple[Span, Call]], tree: Tree) -> None:
    """Number the calls, and join the attempts of one logical call."""
    told = {id(call) for _, call in made if call.logical_id}
    number_calls([((span.resource.get("service.instance.id"), call.pid, call.run), call) for span, call in made])
    latest: dict[int, Call] = {}
    for span, call in made:
        above = None if id(call) in told else _model_above(span, tree)
        if above is not None:
            _join(call, latest.get(id(above)))
            latest[id(above)] = call


def _join(call: Call, before: Call | None) -> None:
    """A request under a GenAI span is a further attempt where the one before it had failed or was sent elsewhere."""
    if before is None or before.end_ns is None or call.start_ns < before.end_ns:
        return
    if before.outcome != Outcome.OK or (before.status is not None and before.status >= 300):
        call.logical_id = before.logical_id
        call.attempt = call.attempt or before.attempt + 1


def _count_tokens(made: Iterable[tuple[Span, Call]], tree: Tree) -> None:
    """A GenAI span's tokens belong to the last of the requests below it: each token counts once."""
    last: dict[int, tuple[Span, Call]] = {}
    for span, call in made:
        above = _model_above(span, tree)
        if above is not None:
            last[id(above)] = (above, call)
    for above, call in last.values():
        found = span_fields.tokens(above)
        call.input_tokens = found["input_tokens"] if call.input_tokens is None else call.input_tokens
        call.output_tokens = found["output_tokens"] if call.output_tokens is None else call.output_tokens
