"""`occupancy run --live`: a line at the bottom of the terminal, and the program as it was."""

import fcntl
import os
import pty
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyte
import pytest

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 30
RUN = [sys.executable, "-m", "occupancy", "run", "--live", "--no-report"]
SHELL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp("sh", ["sh", "-c", sys.argv[1]])
"""
"""A shell that is the first process on the terminal, as a login gives it."""

WAITING = """
import os, sys
import occupancy
print("begun", os.getpid(), flush=True)
log = occupancy.instrument()
with log.track("plan"), log.track("fetch"):
    {waiting}
print("done")
"""
WAIT = "open('go').read()"
"""Until the test opens the pipe of that name."""
pytestmark = pytest.mark.skipif(not os.path.exists("/dev/ptmx"), reason="needs pseudo-terminals")


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OCCUPANCY_", "OTEL_"))}
    return {**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm"}


class Terminal:
    """A terminal of 60 columns and 8 rows, on which a shell runs a command."""

    def __init__(self, folder: Path, command: str) -> None:
        self.screen = pyte.Screen(60, 8)
        self._stream = pyte.ByteStream(self.screen)
        self.fd, theirs = pty.openpty()
        self.resize(8)
        self.process = subprocess.Popen(
            [sys.executable, "-c", SHELL, command],
            cwd=folder,
            env=environment(),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        os.set_blocking(self.fd, False)

    def resize(self, rows: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 60, 0, 0))
        self.screen.resize(rows, 60)

    @property
    def rows(self) -> list[str]:
        return [row.rstrip() for row in self.screen.display]

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        give_up_s = time.monotonic() + TIMEOUT_S
        while not is_so():
            assert time.monotonic() < give_up_s, "\n".join(self.rows)
            try:
                self._stream.feed(os.read(self.fd, 65536))
            except BlockingIOError:
                time.sleep(0.005)
            except OSError:  # nobody has it open any more
                assert is_so(), "\n".join(self.rows)

    def wait_for_line(self, row: int = -1) -> None:
        self.wait_until(lambda: self.rows[row].startswith("occupancy: 2 in flight, longest plan "))

    def wait_for(self, text: str) -> None:
        self.wait_until(lambda: text in self.rows)

    def type(self, text: bytes) -> None:
        os.write(self.fd, text)

    def pid(self) -> int:
        """The program's."""
        return next(int(row.split()[1]) for row in self.rows if row.startswith("begun"))


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Run a program on a terminal; the shell then tells its exit code, and waits for a key."""
    os.mkfifo(tmp_path / "go")
    terminals = []

    def begin_one(code: str, redirected: str = "", options: str = "") -> Terminal:
        (tmp_path / "agent.py").write_text(code, encoding="utf-8")
        command = f"{shlex.join(RUN)} {options} agent.py {redirected}; echo exit $?; read key"
        terminals.append(Terminal(tmp_path, command))
        return terminals[-1]

    yield begin_one
    for terminal in terminals:
        os.killpg(terminal.process.pid, signal.SIGKILL)
        terminal.process.wait()
        os.close(terminal.fd)


def go_on(folder: Path) -> None:
    (folder / "go").write_text("")


def test_the_line_stands_below_what_the_program_prints_and_goes_with_it(
    tmp_path: Path, begin: Callable[..., Terminal]
) -> None:
    terminal = begin(WAITING.format(waiting=f"print(*range(20), sep=chr(10), flush=True); {WAIT}"))
    terminal.wait_for_line()
    assert terminal.rows[:-1] == ["14", "15", "16", "17", "18", "19", ""]
    go_on(tmp_path)
    terminal.wait_for("exit 0")
    assert [row for row in terminal.rows if row] == ["15", "16", "17", "18", "19", "done", "exit 0"]
    assert terminal.screen.margins is None


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("sys.exit(3)", 3),
        ("os._exit(7)", 7),
        ("os.kill(os.getpid(), 9)", 137),
        ("os.kill(os.getpid(), 15)", 143),
        ("os.execvp('sh', ['sh', '-c', 'exit 9'])", 9),
        ("os.closerange(3, 100); sys.exit(5)", 5),
        ("os.fork() or open('go').read(); sys.exit(6)", 6),
        ("os.fork() or open('go').read(); os.kill(os.getpid(), 9)", 137),
    ],
)
def test_however_the_program_ends_the_terminal_is_as_it_was(
    tmp_path: Path, begin: Callable[..., Terminal], ending: str, code: int
) -> None:
    terminal = begin(WAITING.format(waiting=f"{WAIT}; {ending}"))
    terminal.wait_for_line()
    go_on(tmp_path)
    terminal.wait_for(f"exit {code}")
    terminal.wait_until(lambda: terminal.screen.margins is None)
    assert not any("in flight" in row for row in terminal.rows)


def test_ctrl_c_is_the_programs(tmp_path: Path, begin: Callable[..., Terminal]) -> None:
    code = WAITING.format(
        waiting=f"""
    try:
        {WAIT}
    except KeyboardInterrupt:
        print("caught", flush=True)
    {WAIT}"""
    )
    terminal = begin(code)
    terminal.wait_for_line()
    terminal.type(b"\x03")
    terminal.wait_for("^Ccaught")
    terminal.wait_for_line()
    terminal.type(b"\x03")
    terminal.wait_for("KeyboardInterrupt")
    terminal.wait_until(lambda: terminal.screen.margins is None)
    assert not any("in flight" in row for row in terminal.rows)


def test_a_new_size_moves_the_line(tmp_path: Path, begin: Callable[..., Terminal]) -> None:
    terminal = begin(WAITING.format(waiting=WAIT))
    terminal.wait_for_line()
    terminal.resize(12)
    terminal.wait_for_line()
    assert [row for row in terminal.rows[:-1] if row] == [f"begun {terminal.pid()}"]


def test_without_the_process_beside_it_the_program_gives_the_row_back(
    tmp_path: Path, begin: Callable[..., Terminal]
) -> None:
    terminal = begin(WAITING.format(waiting=WAIT))
    terminal.wait_for_line()
    [beside] = {pid for pid in processes_with(tmp_path) if pid != terminal.pid()}
    os.kill(beside, signal.SIGKILL)
    go_on(tmp_path)
    terminal.wait_for("exit 0")
    assert terminal.screen.margins is None
    assert not any("in flight" in row for row in terminal.rows)


def processes_with(folder: Path) -> Iterator[int]:
    """The Python processes that run in a folder."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_text().partition("\0")[0]
            if command == sys.executable and (process / "cwd").readlink() == folder:
                yield int(process.name)
        except OSError:  # it has ended meanwhile
            continue


