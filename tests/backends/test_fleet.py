"""`occupancy show clickhouse://...` and `chdb://...`: a small fleet whose numbers are worked out by hand."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from clickhouse_server import LOGIN, serve
from otel_traces import COLUMNS, SCHEMA, write_parquet

import occupancy
from occupancy import cli
from occupancy.errors import InputError, ReadError
from occupancy.formats.spans import Span

S = 10**9
HTTP = {"http.request.method": "POST", "url.full": "https://api.example/v1/chat"}
DRAFT = {"occupancy.label": "draft", "occupancy.model": "tiny"}
LOCAL = {"http.method": "GET", "http.url": "http://127.0.0.1:8377/generate/plan"}


def span(name, number, start_s, end_s, attributes, *, parent=None, kind="client", service="agent", instance="a-1"):
    return Span(
        name=name,
        trace_id=f"{1:032x}",
        span_id=f"{number:016x}",
        parent_id=parent and f"{parent:016x}",
        kind=kind,
        start_ns=start_s * S,
        end_ns=end_s * S,
        attributes=attributes,
        resource={"service.name": service, "service.instance.id": instance},
    )


def fleet(end_s):
    """A minute of a fleet that ends at `end_s`.

    Two requests below two of the agent's model requests, one of them begun half a minute before; a model request of a
    second service with none below it, within the first 30 s; and what is no call.
    """
    first = end_s - 60
    chat = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "large"}
    other = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "small"}
    return [
        span("agent", 1, first - 30, end_s, {"gen_ai.operation.name": "invoke_agent"}, kind="internal"),
        span("plan", 2, first - 30, first + 30, chat, parent=1),
        span(
            "POST",
            3,
            first - 30,
            first + 30,
            {**HTTP, "occupancy.call_id": 1, "occupancy.key_id": "0123abcd"},
            parent=2,
        ),
        span("write", 4, first + 15, first + 45, other, parent=1),
        span("GET", 5, first + 15, first + 45, {**LOCAL, **DRAFT}, parent=4, instance="a-2"),
        span(
            "POST /chat", 6, first + 15, first + 45, {"http.route": "/chat"}, parent=5, kind="server", service="proxy"
        ),
        span("ask", 7, first + 0, first + 20, chat, service="batch", instance="b-1"),
        span("upload", 8, first, end_s, {**HTTP, "url.full": "https://x.ingest.sentry.io/api/1/envelope/"}),
    ]


SINCE = 1_800_000_000
WINDOW = "since=2027-01-15T08:00:00&until=2027-01-15T08:01:00&bucket=30s"
"""The minute of `fleet(SINCE + 60)`, in two buckets."""
GROUPS = {
    "model": {"large": ([50 / 30, 0], [2, 0], 2), "tiny": ([0.5, 0.5], [1, 1], 1)},
    "service": {"agent": ([1.5, 0.5], [2, 1], 2), "batch": ([20 / 30, 0], [1, 0], 1)},
    "host": {
        "api.example": ([1, 0], [1, 0], 1),
        "127.0.0.1:8377": ([0.5, 0.5], [1, 1], 1),
        "": ([20 / 30, 0], [1, 0], 1),
    },
    "key": {"0123abcd": ([1, 0], [1, 0], 1), "": ([0.5 + 20 / 30, 0.5], [2, 1], 2)},
    "label": {"plan": ([1, 0], [1, 0], 1), "draft": ([0.5, 0.5], [1, 1], 1), "ask": ([20 / 30, 0], [1, 0], 1)},
    "span": {"POST": ([1, 0], [1, 0], 1), "GET": ([0.5, 0.5], [1, 1], 1), "ask": ([20 / 30, 0], [1, 0], 1)},
    "instance": {"a-1": ([1, 0], [1, 0], 1), "a-2": ([0.5, 0.5], [1, 1], 1), "b-1": ([20 / 30, 0], [1, 0], 1)},
}
"""By grouping: mean and peak of both buckets, and the calls, of each group."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A ClickHouse with the minute of a fleet in `otel.otel_traces`, and the minute that ends now in `otel.recent`."""
    folder = tmp_path_factory.mktemp("spans")
    with serve() as running:
        running.run("CREATE DATABASE otel")
        for name, end_s in (("otel.otel_traces", SINCE + 60), ("otel.recent", int(time.time()) + 5)):
            write_parquet(folder / f"{name}.parquet", fleet(end_s))
            running.run(SCHEMA.format(name=name))
            columns = ", ".join(COLUMNS)
            running.run(
                f"INSERT INTO {name} ({columns}) SELECT {columns} FROM file({{path:String}}, 'Parquet')",
                parameters={"path": str(folder / f"{name}.parquet")},
            )
        yield running


