"""Where the `OTEL_*` variables send spans; read without the SDK, which is imported only where they name an exporter."""

import os
from collections.abc import Iterator, Mapping, MutableMapping
from importlib.metadata import EntryPoint, entry_points
from urllib.parse import urlsplit

from occupancy.errors import OccupancyError

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
HTTP, GRPC = "http/protobuf", "grpc"
GRPC_PORT = ":4317"
"""Where collectors take OTLP over gRPC: that is meant where no protocol is named."""
EXPORTERS = {HTTP: "otlp_proto_http", GRPC: "otlp_proto_grpc"}
"""Names of OpenTelemetry's exporters, by protocol."""
INSTALL = {
    EXPORTERS[HTTP]: "pip install 'occupancy[otlp]'",
    EXPORTERS[GRPC]: f"pip install opentelemetry-exporter-otlp-proto-grpc, or set {PROTOCOLS[1]}={HTTP}",
}
"""What to do where an exporter is missing."""


class CannotExportError(OccupancyError):
    """What the environment asks for cannot be had here."""


def is_asked(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether an exporter of spans is named. `OTEL_CONFIG_FILE` replaces all variables, and sets a global provider."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or environ.get("OTEL_CONFIG_FILE"):
        return False
    named = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    return named != "none" if named else any(map(environ.get, ENDPOINTS))


def exporters(environ: Mapping[str, str] = os.environ) -> list[EntryPoint]:
    """Find the exporters that are named; OTLP without another name.

    Raises:
        CannotExportError: One is not installed (says what to do), or OTLP has no such protocol here (names it).
    """
    named = environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    names = filter(None, map(str.strip, named.split(",")))
    return [_exporter(_otlp(environ) if name == "otlp" else name) for name in names]


def _otlp(environ: Mapping[str, str]) -> str:
    protocol = next(_set(PROTOCOLS, environ), None)
    if protocol is None:
        protocol = GRPC if next(_set(ENDPOINTS, environ), "").rstrip("/").endswith(GRPC_PORT) else HTTP
    if protocol not in EXPORTERS:
        raise CannotExportError(f"the OTLP protocol must be {HTTP} or {GRPC}, not {protocol!r}")
    return EXPORTERS[protocol]


def _exporter(name: str) -> EntryPoint:
    for found in entry_points(group="opentelemetry_traces_exporter", name=name):
        return found
    no_package = f"OTEL_TRACES_EXPORTER names {name!r}, and no package installed here has it"
    raise CannotExportError(INSTALL.get(name, no_package))


def _set(names: tuple[str, ...], environ: Mapping[str, str]) -> Iterator[str]:
    return filter(None, (environ.get(name, "").strip() for name in names))


def collector_address(environ: Mapping[str, str] = os.environ) -> str:
    """Name the collector for a message, without what its URL may keep secret."""
    endpoint = next(_set(ENDPOINTS, environ), None)
    if endpoint is None:
        return "the collector"
    address = urlsplit(endpoint)
    return f"{address.scheme}://{address.netloc.rpartition('@')[2]}"


def set_collector(url: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables so that spans go to an OTLP collector, whatever they said before.

    Args:
        url: Where it listens, as `http://127.0.0.1:4318`; `/v1/traces` behind it may be there or not.
        environ: The environment.

    Raises:
        CannotExportError: It is no http or https URL (shows it), or the exporter is not installed.
    """
    try:
        address = urlsplit(url)
        is_usable = address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise CannotExportError(f"a collector must be a URL as http://127.0.0.1:4318, not {url!r}")
    for name in ENDPOINTS:
        environ.pop(name, None)
    environ[ENDPOINTS[not address.path.rstrip("/").endswith("/v1/traces")]] = url
    environ["OTEL_TRACES_EXPORTER"] = "otlp"
    exporters(environ)
