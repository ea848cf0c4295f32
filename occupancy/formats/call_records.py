"""A call as a JSON object, whole: what formats carry that have room for it beside what they know of a request."""

from collections.abc import Mapping
from typing import Any

from occupancy.call import FIELD_TYPES, FIELDS, NUMBERS, STAMPS, Call, Frame
from occupancy.formats.spans import shown
from occupancy.formats.times import FAR_NS

SCHEMA = 1
"""Version of these objects, and of our attributes on a span that we write to a file."""

DEFAULTS = {name: getattr(Call(), name) for name in FIELDS}


def to_record(call: Call) -> dict[str, Any]:
    """The fields of a call that are not at their defaults, stamps since the log's origin: ready for JSON."""
    record = {name: value for name in FIELDS if (value := getattr(call, name)) != DEFAULTS[name]}
    for name in STAMPS:
        if getattr(call, name) is not None:
            record[name] = getattr(call, name) - call.origin_ns
    return record


def to_call(record: Any) -> Call:
    """The call of such an object; what it does not name is at its default.

    Raises:
        ValueError: It is none, or a field holds what it cannot.
    """
    if not isinstance(record, Mapping):
        raise ValueError("no object")
    return Call(**{name: field_value(name, record[name]) for name in FIELDS if name in record})


def checked(call: Call, unix_offset_ns: int = 0) -> Call:
    """The call itself, where its times can be.

    Args:
        call: A call.
        unix_offset_ns: Unix time minus the clock of its stamps.

    Raises:
        ValueError: It ends before it starts, starts before 1970, or a stamp is far from all times that can be.
    """
    for name in STAMPS:
        stamp_ns = getattr(call, name)
        earliest_ns = 0 if name == "start_ns" else -FAR_NS
        if stamp_ns is not None and not earliest_ns <= stamp_ns + unix_offset_ns < FAR_NS:
            raise ValueError(f"{name} cannot be {shown(stamp_ns)}")
    if call.end_ns is not None and call.end_ns < call.start_ns:
        raise ValueError(f"ends {call.start_ns - call.end_ns} ns before it starts")
    return call


def field_value(name: str, value: Any) -> Any:
    """What a field holds, from JSON.

    Raises:
        ValueError: It cannot hold that.
    """
    if name == "call_stack":
        return frames(value)
    types = FIELD_TYPES[name]
    if float in types and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    is_bool = isinstance(value, bool)
    if is_bool != (bool in types) and value is not None:
        raise ValueError(f"{name} cannot be {shown(value)}")
    most = FAR_NS if name in (*STAMPS, *NUMBERS) else 2**63
    if not isinstance(value, types) or (isinstance(value, int) and abs(value) >= most):
        raise ValueError(f"{name} cannot be {shown(value)}")
    return value


def frames(value: Any) -> tuple[Frame, ...]:
    """A call stack from its JSON.

    Raises:
        ValueError: It is none.
    """
    try:
        return tuple(Frame(str(file), int(line), str(function)) for file, line, function in value)
    except (TypeError, ValueError):
        raise ValueError(f"call_stack cannot be {shown(value)}") from None
