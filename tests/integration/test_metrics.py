"""Calls as OpenTelemetry metrics: what a reader of the program's own provider collects."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import mock_server
import occupancy
from occupancy.call import Kind
from occupancy.instrumentation import metric_counts, metrics

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 60
CHAT = "/v1/chat/completions?x-mock-chunks=3"
TARGET = {"http.request.method": "POST", "gen_ai.request.model": "m", "occupancy.kind": "generate"}
"""Attributes of a chat, besides the server's."""

Points = dict[str, list[Any]]


class Collected:
    """Collects; gives the data points of a metric."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        self._reader = reader

    def points(self) -> Points:
        data = self._reader.get_metrics_data()
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data else []
        return {
            metric.name: list(metric.data.data_points)
            for scope in scopes
            if scope.scope.name == "occupancy"
            for metric in scope.metrics
        }

    def values(self, name: str) -> list[float]:
        """The values of a metric that are not 0."""
        return [point.value for point in self.points().get(name, []) if point.value]

    def histogram(self, name: str) -> tuple[int, float]:
        """How many values were recorded, and their sum."""
        points = self.points().get(name, [])
        return sum(point.count for point in points), sum(point.sum for point in points)


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch, fresh: None) -> Iterator[Collected]:
    """What a provider of this test's own collects, of this test's calls."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr(metrics, "chosen", provider)
    metrics._counts.restart()
    yield Collected(reader)
    provider.shutdown()


def server(gateway: mock_server.GatewayUrl) -> dict[str, Any]:
    host, _, port = gateway.removeprefix("http://").partition(":")
    return {"server.address": host, "server.port": int(port)}


def test_a_request_is_active_until_its_last_byte(stack: Any, collected: Collected) -> None:
    async def chat() -> None:
        async with stack.opened(stack.client()) as client:
            request = client.build_request("POST", stack.gateway + CHAT, json={"model": "m", "stream": True})
            response = await stack.done(client.send(request, stream=True))
            (point,) = collected.points()["http.client.active_requests"]
            assert (point.value, point.attributes) == (1, {**server(stack.gateway), **TARGET})
            assert collected.values("occupancy.peak") == [1]
            await stack.read(response)
            assert collected.values("http.client.active_requests") == []

    with occupancy.record() as log:
        stack.run(chat)
    (call,) = log.calls
    points = collected.points()
    ended = {**server(stack.gateway), **TARGET, "http.response.status_code": 200}
    assert [point.attributes for point in points["http.client.request.duration"]] == [ended]
    first_chunk = {**server(stack.gateway), **TARGET, "gen_ai.operation.name": "chat"}
    assert [point.attributes for point in points["gen_ai.client.operation.time_to_first_chunk"]] == [first_chunk]
    assert [point.attributes for point in points["occupancy.pool.wait"]] == [{**server(stack.gateway), **TARGET}]
    assert collected.histogram("http.client.request.duration") == (1, (call.end_ns - call.start_ns) / 1e9)
    assert collected.histogram("gen_ai.client.operation.time_to_first_chunk") == (
        1,
        (call.first_event_ns - call.start_ns) / 1e9,
    )
    assert collected.histogram("occupancy.pool.wait") == (1, call.pool_ns / 1e9)


def test_seconds_in_flight_are_those_of_the_log(make_stack: Callable[[str, str], Any], collected: Collected) -> None:
    stack = make_stack("httpx2", "asyncio")

    async def program() -> None:
        async with stack.client() as client:

            async def call(path: str) -> None:
                await client.get(f"{stack.gateway}/generate/{path}")

            await call("plan")
            await stack.at_once(*[lambda path=path: call(path) for path in ("tool_a", "tool_b", "tool_c")])

    with occupancy.record() as log:
        stack.run(program)
    in_flight_ns = sum(level * ns for level, ns in log.time_at_level_ns.items())
    assert sum(collected.values("occupancy.in_flight_seconds")) == pytest.approx(in_flight_ns / 1e9, abs=1e-9)
    assert collected.values("occupancy.peak") == [log.peak]
    kinds = {
        point.attributes["occupancy.kind"]: point.value for point in collected.points()["occupancy.in_flight_seconds"]
    }
    assert kinds.keys() == {"generate", "tool"}


