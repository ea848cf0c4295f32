"""Pulling from a backend: servers on loopback that answer as Phoenix and Jaeger do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from click.testing import CliRunner

import occupancy
from occupancy import cli
from occupancy.backends import api as backend_api
from occupancy.backends import jaeger, phoenix
from occupancy.backends.address import parse_address
from occupancy.errors import InputError, ReadError
from occupancy.formats.times import iso_to_ns, ns_to_iso

NOW_NS = 1_790_000_000 * 10**9
MS = 10**6
S = 10**9
SECRET = "s3cret-token"


class Backend:
    """A server whose `answer` gives status, content type and body of each request."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.token: str | None = None
        self.headers: list[dict[str, str]] = []

    def answer(self, path: str, query: dict[str, str]) -> tuple[int, str, str]:
        raise NotImplementedError

    def respond(self, target: str, headers: dict[str, str]) -> tuple[int, str, str]:
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.requests.append((unquote(parts.path), query))
        self.headers.append(headers)
        if self.token is not None and headers.get("authorization") != f"Bearer {self.token}":
            return 401, "text/plain", "Invalid token"
        return self.answer(unquote(parts.path), query)


class FakePhoenix(Backend):
    """The spans of one project, the newest id first, `limit` a page; before 13.9 it knows no `trace_id`."""

    def __init__(self, project: str, spans: list[dict[str, Any]], *, filters_traces: bool = True) -> None:
        super().__init__()
        self.project, self.spans, self.filters_traces = project, spans, filters_traces

    def answer(self, path: str, query: dict[str, str]) -> tuple[int, str, str]:
        if path == "/v1/projects":
            return 200, "application/json", json.dumps({"data": [{"id": "1", "name": self.project}]})
        if path != f"/v1/projects/{self.project}/spans":
            return 404, "text/plain", "Project not found"
        numbered = list(enumerate(self.spans))[::-1]
        if "start_time" in query:
            since_ns = iso_to_ns(query["start_time"])
            numbered = [(n, span) for n, span in numbered if iso_to_ns(span["start_time"]) >= since_ns]
        if "trace_id" in query and self.filters_traces:
            numbered = [(n, span) for n, span in numbered if span["context"]["trace_id"] == query["trace_id"]]
        if "cursor" in query:
            numbered = [(n, span) for n, span in numbered if n <= int(query["cursor"])]
        limit = int(query.get("limit", "100"))
        page, rest = numbered[:limit], numbered[limit:]
        cursor = str(rest[0][0]) if rest else None
        return 200, "application/json", json.dumps({"data": [span for _, span in page], "next_cursor": cursor})


class FakeJaeger(Backend):
    """Traces of services, at most `limit` an answer, and no second page."""

    def __init__(self, traces: list[dict[str, Any]]) -> None:
        super().__init__()
        self.traces = traces

    def answer(self, path: str, query: dict[str, str]) -> tuple[int, str, str]:
        if path == "/api/services":
            names = {p["serviceName"] for trace in self.traces for p in trace["processes"].values()}
            return self._json(200, sorted(names))
        if path.startswith("/api/traces/"):
            found = [trace for trace in self.traces if trace["traceID"] == path.rpartition("/")[2]]
            return self._json(200, found) if found else self._json(404, None, "trace not found")
        if path != "/api/traces":
            return 404, "text/plain", "404 page not found"
        if "service" not in query:
            return self._json(400, None, "parameter 'service' is required")
        found = [trace for trace in self.traces if self._matches(trace, query)]
        return self._json(200, found[: int(query.get("limit", "100"))])

    @staticmethod
    def _matches(trace: dict[str, Any], query: dict[str, str]) -> bool:
        return any(
            trace["processes"][span["processID"]]["serviceName"] == query["service"]
            and int(query["start"]) <= span["startTime"] <= int(query["end"])
            for span in trace["spans"]
        )

    @staticmethod
    def _json(status: int, data: Any, error: str | None = None) -> tuple[int, str, str]:
        errors = None if error is None else [{"code": status, "msg": error}]
        return status, "application/json", json.dumps({"data": data, "total": 0, "errors": errors})


