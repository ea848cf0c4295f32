"""A clock that stands still unless a test moves it."""

import pytest


class VirtualClock:
    """Stands at `now_ns` until it is moved."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    """The clock of flights and logs, at 0."""
    virtual = VirtualClock()
    for module in ("flight", "log"):
        monkeypatch.setattr(f"occupancy.{module}.monotonic_ns", virtual)
    return virtual
