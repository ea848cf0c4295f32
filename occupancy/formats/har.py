"""HAR 1.2: the network log of browsers and proxies, read and written.

What HAR has no place for is in `_occupancy` members, as the format allows: our own calls come back whole.
"""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from occupancy.call import STAMPS, Call, Outcome
from occupancy.errors import ReadError
from occupancy.formats.call_records import SCHEMA, checked, to_call, to_record
from occupancy.formats.recording import Recording, number_calls
from occupancy.formats.span_fields import of_url, text, whole
from occupancy.formats.spans import UNREADABLE, listed, reason_of
from occupancy.formats.times import FAR_NS, ns_to_iso, unix_ns
from occupancy.kinds import kind_of

if TYPE_CHECKING:
    from occupancy.log import OccupancyLog

MS = 1e6
OWN = "_occupancy"
BEFORE_BODY = ("blocked", "dns", "connect", "send", "wait")
"""Phases before the answer begins; `ssl` lies inside `connect`."""
NO_BODY = (204, 304)
NOT_SENT = ("data:", "blob:", "about:", "file:")
"""How URLs begin of which nothing is asked of a server."""


def recognise(document: Any) -> bool:
    """Whether a JSON document is HAR."""
    log = document.get("log") if isinstance(document, dict) else None
    return isinstance(log, dict) and "entries" in log


def read(document: Any, place: str) -> Recording:
    """Read the entries of a document that `recognise` knows: each is a call, and a page is a run.

    Raises:
        ReadError: It was written by a newer version of ours.
    """
    log = document["log"]
    own = log.get(OWN) if isinstance(log.get(OWN), dict) else {}
    if whole(own.get("schema")) not in (None, SCHEMA):
        raise ReadError(f"{place}: version {own['schema']} is newer than this occupancy, which reads up to {SCHEMA}")
    origin_unix_ns = whole(own.get("origin_unix_ns"), FAR_NS)
    recording = Recording()
    creator = log.get("creator")
    client = text(creator.get("name")) if isinstance(creator, dict) else None
    try:
        entries = listed(log, "entries")
    except ValueError as error:
        entries, recording.bad_rows = [], [f"{place}: {error}"]
    for number, entry in enumerate(entries, start=1):
        try:
            if str(entry["request"]["url"]).startswith(NOT_SENT):
                continue
            recording.calls.append(checked(_to_call(entry, client, origin_unix_ns)))
        except UNREADABLE as error:
            recording.bad_rows.append(f"{place}: entry {number}: {reason_of(error)}")
    number_calls([(call.pid, call) for call in recording.calls])
    first_ns = min((call.start_ns for call in recording.calls), default=0)
    recording.origin_ns = recording.origin_unix_ns = first_ns if origin_unix_ns is None else origin_unix_ns
    return recording


def _to_call(entry: Any, client: str | None, origin_unix_ns: int | None) -> Call:
    if OWN in entry and origin_unix_ns is not None:
        call = to_call(entry[OWN])
        for name in STAMPS:
            since_ns = getattr(call, name)
            if since_ns is not None:
                setattr(call, name, since_ns + origin_unix_ns)
        return call
    request, response, timings = entry["request"], entry["response"], entry.get("timings") or {}
    start_ns = unix_ns(entry["startedDateTime"])
    total_ns = _total_ns(entry.get("time"), timings)
    host, path = _target(str(request["url"]))
    status = whole(response.get("status"), 1000) or None  # 0 is no answer
    waited = _ns(timings, "wait") is not None
    first_ns = min(start_ns + sum(_ns(timings, name) or 0 for name in BEFORE_BODY), start_ns + total_ns)
    has_body = status is not None and status not in NO_BODY and request.get("method") != "HEAD"
    return Call(
        run=text(entry.get("pageref")),
        kind=kind_of(host, path),
        label=f"{request.get('method', '')} {path}".strip() or None,
        client=client,
        method=text(request.get("method")),
        host=host or None,
        path=path or None,
        model=_model(request),
        start_ns=start_ns,
        headers_ns=first_ns if waited and status is not None else None,
        first_byte_ns=first_ns if waited and has_body else None,
        last_byte_ns=start_ns + total_ns if has_body else None,
        end_ns=start_ns + total_ns,
        status=status,
        **_outcome(entry, status),
        **_phases(timings),
        request_bytes=whole(request.get("bodySize"), FAR_NS),
        bytes_received=whole(response.get("bodySize"), FAR_NS) or 0,
    )


def _total_ns(time_ms: Any, timings: Mapping[str, Any]) -> int:
    """How long an entry took. Firefox has written null: the sum of the phases then, which must be `time` otherwise."""
    if time_ms is None:
        return sum(_ns(timings, name) or 0 for name in (*BEFORE_BODY, "receive"))
    if isinstance(time_ms, bool) or not isinstance(time_ms, (int, float)) or not 0 <= time_ms < FAR_NS / MS:
        raise ValueError(f"time cannot be {time_ms!r}")
    return round(time_ms * MS)


