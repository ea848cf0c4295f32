"""The values of calls as JSON has them, many of one field at a time."""

from array import array
from collections.abc import Sequence
from typing import Any

from occupancy.call import FIELD_TYPES, FIELDS, NUMBERS, STAMPS, Frame
from occupancy.formats.growing_columns import Convert, Kept
from occupancy.formats.times import FAR_NS

DISTINCT = ("span_id", "request_id")
"""Texts that differ in each call: there are no equal ones to keep only once."""


def converters() -> dict[str, Convert]:
    """Give for each field of `Call` what makes a column of its values; equal texts and call stacks are kept once.

    Each raises a ValueError where a value is not what the field may hold, None included. It names the first of the
    values: the one, where there is only one.
    """
    return {name: _named(name, _converter(name)) for name in FIELDS}


def _named(name: str, convert: Convert) -> Convert:
    def named(values: Sequence[Any]) -> Kept:
        try:
            return convert(values)
        except (TypeError, OverflowError):
            raise ValueError(f"{name} cannot be {values[0]!r}") from None

    return named


def _converter(name: str) -> Convert:
    types = FIELD_TYPES[name]
    if name == "call_stack":
        return _Stacks().convert
    if str in types:
        return _distinct_texts if name in DISTINCT else _Texts().convert
    if bool in types:
        return _flags
    if float in types:
        return _seconds
    return _bounded if name in (*STAMPS, *NUMBERS) else _whole_numbers


def _whole_numbers(values: Sequence[Any]) -> Kept:
    return array("q", values)


def _bounded(values: Sequence[Any]) -> Kept:
    if max(values) >= FAR_NS or min(values) <= -FAR_NS:
        raise OverflowError
    return array("q", values)


def _seconds(values: Sequence[Any]) -> Kept:
    return array("d", values)


def _flags(values: Sequence[Any]) -> Kept:
    if {*map(type, values)} != {bool}:
        raise TypeError
    return array("q", values)


def _distinct_texts(values: Sequence[Any]) -> Kept:
    if {*map(type, values)} != {str}:
        raise TypeError
    return list(values)


class _Texts(dict[str, str]):
    """Texts, each by itself."""

    def __missing__(self, text: str) -> str:
        if not isinstance(text, str):
            raise TypeError
        self[text] = text
        return text

    def convert(self, values: Sequence[Any]) -> Kept:
        return list(map(self.__getitem__, values))


class _Stacks(dict[tuple[tuple[Any, ...], ...], tuple[Frame, ...]]):
    """Call stacks, each by the tuples it is made of."""

    def __missing__(self, stack: tuple[tuple[Any, ...], ...]) -> tuple[Frame, ...]:
        self[stack] = frames = tuple(_frame(*frame) for frame in stack)
        return frames

    def convert(self, values: Sequence[Any]) -> Kept:
        return [self[tuple(map(tuple, stack))] for stack in values]


def _frame(file: Any, line: Any, function: Any) -> Frame:
    if not (isinstance(file, str) and isinstance(line, int) and isinstance(function, str)):
        raise TypeError
    return Frame(file, line, function)
