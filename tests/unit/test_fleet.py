"""A fleet's address, its credentials and its report, without a ClickHouse."""

import sys

import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.collections import QuadMesh
from matplotlib.dates import num2date

import occupancy
from occupancy import cli
from occupancy.analysis.buckets import Buckets
from occupancy.errors import DependencyError, InputError, ReadError
from occupancy.fleet.api import WIDTHS_NS, _readable
from occupancy.fleet.connection import check_version, credentials
from occupancy.fleet.question import Engine, Place, Question, parse
from occupancy.fleet.result import FleetOccupancy, Group
from occupancy.views.fleet_text import fleet_report

S = 10**9
HOUR = 3600


# The address


@pytest.mark.parametrize(
    ("url", "place", "shown"),
    [
        ("clickhouse://db", Place(Engine.SERVER, "db", 8123), "clickhouse://db:8123"),
        ("clickhouse://db:9123/otel", Place(Engine.SERVER, "db", 9123, database="otel"), "clickhouse://db:9123/otel"),
        (
            "clickhouses://db/otel",
            Place(Engine.SERVER, "db", 8443, True, database="otel"),
            "clickhouses://db:8443/otel",
        ),
        ("chdb:///a/b.parquet", Place(Engine.PARQUET, path="/a/b.parquet"), "chdb:///a/b.parquet"),
        ("chdb://a/*.parquet", Place(Engine.PARQUET, path="a/*.parquet"), "chdb://a/*.parquet"),
        ("chdb:///a?database=otel", Place(Engine.DATABASE, path="/a", database="otel"), "chdb:///a"),
    ],
)
def test_places(url, place, shown):
    assert parse(url) == (place, Question())
    assert str(place) == shown


def test_every_parameter():
    _, question = parse(
        "clickhouse://db/otel?service=agent&since=90m&until=2027-01-15T08:00:00.5%2B01:00&by=model"
        "&select=http&bucket=10s&table=otel.spans&lookback=2d"
    )
    assert question == Question(
        service="agent",
        ago_ns=90 * 60 * S,
        until_ns=1_800_000_000 * S - HOUR * S + S // 2,
        by="model",
        select="http",
        bucket_ns=10 * S,
        table="otel.spans",
        lookback_ns=48 * HOUR * S,
    )


@pytest.mark.parametrize("text", ["2027-01-15T08:00:00", "2027-01-15T08:00:00Z", "2027-01-15T09:00:00+01:00"])
def test_since_as_a_time(text):
    _, question = parse(f"clickhouse://db?since={text}")
    assert (question.since_ns, question.ago_ns) == (1_800_000_000 * S, None)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("clickhouse:///otel", "no host; write clickhouse://host/database?service=..."),
        ("clickhouse://db:port", "'db:port': no port that can be used"),
        ("chdb://", "no path; write chdb:///folder/spans.parquet?..."),
        ("clickhouse://db?service", "'service': parameters are name=value, with & between"),
        ("clickhouse://db?service=", "service: no value"),
        (
            "clickhouse://db?model=large",
            "'model' is no parameter; these are: service, since, until, by, select, bucket,",
        ),
        ("clickhouse://db?by=colour", "by: 'colour' is not one of model, service, host, key, label, span, instance"),
        ("clickhouse://db?since=soon", "since must be like 90s, 30m, 1h or 2d, not 'soon'"),
        ("clickhouse://db?bucket=0s", "bucket must be like 90s, 30m, 1h or 2d, not '0s'"),
        ("clickhouse://db?until=08:00", "'08:00' is no time; write it as 2026-01-31T14:00:00"),
        ("clickhouse://db?table=a;b", "table: 'a;b' is no name of a table"),
        ("clickhouse://db?table=a.b.c", "table: 'a.b.c' is no name of a table"),
    ],
)
def test_bad_addresses(url, reason):
    with pytest.raises(InputError) as told:
        parse(url)
    assert reason in str(told.value)


