"""Signs that one call needs another: what a response was the first to say, and a later request repeats.

Off unless `OCCUPANCY_DEPENDENCE=1` or `record(dependence=True)` asks for it. A sign is a word that nobody makes up
twice (an id, a long number), or `PHRASE` words in a row. It shows a need only where one response alone has it, and no
request held it before: what stands in a prompt, and what several servers say, shows nothing. That no sign is found
shows nothing either: a short number, or a word in other words, is none.

Signs are kept as hashes with a random key of the process, in memory, `MOST_SIGNS` of them; the text is dropped with
the end of its body. All that is kept of a call is the number of the call it needs. Not looked at are uploads of
telemetry, requests that are streamed, of several parts or larger than `MOST_ASKED`, with their responses, what comes
after `MOST_TOLD` bytes of a response, and bodies in an encoding other than gzip and deflate.
"""

import os
import re
import zlib
from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import Any
from urllib.parse import unquote_to_bytes

from occupancy.call import Call, Kind

PHRASE = 8
"""Words in a row that two texts do not share by chance."""
MOST_SIGNS = 2**18
"""Signs that are remembered; beyond, no new ones are taken. Some 30 MB."""
MOST_TOLD = 2**16
"""Bytes of a response, decoded, that are looked at."""
MOST_ASKED = 2**18
"""Bytes of a request that are looked at: all of them, or none."""

_WORD = re.compile(
    rb'\\*"[A-Za-z_]\w*\\*"\s*:'  # the name of a field, which is the same in all messages
    rb"|\\u[0-9a-fA-F]{4}|\\."  # an escape
    rb"|(?:true|false|null|\d)\b"
    rb"|([0-9A-Za-z_\x80-\xff-]+)",
    re.DOTALL,
)
_TIME = re.compile(rb"\d{4}-?\d\d-?\d\d(?:T.*)?|1\d{9}(?:\d{3}){0,3}")
"""A date, or a Unix time: client and server may each tell it by themselves."""
_LETTER, _DIGIT = re.compile(rb"[A-Za-z\x80-\xff]"), re.compile(rb"\d")
_PIECE = re.compile(rb'"(?:content|text|delta|arguments|partial_json|response)"\s*:\s*"((?:[^"\\]|\\.)*)"')
"""A piece of a model's answer in an event: words are cut anywhere, and go on in the next."""
_FIELD = re.compile(rb"(?:^|[?&])[^=&?]*=")
_STREAMS = ("text/event-stream", "application/x-ndjson")
_KEY = os.urandom(16)

Signs = set[int]


def signs_of(text: bytes) -> Signs:
    """Give the signs in a text, JSON or any other, as hashes; empty where there are none."""
    words = [word for word in _WORD.findall(text) if word]
    phrases = map(hash, zip(repeat(_KEY), *(words[first:] for first in range(PHRASE)), strict=False))
    return {hash((_KEY, word)) for word in words if _is_telling(word)}.union(phrases)


def _is_telling(word: bytes) -> bool:
    """Whether a word is one that two sides do not come up with by chance: an id, a long number, a very long name."""
    if len(word) < 8 or word.isalpha() or _TIME.fullmatch(word):
        return False
    n_letters, n_digits = len(_LETTER.findall(word)), len(_DIGIT.findall(word))
    return n_digits >= (1 if n_letters else 9) or (n_letters >= 20 and word.isascii())


class Memory:
    """Which response was the first to say what, and what requests have held."""

    def __init__(self) -> None:
        self._asked: Signs = set()
        self._told: dict[int, int] = {}
        """The call whose response has a sign that no request had before; 0 where several have."""

    def ask(self, signs: Signs, but: Iterable[int], own: int) -> int:
        """A request holds these signs.

        Args:
            signs: Of the request.
            but: Signs that show nothing: the model's name is a setting, whoever else says it.
            own: `logical_id` of the request's call, 0 before it has one.

        Returns:
            `logical_id` of the newest call that it is shown to need; 0 for none.
        """
        told = self._told
        needed = {told[sign] for sign in signs.difference(but) if sign in told}
        self._asked |= signs
        return max(needed - {own}, default=0)

    def tell(self, signs: Signs, by: int) -> None:
        """The response of a call holds these signs."""
        told, n_left = self._told, MOST_SIGNS - len(self._told) - len(self._asked)
        for sign in signs - self._asked:
            if sign not in told:
                n_left -= 1
                if n_left < 0:
                    continue
            if told.setdefault(sign, by) != by:
                told[sign] = 0


