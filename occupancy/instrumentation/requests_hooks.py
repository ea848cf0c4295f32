"""Hooks on requests: it sends through its adapter, and follows redirects by itself."""

from collections.abc import Generator
from contextlib import closing
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from occupancy import _guard
from occupancy.instrumentation import attempts
from occupancy.instrumentation.attempts import Trail
from occupancy.instrumentation.patching import Patch, replace_method

KEY = "_occupancy"

_redirected: ContextVar[Trail | None] = ContextVar("occupancy_redirected", default=None)
"""Of the response that redirects to what is sent next."""


@_guard.guarded
def begin(request: Any) -> Trail | None:
    """An adapter is asked."""
    earlier = _redirected.get()
    _redirected.set(None)
    return attempts.begin_url("requests", request.method, request.url, earlier)


@_guard.guarded
def mark(response: Any, trail: Trail) -> None:
    """Let a response lead to its call, should it redirect."""
    setattr(response, KEY, trail)


def patch_adapters(module: ModuleType) -> None:
    """Put the hook into `requests.adapters`."""
    replace_method(module.HTTPAdapter, "send", _hook_send)


def patch_sessions(module: ModuleType) -> None:
    """Put the hook into `requests.sessions`."""
    replace_method(module.SessionRedirectMixin, "resolve_redirects", _hook_redirects)


def _hook_send(original: Any, patch: Patch) -> Any:
    def send(adapter: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        trail = begin(request) if patch.active else None
        if trail is None:
            return original(adapter, request, *args, **kwargs)
        response = attempts.follow(trail, _status, original, adapter, request, *args, **kwargs)
        mark(response, trail)
        return response

    return send


def _status(response: Any) -> int:
    return int(response.status_code)


def _hook_redirects(original: Any, patch: Patch) -> Any:
    def resolve_redirects(session: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        hops = original(session, response, *args, **kwargs)
        return _linked(hops, response) if patch.active else hops

    return resolve_redirects


def _linked(hops: Generator[Any, None, None], response: Any) -> Generator[Any, None, None]:
    """Follow redirects as requests does, each with the response that leads to it known."""
    with closing(hops):
        while True:
            _redirected.set(getattr(response, KEY, None))
            try:
                response = next(hops)
            except StopIteration:
                return
            finally:
                _redirected.set(None)
            yield response
