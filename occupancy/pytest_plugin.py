"""Tests of how a program calls: the calls of a test, counted, and a failing test that shows them.

    def test_tools_overlap(occupancy_log):
        run_agent()
        assert occupancy_log.peak >= 2

    @pytest.mark.occupancy(min_peak=2, max_in_flight=8)
    def test_agent():
        run_agent()

The fixture records from its set-up to the end of the test, so also what fixtures do that come after it; the marker
alone records the test itself. Mocked transports (respx, pytest-httpx, `MockTransport`) count as real ones do, but most
answer without letting another task run: there calls overlap only where the answer takes a moment, as an async side
effect does that awaits `asyncio.sleep(0)`.

What was recorded stands in the report of a test that fails; `pytest -rP` shows it for those that pass. Tests that use
neither fixture nor marker cost nothing.
"""

from collections.abc import Generator, Iterator
from time import monotonic_ns
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from occupancy.log import OccupancyLog

MARKER = (
    "occupancy(min_peak=None, max_in_flight=None): record the calls of the test; it fails unless at least `min_peak` "
    "and at most `max_in_flight` of them were in flight at once."
)
AT_ONCE = (
    "No call reached a network. A mock that answers without letting another task run\n"
    "never has two calls in flight: give it an async side effect that awaits asyncio.sleep(0)."
)


class Bounds(NamedTuple):
    """What markers ask of the calls in flight at once; None for nothing."""

    min_peak: int | None = None
    max_in_flight: int | None = None


_log_key = pytest.StashKey["OccupancyLog"]()


@pytest.fixture
def occupancy_log(request: pytest.FixtureRequest) -> Iterator["OccupancyLog"]:
    """The calls of this test, as they happen: `assert occupancy_log.peak >= 2`."""
    log = _record(request.node)
    try:
        yield log
    finally:
        _stop(log)


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", MARKER)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tell of a wrong marker before any test runs; pytest-xdist's workers cannot, there its test fails.

    Raises:
        UsageError: A marker has another keyword, or a value that cannot be used; names the test and both.
    """
    if not hasattr(config, "workerinput"):
        for item in items:
            _bounds(item)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Keep nothing longer than the test runs; one that runs again begins anew."""
    try:
        return (yield)
    finally:
        _forget(item)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Record a test that has a marker, stop at its end, and check what the marker asks."""
    bounds = _bounds_or_fail(item)
    if bounds is not None:
        _record(item)
    try:
        result = yield
    finally:
        log = item.stash.get(_log_key, None)
        if log is not None:
            _stop(log)
    if bounds is not None and log is not None:
        _check(log, bounds)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put what was recorded into the report of a test that has failed, or of every one under `-rP` and `-rA`."""
    report = yield
    log = item.stash.get(_log_key, None)
    is_shown = report.failed or (report.when == "call" and not {"P", "A"}.isdisjoint(item.config.option.reportchars))
    if log is not None and is_shown:
        from occupancy import _guard

        text = _guard.guarded(_draw)(log)
        if text is not None:
            report.sections.append(("occupancy", text))
        _forget(item)  # a teardown that fails too need not show it again
    return report


def _bounds(item: pytest.Item) -> Bounds | None:
    """Give what the markers of a test ask, the innermost first; None without a marker."""
    markers = list(item.iter_markers("occupancy"))
    if not markers:
        return None
    asked: dict[str, int | None] = {}
    for marker in markers:
        _check_marker(marker, item.nodeid)
        asked = {**marker.kwargs, **asked}
    bounds = Bounds(**asked)
    if bounds.min_peak is not None and bounds.max_in_flight is not None and bounds.min_peak > bounds.max_in_flight:
        raise pytest.UsageError(
            f"{item.nodeid}: pytest.mark.occupancy: min_peak={bounds.min_peak} is above "
            f"max_in_flight={bounds.max_in_flight}"
        )
    return bounds


def _bounds_or_fail(item: pytest.Item) -> Bounds | None:
    try:
        return _bounds(item)
    except pytest.UsageError as error:
        wrong = str(error)
    pytest.fail(wrong, pytrace=False)


def _check_marker(marker: pytest.Mark, nodeid: str) -> None:
    where = f"{nodeid}: pytest.mark.occupancy"
    if marker.args:
        raise pytest.UsageError(f"{where} takes keywords only ({', '.join(Bounds._fields)}), not {marker.args[0]!r}")
    for name, value in marker.kwargs.items():
        if name not in Bounds._fields:
            raise pytest.UsageError(f"{where} knows {' and '.join(Bounds._fields)}, not {name!r}")
        if value is not None and (type(value) is not int or value < 0):
            raise pytest.UsageError(f"{where}: {name} must be a whole number from 0 on, not {value!r}")


def _record(item: pytest.Item) -> "OccupancyLog":
    """Give the log of a test: the same one to the fixture and to the marker."""
    log = item.stash.get(_log_key, None)
    if log is None:
        from occupancy import capture
        from occupancy.log import OccupancyLog

        log = item.stash[_log_key] = OccupancyLog()
        capture.record_into(log)
    return log


def _stop(log: "OccupancyLog") -> None:
    from occupancy import capture

    capture.stop_recording(log)


def _forget(item: pytest.Item) -> None:
    if _log_key in item.stash:
        del item.stash[_log_key]


def _check(log: "OccupancyLog", bounds: Bounds) -> None:
    """Fail the test unless its peak is within bounds."""
    peak = log.peak
    if bounds.min_peak is not None and peak < bounds.min_peak:
        hint = f"\n{AT_ONCE}" if peak and _none_reached_a_network(log) else ""
        pytest.fail(
            f"at most {peak} in flight at once, wanted at least min_peak={bounds.min_peak}{hint}", pytrace=False
        )
    if bounds.max_in_flight is not None and peak > bounds.max_in_flight:
        pytest.fail(f"{peak} in flight at once, wanted at most max_in_flight={bounds.max_in_flight}", pytrace=False)


def _none_reached_a_network(log: "OccupancyLog") -> bool:
    return all(call.send_ns is None and call.client is not None for call in [*log.calls, *log.open_calls])


def _draw(log: "OccupancyLog") -> str:
    from occupancy.views import tables

    until_ns = monotonic_ns()  # before the calls are read: none of them ends later
    return tables.report(log.columns(), until_ns=until_ns)
