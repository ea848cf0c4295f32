"""`occupancy.read`: a file of calls or spans as a log, its format known by its contents."""

import gc
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
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
from occupancy.formats.opened_file import OpenedFile, opened
from occupancy.formats.recording import ColumnRecording, Recording, as_columns, joined
from occupancy.formats.selection import Selection
from occupancy.formats.span_calls import to_recording
from occupancy.formats.spans import Spans
from occupancy.log import OccupancyLog

_SPANS = (otlp_json, jaeger_json, phoenix_json, readable_spans, langfuse_json)
"""Formats of spans, known by what their JSON holds."""
_LISTS = ("data", "spans", "observations")
"""Where a backend's answer has them."""


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
    with opened(name) as opened_file, _no_collection():
        return _to_log(_recording(opened_file, name, selection), name)


def _recording(opened_file: OpenedFile, name: str, selection: Selection) -> ColumnRecording:
    """What a file holds, as far as it is whole."""
    try:
        recording = _of_file(opened_file.file, name, selection)
    except ReadError as error:
        if opened_file.damage is None:
            raise
        raise ReadError(f"{name}: {opened_file.damage}") from error
    if opened_file.damage is not None:
        recording.bad_rows.append(f"{name}: {opened_file.damage}: what it held behind that is lost")
    return recording


def _of_file(file: "io.BufferedReader[Any]", name: str, selection: Selection) -> ColumnRecording:
    beginning = file.peek(len(journal_lines.PREFIX))
    if beginning.startswith(journal_lines.PREFIX.encode()):
        return _selected(journal_file.read(file, name), selection)
    _check_beginning(beginning.decode("utf-8", errors="replace"), name)  # before all of it is read
    text = file.read().decode("utf-8", errors="replace")
    if occupancy_csv.recognise(text):
        return _selected(occupancy_csv.read(text, name), selection)
    if text.lstrip()[:1] in ("{", "["):
        return _of_json(text, name, selection)
    return _selected(arrivals_csv.read(text, name), selection)


def _check_beginning(beginning: str, name: str) -> None:
    """Refuse a file of no format that we read.

    Raises:
        ReadError: It is of none.
    """
    if not beginning.strip():
        raise ReadError(f"{name}: the file is empty")
    is_known = occupancy_csv.recognise(beginning) or beginning.lstrip()[:1] in ("{", "[")
    if not is_known and not arrivals_csv.recognise(beginning.partition("\n")[0]):
        if beginning.startswith(",".join(occupancy_csv.HEADINGS[:5])):
            raise ReadError(f"{name}: a CSV of calls without its first line, {occupancy_csv.PREFIX + '{...}'!r}")
        raise ReadError(f"{name}: no format that we read; it begins with {beginning[:40].splitlines()[0]!r}")


def _selected(recording: ColumnRecording | Recording, selection: Selection) -> ColumnRecording:
    found = as_columns(recording)
    found.columns = selection.columns(found.columns)
    return found


def _of_json(text: str, name: str, selection: Selection) -> ColumnRecording:
    found, parts, has_spans = Spans(), [], False
    archives: list[Any] = []
    for document in parse(text, name):
        reader = next((reader for reader in _SPANS if reader.recognise(document.value)), None)
        if har.recognise(document.value):
            if document.value not in archives:  # a file that holds another twice
                archives.append(document.value)
                parts.append(_selected(har.read(document.value, document.place), selection))
        elif reader is not None:
            has_spans = True
            reader.read(document.value, document.place, found)
        elif not _is_empty(document.value):
            found.bad_rows.append(f"{document.place}: {document.error or _unknown(document.value)}")
    if found.bad_rows and not parts and not has_spans:
        raise ReadError(found.bad_rows[0])
    if has_spans or not parts:
        parts.append(as_columns(to_recording(found, selection, name)))
    else:
        parts[0].bad_rows += found.bad_rows
    return joined(parts)


def _is_empty(value: Any) -> bool:
    """Whether a document is the answer of a backend that has found nothing."""
    return value == [] or (isinstance(value, dict) and any(value.get(name) == [] for name in _LISTS))


def _unknown(value: Any) -> str:
    value = value[0] if isinstance(value, list) and value else value
    if isinstance(value, dict) and "traceEvents" in value:
        return "a Chrome trace, which is for looking: read what it was made of"
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
