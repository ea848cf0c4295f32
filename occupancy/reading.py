"""`occupancy.read`: a file of calls or spans as a log, its format known by its contents."""

import gc
import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from occupancy.errors import ReadError
from occupancy.formats import (
    arrivals_csv,
    har,
    jaeger_json,
    journal_lines,
    langfuse_json,
    occupancy_csv,
    otlp_json,
    phoenix_json,
    readable_spans,
)
from occupancy.formats.json_documents import parse
from occupancy.formats.recording import Recording
from occupancy.formats.selection import Selection
from occupancy.formats.span_calls import to_recording
from occupancy.formats.spans import Spans
from occupancy.log import OccupancyLog

_GZIP = b"\x1f\x8b"

_TEXTS: tuple[tuple[str, Callable[[str, str], Recording]], ...] = (
    (occupancy_csv.PREFIX, occupancy_csv.read),
    (journal_lines.PREFIX, journal_lines.read),
)
"""Formats of calls, known by how they begin."""

_SPANS = (otlp_json, jaeger_json, phoenix_json, readable_spans, langfuse_json)
"""Formats of spans, known by what their JSON holds."""


def read(path: str | os.PathLike[str], select: str | None = None) -> OccupancyLog:
    """Read a file of calls or spans, also one that gzip has compressed, or what a backend holds.

    It may be a CSV of `dump_csv`, a journal, OTLP JSON, or JSON of Jaeger or Phoenix: what it is its contents tell.

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
    text = _text(name)
    with _no_collection():
        return _to_log(_recording(text, name, selection), name)


def _text(name: str) -> str:
    try:
        data = Path(name).read_bytes()
    except OSError as error:
        raise ReadError(f"cannot read {name!r}: {error.strerror}") from error
    if data.startswith(_GZIP):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise ReadError(f"{name}: broken gzip: {error}") from error
    return data.decode("utf-8-sig", errors="replace")


def _recording(text: str, name: str, selection: Selection) -> Recording:
    for prefix, reader in _TEXTS:
        if text.startswith(prefix):
            return _selected(reader(text, name), selection)
    if text.lstrip()[:1] in ("{", "["):
        return _of_json(text, name, selection)
    if arrivals_csv.recognise(text.partition("\n")[0]):
        return _selected(arrivals_csv.read(text, name), selection)
    beginning = text[:40].splitlines()[0] if text.strip() else "nothing"
    raise ReadError(f"{name}: no format that we read; it begins with {beginning!r}")


def _selected(recording: Recording, selection: Selection) -> Recording:
    recording.calls = selection.calls(recording.calls)
    return recording


def _of_json(text: str, name: str, selection: Selection) -> Recording:
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


def _to_log(recording: Recording, name: str) -> OccupancyLog:
    if not recording.calls and recording.bad_rows:
        raise ReadError(f"{name}: none of {len(recording.bad_rows)} rows can be read; first: {recording.bad_rows[0]}")
    return OccupancyLog.from_calls(
        recording.calls,
        origin_ns=recording.origin_ns,
        origin_unix_ns=recording.origin_unix_ns,
        bad_rows=recording.bad_rows,
    )