class Serving:
    """Serves a backend on loopback."""

    def __init__(self, backend: Backend) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, kind, body = backend.respond(self.path, {k.lower(): v for k, v in self.headers.items()})
                data = body.encode()
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> str:
        self.thread.start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *_error: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in (backend_api.ANY_TOKEN, *phoenix.TOKENS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setattr("occupancy.backends.time_ns", lambda: NOW_NS)
    return


def phoenix_span(number: int, start_ns: int, end_ns: int, trace: int = 1, **attributes: Any) -> dict[str, Any]:
    """One LLM span as Phoenix gives it: times to the µs."""
    return {
        "id": f"U3Bhbjo{number}",
        "name": "chat",
        "context": {"trace_id": f"{trace:032x}", "span_id": f"{number:016x}"},
        "span_kind": "LLM",
        "parent_id": None,
        "start_time": ns_to_iso(start_ns, digits=6),
        "end_time": ns_to_iso(end_ns, digits=6),
        "status_code": "OK",
        "status_message": "",
        "attributes": {"llm.model_name": "m-1", **attributes},
        "events": [],
    }


def jaeger_trace(number: int, start_ns: int, duration_ns: int, service: str = "agent") -> dict[str, Any]:
    """One trace of Jaeger with one model call of a service, and one request of another."""
    common = {
        "traceID": f"{number:032x}",
        "startTime": start_ns // 1000,
        "duration": duration_ns // 1000,
        "references": [],
        "logs": [],
    }
    tags = [{"key": "span.kind", "type": "string", "value": "client"}]
    model = [{"key": "gen_ai.operation.name", "type": "string", "value": "chat"}]
    http = [{"key": "http.request.method", "type": "string", "value": "GET"}]
    return {
        "traceID": f"{number:032x}",
        "spans": [
            {
                **common,
                "spanID": "a1",
                "operationName": "chat",
                "references": [],
                "tags": tags + model,
                "processID": "p1",
            },
            {
                **common,
                "spanID": "b1",
                "operationName": "GET",
                "references": [],
                "tags": tags + http,
                "processID": "p2",
            },
        ],
        "processes": {"p1": {"serviceName": service, "tags": []}, "p2": {"serviceName": "other", "tags": []}},
    }


def test_phoenix_gives_the_last_hour_page_by_page() -> None:
    calls = [(NOW_NS - 10 * S + number * MS, NOW_NS - 9 * S + number * MS) for number in range(2500)]
    backend = FakePhoenix("default", [phoenix_span(number, *times) for number, times in enumerate(calls, start=1)])
    backend.spans.append(phoenix_span(9999, NOW_NS - 3601 * S, NOW_NS - 3600 * S))
    with Serving(backend) as url:
        log = occupancy.read(f"phoenix+{url}")
    assert (log.summary().n, log.peak) == (2500, 1000)
    assert log.origin_unix_ns == calls[0][0]
    assert {call.model for call in log.calls} == {"m-1"}
    assert [query.get("limit") for _, query in backend.requests] == ["1000"] * 3
    assert backend.requests[0][1]["start_time"] == ns_to_iso(NOW_NS - 3600 * S, digits=6)


def test_since_is_how_far_back() -> None:
    old, new = (NOW_NS - 600 * S, NOW_NS - 599 * S), (NOW_NS - 60 * S, NOW_NS - 59 * S)
    backend = FakePhoenix("my agents", [phoenix_span(1, *old), phoenix_span(2, *new)])
    with Serving(backend) as url:
        assert occupancy.read(f"phoenix+{url}?project=my%20agents&since=5m").summary().n == 1
        assert occupancy.read(f"phoenix+{url}?project=my%20agents&since=1d").summary().n == 2


@pytest.mark.parametrize("filters_traces", [True, False])
def test_a_trace_of_phoenix_whenever_it_was(filters_traces: bool) -> None:
    spans = [phoenix_span(number, number * S, number * S + MS, trace=number) for number in (1, 2)]
    backend = FakePhoenix("default", spans, filters_traces=filters_traces)
    with Serving(backend) as url:
        log = occupancy.read(f"phoenix+{url}?trace={2:032x}")
    assert [call.run for call in log.calls] == [f"{2:032x}"]


def test_jaeger_gives_a_service_and_halves_the_time_where_there_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaeger, "PAGE", 10)
    starts = [NOW_NS - 3599 * S + number * 7 * S for number in range(95)]
    backend = FakeJaeger([jaeger_trace(number, start, 2 * S) for number, start in enumerate(starts, start=1)])
    with Serving(backend) as url:
        log = occupancy.read(f"jaeger+{url}/?service=agent")
    assert sorted(call.start_ns for call in log.calls) == starts
    assert {call.label for call in log.calls} == {"chat"}
    assert all(path == "/api/traces" for path, _ in backend.requests)


