"""What every test begins with."""

import pytest

from occupancy import _guard


@pytest.fixture(autouse=True)
def nothing_reported_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of ours is told once in a process: each test is the first."""
    monkeypatch.setattr(_guard, "_reported", set())
