"""The pytest plugin, in pytest run inside pytest."""

import gc
import json
from importlib.metadata import entry_points
from typing import Any

import httpx
import httpx2
import pytest

from occupancy.log import OccupancyLog
from occupancy.views import tables

assert httpx  # imported here, so that the runs inside do not each import their own, numpy least of all
assert httpx2
assert tables

pytest_plugins = ["pytester"]

PLUGIN = () if entry_points(group="pytest11", name="occupancy") else ("-p", "occupancy.pytest_plugin")
OPTIONS = (
    *PLUGIN,
    "-p",
    "no:pytest_logfire",
    "-p",
    "no:hypothesispytest",
    "-p",
    "no:cacheprovider",
    "--strict-markers",
    "-Werror",
)
MOCK = """
import asyncio
import httpx
import httpx2
import pytest

libraries = pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])

def search(client):
    return client.get("http://a.test/search")

def fetch(client):
    return client.get("http://a.test/fetch")

def client_of(library, **options):
    return library.Client(transport=library.MockTransport(lambda request: library.Response(200, text="hi")))

async def overlap(library, n):
    async def answer(request):
        await asyncio.sleep(0)
        return library.Response(200, text="hi")

    async with library.AsyncClient(transport=library.MockTransport(answer)) as client:
        await asyncio.gather(*(client.get(f"http://a.test/{i}") for i in range(n)))
"""


@pytest.fixture
def run(pytester: pytest.Pytester) -> Any:
    """Run a test module, given behind `MOCK`."""

    def run_module(source: str, *options: str) -> pytest.RunResult:
        pytester.makeini("[pytest]")
        pytester.makepyfile(test_agent=MOCK + source)
        return pytester.runpytest_inprocess(*OPTIONS, *options)

    return run_module


def test_the_fixture_records_over_a_mocked_transport(run: Any) -> None:
    result = run("""
@libraries
def test_serial(occupancy_log, library):
    with client_of(library) as client:
        search(client)
        fetch(client)
    assert occupancy_log.peak == 1
    assert [call.path for call in occupancy_log.calls] == ["/search", "/fetch"]
    assert [call.call_site.line for call in occupancy_log.calls] == [9, 12]

@libraries
def test_overlapped(occupancy_log, library):
    asyncio.run(overlap(library, 3))
    assert occupancy_log.peak == 3
""")
    result.assert_outcomes(passed=4)


def test_each_test_has_its_own_log(run: Any) -> None:
    result = run("""
@pytest.mark.parametrize("n", [1, 2])
def test_own(occupancy_log, n):
    asyncio.run(overlap(httpx, n))
    assert len(occupancy_log.calls) == occupancy_log.peak == n

def test_nothing(occupancy_log):
    assert occupancy_log.peak == 0
""")
    result.assert_outcomes(passed=3)


def test_the_marker_needs_no_fixture(run: Any) -> None:
    result = run("""
@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.occupancy(min_peak=2, max_in_flight=3)
def test_n(n):
    asyncio.run(overlap(httpx2, n))
""")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["at most 1 in flight at once, wanted at least min_peak=2"])
    result.stdout.fnmatch_lines(["4 in flight at once, wanted at most max_in_flight=3"])
    result.stdout.no_fnmatch_line("*_check*")  # no traceback of ours


def test_the_innermost_marker_holds(run: Any) -> None:
    result = run("""
pytestmark = pytest.mark.occupancy(max_in_flight=1)

@pytest.mark.occupancy(min_peak=2)
class TestAgent:
    @pytest.mark.occupancy(max_in_flight=2)
    def test_both(self):
        asyncio.run(overlap(httpx, 2))

    @pytest.mark.occupancy(min_peak=None)
    def test_outer(self):
        asyncio.run(overlap(httpx, 1))

    @pytest.mark.occupancy(max_in_flight=None)
    def test_too_few(self):
        asyncio.run(overlap(httpx, 1))
""")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["FAILED *test_too_few*"])


def test_a_serial_regression_fails_and_shows_where(run: Any) -> None:
    result = run("""
@pytest.mark.occupancy(min_peak=2)
def test_agent():
    with client_of(httpx) as client:
        search(client)
        fetch(client)
""")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "at most 1 in flight at once, wanted at least min_peak=2",
            "No call reached a network. *",
            "-* occupancy -*",
            "occupancy: 2 calls in * peak 1 in flight, *",
            "serial: 2 calls, *",
            "1 |##*",
            "  +--*",
            "step    calls * called at",
        ]
    )
    # The slower one comes first, whichever it was.
    result.stdout.fnmatch_lines_random(["search      1 *  test_agent.py:9", "fetch       1 *  test_agent.py:12"])


