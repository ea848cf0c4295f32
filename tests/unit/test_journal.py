"""The journal as it is written and as it is read back."""

import io
import json
import os
from pathlib import Path

import pytest

from occupancy.analysis.columns import calls_of
from occupancy.call import Call, Frame, Outcome
from occupancy.errors import InputError, ReadError
from occupancy.formats import journal_file
from occupancy.formats.recording import ColumnRecording
from occupancy.journal import Journal
from occupancy.ledger import Ledger
from occupancy.log import OccupancyLog
from occupancy.reading import read

PROCESS = {"event": "process", "process": "a", "schema": 1, "pid": 1, "boot_id": "boot", "unix_offset_ns": 1_000_000}


def lines(*records: dict[str, object]) -> str:
    return "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)


def read_text(text: str, name: str = "j") -> ColumnRecording:
    return journal_file.read(io.BytesIO(text.encode()), name)


def calls_in(text: str) -> list[Call]:
    return calls_of(read_text(text).columns)


def a_call(event: str, process: str, call_id: int, **fields: object) -> dict[str, object]:
    return {"event": event, "process": process, "call_id": call_id, "logical_id": call_id, **fields}


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    log, own = OccupancyLog(journal=path), Ledger()
    first = own.start(Call(start_ns=1_000, label="plan", run="research#1", request_id="ü"), (log,))
    second = own.start(Call(start_ns=2_000, label="fetch"), (log,))
    first.headers(200, 3_000)
    first.chunk(10, 4_000)
    first.complete()
    again = read(path)
    assert again.calls == log.calls
    assert [call.label for call in again.open_calls] == ["fetch"]
    assert (again.peak, again.in_flight, again.bad_rows) == (2, 1, [])
    assert again.origin_ns == 1_000
    assert (
        abs(again.origin_unix_ns - 1_000 - (log.origin_unix_ns - log.origin_ns)) < 1e9
    )  # one clock offset, read twice
    second.complete()
    assert [call.label for call in read(path).calls] == ["plan", "fetch"]


def test_a_start_without_an_end_is_open() -> None:
    calls = calls_in(lines(PROCESS, a_call("start", "a", 1, start_ns=5)))
    assert [(call.outcome, call.end_ns) for call in calls] == [(Outcome.OPEN, None)]


def test_processes_of_one_boot_share_a_clock() -> None:
    text = lines(
        PROCESS,
        a_call("end", "a", 1, start_ns=100, end_ns=200, outcome="ok"),
        {**PROCESS, "process": "b", "unix_offset_ns": 1_000_777},  # read a little later: the clock is the same
        a_call("end", "b", 1, start_ns=150, end_ns=300, outcome="ok"),
    )
    log = OccupancyLog.from_columns(read_text(text).columns)
    assert [(call.call_id, call.start_ns, call.end_ns) for call in log.calls] == [(1, 100, 200), (2, 150, 300)]
    assert log.peak == 2


def test_processes_of_two_boots_meet_in_unix_time() -> None:
    text = lines(
        PROCESS,
        a_call("end", "a", 1, start_ns=100, end_ns=200, first_byte_ns=120, outcome="ok"),
        {**PROCESS, "process": "b", "boot_id": "other", "unix_offset_ns": 999_950},
        a_call("end", "b", 1, start_ns=200, end_ns=260, first_byte_ns=220, outcome="ok"),
    )
    calls = calls_in(text)
    assert [(call.start_ns, call.first_byte_ns, call.end_ns) for call in calls] == [(100, 120, 200), (150, 170, 210)]


def test_retries_stay_linked_when_calls_are_numbered_anew() -> None:
    other = {**PROCESS, "process": "b"}
    text = lines(PROCESS, a_call("start", "a", 7, start_ns=1), other, a_call("start", "b", 1, start_ns=2),
                 {**a_call("start", "b", 2, start_ns=3), "logical_id": 1})  # fmt: skip
    assert [(call.call_id, call.logical_id) for call in calls_in(text)] == [(7, 7), (8, 8), (9, 8)]


def test_what_a_call_needs_is_numbered_anew_with_it() -> None:
    text = lines(PROCESS, a_call("start", "a", 7, start_ns=1), {**PROCESS, "process": "b"},
                 {**a_call("start", "b", 1, start_ns=2), "needs": 0},
                 {**a_call("start", "b", 2, start_ns=3), "needs": 1})  # fmt: skip
    assert [call.needs for call in calls_in(text)] == [None, 0, 8]


def test_a_torn_line_is_counted_and_the_next_writer_s_line_behind_it_is_kept() -> None:
    whole = lines(PROCESS, a_call("end", "a", 1, start_ns=1, end_ns=2, outcome="ok"))
    torn = whole + '{"event":"end","process":"a","ca' + lines(a_call("end", "a", 2, start_ns=3, end_ns=4, outcome="ok"))
    recording = read_text(torn + '{"event":"sta', "calls.jsonl")
    assert recording.columns["call_id"].tolist() == [1, 2]
    assert recording.bad_rows == ["calls.jsonl:3: a torn line", "calls.jsonl:4: a torn line"]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"event": "end", "call_id": 1, "start_ns": 1}, "'process' is missing"),
        (
            {"event": "end", "process": "nobody", "call_id": 1},
            "no line of process 'nobody' says which clock is its own",
        ),
        ({"event": "end", "process": "a", "call_id": 1, "start_ns": "soon"}, "start_ns cannot be 'soon'"),
        ({"event": "end", "process": "a", "call_id": 1, "start_ns": 1, "end_ns": []}, "end_ns cannot be []"),
        ({"event": "end", "process": "a", "call_id": 1, "start_ns": 1, "call_stack": [1]}, "call_stack cannot be [1]"),
        ({"event": "end", "process": "a", "start_ns": 1}, "'call_id' is missing"),
        ([], "not a record"),
    ],
)
def test_a_bad_row_is_named_and_the_good_ones_kept(record: object, reason: str) -> None:
    text = lines(PROCESS, a_call("end", "a", 2, start_ns=3, end_ns=4, outcome="ok")) + json.dumps(record) + "\n"
    recording = read_text(text)
    assert recording.columns["call_id"].tolist() == [2]
    assert recording.bad_rows == [f"j:3: {reason}"]


