"""Documents one behind another in a text, some of them broken."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from occupancy.formats import json_documents
from occupancy.formats.json_documents import parse

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
).filter(lambda value: isinstance(value, (dict, list)))
BROKEN = st.sampled_from(["{'a': 1}", '{"a": tru}', '{"a": "torn', '{"a": 1,', "[1,", '{"a": \\u12', "{]", '["\\u12"]'])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(VALUES, st.sampled_from([None, 0, 1, 40])) | BROKEN, min_size=2, max_size=6),
    st.sampled_from([1, 7, 1 << 16]),
)
def test_a_broken_line_costs_itself_alone(parts: list[Any], piece_length: int) -> None:
    texts = [part if isinstance(part, str) else json.dumps(part[0], indent=part[1]) for part in parts]
    if any(text.startswith(("{\n{", "[\n[", "[\n{")) for text in texts):
        return  # without indent a broken document's insides begin lines, too
    lines = [1]
    for text in texts:
        lines.append(lines[-1] + text.count("\n") + 1)
    expected = [
        (f"x:{line}", None if isinstance(part, str) else part[0], isinstance(part, str))
        for line, part in zip(lines, parts, strict=False)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_documents, "PIECE_LENGTH", piece_length)
        found = list(parse("\n".join(texts) + "\n", "x"))
    assert [(one.place, one.value, one.error is not None) for one in found] == expected


def test_what_is_wrong_is_placed_in_the_file() -> None:
    text = '{"a": 1}\n{"b": oops}\n{\n  "c": 1,\n  "d" 2\n}\n[] {"e": oops}\n'
    errors = {one.place: one.error for one in parse(text, "x") if one.error is not None}
    assert errors == {
        "x:2": "broken JSON: Expecting value at line 2, column 7",
        "x:3": "broken JSON: Expecting ':' delimiter at line 5, column 7",
        "x:7": "broken JSON: Expecting value at line 7, column 10",
    }


def test_a_document_is_longer_than_what_is_looked_at_first() -> None:
    value = {"a": ["x" * 100_000] * 3, "b": " " * 70_000}
    text = json.dumps(value, indent=1)
    assert [one.value for one in parse(f"{text}\n{text}\n[]", "x")] == [value, value, []]


def test_of_many_broken_lines_none_is_looked_at_more_than_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = 0

    class Decoder(json.JSONDecoder):
        def raw_decode(self, text: str, position: int = 0) -> tuple[Any, int]:
            nonlocal looked_at
            looked_at += len(text)
            return super().raw_decode(text, position)

    monkeypatch.setattr(json_documents, "_DECODER", Decoder())
    line = "{'a': 1, 'b': 'a dictionary of Python, printed'}\n"
    assert len(list(parse(line * 2000, "x"))) == 2000
    assert looked_at <= 2000 * len(line)
