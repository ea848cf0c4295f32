"""Has OpenTelemetry make the httpx spans that we stamp, and stays with the providers that get them.

Its instrumentors cost some 200 us a call even where no span is recorded, and importing them imports both clients: so
they are switched on at the first call after a provider exists, not before.
"""

import atexit
import functools
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from occupancy import _guard, caller

SCOPES = {
    client: f"opentelemetry.instrumentation.{name}"
    for client, name in (
        ("httpx", "httpx"),
        ("httpx2", "httpx"),
        ("requests", "requests"),
        ("urllib3", "urllib3"),
        ("urllib", "urllib"),
        ("aiohttp", "aiohttp_client"),
    )
}
"""Names of the scopes of OpenTelemetry's HTTP client spans, whoever switched them on, by our names of the clients."""
_HTTP_SCOPES = frozenset(SCOPES.values())
INSTRUMENTORS = ("HTTPX2ClientInstrumentor", "HTTPXClientInstrumentor")
URLS = ("url.full", "http.url", "http.target")
"""Attributes that hold a URL, by new and old names."""
WRAPPED = (("HTTPTransport", "handle_request"), ("AsyncHTTPTransport", "handle_async_request"))
"""The methods that such an instrumentor wraps, by class."""

chosen: Any = None
"""The provider that the host wants our spans to go to, instead of the global one."""
exports_alone = False
"""Whether spans go where the environment says while the program has set no provider; see `exporting`."""

_provider: Any = None
_own: Any = None
"""The provider of our own, once it is made."""
_attached: Any = None
PATIENCE_S = 2.0
"""Seconds that a call waits for another one that switches spans on; it then goes without a span."""
_switching = threading.Lock()


class OnceTracer:
    """Makes the httpx span of a request, unless the host's own instrumentation has made one for it.

    The host may have instrumented one client, or put OpenTelemetry's transport into it; then a second span would tell
    of the same request. Stands in for the provider and for its tracer.

    Args:
        provider: The provider that makes the span.
    """

    def __init__(self, provider: Any) -> None:
        self.active = True
        self._provider = provider
        self._tracer: Any = None

    def get_tracer(self, *args: Any, **kwargs: Any) -> "OnceTracer":
        """Give the instrumentor its tracer."""
        self._tracer = self._provider.get_tracer(*args, **kwargs)
        return self

    def start_as_current_span(self, *args: Any, **kwargs: Any) -> AbstractContextManager[Any]:
        """Start a span as the tracer does; where there is one, give an empty one that is not made current."""
        try:
            api: Any = caller.trace_api()
            if has_span() or not self.active:
                return nullcontext(api.INVALID_SPAN)
            run_span = caller.run_span_above(api.get_current_span())
            if run_span is not None:
                kwargs["context"] = api.set_span_in_context(run_span)
        except Exception as error:  # runs inside the host's request
            _guard.report("occupancy.provider.start_as_current_span", error)
        if "attributes" in kwargs:
            kwargs["attributes"] = _guard.guarded(without_queries)(kwargs["attributes"])
        return self._tracer.start_as_current_span(*args, **kwargs)  # type: ignore[no-any-return]


def without_queries(attributes: Any) -> dict[str, Any]:
    """Leave the query out of a span's URL: OpenTelemetry keeps it, with the keys that some providers take there."""
    return {
        name: value.partition("?")[0] if name in URLS and isinstance(value, str) else value
        for name, value in attributes.items()
    }


class Switched:
    """An instrumentor of OpenTelemetry's that we have switched on, until the host wants it.

    Args:
        instrumentor: The instrumentor, of which there is one in a process.
        provider: Where its spans go.
    """

    def __init__(self, instrumentor: Any, provider: Any) -> None:
        from opentelemetry.metrics import NoOpMeterProvider

        self.instrumentor = instrumentor
        self._tracer = OnceTracer(provider)
        instrument, uninstrument = self._yielding(instrumentor.instrument), self._yielding(None)
        methods = self._methods()
        # Spans only: metrics would be counted twice beside the host's own, and nobody has asked for them.
        instrumentor.instrument(
            tracer_provider=self._tracer, meter_provider=NoOpMeterProvider(), raise_exception_on_conflict=True
        )
        self._wrappers = [(owner, name, vars(owner)[name]) for owner, name in methods]
        # On the instance: whatever the host calls later, ours goes first, so that its hooks and arguments hold.
        instrumentor.instrument, instrumentor.uninstrument = instrument, uninstrument

    def _methods(self) -> list[tuple[type, str]]:
        return [(getattr(self.instrumentor._module, owner), name) for owner, name in WRAPPED]

    def _yielding(self, wanted: Callable[..., Any] | None) -> Callable[..., Any]:
        def yield_to_host(**kwargs: Any) -> Any:
            _guard.guarded(self.withdraw)()
            return None if wanted is None else wanted(**kwargs)

        return yield_to_host

    def withdraw(self) -> None:
        """Switch it off; where somebody has wrapped ours, it stays and makes no span."""
        self._tracer.active = False
        _switched.remove(self)
        del self.instrumentor.instrument, self.instrumentor.uninstrument
        if all(vars(owner).get(name) is wrapper for owner, name, wrapper in self._wrappers):
            self.instrumentor.uninstrument()
        else:  # its own way would take off whatever lies on top
            self.instrumentor._is_instrumented_by_opentelemetry = False


