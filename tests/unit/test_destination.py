"""Where the `OTEL_*` variables send spans."""

import pytest

from occupancy.instrumentation import destination
from occupancy.instrumentation.destination import (
    CannotExportError,
    collector_address,
    exporters,
    is_asked,
    set_collector,
)

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
OWN_ENDPOINT = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}


@pytest.mark.parametrize(
    ("environ", "asked"),
    [
        ({}, False),
        (ENDPOINT, True),
        (OWN_ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": " None "}, False),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": ""}, True),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": " TRUE"}, False),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "no"}, True),
        ({**ENDPOINT, "OTEL_CONFIG_FILE": "otel.yaml"}, False),
    ],
)
def test_whether_an_exporter_is_named(environ: dict[str, str], asked: bool) -> None:
    assert is_asked(environ) is asked


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        (ENDPOINT, ["otlp_proto_http"]),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317"}, ["otlp_proto_grpc"]),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317/"}, ["otlp_proto_grpc"]),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
            ["otlp_proto_http"],
        ),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": " grpc "}, ["otlp_proto_grpc"]),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"},
            ["otlp_proto_http"],
        ),
        ({"OTEL_TRACES_EXPORTER": "console, otlp,"}, ["console", "otlp_proto_http"]),
        ({"OTEL_TRACES_EXPORTER": "otlp_proto_grpc"}, ["otlp_proto_grpc"]),
    ],
)
def test_which_exporters_are_named(environ: dict[str, str], names: list[str]) -> None:
    assert [found.name for found in exporters(environ)] == names


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({}, "pip install 'occupancy[otlp]'"),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "pip install opentelemetry-exporter-otlp-proto-grpc, or set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
        ),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "json"}, "the OTLP protocol must be http/protobuf or grpc, not 'json'"),
        ({"OTEL_TRACES_EXPORTER": "mine"}, "OTEL_TRACES_EXPORTER names 'mine', and no package installed here has it"),
    ],
)
def test_what_cannot_be_had_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], told: str
) -> None:
    monkeypatch.setattr(destination, "entry_points", lambda **wanted: ())
    with pytest.raises(CannotExportError) as error:
        exporters(environ)
    assert str(error.value) == told


@pytest.mark.parametrize(
    ("environ", "address"),
    [
        ({}, "the collector"),
        (ENDPOINT, "http://127.0.0.1:4318"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://user:secret@collector.example/path?key=secret"}, "https://collector.example"),
        ({**OWN_ENDPOINT, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://other"}, "http://127.0.0.1:4318"),
    ],
)  # fmt: skip
def test_message_keeps_what_a_url_keeps_secret(environ: dict[str, str], address: str) -> None:
    assert collector_address(environ) == address


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:4318", ENDPOINT),
        ("http://127.0.0.1:4318/v1/traces", OWN_ENDPOINT),
        ("https://collector.example/otlp/", {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://collector.example/otlp/"}),
        ("http://[::1]:4318", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1]:4318"}),
    ],
)
def test_a_collector_that_is_named_replaces_what_was_set(url: str, expected: dict[str, str]) -> None:
    environ = {
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://other",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://another",
        "OTEL_SERVICE_NAME": "agent",
    }
    set_collector(url, environ)
    assert environ == {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SERVICE_NAME": "agent", **expected}


@pytest.mark.parametrize("url", ["127.0.0.1:4318", "http://", "grpc://127.0.0.1:4317", "http://a:b", "http://[", ""])
def test_a_url_that_cannot_be_used_is_named_and_nothing_set(url: str) -> None:
    environ = dict(ENDPOINT)
    with pytest.raises(CannotExportError) as error:
        set_collector(url, environ)
    assert str(error.value) == f"a collector must be a URL as http://127.0.0.1:4318, not {url!r}"
    assert environ == ENDPOINT
