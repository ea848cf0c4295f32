"""The record of one call: its stamps, its phases and how it ended."""

import dataclasses
import typing
from enum import StrEnum
from typing import NamedTuple


class Outcome(StrEnum):
    """How the exchange ended. A 429 whose body was never closed is `ABANDONED` with `status` 429."""

    OPEN = "open"
    """Not ended: still running, or its process died."""
    OK = "ok"
    """Completed with a status below 400."""
    HTTP_ERROR = "http_error"
    """Completed with a status of 400 or more."""
    TIMEOUT = "timeout"
    """The client's own time-out; `asyncio.timeout` is seen as `CANCELLED`."""
    ERROR = "error"
    """The exchange failed: refused, reset, cut, malformed."""
    CANCELLED = "cancelled"
    """The task that waited was cancelled."""
    CLOSED_EARLY = "closed_early"
    """The program closed the body before its end."""
    ABANDONED = "abandoned"
    """The response was collected, or was still open at exit, without having been read to its end."""


class Kind(StrEnum):
    """What a call is for."""

    GENERATE = "generate"
    """A model at work: chat, completions, responses, messages, embeddings."""
    TOOL = "tool"
    """Any other call of the program."""
    OTHER = "other"
    """Telemetry uploads and what `OCCUPANCY_EXCLUDE` names: kept, but in no count, picture or verdict."""


class Frame(NamedTuple):
    """One user frame of a call stack."""

    file: str
    """Absolute path, or `cell 12` in a notebook."""
    line: int
    """From 1."""
    function: str
    """The code object's qualified name."""

    def __str__(self) -> str:
        if self.file.startswith("cell "):
            return f"{self.file}, line {self.line}"
        return f"{self.file}:{self.line}"


