"""Whole journals, read as columns many lines at a time: the same as one record after another."""

import io
import json
import re
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from occupancy.analysis import columns as columns_module
from occupancy.analysis.columns import calls_of
from occupancy.call import FIELD_TYPES, FIELDS, STAMPS, Call, Frame, Kind, Outcome
from occupancy.cli.show import to_text
from occupancy.formats import journal_file
from occupancy.journal import to_record
from occupancy.ledger import Ledger
from occupancy.log import OccupancyLog
from occupancy.reading import read

# One record after another


def one_by_one(text: str) -> tuple[list[Call], list[int]]:
    """The calls of a journal in the order of their lines, and the numbers of its bad lines.

    A whole line of a start is looked at only where no other of its call can be read. Of several lines of a call the
    last counts, but of an end where there is one.
    """
    shifts: dict[str, int] = {}
    clock: tuple[Any, int] | None = None
    starts: dict[tuple[str, int], tuple[int, dict[str, Any]]] = {}
    found: dict[tuple[str, int], tuple[bool, int, Call]] = {}
    bad: list[int] = []

    def take(number: int, record: dict[str, Any]) -> None:
        call = a_call(record, shifts[record["process"]])
        key = record["process"], call.call_id
        rank = call.end_ns is not None, number
        if key not in found or rank >= found[key][:2]:
            found[key] = *rank, call
        starts.pop(key, None)

    for number, line in enumerate(text.split("\n"), 1):
        for part in filter(str.strip, re.split(r'(?<=.)(?=\{"event":)', line)):
            try:
                record = json.loads(part)
                if record["event"] == "process":
                    clock = clock or (record["boot_id"], record["unix_offset_ns"])
                    same = record["boot_id"] == clock[0]
                    shifts.setdefault(record["process"], 0 if same else record["unix_offset_ns"] - clock[1])
                elif record["event"] == "start" and part == line:
                    starts[record["process"], record["call_id"]] = number, record
                else:
                    take(number, record)
            except (ValueError, KeyError, TypeError, RecursionError):
                bad.append(number)
    for number, record in list(starts.values()):
        try:
            take(number, record)
        except (ValueError, KeyError):
            bad.append(number)
    calls = {key: call for key, (_, _, call) in sorted(found.items(), key=lambda item: item[1][1])}
    first_number = 0
    for process in shifts:
        mine = [call for (of, _), call in calls.items() if of == process]
        highest = max((call.call_id for call in mine), default=0)
        for call in mine:
            call.call_id, call.logical_id = call.call_id + first_number, call.logical_id + first_number
        first_number += highest
    return list(calls.values()), sorted(bad)


def a_call(record: dict[str, Any], shift_ns: int) -> Call:
    values = {"start_ns": 0, **{name: value for name, value in record.items() if name in FIELDS}}
    stack = tuple(Frame(*frame) for frame in values.pop("call_stack", ()))
    for name, value in values.items():
        most = 2**62 if name in (*STAMPS, "call_id", "logical_id", "needs") else 2**63
        if type(value) not in FIELD_TYPES[name] or (isinstance(value, int) and abs(value) >= most):
            raise ValueError(name)
    if values.get("end_ns") is not None and values["end_ns"] < values["start_ns"]:
        raise ValueError("end_ns")
    for name in STAMPS:
        if values.get(name) is not None:
            values[name] += shift_ns
    return Call(**{"call_id": record["call_id"], **values}, call_stack=stack)


# Journals


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