def test_failures_tell_their_type(make_stack: Callable[[str, str], Any], collected: Collected) -> None:
    stack = make_stack("httpx2", "sync")
    with occupancy.record(), stack.client() as client:
        client.get(f"{stack.gateway}/generate/plan?x-mock-status=429")
        with pytest.raises(stack.library.RemoteProtocolError):
            client.get(f"{stack.gateway}/generate/plan?x-mock-cut=before-headers")
    found = [
        (point.attributes.get("http.response.status_code"), point.attributes.get("error.type"))
        for point in collected.points()["http.client.request.duration"]
    ]
    assert sorted(found, key=str) == [(429, "429"), (None, "RemoteProtocolError")]


def test_connections_are_active_then_idle_then_closed(stack: Any, collected: Collected) -> None:
    async def program() -> None:
        async with stack.opened(stack.client()) as client:
            response = await stack.done(
                client.send(client.build_request("GET", stack.gateway + "/generate/plan"), stream=True)
            )
            assert states() == {"active": 1}
            await stack.read(response)
            assert states() == {"active": 0, "idle": 1}
        assert states() == {"active": 0, "idle": 0}

    def states() -> dict[str, float]:
        return {
            point.attributes["http.connection.state"]: point.value
            for point in collected.points()["http.client.open_connections"]
            if point.attributes["server.port"] == server(stack.gateway)["server.port"]
        }

    from occupancy.instrumentation import open_connections

    open_connections._pools.clear()
    open_connections._seen.clear()
    with occupancy.record():
        stack.run(program)


def test_calls_that_are_tracked_by_hand_and_telemetry(collected: Collected) -> None:
    with occupancy.record() as log, log.track("fetch", host="db:5432"), log.track("up", kind=Kind.OTHER):
        (point,) = collected.points()["http.client.active_requests"]
    assert (point.value, point.attributes) == (
        1,
        {"server.address": "db", "server.port": 5432, "occupancy.kind": "tool"},
    )


def test_what_is_not_recorded_is_not_counted(make_stack: Callable[[str, str], Any], collected: Collected) -> None:
    stack = make_stack("httpx2", "sync")
    with stack.client() as client:
        with occupancy.record():
            client.get(f"{stack.gateway}/generate/plan")
        client.get(f"{stack.gateway}/generate/plan")
    assert collected.histogram("http.client.request.duration")[0] == 1


class Api:
    """A provider that follows OpenTelemetry's API and nothing else: its instruments note when they are used."""

    def __init__(self) -> None:
        self.used: list[str] = []
        self.callbacks: list[Any] = []

    def get_meter(self, name: str, version: str) -> "Api":
        return self

    def create_histogram(self, name: str, unit: str, description: str, **advice: Any) -> Any:
        class Histogram:
            @staticmethod
            def record(value: float, attributes: Any) -> None:
                self.used.append(name)

        return Histogram

    def create_observable_counter(self, name: str, callbacks: Any, unit: str, description: str) -> None:
        self.callbacks += callbacks

    create_observable_gauge = create_observable_up_down_counter = create_observable_counter


