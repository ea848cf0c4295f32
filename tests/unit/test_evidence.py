"""Signs that one call needs another: what is one, whose it is, and that nothing but hashes is kept."""

import gzip
import json
import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from urllib.parse import quote, urlencode

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from occupancy.call import Call, Kind
from occupancy.instrumentation import evidence
from occupancy.instrumentation.evidence import MOST_ASKED, MOST_TOLD, Memory, Reader, signs_of

PAGE = {"results": [{"id": "doc-48213-a", "title": "How agents wait for one another in line"}]}
SENTENCE = b"one two three four five six seven eight"


@pytest.fixture(autouse=True)
def memory() -> Iterator[Memory]:
    evidence.start()
    yield evidence._memory  # type: ignore[misc]
    evidence.stop()


def shared(one: bytes, other: bytes) -> int:
    return len(signs_of(one) & signs_of(other))


# What is a sign


@pytest.mark.parametrize(
    ("told", "asked"),
    [
        (b'{"id": "doc-48213-a"}', b"/docs/doc-48213-a"),
        (b'{"id": 482137715}', b"/items/482137715"),
        (b'{"url": "https://a.example/blog/how-to-overlap-all-your-calls"}', b"how-to-overlap-all-your-calls"),
        (SENTENCE, b"Summary: " + SENTENCE + b"."),
        (b'{"text": "' + SENTENCE.replace(b"three", b'\\"three\\"\\n') + b'"}', SENTENCE),
        (b'{"a": {"id": "doc-48213-a"}}', json.dumps({"content": json.dumps({"id": "doc-48213-a"})}).encode()),
    ],
)
def test_what_nobody_says_by_chance_is_a_sign(told: bytes, asked: bytes) -> None:
    assert shared(told, asked) == 1


@pytest.mark.parametrize(
    "text",
    [
        b"", b"17", b"python", b"documentation", b"state-of-the-art", b"gpt-4o", b"2024-2025", b"16384",
        b"2026-01-05", b"2026-01-05T10:30:12Z", b"20260105", b"1767609012", b"1767609012123",
        b"the end of the day is near",  # seven words
        b"------------------------------", b"______________________________",
        b'{"prompt_tokens_1": 1, "finish_reason_code_2": null, "completion_tokens_details_3": true}',
        b"[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]", b"null, null, true, null, null, null, null, false, null, null",
    ],
)  # fmt: skip
def test_what_anybody_may_say_is_none(text: bytes) -> None:
    assert signs_of(text) == set()


def test_a_sign_is_a_number_that_another_process_has_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = signs_of(b"doc-48213-a")
    assert {type(sign) for sign in mine} == {int}
    monkeypatch.setattr(evidence, "_KEY", b"of another process")
    assert signs_of(b"doc-48213-a") != mine


# Whose it is


def test_the_newest_of_the_calls_that_alone_told_something() -> None:
    memory = Memory()
    memory.tell({11, 12}, by=1)
    memory.tell({12, 13}, by=2)
    assert memory.ask({12}, (), own=3) == 0  # two have told it
    assert memory.ask({11}, (), own=4) == 1
    assert memory.ask({11, 13, 99}, (), own=5) == 2
    assert memory.ask({11}, (), own=6) == 1  # asked for once more it still comes from there


def test_what_a_request_held_before_comes_from_the_program() -> None:
    memory = Memory()
    assert memory.ask({11}, (), own=1) == 0
    memory.tell({11}, by=1)
    assert memory.ask({11}, (), own=2) == 0


def test_an_answer_that_repeats_its_request_tells_nothing_new() -> None:
    memory = Memory()
    memory.tell({11}, by=1)
    assert memory.ask({11}, (), own=2) == 1
    memory.tell({11}, by=2)
    assert memory.ask({11}, (), own=3) == 1


def test_a_setting_and_the_call_itself_show_nothing() -> None:
    memory = Memory()
    memory.tell({11, 12}, by=1)
    assert memory.ask({11}, but={11}, own=2) == 0
    assert memory.ask({12}, (), own=1) == 0  # an attempt after an answer to the one before


def test_attempts_of_one_call_are_one_teller() -> None:
    memory = Memory()
    memory.tell({11}, by=1)
    memory.tell({11}, by=1)
    assert memory.ask({11}, (), own=2) == 1


