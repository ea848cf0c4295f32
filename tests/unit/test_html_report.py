"""The page's figures are those of the summary, its curves keep every peak, and no text of a log is ever markup."""

import base64
import hashlib
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from occupancy.analysis.columns import DTYPES, MISSING, Columns, columns_of
from occupancy.analysis.diagnosis import diagnose
from occupancy.analysis.steps import steps_in_flight, steps_on_wire
from occupancy.analysis.summary import summarize
from occupancy.call import Call, Frame
from occupancy.cli import group
from occupancy.errors import DependencyError, InputError, ReadError
from occupancy.log import OccupancyLog
from occupancy.views import html_report as module
from occupancy.views.call_bars import SEGMENTS, CallBars
from occupancy.views.html_charts import BAR_SLOTS, BARS_PER_SLOT, POINTS, step_chart, strip_chart, waterfall_chart
from occupancy.views.html_report import html_report
from occupancy.views.html_tables import MAX_CALLS, figures, percent

MS = 1_000_000
ORIGIN = 9_000 * MS
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&<!--"


class Page(HTMLParser):
    """What a browser would make of a page: elements with their attributes, and the text in some of them."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.figures: dict[str, tuple[str | None, str]] = {}
        self.scripts: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.words: list[str] = []
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.elements.append((tag, found))
        if tag not in ("meta", "link", "input", "br", "img", "wbr"):
            self._open.append((tag, found))
        if tag == "script":
            self.scripts.append("")
        if tag == "table":
            self.tables[found["id"] or ""] = []
        if tag == "tr":
            self._last_table().append([])
        if tag in ("td", "th"):
            self._last_table()[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        inside = [tag for tag, _ in self._open]
        if "script" in inside:
            self.scripts[-1] += data
            return
        if "style" not in inside:
            self.words.append(data)
        if "data" in inside:
            found = self._open[-1][1]
            self.figures[found["data-figure"] or ""] = (found["value"], data)
        if "td" in inside or "th" in inside:
            self._last_table()[-1][-1] += data

    def _last_table(self) -> list[list[str]]:
        return self.tables[next(reversed(self.tables))]

    @property
    def text(self) -> str:
        """All that can be read, without the markup."""
        return "".join(self.words)

    def data(self) -> dict[str, Any]:
        """The values of the charts."""
        values: dict[str, Any] = json.loads(self.scripts[0])
        return values


@pytest.fixture(autouse=True)
def no_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page does not depend on what plotly's script is; the tests in a browser have the real one."""
    monkeypatch.setattr(module, "_plotly_script", lambda: "/* plotly */")


def step(label: str | None, start_ms: int, end_ms: int | None, **fields: Any) -> Call:
    call = Call(label=label, outcome="ok" if end_ms is not None else "open", start_ns=ORIGIN + start_ms * MS, run="a")
    call.end_ns = None if end_ms is None else ORIGIN + end_ms * MS
    call.first_byte_ns = None if end_ms is None else ORIGIN + (start_ms + end_ms) * MS // 2
    for name, value in fields.items():
        setattr(call, name, value)
    return call


SERIAL = [step("plan", 0, 200), step("search", 200, 550), step("fetch", 550, 900), step("recap", 900, 1100)]
OVERLAPPED = [
    step("plan", 0, 200, connection_reused=False),
    step("search", 200, 550, pool_ns=100 * MS, connection_reused=True),
    step("fetch", 200, 550, status=429, outcome="http_error"),
    step("recap", 550, None),
]


def many(n: int, peak_at: int) -> Columns:
    """Calls of 5 ms every 10 ms, and two more that last 1 ns within one of them."""
    columns = {
        name: np.full(n + 2, MISSING) if dtype is np.int64 else np.full(n + 2, None, dtype=dtype)
        for name, dtype in DTYPES.items()
    }
    columns["start_ns"] = np.append(np.arange(n) * 10 * MS, [peak_at * 10 * MS] * 2)
    columns["end_ns"] = np.append(np.arange(n) * 10 * MS + 5 * MS, [peak_at * 10 * MS + 1] * 2)
    columns["first_byte_ns"] = columns["start_ns"] + 1
    columns["kind"][:], columns["outcome"][:], columns["label"][:], columns["run"][:] = "tool", "ok", "step", "a"
    columns["attempt"][:] = 0
    columns["call_stack"] = np.fromiter(((),) * (n + 2), dtype=object, count=n + 2)
    return columns


def page_of(calls: list[Call], **more: Any) -> Page:
    return Page(html_report(columns_of(calls), title="A page", **more))