_switched: list[Switched] = []


def has_span() -> bool:
    """Whether the request that is being made has its httpx span: one that was begun since the client was asked."""
    api = caller.trace_api()
    if api is None:
        return False
    span = api.get_current_span()
    return is_http_span(span) and bool(span.get_span_context().span_id != caller.span_above())


def is_http_span(span: Any) -> bool:
    """Whether it is a recording span of OpenTelemetry's HTTP instrumentations, as itself or in Logfire's wrapper."""
    scope = getattr(span, "instrumentation_scope", None)
    return scope is not None and scope.name in _HTTP_SCOPES and span.is_recording()


def look_for_provider() -> None:
    """Take a provider into use that has been set since the last call; calls that start meanwhile wait for it."""
    if not _is_new(_wanted_provider()) or not _switching.acquire(timeout=PATIENCE_S):
        return
    try:
        provider = _wanted_provider()
        if _is_new(provider):
            _use(provider)
    finally:
        _switching.release()


def _wanted_provider() -> Any:
    # The module's variable: get_tracer_provider() costs fifty times as much and may install a provider.
    return getattr(caller.trace_api(), "_TRACER_PROVIDER", None) if chosen is None else chosen


def _is_new(provider: Any) -> bool:
    if provider is None:
        return exports_alone and _provider is None
    return provider is not _provider


def _use(provider: Any) -> None:
    """Have spans go to a provider; where there is none, to our own, until the program sets one."""
    global _provider, _own, exports_alone
    try:
        if provider is None:
            provider = _own = _own_provider()
            exports_alone = provider is not None
        _switch_to(provider)
    finally:
        _provider = provider  # also where it fails: once is enough


def may_be_private() -> bool:
    """Whether spans go to our own provider, or will where the environment says so when a call is made."""
    return exports_alone and _wanted_provider() is None


def private() -> Any:
    """Our own provider where spans go there now, else None."""
    return _own if may_be_private() and _provider is _own else None


@functools.cache
def _own_provider() -> Any:
    """Our own provider, which exports where the environment says; None where it says nothing, or that cannot be."""
    from occupancy.instrumentation import destination

    if not destination.is_asked():
        return None
    try:
        from occupancy.instrumentation import exporting  # imports the SDK

        return exporting.new_provider()
    except Exception as error:  # of an exporter, or over a value of the environment
        _guard.tell(f"spans are not exported: {error}")
        return None


def _switch_to(provider: Any) -> None:
    for switched in tuple(_switched):  # they go to the provider before, which keeps what it has
        switched.withdraw()
    if not hasattr(provider, "add_span_processor"):
        return  # not an SDK's provider: its spans never leave the process
    from opentelemetry.instrumentation import httpx

    for name in INSTRUMENTORS:
        _switch_on(getattr(httpx, name)(), provider)


@_guard.guarded
def _switch_on(instrumentor: Any, provider: Any) -> None:
    module = instrumentor._module
    if module is None or module.__name__ != instrumentor._module_name:
        return  # not installed, or httpx is another name of httpx2
    if not _switched_off_by_user().isdisjoint((module.__name__, "*")):
        return
    if not instrumentor.is_instrumented_by_opentelemetry:
        _switched.append(Switched(instrumentor, provider))


def _switched_off_by_user() -> set[str]:
    return set(map(str.strip, os.environ.get("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "").split(",")))


def detach() -> None:
    """Switch off the instrumentors that we have switched on. Spans that are held are held to their ends."""
    global _provider
    _provider = None
    for switched in tuple(_switched):
        _guard.guarded(switched.withdraw)()


def attach(span: Any, leave: Callable[[], object]) -> None:
    """Have held spans settled before the span's provider flushes or shuts down, and before the process exits.

    Args:
        span: A span of the provider. It leads to the processors that will get it, also where the provider is the host's
            own affair, or was configured anew behind Logfire's.
        leave: What settles them at exit.
    """
    global _attached
    processors = getattr(span, "_span_processor", None)
    if processors is _attached:
        return
    _attached = processors
    # The provider has registered its own exit handler before: ours, registered last, runs first.
    atexit.unregister(leave)
    atexit.register(leave)
    if isinstance(getattr(processors, "_span_processors", None), tuple):
        _put_first(processors)


def _put_first(processors: Any) -> None:
    from occupancy.instrumentation.settling import SettlingProcessor

    with processors._lock:
        present = processors._span_processors
        ours = [processor for processor in present if isinstance(processor, SettlingProcessor)] or [SettlingProcessor()]
        # They are flushed and shut down in turn: what ours ends must still find those that export.
        processors._span_processors = (*ours, *(processor for processor in present if processor not in ours))


def _forget_parent() -> None:
    global _switching
    _switching = threading.Lock()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_forget_parent)
