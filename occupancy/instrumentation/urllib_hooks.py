"""Hooks on `urllib.request`: it opens a connection for each request, and follows redirects by itself."""

from types import ModuleType
from typing import Any

from occupancy import _guard
from occupancy.instrumentation import attempts
from occupancy.instrumentation.attempts import Trail
from occupancy.instrumentation.patching import Patch, replace_method

KEY = "_occupancy"
REDIRECTED = "_occupancy_redirected"
"""On a request that a redirect has led to: the trail of the one before."""


@_guard.guarded
def begin(request: Any) -> Trail | None:
    """A handler is asked."""
    earlier = request.__dict__.pop(REDIRECTED, None)
    trail = attempts.begin_url("urllib", request.get_method(), request.full_url, earlier)
    if trail is not None:
        setattr(request, KEY, trail)
    return trail


@_guard.guarded
def link(request: Any, redirected: Any) -> None:
    """One request has led to another."""
    trail = getattr(request, KEY, None)
    if redirected is not None and trail is not None:
        setattr(redirected, REDIRECTED, trail)


def patch_urllib(module: ModuleType) -> None:
    """Put the hooks into `urllib.request`."""
    replace_method(module.AbstractHTTPHandler, "do_open", _hook_do_open)
    replace_method(module.HTTPRedirectHandler, "redirect_request", _hook_redirect_request)


def _hook_do_open(original: Any, patch: Patch) -> Any:
    def do_open(handler: Any, http_class: Any, req: Any, **http_conn_args: Any) -> Any:
        trail = begin(req) if patch.active else None
        if trail is None:
            return original(handler, http_class, req, **http_conn_args)
        return attempts.follow(trail, _status, original, handler, http_class, req, **http_conn_args)

    return do_open


def _status(response: Any) -> int:
    return int(response.status)


def _hook_redirect_request(original: Any, patch: Patch) -> Any:
    def redirect_request(handler: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
        redirected = original(handler, req, *args, **kwargs)
        link(req, redirected)
        return redirected

    return redirect_request