def test_the_program_has_no_child_no_thread_and_no_module_of_ours(
    tmp_path: Path, begin: Callable[..., Terminal]
) -> None:
    code = """
import os, sys, threading
try:
    os.wait()
except ChildProcessError:
    print("no child")
print(threading.active_count(), [name for name in ("rich", "numpy", "click") if name in sys.modules])
"""
    terminal = begin(code)
    terminal.wait_for("exit 0")
    assert [row for row in terminal.rows if row] == ["no child", "1 []", "exit 0"]


def test_what_is_piped_is_what_the_program_wrote(tmp_path: Path, begin: Callable[..., Terminal]) -> None:
    code = f"import sys; sys.stdout.buffer.write(bytes(range(256))); sys.stderr.write('err'); {WAIT}"
    terminal = begin(WAITING.format(waiting=code), "> out 2> err")
    terminal.wait_for_line()
    go_on(tmp_path)
    terminal.wait_for("exit 0")
    out = (tmp_path / "out").read_bytes()
    assert out[out.index(b"\n") + 1 :] == bytes(range(256)) + b"done\n"
    assert (tmp_path / "err").read_bytes() == b"err"


def test_calls_of_before_are_not_shown(tmp_path: Path, begin: Callable[..., Terminal]) -> None:
    before = 'import occupancy\nwith occupancy.instrument().track("old"): pass'
    env = {**environment(), "OCCUPANCY_JOURNAL": "mine.jsonl"}
    subprocess.run([sys.executable, "-c", before], cwd=tmp_path, env=env, check=True)
    terminal = begin(WAITING.format(waiting=WAIT), options="--journal mine.jsonl")
    terminal.wait_for_line()
    assert terminal.rows[-1].endswith(" | 0 ended")


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_without_a_terminal_it_says_so_and_runs_the_program(tmp_path: Path, term: str) -> None:
    (tmp_path / "agent.py").write_text("import sys; print('out'); sys.exit(4)", encoding="utf-8")
    done = subprocess.run(
        [*RUN, "--journal", "mine.jsonl", "agent.py"],
        cwd=tmp_path,
        env={**environment(), "TERM": term},
        capture_output=True,
        start_new_session=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == (b"out\n", 4)
    assert done.stderr == b"occupancy: --live needs a terminal; from another one: occupancy watch mine.jsonl\n"