_memory: Memory | None = None


def start() -> None:
    """Look at requests and responses from now on. Repeats change nothing."""
    global _memory
    if _memory is None:
        _memory = Memory()


def stop() -> None:
    """Look no more, and forget all signs."""
    global _memory
    _memory = None


def is_looking() -> bool:
    """Whether requests and responses are looked at."""
    return _memory is not None


def note_request(call: Call, request: Any) -> None:
    """Find which call an httpx request shows that it needs."""
    body = getattr(request, "_content", None)
    if is_looking() and body is not None:
        note_sent(call, request.url.raw_path, body, request.headers.get("content-type", ""))


def note_sent(call: Call, target: bytes, body: bytes, content_type: str) -> None:
    """Find which call a request shows that it needs.

    Args:
        call: The request's, before its response.
        target: Path and query, as on the wire.
        body: All of the body; empty without one.
        content_type: Its type, as the header has it.
    """
    memory = _memory
    if memory is None or call.kind == Kind.OTHER or len(body) > MOST_ASKED or content_type.startswith("multipart/"):
        return
    signs = signs_of(_plain(target))
    if body:
        signs |= signs_of(_plain(body) if "form-urlencoded" in content_type else body)
    call.needs = memory.ask(signs, signs_of((call.model or "").encode()), call.logical_id)


def _plain(encoded: bytes) -> bytes:
    """The values in a URL's path and query, or in a form."""
    return unquote_to_bytes(_FIELD.sub(b" ", encoded).replace(b"+", b" "))


class Reader:
    """Reads the body of one response.

    Args:
        call: The call.
        memory: Where its signs go, when the body ends.
        headers: The response's headers, names in lower case.
    """

    __slots__ = ("_call", "_decoder", "_is_stream", "_line", "_memory", "_n_left", "_text")

    def __init__(self, call: Call, memory: Memory, headers: Mapping[str, str]) -> None:
        self._call = call
        self._memory = memory
        self._decoder = zlib.decompressobj(47) if headers.get("content-encoding", "identity") != "identity" else None
        self._is_stream = headers.get("content-type", "").startswith(_STREAMS)
        self._line = b""
        self._text: list[bytes] = []
        self._n_left = MOST_TOLD

    def feed(self, chunk: bytes) -> None:
        """Take the next piece, as it came over the wire."""
        if self._n_left <= 0:
            return
        plain = self._decoded(chunk)
        if self._is_stream:
            whole, _, line = (self._line + plain).rpartition(b"\n")
            self._line = line[:MOST_TOLD]
            plain = b"".join(_PIECE.findall(whole))
        self._text.append(plain[: self._n_left])
        self._n_left -= len(plain)
        if self._decoder is not None and self._decoder.unconsumed_tail:
            self._n_left = 0  # a chunk that grows so much is not gone on with

    def _decoded(self, chunk: bytes) -> bytes:
        if self._decoder is None:
            return chunk
        try:
            return self._decoder.decompress(chunk, MOST_TOLD)
        except zlib.error:  # the host will see it
            self._n_left = 0
            return b""

    def end(self) -> None:
        """The body has ended, or nobody reads on."""
        text = b"".join(self._text + _PIECE.findall(self._line))
        self._text, self._n_left = [], 0
        if text:
            self._memory.tell(signs_of(text), self._call.logical_id)


def reader_of(call: Call, headers: Mapping[str, str]) -> Reader | None:
    """Give what reads the body of a response; None where it is not to be looked at."""
    if _memory is None or call.needs is None:
        return None
    if headers.get("content-encoding", "identity") not in ("identity", "gzip", "deflate"):
        return None
    return Reader(call, _memory, headers)
