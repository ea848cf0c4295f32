"""Calls as OpenTelemetry metrics, in the program's own meter provider; none is made here, and no SDK is needed.

Everything is told when somebody collects, in the collector's thread: on a call's way no instrument is used, and so
nothing can wait or export there. A provider that is set later is found by OpenTelemetry's API, whose instruments wait
for it; they are made when the program imports that API, so that importing us does not.
"""

import os
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from occupancy import _guard
from occupancy.call import Kind
from occupancy.instrumentation import genai_names, open_connections
from occupancy.instrumentation.imports import forget, when_imported
from occupancy.instrumentation.metric_counts import Attributes, Counts, Ended
from occupancy.ledger import ledger

API = "opentelemetry.metrics"
SCOPE = "occupancy"
DURATION = "http.client.request.duration"
FIRST_CHUNK = "gen_ai.client.operation.time_to_first_chunk"
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 25, 50, 100, 250)
"""Those that OpenTelemetry recommends for HTTP, and four above: models take longer."""
STANDARD_LIBRARY = ("requests", "urllib3", "urllib")
INSTRUMENTATIONS = {
    "httpx": ("httpx",),
    "httpx2": ("httpx",),
    "aiohttp": ("aiohttp_client",),
    **dict.fromkeys(("http.client", "urllib", "urllib3", "requests", "botocore"), STANDARD_LIBRARY),
}
"""Those of OpenTelemetry that tell the durations of a client, by the client's name in a call."""

chosen: Any = None
"""The meter provider that the host wants our metrics in, instead of the global one."""

_counts = Counts(ledger)
_made: "list[Instruments]" = []
_active: "Instruments | None" = None


def install() -> None:
    """Count calls from now on, once the program has imported OpenTelemetry's metrics."""
    when_imported(API, _begin)


def remove() -> None:
    """Count no further calls; those in flight are counted to their ends."""
    forget(API)
    ledger.disregard(_counts)


def _begin(api: ModuleType) -> None:
    global _active
    # No look-up that might install a provider: until there is one, the API's own stands in for it.
    own: Any = api._internal
    found = [made for made in _made if made.provider is chosen]
    if not found:
        found = [Instruments(own, chosen, _counts)]
        _made.extend(found)
    _active = found[0]
    _counts.keeps_ended = _active.is_collected
    ledger.observe(_counts)


class Instruments:
    """The instruments in one provider. They cannot be taken out again: they tell nothing while others are in use.

    Args:
        api: What OpenTelemetry's API keeps to itself.
        provider: The host's choice; None for the global one.
        counts: What they tell.
    """

    def __init__(self, api: Any, provider: Any, counts: Counts) -> None:
        from opentelemetry.metrics import Observation

        from occupancy import __version__

        self.provider = provider
        self._api = api
        self._counts = counts
        self._observation = Observation
        meter = (provider or api._METER_PROVIDER or api._PROXY_METER_PROVIDER).get_meter(SCOPE, __version__)
        meter.create_observable_up_down_counter(
            "http.client.active_requests",
            [self._observed(self._active_requests)],
            "{request}",
            "HTTP requests in flight, each until the last byte of its body",
        )
        meter.create_observable_up_down_counter(
            "http.client.open_connections",
            [self._observed(self._open_connections)],
            "{connection}",
            "Connections that the pools of httpx hold",
        )
        meter.create_observable_counter(
            "occupancy.in_flight_seconds",
            [self._observed(counts.in_flight_s)],
            "s",
            "Sum of the times in flight: its rate is the mean number of requests in flight",
        )
        meter.create_observable_gauge(
            "occupancy.peak",
            [self._observed(lambda: [({}, counts.peak())])],
            "{request}",
            "Most requests in flight at once in the last 60 s, whoever collects and how often",
        )
        self._duration = self._histogram(meter, DURATION, "From the start of a request to the last byte of its body")
        self._first_chunk = self._histogram(meter, FIRST_CHUNK, "From the start of a request to its first event")
        self._pool_wait = self._histogram(
            meter, "occupancy.pool.wait", "In the queue for a connection of the client's own pool"
        )

    def is_collected(self) -> bool:
        """Whether there is a provider that may collect."""
        return self.provider is not None or self._api._METER_PROVIDER is not None

    def _histogram(self, meter: Any, name: str, description: str) -> Any:
        return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=BUCKETS_S)

    def _observed(self, values: Callable[[], Iterable[tuple[Attributes, float]]]) -> Callable[[Any], Any]:
        def observe(options: Any) -> list[Any]:
            told = _guard.quietly(values) if _active is self else None
            return [self._observation(value, attributes) for attributes, value in told or ()]

        return observe

    def _active_requests(self) -> Iterable[tuple[Attributes, float]]:
        """Also has the histograms catch up: the SDK asks this first, and looks at them after."""
        _guard.quietly(self._record_ended)
        return self._counts.in_flight()

    def _open_connections(self) -> Iterable[tuple[Attributes, float]]:
        for (host, port, state), n in open_connections.count().items():
            yield {"server.address": host, "server.port": port, "http.connection.state": state}, n

    def _record_ended(self) -> None:
        by_others = {name: self._recorded_by_others(name) for name in (DURATION, FIRST_CHUNK)}
        for ended in self._counts.take_ended():
            theirs = INSTRUMENTATIONS.get(ended.client or "", ())
            if by_others[DURATION].isdisjoint(f"opentelemetry.instrumentation.{name}" for name in theirs):
                self._duration.record(ended.duration_ns / 1e9, result_attributes(ended))
            if ended.pool_ns is not None:
                self._pool_wait.record(ended.pool_ns / 1e9, ended.attributes)
            if ended.first_event_ns is not None and _is_generation(ended) and not by_others[FIRST_CHUNK]:
                named = genai_names.attributes_of(ended.host, ended.path)
                self._first_chunk.record(ended.first_event_ns / 1e9, ended.attributes | named)

    def _recorded_by_others(self, name: str) -> set[str]:
        """The scopes of the SDK's meters, but ours, that have an instrument of this name."""
        provider = self.provider or self._api._METER_PROVIDER
        meters = list(getattr(provider, "_meters", {}).values())
        return {
            meter.name
            for meter in meters
            if meter.name != SCOPE and any(key.partition(",")[0] == name for key in list(meter._instrument_ids))
        }


def _is_generation(ended: Ended) -> bool:
    return ended.attributes.get("occupancy.kind") == Kind.GENERATE


def result_attributes(ended: Ended) -> Attributes:
    """The attributes of a call's duration: those of its target, and how it ended."""
    attributes = dict(ended.attributes)
    if ended.status is not None:
        attributes["http.response.status_code"] = ended.status
    if ended.error_type is not None:
        attributes["error.type"] = ended.error_type
    return attributes


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_counts.restart)