@dataclasses.dataclass(slots=True)
class Call:
    """One physical HTTP request, from the moment the program asks for it to its last byte.

    Stamps are ns on one monotonic clock; an absent value is None. `OccupancyLog` keeps calls in columns and gives
    copies: changing one changes no log.
    """

    # Identity
    call_id: int = 0
    """Number of the call in its process, from 1; 0 before it is given."""
    pid: int = 0
    """The process that made the call."""
    logical_id: int = 0
    """`call_id` of the first attempt; retries and redirects share it."""
    attempt: int = 0
    """From 0; each retry or redirect hop adds one."""
    trace_id: str | None = None
    """32 hex digits: of the call's own span, else of the span it was made under."""
    span_id: str | None = None
    """16 hex digits of the call's own span."""
    parent_span_id: str | None = None
    """16 hex digits of the span the call was made under."""
    run: str | None = None
    """One agent run: `occupancy.agent_run`, else the trace id above, else the root task or thread."""
    kind: str = Kind.TOOL
    """A `Kind`."""
    label: str | None = None
    """What the step is called: `occupancy.label`, else the parent span's name, else the call site's function."""
    after: str | None = None
    """Labels of the steps whose results this one needs, one a line, as `occupancy.label(..., after=...)` declares them;
    None where nothing is declared."""
    needs: int | None = None
    """`logical_id` of the newest call whose response was the first to say something that this request repeats; 0 where
    there is none, None where nobody looked: see `OCCUPANCY_DEPENDENCE`."""
    async_task: str | None = None
    """Name of the asyncio or trio task that made the call, as `fetch #2` where another task had that name before."""
    thread: str | None = None
    """Name of the thread that made the call."""
    siblings: int | None = None
    """Work that was handed over together and is not done when the call starts, the call's own included: the tasks of a
    `gather`, task group or nursery (the largest above the call), or what an executor runs and still has in its queue.
    None where there is no such group."""
    siblings_held: bool | None = None
    """Whether one of those tasks is seen to wait for its turn at a lock or semaphore, when the call starts or when its
    headers come; None where nobody can see."""
    call_stack: tuple[Frame, ...] = ()
    """Up to four user frames, innermost first; empty where nothing is known."""

    # Target
    client: str | None = None
    """The library that sent it: `httpx`, `httpx2`, or what `track` was told."""
    method: str | None = None
    """`GET`, `POST`, ..."""
    host: str | None = None
    """Host, with the port where it is not the scheme's own."""
    path: str | None = None
    """Path without the query."""
    model: str | None = None
    """Model name, from the request body or the GenAI span."""
    key_id: str | None = None
    """First 8 hex digits of SHA-256 of the API key that was sent: tells keys apart, and is none."""
    request_id: str | None = None
    """The server's id for the request, from its response headers."""

    # Stamps, ns on the monotonic clock
    start_ns: int = 0
    """The client was asked."""
    headers_ns: int | None = None
    """The response's headers were there."""
    first_byte_ns: int | None = None
    """First byte of the body."""
    first_event_ns: int | None = None
    """First SSE `data:` that is no comment."""
    last_byte_ns: int | None = None
    """Last byte of the body that was seen."""
    end_ns: int | None = None
    """Last byte when completed; else the moment of closing or failing, or the last byte seen when abandoned."""
    released_ns: int | None = None
    """When the count dropped: not before `end_ns`."""

    # Counts, each with this call in it
    in_flight_start: int | None = None
    """Calls in flight just after this one started; None for `Kind.OTHER`, which is not counted."""
    in_flight_end: int | None = None
    """Calls in flight just before this one was released."""

    # Phases, ns
    client_ns: int | None = None
    """Before the connection pool: other transports, auth."""
    gate_ns: int | None = None
    """In our own gate."""
    pool_ns: int | None = None
    """In the pool's queue for a connection."""
    connect_ns: int | None = None
    """Opening the connection, DNS included, TLS not; None when reused."""
    tls_ns: int | None = None
    """TLS handshake."""
    send_ns: int | None = None
    """Sending the request."""
    wait_ns: int | None = None
    """From the request sent to the headers."""
    receive_ns: int | None = None
    """From the headers to the last byte."""
    connection_reused: bool | None = None
    """Whether an open connection was used again."""

    # Result
    status: int | None = None
    """HTTP status code."""
    outcome: str = Outcome.OPEN
    """An `Outcome`."""
    error_type: str | None = None
    """Class name of the exception, or the status of an HTTP error."""
    retry_after_s: float | None = None
    """What the server asked for, in seconds."""
    limit_requests: int | None = None
    """Requests that the server's rate limit allows, as its headers say."""
    remaining_requests: int | None = None
    """How many of those are left."""
    limit_tokens: int | None = None
    """The same for tokens; where the server counts several kinds, of the one with the smallest share left."""
    remaining_tokens: int | None = None
    request_bytes: int | None = None
    """Size of the request body."""
    bytes_received: int = 0
    """Bytes of the body as they came over the wire."""
    chunks: int = 0
    """Pieces the body came in."""
    max_gap_ns: int | None = None
    """Longest time between two chunks; None with fewer than two."""
    max_gap_after_ns: int | None = None
    """From the start to where that longest gap begins."""
    chunks_after_gap: int | None = None
    """Chunks that came together at the end of that gap. More than one had been waiting: the client was late to read."""
    idempotency_key: bool | None = None
    """Whether one was sent."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    sync_in_event_loop: bool = False
    """A synchronous call made on the thread of a running event loop: it stops every other task."""

    # Not kept. Where the clock stood at the log's origin; set by the log that gives the call, 0 in a call of nobody.
    origin_ns: int = dataclasses.field(default=0, repr=False, compare=False)
    # Not kept. The server's port, the scheme's own too.
    port: int | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def call_site(self) -> Frame | None:
        """The innermost user frame, or None."""
        return self.call_stack[0] if self.call_stack else None

    @property
    def t0(self) -> float:
        """Start, in seconds since the log's origin."""
        return (self.start_ns - self.origin_ns) / 1e9

    @property
    def t_first(self) -> float | None:
        """First byte of the body, in seconds since the log's origin."""
        return None if self.first_byte_ns is None else (self.first_byte_ns - self.origin_ns) / 1e9

    @property
    def t1(self) -> float | None:
        """End, in seconds since the log's origin."""
        return None if self.end_ns is None else (self.end_ns - self.origin_ns) / 1e9

    @property
    def wait_first_ms(self) -> float | None:
        """From the start to the first byte of the body, in ms."""
        return None if self.first_byte_ns is None else (self.first_byte_ns - self.start_ns) / 1e6

    @property
    def total_ms(self) -> float | None:
        """From the start to the end, in ms."""
        return None if self.end_ns is None else (self.end_ns - self.start_ns) / 1e6

    @property
    def wire_ns(self) -> int:
        """When the call went on the wire: past the client, our gate and the pool's queue."""
        return self.start_ns + (self.client_ns or 0) + (self.gate_ns or 0) + (self.pool_ns or 0)


STAMPS = ("start_ns", "headers_ns", "first_byte_ns", "first_event_ns", "last_byte_ns", "end_ns", "released_ns")
"""The fields that are times on the monotonic clock, in their order."""

NUMBERS = ("call_id", "logical_id", "needs")
"""The fields that hold the number of a call: above 0, where there is one."""

FIELDS: tuple[str, ...] = tuple(field.name for field in dataclasses.fields(Call) if field.repr)
"""Names of the fields of `Call` in their order: the columns of a log, a CSV file and a journal."""

FIELD_TYPES: dict[str, tuple[type, ...]] = {
    name: (tuple,) if name == "call_stack" else typing.get_args(hint) or (hint,)
    for name, hint in typing.get_type_hints(Call).items()
    if name in FIELDS
}
"""What each field may hold, None included where it may be absent."""

MISSING = -(2**63)
"""None in an array of int64; numpy's bit pattern for "not a time"."""