def times(text: str) -> NDArray[np.float64]:
    return np.frombuffer(base64.b64decode(text), dtype="<f8")


def counts(text: str) -> NDArray[np.int32]:
    return np.frombuffer(base64.b64decode(text), dtype="<i4")


def test_the_figures_are_those_of_the_summary() -> None:
    until_ns = ORIGIN + 750 * MS
    summary = summarize(columns_of(OVERLAPPED), until_ns)
    found = page_of(OVERLAPPED, until_ns=until_ns).figures
    exact = {key: float(value or "") for key, (value, _) in found.items()}
    assert exact == {
        "n": 4,
        "wall_ns": 750 * MS,
        "peak": 2,
        "mean_in_flight": summary.mean_in_flight,
        "busy_ns": 750 * MS,
        "first_byte_p50_ms": summary.first_byte.p50_ms,
        "total_p50_ms": summary.total.p50_ms,
        "connection_reuse": 0.5,
        "n_errors": 1,
        "n_429": 1,
        "n_open": 1,
    }
    assert {key: text for key, (_, text) in found.items()} == {
        "n": "4",
        "wall_ns": "750 ms",
        "peak": "2",
        "mean_in_flight": "1.47",
        "busy_ns": "100%",
        "first_byte_p50_ms": "175 ms / 175 ms",
        "total_p50_ms": "350 ms / 350 ms",
        "connection_reuse": "50%",
        "n_errors": "1",
        "n_429": "1",
        "n_open": "1",
    }


def test_a_peak_on_the_wire_is_a_figure_where_it_is_another() -> None:
    waiting = [step("fetch", 0, 200), step("fetch", 0, 400, pool_ns=200 * MS)]
    assert page_of(waiting).figures["wire_peak"] == ("1", "1")
    assert "wire_peak" not in page_of(SERIAL).figures


def test_what_is_not_quite_nothing_or_all_is_not_rounded_to_it() -> None:
    assert [percent(share) for share in (0, 0.001, 0.01, 0.5, 0.99, 0.999, 1)] == [
        "0%", "<1%", "1%", "50%", "99%", ">99%", "100%",
    ]  # fmt: skip


def test_the_shares_of_the_wall_are_drawn_and_told() -> None:
    page = page_of([step("a", 0, 100), step("b", 200, 500), step("c", 300, 400)])
    parts = {str(found["class"]): found["style"] for tag, found in page.elements if tag == "span" and "style" in found}
    assert parts == {"none": "width:20.0000%", "one": "width:60.0000%", "more": "width:20.0000%"}
    assert "nothing in flight 20%one 60%two or more 20%" in page.text


def test_the_verdict_and_the_findings_stand_above_the_charts() -> None:
    diagnosis = diagnose(columns_of(SERIAL))
    text = page_of(SERIAL).text
    assert "Serial\n4 calls, one after another" in text
    assert len(diagnosis.findings) == 1
    for finding in diagnosis.findings:
        assert finding.sentence[1:] in text
        assert finding.action[1:] in text
        assert all(str(site) in text for site in finding.call_sites)


def test_a_warning_is_told() -> None:
    calls = [*SERIAL, Call(call_id=9, label="lost", start_ns=ORIGIN, outcome="open")]
    [warning] = diagnose(columns_of(calls)).warnings
    assert warning[1:] in page_of(calls).text


def test_the_curves_are_the_steps() -> None:
    columns = columns_of([step("fetch", 0, 200), step("fetch", 0, 400, pool_ns=200 * MS), step("plan", 600, 700)])
    chart = step_chart(columns)
    for name, drawn in (("in_flight", steps_in_flight(columns)), ("on_wire", steps_on_wire(columns))):
        assert times(chart[name]["t"]).tolist() == (drawn.t_ns - ORIGIN).tolist()
        assert counts(chart[name]["highest"]).tolist() == drawn.in_flight.tolist()
        assert chart[name]["lowest"] is None
    assert (chart["wall_ns"], chart["peak"], chart["waits"]) == (700 * MS, 2, True)
    assert (times(chart["first_bytes"]["t"]) / MS).tolist() == [100, 200, 650]
    assert chart["first_bytes"]["n"] is None
    assert not step_chart(columns_of(SERIAL))["waits"]