@pytest.fixture
def url(server, monkeypatch):
    """The address of its database, with credentials in the environment."""
    monkeypatch.setenv("CLICKHOUSE_USER", LOGIN[0])
    monkeypatch.setenv("CLICKHOUSE_PASSWORD", LOGIN[1])
    return f"clickhouse://127.0.0.1:{server.server_port}/otel"


@pytest.mark.parametrize("by", GROUPS)
def test_groups(url, by):
    found = occupancy.query(f"{url}?{WINDOW}&by={by}")
    assert (found.n, found.peak, found.mean_in_flight) == (3, 3, pytest.approx(80 / 60))
    assert found.total.in_flight_ns.tolist() == [65 * S, 15 * S]
    assert found.total.peak.tolist() == [3, 1]
    groups = {
        name: (pytest.approx(buckets.mean.tolist()), buckets.peak.tolist(), buckets.n) for name, buckets in found.groups
    }
    assert groups == GROUPS[by]
    means = [buckets.mean_in_flight for _, buckets in found.groups]
    assert means == sorted(means, reverse=True)
    assert (found.by, found.n_groups, found.longest_ns, found.lookback_ns) == (by, len(GROUPS[by]), 60 * S, 90 * S)


def test_one_service_without_groups(url):
    found = occupancy.query(f"{url}?{WINDOW}&service=agent")
    assert (found.n, found.peak, found.groups, found.n_groups) == (2, 2, (), 0)
    assert found.n_bare == 1
    assert found.total.in_flight_ns.tolist() == [45 * S, 15 * S]
    assert found.total.begun.tolist() == [2, 0]


def test_select_by_option_wins_over_the_address(url):
    assert occupancy.query(f"{url}?{WINDOW}&select=genai").n == 3
    assert occupancy.query(f"{url}?{WINDOW}&select=genai", "http").n == 2
    assert occupancy.query(f"{url}?{WINDOW}&select=gen_ai.request.model=small").n == 1


def test_the_last_hour_of_a_server_ends_now(url):
    found = occupancy.query(f"{url}?table=recent&service=agent")
    assert found.total.edges_ns.size == 61
    assert int(found.total.edges_ns[-1]) - int(found.total.edges_ns[0]) == 3600 * S
    assert abs(time.time() - int(found.total.edges_ns[-1]) / S) < 30
    assert (found.n, found.peak) == (2, 2)
    assert found.limits[0] == (
        "late export: spans come when they have ended; the last 1 min, the longest call, reads low, "
        "and what exporters hold back too"
    )


def test_a_call_that_began_before_the_lookback_is_missed_and_that_is_told(url):
    late = "since=2027-01-15T08:00:20&until=2027-01-15T08:01:00&bucket=40s"
    seen, missed = occupancy.query(f"{url}?{late}"), occupancy.query(f"{url}?{late}&lookback=10s")
    # plan's request began 50 s before, write's 5 s; the span of the agent, of 90 s, is longer than both.
    assert (seen.n, seen.total.in_flight_ns.tolist(), seen.is_lookback_short) == (2, [35 * S], False)
    assert (missed.n, missed.total.in_flight_ns.tolist(), missed.is_lookback_short) == (1, [25 * S], True)


