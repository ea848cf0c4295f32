"""Jaeger: the traces of a service, over the API that its page uses."""

from typing import Any

from occupancy.backends.address import Address
from occupancy.backends.api import Api
from occupancy.errors import InputError
from occupancy.formats import jaeger_json
from occupancy.formats.spans import Spans

PARAMETERS = ("service",)
TOKENS = ()
PAGE = 1_000
"""Traces in one answer; the time is halved where there are more, since Jaeger has no next page."""
US = 1_000
AHEAD_NS = 300 * 10**9
"""How far another machine's clock may be ahead of ours."""


def pull(address: Address, api: Api, now_ns: int) -> Spans:
    """Give the spans of a service (`service`) in traces of the time, or all those of one trace.

    Raises:
        InputError: The address names neither.
        ReadError: There is no such service.
    """
    found = Spans()
    if address.trace is not None:
        answer = api.get(f"/api/traces/{address.trace}")
        if answer is not None:
            jaeger_json.read(answer, "/api/traces", found)
        return found
    service = address.parameters.get("service")
    if not service:
        raise InputError(f"{address.base_url}: name a service or a trace: ?service=NAME, ?trace=ID")
    traces: dict[str, Any] = {}
    windows = [((now_ns - address.since_ns) // US, (now_ns + AHEAD_NS) // US)]
    while windows:
        start_us, end_us = windows.pop()
        page = _search(api, service, start_us, end_us)
        traces |= {str(trace.get("traceID")): trace for trace in page}  # one may lie in two windows
        api.limit(sum(len(trace.get("spans") or ()) for trace in traces.values()))
        if len(page) >= PAGE and end_us > start_us:
            middle_us = (start_us + end_us) // 2
            windows += [(start_us, middle_us), (middle_us + 1, end_us)]
    if not traces:
        _check_service(service, api)
    jaeger_json.read({"data": list(traces.values())}, "/api/traces", found)
    found.spans = [span for span in found.spans if span.resource.get("service.name") == service]
    return found


def _search(api: Api, service: str, start_us: int, end_us: int) -> list[dict[str, Any]]:
    answer = api.get("/api/traces", {"service": service, "start": start_us, "end": end_us, "limit": PAGE})
    if answer is None:
        raise api.error("has no /api/traces: is this Jaeger's query service?")
    traces = answer.get("data")
    return [trace for trace in traces if isinstance(trace, dict)] if isinstance(traces, list) else []


def _check_service(service: str, api: Api) -> None:
    names = [str(name) for name in api.get_list("/api/services")]
    if names and service not in names:
        raise api.error(f"has no service {service!r}; it has {', '.join(sorted(names)[:10])}")
