"""`occupancy run`: the program is as under python, and its calls are in a journal. Each test compares processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from occupancy.reading import read

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 60
PYTHON = [sys.executable]
RUN = [sys.executable, "-m", "occupancy", "run"]

AGENT = """
import sys
import httpx2
import mock_server

def fetch(url):
    return httpx2.get(f"{url}/generate/plan?x-mock-delay-ms=1").status_code

with mock_server.serve() as url:
    print([fetch(url) for _ in range(3)])
"""


def environment(**variables: str) -> dict[str, str]:
    """This process's, without what would change a run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OCCUPANCY_", "OTEL_"))}
    return {**kept, "PYTHONPATH": str(ROOT), **variables}


def execute(
    command: list[str], folder: Path, stdin: bytes = b"", **variables: str
) -> subprocess.CompletedProcess[bytes]:
    """Run a command in a folder."""
    env = environment(**variables)
    return subprocess.run(
        command, cwd=folder, env=env, input=stdin, capture_output=True, timeout=TIMEOUT_S, check=False
    )


def write(folder: Path, code: str, name: str = "agent.py") -> str:
    """Write a script; give its name."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(code, encoding="utf-8")
    return name


def assert_same(folder: Path, *args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a program under python and under us: stdout and exit code are the same. Gives ours."""
    plain = execute([*PYTHON, *args], folder, stdin)
    traced = execute([*RUN, *args], folder, stdin)
    assert (traced.stdout, traced.returncode) == (plain.stdout, plain.returncode)
    return traced


def journals(folder: Path) -> list[Path]:
    """The journals that runs have left."""
    return sorted(folder.glob("occupancy-*.jsonl"))


# The journal


def test_it_ends_with_the_command_that_opens_the_journal(tmp_path: Path) -> None:
    done = assert_same(tmp_path, write(tmp_path, AGENT))
    assert done.stdout == b"[200, 200, 200]\n"
    [journal] = journals(tmp_path)
    lines = done.stderr.decode("ascii").splitlines()
    assert lines[1].startswith("occupancy: 3 calls in ")
    assert lines[-1] == f"more: occupancy show {journal.name}"
    log = read(journal)
    assert (len(log.calls), log.peak, log.bad_rows) == (3, 1, [])
    shown = execute([sys.executable, "-m", "occupancy", *lines[-1].split()[2:]], tmp_path)
    assert shown.stdout.decode("ascii").splitlines()[0] == lines[1]