def test_a_trace_of_jaeger_has_all_its_services() -> None:
    backend = FakeJaeger([jaeger_trace(7, 5 * S, S)])
    with Serving(backend) as url:
        log = occupancy.read(f"jaeger+{url}?trace={7:x}")
        assert log.peak == 2
        with pytest.raises(ReadError, match=f"has no trace {8:032x}"):
            occupancy.read(f"jaeger+{url}?trace=8")


def test_our_questions_are_no_calls() -> None:
    backend = FakePhoenix("default", [phoenix_span(1, NOW_NS - S, NOW_NS)])
    with Serving(backend) as url, occupancy.record() as log:
        occupancy.read(f"phoenix+{url}")
    assert (log.peak, log.calls, log.open_calls) == (0, [], [])


def test_show_reads_a_backend() -> None:
    backend = FakePhoenix("default", [phoenix_span(1, NOW_NS - 2 * S, NOW_NS - S), phoenix_span(2, NOW_NS - S, NOW_NS)])
    with Serving(backend) as url:
        result = CliRunner().invoke(cli.group, ["show", f"phoenix+{url}", "--json"])
    shown = json.loads(result.output)
    assert (shown["n"], shown["peak"], shown["mean_in_flight"]) == (2, 1, 1.0)


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("?project=nope", "has no project 'nope'; it has default"),
        ("?since=5m", "has no spans of the last 5m"),
        (f"?trace={9:032x}", f"has no trace {9:032x}"),
    ],
)
def test_nothing_found_is_told(query: str, reason: str) -> None:
    backend = FakePhoenix("default", [phoenix_span(1, NOW_NS - 3000 * S, NOW_NS)])
    with Serving(backend) as url, pytest.raises(ReadError) as raised:
        occupancy.read(f"phoenix+{url}{query}")
    assert str(raised.value) == f"{url}: {reason}"


def test_a_service_that_jaeger_does_not_know() -> None:
    with Serving(FakeJaeger([jaeger_trace(1, NOW_NS - S, MS)])) as url:
        with pytest.raises(ReadError, match=r"has no service 'nope'; it has agent, other$"):
            occupancy.read(f"jaeger+{url}?service=nope")
        with pytest.raises(InputError, match="name a service or a trace"):
            occupancy.read(f"jaeger+{url}")


class Saying(Backend):
    """Answers everything alike."""

    def __init__(self, status: int, kind: str, body: str) -> None:
        super().__init__()
        self.said = status, kind, body

    def answer(self, path: str, query: dict[str, str]) -> tuple[int, str, str]:
        return self.said


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (200, "<html>", "answers with something other than JSON objects: is this the address of its API?"),
        (200, "[1]", "answers with something other than JSON objects: is this the address of its API?"),
        (302, "", "status 302"),
        (500, '{"errors": [{"code": 500, "msg": "no disk\\u001b[2J"}]}', "status 500: no disk [2J"),
        (422, '{"detail": "bad start_time"}', "status 422: bad start_time"),
        (503, "try later", "status 503: try later"),
        (403, "no", "asks for credentials (status 403): set OCCUPANCY_BACKEND_TOKEN, or name the host in .netrc"),
        (404, "no", "has no /api/traces: is this Jaeger's query service?"),
    ],
)
def test_an_answer_that_cannot_be_used(status: int, body: str, reason: str) -> None:
    with Serving(Saying(status, "text/plain", body)) as url, pytest.raises(ReadError) as raised:
        occupancy.read(f"jaeger+{url}?service=agent")
    assert str(raised.value) == f"{url}: {reason}"


def test_a_backend_that_is_not_there(tmp_path: Path) -> None:
    with Serving(FakeJaeger([])) as url:
        pass
    with pytest.raises(ReadError, match=rf"^{url}: cannot be reached: .*refused"):
        occupancy.read(f"jaeger+{url}?service=agent")


def test_more_than_can_be_shown_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_api, "MOST_SPANS", 1500)
    spans = [phoenix_span(number, NOW_NS - S, NOW_NS) for number in range(1, 3000)]
    with Serving(FakePhoenix("default", spans)) as url, pytest.raises(ReadError, match="more than 1500 spans"):
        occupancy.read(f"phoenix+{url}")


def test_an_answer_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_api, "MOST_BYTES", 1000)
    with Serving(Saying(200, "text/plain", "x" * 2000)) as url, pytest.raises(ReadError, match="longer than 1000"):
        occupancy.read(f"phoenix+{url}")


