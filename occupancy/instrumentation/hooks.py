"""Puts our hooks into the HTTP clients that a program imports, and takes them out again."""

import gc
from collections.abc import Callable
from types import ModuleType

from occupancy.flight import note_collection
from occupancy.instrumentation import (
    aiohttp_hooks,
    attempts,
    botocore_hooks,
    evidence,
    http_client_hooks,
    httpx_hooks,
    metrics,
    provider,
    requests_hooks,
    run_spans,
    urllib3_hooks,
    urllib_hooks,
)
from occupancy.instrumentation.imports import forget, when_imported
from occupancy.instrumentation.patching import restore_methods
from occupancy.settings import Settings

HOOKS: dict[str, Callable[[ModuleType], None]] = {
    "httpx": httpx_hooks.patch_clients,
    "httpx2": httpx_hooks.patch_clients,
    "httpcore": httpx_hooks.patch_pools,
    "httpcore2": httpx_hooks.patch_pools,
    "http.client": http_client_hooks.patch_http_client,
    "urllib.request": urllib_hooks.patch_urllib,
    "urllib3.connection": urllib3_hooks.patch_connections,
    "urllib3.connectionpool": urllib3_hooks.patch_pools,
    "urllib3.util.retry": urllib3_hooks.patch_retries,
    "requests.adapters": requests_hooks.patch_adapters,
    "requests.sessions": requests_hooks.patch_sessions,
    "botocore.httpsession": botocore_hooks.patch_session,
    "aiohttp": aiohttp_hooks.patch_aiohttp,
}
"""What puts hooks into each module."""


def install(settings: Settings) -> None:
    """Hook the clients that are imported, and the others when they are. Repeats renew the settings and lost hooks."""
    attempts.settings = settings
    if settings.dependence:
        evidence.start()
    if note_collection not in gc.callbacks:
        gc.callbacks.append(note_collection)
    if settings.metrics:
        metrics.install()
    if settings.spans:
        run_spans.install()
    for name, put in HOOKS.items():
        when_imported(name, put)


def remove() -> None:
    """Take the hooks out again, and OpenTelemetry's instrumentors where we have switched them on.

    Bodies that are still read are stamped to their ends, which takes the note on collections; it costs nothing.
    """
    provider.detach()
    run_spans.remove()
    evidence.stop()
    metrics.remove()
    for name in HOOKS:
        forget(name)
    restore_methods()