def test_a_newer_version_says_so() -> None:
    with pytest.raises(ReadError, match="version 2 is newer"):
        read_text(lines({**PROCESS, "schema": 2}))


def test_many_writes_of_two_processes_all_arrive(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    log = OccupancyLog(journal=path)

    def write() -> None:
        own = Ledger()
        for number in range(200):
            own.start(Call(start_ns=number, label="x" * (number % 50)), (log,)).complete()

    pid = os.fork()
    if pid == 0:
        assert log.journal is not None
        log.journal.restart()
        write()
        os._exit(0)
    write()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    again = read(path)
    assert (again.finished, again.bad_rows, len({call.pid for call in again.calls})) == (400, [], 2)


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no_such_folder"):
        Journal(tmp_path / "no_such_folder" / "calls.jsonl")


def test_what_the_fast_writer_refuses_is_written_by_pythons(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "calls.jsonl")
    stack = (Frame("ü.py", 3, "f"),)
    odd = {"label": "half \ud800", "request_bytes": 2**70, "model": Path("a model"), "call_stack": stack}
    for number, (name, value) in enumerate(odd.items(), start=1):
        journal.end(Call(call_id=number, **{name: value}))  # type: ignore[arg-type]
    _, *written = [json.loads(line) for line in journal.path.read_text(encoding="utf-8").splitlines()]
    told = [record[name] for record, name in zip(written, odd, strict=True)]
    assert told == ["half \ud800", 2**70, "a model", [["ü.py", 3, "f"]]]
    assert read(journal.path).bad_rows == [f"{journal.path}:3: request_bytes cannot be {2**70}"]


def test_a_full_disk_is_told_once_and_counting_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    log, own = OccupancyLog(journal="/dev/full"), Ledger()
    for _ in range(3):
        own.start(Call(start_ns=1), (log,)).complete()
    assert log.finished == 3
    assert [record.getMessage().count("/dev/full") for record in caplog.records] == [1]


# Several processes


def test_a_forked_process_tells_who_forked_it(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    journal = Journal(path)
    names = [journal.process]
    for _ in range(2):
        journal.restart()
        names.append(journal.process)
    journal.start(Call(call_id=1))
    first = json.loads(path.read_text().splitlines()[0])
    assert (first["process"], first["ancestors"]) == (names[2], names[:2])
    assert len(set(names)) == 3


def test_of_many_ancestors_the_nearest_are_told(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "calls.jsonl")
    names = [journal.process]
    for _ in range(20):
        journal.restart()
        names.append(journal.process)
    journal.start(Call(call_id=1))
    assert json.loads(journal.path.read_text().splitlines()[0])["ancestors"] == names[4:20]


def test_a_journal_knows_whether_others_write_to_it(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    path.write_text("before\n")
    mine, other = Journal(path), Journal(path)
    assert (mine.begin_bytes, mine.is_shared) == (7, False)
    mine.start(Call(call_id=1))
    assert (mine.is_shared, other.is_shared) == (False, True)
    other.start(Call(call_id=1))
    assert (mine.is_shared, other.is_shared) == (True, True)


def test_a_family_is_a_process_and_all_that_it_forked() -> None:
    text = lines(
        {**PROCESS, "process": "child", "ancestors": ["root"]},
        a_call("end", "child", 1, start_ns=1, end_ns=2, outcome="ok"),
        {**PROCESS, "process": "grandchild", "ancestors": ["root", "silent"]},
        a_call("start", "grandchild", 1, start_ns=2),
        PROCESS,
        a_call("end", "a", 1, start_ns=3, end_ns=4, outcome="ok"),
        a_call("start", "a", 2, start_ns=4),
        a_call("end", "a", 3, start_ns=4, end_ns=5, outcome="ok", kind="other"),
        {**PROCESS, "process": "b", "ancestors": ["a"]},
        a_call("end", "b", 1, start_ns=5, end_ns=6, outcome="ok"),
        a_call("end", "before", 1, start_ns=5, end_ns=6, outcome="ok"),
    )
    root = journal_file.read_family(io.BytesIO(text.encode()), "j", "root")
    assert sorted(root.recording.columns["start_ns"].tolist()) == [1, 2]
    assert (root.n_other_calls, root.n_other_processes) == (3, 2)
    other = journal_file.read_family(io.BytesIO(text.encode()), "j", "a")
    assert sorted(other.recording.columns["start_ns"].tolist()) == [3, 4, 4, 5]
    assert (other.n_other_calls, other.n_other_processes) == (2, 2)
    nothing = journal_file.read_family(io.BytesIO(), "j", "a")
    assert (len(nothing.recording.columns["start_ns"]), *nothing[1:]) == (0, 0, 0)
