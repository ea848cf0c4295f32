"""Finds the host's OpenTelemetry provider and has OpenTelemetry make the httpx spans that we stamp.

Its instrumentors cost some 200 us a call even where no span is recorded, and importing them imports both clients: so they
are switched on at the first call after a provider exists, not before.
"""

import atexit
import sys
from collections.abc import Callable
from typing import Any

from occupancy import _guard
from occupancy.caller import trace_api
from occupancy.instrumentation import spans
from occupancy.ledger import ledger

_provider: Any = None
_instrumented: list[Any] = []
"""OpenTelemetry's instrumentors that we have switched on."""


def look_for_provider() -> None:
    """Take a provider into use that has been set since the last call."""
    global _provider
    # The module's variable: get_tracer_provider() costs fifty times as much and may install a provider.
    provider = getattr(trace_api(), "_TRACER_PROVIDER", None)
    if provider is not None and provider is not _provider:
        _provider = provider
        attach(provider)


def attach(provider: Any) -> None:
    """Settle held spans when the provider goes, and switch OpenTelemetry's httpx instrumentors on where nobody has."""
    if not hasattr(provider, "add_span_processor"):
        return  # not an SDK's provider: its spans never leave the process
    _guard.guarded(_add_processor)(provider)
    # The provider has registered its exit handler before: ours runs first, so that no held span is lost.
    atexit.register(_guard.guarded(leave))
    _switch_on()


def detach() -> None:
    """Switch off the instrumentors that we have switched on, and end held spans."""
    global _provider
    _provider = None
    for instrumentor in list(_instrumented):
        _withdraw(instrumentor)
    settle()


def leave() -> None:
    """At exit: calls that are still open end as abandoned, and their spans with them."""
    ledger.abandon_open()
    settle()


def settle() -> None:
    """Count what finalizers have left, then end every held span whose end OpenTelemetry has asked for."""
    ledger.settle()
    spans.settle_held()


def _add_processor(provider: Any) -> None:
    from occupancy.instrumentation.settling import SettlingProcessor

    active: Any = getattr(provider, "_active_span_processor", None)
    present = getattr(active, "_span_processors", ())
    if any(isinstance(processor, SettlingProcessor) for processor in present):
        return
    ours = SettlingProcessor()
    provider.add_span_processor(ours)
    added = getattr(active, "_span_processors", ())
    if added and added[-1] is ours:
        # First: a shutdown goes through them in turn, and what we end must still find the exporters.
        active._span_processors = (ours, *added[:-1])


def _switch_on() -> None:
    for module, name in (("httpx2", "HTTPX2ClientInstrumentor"), ("httpx", "HTTPXClientInstrumentor")):
        loaded = sys.modules.get(module)
        if loaded is not None and loaded.__name__ == module:  # httpx may be another name of httpx2
            _instrument(name)


def _instrument(name: str) -> None:
    from opentelemetry.instrumentation import httpx

    instrumentor = getattr(httpx, name)()
    if instrumentor.is_instrumented_by_opentelemetry:
        return
    instrumentor.instrument()
    _instrumented.append(instrumentor)
    # On the instance, which there is one of: whatever the host calls later, ours goes first.
    instrumentor.instrument = _yielding(instrumentor, "instrument")
    instrumentor.uninstrument = _yielding(instrumentor, "uninstrument")


def _yielding(instrumentor: Any, method: str) -> Callable[..., Any]:
    def yield_to_host(**kwargs: Any) -> Any:
        _guard.guarded(_withdraw)(instrumentor)
        return getattr(instrumentor, method)(**kwargs) if method == "instrument" else None

    return yield_to_host


def _withdraw(instrumentor: Any) -> None:
    _instrumented.remove(instrumentor)
    del instrumentor.instrument, instrumentor.uninstrument
    instrumentor.uninstrument()
