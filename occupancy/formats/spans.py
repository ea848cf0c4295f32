"""Spans, as every tracing format has them, before it is known which of them are calls."""

import base64
import binascii
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

Raw = TypeVar("Raw")

UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What reading a broken row raises."""

_HEX = re.compile(r"(?:0x)?([0-9a-f]+)", re.IGNORECASE)


class Event(NamedTuple):
    """A moment within a span."""

    name: str
    unix_ns: int
    attributes: Mapping[str, Any]


@dataclasses.dataclass(slots=True, eq=False)
class Span:
    """One span that has ended."""

    name: str
    trace_id: str | None
    """As `clean_id` gives it; so are the next two."""
    span_id: str | None
    parent_id: str | None
    kind: str | None
    """`client`, `server`, `internal`, `producer`, `consumer`; None where the format does not say."""
    start_ns: int
    """ns since 1970, as `end_ns`."""
    end_ns: int
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Attributes of the process that made the span; spans of one process share it."""
    events: tuple[Event, ...] = ()
    failed: bool = False
    """Whether its status is an error."""
    scope: str | None = None
    """The library that made it."""


@dataclasses.dataclass(slots=True)
class Spans:
    """What a reader of spans gives."""

    spans: list[Span] = dataclasses.field(default_factory=list)
    bad_rows: list[str] = dataclasses.field(default_factory=list)
    """What could not be read, as `place: reason`."""

    def extend(self, raws: Iterable[Raw | ValueError], to_span: Callable[[Raw], Span], place: str) -> None:
        """Take spans as they lie in a document: the good ones are kept, the bad ones named by their number in it.

        Args:
            raws: The spans; an error stands for what could not even be taken apart.
            to_span: Reads one.
            place: The document, for messages.
        """
        for number, raw in enumerate(raws, start=1):
            try:
                if isinstance(raw, ValueError):
                    raise raw
                span = to_span(raw)
                if span.end_ns < span.start_ns:
                    raise ValueError(f"ends {span.start_ns - span.end_ns} ns before it starts")
                self.spans.append(span)
            except UNREADABLE as error:
                self.bad_rows.append(f"{place}: span {number}: {reason_of(error)}")


def reason_of(error: Exception) -> str:
    """Why a row is bad."""
    if isinstance(error, RecursionError):
        return "nested too deep"
    if isinstance(error, (AttributeError, TypeError)):
        return "not as this format has it"
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def readable(raws: Iterable[Raw], to_event: Callable[[Raw], Event]) -> tuple[Event, ...]:
    """The events of a span that can be read: one that cannot costs no span."""
    events = []
    for raw in raws:
        try:
            events.append(to_event(raw))
        except UNREADABLE:
            continue
    return tuple(events)


def listed(parent: Any, *names: str) -> list[Any]:
    """The list under the first of these names that is there; empty where none is, or it is null.

    Raises:
        ValueError: It is no list, or `parent` no object.
    """
    if not isinstance(parent, dict):
        raise ValueError(f"no object: {shown(parent)}")
    for name in names:
        found = parent.get(name)
        if found is not None:
            if not isinstance(found, list):
                raise ValueError(f"{name} is no list: {shown(found)}")
            return found
    return []


def shown(value: Any) -> str:
    """A value for a message, cut short."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def clean_id(value: Any, digits: int) -> str | None:
    """The id of a trace (32 digits) or span (16), alike however it is written.

    Args:
        value: Hex (also with `0x`, upper case or short), base64, an integer, or whatever a backend makes of ids.
        digits: Hex digits of such an id.

    Returns:
        Hex digits in lower case where it can be written so, else the text itself; None for none, and for all zeros.

    Raises:
        ValueError: It is neither text nor a whole number.
    """
    if value is None or value == "":
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:0{digits}x}" if value else None
    if not isinstance(value, str):
        raise ValueError(f"no id: {shown(value)}")
    found = _HEX.fullmatch(value)
    if found is not None and len(found[1]) <= digits:
        text = found[1].lower().zfill(digits)
        return text if text.strip("0") else None
    try:
        raw = base64.b64decode(value + "=" * (-len(value) % 4), validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) * 2 == digits:
        return raw.hex() if any(raw) else None
    without_dashes = value.replace("-", "").lower()  # a UUID
    return without_dashes if len(without_dashes) == digits and _HEX.fullmatch(without_dashes) else value


def hex_id(clean: str | None, digits: int) -> str | None:
    """An id of `clean_id` where it is one of OpenTelemetry's, else None."""
    return clean if clean is not None and len(clean) == digits and _HEX.fullmatch(clean) else None


def flatten(attributes: Any, prefix: str = "") -> dict[str, Any]:
    """Attributes with dots in their names, also where they are kept as objects within objects."""
    flat: dict[str, Any] = {}
    for name, value in (attributes if isinstance(attributes, dict) else {}).items():
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + str(name)] = value
    return flat
