"""What a span is: an HTTP or RPC client's, a model's, an agent's; and which of several nested ones is the call."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from occupancy.call import Kind
from occupancy.formats.spans import Span

GENERATING = frozenset({"chat", "generate_content", "text_completion", "completion", "embeddings", "call_llm"})
"""Values of `gen_ai.operation.name` for one request to a model; the others are agents, tools and look-ups."""
MODEL_TYPES = frozenset({"llm", "embedding", "reranker", "generation", "chat", "completion", "rerank"})
"""The same for `openinference.span.kind`, `langfuse.observation.type` and `llm.request.type`, in lower case."""
TYPE_NAMES = ("openinference.span.kind", "langfuse.observation.type", "llm.request.type")
_STEP_NAMES = ("gen_ai.operation.name", *TYPE_NAMES, "traceloop.span.kind", "gen_ai.agent.name", "gen_ai.tool.name")
NOTES = ("log", "pending_span")
"""Logfire's spans without a length: a note about a request, with the attributes of the request."""
SERVING = ("server", "consumer")
"""Kinds of a span that begins a process's work for another: what lies above is the other's."""
OWN = "occupancy.call_id"
"""Attribute of a span that we have stamped as a call, or written as one."""
_SERVED = ("http.route", "http.target", "http.server_name", "client.address", "url.path")
"""What a server says of a request, and a client does not."""


class Described(Protocol):
    """What must be known of a span to tell what it is."""

    @property
    def kind(self) -> str | None:
        """`client`, `server`, ...; None where that is not told."""

    @property
    def attributes(self) -> Mapping[str, Any]:
        """By their names."""


def first(attributes: Any, *names: str) -> Any:
    """The first of these attributes that is there and not empty, or None."""
    for name in names:
        value = attributes.get(name)
        if value is not None and value != "":
            return value
    return None


def is_client(span: Described) -> bool:
    """Whether a span is a client's: of kind CLIENT, or, where kinds are not told, one of an HTTP client."""
    return span.kind == "client" if span.kind is not None else is_http(span)


def is_http(span: Described) -> bool:
    """Whether a span is one HTTP or RPC request, seen by its client."""
    attributes = span.attributes
    if OWN in attributes:
        return True
    if span.kind not in ("client", None):
        return False
    http = first(attributes, "http.request.method", "http.method") is not None
    url = first(attributes, "url.full", "http.url") is not None
    if span.kind is None:
        return http and url and first(attributes, *_SERVED) is None
    return http or url or first(attributes, "rpc.system", "rpc.system.name") is not None


def is_inference(span: Described) -> bool:
    """Whether a span is one request to a model, as GenAI instrumentations see it."""
    attributes = span.attributes
    if attributes.get("logfire.span_type") in NOTES:
        return False
    operation = attributes.get("gen_ai.operation.name")
    if operation is not None:
        return operation in GENERATING
    kinds = [str(attributes[name]).lower() for name in TYPE_NAMES if attributes.get(name) is not None]
    if kinds:
        return kinds[0] in MODEL_TYPES
    if "traceloop.span.kind" in attributes:
        return False
    return first(attributes, "gen_ai.request.model", "llm.request.model") is not None


def is_model_request(span: Described) -> bool:
    """Whether a span is one request to a model: of those that we have stamped, their kind tells."""
    kind = span.attributes.get("occupancy.kind")
    return is_inference(span) if kind is None else kind == Kind.GENERATE


def is_step(span: Described) -> bool:
    """Whether a span is a step that a reader knows by its name: a model, an agent, a tool."""
    return is_inference(span) or first(span.attributes, *_STEP_NAMES) is not None


def is_call(span: Described) -> bool:
    """Whether a span is a call, unless another one below it is."""
    return is_http(span) or is_inference(span)


class Tree:
    """Spans with their ancestors.

    Args:
        spans: In any order; an ancestor that is missing ends the way up, and spans that are above each other, as a
            broken file has them, have none.
    """

    def __init__(self, spans: Iterable[Span]) -> None:
        self._by_id: dict[tuple[str | None, str], Span] = {}
        for span in spans:
            if span.span_id is not None:
                key = span.trace_id, span.span_id
                known = self._by_id.get(key)
                if known is None or known.kind not in SERVING:  # Zipkin's server has its client's id: what is below it
                    self._by_id[key] = span
        self._nearest: dict[Callable[[Span], bool], dict[int, Span | None]] = {}
        self._in_circles: set[int] = set()
        self._find_circles()

    def _find_circles(self) -> None:
        done: set[int] = set()
        for span in self._by_id.values():
            path: list[int] = []
            above: Span | None = span
            while above is not None and id(above) not in done:
                done.add(id(above))
                path.append(id(above))
                above = self.parent(above)
            if above is not None and id(above) in path:
                self._in_circles.update(path[path.index(id(above)) :])

    def parent(self, span: Span) -> Span | None:
        """The span above, or None."""
        if span.parent_id is None or span.parent_id == span.span_id or id(span) in self._in_circles:
            return None
        return self._by_id.get((span.trace_id, span.parent_id))

    def ancestors(self, span: Span) -> Iterator[Span]:
        """The spans above in the same process, the nearest first: not beyond the span of a request that it serves."""
        above: Span | None = span
        while above is not None and above.kind not in SERVING:
            above = self.parent(above)
            if above is not None:
                yield above

    def nearest(self, span: Span, wanted: Callable[[Span], bool]) -> Span | None:
        """The nearest of the spans above in the same process that is wanted, or None."""
        known = self._nearest.setdefault(wanted, {})
        passed, found = [id(span)], None
        for above in self.ancestors(span):
            if wanted(above):
                found = above
                break
            if id(above) in known:  # spans may lie in chains of thousands
                found = known[id(above)]
                break
            passed.append(id(above))
        known.update(dict.fromkeys(passed, found))
        return found

    def leaves(self, spans: Iterable[Span], wanted: Callable[[Span], bool]) -> list[Span]:
        """Those that are wanted and have no wanted one below them in the same process, and all that we have stamped.

        A GenAI span above the HTTP span of one call, or a wrapper's span above the wrapped one's, is thereby left out.
        """
        candidates = [span for span in spans if wanted(span)]
        chosen, above, visited = {id(span) for span in candidates}, set(), set()
        for span in candidates:
            for ancestor in self.ancestors(span):
                if id(ancestor) in chosen:
                    above.add(id(ancestor))
                if id(ancestor) in visited:  # what lies above it is known
                    break
                visited.add(id(ancestor))
        return [span for span in candidates if id(span) not in above or OWN in span.attributes]
