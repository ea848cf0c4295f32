"""Bodies of answers: the pieces in which they are sent."""

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

DEFAULT_DELTAS = 4
PING = b": ping\n\n"


@dataclass(frozen=True, slots=True)
class Content:
    """A body, in the pieces in which it is sent."""

    media_type: str
    pieces: list[bytes]

    @property
    def is_events(self) -> bool:
        """Whether this is an event stream."""
        return self.media_type == "text/event-stream"


def json_content(value: Any, chunks: int = 1) -> Content:
    """Encode `value` as JSON, in `chunks` pieces as even as possible (fewer if it has fewer bytes)."""
    body = json.dumps(value, separators=(",", ":")).encode()
    return Content("application/json", split_evenly(body, chunks))


def event_content(opening: Iterable[bytes], deltas: Sequence[bytes], closing: Iterable[bytes]) -> Content:
    """Join encoded events to one piece for each delta.

    The opening events ride with the first delta and the closing ones with the last, so that the number of pieces is the
    number of deltas, exactly.
    """
    pieces = list(deltas)
    pieces[0] = b"".join(opening) + pieces[0]
    pieces[-1] += b"".join(closing)
    return Content("text/event-stream", pieces)


def encode_event(data: Any, name: str | None = None) -> bytes:
    """Encode one server-sent event; `data` that is no string becomes JSON."""
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


def text_deltas(count: int) -> list[str]:
    """The answer's text in `count` parts; `"".join` gives the whole."""
    return [f"word{index}" if index == 0 else f" word{index}" for index in range(count)]


def split_evenly(body: bytes, count: int) -> list[bytes]:
    """Cut `body` in `count` parts whose sizes differ by at most one byte, none of them empty; [] for no bytes."""
    count = min(count, len(body))
    edges = [len(body) * index // count for index in range(count + 1)] if count else [0]
    return [body[start:end] for start, end in pairwise(edges)]


def compress(pieces: Sequence[bytes]) -> list[bytes]:
    """Gzip the pieces as one body, each flushed so that it can be read when it arrives."""
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    packed = [packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH) for piece in pieces[:-1]]
    return packed + [packer.compress(piece) + packer.flush() for piece in pieces[-1:]]
