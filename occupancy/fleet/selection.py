"""Which spans are calls, as SQL over the collector's columns.

The rules are those that `occupancy.formats.selection` applies to the spans of a file.
"""

import dataclasses
from collections.abc import Iterable

from occupancy import kinds
from occupancy.fleet.grouping import attribute, first
from occupancy.formats.selection import Selection
from occupancy.formats.span_kinds import GENERATING, MODEL_TYPES, NOTES, OWN, TYPE_NAMES


def _listed(names: Iterable[str]) -> str:
    return f"({', '.join(f'{name!r}' for name in sorted(names))})"


IS_CLIENT = "SpanKind IN ('Client', 'SPAN_KIND_CLIENT')"
"""Older collectors write it in the second way."""
IS_SERVED = "SpanKind IN ('Server', 'Consumer', 'SPAN_KIND_SERVER', 'SPAN_KIND_CONSUMER')"
"""What lies above such a span is another process's work."""

_HTTP_NAMES = "['http.request.method', 'http.method', 'url.full', 'http.url', 'rpc.system', 'rpc.system.name']"
IS_OWN = f"mapContains(SpanAttributes, '{OWN}')"
"""We have stamped it: it is a call, whatever lies below it."""
IS_HTTP = f"""({IS_OWN}
            OR {IS_CLIENT} AND hasAny(mapKeys(SpanAttributes), {_HTTP_NAMES}))"""
IS_BARE = f"({IS_HTTP} AND NOT {IS_OWN})"
"""A request that we have not stamped: its span may end with the headers."""
_OPERATION = attribute("gen_ai.operation.name")
_TYPE = f"lower({first(*map(attribute, TYPE_NAMES))})"
IS_INFERENCE = f"""multiIf(
            {attribute("logfire.span_type")} IN {_listed(NOTES)}, false,
            {_OPERATION} != '', {_OPERATION} IN {_listed(GENERATING)},
            {_TYPE} != '', {_TYPE} IN {_listed(MODEL_TYPES)},
            mapContains(SpanAttributes, 'traceloop.span.kind'), false,
            {first(attribute("gen_ai.request.model"), attribute("llm.request.model"))} != '')"""

_KIND = attribute("occupancy.kind")
IS_MODEL_REQUEST = f"if({_KIND} != '', {_KIND} = 'generate', {IS_INFERENCE})"
_URL = first(attribute("url.full"), attribute("http.url"))
COUNTS = f"""NOT ({IS_HTTP} AND multiIf(
            {_KIND} != '', {_KIND} = 'other',
            match(path({_URL}), {{telemetry_path:String}}) OR match(domain({_URL}), {{telemetry_host:String}})))"""
"""Whether a span is no upload of telemetry: those are no calls of the program's."""
PATTERNS = {"telemetry_path": kinds.TELEMETRY_PATH.pattern, "telemetry_host": kinds.TELEMETRY_HOST.pattern}
"""What `COUNTS` has bound to it."""

_TEST = """if(
            mapContains(SpanAttributes, {attribute:String}) OR mapContains(ResourceAttributes, {attribute:String}),
            if(mapContains(SpanAttributes, {attribute:String}), SpanAttributes, ResourceAttributes)[{attribute:String}]
                = {value:String},
            SpanAttributes[concat('occupancy.', {attribute:String})] = {value:String}
                OR {attribute:String} = 'name' AND SpanName = {value:String}
                OR {attribute:String} IN ('kind', 'span.kind')
                    AND lower(replaceOne(SpanKind, 'SPAN_KIND_', '')) = {value:String})"""


@dataclasses.dataclass(frozen=True, slots=True)
class CallFilter:
    """Which spans are calls."""

    condition: str
    """SQL that holds for a span that is one, unless one below it is."""
    leaves_only: bool
    """Whether a span above another for which the condition holds is none: one call would count twice."""
    parameters: dict[str, str]
    """To bind to the SQL."""


def to_filter(select: str | None) -> CallFilter:
    """Read `select` as `occupancy.read` does.

    Raises:
        InputError: It cannot be.
    """
    Selection(select)
    match select:
        case None:
            return CallFilter(f"({IS_HTTP} OR {IS_INFERENCE})", True, {})
        case "http":
            return CallFilter(IS_HTTP, True, {})
        case "genai":
            return CallFilter(IS_MODEL_REQUEST, True, {})
        case "client":
            return CallFilter(IS_CLIENT, False, {})
        case "all":
            return CallFilter("true", False, {})
    name, _, value = select.partition("=")
    return CallFilter(_TEST, False, {"attribute": name.strip(), "value": value.strip()})