def test_no_instrument_is_used_on_the_way_of_a_call_and_no_sdk_is_needed(
    make_stack: Callable[[str, str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, stack = Api(), make_stack("httpx2", "sync")
    monkeypatch.setattr(metrics, "chosen", provider)
    metrics._counts.restart()
    with occupancy.record(), stack.client() as client:
        client.get(f"{stack.gateway}/generate/plan")
        assert provider.used == []
        told = [observation.value for callback in provider.callbacks for observation in callback(None)]
        assert provider.used == ["http.client.request.duration", "occupancy.pool.wait"]
    assert told[0] == 0  # active
    assert told[-1] == 1  # peak


def test_a_provider_that_is_no_more_wanted_is_told_nothing(
    make_stack: Callable[[str, str], Any], collected: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = make_stack("httpx2", "sync")
    with occupancy.record():
        pass
    monkeypatch.setattr(metrics, "chosen", Api())
    with occupancy.record(), stack.client() as client:
        client.get(f"{stack.gateway}/generate/plan")
        assert collected.points() == {}


def test_faults_of_ours_change_nothing_for_host_or_log(
    make_stack: Callable[[str, str], Any], collected: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = make_stack("httpx2", "sync")
    monkeypatch.setattr(metric_counts, "attributes_of", lambda call: 1 / 0)
    monkeypatch.setattr("occupancy.instrumentation.open_connections.note", lambda pool: 1 / 0)
    monkeypatch.setattr("occupancy.instrumentation.open_connections.count", lambda: 1 / 0)
    with occupancy.record() as log, stack.client() as client:
        assert client.get(f"{stack.gateway}/generate/plan").status_code == 200
    assert (len(log.calls), log.peak) == (1, 1)
    assert collected.values("occupancy.peak") == []


# A program and its global provider

PROGRAM = """
import occupancy.auto
import httpx2
import mock_server
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

reader = InMemoryMetricReader()

def scopes():
    data = reader.get_metrics_data()
    return {} if data is None else {
        scope.scope.name: {metric.name: metric.data.data_points for metric in scope.metrics}
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
    }

def use():
    metrics.set_meter_provider(MeterProvider([reader]))

with mock_server.serve() as url, httpx2.Client() as client:
"""


def run(code: str, folder: Path, **variables: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OCCUPANCY_", "OTEL_"))}
    env = {**kept, "PYTHONPATH": str(ROOT), "OCCUPANCY_REPORT": "0", **variables}
    (folder / "agent.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "agent.py"],
        cwd=folder, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_provider_that_is_set_later_is_told_of_all_calls(tmp_path: Path) -> None:
    code = f"""{PROGRAM}
    client.get(f"{{url}}/generate/plan")
    with client.stream("GET", f"{{url}}/generate/plan"):
        use()
        client.get(f"{{url}}/generate/plan")
        told = scopes()["occupancy"]
        print([point.value for point in told["http.client.active_requests"]])
    [ours] = [point.value for point in scopes()["occupancy"]["occupancy.in_flight_seconds"]]
    levels = occupancy.auto.log.time_at_level_ns
    print(abs(ours - sum(level * ns for level, ns in levels.items()) / 1e9) < 1e-9)
    print(sum(point.count for point in scopes()["occupancy"]["http.client.request.duration"]))
"""
    assert run(code, tmp_path) == "[1]\nTrue\n2\n"  # histograms begin with the provider


def test_switched_off_there_is_no_metric_of_ours(tmp_path: Path) -> None:
    code = f"{PROGRAM}\n    use()\n    client.get(f'{{url}}/generate/plan')\n    print(list(scopes()))"
    assert run(code, tmp_path, OCCUPANCY_METRICS="0") == "[]\n"


@pytest.mark.parametrize(("opt_in", "told"), [("http", "False"), ("http/dup", "False"), ("", "True")])
def test_a_duration_that_opentelemetry_records_is_not_repeated(tmp_path: Path, opt_in: str, told: str) -> None:
    code = f"""{PROGRAM}
    use()
    from opentelemetry.instrumentation.httpx import HTTPX2ClientInstrumentor
    HTTPX2ClientInstrumentor().instrument()
    client.get(f"{{url}}/generate/plan")
    found = scopes()
    assert "opentelemetry.instrumentation.httpx" in found
    assert "occupancy.pool.wait" in found["occupancy"]
    print("http.client.request.duration" in found["occupancy"])
"""
    assert run(code, tmp_path, OTEL_SEMCONV_STABILITY_OPT_IN=opt_in) == f"{told}\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_tells_its_own_seconds(tmp_path: Path) -> None:
    code = f"""{PROGRAM}
    import os
    use()
    with occupancy.auto.log.track("parent"):
        if not os.fork():
            with occupancy.auto.log.track("child"):
                told = scopes()["occupancy"]
                print([point.value for point in told["http.client.active_requests"]], flush=True)
            os._exit(0)
        os.wait()
        print([point.value for point in scopes()["occupancy"]["http.client.active_requests"]])
"""
    assert run(code, tmp_path) == "[1]\n[1]\n"


def test_the_instrumentor_takes_a_provider(tmp_path: Path) -> None:
    code = f"""{PROGRAM}
    occupancy.OccupancyInstrumentor().instrument(meter_provider=MeterProvider([reader]))
    client.get(f"{{url}}/generate/plan")
    print("occupancy" in scopes())
"""
    assert run(code.replace("import occupancy.auto", "import occupancy"), tmp_path) == "True\n"
