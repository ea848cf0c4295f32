"""The commands, called in this process: what they print, and how they fail."""

import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner, Result

import occupancy
from occupancy import cli
from occupancy.call import Call, Frame, Outcome
from occupancy.cli import program as programs
from occupancy.cli.run import LateJournal
from occupancy.journal import Journal
from occupancy.log import OccupancyLog

MS = 1_000_000


def finished(number: int, start_ms: int, end_ms: int, label: str) -> Call:
    """A call that ended well; `number` is its id."""
    return Call(
        call_id=number,
        logical_id=number,
        label=label,
        run="agent",
        host="api.example",
        path="/v1/chat",
        method="POST",
        call_stack=(Frame("/home/me/agent.py", 10 + number, label),),
        start_ns=start_ms * MS,
        end_ns=end_ms * MS,
        released_ns=end_ms * MS,
        outcome=Outcome.OK,
    )


AGENT = [
    finished(1, 0, 200, "plan"),
    finished(2, 200, 550, "tool_search"),
    finished(3, 201, 540, "tool_fetch"),
    finished(4, 560, 760, "recap"),
]


@pytest.fixture
def agent_csv(tmp_path: Path) -> Path:
    """The reference agent with its tools overlapped: 760 ms, peak 2."""
    OccupancyLog.from_calls(AGENT).dump_csv(tmp_path / "calls.csv")
    return tmp_path / "calls.csv"


@pytest.fixture
def killed_journal(tmp_path: Path) -> Path:
    """A journal of one call that ended and two that did not, behind two lines that cannot be read."""
    journal = Journal(tmp_path / "killed.jsonl")
    for call in (AGENT[0], AGENT[1], AGENT[2]):
        journal.start(Call(call_id=call.call_id, label=call.label, host="api.example", path="/v1/chat", method="POST",
                           start_ns=call.start_ns))  # fmt: skip
    journal.end(AGENT[0])
    journal.close()
    with journal.path.open("a", encoding="utf-8") as file:
        file.write('garbage\n{"event":"sta\n')
    return journal.path


def invoke(*args: str) -> Result:
    """Run a command of the group; its errors are raised, as `main` sees them."""
    return CliRunner().invoke(cli.group, list(args), prog_name="occupancy")


def exit_of_main(monkeypatch: pytest.MonkeyPatch, *args: str) -> object:
    """Run `main` as the shell does; give what the process would exit with."""
    monkeypatch.setattr(sys, "argv", ["occupancy", *args])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


# The group


def test_help_names_every_command() -> None:
    result = invoke("-h")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.output.split("Commands:\n")[1].splitlines()] == list(cli.COMMANDS)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help_in_80_columns(name: str) -> None:
    result = invoke(name, "-h")
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80


def test_version() -> None:
    assert invoke("--version").output == f"occupancy {occupancy.__version__}\n"


@pytest.mark.parametrize("args", [["frobnicate"], ["show"], ["plot", "x.csv"], ["run"], ["show", "--width", "10", "x"]])
def test_a_wrong_command_line_exits_with_2(monkeypatch: pytest.MonkeyPatch, args: list[str]) -> None:
    assert exit_of_main(monkeypatch, *args) == 2


def test_an_error_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_of_main(monkeypatch, "show", "missing.jsonl") == 1
    assert capsys.readouterr() == ("", "occupancy: cannot read 'missing.jsonl': No such file or directory\n")


# show


def test_show_prints_the_report_and_every_label(agent_csv: Path) -> None:
    lines = invoke("show", str(agent_csv)).output.splitlines()
    assert lines[0] == "occupancy: 4 calls in 760 ms, peak 2 in flight, mean 1.43"
    assert lines[1] == "overlapped: up to 2 in flight, mean 1.43"
    first = lines.index(next(x for x in lines if x.startswith("label"))) + 1
    assert [line.split()[0] for line in lines[first : first + 4]] == ["plan", "tool_search", "tool_fetch", "recap"]
    assert "nothing is known to hold the program back" in lines
    assert lines.count("overlapped: up to 2 in flight, mean 1.43") == 1
    assert not any(line.startswith("step ") for line in lines)  # each label is one step: its table says it all


@pytest.mark.parametrize("width", [60, 80, 120])
def test_show_is_plain_ascii_of_at_most_the_width(killed_journal: Path, width: int) -> None:
    output = invoke("show", str(killed_journal), "--width", str(width)).output
    assert output.isascii()
    assert "\x1b" not in output
    assert max(map(len, output.splitlines())) <= width


def test_show_names_open_calls_and_bad_rows(killed_journal: Path) -> None:
    output = invoke("show", str(killed_journal)).output
    assert "2 open calls:\n  tool_search, since 200 ms: POST api.example/v1/chat\n  tool_fetch, since" in output
    assert "\n2 bad rows:\n" in output
    assert output.endswith(f"{killed_journal.name}:7: a torn line\n")


