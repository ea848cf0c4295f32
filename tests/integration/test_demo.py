"""`occupancy demo`: the agent really is serial and overlapped, and the server agrees."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

import occupancy
from occupancy import demo
from occupancy.call import Call
from occupancy.errors import InputError, OccupancyError
from occupancy.reading import read

ROOT = Path(__file__).resolve().parents[2]
STEPS = ["plan", "tool_search", "tool_fetch", "recap"]
PEAKS = {"serial": 1, "threads": 2, "asyncio": 2}


@pytest.fixture(scope="module")
def runs() -> list[demo.DemoRun]:
    """Each agent, run once."""
    return demo.record_runs()


def calls_of(run: demo.DemoRun) -> dict[str | None, Call]:
    """The calls of a run by their labels."""
    return {call.label: call for call in run.log.calls}


def test_peaks_are_exact_and_the_servers_own(runs: list[demo.DemoRun]) -> None:
    assert {run.name: run.log.peak for run in runs} == PEAKS
    assert {run.name: run.server_peak for run in runs} == PEAKS


def test_each_run_has_the_four_steps_once(runs: list[demo.DemoRun]) -> None:
    for run in runs:
        assert sorted(str(call.label) for call in run.log.calls) == sorted(STEPS)
        assert [call.outcome for call in run.log.calls] == ["ok"] * 4
        assert [call.status for call in run.log.calls] == [200] * 4


def test_serial_steps_follow_each_other(runs: list[demo.DemoRun]) -> None:
    calls = calls_of(runs[0])
    for before, after in itertools.pairwise(STEPS):
        assert (calls[before].end_ns or 0) <= calls[after].start_ns


def test_overlapped_tools_run_between_plan_and_recap(runs: list[demo.DemoRun]) -> None:
    for run in runs[1:]:
        calls = calls_of(run)
        for tool in (calls["tool_search"], calls["tool_fetch"]):
            assert (calls["plan"].end_ns or 0) <= tool.start_ns
            assert (tool.end_ns or 0) <= calls["recap"].start_ns
        tools = calls["tool_search"], calls["tool_fetch"]
        assert max(tool.start_ns for tool in tools) < min(tool.end_ns or 0 for tool in tools)


def test_call_sites_are_the_agents_own_lines(runs: list[demo.DemoRun]) -> None:
    lines = Path(demo.__file__).read_text(encoding="utf-8").splitlines()
    for run in runs:
        for call in run.log.calls:
            assert call.call_site is not None
            assert call.call_site.file == demo.__file__
            assert "client.post" in lines[call.call_site.line - 1]


def test_a_server_that_counted_otherwise_is_an_error() -> None:
    with pytest.raises(OccupancyError, match="serial: the log's peak is 0, the server's own 1"):
        demo.check_peaks([demo.DemoRun("serial", occupancy.OccupancyLog(), 1)])


def test_results_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot make the folder"):
        demo.run_demo(tmp_path / "file" / "folder")


def test_the_command_prints_skylines_and_writes_files(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "occupancy", "demo"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert done.stdout.isascii()
    assert lines[lines.index("Serial") + 1].startswith("1 |")
    assert lines[lines.index("Overlapped, in threads") + 1].startswith("2 |")
    rows = {line[:27].strip(): line[27:].split() for line in lines}
    assert rows["peak in flight"] == rows["peak, as the server counted"] == ["1", "2", "2"]
    folder = tmp_path / "occupancy-demo"
    assert (folder / "serial-and-overlapped.png").read_bytes().startswith(b"\x89PNG")
    for name, peak in PEAKS.items():
        assert read(folder / f"{name}-calls.csv").peak == peak
        levels = [row.split(",")[1] for row in (folder / f"{name}-steps.csv").read_text().splitlines()[2:]]
        assert max(levels) == str(peak)