def test_a_failure_of_the_test_itself_is_shown_with_its_calls(run: Any) -> None:
    result = run("""
@pytest.fixture
def breaks(occupancy_log):
    asyncio.run(overlap(httpx, 2))
    yield
    raise ValueError("teardown")

@pytest.mark.occupancy(min_peak=9)
def test_fails():
    asyncio.run(overlap(httpx, 2))
    raise KeyError("mine")

def test_fails_twice(breaks):
    raise KeyError("mine")

def test_teardown(breaks):
    pass

@pytest.fixture
def setup(occupancy_log):
    asyncio.run(overlap(httpx, 2))
    raise ValueError("setup")

def test_setup(setup):
    pass
""")
    result.assert_outcomes(passed=1, failed=2, errors=3)
    text = result.stdout.str()
    assert text.count("overlapped: up to 2 in flight") == 4  # once for each test
    assert text.count("- occupancy -") == 4
    assert "min_peak=9" not in text.partition("short test summary")[2]  # its own failure is the one that is told


def test_who_passes_shows_nothing_unless_asked(run: Any) -> None:
    source = """
@pytest.mark.occupancy
def test_passes():
    asyncio.run(overlap(httpx, 2))

def test_other():
    pass
"""
    assert "- occupancy -" not in run(source).stdout.str()
    assert run(source, "-rP").stdout.str().count("- occupancy -") == 1


def test_skips_and_expected_failures_stay_what_they_are(run: Any) -> None:
    result = run("""
@pytest.mark.occupancy(min_peak=2)
def test_skips():
    pytest.skip("not today")

@pytest.mark.xfail(strict=True)
@pytest.mark.occupancy(min_peak=2)
def test_is_still_serial():
    with client_of(httpx) as client:
        search(client)
""")
    result.assert_outcomes(skipped=1, xfailed=1)


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("min_peek=2", "knows min_peak and max_in_flight, not 'min_peek'"),
        ("2", "takes keywords only (min_peak, max_in_flight), not 2"),
        ("min_peak='2'", "min_peak must be a whole number from 0 on, not '2'"),
        ("max_in_flight=True", "max_in_flight must be a whole number from 0 on, not True"),
        ("max_in_flight=-1", "max_in_flight must be a whole number from 0 on, not -1"),
        ("min_peak=1.5", "min_peak must be a whole number from 0 on, not 1.5"),
        ("min_peak=3, max_in_flight=2", "min_peak=3 is above max_in_flight=2"),
    ],
)
def test_a_wrong_marker_is_a_usage_error_that_names_it(run: Any, marker: str, message: str) -> None:
    result = run(f"""
def test_first():
    pass

@pytest.mark.occupancy({marker})
def test_wrong():
    pass
""")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "::test_wrong: pytest.mark.occupancy" in result.stderr.str()
    assert message in result.stderr.str()


def test_a_marker_that_comes_late_counts_too(run: Any, pytester: pytest.Pytester) -> None:
    result = run("""
@pytest.fixture(params=[{"min_peak": 2}, {"min_peek": 2}])
def late(request):
    request.node.add_marker(pytest.mark.occupancy(**request.param))

def test_late(late):
    pass
""")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["at most 0 in flight at once*", "*knows min_peak and max_in_flight, not 'min_peek'"])


@pytest.mark.parametrize("fixtures", ["occupancy_log, respx_mock", "respx_mock, occupancy_log"])
def test_respx(run: Any, fixtures: str) -> None:
    result = run(f"""
@pytest.mark.parametrize("time", ["first", "second"])
def test_serial({fixtures}, time):
    respx_mock.get("http://a.test/search").respond(200, text="hi")
    assert httpx.get("http://a.test/search").text == "hi"
    assert [call.path for call in occupancy_log.calls] == ["/search"]

@pytest.mark.parametrize("time", ["first", "second"])
def test_overlapped({fixtures}, time):
    async def answer(request):
        await asyncio.sleep(0)
        return httpx.Response(200)

    async def agent():
        async with httpx.AsyncClient() as client:
            await asyncio.gather(*(client.get("http://a.test/search") for _ in range(2)))

    respx_mock.get("http://a.test/search").mock(side_effect=answer)
    asyncio.run(agent())
    assert (occupancy_log.peak, len(occupancy_log.calls)) == (2, 2)
""")
    result.assert_outcomes(passed=4)