def test_an_envelope_keeps_every_peak_and_every_valley() -> None:
    n = 100_000
    columns = many(n, peak_at=n // 3)
    chart = step_chart(columns)
    flight = chart["in_flight"]
    t_ns, highest, lowest = times(flight["t"]), counts(flight["highest"]), counts(flight["lowest"])
    assert t_ns.size == highest.size == lowest.size == POINTS
    exact = steps_in_flight(columns)
    edges_ns = t_ns.astype(np.int64)
    expected = exact.envelope(edges_ns)
    assert highest[:-1].tolist() == expected[1].tolist()
    assert lowest[:-1].tolist() == expected[0].tolist()
    assert (highest.max(), np.count_nonzero(highest == 3), highest[-1]) == (3, 1, 0)
    first_bytes = chart["first_bytes"]
    assert counts(first_bytes["n"]).sum() == n + 2
    assert times(first_bytes["t"]).size <= POINTS + 1


def test_as_many_steps_as_there_are_points_are_told_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "occupancy.views.html_charts.POINTS", 5
    )  # what SERIAL's ends and starts amount to, and one more
    apart = [step("s", 10 * n, 10 * n + 5) for n in range(3)]
    assert step_chart(columns_of(apart[:2]))["in_flight"]["lowest"] is None
    flight = step_chart(columns_of(apart))["in_flight"]
    assert times(flight["t"]).size == 5
    assert counts(flight["lowest"]).tolist() == [0, 0, 0, 0, 0]
    assert counts(flight["highest"]).tolist() == [1, 1, 1, 1, 0]


def test_the_strip_has_the_highest_levels_by_label() -> None:
    strip = strip_chart(CallBars.of(columns_of(OVERLAPPED), ORIGIN + 750 * MS))
    assert strip["names"] == ["plan", "search", "fetch", "recap"]
    assert (strip["peak"], strip["wall_ns"]) == (1, 750 * MS)
    rows = counts(strip["highest"]).reshape(4, strip["n_slots"])
    assert (rows.sum(axis=1) / strip["n_slots"]).tolist() == pytest.approx([0.267, 0.468, 0.468, 0.267], abs=0.002)


def test_the_waterfall_has_each_call_by_run_then_label() -> None:
    calls = [
        step("plan", 0, 200, wait_ns=150 * MS, receive_ns=50 * MS, headers_ns=ORIGIN + 150 * MS),
        step("fetch", 100, None, run="b"),
        step("plan", 300, 400, status=503, outcome="http_error"),
    ]
    chart = waterfall_chart(CallBars.of(columns_of(calls), ORIGIN + 500 * MS))
    assert (chart["n"], chart["n_kept"]) == (3, 3)
    assert chart["runs"] == ["run a", "run b"]
    assert [chart["runs"][place] for place in counts(chart["run"])] == ["run a", "run a", "run b"]
    assert [chart["labels"][place] for place in counts(chart["label"])] == ["plan", "plan", "fetch"]
    told = [chart["endings"][place] for place in counts(chart["ending"])]
    assert told == [["", False, False], ["503", True, False], ["open", False, True]]
    edges = times(chart["edges"]).reshape(len(SEGMENTS) + 1, 3) / MS
    assert edges[0].tolist() == [0, 300, 100]
    assert edges[-1].tolist() == [200, 400, 500]
    assert edges[SEGMENTS.index("receive")].tolist() == [150, 400, 500]
    first = times(chart["first_byte"]) / MS
    assert first[:2].tolist() == [100, 350]
    assert np.isnan(first[2])


def test_of_too_many_calls_the_waterfall_keeps_the_longest_of_each_part_of_the_wall() -> None:
    n = BAR_SLOTS * BARS_PER_SLOT * 3
    columns = many(n, peak_at=5)
    columns["end_ns"][::3] += MS  # every third is longer: just as many as are kept
    chart = waterfall_chart(CallBars.of(columns))
    assert chart["n"] == n + 2
    assert BAR_SLOTS * BARS_PER_SLOT - BAR_SLOTS <= chart["n_kept"] <= BAR_SLOTS * BARS_PER_SLOT
    edges = times(chart["edges"]).reshape(len(SEGMENTS) + 1, -1)
    assert np.unique(edges[-1] - edges[0]).tolist() in ([6 * MS], [5 * MS, 6 * MS])
    assert np.histogram(edges[0], bins=50)[0].min() >= 2 * BARS_PER_SLOT - 4


