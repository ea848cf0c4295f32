"""Our CSV, written, read back, and read by pandas."""

import csv
import re
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from occupancy.call import FIELDS, Call, Frame, Outcome
from occupancy.errors import InputError, ReadError
from occupancy.formats import occupancy_csv
from occupancy.log import OccupancyLog
from occupancy.reading import read

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x00"), min_size=1, max_size=12)
CALLS = st.lists(
    st.builds(
        Call,
        start_ns=st.integers(0, 10**15),
        label=st.none() | TEXT,
        run=st.none() | TEXT,
        call_stack=st.just(()) | st.tuples(st.builds(Frame, TEXT, st.integers(1, 999), TEXT)),
        retry_after_s=st.none() | st.floats(0, 1e6),
        connection_reused=st.none() | st.booleans(),
        status=st.none() | st.integers(100, 599),
        first_byte_ns=st.none() | st.integers(0, 10**15),
    ),
    max_size=5,
)


@settings(max_examples=100, deadline=None)
@given(CALLS)
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, calls: list[Call]) -> None:
    for number, call in enumerate(calls, start=1):
        call.call_id = call.logical_id = number
        call.end_ns, call.outcome = call.start_ns + number, Outcome.OK
    log = OccupancyLog.from_calls(calls, origin_ns=0, origin_unix_ns=1_700_000_000_000_000_000)
    path = tmp_path_factory.mktemp("csv") / "calls.csv"
    log.dump_csv(path)
    if not calls:
        assert read(path).calls == []
        return
    again = read(path)
    assert (again.calls, again.bad_rows, again.peak) == (log.calls, [], log.peak)
    assert again.origin_unix_ns == log.origin_unix_ns


def small_log() -> OccupancyLog:
    plan = Call(call_id=1, label="plan #1, with \"quotes\"", start_ns=500_000_000, first_byte_ns=600_000_000,
                end_ns=700_000_000, outcome=Outcome.OK, call_stack=(Frame("agent.py", 3, "main"),))  # fmt: skip
    tool = Call(call_id=2, label="tool", start_ns=700_000_000)
    return OccupancyLog.from_calls([plan, tool], origin_ns=500_000_000)


def test_pandas_reads_it_past_the_metadata(tmp_path: Path) -> None:
    small_log().dump_csv(tmp_path / "calls.csv")
    frame = pd.read_csv(tmp_path / "calls.csv", comment="#")
    assert frame["label"].tolist() == ['plan #1, with "quotes"', "tool"]
    assert frame["t0_s"].tolist() == [0.0, 0.2]
    assert frame.loc[0, ["t_first_s", "t1_s", "wait_first_ms", "total_ms"]].tolist() == [0.1, 0.2, 100.0, 200.0]
    assert frame["end_ns"].isna().tolist() == [False, True]
    assert list(frame.columns) == list(occupancy_csv.HEADINGS)


def test_steps_are_written_in_seconds(tmp_path: Path) -> None:
    log = small_log()
    log.dump_csv(tmp_path / "steps.csv", what="steps")
    head, *rows = (tmp_path / "steps.csv").read_text().splitlines()
    assert head.startswith("# occupancy ")
    assert rows == ["t_s,in_flight", "0.000000000,1", "0.200000001,0"]  # the open call: up to its last stamp


def test_an_unknown_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'colours'"):
        small_log().dump_csv(tmp_path / "x.csv", what="colours")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no_such_folder"):
        small_log().dump_csv(tmp_path / "no_such_folder" / "x.csv")


HEAD = '# occupancy {"schema": 1, "origin_unix_ns": 0}\n'


def test_bad_rows_are_named_and_the_good_ones_kept(tmp_path: Path) -> None:
    path = tmp_path / "calls.csv"
    path.write_text(HEAD + "call_id,start_ns,end_ns,outcome\n1,0,5,ok\n2,soon,7,ok\n3,,9,ok\n4,6,8,ok\n5,7\n")
    log = read(path)
    assert [call.call_id for call in log.calls] == [1, 4]
    assert log.bad_rows == [f"{path}:4: start_ns cannot be 'soon'", f"{path}:5: start_ns is missing"]
    assert [call.call_id for call in log.open_calls] == [5]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file is empty"),
        ("a,b\n1,2\n", "begins with 'a,b'"),
        (",".join(occupancy_csv.HEADINGS) + "\n", "a CSV of calls without its first line, '# occupancy {...}'"),
        ("# occupancy nonsense\n", "metadata cannot be read"),
        ('# occupancy {"schema": 9, "origin_unix_ns": 0}\nstart_ns\n', "version 9 is newer"),
        (HEAD + "x,y\n1,2\n", "no column start_ns"),
        (HEAD, "no column start_ns"),
        (HEAD + "start_ns\nsoon\n", "none of 1 rows can be read"),
    ],
)
def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "calls.csv"
    path.write_text(text)
    with pytest.raises(ReadError, match=re.escape(reason)) as raised:
        read(path)
    assert str(path) in str(raised.value)


def test_rows_of_several_files_are_calls_of_their_own_but_for_those_that_are_there_twice(tmp_path: Path) -> None:
    path = tmp_path / "calls.csv"
    head = "call_id,logical_id,pid,start_ns,end_ns,outcome\n"
    path.write_text(HEAD + head + "1,1,7,0,5,ok\n2,1,7,6,9,ok\n1,1,7,0,5,ok\n1,1,8,0,5,ok\n2,1,8,6,9,ok\n")
    calls = read(path).calls
    assert sorted((call.call_id, call.logical_id, call.pid) for call in calls) == [
        (1, 1, 7), (2, 1, 7), (3, 3, 8), (4, 3, 8)
    ]  # fmt: skip


def test_what_a_spreadsheet_has_saved_is_read(tmp_path: Path) -> None:
    small_log().dump_csv(tmp_path / "calls.csv")
    with (tmp_path / "calls.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    widest = max(map(len, rows))
    with (tmp_path / "saved.csv").open("w", newline="") as file:
        csv.writer(file).writerows(row + [""] * (widest - len(row)) for row in rows)
    assert (tmp_path / "saved.csv").read_text().startswith('"# occupancy {""schema"": 1","')
    log, saved = read(tmp_path / "calls.csv"), read(tmp_path / "saved.csv")
    assert (saved.calls, saved.open_calls, saved.bad_rows) == (log.calls, log.open_calls, [])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"missing\.csv"):
        read(tmp_path / "missing.csv")


def test_to_pandas_has_types_to_reckon_with() -> None:
    frame = small_log().to_pandas()
    assert frame.index.tolist() == [1, 2]
    assert frame["total"].iloc[0] == pd.Timedelta("200ms")
    assert frame["wait_first"].iloc[0] == pd.Timedelta("100ms")
    assert frame["total"].isna().tolist() == [False, True]
    assert frame["start"].iloc[1] - frame["start"].iloc[0] == pd.Timedelta("200ms")
    assert str(frame["start"].dt.tz) == "UTC"
    assert frame["t0"].tolist() == [0.0, 0.2]
    assert frame["label"].dtype == "category"
    assert frame["connection_reused"].dtype == "boolean"
    assert frame["attempt"].tolist() == [0, 0]
    assert frame["status"].isna().all()


def test_to_pandas_of_nothing_has_the_same_columns() -> None:
    empty = OccupancyLog().to_pandas()
    assert list(empty.columns) == list(small_log().to_pandas().columns)
    assert len(empty) == 0
    assert len(empty.columns) >= len(FIELDS)
