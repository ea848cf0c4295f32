"""The connections that httpx's pools hold, counted when somebody asks: nothing is counted on a request's way."""

import weakref
from collections import Counter
from typing import Any

Key = tuple[str, int, str]
"""Host, port, and the state as OpenTelemetry names it."""
MOST_KEYS = 1000

_pools: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()
_seen: dict[Key, None] = {}


def note(pool: Any) -> None:
    """Know a connection pool of httpcore or httpcore2."""
    _pools[id(pool)] = pool


def count() -> dict[Key, int]:
    """Count the open connections of all pools; 0 where there were some before."""
    found: Counter[Key] = Counter()
    for pool in filter(None, (reference() for reference in _pools.valuerefs())):
        found.update(key for connection in pool.connections if (key := _key(connection)) is not None)
    for key in found:
        if len(_seen) < MOST_KEYS:
            _seen[key] = None
    return {key: found[key] for key in _seen}


def _key(connection: Any) -> Key | None:
    """What a connection counts as; None where it is not open yet or no more."""
    inner = connection
    while hasattr(inner, "_connection"):  # a proxy's holds a plain one, and that holds the one by its protocol
        inner = inner._connection
    if inner is None or inner.is_closed():
        return None
    origin = getattr(connection, "_remote_origin", None) or connection._origin
    return origin.host.decode("ascii", "replace"), origin.port, "idle" if connection.is_idle() else "active"
