"""The four-step agent of the README: plan, two tools, recap. Once serial, once with the tools overlapped.

The agents are written as their user would write them: nothing in them knows of occupancy but the label of the asyncio
helper. Each step waits for the mock gateway: plan 200 ms, each tool 350 ms, recap 200 ms.
"""

# ruff: noqa: D103 - the names of an agent's steps say what they do, and its lines are what a report shows

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2

import occupancy
from occupancy.errors import DependencyError, InputError, OccupancyError
from occupancy.log import OccupancyLog

if TYPE_CHECKING:
    from mock_server import GatewayUrl

QUESTION = "How full is my endpoint?"

# The agent, serial: each call waits for the one before.


def plan(client: httpx2.Client, question: str) -> str:
    return client.post("/generate/plan", json={"question": question}).text


def tool_search(client: httpx2.Client, plan: str) -> str:
    return client.post("/generate/tool_search", json={"plan": plan}).text


def tool_fetch(client: httpx2.Client, plan: str) -> str:
    return client.post("/generate/tool_fetch", json={"plan": plan}).text


def recap(client: httpx2.Client, found: list[str]) -> str:
    return client.post("/generate/recap", json={"found": found}).text


def run_serial(url: str) -> str:
    with httpx2.Client(base_url=url) as client:
        todo = plan(client, QUESTION)
        pages = tool_search(client, todo)
        facts = tool_fetch(client, todo)
        return recap(client, [pages, facts])


# The same steps, the two tools at once: neither needs the other's result.


def run_threads(url: str) -> str:
    with httpx2.Client(base_url=url) as client, ThreadPoolExecutor() as pool:
        todo = plan(client, QUESTION)
        pages = pool.submit(tool_search, client, todo)
        facts = pool.submit(tool_fetch, client, todo)
        return recap(client, [pages.result(), facts.result()])


async def ask(client: httpx2.AsyncClient, step: str, **inputs: Any) -> str:
    with occupancy.label(step):
        response = await client.post(f"/generate/{step}", json=inputs)
        return response.text


async def run_asyncio(url: str) -> str:
    async with httpx2.AsyncClient(base_url=url) as client:
        todo = await ask(client, "plan", question=QUESTION)
        tools = ask(client, "tool_search", plan=todo), ask(client, "tool_fetch", plan=todo)
        return await ask(client, "recap", found=await asyncio.gather(*tools))


# Running it

RUNS: dict[str, Callable[[str], str]] = {
    "serial": run_serial,
    "threads": run_threads,
    "asyncio": lambda url: asyncio.run(run_asyncio(url)),
}
TITLES = {"serial": "Serial", "threads": "Overlapped, in threads", "asyncio": "Overlapped, with asyncio"}
WIDTH = 72


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class DemoRun:
    """One run of the agent."""

    name: str
    """A key of `RUNS`."""
    log: OccupancyLog
    server_peak: int
    """Most requests in flight at once, as the server counted them."""


def run_demo(out_dir: str | Path, echo: Callable[[str], Any] = print) -> list[DemoRun]:
    """Run the agent serially, in threads and with asyncio, against a mock gateway on a loopback port.

    Args:
        out_dir: Folder for the results, made when missing: the calls and the steps of each run as CSV, and a picture.
        echo: What each piece of text is printed with.

    Returns:
        The runs, in the order of `RUNS`.

    Raises:
        DependencyError: The `demo` extra is not installed.
        InputError: A result cannot be written.
        OccupancyError: The server counted another peak than the log.
    """
    out_dir = Path(out_dir)
    _make(out_dir)
    runs = record_runs()
    echo(pictures(runs[:2]) + "\n")
    echo(table_of_runs(runs) + "\n")
    check_peaks(runs)
    paths = write_results(runs, out_dir)
    echo(f"written to {out_dir}: {paths[-1].name} and {len(paths) - 1} CSV files")
    return runs


def record_runs() -> list[DemoRun]:
    """Run each agent, in a log of its own.

    Raises:
        DependencyError: The `demo` extra is not installed.
    """
    try:
        from mock_server import serve
    except ModuleNotFoundError as error:
        raise DependencyError(str(error)) from error
    with serve() as url:
        with occupancy.record():  # what is done only once, on either side, belongs to no step
            httpx2.post(f"{url}/generate/plan", params={"x-mock-delay-ms": 0}, json={})
        return [_record(url, name) for name in RUNS]


def _record(url: "GatewayUrl", name: str) -> DemoRun:
    url.reset_stats()
    with occupancy.record() as log:
        RUNS[name](url)
    return DemoRun(name, log, url.stats()["peak"])


def check_peaks(runs: Sequence[DemoRun]) -> None:
    """Compare each log with what the server has counted.

    Raises:
        OccupancyError: They differ.
    """
    for run in runs:
        if run.log.peak != run.server_peak:
            raise OccupancyError(f"{run.name}: the log's peak is {run.log.peak}, the server's own {run.server_peak}")


def write_results(runs: Sequence[DemoRun], out_dir: Path) -> list[Path]:
    """Write the CSV files and the picture into a folder; give their paths.

    Raises:
        InputError: A file cannot be written.
    """
    from occupancy.views.step_plot import compare_plot

    paths = []
    for run in runs:
        for what in ("calls", "steps"):
            paths.append(out_dir / f"{run.name}-{what}.csv")
            run.log.dump_csv(paths[-1], what)
    paths.append(out_dir / "serial-and-overlapped.png")
    figure = compare_plot([(TITLES[run.name], run.log.columns()) for run in runs[:2]])
    try:
        figure.savefig(paths[-1], dpi=150)
    except OSError as error:
        raise InputError(f"cannot write {str(paths[-1])!r}: {error.strerror}") from error
    return paths


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {str(folder)!r}: {error.strerror}") from error


# Showing it


def pictures(runs: Sequence[DemoRun]) -> str:
    """Draw the skylines of runs below each other, all on one scale of time."""
    from occupancy.views.sparkline import skyline

    steps = [run.log.steps() for run in runs]
    longest_ns = max(drawn.wall_ns for drawn in steps)
    parts = []
    for run, drawn in zip(runs, steps, strict=True):
        width = round(WIDTH * drawn.wall_ns / longest_ns)
        starts_ns = run.log.columns(["start_ns"])["start_ns"]
        parts.append(f"{TITLES[run.name]}\n{skyline(drawn, width, starts_ns=starts_ns)}")
    return "\n\n".join(parts)


def table_of_runs(runs: Sequence[DemoRun]) -> str:
    """Compare runs: a column for each."""
    from occupancy.views.text import duration, duration_of_ms, table

    summaries = [run.log.summary() for run in runs]
    rows = [
        ("wall", *(duration(summary.wall_ns) for summary in summaries)),
        ("peak in flight", *(str(run.log.peak) for run in runs)),
        ("peak, as the server counted", *(str(run.server_peak) for run in runs)),
        ("mean in flight", *(f"{summary.mean_in_flight:.2f}" for summary in summaries)),
    ]
    steps = [{group.label: duration_of_ms(group.total.mean_ms) for group in summary.by_label} for summary in summaries]
    rows += [(str(step), *(times.get(step, "-") for times in steps)) for step in steps[0]]
    return table(("", *(run.name for run in runs)), rows, "<" + ">" * len(runs))
