"""The JSON of a file: one document, or several one after another, as JSON lines have them."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

NEWLINE = "\n"
PIECE_LENGTH = 1 << 16
"""Characters of a document of several lines that are looked at first."""
LONGEST_TOKEN = 16
"""More characters than a word of JSON, or an escape in a string, has."""

_DECODER = json.JSONDecoder()


class Document(NamedTuple):
    """One JSON value of a file; where it is broken, what is wrong with it."""

    place: str
    value: Any
    error: str | None = None


def parse(text: str, name: str) -> Iterator[Document]:
    """Take the documents of a file apart.

    After a broken one it goes on with the next line that begins with a bracket: a torn line costs itself alone.

    Args:
        text: Its contents, which begin with a bracket.
        name: The file's name.
    """
    try:  # at once where there is but one: twice as fast, and numbers of any length stay exact
        yield Document(name, json.loads(text))
        return
    except (ValueError, RecursionError):
        pass
    position, line = _skip_space(text, 0), 1
    counted_to = 0
    while position < len(text):
        line += text.count("\n", counted_to, position)
        counted_to = position
        place = f"{name}:{line}"
        try:
            value, end = _decode(text, position)
            yield Document(place, value)
        except ValueError as error:  # also a number of thousands of digits
            end = _next_line(text, position)
            yield Document(
                place, None, f"broken JSON: {_reason(error, line, position - text.rfind(NEWLINE, 0, position))}"
            )
        except RecursionError:
            end = len(text)
            yield Document(place, None, "broken JSON: nested too deep")
        position = _skip_space(text, end)


def _decode(text: str, position: int) -> tuple[Any, int]:
    """Read the document that begins here, and tell where it ends: its line first, and more where that is too little.

    What is wrong in a text, JSON's decoder places by counting all lines before: so it is given a piece.

    Raises:
        ValueError: It is broken; what is wrong is placed from here on.
    """
    line_end = text.find(NEWLINE, position)
    size = (len(text) if line_end < 0 else line_end) - position
    while True:
        piece = text[position : position + size]
        try:
            value, end = _DECODER.raw_decode(piece)
            return value, position + end
        except json.JSONDecodeError as error:
            is_cut = error.msg.startswith("Unterminated string") or error.pos > len(piece) - LONGEST_TOKEN
            if not is_cut or position + size >= len(text):
                raise
        size = max(2 * size, PIECE_LENGTH)


def _reason(error: ValueError, line: int, column: int) -> str:
    """What is wrong in a document that begins at this line and column."""
    if isinstance(error, json.JSONDecodeError):
        place = error.lineno + line - 1, error.colno + (column - 1 if error.lineno == 1 else 0)
        return f"{error.msg} at line {place[0]}, column {place[1]}"
    return str(error)


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n,\ufeff":
        position += 1
    return position


def _next_line(text: str, position: int) -> int:
    """Where the next line begins that may be a document."""
    while (position := text.find("\n", position) + 1) > 0:
        if text[position : position + 1] in ("{", "["):
            return position
    return len(text)