def test_a_password_in_an_address_is_refused_and_not_repeated():
    with pytest.raises(InputError, match="set CLICKHOUSE_USER and CLICKHOUSE_PASSWORD") as told:
        parse("clickhouse://me:s3cret@db/otel")
    assert "s3cret" not in str(told.value)


@pytest.mark.parametrize(
    "command", [["report", "-o", "page.html"], ["convert", "calls.json"], ["compare", "calls.csv"]]
)
def test_commands_on_calls_say_that_a_fleet_has_none(command):
    name, *rest = command
    result = CliRunner().invoke(cli.group, [name, "clickhouse://me:s3cret@db", *rest])
    assert str(result.exception) == (
        "clickhouse://: of a fleet there are counts and no calls; ask occupancy show or occupancy plot"
    )


# The connection


def test_credentials_are_those_of_the_environment(monkeypatch, tmp_path):
    login = tmp_path / "netrc"
    login.write_text("machine db login netrc-user password netrc-secret\n")
    login.chmod(0o600)
    monkeypatch.setenv("NETRC", str(login))
    monkeypatch.delenv("CLICKHOUSE_USER", raising=False)
    monkeypatch.delenv("CLICKHOUSE_PASSWORD", raising=False)
    assert credentials("db") == ("netrc-user", "netrc-secret")
    assert credentials("other") == (None, "")
    monkeypatch.setenv("CLICKHOUSE_USER", "me")
    assert credentials("db") == ("me", "")
    monkeypatch.setenv("CLICKHOUSE_PASSWORD", "mine")
    assert credentials("db") == ("me", "mine")


def test_a_server_that_is_too_old_is_refused():
    place, _ = parse("clickhouse://db")
    for version in ("24.4.1.2088", "26.9.2.1", "100.1"):
        check_version(version, place)
    with pytest.raises(
        ReadError, match=r"^clickhouse://db:8123: ClickHouse 24.4 or later is needed; this is 23.12.1.1$"
    ):
        check_version("23.12.1.1", place)


def test_without_the_client_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "clickhouse_connect", None)
    with pytest.raises(DependencyError, match=r"pip install 'occupancy\[fleet\]'"):
        occupancy.query("clickhouse://db/otel?service=agent")


# Buckets


def test_about_sixty_buckets_of_a_width_that_reads_easily():
    minute, day = 60 * S, 86_400 * S
    for least_ns, width_ns in ((minute, minute), (minute + 1, 2 * minute), (19, 20), (day + 1, 2 * day), (0, 1)):
        assert _readable(least_ns) == width_ns
    assert list(WIDTHS_NS) == sorted(set(WIDTHS_NS))


# The report


def buckets(peaks, in_flight_s):
    n = len(peaks)
    edges_ns = (1_800_000_000 + 60 * np.arange(n + 1, dtype=np.int64)) * S
    return Buckets(edges_ns, np.array(in_flight_s) * S, np.array(peaks), np.array(peaks))


def result(groups, total, **changes):
    values = {
        "source": "clickhouse://db:8123/otel", "service": "agent", "select": None, "by": "model",
        "n_groups": len(groups), "n_bare": 0, "longest_ns": 44 * S, "lookback_ns": 90 * S,
        "is_lookback_short": False, "is_live": True,
    }  # fmt: skip
    return FleetOccupancy(**{**values, **changes}, total=total, groups=tuple(Group(*group) for group in groups))


def test_report():
    found = result(
        [("large", buckets([0, 20, 12], [0, 600, 300])), ("", buckets([1, 0, 0], [30, 0, 0]))],
        buckets([1, 20, 12], [30, 600, 300]),
    )
    assert fleet_report(found).splitlines() == [
        "occupancy: 33 calls in 3 min, peak 20 in flight, mean 5.17",
        "clickhouse://db:8123/otel of agent",
        "2027-01-15 08:00:00 to 2027-01-15 08:03:00 UTC, buckets of 1 min",
        "",
        "model   calls  mean  peak  highest in each part of the window",
        "(all)      33  5.17    20  .@*",
        "large      32  5.00    20  _@*",
        "(none)      1  0.17     1  .__",
        "                           _.:-=+*#%@ 0 to 20",
        "",
        "- late export: spans come when they have ended; the last 44.0 s, the longest",
        "  call, reads low, and what exporters hold back too",
        "- left edge: calls that began up to 1.5 min before it, the longest span, count",
        "  from it on",
        "- sampling: what was not kept does not count; the peak of a sample is not the",
        "  fleet's",
    ]
    assert str(found) == fleet_report(found)


