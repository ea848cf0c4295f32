"""The scanner of event streams, against a parser of the whole text that shares nothing with it."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from occupancy.instrumentation.stream import CARRY, EventScanner

CLOSING = ("message_stop", "response.completed", "response.failed", "response.incomplete", "error")


def lines_of(text: bytes) -> list[tuple[bytes, int, bool]]:
    """Lines as `(line, offset after its end, whether it is complete)`, read byte by byte as the standard has it."""
    lines, begin, at = [], 0, 0
    while at < len(text):
        if text[at] in b"\r\n":
            after = at + (2 if text[at : at + 2] == b"\r\n" else 1)
            lines.append((text[begin:at], after, True))
            begin = at = after
        else:
            at += 1
    if begin < len(text):
        lines.append((text[begin:], len(text), False))
    return lines


def first_data(text: bytes) -> bool:
    return any(line.startswith(b"data:") for line, _, _ in lines_of(text))


def last_event(text: bytes) -> bool:
    """Whether the text holds a last event: `[DONE]` as soon as it is there, a named one with its blank line."""
    closing = False
    for line, _, complete in lines_of(text):
        if line.startswith(b"data:") and line[5:].removeprefix(b" ").startswith(b"[DONE]"):
            return True
        if not closing:
            name = line.removeprefix(b"event:").removeprefix(b" ")
            closing = complete and line.startswith(b"event:") and name.decode("latin-1") in CLOSING
        elif line == b"" and complete:
            return True
    return False


CONTENT = st.sampled_from(
    [
        b'{"delta":"hello"}', b"[DONE", b"[DONE] is what I say", b'{"text":"data: [DONE]"}', b'{"t":"event: error"}',
        b"event: message_stop", b" [DONE]", b"x" * 100, b"\xc3\xa9", b"",
    ]
)  # fmt: skip
LINE = st.one_of(
    CONTENT.map(lambda content: b"data: " + content),
    CONTENT.map(lambda content: b"data:" + content),
    CONTENT.map(lambda content: b": " + content),
    CONTENT,
    st.sampled_from([b"event: message_start", b"event: errors", b"event:  error", b"id: 7", b"", b"", b"retry: 1"]),
    st.sampled_from([f"event: {name}".encode() for name in CLOSING]),
    st.sampled_from([f"event:{name}".encode() for name in CLOSING]),
    st.integers(0, 90).map(lambda count: b"event: error" + b" " * count),
    st.integers(0, 90).map(lambda count: b"event: error" + b" " * count + b"x"),
    st.sampled_from([b"data: [DONE]", b"data:[DONE]", b"data:  [DONE]", b" data: [DONE]"]),
)
END = st.sampled_from([b"\n", b"\r\n", b"\r"])
EVENTS = st.lists(st.tuples(LINE, END), max_size=12).map(lambda lines: b"".join(line + end for line, end in lines))


@given(EVENTS, st.lists(st.integers(0, 400), max_size=12), st.integers(0, 40))
@example(b"event: error\r\n\r\n", [13], 0)
@example(b"event: error\n\r\n", [], 0)
@example(b"event: error" + b" " * 60 + b"x\n\n", [70], 0)
def test_split_anywhere(text: bytes, cuts: list[int], torn: int) -> None:
    text = text[: len(text) - torn] if torn else text
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    scanner = EventScanner()
    for begin, end in pairwise(edges):
        scanner.feed(text[begin:end])
        seen = text[:end]
        assert scanner.first_seen == first_data(seen)
        assert scanner.last_seen == last_event(seen)
        if scanner.last_seen:
            return


@given(EVENTS)
def test_byte_by_byte(text: bytes) -> None:
    scanner = EventScanner()
    for at in range(len(text)):
        scanner.feed(text[at : at + 1])
        if scanner.last_seen:
            assert last_event(text[: at + 1])
            assert not last_event(text[:at])
            return
    assert not last_event(text)
    assert scanner.first_seen == first_data(text)


@pytest.mark.parametrize("name", CLOSING)
def test_the_last_events_data_may_come_later(name: str) -> None:
    scanner = EventScanner()
    scanner.feed(f"event: {name}\n".encode())
    assert not scanner.last_seen
    scanner.feed(b'data: {"half":')
    assert not scanner.last_seen
    scanner.feed(b"1}\n")
    assert not scanner.last_seen
    scanner.feed(b"\n")
    assert scanner.last_seen


@pytest.mark.parametrize(
    "text",
    [
        b'data: {"text":"data: [DONE]"}\n\n',
        b'data: {"text":"event: message_stop\\n\\n"}\n\n',
        b"data: say [DONE]\n\n",
        b": data: [DONE]\n\n",
        b"event: message_stopped\ndata: 1\n\n",
        b"event: message_stop",
        b"event: message_stop\ndata: 1\n",
    ],
)
def test_what_is_no_last_event(text: bytes) -> None:
    scanner = EventScanner()
    scanner.feed(text)
    assert not scanner.last_seen


def test_a_comment_is_no_event() -> None:
    scanner = EventScanner()
    scanner.feed(b": ping\n\n: data: 1\n\n")
    assert not scanner.first_seen
    scanner.feed(b"data: 1\n\n")
    assert scanner.first_seen


def test_little_is_carried() -> None:
    scanner = EventScanner()
    for _ in range(100):
        scanner.feed(b"data: " + b"x" * 1000)
    assert len(scanner._carry) <= CARRY + 1
