"""`by`: what calls are grouped by, as SQL over the collector's columns."""


def attribute(name: str) -> str:
    """SQL for a span's attribute; an empty text where it is not there. `name` is ours, never a user's."""
    return f"SpanAttributes['{name}']"


def first(*expressions: str) -> str:
    """SQL for the first of these texts that is not empty, else an empty one."""
    return f"coalesce({', '.join(f'nullIf({expression}, {chr(39) * 2})' for expression in expressions)}, '')"


def _host(url: str) -> str:
    port = f"toString(port({url}))"
    return f"concat(domain({url}), if({port} IN ('0', '80', '443'), '', concat(':', {port})))"


_MODEL_NAMES = (
    "gen_ai.request.model",
    "gen_ai.response.model",
    "llm.model_name",
    "llm.request.model",
    "occupancy.model",
)
MODEL = first(*map(attribute, _MODEL_NAMES))

GROUPINGS = {
    "model": first(MODEL, "above_model"),
    "service": "ServiceName",
    "host": first(
        *(_host(attribute(name)) for name in ("url.full", "http.url")),
        *map(attribute, ("server.address", "net.peer.name", "http.host")),
    ),
    "key": attribute("occupancy.key_id"),
    "label": first(attribute("occupancy.label"), "above_step", "SpanName"),
    "span": "SpanName",
    "instance": first(
        *(
            f"ResourceAttributes['{name}']"
            for name in ("service.instance.id", "k8s.pod.name", "host.name", "process.pid")
        )
    ),
}
"""The name of a call's group; empty where the call has none. `above_...` is the nearest model request above a call."""

FROM_ABOVE = frozenset({"model", "label"})
"""Groupings that need what lies above a call."""