def test_every_text_of_a_log_is_escaped_wherever_it_stands() -> None:
    stack = (Frame(f"/home/me/{EVIL}.py", 3, EVIL),)
    fields = dict.fromkeys(("run", "method", "host", "path", "model", "thread"), EVIL)
    calls = [step(EVIL, 0, 100, call_stack=stack, **fields), step(EVIL * 2, 50, 100, **fields | {"run": "b\ud800\x00"})]
    html = html_report(columns_of(calls), title=EVIL, before=columns_of(calls))
    page = Page(html)
    tags = {tag for tag, _ in page.elements}
    assert "img" not in tags
    assert sum(tag == "script" for tag, _ in page.elements) == 3
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert "alert(1)" in page.text  # it is there, to be read
    assert EVIL in page.text
    assert "<" not in page.scripts[0]
    html.encode("utf-8")
    labels = page.data()["waterfall"]["labels"]
    assert all("<" not in label for label in labels)  # plotly reads tags in texts


def test_values_of_the_charts_cannot_end_their_script() -> None:
    page = Page(module._page("A page", "", {"a": EVIL}, ""))
    assert page.data() == {"a": EVIL}
    assert len(page.scripts) == 3


def test_no_prompt_key_or_query_is_in_the_page() -> None:
    call = step("plan", 0, 100, path="/v1/chat?api_key=sk-SECRET#frag", key_id="deadbeef", request_id="req-SECRET",
                call_stack=(Frame("/home/somebody/agent/agent.py", 3, "f"),), host="api.example.com")  # fmt: skip
    html = html_report(columns_of([call]), title="A page")
    assert "api.example.com/v1/chat" in Page(html).text
    for secret in ("SECRET", "deadbeef", "frag", "api_key", "somebody"):
        assert secret not in html


def test_the_page_loads_nothing_and_runs_its_own_scripts_only() -> None:
    html = html_report(columns_of(SERIAL), title="A page")
    page = Page(html)
    for tag, attributes in page.elements:
        for name in ("src", "href", "action", "data", "srcset"):
            assert not attributes.get(name) or str(attributes[name]).startswith("data:"), tag
    policy = next(found["content"] or "" for tag, found in page.elements if found.get("http-equiv"))
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    allowed = re.findall(r"'sha256-([^']+)'", policy)
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in page.scripts[1:]]
    assert allowed == digests
    assert "unsafe" not in policy.partition("style-src")[0]
    assert "@import" not in html
    assert "url(" not in html


def test_calls_are_listed_with_what_they_were() -> None:
    stack = (Frame("/srv/agent/steps/agent.py", 12, "f"),)
    other = (Frame("/srv/agent/main.py", 3, "g"),)
    calls = [
        step("plan", 0, 200, call_stack=stack, in_flight_start=1, host="h", method="POST", path="/p", attempt=1),
        step("fetch", 100, None, call_stack=other, in_flight_start=2),
    ]
    head, *rows = page_of(calls, until_ns=ORIGIN + 500 * MS).tables["calls"]
    assert head == ["start", "duration", "first byte", "step", "ended", "in flight at start", "attempt", "run",
                    "request", "called at"]  # fmt: skip
    assert rows == [
        ["0.000 s", "200 ms", "100 ms", "plan", "ok", "1", "1", "a", "POST h/p", "steps/agent.py:12"],
        ["0.100 s", ">400 ms", "-", "fetch", "open", "2", "0", "a", "-", "main.py:3"],
    ]


def test_of_too_many_calls_the_longest_are_listed_and_the_rest_counted() -> None:
    n = MAX_CALLS + 20
    calls = [step("s", 10 * at, 10 * at + at + 1) for at in range(n)]
    page = page_of(calls)
    _, *rows = page.tables["calls"]
    assert len(rows) == MAX_CALLS
    assert [rows[0][1], rows[1][1], rows[-1][1]] == ["520 ms", "519 ms", "21.0 ms"]
    assert "The 500 longest of 520 calls; 20 shorter ones are not listed" in page.text
    assert "not listed" not in page_of(calls[:MAX_CALLS]).text


def test_runs_are_listed_where_there_are_several() -> None:
    calls = [step("s", 0, 100), step("s", 0, 300, run="b"), step("s", 100, 300, run="b")]
    assert page_of(calls).tables["runs"][1:] == [
        ["b", "2", "300 ms", "2", "1.67"],
        ["a", "1", "100 ms", "1", "1.00"],
    ]
    assert "runs" not in page_of(SERIAL).tables