def test_a_full_memory_takes_nothing_new_and_stays_true(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "MOST_SIGNS", 3)
    memory = Memory()
    memory.tell({1, 2}, by=1)
    memory.ask({3}, (), own=2)
    memory.tell({2, 4}, by=3)
    assert memory.ask({4}, (), own=4) == 0
    assert memory.ask({2}, (), own=5) == 0  # told twice, which was noted all the same
    assert memory.ask({1}, (), own=6) == 1


TEXTS = st.lists(st.frozensets(st.integers(1, 5), max_size=3), max_size=8)


@given(TEXTS)
def test_against_the_whole_history(exchanges: list[frozenset[int]]) -> None:
    """Requests and responses in turn; the oracle looks at all of them again for each request."""
    memory = Memory()
    history: list[tuple[bool, int, frozenset[int]]] = []
    for place, signs in enumerate(exchanges):
        asks, number = place % 2 == 0, place // 2 + 1
        if asks:
            needed = {_only_teller(history, sign) for sign in signs} - {None, number}
            assert memory.ask(set(signs), (), own=number) == max(needed, default=0)  # type: ignore[type-var]
        else:
            memory.tell(set(signs), by=number)
        history.append((asks, number, signs))


def _only_teller(history: list[tuple[bool, int, frozenset[int]]], sign: int) -> int | None:
    holds = [(asks, number) for asks, number, signs in history if sign in signs]
    if not holds or holds[0][0]:
        return None
    before_asked = [
        number for place, (_, number) in enumerate(holds) if not any(asks for asks, _ in holds[: place + 1])
    ]
    return before_asked[0] if len(set(before_asked)) == 1 else None


# Bodies


def told_by(memory: Memory, chunks: list[bytes], **headers: str) -> set[int]:
    reader = Reader(
        Call(logical_id=7, needs=0), memory, {name.replace("_", "-"): text for name, text in headers.items()}
    )
    for chunk in chunks:
        reader.feed(chunk)
    reader.end()
    assert set(memory._told.values()) <= {7}
    return set(memory._told)


def cut(body: bytes, at: list[int]) -> list[bytes]:
    places = [0, *sorted({place % (len(body) + 1) for place in at}), len(body)]
    return [body[first:stop] for first, stop in pairwise(places)]


CUTS = st.lists(st.integers(0, 10_000), max_size=6)
BODY = json.dumps(PAGE).encode()
RAW_DEFLATE = zlib.compressobj(wbits=-15)


@given(CUTS, st.sampled_from(("identity", "gzip", "deflate")))
def test_however_a_body_is_cut_and_encoded(at: list[int], encoding: str) -> None:
    encode = {"identity": bytes, "gzip": gzip.compress, "deflate": zlib.compress}[encoding]
    assert told_by(Memory(), cut(encode(BODY), at), content_encoding=encoding) == signs_of(BODY)


def events(text: str) -> bytes:
    """A model's answer in pieces of three characters, as of three APIs in turn."""
    shapes: tuple[Any, ...] = (
        lambda piece: {"choices": [{"delta": {"content": piece}}]},
        lambda piece: {"type": "content_block_delta", "delta": {"type": "text_delta", "text": piece}},
        lambda piece: {"type": "response.output_text.delta", "delta": piece},
    )
    pieces = [text[first : first + 3] for first in range(0, len(text), 3)]
    return b"".join(
        b"data: " + json.dumps(shapes[number % 3](piece)).encode() + b"\n\n" for number, piece in enumerate(pieces)
    )


@given(CUTS)
def test_words_that_events_cut_are_put_together(at: list[int]) -> None:
    text = 'look at doc-48213-a: "one two three four five six seven eight"\n'
    told = told_by(Memory(), cut(events(text), at), content_type="text/event-stream; charset=utf-8")
    assert told == signs_of(json.dumps(text).encode())


def test_a_last_line_without_its_end_is_read() -> None:
    line = b'{"response": "doc-48213-a"}'
    assert told_by(Memory(), [line], content_type="application/x-ndjson") == signs_of(b"doc-48213-a")


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_body_that_cannot_be_decoded_says_nothing(encoding: str) -> None:
    assert told_by(Memory(), [b"no compressed", BODY], content_encoding=encoding) == set()