WORD = st.sampled_from(["plan", "tool ü", 'a "quote"', '{"event":'])
STACK = st.lists(st.builds(Frame, st.sampled_from(["a.py", "cell 3"]), st.integers(1, 9), WORD), max_size=3)
CALL = st.builds(
    Call,
    start_ns=st.integers(0, 40),
    label=optional(WORD),
    run=optional(st.sampled_from(["r", "s"])),
    kind=st.sampled_from([Kind.TOOL, Kind.GENERATE, Kind.OTHER]),
    call_stack=STACK.map(tuple),
    status=optional(st.sampled_from([200, 429])),
    connection_reused=optional(st.booleans()),
    retry_after_s=optional(st.sampled_from([0.5, 2.0])),
    request_id=optional(WORD),
    pool_ns=optional(st.integers(0, 9)),
    limit_tokens=optional(st.sampled_from([5, 2**40, 2**63 - 1])),
    attempt=st.integers(0, 2),
)
ENDING = optional(st.tuples(st.integers(0, 9), st.sampled_from([Outcome.OK, Outcome.TIMEOUT]), st.integers(0, 3)))
PROCESS = st.tuples(st.sampled_from(["boot", "boot", "other"]), st.lists(st.tuples(CALL, ENDING), max_size=5))
SPOILED = st.sampled_from(
    ["", "  ", "nonsense", "[1]", '{"event":"end"}', '{"event":"end","process":"zz","call_id":1}',
     '{"event":"start","process":"p0","call_id":98,"start_ns":"soon"}',
     '{"event":"end","process":"p0","call_id":1,"start_ns":7,"end_ns":9,"outcome":"ok","label":5}',
     '{"event":"end","process":"p0","call_id":1,"start_ns":4611686018427387904,"outcome":"ok"}',
     '{"event":"end","process":"p0","call_id":4611686018427387904,"start_ns":7,"end_ns":9,"outcome":"ok"}',
     '{"event":"end","process":"p0","call_id":97,"start_ns":9,"end_ns":7,"outcome":"ok"}',
     '{"event":"end","process":"p0","call_id":96,"start_ns":7,"end_ns":9,"x":' + "[" * 100_000,
     '{"event":"end","process":"p0","call_id":99,"status":99999999999999999999,"outcome":"ok"}',
     '{"event":"end","call_id":77,"process":"p0","outcome":"ok","end_ns":8,"status":null,"unknown":[1]}',
     '{"event":"end","process":"p0","call_id":78,"outcome":null}',
     '{"event":"end","process":"p0","call_id":79,"outcome":"ok","call_stack":[["a.py",1]]}'],
)  # fmt: skip


def line(event: str, process: str, call: Call) -> str:
    return json.dumps({"event": event, "process": process, **to_record(call)}, separators=(",", ":"))


@st.composite
def journals(draw: st.DrawFn) -> str:
    """The lines of several processes, mixed; some are torn, and others of them spoiled."""
    queues = []
    for number, (boot, rows) in enumerate(draw(st.lists(PROCESS, min_size=1, max_size=3))):
        name = f"p{number}"
        lines = [json.dumps({"event": "process", "process": name, "schema": 1, "pid": number, "boot_id": boot,
                             "unix_offset_ns": 100 * number})]  # fmt: skip
        for call_id, (drawn, ending) in enumerate(rows, 1):
            call = replace(drawn, call_id=call_id, logical_id=call_id, pid=number)
            lines.append(line("start", name, call))
            if ending is not None:
                length_ns, outcome, late_ns = ending
                end_ns = call.start_ns + length_ns
                ended = replace(call, end_ns=end_ns, outcome=outcome, released_ns=end_ns + late_ns)
                lines.append(line("end", name, ended))
                if draw(st.booleans()):
                    lines.append(line("amend", name, replace(ended, output_tokens=call_id)))
        queues.append(lines)
    mixed = [queue.pop(0) for queue in queues]
    while queues := [queue for queue in queues if queue]:
        mixed.append(queues[draw(st.integers(0, len(queues) - 1))].pop(0))
    mixed += mixed if draw(st.booleans()) else []  # a file appended to itself
    for spoiled in draw(st.lists(SPOILED, max_size=3, unique=True)):
        mixed.insert(draw(st.integers(1, len(mixed))), spoiled)
    text = "\n".join(mixed) + "\n"
    if draw(st.booleans()):  # one is torn: the next comes on its line
        first = text.index("\n")
        cut = draw(st.integers(first, len(text) - 1))
        text = text[:cut] + text[text.find("\n", cut) + 1 :]
    return text[: len(text) - draw(st.sampled_from([0, 0, 1, 5]))]


