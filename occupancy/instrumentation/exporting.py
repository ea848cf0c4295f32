"""A provider of our own, where the environment says where spans go and the program sets none.

It is private: who asks OpenTelemetry for the global provider does not find it, so a program that sets its own later is
not refused. All of it is the SDK's, which reads the `OTEL_*` variables; ours is how long an exit waits, and that a
collector that fails is told once.
"""

import atexit
import logging
import sys
from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk import _configuration as sdk  # the names are private, what they read is not
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

from occupancy import _guard
from occupancy.instrumentation import destination
from occupancy.instrumentation.imports import when_imported

EXIT_WAIT_S = 3.0
"""Seconds that an exit waits for the last spans to be taken, for each exporter."""
LONGEST_REASON = 300
"""Characters of what an exporter says that are told."""

_said: ContextVar[list[str] | None] = ContextVar("occupancy_said", default=None)
"""Where what our own exporter logs goes, while it exports."""


def new_provider() -> TracerProvider:
    """Make a provider that exports where the environment says, in the SDK's own threads, and leaves with the process.

    Raises:
        CannotExportError: An exporter is not installed, or OTLP has no such protocol here.
        Exception: Whatever an exporter or the SDK raises over a value.
    """
    exporters = [Telling(found.load()()) for found in destination.exporters()]
    meters = NoOpMeterProvider()  # nobody has asked for metrics, and the global one is the program's affair
    provider = TracerProvider(
        sampler=sdk._import_sampler(sdk._get_sampler()),
        id_generator=sdk._import_id_generator(sdk._get_id_generator()),
        shutdown_on_exit=False,
        meter_provider=meters,
    )
    for exporter in exporters:
        provider.add_span_processor(Patient(exporter, meter_provider=meters))
    leave = _guard.guarded(provider.shutdown)
    atexit.register(leave)
    when_imported("multiprocessing.util", lambda util: _leave_with_worker(util, provider, leave))
    return provider


def _leave_with_worker(util: ModuleType, provider: TracerProvider, leave: Callable[[], object]) -> None:
    """Workers of multiprocessing run no exit handlers, but finalizers, of which they forget those of their parent."""

    def finalize(_: object = None) -> None:
        util.Finalize(None, leave, exitpriority=0)

    util.register_after_fork(provider, finalize)
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        finalize()


class Telling:
    """An exporter whose failures are told once, in a line, where the SDK logs each try.

    Args:
        exporter: The exporter. It is asked for everything but to export.
    """

    def __init__(self, exporter: Any) -> None:
        self._exporter = exporter
        self._told = False
        self._said: list[str] = []
        self.is_busy = False
        """Whether it is exporting now."""
        for kind in type(exporter).__mro__:
            logging.getLogger(kind.__module__).addFilter(_keep_quiet)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._exporter, name)

    def export(self, spans: Any) -> SpanExportResult:
        """Export as the exporter does."""
        self._said.clear()
        token = _said.set(self._said)
        self.is_busy = True
        try:
            result: SpanExportResult = self._exporter.export(spans)
        except Exception as error:
            result = SpanExportResult.FAILURE
            self._said.append(f"{type(error).__name__}: {error}")
        finally:
            self.is_busy = False
            _said.reset(token)
        if result is not SpanExportResult.SUCCESS:
            self.tell("the exporter failed")
        return result

    def tell(self, reason: str) -> None:
        """Tell once that spans are lost, and why: also in the exporter's own words, where it has said something."""
        if not self._told:
            self._told = True
            said = " ".join(": ".join((reason, *self._said[:1])).split())
            _guard.tell(f"spans are lost on their way to {destination.collector_address()}: {said[:LONGEST_REASON]}")


def _keep_quiet(record: logging.LogRecord) -> bool:
    """Keep what our exporter logs to ourselves; what a host's own exporter logs goes where it went."""
    said = _said.get()
    if said is None:
        return True
    said.append(record.getMessage())
    return False


class Patient(BatchSpanProcessor):
    """Waits so long at a shutdown and no longer, where the SDK's would wait for half a minute."""

    def __init__(self, exporter: Telling, meter_provider: NoOpMeterProvider) -> None:
        super().__init__(exporter, meter_provider=meter_provider)  # type: ignore[arg-type]  # an exporter by its methods
        self._telling = exporter

    def shutdown(self) -> None:
        """Export what is left, for as long as an exit may take."""
        try:
            self._batch_processor.shutdown(int(EXIT_WAIT_S * 1000))
        except KeyboardInterrupt:  # a second Ctrl-C: no waiting then
            return
        if self._telling.is_busy:
            self._telling.tell(f"the last ones were not taken within {EXIT_WAIT_S:g} s")
