"""`occupancy convert`, and `--select` of the commands that read."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import occupancy
from occupancy import cli
from occupancy.call import Call, Kind, Outcome
from occupancy.errors import InputError
from occupancy.log import OccupancyLog

S = 10**9


@pytest.fixture
def agent_csv(tmp_path: Path) -> Path:
    """Two calls that overlap: one asks a model."""
    calls = [
        Call(call_id=1, label="plan", kind=Kind.GENERATE, start_ns=0, end_ns=2 * S, outcome=Outcome.OK),
        Call(call_id=2, label="tool", kind=Kind.TOOL, model="m-1", start_ns=S, end_ns=4 * S, outcome=Outcome.OK),
    ]
    OccupancyLog.from_calls(calls, origin_unix_ns=1_790_000_000 * S).dump_csv(tmp_path / "calls.csv")
    return tmp_path / "calls.csv"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.group, [str(argument) for argument in arguments])


@pytest.mark.parametrize("name", ["out.json", "out.har", "out.csv", "out.JSON.gz", "out.har.gz", "out.csv.gz"])
def test_the_name_tells_the_format(agent_csv: Path, tmp_path: Path, name: str) -> None:
    result = run("convert", agent_csv, tmp_path / name)
    assert (result.exit_code, result.output) == (0, f"{tmp_path / name}\n")
    assert [call.label for call in occupancy.read(tmp_path / name).calls] == ["plan", "tool"]
    assert occupancy.read(tmp_path / name).time_at_level_ns == {0: 0, 1: 3 * S, 2: S}


@pytest.mark.parametrize("name", ["out.trace.json", "out.perfetto.json", "out.txt"])
def test_a_trace_for_perfetto(agent_csv: Path, tmp_path: Path, name: str) -> None:
    arguments = ["--to", "chrome"] if name.endswith(".txt") else []
    assert run("convert", agent_csv, tmp_path / name, *arguments).exit_code == 0
    assert {event["ph"] for event in json.loads((tmp_path / name).read_text())["traceEvents"]} == set("MbeC")


def test_a_name_that_tells_no_format(agent_csv: Path, tmp_path: Path) -> None:
    result = run("convert", agent_csv, tmp_path / "out.xml")
    assert isinstance(result.exception, occupancy.OccupancyError)
    assert "out.xml': its name must end with one of .csv, .har" in str(result.exception)
    assert list(tmp_path.iterdir()) == [agent_csv]


def test_a_file_is_not_written_over_itself(agent_csv: Path, tmp_path: Path) -> None:
    before = agent_csv.read_bytes()
    (tmp_path / "link.csv").symlink_to(agent_csv)
    for out in (agent_csv, tmp_path / "link.csv"):
        result = run("convert", agent_csv, out)
        assert isinstance(result.exception, InputError)
        assert str(result.exception) == f"IN and OUT are one file, {str(out)!r}: only its calls would be left of it"
    assert agent_csv.read_bytes() == before


@pytest.mark.parametrize("name", ["out.json", "out.har", "out.csv"])
@pytest.mark.parametrize(("select", "label"), [("genai", "plan"), ("label=tool", "tool"), ("kind=tool", "tool")])
def test_what_is_written_is_selected_alike(agent_csv: Path, tmp_path: Path, name: str, select: str, label: str) -> None:
    assert run("convert", agent_csv, tmp_path / name).exit_code == 0
    assert [call.label for call in occupancy.read(tmp_path / name, select).calls] == [label]


def test_only_what_is_selected_is_written(agent_csv: Path, tmp_path: Path) -> None:
    assert run("convert", agent_csv, tmp_path / "out.json", "--select", "genai").exit_code == 0
    assert [call.label for call in occupancy.read(tmp_path / "out.json").calls] == ["plan"]


@pytest.mark.parametrize(
    ("select", "n"), [("all", 2), ("client", 2), ("http", 2), ("genai", 1), ("label=tool", 1), ("kind=tool", 1)]
)
def test_show_counts_what_is_selected(agent_csv: Path, select: str, n: int) -> None:
    assert json.loads(run("show", agent_csv, "--select", select, "--json").output)["n"] == n


@pytest.mark.parametrize(
    ("select", "reason"),
    [
        ("label=nope", "nothing in it is selected by 'label=nope'"),
        ("colour=red", "a call has no 'colour'; it has call_id, "),
        ("models", "select must be client, http, genai, all, or an attribute test"),
        ("=x", "select must be"),
    ],
)
def test_a_selection_that_cannot_be(agent_csv: Path, select: str, reason: str) -> None:
    result = run("show", agent_csv, "--select", select)
    assert isinstance(result.exception, occupancy.OccupancyError)
    assert reason in str(result.exception)


def test_the_other_commands_select_too(agent_csv: Path, tmp_path: Path) -> None:
    compared = run("compare", agent_csv, agent_csv, "--select", "genai", "--json").output
    assert ("plan" in compared, "tool" in compared) == (True, False)
    assert run("plot", agent_csv, "-o", tmp_path / "x.svg", "--select", "genai").exit_code == 0
    assert run("report", agent_csv, "-o", tmp_path / "x.html", "--select", "genai").exit_code == 0
