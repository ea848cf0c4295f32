"""Spans pulled from a tracing backend: one module for each, and what they share."""

from time import time_ns
from types import ModuleType

from occupancy.backends import jaeger, phoenix
from occupancy.backends.address import SCHEMES, parse_address
from occupancy.backends.api import Api
from occupancy.errors import InputError
from occupancy.formats.spans import Spans

BACKENDS: dict[str, ModuleType] = {"jaeger": jaeger, "phoenix": phoenix}


def pull(text: str) -> Spans:
    """Ask a backend for its spans.

    Args:
        text: `BACKEND+http://HOST:PORT?name=value`, also `https`, such as
            `jaeger+http://localhost:16686?service=agent&since=1h`. `since` (`90s`, `30m`, `1h`, `2d`) is how far back
            to look, one hour if not given; `trace` is the id of one trace instead.

    Returns:
        What it holds of that time, or of that trace: at least one span.

    Raises:
        InputError: It is no such address; says what it must be.
        ReadError: The backend cannot be reached, refuses, or has nothing of the kind.
    """
    name, plus, _ = text.partition("://")[0].partition("+")
    backend = BACKENDS.get(name) if plus else None
    if backend is None:
        known = ", ".join(f"{backend}+{scheme}" for backend in BACKENDS for scheme in SCHEMES)
        raise InputError(f"{text.partition('://')[0]}:// is no backend that we read; these are: {known}")
    address = parse_address(text, backend.PARAMETERS)
    with Api(address, backend.TOKENS) as api:
        found: Spans = backend.pull(address, api, time_ns())
        if not found.spans and not found.bad_rows:
            wanted = f"spans of the last {address.since}" if address.trace is None else f"trace {address.trace}"
            raise api.error(f"has no {wanted}")
    return found
