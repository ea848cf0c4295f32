"""`OccupancyInstrumentor`: how `opentelemetry-instrument`, and hosts that list their instrumentors, switch us on."""

from collections.abc import Collection
from typing import Any

from opentelemetry import trace
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]  # its file opts out

from occupancy import _guard, capture
from occupancy.instrumentation import metrics, provider
from occupancy.processor import OccupancySpanProcessor
from occupancy.settings import read_settings


class OccupancyInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Records every call of the process, and stamps its spans.

    `opentelemetry-instrument` finds it by its entry point. `OCCUPANCY_ENABLED=0` or
    `OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=occupancy` switch it off. It prints no report.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """Nothing that must be there: clients are traced where the program imports them."""
        return ()

    @_guard.guarded
    def _instrument(self, **kwargs: Any) -> None:
        """Switch the capture on.

        Args:
            **kwargs: `tracer_provider`, `meter_provider`: where spans and metrics go, instead of the global providers.
        """
        if not read_settings().enabled:
            return
        provider.chosen = kwargs.get("tracer_provider")
        metrics.chosen = kwargs.get("meter_provider")
        capture.begin()
        wanted = provider.chosen or trace.get_tracer_provider()
        if hasattr(wanted, "add_span_processor") and not _has_processor(wanted):
            wanted.add_span_processor(OccupancySpanProcessor())

    @_guard.guarded
    def _uninstrument(self, **kwargs: Any) -> None:
        capture.uninstrument()
        provider.chosen = metrics.chosen = None


def _has_processor(wanted: Any) -> bool:
    """Whether a provider has one of ours, the host's own or from before: a processor cannot be taken out."""
    processors = getattr(getattr(wanted, "_active_span_processor", None), "_span_processors", ())
    return any(isinstance(processor, OccupancySpanProcessor) for processor in processors)
