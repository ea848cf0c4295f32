"""`select`: which spans of a file are the calls to count."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from occupancy.analysis.columns import Columns, values_of
from occupancy.call import FIELDS, Kind
from occupancy.errors import InputError
from occupancy.formats import span_kinds
from occupancy.formats.spans import Span

NAMED = ("client", "http", "genai", "all")
HELP = "client, http, genai, all, or an attribute test such as gen_ai.operation.name=chat"


class Selection:
    """Picks calls, from spans or from a file that holds calls already.

    Args:
        select: None for what counts as a call: each HTTP or RPC request of a client, and each request to a model that
            has none of those below it. `client`: all spans of kind CLIENT; `http`: the requests alone; `genai`: the
            requests to models that have no further one below them; `all`; or `attribute=value`.

    Raises:
        InputError: `select` is none of these.
    """

    def __init__(self, select: str | None) -> None:
        name, equals, value = (select or "").partition("=")
        if select is not None and select not in NAMED and not (equals and name):
            raise InputError(f"select must be {HELP}; not {select!r}")
        self._select = select
        self._name, self._value = name.strip(), value.strip()

    @property
    def is_default(self) -> bool:
        """Whether nothing was asked for."""
        return self._select is None

    def spans(self, spans: Iterable[Span], tree: span_kinds.Tree) -> list[Span]:
        """The spans to count, in their order."""
        match self._select:
            case None:
                return tree.leaves(spans, span_kinds.is_call)
            case "http":
                return tree.leaves(spans, span_kinds.is_http)
            case "genai":
                return tree.leaves(spans, span_kinds.is_model_request)
            case "all":
                return list(spans)
            case "client":
                return [span for span in spans if span_kinds.is_client(span)]
        return [span for span in spans if self._value in map(_text, _told(span, self._name))]

    def columns(self, columns: Columns) -> Columns:
        """The calls to count of a file whose rows are calls.

        Raises:
            InputError: The attribute is no field of a call.
        """
        if self._select in (None, "all", "client", "http"):
            return columns
        name, value = ("kind", Kind.GENERATE) if self._select == "genai" else (self._name, self._value)
        if name not in FIELDS:
            raise InputError(f"a call has no {name!r}; it has {', '.join(FIELDS)}")
        mask = np.array([_text(one) == value for one in values_of(name, columns[name])], dtype=np.bool_)
        return {field: column[mask] for field, column in columns.items()}


def _told(span: Span, name: str) -> Iterator[Any]:
    """What goes by a name in a span: an attribute; without one a field of our call, and what every span has."""
    for attributes in (span.attributes, span.resource):
        if name in attributes:
            yield attributes[name]
            return
    yield span.attributes.get(f"occupancy.{name}")
    yield {"name": span.name, "kind": span.kind, "span.kind": span.kind}.get(name)


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)
