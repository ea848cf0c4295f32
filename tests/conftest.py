"""What every test begins with."""

from pathlib import Path

import pytest

from occupancy import _guard

APART = ("backends", "browser")
"""Folders that need what is not there everywhere: they run only where they are named, as in `pytest tests/browser`."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the folders apart out of a run that does not name them."""
    if collection_path.parent != Path(__file__).parent or collection_path.name not in APART:
        return None
    named = (Path(config.invocation_params.dir, argument.partition("::")[0]).resolve() for argument in config.args)
    return None if any(collection_path in (path, *path.parents) for path in named) else True


@pytest.fixture(autouse=True)
def nothing_reported_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of ours is told once in a process: each test is the first."""
    monkeypatch.setattr(_guard, "_reported", set())