@settings(max_examples=150, deadline=None)
@given(journals(), st.sampled_from([1, 300, 1 << 18]))
def test_columns_hold_what_records_hold(text: str, piece_bytes: int) -> None:
    calls, bad = one_by_one(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal_file, "PIECE_BYTES", piece_bytes)
        recording = journal_file.read(io.BytesIO(text.encode()), "j")
    assert calls_of(recording.columns) == calls
    assert [row.split(":")[1] for row in recording.bad_rows] == [str(number) for number in bad]
    assert recording.origin_ns == min((call.start_ns for call in calls), default=0)


@settings(max_examples=60, deadline=None)
@given(journals())
def test_a_log_of_columns_is_a_log_of_calls(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    calls, _ = one_by_one(text)
    if not calls:
        return
    path = tmp_path_factory.mktemp("journal") / "calls.jsonl"
    path.write_text(text, encoding="utf-8")
    log, expected = read(path), OccupancyLog.from_calls(calls)
    check_equal(log, expected)
    log.dump_csv(path.with_suffix(".csv"))
    again = read(path.with_suffix(".csv"))
    assert [*again.calls, *again.open_calls] == [moved(call, -log.origin_ns) for call in [*log.calls, *log.open_calls]]


def write_journal(path: Path, n: int) -> None:
    log, own = OccupancyLog(capacity=1, journal=path), Ledger()
    for number in range(n):
        stack = (Frame("/home/me/agent.py", 3, "ask"), Frame("/home/me/agent.py", 30, "main"))
        own.start(Call(start_ns=number, label=f"step {number % 7}", call_stack=stack), (log,)).complete()


def test_no_record_is_made_until_one_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counting(*values: Any) -> Call:
        made.append(values)
        return Call(*values)

    write_journal(tmp_path / "calls.jsonl", 5)
    monkeypatch.setattr(columns_module, "Call", counting)
    log = read(tmp_path / "calls.jsonl")
    assert "5 calls" in to_text(log)
    log.dump_csv(tmp_path / "calls.csv")
    assert made == []
    assert len(log.calls) == len(made) == 5


def test_a_file_is_never_held_whole(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    write_journal(path, 20_000)
    read(path)  # imports, caches
    tracemalloc.start()
    log = read(path)
    kept, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert log.finished == 20_000
    assert kept < most < path.stat().st_size


@pytest.mark.parametrize("ending", ['"retry_after_s":NaN', '"label":"\\ud800"', '"label":"\xff"'])
def test_what_the_fast_parser_refuses_is_read_by_pythons(ending: str) -> None:
    process = '{"event":"process","process":"p","schema":1,"pid":1,"boot_id":"b","unix_offset_ns":0}\n'
    lines = [
        f'{{"event":"end","process":"p","call_id":{n},"start_ns":5,{ending + "," if n == 2 else ""}"end_ns":9}}'
        for n in (1, 2, 3)
    ]
    recording = journal_file.read(io.BytesIO((process + "\n".join(lines)).encode("latin-1")), "j")
    assert recording.columns["call_id"].tolist() == [1, 2, 3]


def moved(call: Call, by_ns: int) -> Call:
    stamps = {name: getattr(call, name) for name in STAMPS}
    return replace(call, **{name: None if at_ns is None else at_ns + by_ns for name, at_ns in stamps.items()})


def check_equal(log: OccupancyLog, expected: OccupancyLog) -> None:
    assert (log.calls, log.open_calls) == (expected.calls, expected.open_calls)
    assert (log.peak, log.in_flight, log.time_at_level_ns) == (
        expected.peak,
        expected.in_flight,
        expected.time_at_level_ns,
    )
    assert log.summary() == expected.summary()
    assert log.diagnose() == expected.diagnose()
    steps, expected_steps = log.steps(), expected.steps()
    assert steps.t_ns.tolist() == expected_steps.t_ns.tolist()
    assert steps.in_flight.tolist() == expected_steps.in_flight.tolist()