def test_without_a_call_no_file_stays(tmp_path: Path) -> None:
    done = execute([*RUN, write(tmp_path, "import requests")], tmp_path)
    assert done.stderr.decode("ascii").splitlines() == [
        "",
        "occupancy: no call was seen; HTTP clients imported: requests",
        "requests: traced, sent no request",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["agent.py"]


def test_the_journal_may_be_named(tmp_path: Path) -> None:
    execute([*RUN, "--journal", "mine.jsonl", write(tmp_path, AGENT)], tmp_path)
    assert len(read(tmp_path / "mine.jsonl").calls) == 3
    assert journals(tmp_path) == []


def test_a_journal_that_cannot_be_written_stops_before_the_program_starts(tmp_path: Path) -> None:
    done = execute([*RUN, "--journal", "no/mine.jsonl", write(tmp_path, "print(1)")], tmp_path)
    assert (done.stdout, done.returncode) == (b"", 1)
    assert done.stderr == b"occupancy: cannot write the journal 'no/mine.jsonl': No such file or directory\n"


def test_the_program_may_change_its_folder(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    done = assert_same(tmp_path, write(tmp_path, f"import os; os.chdir('sub')\n{AGENT}"))
    [journal] = journals(tmp_path)
    assert done.stderr.decode("ascii").splitlines()[-1] == f"more: occupancy show ../{journal.name}"


def test_a_program_with_an_import_of_its_own_reports_once(tmp_path: Path) -> None:
    done = execute([*RUN, write(tmp_path, f"import occupancy.auto\n{AGENT}")], tmp_path)
    assert done.stderr.count(b"occupancy: 3 calls in ") == 1
    assert len(read(journals(tmp_path)[0]).calls) == 3


@pytest.mark.parametrize("options", [["--no-report"], []])
def test_it_can_be_quiet(tmp_path: Path, options: list[str]) -> None:
    report = "1" if options else "0"
    done = execute([*RUN, *options, write(tmp_path, AGENT)], tmp_path, OCCUPANCY_REPORT=report)
    assert done.stderr == b""
    assert len(journals(tmp_path)) == 1


def test_switched_off_it_only_runs_the_program(tmp_path: Path) -> None:
    done = execute([*RUN, write(tmp_path, AGENT)], tmp_path, OCCUPANCY_ENABLED="0")
    assert (done.stdout, done.stderr) == (b"[200, 200, 200]\n", b"")
    assert journals(tmp_path) == []


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_calls_in_flight_at_kill_9_are_open(tmp_path: Path) -> None:
    code = """
import os, signal, threading
import httpx2
import mock_server

with mock_server.serve() as url:
    for _ in range(3):
        target = f"{url}/generate/slow?x-mock-delay-ms=60000"
        threading.Thread(target=httpx2.get, args=[target], kwargs={"timeout": None}, daemon=True).start()
    url.wait_in_flight(3, timeout_s=30)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = execute([*RUN, write(tmp_path, code)], tmp_path)
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, b"")
    log = read(journals(tmp_path)[0])
    assert (len(log.open_calls), log.calls, log.peak) == (3, [], 3)


# The program is its own


@pytest.mark.parametrize("args", [[], ["a", "--help", "-h", "--journal", "x", "--", "-m"]])
def test_arguments_path_and_main_are_as_under_python(tmp_path: Path, args: list[str]) -> None:
    code = """
import sys
main = sys.modules["__main__"]
print(sys.argv, sys.path, __name__, __file__, __spec__, __package__, list(globals())[:9])
print(type(main), vars(main) is globals(), __builtins__.__name__, type(__loader__))
"""
    assert_same(tmp_path, write(tmp_path, code, "sub/agent.py"), *args)


def test_a_module_is_as_under_python_m(tmp_path: Path) -> None:
    write(tmp_path, "", "package/__init__.py")
    write(tmp_path, "print('helper')", "package/helper.py")
    code = "import sys\nfrom . import helper\nprint(sys.argv, sys.path, __name__, __file__, __spec__.name, __package__)"
    write(tmp_path, code, "package/__main__.py")
    write(tmp_path, code, "package/agent.py")
    for name in ("package", "package.agent"):
        assert_same(tmp_path, "-m", name, "a", "--help", "-m")


def test_a_folder_with_a_main_runs(tmp_path: Path) -> None:
    write(tmp_path, "import sys; print(sys.argv, sys.path, __file__, __package__)", "app/__main__.py")
    assert_same(tmp_path, "app", "a")


def test_stdin_and_stdout_are_the_programs_byte_for_byte(tmp_path: Path) -> None:
    code = "import sys\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(line[::-1])"
    done = assert_same(tmp_path, write(tmp_path, code), stdin=b"one\r\n\x00\xff two\nthree")
    assert done.stdout == b"\n\reno\nowt \xff\x00eerht"


def test_none_of_our_imports_are_the_programs(tmp_path: Path) -> None:
    names = ("numpy", "pandas", "matplotlib", "rich", "click", "httpx", "httpx2", "opentelemetry", "asyncio")
    code = f"import sys\nprint([name for name in {names} if name in sys.modules])"
    assert assert_same(tmp_path, write(tmp_path, code)).stdout == b"[]\n"


def test_a_file_that_is_named_as_a_library_of_ours_is_the_programs(tmp_path: Path) -> None:
    write(tmp_path, "print('my own click')", "click.py")
    command = write(tmp_path, "from occupancy.cli import main\nmain()", "bin/occupancy_command.py")
    done = execute([*PYTHON, command, "run", write(tmp_path, "import click")], tmp_path)
    assert (done.stdout, done.returncode) == (b"my own click\n", 0)


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_multiprocessing_works(tmp_path: Path, method: str) -> None:
    code = f"""
import multiprocessing

class Answer:
    def __init__(self, number): self.number = number

def work(number): return Answer(number * number)

if __name__ == "__main__":
    with multiprocessing.get_context("{method}").Pool(2) as pool:
        print([answer.number for answer in pool.map(work, range(4))], type(pool.map(work, [1])[0]))
"""
    done = assert_same(tmp_path, write(tmp_path, code))
    assert done.stdout == b"[0, 1, 4, 9] <class '__main__.Answer'>\n"
    assert done.stderr.count(b"no call was seen") == 1


# However it ends


@pytest.mark.parametrize(
    "ending",
    ["", "sys.exit(3)", "sys.exit('told')", "sys.exit(None)", "1 / 0", "os._exit(7)", "os.abort()", "raise EOFError",
     "raise BrokenPipeError(32, 'gone')", "raise KeyboardInterrupt", "os.kill(os.getpid(), signal.SIGTERM)"],
)  # fmt: skip
def test_exit_codes_are_as_under_python(tmp_path: Path, ending: str) -> None:
    assert_same(tmp_path, write(tmp_path, f"import os, signal, sys\nprint(1, flush=True)\n{ending}"))


@pytest.mark.parametrize(
    "code",
    [
        "def f():\n    1 / 0\nf()",
        "x = = 1",
        "raise KeyboardInterrupt",
        "import sys\nsys.exit('no')",
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    int('x')",
    ],
)
def test_what_the_program_tells_on_stderr_is_as_under_python(tmp_path: Path, code: str) -> None:
    script = write(tmp_path, code)
    plain, traced = execute([*PYTHON, script], tmp_path), execute([*RUN, "--no-report", script], tmp_path)
    assert traced.stderr == plain.stderr


def test_the_programs_own_excepthook_is_asked(tmp_path: Path) -> None:
    code = """
import sys, traceback
def hook(kind, value, tb): print("hook", kind.__name__, [frame.name for frame in traceback.extract_tb(tb)])
sys.excepthook = hook
def f(): raise ValueError
f()
"""
    assert assert_same(tmp_path, write(tmp_path, code)).stdout == b"hook ValueError ['<module>', 'f']\n"


@pytest.mark.parametrize("args", [["missing.py"], ["-m", "no_such_module"]])
def test_no_such_program_is_one_line_and_pythons_exit_code(tmp_path: Path, args: list[str]) -> None:
    done = assert_same(tmp_path, *args)
    assert done.stderr.startswith(b"occupancy: ")
    assert done.stderr.count(b"\n") == 1


def test_ctrl_c_reports_once_and_ends_by_the_signal(tmp_path: Path) -> None:
    code = AGENT.replace("for _ in range(3)])", "for _ in range(3)], flush=True)\n    input()")
    with subprocess.Popen(
        [*RUN, write(tmp_path, code)],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"[200, 200, 200]\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == -signal.SIGINT
    assert stderr.count(b"occupancy: 3 calls in ") == 1
    assert stderr.count(b"KeyboardInterrupt") == 1


def test_a_signal_handler_of_the_program_is_kept(tmp_path: Path) -> None:
    code = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)
os.kill(os.getpid(), signal.SIGTERM)
"""
    assert assert_same(tmp_path, write(tmp_path, code)).returncode == 9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_workers_print_nothing_and_share_the_journal_and_the_report(tmp_path: Path) -> None:
    code = (
        AGENT
        + """
    import os
    child = os.fork()
    if not child:
        fetch(url)
        sys.exit(0)
    os.waitpid(child, 0)
"""
    )
    done = execute([*RUN, write(tmp_path, code)], tmp_path)
    assert done.stderr.count(b"\nstep ") == 1
    assert done.stderr.startswith(b"\noccupancy: 4 calls of 2 processes in ")
    [journal] = journals(tmp_path)
    assert len({call.pid for call in read(journal).calls}) == 2
    assert len(read(journal).calls) == 4


def test_the_report_is_on_this_run_whatever_else_is_in_the_journal(tmp_path: Path) -> None:
    """Workers that `multiprocessing` forks, a program that the program starts, and an earlier run."""
    code = """
import multiprocessing, subprocess, sys
import occupancy

def work(number):
    with occupancy.instrument().track(f"step {number}"):
        return number

if __name__ == "__main__":
    if sys.argv[1:]:
        work(0)
    else:
        workers = [multiprocessing.get_context("fork").Process(target=work, args=[number]) for number in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        subprocess.run([sys.executable, "-m", "occupancy", "run", "--no-report", "--journal", "j", "agent.py", "x"])
"""
    write(tmp_path, code)
    command = [*RUN, "--journal", "j", "agent.py"]
    execute([*command, "x"], tmp_path)
    lines = execute(command, tmp_path).stderr.decode("ascii").splitlines()
    assert lines[1].startswith("occupancy: 3 calls of 3 processes in ")
    assert lines[-2:] == ["1 call was written to j meanwhile by another process", "more: occupancy show j"]
    assert len(read(tmp_path / "j").calls) == 5


def test_show_in_a_pipe_that_closes_is_quiet(tmp_path: Path) -> None:
    execute([*RUN, "--journal", "mine.jsonl", write(tmp_path, AGENT)], tmp_path)
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "occupancy", "show", "mine.jsonl"],
            cwd=tmp_path,
            env=environment(),
            stdout=write_end,
            stderr=subprocess.PIPE,
            timeout=TIMEOUT_S,
            check=False,
        )
    finally:
        os.close(write_end)
    assert done.stderr == b""
