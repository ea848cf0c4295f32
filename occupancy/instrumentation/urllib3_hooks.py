"""Hooks on urllib3's connection pools, and so below requests and botocore: retries, and the wait for a connection.

What goes over the connection is seen by the hooks on `http.client`.
"""

from time import monotonic_ns
from types import ModuleType
from typing import Any

from occupancy import _guard
from occupancy._guard import quietly
from occupancy.call import Call
from occupancy.instrumentation import attempts, exchange, spans
from occupancy.instrumentation.attempts import Trail, current_trail, follow
from occupancy.instrumentation.http_client_hooks import (
    KEY,
    Exchange,
    hook_opening,
    hook_securing,
    hook_tunnelling,
)
from occupancy.instrumentation.patching import Patch, replace_method
from occupancy.instrumentation.phases import Phases
from occupancy.ledger import ledger

RETRIES = 4
"""Where `urlopen` has its `retries` among its positional arguments, after the pool."""
RESPONSE = 2
"""Where `increment` has its `response`."""


@_guard.guarded
def begin(pool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Trail | None:
    """A pool is asked: start the call, or take over that of the client above. The trail, if it is the pool's own."""
    outer = current_trail()
    if outer is not None and outer.flight is not None:
        _enter_pool(outer)
        return None
    if not ledger.logs or bool(quietly(spans.is_suppressed)):
        return None
    attempts.prepare_run()
    call = Call(client="urllib3", start_ns=monotonic_ns())
    quietly(_describe, call, pool, _argument(args, kwargs, 0, "method"), _argument(args, kwargs, 1, "url"))
    earlier = getattr(_argument(args, kwargs, RETRIES, "retries"), KEY, None)
    if earlier is not None:
        call.client = earlier.call.client
    trail = attempts.begin(call, earlier)
    if trail is not None:
        _enter_pool(trail)
    return trail


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str) -> Any:
    return kwargs.get(name, args[place] if place < len(args) else None)


def _describe(call: Call, pool: Any, method: str, url: str) -> None:
    if url.startswith("/"):
        url = f"{pool.scheme}://{exchange.with_port(pool.host, pool.port)}{url}"
    exchange.describe_url(call, method, url, attempts.settings)


def _enter_pool(trail: Trail) -> None:
    now_ns = monotonic_ns()
    trail.call.client_ns = now_ns - trail.call.start_ns
    trail.phases = Phases(trail.call, now_ns) if attempts.settings.phases else None


@_guard.guarded
def mark(response: Any, trail: Trail) -> None:
    """Let a response lead to its call, should it not be the last."""
    setattr(response, KEY, trail)


@_guard.guarded
def link(retries: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Let what is left of the retries lead to the attempt before: who tries again, or is redirected, passes it on."""
    trail = getattr(_argument(args, kwargs, RESPONSE, "response"), KEY, None) or current_trail()
    if trail is not None:
        setattr(retries, KEY, trail)


@_guard.guarded
def pass_down(connection: Any) -> None:
    """The pool has a connection: what it is for goes with it."""
    connection.__dict__.pop(KEY, None)
    trail = current_trail()
    if trail is not None and trail.flight is not None:
        setattr(connection, KEY, Exchange(trail, is_pooled=True))


def patch_pools(module: ModuleType) -> None:
    """Put the hooks into `urllib3.connectionpool`."""
    replace_method(module.HTTPConnectionPool, "urlopen", _hook_urlopen, in_use=ledger.awaits_headers)
    replace_method(module.HTTPConnectionPool, "_get_conn", _hook_get_conn, in_use=ledger.awaits_headers)


def patch_retries(module: ModuleType) -> None:
    """Put the hook into `urllib3.util.retry`."""
    replace_method(module.Retry, "increment", _hook_increment)


def patch_connections(module: ModuleType) -> None:
    """Put the hooks into `urllib3.connection`, whose classes open connections in a way of their own."""
    plain = module.HTTPConnection
    for owner, name, make in (
        (plain, "connect", hook_opening),
        (plain, "_new_conn", hook_opening),
        (plain, "_tunnel", hook_tunnelling),
        (module.HTTPSConnection, "connect", hook_securing),
    ):
        if name in vars(owner):
            replace_method(owner, name, make, in_use=ledger.awaits_headers)


def _hook_urlopen(original: Any, patch: Patch) -> Any:
    def urlopen(pool: Any, *args: Any, **kwargs: Any) -> Any:
        trail = begin(pool, args, kwargs) if patch.active else None
        if trail is None:
            return original(pool, *args, **kwargs)
        response = follow(trail, _status, original, pool, *args, **kwargs)
        mark(response, trail)
        return response

    return urlopen


def _status(response: Any) -> int:
    return int(response.status)


def _hook_increment(original: Any, patch: Patch) -> Any:
    def increment(retries: Any, *args: Any, **kwargs: Any) -> Any:
        left = original(retries, *args, **kwargs)
        link(left, args, kwargs)
        return left

    return increment


def _hook_get_conn(original: Any, patch: Patch) -> Any:
    def _get_conn(pool: Any, *args: Any, **kwargs: Any) -> Any:
        connection = original(pool, *args, **kwargs)
        pass_down(connection)
        return connection

    return _get_conn