def test_show_names_only_the_first_of_many_bad_rows(killed_journal: Path) -> None:
    with killed_journal.open("a", encoding="utf-8") as file:
        file.write("more garbage\n" * 10)
    assert invoke("show", str(killed_journal)).output.endswith("\n  ... and 7 more\n")


def test_show_of_a_file_without_calls(tmp_path: Path) -> None:
    OccupancyLog().dump_csv(tmp_path / "none.csv")
    assert "nothing to judge: no call was seen" in invoke("show", str(tmp_path / "none.csv")).output


def test_show_json_has_the_summary_with_units(agent_csv: Path) -> None:
    shown = json.loads(invoke("show", str(agent_csv), "--json").output)
    assert (shown["n"], shown["peak"], shown["wall_ns"]) == (4, 2, 760 * MS)
    assert shown["level_ns"] == [10 * MS, 411 * MS, 339 * MS]
    assert shown["verdict"] == "overlapped: up to 2 in flight, mean 1.43"
    assert shown["by_label"][0]["call_sites"] == [
        {"frame": {"file": "/home/me/agent.py", "line": 11, "function": "plan"}, "n": 1}
    ]
    assert shown["n_bad_rows"] == 0


def test_show_json_counts_bad_rows(killed_journal: Path) -> None:
    shown = json.loads(invoke("show", str(killed_journal), "--json").output)
    assert (shown["n_bad_rows"], shown["n_open"]) == (2, 2)
    assert shown["bad_rows"][0] == f"{killed_journal}:6: a torn line"


# plot


@pytest.mark.parametrize(
    ("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF"), (".PNG", b"\x89PNG")]
)
def test_plot_writes_the_format_of_the_suffix(agent_csv: Path, tmp_path: Path, suffix: str, magic: bytes) -> None:
    out = tmp_path / f"picture{suffix}"
    assert invoke("plot", str(agent_csv), "-o", str(out)).output == f"{out}\n"
    assert out.read_bytes().startswith(magic)


def test_plot_draws_the_title(agent_csv: Path, tmp_path: Path) -> None:
    import matplotlib

    out = tmp_path / "picture.svg"
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        invoke("plot", str(agent_csv), "-o", str(out), "--title", "My agent")
    assert "My agent" in out.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["picture.gif", "picture"])
def test_plot_names_the_formats_it_knows(agent_csv: Path, name: str) -> None:
    error = invoke("plot", str(agent_csv), "-o", name).exception
    assert str(error) == f"cannot draw {name!r}: its name must end with one of .png, .svg, .pdf"


def test_plot_that_cannot_be_written(agent_csv: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "no" / "picture.png")
    assert (
        str(invoke("plot", str(agent_csv), "-o", out).exception) == f"cannot write {out!r}: No such file or directory"
    )


# run


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put back after the test what finding a program changes."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.usefixtures("untouched")
def test_a_script_gets_its_own_argv_path_and_main(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("x = 1")
    program = programs.find_script(str(script), ["a", "--help"])
    assert sys.argv == [str(script), "a", "--help"]
    assert sys.path[0] == str(tmp_path.resolve())
    assert type(program.module) is ModuleType
    assert (program.module.__name__, program.module.__file__, program.module.__spec__) == (
        "__main__",
        str(script),
        None,
    )


@pytest.mark.usefixtures("untouched")
def test_a_folder_with_a_main_is_a_script(tmp_path: Path) -> None:
    (tmp_path / "__main__.py").write_text("x = 1")
    program = programs.find_script(str(tmp_path), [])
    assert sys.path[0] == str(tmp_path)
    assert program.module.__file__ == str(tmp_path / "__main__.py")


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(("name", "code"), [("missing.py", 2), ("", 1)])
def test_no_such_script_has_pythons_exit_code(tmp_path: Path, name: str, code: int) -> None:
    with pytest.raises(programs.CannotRunError) as raised:
        programs.find_script(str(tmp_path / name), [])
    assert raised.value.exit_code == code


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("name", ["no_such_module", "no_such_package.module", "json", "", ".relative"])
def test_no_such_module(name: str) -> None:
    with pytest.raises(programs.CannotRunError, match="no module named") as raised:
        programs.find_module(name, [])
    assert raised.value.exit_code == 1


def test_a_late_journal_is_made_by_the_first_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    journal = LateJournal("calls.jsonl")
    monkeypatch.chdir(os.sep)
    assert not journal.path.exists()
    journal.start(Call(call_id=1, start_ns=1))
    journal.end(Call(call_id=1, start_ns=1, end_ns=2))
    journal.close()
    assert len((tmp_path / "calls.jsonl").read_text(encoding="utf-8").splitlines()) == 3


def test_a_late_journal_that_cannot_be_made_is_told_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    journal = LateJournal(tmp_path / "no" / "calls.jsonl")
    for number in (1, 2):
        journal.start(Call(call_id=number, start_ns=number))
    assert capfd.readouterr().err.count("recording goes on without it") == 1