def test_what_is_asked_is_no_call_of_the_program(url):
    with occupancy.record() as log:
        occupancy.query(f"{url}?{WINDOW}")
    assert log.calls == []


def test_values_are_bound_and_secrets_stay_in_headers(server, url):
    server.targets.clear()
    with pytest.raises(
        ReadError, match="no spans of service \"x' OR '1'='1\" of that time; it has some of agent, batch"
    ):
        occupancy.query(f"{url}?{WINDOW}&service=x'+OR+'1'%3D'1")
    assert server.targets
    assert not any(LOGIN[1] in target for target in server.targets)


def test_a_login_from_netrc(server, url, monkeypatch, tmp_path):
    monkeypatch.delenv("CLICKHOUSE_USER")
    monkeypatch.delenv("CLICKHOUSE_PASSWORD")
    login = tmp_path / "netrc"
    login.write_text(f"machine 127.0.0.1 login {LOGIN[0]} password {LOGIN[1]}\n")
    login.chmod(0o600)
    monkeypatch.setenv("NETRC", str(login))
    assert occupancy.query(f"{url}?{WINDOW}").n == 3


@pytest.mark.parametrize(
    ("database", "parameters", "reason"),
    [
        ("otel", "table=nothing", "no such table 'nothing'"),
        ("nowhere", "service=agent", "no such database"),
        ("otel", f"{WINDOW}&select=name=no", "none of 8 spans is a call within the window; select=all counts them all"),
        ("otel", "since=2020-01-01T00:00:00&until=2020-01-01T01:00:00", "no spans of that time"),
        ("system", "table=one", "no column 'Duration' in it: it is not the OpenTelemetry collector's table of spans"),
    ],
)
def test_errors_name_the_place_and_the_reason(server, url, database, parameters, reason):
    address = f"clickhouse://127.0.0.1:{server.server_port}/{database}"
    with pytest.raises(ReadError) as told:
        occupancy.query(f"{address}?{parameters}")
    assert str(told.value) == f"{address}: {reason}"


def test_a_wrong_password_is_not_shown(url, monkeypatch):
    monkeypatch.setenv("CLICKHOUSE_PASSWORD", "wr0ng")
    with pytest.raises(ReadError, match="refused; CLICKHOUSE_USER and CLICKHOUSE_PASSWORD") as told:
        occupancy.query(url)
    assert "wr0ng" not in str(told.value)


def test_nobody_answers(monkeypatch):
    with pytest.raises(ReadError, match=r"^clickhouse://127.0.0.1:1: does not answer: Connection refused$"):
        occupancy.query("clickhouse://127.0.0.1:1")


def test_show(url):
    result = CliRunner().invoke(cli.group, ["show", f"{url}?{WINDOW}&by=model"], prog_name="occupancy")
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "occupancy: 3 calls in 1 min, peak 3 in flight, mean 1.33",
        url,
        "2027-01-15 08:00:00 to 2027-01-15 08:01:00 UTC, buckets of 30.0 s",
        "",
        "model  calls  mean  peak  highest in each part of the window",
        "(all)      3  1.33     3  31",
        "large      2  0.83     2  2_",
        "tiny       1  0.50     1  11",
        "",
        "- late export: spans come when they have ended; calls that had not ended are not",
        "  here",
        "- left edge: calls that began up to 1.5 min before it, the longest span, count",
        "  from it on",
        "- sampling: what was not kept does not count; the peak of a sample is not the",
        "  fleet's",
        "- bodies: 1 of 3 spans are not stamped by OccupancySpanProcessor and may end",
        "  with the headers: streams read low; see --select genai",
    ]


def test_show_as_json(url):
    result = CliRunner().invoke(cli.group, ["show", "--json", "--select", "http", f"{url}?{WINDOW}&by=service"])
    found = json.loads(result.output)
    assert found["all"] == {
        "n": 2,
        "peak": 2,
        "mean_in_flight": 1.0,
        "bucket_peak": [2, 1],
        "bucket_mean": [1.5, 0.5],
        "bucket_begun": [2, 0],
    }
    assert [group["name"] for group in found["groups"]] == ["agent"]
    assert (found["source"], found["select"], found["start"]) == (url, "http", "2027-01-15T08:00:00+00:00")