def test_a_lookback_that_is_too_short_is_told():
    found = result([], buckets([1], [60]), lookback_ns=86_400 * S, is_lookback_short=True)
    assert found.limits[1] == (
        "left edge: calls that began more than 1 d before it are missed; lookback=... looks further"
    )


def test_spans_that_may_end_with_the_headers_are_told():
    total = buckets([1000, 200], [60_000, 60])
    assert len(result([], total).limits) == 3
    assert result([], total, n_bare=1100).limits[3] == (
        "bodies: 1100 of 1200 spans are not stamped by OccupancySpanProcessor and may end with the headers: "
        "streams read low; see --select genai"
    )


def test_a_picture_has_a_row_for_all_and_for_each_group():
    found = result([("large", buckets([0, 3], [0, 90])), ("", buckets([1, 0], [30, 0]))], buckets([1, 3], [30, 90]))
    ax = found.plot()
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["(all)", "large", "(none)"]
    mesh = next(drawn for drawn in ax.collections if isinstance(drawn, QuadMesh))
    assert np.ma.filled(mesh.get_array(), 0).tolist() == [[1, 3], [0, 3], [1, 0]]
    assert [num2date(edge).strftime("%H:%M") for edge in mesh.get_coordinates()[0, :, 0]] == ["08:00", "08:01", "08:02"]
    assert ax.get_title(loc="left") == "Calls in flight by model\n"
    assert ax.texts[0].get_text() == "4 calls, peak 3 in flight, mean 1.00"


def test_a_picture_of_very_many_groups_says_what_is_left_out():
    groups = [(f"model {number}", buckets([1], [60])) for number in range(1000)]
    ax = result(groups, buckets([1000], [60_000]), n_groups=1234).plot()
    assert len(ax.get_yticklabels()) == 24
    assert ax.texts[0].get_text() == "1,000 calls, peak 1,000 in flight, mean 1,000.00; 1211 more groups"


def test_a_peak_stays_in_a_strip_that_is_narrower_than_the_buckets():
    peaks = np.ones(500, dtype=int)
    peaks[123] = 7
    report = fleet_report(result([], buckets(peaks, peaks * 10), by=None), width=60)
    strip = report.splitlines()[5].split()[-1]
    assert set(strip) == {"1", "7"}
    assert strip.index("7") == 123 // -(-500 // len(strip))
    assert max(map(len, report.splitlines())) <= 60


def test_what_is_beyond_the_table_is_counted():
    groups = [(f"model {number}", buckets([1], [60])) for number in range(1000)]
    lines = fleet_report(result(groups, buckets([1000], [60_000]), n_groups=1234)).splitlines()
    assert sum("model" in line for line in lines) == 1 + 19
    assert "... and 1215 more, less busy" in lines


def test_names_of_others_cannot_move_the_cursor():
    report = fleet_report(result([("\x1b[2Jm\n", buckets([1], [60]))], buckets([1], [60]), service="a\x07"))
    assert "\x1b" not in report
    assert "?[2Jm?" in report
    assert "of a?\n" in report


@pytest.mark.parametrize(
    ("window_s", "told"), [(86_400, "1 d"), (5400, "1.5 h"), (60, "1 min"), (59, "59.0 s"), (0.25, "250 ms")]
)
def test_times_are_told_in_units_of_people(window_s, told):
    edges_ns, one = np.array([0, round(window_s * S)]), np.array([1])
    lines = fleet_report(result([], Buckets(edges_ns, edges_ns[1:], one, one))).splitlines()
    assert lines[0] == f"occupancy: 1 call in {told}, peak 1 in flight, mean 1.00"
    assert lines[2].endswith(f"UTC, buckets of {told}")
