"""`occupancy watch`: a file that grows, and the view of it on a terminal, in a pipe and as one frame."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from occupancy.call import Call, Frame, Kind
from occupancy.cli import following, group
from occupancy.cli.following import FollowedFile
from occupancy.errors import ReadError
from occupancy.formats.journal_lines import Clock, Tail
from occupancy.journal import Journal, boot_id

S = 1_000_000_000
WATCH = "from occupancy.cli.watch import command; command(standalone_mode=False)"


def a_line(event: str, call_id: int, **fields: Any) -> bytes:
    record = {"event": event, "process": "a", "call_id": call_id, "start_ns": call_id, **fields}
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def a_process(name: str = "a", **fields: Any) -> bytes:
    record = {"event": "process", "process": name, "schema": 1, "pid": 1, "boot_id": "here", "unix_offset_ns": 0}
    return json.dumps({**record, **fields}).encode() + b"\n"


def an_end(call_id: int, **fields: Any) -> bytes:
    return a_line("end", call_id, end_ns=call_id + 5, outcome="ok", **fields)


# The file


def read_all(file: FollowedFile) -> bytes:
    return b"".join(iter(file.read, b""))


def test_whole_lines_are_given_once(tmp_path: Path) -> None:
    path = tmp_path / "f"
    file = FollowedFile(str(path))
    assert (file.read(), file.found) == (b"", False)
    with path.open("ab", buffering=0) as writer:
        writer.write(b"one\ntw")
        assert (read_all(file), file.found) == (b"one\n", True)
        writer.write(b"o")
        assert read_all(file) == b""
        writer.write(b"\nthree\n")
        assert read_all(file) == b"two\nthree\n"
        assert read_all(file) == b""


def test_pieces_are_small_and_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "PIECE_BYTES", 10)
    path = tmp_path / "f"
    lines = [b"%d" % number * 7 + b"\n" for number in range(20)]
    path.write_bytes(b"".join(lines))
    file = FollowedFile(str(path))
    assert file.read() == lines[0]
    assert file.behind_bytes == path.stat().st_size - 10
    assert file.read() + read_all(file) == b"".join(lines[1:])


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "LONGEST_LINE_BYTES", 100)
    monkeypatch.setattr(following, "PIECE_BYTES", 60)
    path = tmp_path / "f"
    path.write_bytes(b"x" * 1000)
    file = FollowedFile(str(path))
    assert [len(file.read()) for _ in range(7)] == [180, 180, 180, 180, 180, 0, 0]
    assert sum(map(len, file._sources[0]._rest)) == 100


@pytest.mark.parametrize("anew", [b"new\n", b"new\n" * 3, b"new\n" * 100])
def test_a_file_that_is_emptied_is_read_from_its_begin(tmp_path: Path, anew: bytes) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old 1\nold 2\nhalf a li")
    file = FollowedFile(str(path))
    read_all(file)
    path.write_bytes(anew)
    assert read_all(file) == anew


def test_a_file_that_is_replaced_is_read_on_and_so_is_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with path.open("ab", buffering=0) as old:
        old.write(b"1\n")
        file = FollowedFile(str(path))
        assert read_all(file) == b"1\n"
        path.rename(tmp_path / "f.1")
        old.write(b"2\n")
        assert read_all(file) == b"2\n"  # while there is none of this name
        path.write_bytes(b"3\n")
        old.write(b"4\n")
        assert read_all(file) == b"4\n3\n"


def test_of_files_that_were_replaced_the_newest_stay_open(tmp_path: Path) -> None:
    path = tmp_path / "f"
    file = FollowedFile(str(path))
    for number in range(10):
        path.write_bytes(b"%d\n" % number)
        assert read_all(file) == b"%d\n" % number
        path.rename(tmp_path / f"f.{number}")
    assert len(file._sources) == following.FILES


def test_the_begin_may_be_left_out_of_a_file_but_not_of_the_next(tmp_path: Path) -> None:
    path = tmp_path / "f"
    file = FollowedFile(str(path), skip_bytes=8)
    path.write_bytes(b"old\nold\nnew\n")
    assert read_all(file) == b"new\n"
    path.rename(tmp_path / "f.1")
    path.write_bytes(b"another\n")
    assert read_all(file) == b"another\n"


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="no regular file"):
        FollowedFile(str(tmp_path)).read()
    with pytest.raises(ReadError, match="Not a directory"):
        FollowedFile(__file__ + "/f").read()


# Its lines


def test_ends_are_given_before_what_is_still_open() -> None:
    tail = Tail("j", Clock("here", 0))
    stack = [["/agent.py", 3, "f"]]
    data = (
        a_process() + a_line("start", 1) + a_line("start", 2, call_stack=stack, kind="generate") + an_end(1, status=200)
    )
    first, second = tail.feed(data)
    assert first == ("a", Call(call_id=1, start_ns=1, end_ns=6, outcome="ok", status=200))
    assert second == ("a", Call(call_id=2, start_ns=2, kind="generate", call_stack=(Frame("/agent.py", 3, "f"),)))
    assert list(tail.feed(an_end(2))) == [("a", Call(call_id=2, start_ns=2, end_ns=7, outcome="ok"))]
    assert (tail.processes, tail.bad) == (1, 0)


def test_all_stamps_are_on_the_readers_clock() -> None:
    tail = Tail("j", Clock("here", 1000))
    data = a_process(unix_offset_ns=1007) + a_line("start", 1)
    data += a_process("b", boot_id="there", unix_offset_ns=1200) + a_line("start", 2, process="b")
    assert [(process, call.start_ns) for process, call in tail.feed(data)] == [("a", 1), ("b", 202)]
    assert (tail.pid("a"), tail.pid("b"), tail.pid("c")) == (1, None, None)


@pytest.mark.parametrize("step", [1, 7, 10**6])
def test_bad_lines_are_counted_and_what_stands_behind_a_torn_one_is_read(step: int) -> None:
    tail = Tail("j", Clock("here", 0))
    data = a_process() + a_line("start", 1)[:-9] + a_line("start", 2) + an_end(1) + b"nonsense\n\n"
    data += an_end(3, process="nobody") + an_end(4, start_ns="soon") + a_line("start", 5, start_ns=2**63)
    lines = data.splitlines(keepends=True)
    pieces = [b"".join(lines[at : at + step]) for at in range(0, len(lines), step)]
    calls = [call.call_id for piece in pieces for _, call in tail.feed(piece)]
    assert sorted(calls) == [1, 2]
    assert (tail.bad, tail.last_bad) == (5, "start_ns cannot be 9223372036854775808")


def test_telemetry_is_left_out() -> None:
    assert list(Tail("j", Clock("here", 0)).feed(a_process() + a_line("start", 1, kind=Kind.OTHER))) == []


def test_a_newer_version_is_no_bad_line() -> None:
    with pytest.raises(ReadError, match="version 2 is newer"):
        list(Tail("j", Clock("here", 0)).feed(a_process(schema=2)))


# The command


def run(*args: str) -> Any:
    return CliRunner().invoke(group, ["watch", *args])


def journal_of(path: Path, n_open: int) -> Journal:
    """A journal of this process, with calls that are open and one that has ended."""
    journal, now_ns = Journal(path), time.monotonic_ns()
    for number in range(1, n_open + 2):
        start = Call(call_id=number, pid=os.getpid(), start_ns=now_ns - 5 * S, label=f"step{number}")
        journal.start(start)
    journal.end(Call(call_id=1, pid=os.getpid(), start_ns=now_ns - 5 * S, end_ns=now_ns - 1, outcome="ok", status=429))
    return journal


def test_one_frame(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    journal_of(path, 2).close()
    with path.open("ab") as file:
        file.write(b"nonsense\n")
    result = run(str(path), "--once")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0].endswith("calls.jsonl: written by 1 process")
    assert lines[1].startswith("in flight now 2   calls/s ")
    assert lines[6] == "last minute  1 ended, 1 failed, 1 of them of status 429"
    assert [line.split()[2] for line in lines[10:12]] == ["step2", "step3"]
    assert lines[-1] == f"1 bad line, the last: {'a torn line'}"


def test_one_frame_as_json(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    journal_of(path, 1).close()
    told = json.loads(run(str(path), "--once", "--json").output)
    (call,) = told.pop("open_calls")
    assert call.pop("open_for_ms") >= 5000
    empty = dict.fromkeys(("run", "method", "host", "path", "model", "call_site"))
    assert call == {"pid": os.getpid(), "label": "step2", **empty}
    ended = {"ended": 1, "failed": 1, "too_many": 1}
    assert told.pop("calls_per_s_last_10_s") == told.pop("calls_per_s_last_minute") > 0
    assert told == {
        "file": str(path), "found": True, "n_processes": 1, "in_flight": 1, "peak_last_minute": 2,
        "last_minute": ended, "all": ended, "n_left_open": 0, "n_bad_lines": 0,
    }  # fmt: skip


def test_json_goes_on_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    with Screen(path, terminal=False, options=["--json"]) as screen:
        screen.wait_for(b'"found": false')
        journal_of(path, 1).close()
        screen.wait_for(b'"in_flight": 1,')
        screen.wait_for(b"\n{")
        assert screen.end(signal.SIGINT) == 0


def test_processes_that_are_gone_are_told(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    path.write_bytes(
        a_process(pid=gone.pid, boot_id=boot_id(), unix_offset_ns=time.time_ns() - time.monotonic_ns())
        + a_line("start", 1, start_ns=time.monotonic_ns() - 61 * S, pid=gone.pid)
    )
    output = run(str(path), "--once").output
    assert "in flight now 0 " in output
    assert f"1 call left open by processes that are gone: {gone.pid}\n" in output


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no such file"),
        (b"# occupancy {}\n", "no journal of occupancy; it begins with '# occupancy {}'"),
        (a_process(schema=2), "version 2 is newer"),
    ],
)
def test_what_cannot_be_watched_is_said(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "calls"
    if content is not None:
        path.write_bytes(content)
    result = run(str(path), "--once")
    assert isinstance(result.exception, ReadError)
    assert message in str(result.exception)


def test_an_empty_file_is_a_journal_that_has_not_begun(tmp_path: Path) -> None:
    (tmp_path / "calls").touch()
    assert "in flight now 0" in run(str(tmp_path / "calls"), "--once").output


class Screen:
    """A watch on a pseudo-terminal, or in a pipe; killed at the end of the block."""

    def __init__(self, path: Path, *, terminal: bool, options: Sequence[str] = ()) -> None:
        command = [sys.executable, "-c", WATCH, str(path), "--interval", "0.05", *options]
        environ = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "30"}
        self.fd, theirs = pty.openpty() if terminal else os.pipe()
        self.process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environ)
        os.close(theirs)
        self.seen = b""

    def __enter__(self) -> "Screen":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()

    def wait_for(self, text: bytes) -> None:
        """Read until a text has come."""
        while text not in self.seen:
            data = os.read(self.fd, 65536)
            assert data, self.seen.decode()
            self.seen += data
        self.seen = self.seen.partition(text)[2]

    def end(self, number: int) -> int:
        """Send a signal; give the exit code. What comes at the end is in `seen`."""
        self.process.send_signal(number)
        try:
            while data := os.read(self.fd, 65536):
                self.seen += data
        except OSError:  # a terminal that nobody has open any more
            pass
        os.close(self.fd)
        return self.process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_on_a_terminal(tmp_path: Path, number: int) -> None:
    path = tmp_path / "calls.jsonl"
    with Screen(path, terminal=True) as screen:
        screen.wait_for(b"waiting for the file")
        journal = journal_of(path, 1)
        screen.wait_for(b"step2")
        journal.start(Call(call_id=9, pid=os.getpid(), start_ns=time.monotonic_ns(), label="another"))
        screen.wait_for(b"another")
        journal.close()
        assert screen.end(number) == 0
    assert b"Traceback" not in screen.seen
    assert b"\x1b[?25h" in screen.seen  # the cursor is there again


def test_in_a_pipe_frames_are_plain(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    with Screen(path, terminal=False) as screen:
        screen.wait_for(b"waiting for the file\n")
        journal_of(path, 1).close()
        screen.wait_for(b"in flight now 1 ")
        assert screen.end(signal.SIGINT) == 0
    assert b"\x1b" not in screen.seen
    assert b"Traceback" not in screen.seen


def test_a_reader_that_has_seen_enough_ends_it(tmp_path: Path) -> None:
    with Screen(tmp_path / "calls.jsonl", terminal=False) as screen:
        screen.wait_for(b"waiting")
        os.close(screen.fd)
        assert screen.process.wait() == 0
