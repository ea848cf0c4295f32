"""`occupancy.read`: a file of calls or spans as a log, its format known by its contents."""

import gc
import gzip
import io
import os
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from occupancy.errors import ReadError
from occupancy.formats import (
    arrivals_csv,
    har,
    jaeger_json,
    journal_file,
    journal_lines,
    langfuse_json,
    occupancy_csv,
    otlp_json,
    phoenix_json,
    readable_spans,
)
from occupancy.formats.json_documents import parse
from occupancy.formats.recording import ColumnRecording, Recording, as_columns
from occupancy.formats.selection import Selection
from occupancy.formats.span_calls import to_recording
from occupancy.formats.spans import Spans
from occupancy.log import OccupancyLog

_GZIP = b"\x1f\x8b"

_SPANS = (otlp_json, jaeger_json, phoenix_json, readable_spans, langfuse_json)
"""Formats of spans, known by what their JSON holds."""


def read(path: str | os.PathLike[str], select: str | None = None) -> OccupancyLog:
    """Read a file of calls or spans, also one that gzip has compressed, or what a backend holds.

    It may be a CSV of `dump_csv`, a journal, a trace (OTLP, Jaeger, Phoenix, Langfuse, `ReadableSpan.to_json`, HAR) or
    a table of arrivals with durations: what it is its contents tell.

    Args:
        path: The file, or the address of a backend such as `jaeger+http://localhost:16686?service=agent`; see
            `occupancy.backends.pull`.
        select: Which spans are calls: `client`, `http`, `genai`, `all`, or `attribute=value`. By default each request
            that a client sent, and each GenAI request to a model that has none of those below it. Of a file of calls:
            all, `genai`, or `field=value`.

    Returns:
        A log of its calls; what could not be read is in `bad_rows`.

    Raises:
        ReadError: The file is missing, is of no format we read, or holds no call that can be read; or the backend
            cannot be reached, refuses, or has nothing of the kind.
        InputError: `select` is none of the above, or the address cannot be.
    """
    name, selection = os.fspath(path), Selection(select)
    if "://" in name:
        from occupancy.backends import pull

        found, name = pull(name), name.partition("?")[0]
        return _to_log(to_recording(found, selection, name), name)
    with _opened(name) as file, _no_collection():
        return _to_log(_recording(file, name, selection), name)


@contextmanager
def _opened(name: str) -> "Iterator[io.BufferedReader[Any]]":
    """Open a file, or what gzip has compressed in it, behind the mark that some editors begin a text with."""
    try:
        with Path(name).open("rb") as plain:
            compressed = plain.peek(len(_GZIP)).startswith(_GZIP)
            with io.BufferedReader(gzip.GzipFile(fileobj=plain)) if compressed else plain as file:
                if file.peek(len(BOM_UTF8)).startswith(BOM_UTF8):
                    file.read(len(BOM_UTF8))
                yield file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ReadError(f"{name}: broken gzip: {error}") from error
    except OSError as error:
        raise ReadError(f"cannot read {name!r}: {error.strerror}") from error


def _recording(file: "io.BufferedReader[Any]", name: str, selection: Selection) -> ColumnRecording | Recording:
    if file.peek(len(journal_lines.PREFIX)).startswith(journal_lines.PREFIX.encode()):
        return _selected(journal_file.read(file, name), selection)
    text = file.read().decode("utf-8", errors="replace")
    if text.startswith(occupancy_csv.PREFIX):
        return _selected(occupancy_csv.read(text, name), selection)
    if text.lstrip()[:1] in ("{", "["):
        return _of_json(text, name, selection)
    if arrivals_csv.recognise(text.partition("\n")[0]):
        return _selected(arrivals_csv.read(text, name), selection)
    beginning = text[:40].splitlines()[0] if text.strip() else "nothing"
    raise ReadError(f"{name}: no format that we read; it begins with {beginning!r}")


def _selected(recording: ColumnRecording | Recording, selection: Selection) -> ColumnRecording:
    found = as_columns(recording)
    found.columns = selection.columns(found.columns)
    return found


def _of_json(text: str, name: str, selection: Selection) -> ColumnRecording | Recording:
    found, known = Spans(), False
    for document in parse(text, name):
        if har.recognise(document.value):
            return _selected(har.read(document.value, document.place), selection)
        reader = next((reader for reader in _SPANS if reader.recognise(document.value)), None)
        if reader is not None:
            known = True
            reader.read(document.value, document.place, found)
        else:
            found.bad_rows.append(f"{document.place}: {document.error or _unknown(document.value)}")
    if not known:
        raise ReadError(found.bad_rows[0])
    return to_recording(found, selection, name)


def _unknown(value: Any) -> str:
    value = value[0] if isinstance(value, list) and value else value
    members = f" with {', '.join(map(str, list(value)[:6]))}" if isinstance(value, dict) and value else ""
    return f"JSON of no format that we read{members}"


@contextmanager
def _no_collection() -> Iterator[None]:
    """Records hold no cycles: to look for some among a million takes a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _to_log(recording: ColumnRecording | Recording, name: str) -> OccupancyLog:
    found = as_columns(recording)
    if not len(found.columns["start_ns"]) and found.bad_rows:
        raise ReadError(f"{name}: none of {len(found.bad_rows)} rows can be read; first: {found.bad_rows[0]}")
    return OccupancyLog.from_columns(
        found.columns,
        origin_ns=found.origin_ns,
        origin_unix_ns=found.origin_unix_ns,
        bad_rows=found.bad_rows,
    )
