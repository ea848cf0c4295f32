"""Files as they are met in practice: put together of others, torn, written by another shell. Nothing is lost unsaid."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from occupancy.call import Call, Outcome
from occupancy.errors import ReadError
from occupancy.formats import har, occupancy_csv, otlp_writer
from occupancy.formats.writing import write
from occupancy.log import OccupancyLog
from occupancy.reading import read

UNIX_NS = 1_790_000_000_000_000_000
S = 10**9
WRITERS = {"csv": occupancy_csv.pieces, "har": har.pieces, "otlp": otlp_writer.pieces}

Saved = Callable[[str | bytes], OccupancyLog]


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    def save(content: str | bytes) -> OccupancyLog:
        path = tmp_path / "file"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read(path)

    return save


def text_of(kind: str, first_s: int, **fields: Any) -> str:
    """A log of two calls of one second, one after another; the second needs the first."""
    calls = [
        Call(call_id=number, logical_id=number, needs=number - 1, start_ns=start, end_ns=start + S, outcome=Outcome.OK,
             span_id=f"{number:016x}", **fields)
        for number, start in ((1, 0), (2, S))
    ]  # fmt: skip
    return "".join(WRITERS[kind](OccupancyLog.from_calls(calls, origin_unix_ns=UNIX_NS + first_s * S)))


def facts(log: OccupancyLog) -> list[tuple[object, ...]]:
    start_ns = [(call.start_ns - call.origin_ns + log.origin_unix_ns - UNIX_NS) / S for call in log.calls]
    return [(at_s, call.call_id, call.logical_id, call.needs) for at_s, call in zip(start_ns, log.calls, strict=True)]


@pytest.mark.parametrize("kind", ["csv", "har"])
def test_two_logs_one_behind_another_are_on_one_time_axis(saved: Saved, kind: str) -> None:
    log = saved(text_of(kind, 5) + text_of(kind, 9))
    assert facts(log) == [(5, 1, 1, 0), (6, 2, 2, 1), (9, 3, 3, 0), (10, 4, 4, 3)]
    assert (log.peak, log.bad_rows, log.origin_unix_ns) == (1, [], UNIX_NS + 5 * S)
    earlier = saved(text_of(kind, 9) + text_of(kind, 5))
    assert (len(earlier.calls), earlier.peak, earlier.origin_unix_ns) == (4, 1, UNIX_NS + 5 * S)


@pytest.mark.parametrize("kind", WRITERS)
def test_the_same_log_twice_counts_once(saved: Saved, kind: str) -> None:
    text = text_of(kind, 5)
    once, twice = saved(text), saved(text + text)
    assert facts(twice) == facts(once) == [(5, 1, 1, 0), (6, 2, 2, 1)]
    assert twice.peak == 1


@pytest.mark.parametrize("kinds", [("har", "otlp"), ("otlp", "har")])
def test_spans_and_a_har_in_one_file(saved: Saved, kinds: tuple[str, str]) -> None:
    log = saved(text_of(kinds[0], 5) + text_of(kinds[1], 9))
    assert sorted(at_s for at_s, *_ in facts(log)) == [5, 6, 9, 10]
    assert (sorted(call.call_id for call in log.calls), log.peak, log.bad_rows) == ([1, 2, 3, 4], 1, [])


def test_a_document_beside_a_har_is_named(saved: Saved) -> None:
    log = saved(text_of("har", 5) + '{"other": 1}\n' + text_of("har", 9))
    assert len(log.calls) == 4
    (row,) = log.bad_rows
    assert row.endswith(": JSON of no format that we read with other")


def test_a_part_of_a_csv_of_a_newer_version_is_refused(saved: Saved) -> None:
    text = text_of("csv", 5)
    with pytest.raises(ReadError, match=r":5: version 9 is newer"):
        saved(text + text.replace('"schema": 1', '"schema": 9'))


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("codec", ["utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_other_encodings(saved: Saved, kind: str, codec: str, pack: Callable[[bytes], bytes]) -> None:
    text = ("\ufeff" if codec == "utf-16-be" else "") + text_of(kind, 5, label="Übung").replace("\n", "\r\n")
    log = saved(pack(text.encode(codec)))
    assert [(call.label, call.total_ms) for call in log.calls] == [("Übung", 1000.0)] * 2
    assert log.bad_rows == []


def otlp_line(number: int) -> str:
    calls = [Call(call_id=number, start_ns=number * S, end_ns=number * S + S, outcome=Outcome.OK)]
    document = json.loads("".join(otlp_writer.pieces(OccupancyLog.from_calls(calls, origin_unix_ns=UNIX_NS))))
    return json.dumps(document) + "\n"


def journal_line(number: int) -> str:
    fields = f'"call_id":{number},"start_ns":{number * S},"end_ns":{number * S + S},"outcome":"ok"'
    return f'{{"event":"end","process":"p",{fields}}}\n'


@pytest.mark.parametrize("line", [otlp_line, journal_line])
def test_a_torn_gzip_is_read_up_to_its_tear(saved: Saved, tmp_path: Path, line: Callable[[int], str]) -> None:
    head = '{"event":"process","process":"p","schema":1,"unix_offset_ns":0}\n' if line is journal_line else ""
    text = (head + "".join(line(number) for number in range(1, 1001))).encode()
    packed = gzip.compress(text)
    log = saved(packed[: len(packed) * 2 // 3])
    n = len(log.calls)
    assert 0 < n < 1000
    assert [call.call_id for call in log.calls] == list(range(1, n + 1))
    *torn, gzip_row = log.bad_rows
    assert len(torn) <= 1
    assert gzip_row == (
        f"{tmp_path / 'file'}: broken gzip: Compressed file ended before the end-of-stream marker was reached: "
        "what it held behind that is lost"
    )
    whole = saved(packed + b"behind it")
    assert (len(whole.calls), [row.partition(": ")[2][:18] for row in whole.bad_rows]) == (1000, ["broken gzip: Not a"])


def test_several_gzips_one_behind_another_are_one_file(saved: Saved) -> None:
    log = saved(gzip.compress(otlp_line(1).encode()) + gzip.compress(otlp_line(2).encode()))
    assert ([call.call_id for call in log.calls], log.bad_rows) == ([1, 2], [])


def test_what_is_of_no_format_is_refused_before_it_is_unpacked(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked = []
    read1 = gzip.GzipFile.read1

    def counted(file: gzip.GzipFile, size: int = -1) -> bytes:
        piece = read1(file, size)
        unpacked.append(len(piece))
        return piece

    monkeypatch.setattr(gzip.GzipFile, "read1", counted)
    with pytest.raises(ReadError, match="no format that we read"):
        saved(gzip.compress(bytes(10**7)))
    assert sum(unpacked) == 65536


@pytest.mark.parametrize("content", ["[]", '{"data": [], "total": 0}', '{"observations": []}', '{"data": []}\n[]'])
def test_an_answer_without_spans_is_an_empty_log(saved: Saved, content: str) -> None:
    log = saved(content)
    assert (log.summary().n, log.bad_rows) == (0, [])


def test_urls_that_ask_no_server_are_no_calls(saved: Saved) -> None:
    entry = {"startedDateTime": "2026-09-21T14:13:20Z", "time": 5, "response": {"status": 200}}
    urls = ["data:image/png;base64,c2VjcmV0", "blob:https://x/1", "about:blank", "file:///x", "https://x/y?secret"]
    log = saved(json.dumps({"log": {"entries": [{**entry, "request": {"method": "GET", "url": url}} for url in urls]}}))
    assert [(call.label, call.host) for call in log.calls] == [("GET /y", "x")]
    assert log.bad_rows == []


@pytest.mark.parametrize(
    ("url", "host", "path"),
    [
        ("https://me:secret@x:8443/a%20b;c?secret#secret", "x:8443", "/a b;c"),
        ("https://x:443", "x", None),
        ("me:secret@x/y", None, None),
        ("https:/me:secret@x/y", None, None),
        ("secret@x/y", None, None),
        ("https://x:99999/y", None, None),
        ("https://[::1/y", None, None),
        ("", None, None),
    ],
)
def test_what_is_kept_of_a_url(saved: Saved, url: str, host: str | None, path: str | None) -> None:
    entry = {"startedDateTime": "2026-09-21T14:13:20Z", "time": 5, "response": {"status": 200}, "request": {"url": url}}
    (call,) = saved(json.dumps({"log": {"entries": [entry]}})).calls
    assert (call.host, call.path) == (host, path)
    assert "secret" not in repr(call)


def test_a_request_within_a_request_is_written_and_read_as_two(saved: Saved, tmp_path: Path) -> None:
    outer = Call(call_id=1, span_id=f"{1:016x}", trace_id=f"{7:032x}", start_ns=0, end_ns=9, outcome=Outcome.OK,
                 model="m-1", output_tokens=7)  # fmt: skip
    inner = Call(call_id=2, span_id=f"{2:016x}", parent_span_id=f"{1:016x}", trace_id=f"{7:032x}", start_ns=1, end_ns=8,
                 outcome=Outcome.OK)  # fmt: skip
    write(tmp_path / "calls.json", otlp_writer.pieces(OccupancyLog.from_calls([outer, inner], origin_unix_ns=UNIX_NS)))
    for select in (None, "http", "all"):
        log = read(tmp_path / "calls.json", select)
        assert log.peak == 2
        assert sorted((call.call_id, call.output_tokens) for call in log.calls) == [(1, 7), (2, None)]
