"""A real Prometheus server scrapes two running agents: what PromQL gives is what their own logs say."""

import itertools
import json
import os
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import occupancy

pytestmark = pytest.mark.timeout(240)

AGENT = Path(__file__).with_name("scraped_agent.py")
DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
INTERVAL_S, WINDOW_S = 0.5, 8
FOUND_S = 60
"""How long samples may take to be there."""
ALIGNED_S = 0.002
"""Prometheus moves the time of a scrape by at most so much, so that times lie on a grid."""
SECONDS = "occupancy_in_flight_seconds_total"


class Prometheus:
    """A server's HTTP API."""

    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, promql: str, at_s: float | None = None) -> list[dict[str, Any]]:
        """Ask; the series of the answer."""
        asked = {"query": promql} | ({} if at_s is None else {"time": f"{at_s:.3f}"})
        with urllib.request.urlopen(f"{self._url}/api/v1/query?{urllib.parse.urlencode(asked)}", timeout=10) as answer:
            series: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return series

    def number(self, promql: str, at_s: float | None = None) -> float:
        """Ask what has one value."""
        [found] = self.query(promql, at_s)
        return float(found["value"][1])

    def wait_until(self, promql: str, n: int) -> None:
        """Wait until an expression gives n series."""
        deadline_s = time.monotonic() + FOUND_S
        while len(found := self.query(promql)) < n:
            assert time.monotonic() < deadline_s, found
            time.sleep(0.1)


class Agent(NamedTuple):
    """A running agent."""

    process: "subprocess.Popen[str]"
    port: int
    journal: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@pytest.fixture
def agents(tmp_path: Path, ports: list[int]) -> Iterator[list[Agent]]:
    started = []
    for port in ports:
        journal = tmp_path / f"{port}.jsonl"
        process = subprocess.Popen(
            [sys.executable, AGENT, str(port)],
            env={**os.environ, "OCCUPANCY_JOURNAL": str(journal)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(Agent(process, port, journal))
    yield started
    for agent in started:
        agent.process.kill()
        agent.process.communicate()


def test_the_rate_of_in_flight_seconds_is_the_mean_of_the_logs(agents: list[Agent], prometheus: str) -> None:
    server = Prometheus(prometheus)
    full = round(WINDOW_S / INTERVAL_S)
    server.wait_until(f"count_over_time({SECONDS}[{WINDOW_S}s]) >= {full}", 2 * len(agents))
    now_s = time.time()
    rate = server.number(f"sum(rate({SECONDS}[{WINDOW_S}s]))", now_s)
    windows = [sampled(server, agent, now_s) for agent in agents]
    peak = server.number("max(occupancy_peak)")
    for promql in promql_of_docs():
        assert server.query(promql) or " == 1" in promql, promql  # no agent here is serial
    for agent in agents:
        stop(agent)
    time.sleep(2 * INTERVAL_S + 1)  # one scrape more of each, at least
    totals = server.number(f"sum({SECONDS})")
    counts = server.number("sum(http_client_request_duration_seconds_count)")
    active = server.number("sum(http_client_active_requests)")

    logs = [occupancy.read(agent.journal) for agent in agents]
    means = [mean_in(log, window) for log, window in zip(logs, windows, strict=True)]
    tolerance = sum(resolution(log, window) for log, window in zip(logs, windows, strict=True))
    assert rate == pytest.approx(sum(means), abs=tolerance)
    assert tolerance < 0.1 * rate  # or the line above says little
    # Now that all has ended, to the last digit.
    assert peak == 3 == max(log.peak for log in logs)
    assert active == 0
    assert counts == sum(len(log.calls) for log in logs)
    assert totals == pytest.approx(
        sum(call.released_ns - call.start_ns for log in logs for call in log.calls) / 1e9, abs=1e-6
    )


def promql_of_docs() -> list[str]:
    """What the documentation gives to copy."""
    blocks = re.findall(r"^```promql\n(.*?)^```", DOCS.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    return [line for block in blocks for line in block.splitlines()]


class Window(NamedTuple):
    """The first and the last scrape of a range, and how long one took at most."""

    begin_s: float
    end_s: float
    scrape_s: float


def sampled(server: Prometheus, agent: Agent, at_s: float) -> Window:
    """The scrapes that a rate over the window rests on."""
    series = server.query(f'{SECONDS}{{instance="{agent.address}"}}[{WINDOW_S}s]', at_s)
    [times] = {tuple(float(at) for at, _ in found["values"]) for found in series}
    # Then Prometheus extrapolates to the whole range: the rate is that between the first and the last scrape.
    mean_gap_s = (times[-1] - times[0]) / (len(times) - 1)
    assert max(times[0] - (at_s - WINDOW_S), at_s - times[-1]) < 1.1 * mean_gap_s
    scrape_s = server.number(f'max_over_time(scrape_duration_seconds{{instance="{agent.address}"}}[{WINDOW_S}s])', at_s)
    return Window(times[0], times[-1], scrape_s)


def stop(agent: Agent) -> None:
    """Let an agent end its work, and go on to answer."""
    assert agent.process.stdin is not None
    assert agent.process.stdout is not None
    agent.process.stdin.write("\n")
    agent.process.stdin.flush()
    assert agent.process.stdout.readline() == "idle\n"


def mean_in(log: occupancy.OccupancyLog, window: Window) -> float:
    """The log's mean in flight from one moment of Unix time to another."""
    steps, offset_ns = log.steps(), log.origin_unix_ns - log.origin_ns
    begin_ns, end_ns = round(window.begin_s * 1e9) - offset_ns, round(window.end_s * 1e9) - offset_ns
    edges_ns = [begin_ns, *(t_ns for t_ns in steps.t_ns.tolist() if begin_ns < t_ns < end_ns), end_ns]
    spent_ns = sum(steps.at(t_ns) * (next_ns - t_ns) for t_ns, next_ns in itertools.pairwise(edges_ns))
    return float(spent_ns / (end_ns - begin_ns))


def resolution(log: occupancy.OccupancyLog, window: Window) -> float:
    """How far the rate may be from the log's mean.

    The counter was read up to a scrape's duration after the time that Prometheus gives it, and that time may be moved.
    At each end of the window the counter grows meanwhile by at most the peak times that. It also counts a call until it
    is released, a little after the end that the log's mean goes by.
    """
    apart_s = window.scrape_s + 2 * ALIGNED_S
    late_s = sum(call.released_ns - call.end_ns for call in log.calls) / 1e9
    return (log.peak * apart_s + late_s) / (window.end_s - window.begin_s)