def test_no_more_is_looked_at_than_said() -> None:
    filler = b"word " * (MOST_TOLD // 5)
    long = filler[: MOST_TOLD - 20]
    assert signs_of(b"doc-48213-a") <= told_by(Memory(), [long, b" doc-48213-a", b" " + filler])
    assert not signs_of(b"doc-48213-a") & told_by(Memory(), [filler, filler, b" doc-48213-a"])
    bomb = gzip.compress(b"doc-48213-a " + bytes(10**7) + b" doc-55213-b")
    assert told_by(Memory(), [bomb], content_encoding="gzip") == signs_of(b"doc-48213-a")


# Requests


def needs_of(request: httpx2.Request, **fields: Any) -> int | None:
    call = Call(**fields)
    evidence.note_request(call, request)
    return call.needs


@pytest.mark.parametrize(
    "request_",
    [
        httpx2.Request("GET", "http://a/docs/doc-48213-a"),
        httpx2.Request("GET", "http://a/docs", params={"id": "doc-48213-a"}),
        httpx2.Request("GET", f"http://a/docs?{quote('id')}={quote('see doc-48213-a/b', safe='')}"),
        httpx2.Request("POST", "http://a", json={"messages": [{"content": "read doc-48213-a now"}]}),
        httpx2.Request("POST", "http://a", content=urlencode({"q": "a doc-48213-a"}),
                       headers={"content-type": "application/x-www-form-urlencoded"}),
        httpx2.Request("POST", "http://a", data={"q": "a/doc-48213-a"}),
    ],
)  # fmt: skip
def test_where_a_request_may_hold_it(memory: Memory, request_: httpx2.Request) -> None:
    memory.tell(signs_of(BODY), by=5)
    assert needs_of(request_) == 5


def test_the_model_s_name_is_a_setting(memory: Memory) -> None:
    memory.tell(signs_of(b"claude-3-5-sonnet"), by=5)
    request = httpx2.Request("POST", "http://a", json={"model": "claude-3-5-sonnet"})
    assert needs_of(request, model="claude-3-5-sonnet") == 0


async def pieces() -> Any:
    yield b"doc-48213-a"


@pytest.mark.parametrize(
    ("request_", "fields"),
    [
        (httpx2.Request("POST", "http://a", content=pieces()), {}),
        (httpx2.Request("POST", "http://a", files={"f": b"doc-48213-a"}), {}),
        (httpx2.Request("POST", "http://a", content=b"doc-48213-a ".ljust(MOST_ASKED + 1)), {}),
        (httpx2.Request("POST", "http://a", content=b"doc-48213-a"), {"kind": Kind.OTHER}),
    ],
)
def test_a_request_that_is_not_looked_at_has_no_reader(
    memory: Memory, request_: httpx2.Request, fields: dict[str, Any]
) -> None:
    memory.tell(signs_of(BODY), by=5)
    call = Call(**fields)
    evidence.note_request(call, request_)
    assert call.needs is None
    assert evidence.reader_of(call, {}) is None
    assert not memory._asked


def test_encodings_that_python_does_not_know_are_not_read() -> None:
    looked_at = Call(needs=0)
    assert evidence.reader_of(looked_at, {"content-encoding": "br"}) is None
    assert evidence.reader_of(looked_at, {"content-encoding": "gzip"}) is not None


def test_switched_off_nothing_is_looked_at() -> None:
    evidence.stop()
    assert needs_of(httpx2.Request("GET", "http://a/docs/doc-48213-a")) is None
    assert evidence.reader_of(Call(needs=0), {}) is None


def test_no_text_is_kept(memory: Memory) -> None:
    evidence.note_request(Call(), httpx2.Request("POST", "http://a", content=SENTENCE))
    reader = evidence.reader_of(Call(needs=0, logical_id=3), {})
    assert reader is not None
    reader.feed(BODY)
    reader.end()
    kept = [*memory._asked, *memory._told, *memory._told.values()]
    assert kept
    assert {type(value) for value in kept} == {int}
    assert (reader._text, reader._line) == ([], b"")
