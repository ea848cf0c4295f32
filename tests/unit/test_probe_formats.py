"""A sweep in every format, read back, and drawn."""

import asyncio
import dataclasses
import datetime
import json
import math
from pathlib import Path

import pytest

from mock_server.virtual_time import run
from occupancy.analysis.samples import Ending, Sample
from occupancy.errors import InputError, ReadError
from occupancy.formats.samples_table import COLUMNS, to_csv
from occupancy.formats.sweep_json import dumps, plain, read_rounds
from occupancy.probe.api import sweep
from occupancy.probe.client import Answer
from occupancy.probe.sweep_result import Conditions, SweepResult
from occupancy.probe.writing import write_text
from occupancy.views.probe_html import page
from occupancy.views.probe_tables import markdown
from occupancy.views.sweep_plot import plot_latency, plot_sweep


@pytest.fixture(scope="module")
def result() -> SweepResult:
    async def main() -> SweepResult:
        slots, busy = asyncio.Semaphore(2), 0

        async def request() -> Answer:
            nonlocal busy
            busy += 1
            try:
                if busy > 6:
                    return Answer(status=429, error="status 429: | busy", retry_after_s=1.0)
                async with slots:
                    await asyncio.sleep(1)
                return Answer(status=200, first_byte_s=asyncio.get_running_loop().time() - 0.5)
            finally:
                busy -= 1

        return await sweep(request)

    return run(main())


def test_it_is_what_it_seems(result: SweepResult) -> None:
    assert (result.recommended, result.capacity.over_limit_at) == (2, 8)
    assert result.capacity.fit.capacity == pytest.approx(2)
    assert result.labels[-1] == "over the limit"


def test_json_has_the_answer_at_its_top_and_is_read_back(result: SweepResult, tmp_path: Path) -> None:
    text = result.to_json(tmp_path / "r.json")
    assert (tmp_path / "r.json").read_text() == text
    assert next(iter(json.loads(text))) == "recommended"
    assert "NaN" not in text
    rounds, conditions = read_rounds(text, "r.json")
    assert tuple(rounds) == result.rounds
    assert Conditions(**conditions) == result.conditions
    level = json.loads(text)["levels"][-1]
    assert level["faults"] == [{"value": "status 429: | busy", "n": 1}]
    assert level["p95"]["n"] == 6


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "r.json is no JSON"),
        ("{}", "r.json holds no sweep"),
        ('{"schema": "occupancy.sweep", "version": 9}', "version 9; this occupancy reads 1"),
        ('{"schema": "occupancy.sweep", "version": 1}', "r.json is damaged"),
    ],
)
def test_other_files_are_told(text: str, told: str) -> None:
    with pytest.raises(ReadError, match=told):
        read_rounds(text, "r.json")


def test_what_is_no_number_is_null() -> None:
    assert plain({"a": (math.nan, 1.5), "b": math.inf}) == {"a": [None, 1.5], "b": None}
    assert json.loads(dumps({"a": math.nan})) == {"a": None}


def test_csv_and_pandas_have_every_sample(result: SweepResult) -> None:
    lines = to_csv(result.rounds).splitlines()
    assert lines[0] == ",".join(COLUMNS)
    n = sum(len(measured.samples) for measured in result.rounds)
    assert len(lines) == 1 + n
    frame = result.to_pandas()
    assert len(frame) == n + 10
    assert set(frame["ending"]) == {"ok", "refused"}
    assert to_csv([]).splitlines() == [lines[0]]


def test_the_report_fits_a_terminal_and_says_what_to_do(result: SweepResult) -> None:
    text = str(result)
    assert text.isascii()
    assert "limit: 2.00 +- 0.00 (99 %) worked on at once; over the limit at 8" in text
    assert "asyncio.Semaphore(2)" in text
    assert "8 workers: 1 x status 429: | busy" in text


def test_markdown_is_one_table(result: SweepResult) -> None:
    rows = [line for line in markdown(result).splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 4
    assert len({row.count("|") for row in rows}) == 1


def test_the_page_needs_no_other_file(result: SweepResult) -> None:
    text = page("a < b", "x & y", [plot_sweep(result.capacity, "")])
    assert "<title>a &lt; b</title>" in text
    assert "x &amp; y" in text
    assert text.count("<svg") == 1
    assert 'src="' not in text


def test_the_picture_shows_the_ideal_the_limit_and_the_levels(result: SweepResult) -> None:
    ax = result.plot()
    names = ax.get_legend_handles_labels()[1]
    assert names == [
        "ideal: all worked on at once", "limit 2.00 ± 0.00", "measured", "over the limit or client-bound",
    ]  # fmt: skip
    assert plot_latency(result.capacity).get_legend_handles_labels()[1] == ["p50", "p95", "mean, one at a time"]


def test_a_result_warns_where_it_does_not_hold(result: SweepResult) -> None:
    now = datetime.datetime.fromisoformat(result.measured_at)
    assert result.warnings(result.conditions, now) == []
    other = dataclasses.replace(result.conditions, region="eu", model="large")
    assert result.warnings(other, now) == ["model: 'large', not None", "region: 'eu', not None"]
    assert result.warnings(now=now + datetime.timedelta(days=8)) == ["measured 8 days ago"]


def test_files_that_cannot_be_written_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write"):
        write_text(tmp_path / "none" / "r.json", "x")
    assert list(tmp_path.iterdir()) == []


def test_a_sample_knows_its_latency() -> None:
    assert Sample(number=0, start_s=1.0, end_s=3.5, ending=Ending.OK).latency_s == 2.5
