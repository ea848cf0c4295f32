"""What the tests of several clients ask of each: how exchanges end, and what comes on top of a hook."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from occupancy import Call, Outcome

ORDER = ("start_ns", "headers_ns", "first_byte_ns", "first_event_ns", "last_byte_ns", "end_ns", "released_ns")
ALL = "headers first_byte last_byte"
EVENTS = "headers first_byte first_event last_byte"


@dataclass
class Ending:
    """What a scenario must leave in the log."""

    scenario: Callable[..., Any]
    outcome: Outcome
    status: int | None
    stamps: set[str]
    error: str | None
    end: str | None


class Endings(dict[str, Ending]):
    """Scenarios by their names."""

    def declare(
        self, outcome: Outcome, status: int | None, stamps: str, *, error: str | None = None, end: str | None = None
    ) -> Any:
        """Declare what a scenario must leave; a decorator."""

        def add(scenario: Callable[..., Any]) -> Callable[..., Any]:
            self[scenario.__name__] = Ending(scenario, outcome, status, set(stamps.split()), error, end)
            return scenario

        return add


def check_ending(call: Call, expected: Ending, client: str, error: str | None) -> None:
    """Check the one call that a scenario has left."""
    check_order(call)
    assert (call.outcome, call.status, call.error_type) == (expected.outcome, expected.status, error)
    named = ("headers", "first_byte", "first_event", "last_byte")
    assert {name for name in named if getattr(call, f"{name}_ns") is not None} == expected.stamps
    if expected.end is not None:
        assert call.end_ns == getattr(call, expected.end)
    assert call.client == client


def check_order(call: Call) -> None:
    """Check that a call's stamps are in their order."""
    stamps = [getattr(call, name) for name in ORDER]
    present = [stamp for stamp in stamps if stamp is not None]
    assert present == sorted(present), dict(zip(ORDER, stamps, strict=True))
    assert (call.first_byte_ns is None) == (call.last_byte_ns is None) == (call.chunks == 0)


def hidden(method: Any, calls: list[int]) -> Any:
    """A method wrapped by somebody who does not say what lies below."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return method(*args, **kwargs)

    return wrapper