def _ns(timings: Mapping[str, Any], name: str) -> int | None:
    """A phase; None where it does not apply, which is -1."""
    value = timings.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < FAR_NS / MS:
        return None
    return round(value * MS)


def _phases(timings: Mapping[str, Any]) -> dict[str, Any]:
    dns_ns, connect_ns, tls_ns = (_ns(timings, name) for name in ("dns", "connect", "ssl"))
    opening_ns = None if connect_ns is None else max(connect_ns - (tls_ns or 0), 0) + (dns_ns or 0)
    return {
        "pool_ns": _ns(timings, "blocked"),
        "connect_ns": opening_ns or None,  # 0 is what some write for -1
        "tls_ns": tls_ns or None,
        "send_ns": _ns(timings, "send"),
        "wait_ns": _ns(timings, "wait"),
        "receive_ns": _ns(timings, "receive"),
        "connection_reused": not opening_ns if connect_ns != 0 and "wait" in timings else None,
    }


def _outcome(entry: Mapping[str, Any], status: int | None) -> dict[str, Any]:
    error = text(entry["response"].get("_error")) or text(entry.get("_error"))
    if status is None or error is not None:
        return {"outcome": Outcome.ERROR, "error_type": error or "no answer"}
    return {"outcome": Outcome.OK} if status < 400 else {"outcome": Outcome.HTTP_ERROR, "error_type": str(status)}


def _target(url: str) -> tuple[str, str]:
    scheme, host, port, path = of_url(url)
    if host is not None and port not in (None, {"http": 80, "https": 443}.get(scheme or "")):
        host = f"{host}:{port}"
    return host or "", path or ""


def _model(request: Mapping[str, Any]) -> str | None:
    body = (request.get("postData") or {}).get("text")
    if not isinstance(body, str) or '"model"' not in body:
        return None
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return text(asked.get("model")) if isinstance(asked, dict) else None


def pieces(log: "OccupancyLog") -> Iterator[str]:
    """A log as the text of a HAR file, piece by piece; its URLs are without queries, as calls are kept."""
    from occupancy import __version__

    own = {"schema": SCHEMA, "origin_unix_ns": log.origin_unix_ns, "peak": log.peak, "dropped": log.dropped}
    creator = {"name": "occupancy", "version": __version__}
    head = json.dumps({"version": "1.2", "creator": creator, "pages": [], OWN: own})
    yield f'{{"log": {head[:-1]}, "entries": ['
    separator = "\n"
    for call in [*log.calls, *log.open_calls]:
        yield separator + json.dumps(_entry(call, log.origin_unix_ns))
        separator = ",\n"
    yield "\n]}}\n"


def _entry(call: Call, origin_unix_ns: int) -> dict[str, Any]:
    unknown = {"httpVersion": "unknown", "cookies": [], "headers": [], "headersSize": -1}
    timings = _timings(call)
    return {
        "startedDateTime": ns_to_iso(call.start_ns - call.origin_ns + origin_unix_ns),
        "time": 0 if call.end_ns is None else (call.end_ns - call.start_ns) / MS,
        "request": {
            "method": call.method or "",
            "url": _url(call),
            "queryString": [],
            **unknown,
            "bodySize": -1 if call.request_bytes is None else call.request_bytes,
        },
        "response": {
            "status": call.status or 0,
            "statusText": "",
            "content": {"size": call.bytes_received, "mimeType": ""},
            "redirectURL": "",
            **unknown,
            "bodySize": call.bytes_received,
        },
        "cache": {},
        "timings": timings,
        "comment": call.label or "",
        OWN: to_record(call),
    }


def _timings(call: Call) -> dict[str, float]:
    """The phases, with a sum that is the whole time: what is of none of them is time waited for the server."""
    total_ns = 0 if call.end_ns is None else call.end_ns - call.start_ns
    queued_ns = (call.client_ns or 0) + (call.gate_ns or 0) + (call.pool_ns or 0)
    opening_ns = (call.connect_ns or 0) + (call.tls_ns or 0)
    receive_ns = call.receive_ns or 0
    wait_ns = total_ns - queued_ns - opening_ns - (call.send_ns or 0) - receive_ns
    return {
        "blocked": queued_ns / MS,
        "dns": -1,
        "connect": opening_ns / MS if opening_ns else -1,
        "ssl": call.tls_ns / MS if call.tls_ns else -1,
        "send": (call.send_ns or 0) / MS,
        "wait": max(wait_ns, 0) / MS,
        "receive": receive_ns / MS,
    }


def _url(call: Call) -> str:
    """The URL, as far as it is kept. Its scheme is told by the TLS handshake or the port: 443 is not kept in a host."""
    host = call.host or "unknown.invalid"
    plain = call.tls_ns is None and (":" in host or host == "localhost")
    return f"{'http' if plain else 'https'}://{host}{quote(call.path or '/')}"
