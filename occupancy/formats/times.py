"""Times as other formats write them, as exact ns since 1970."""

import functools
import re
from datetime import UTC, datetime, timedelta
from typing import Any

FAR_NS = 2**62
"""From here on, in the year 2116, a time is an error, and no array of int64 could be reckoned with."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d+))?\s*(?:Z|([+-])(\d\d):?(\d\d))?")


def iso_to_ns(text: str) -> int:
    """Read `2026-11-29T18:18:00.123456789Z` to the ns; without a zone it is UTC.

    Raises:
        ValueError: It is no such time; the message holds it.
    """
    found = _ISO.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"no time: {text!r}")
    day, clock, fraction, sign, hours, minutes = found.groups()
    try:
        whole_s = _unix_s(f"{day}T{clock}")
    except ValueError:
        raise ValueError(f"no time: {text!r}") from None
    offset_s = 0 if sign is None else (int(hours) * 3600 + int(minutes) * 60) * (-1 if sign == "-" else 1)
    return (whole_s - offset_s) * 10**9 + int((fraction or "0")[:9].ljust(9, "0"))


@functools.lru_cache(maxsize=1024)
def _unix_s(text: str) -> int:
    return (datetime.fromisoformat(text).replace(tzinfo=UTC) - _EPOCH) // timedelta(seconds=1)


def ns_to_iso(unix_ns: int, digits: int = 9) -> str:
    """Write a time in UTC, with this many digits of the second (9 are exact)."""
    seconds, ns = divmod(unix_ns, 10**9)
    return f"{(_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]}.{f'{ns:09d}'[:digits]}Z"


def unix_ns(value: Any, unit_ns: int = 1) -> int:
    """Read a time that is a number, also as text, or ISO 8601.

    Args:
        value: What the file says.
        unit_ns: What a number counts: 1,000 for µs.

    Raises:
        ValueError: It is neither, or out of range; the message holds it.
    """
    if isinstance(value, str) and not value.strip().isdecimal():
        return _in_range(iso_to_ns(value), value)
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"no time: {value!r}")
    if isinstance(value, float) and not value.is_integer():
        if not abs(value) < FAR_NS:
            raise ValueError(f"no time: {value!r}")
        return _in_range(round(value * unit_ns), value)
    return _in_range(int(value) * unit_ns, value)


def _in_range(ns: int, value: Any) -> int:
    if not 0 <= ns < FAR_NS:
        raise ValueError(f"no time that can be: {value!r}")
    return ns