def test_plot(url, tmp_path):
    picture = tmp_path / "fleet.png"
    result = CliRunner().invoke(cli.group, ["plot", f"{url}?{WINDOW}&by=model", "-o", str(picture)])
    assert (result.output, result.exit_code) == (f"{picture}\n", 0)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_table_for_pandas(url):
    frame = occupancy.query(f"{url}?{WINDOW}&by=model").to_pandas()
    assert frame["group"].fillna("all").tolist() == ["all", "all", "large", "large", "tiny", "tiny"]
    assert frame["peak"].tolist() == [3, 1, 2, 0, 1, 1]
    assert frame["begun"].tolist() == [3, 0, 2, 0, 1, 0]
    assert frame["start"].astype(str).tolist()[:2] == ["2027-01-15 08:00:00+00:00", "2027-01-15 08:00:30+00:00"]


# ClickHouse's engine in the process itself: it keeps to one folder, so a database is asked in a process of its own.


def show(address):
    command = [sys.executable, "-m", "occupancy", "show", "--json", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    return done.stdout, done.stderr, done.returncode


def test_parquet_files_are_asked_from_their_first_span_to_their_last(tmp_path: Path):
    write_parquet(tmp_path / "a.parquet", fleet(SINCE + 60)[:3])
    write_parquet(tmp_path / "b.parquet", fleet(SINCE + 60)[3:])
    found = occupancy.query(f"chdb://{tmp_path}/*.parquet?service=agent")
    assert (found.n, found.peak) == (2, 2)
    assert found.total.edges_ns[[0, -1]].tolist() == [(SINCE - 30) * S, (SINCE + 60) * S]
    assert found.mean_in_flight == 90 / 90


def test_a_database_in_a_folder(tmp_path: Path):
    write_parquet(tmp_path / "spans.parquet", fleet(SINCE + 60))
    made = subprocess.run(
        [sys.executable, "-c", MAKE_DATABASE, tmp_path / "database", tmp_path / "spans.parquet", SCHEMA],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    out, err, code = show(f"chdb://{tmp_path}/database?{WINDOW}&database=otel")
    assert (err, code) == ("", 0)
    assert json.loads(out)["all"]["peak"] == 3


MAKE_DATABASE = """
import sys
import chdb
folder, spans, schema = sys.argv[1:]
engine = chdb.connect(folder)
engine.query("CREATE DATABASE otel")
engine.query(schema.format(name="otel.otel_traces"))
columns = "Timestamp, TraceId, SpanId, ParentSpanId, SpanName, SpanKind, ServiceName, ResourceAttributes, " \\
    "SpanAttributes, Duration"
engine.query(f"INSERT INTO otel.otel_traces ({columns}) SELECT {columns} FROM file('{spans}', 'Parquet')")
engine.close()
"""


@pytest.mark.parametrize(
    ("path", "reason"),
    [("nothing.parquet", "no such file"), ("nowhere", "no such folder, and no .parquet file")],
)
def test_a_path_that_is_not_there(tmp_path: Path, path, reason):
    out, err, code = show(f"chdb://{tmp_path}/{path}")
    assert (out, err, code) == ("", f"occupancy: chdb://{tmp_path}/{path}: {reason}\n", 1)


def test_a_window_of_files_that_cannot_be(tmp_path: Path):
    address = write_parquet(tmp_path / "spans.parquet", fleet(SINCE + 60))
    with pytest.raises(InputError, match="the window begins 3540 s after its end"):
        occupancy.query(f"{address}?since=2027-01-15T09:00:00")
    with pytest.raises(InputError, match="1 s makes 86400 buckets of the window; at most 10000"):
        occupancy.query(f"{address}?since=1d&bucket=1s")