@pytest.mark.parametrize("fixtures", ["occupancy_log, httpx_mock", "httpx_mock, occupancy_log"])
def test_pytest_httpx(run: Any, fixtures: str) -> None:
    result = run(f"""
@pytest.mark.parametrize("time", ["first", "second"])
def test_serial({fixtures}, time):
    httpx_mock.add_response(text="hi")
    assert httpx.get("http://a.test/search").text == "hi"
    assert [call.path for call in occupancy_log.calls] == ["/search"]

@pytest.mark.parametrize("time", ["first", "second"])
def test_overlapped({fixtures}, time):
    async def answer(request):
        await asyncio.sleep(0)
        return httpx.Response(200)

    async def agent():
        async with httpx.AsyncClient() as client:
            await asyncio.gather(*(client.get("http://a.test/search") for _ in range(2)))

    httpx_mock.add_callback(answer, is_reusable=True)
    asyncio.run(agent())
    assert (occupancy_log.peak, len(occupancy_log.calls)) == (2, 2)
""")
    result.assert_outcomes(passed=4)


def test_async_tests(run: Any) -> None:
    result = run("""
@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
@pytest.mark.occupancy(min_peak=2)
@pytest.mark.parametrize("n", [1, 2])
async def test_marker(n):
    await overlap(httpx2, n)

@pytest.mark.anyio
async def test_fixture(occupancy_log):
    await overlap(httpx2, 2)
    assert occupancy_log.peak == 2
""")
    result.assert_outcomes(passed=2, failed=1)


def test_in_processes_of_their_own(run: Any) -> None:
    pytest.importorskip("xdist")
    result = run(
        """
@pytest.mark.occupancy(min_peak=2)
@pytest.mark.parametrize("n", [1, 2])
def test_n(n):
    asyncio.run(overlap(httpx, n))

@pytest.mark.occupancy(min_peek=2)
def test_wrong():
    pass
""",
        "-n1",
    )
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines_random(["-* occupancy -*", "one call*", "*not 'min_peek'"])


def test_our_own_failure_leaves_the_report_as_it_is(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> str:
        raise RuntimeError("ours")

    monkeypatch.setattr("occupancy.views.tables.report", fail)
    result = run("""
@pytest.mark.occupancy(min_peak=2)
def test_serial():
    pass
""")
    result.assert_outcomes(failed=1)
    assert "- occupancy -" not in result.stdout.str()


def test_without_fixture_or_marker_it_imports_nothing(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]")
    pytester.makepyfile("""
import json, sys

def test_nothing():
    names = [name for name in sys.modules if name.split(".")[0] == "occupancy"]
    print("names:", json.dumps(names))
""")
    result = pytester.runpytest_subprocess(*PLUGIN, "-p", "no:pytest_logfire", "-rP")
    (line,) = [line for line in result.outlines if line.startswith("names: ")]
    assert set(json.loads(line.removeprefix("names: "))) == {"occupancy", "occupancy.pytest_plugin"}


def test_the_marker_is_known(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]")
    result = pytester.runpytest_inprocess(*OPTIONS, "--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.occupancy(min_peak=None, max_in_flight=None): record the calls*"])


def test_nothing_is_kept_when_a_test_is_over(run: Any, pytester: pytest.Pytester) -> None:
    pytester.makeconftest("""
import gc
from occupancy.ledger import ledger
from occupancy.log import OccupancyLog

def pytest_sessionfinish(session):
    assert ledger.logs == ()
    gc.collect()
    print("logs left:", sum(isinstance(thing, OccupancyLog) for thing in gc.get_objects()))
""")
    gc.collect()
    before = sum(isinstance(thing, OccupancyLog) for thing in gc.get_objects())
    result = run(
        """
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.occupancy(min_peak=1)
def test_passes(occupancy_log, n):
    asyncio.run(overlap(httpx, n))
""",
        "--tb=no",
        "-s",
    )
    result.assert_outcomes(passed=2)
    assert f"logs left: {before}" in result.stdout.str()