def test_before_and_after_are_set_side_by_side() -> None:
    overlapped = [step("plan", 0, 200), step("search", 200, 550), step("fetch", 200, 550), step("recap", 550, 750)]
    page = page_of(overlapped, before=columns_of(SERIAL))
    rows = {row[0]: row[1:] for row in page.tables["compare"]}
    assert rows["wall time"] == ["1.10 s", "750 ms", "-32%"]
    assert rows["peak in flight"] == ["1", "2", "+100%"]
    assert rows["time of all calls"] == ["1.10 s", "1.10 s", "same"]
    assert page.tables["labels"][1] == ["search", "1", "1", "350 ms", "350 ms", "same"]
    assert "Keep: the wall fell by 32%, and the calls took no longer in sum." in page.text
    assert page.data()["before"]["wall_ns"] == 1100 * MS
    alone = page_of(overlapped)
    assert alone.data()["before"] is None
    assert "compare" not in alone.tables


def test_no_calls_and_one_call_make_a_page() -> None:
    empty = page_of([])
    assert empty.figures["n"] == ("0", "0")
    assert "No call was seen" in empty.text
    assert not empty.tables
    assert not any(found.get("id") == "steps-chart" for _, found in empty.elements)
    assert page_of([], before=columns_of(SERIAL)).tables["compare"][1] == ["wall time", "1.10 s", "0 ns", "-100%"]
    one = page_of(SERIAL[:1])
    assert one.figures["wall_ns"] == (str(200 * MS), "200 ms")
    assert len(one.tables["calls"]) == 2


def test_ids_are_given_once_and_what_is_referred_to_is_there() -> None:
    page = page_of(OVERLAPPED, before=columns_of(SERIAL))
    ids = [str(found["id"]) for _, found in page.elements if "id" in found]
    assert len(ids) == len(set(ids))
    for name in ("aria-labelledby", "aria-describedby", "aria-controls", "for"):
        assert {str(found[name]) for _, found in page.elements if name in found} <= set(ids)


def test_the_size_of_a_page_is_bounded() -> None:
    sizes = [len(html_report(many(n, 7), title="A page", before=many(n, 7))) for n in (60_000, 240_000)]
    assert sizes[1] < 8_000_000  # and plotly's script
    assert sizes[1] / sizes[0] == pytest.approx(1, abs=0.05)


def test_the_numbers_need_no_script() -> None:
    summary = summarize(columns_of(SERIAL))
    html = re.sub(r"<script.*?</script>", "", html_report(columns_of(SERIAL), title="A page"), flags=re.DOTALL)
    assert all(figure.text in Page(html).text for figure in figures(summary))
    assert len(Page(html).tables["calls"]) == 5


def test_without_plotly_the_command_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(DependencyError, match=r"pip install 'occupancy\[report\]'"):
        html_report(columns_of(SERIAL), title="A page")


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    path = tmp_path / "calls.csv"
    OccupancyLog.from_calls([step(f"s{n}", 10 * n, 10 * n + 5, call_id=n + 1) for n in range(3)]).dump_csv(path)
    return path


def run(*arguments: object) -> Any:
    return CliRunner().invoke(group, ["report", *map(str, arguments)])


def test_the_command_writes_the_page_and_names_it(csv: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    result = run(csv, "-o", out)
    assert (result.exit_code, result.output) == (0, f"{out}\n")
    page = Page(out.read_text(encoding="utf-8"))
    assert page.figures["n"] == ("3", "3")
    assert "calls.csv" in page.text
    assert run(csv, "-o", out, "--before", csv, "--title", "Mine").exit_code == 0
    page = Page(out.read_text(encoding="utf-8"))
    assert page.tables["compare"][1] == ["wall time", "25.0 ms", "25.0 ms", "same"]
    assert "Mine" in page.text


def test_the_command_says_what_is_wrong(csv: Path, tmp_path: Path) -> None:
    wrong_name = run(csv, "-o", tmp_path / "report.pdf").exception
    assert isinstance(wrong_name, InputError)
    assert "report.pdf" in str(wrong_name)
    nowhere = run(csv, "-o", tmp_path / "no" / "report.html").exception
    assert isinstance(nowhere, InputError)
    assert "No such file" in str(nowhere)
    assert isinstance(run(tmp_path / "missing.csv", "-o", tmp_path / "report.html").exception, ReadError)
    assert isinstance(run(csv, "-o", tmp_path / "r.html", "--before", tmp_path / "missing.csv").exception, ReadError)


def test_the_chart_of_no_steps_is_empty() -> None:
    chart = step_chart(columns_of([]))
    assert (chart["wall_ns"], chart["peak"]) == (0, 0)
    assert times(chart["in_flight"]["t"]).size == times(chart["first_bytes"]["t"]).size == 0