def test_a_cursor_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_api, "MOST_REQUESTS", 20)
    body = json.dumps({"data": [], "next_cursor": "1"})
    with (
        Serving(Saying(200, "application/json", body)) as url,
        pytest.raises(ReadError, match="more than 20 questions"),
    ):
        occupancy.read(f"phoenix+{url}")


@pytest.mark.parametrize("name", ["PHOENIX_API_KEY", "OCCUPANCY_BACKEND_TOKEN"])
def test_a_token_from_the_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = FakePhoenix("default", [phoenix_span(1, NOW_NS - S, NOW_NS)])
    backend.token = SECRET
    with Serving(backend) as url:
        with pytest.raises(ReadError, match=r"asks for credentials \(status 401\): set .*PHOENIX_API_KEY"):
            occupancy.read(f"phoenix+{url}")
        monkeypatch.setenv(name, SECRET)
        assert occupancy.read(f"phoenix+{url}").summary().n == 1
        monkeypatch.setenv(name, "wrong")
        with pytest.raises(ReadError, match="refuses the credentials") as raised:
            occupancy.read(f"phoenix+{url}")
        assert "wrong" not in str(raised.value)


def test_a_login_from_netrc(tmp_path: Path) -> None:
    backend = FakeJaeger([jaeger_trace(1, NOW_NS - S, MS)])
    (tmp_path / "netrc").write_text(f"machine 127.0.0.1 login me password {SECRET}\n")
    with Serving(backend) as url:
        assert occupancy.read(f"jaeger+{url}?service=agent").summary().n == 1
    assert backend.headers[0]["authorization"].startswith("Basic ")


def test_a_secret_is_never_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OCCUPANCY_BACKEND_TOKEN", SECRET)
    with Serving(Saying(500, "text/plain", f"you sent {SECRET}")) as url:
        messages = [_message(f"jaeger+{url}?service=agent")]
    monkeypatch.setenv("OCCUPANCY_BACKEND_TOKEN", f"{SECRET}\nx")
    messages.append(_message("jaeger+http://127.0.0.1:1?service=agent"))
    monkeypatch.delenv("OCCUPANCY_BACKEND_TOKEN")
    (tmp_path / "netrc").write_text(f"machine 127.0.0.1 login me pasword {SECRET}\n")
    messages.append(_message("jaeger+http://127.0.0.1:1?service=agent"))
    messages.append(_message(f"jaeger+http://me:{SECRET}@127.0.0.1?service=agent"))
    messages.append(_message(f"jaeger+http://me:{SECRET}@127.0.0.1:port?service=agent"))
    assert [SECRET in message for message in messages] == [False] * 5
    assert "you sent ***" in messages[0]
    assert "line 1 cannot be read" in messages[2]


def _message(address: str) -> str:
    with pytest.raises(occupancy.OccupancyError) as raised:
        occupancy.read(address)
    assert raised.value.__cause__ is None
    return str(raised.value)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("http://127.0.0.1", "http:// is no backend that we read; these are: jaeger+http, jaeger+https, phoenix+http"),
        ("zipkin+http://127.0.0.1", "zipkin+http:// is no backend"),
        ("jaeger+ftp://127.0.0.1", "must be like jaeger+http"),
        ("jaeger+http://", "must be like jaeger+http"),
        ("jaeger+http://h:99999?service=a", "host or port cannot be"),
        (
            "jaeger+http://h?service=a&limit=5",
            "'limit' is no parameter of an address; these are: service, since",
        ),
        ("phoenix+http://h?since=1w", "since must be like 90s, 30m, 1h or 2d, not '1w'"),
        ("phoenix+http://h?since=0h", "since must be like"),
        ("phoenix+http://h?trace=xyz", "trace must be an id"),
    ],
)
def test_an_address_that_cannot_be(address: str, reason: str) -> None:
    with pytest.raises(InputError) as raised:
        occupancy.read(address)
    assert reason in str(raised.value)


@pytest.mark.parametrize(
    ("address", "base_url", "since_s"),
    [
        ("jaeger+http://localhost:16686?service=a", "http://localhost:16686", 3600),
        ("jaeger+https://traces.example/jaeger/?since=90s", "https://traces.example/jaeger", 90),
        ("jaeger+http://[::1]:16686?since=2d", "http://[::1]:16686", 172_800),
    ],
)
def test_an_address_is_taken_apart(address: str, base_url: str, since_s: int) -> None:
    found = parse_address(address, ("service",))
    assert (found.base_url, found.since_ns) == (base_url, since_s * S)
