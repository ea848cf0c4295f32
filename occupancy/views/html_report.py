"""A log as one HTML page that needs nothing else: numbers, verdict, charts to zoom into, tables."""

import base64
import hashlib
import json
from collections.abc import Iterable
from importlib import resources
from typing import Any

import numpy as np

from occupancy.analysis.columns import Columns
from occupancy.analysis.comparison import compare
from occupancy.analysis.diagnosis import diagnosis_of
from occupancy.analysis.findings import Diagnosis
from occupancy.analysis.groups import CountedCalls
from occupancy.analysis.summary import Summary, summary_of
from occupancy.call import Frame
from occupancy.errors import DependencyError
from occupancy.views import html_charts, html_tables, tables
from occupancy.views.call_bars import COLOURS, HATCHES, CallBars
from occupancy.views.diagnosis_text import verdict_line
from occupancy.views.html_tables import escaped
from occupancy.views.text import duration

INSTALL = "the HTML report needs plotly: pip install 'occupancy[report]'"
KEYS = "Arrow keys move along the curve, + and - zoom, Shift with an arrow key moves the view, 0 shows all."


def html_report(
    columns: Columns,
    *,
    title: str,
    until_ns: int | None = None,
    before: Columns | None = None,
) -> str:
    """Make a page of a log: one file that loads nothing, and holds no prompt, key or query.

    The size is bounded whatever the log's: about 5 MB are plotly's script; the charts and tables add at most 5 MB, and
    3 MB more with `before`. A log of more than 50,000 steps is drawn as an envelope in which every peak is kept.

    Args:
        columns: The calls.
        title: Of the page; any text.
        until_ns: For a live log the time now, ns on the calls' clock.
        before: Calls of an earlier log to compare with.

    Returns:
        The page's HTML. Without calls it says so.

    Raises:
        DependencyError: plotly is not installed.
    """
    plotly = _plotly_script()
    calls = CountedCalls.of(columns, until_ns)
    summary, bars = summary_of(calls), CallBars.of(columns, until_ns)
    data: dict[str, Any] = {
        "steps": html_charts.step_chart(columns, until_ns),
        "before": None if before is None else html_charts.step_chart(before),
        "strip": html_charts.strip_chart(bars),
        "waterfall": html_charts.waterfall_chart(bars),
    }
    body = [
        _head(summary, title),
        _findings(diagnosis_of(calls)),
        _section("Numbers", html_tables.figure_list(html_tables.figures(summary)) + _level_shares(summary)),
        "" if before is None else _compare_section(before, columns, until_ns),
        *(_chart_sections(summary, data, bars) if summary.peak else []),
        _section("Tables", _tables(summary, columns, bars)) if summary.n else "",
    ]
    return _page(title, "\n".join(body), data, plotly)


def _plotly_script() -> str:
    try:
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]
    except ImportError as error:
        raise DependencyError(INSTALL) from error
    script: str = get_plotlyjs()
    return script


def _page(title: str, body: str, data: dict[str, Any], plotly: str) -> str:
    """Put the page together. Its policy lets only its own two scripts run, and nothing be loaded."""
    script = _asset("report.js")
    allowed = " ".join(f"'sha256-{_sha256(text)}'" for text in (plotly, script))
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    values = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{escaped(title)}</title>\n<style>\n{_colours()}{_asset('report.css')}</style>\n</head>\n<body>\n"
        f'<main>\n{body}\n</main>\n<script type="application/json" id="occupancy-data">{values}</script>\n'
        f"<script>{plotly}</script>\n<script>{script}</script>\n</body>\n</html>\n"
    )


def _asset(name: str) -> str:
    return resources.files("occupancy.views").joinpath(name).read_text(encoding="utf-8")


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def _colours() -> str:
    """The phases' colours as CSS variables, the same as in the figures."""
    return ":root {" + " ".join(f"--{_css(name)}: {colour};" for name, colour in COLOURS.items()) + "}\n"


def _css(segment: str) -> str:
    return segment.replace(" ", "-")


def _section(name: str, content: str, note: str = "") -> str:
    told = f'<p class="note">{escaped(note)}</p>\n' if note else ""
    return f"<section>\n<h2>{escaped(name)}</h2>\n{told}{content}\n</section>"


def _head(summary: Summary, title: str) -> str:
    return (
        f'<header>\n<h1>{escaped(title)}</h1>\n<p class="note" id="headline">{escaped(tables.headline(summary))}</p>\n'
        "<noscript><p>The charts and sorting need JavaScript; numbers and tables do not.</p></noscript>\n</header>"
    )


def _findings(diagnosis: Diagnosis) -> str:
    """Say what the log amounts to: the verdict, what holds the program back, and what makes the picture false."""
    name, _, rest = verdict_line(diagnosis).partition(": ")
    articles = [_article(name, rest, ())]
    articles += [_article(f.cause.value, f"{f.sentence}. {f.action}.", f.call_sites) for f in diagnosis.findings]
    articles += [_article("warning", warning, ()) for warning in diagnosis.warnings]
    return f'<section id="findings" aria-label="Findings">\n{"".join(articles)}</section>'


def _article(title: str, text: str, call_sites: Iterable[Frame]) -> str:
    sites = "".join(f"<li><code>{escaped(str(site))}</code></li>" for site in call_sites)
    return (
        f'<article class="finding">\n<h2>{escaped(title[:1].upper() + title[1:])}</h2>\n'
        + (f"<p>{escaped(text[:1].upper() + text[1:])}</p>\n" if text else "")
        + (f"<ul>{sites}</ul>\n" if sites else "")
        + "</article>\n"
    )


def _level_shares(summary: Summary) -> str:
    """Draw the shares of the wall with nothing, one and more in flight as one bar with its legend."""
    if not summary.wall_ns:
        return ""
    none, one, more = (*summary.level_share[:2], sum(summary.level_share[2:]))
    shares = (("none", "nothing in flight", none), ("one", "one", one), ("more", "two or more", more))
    parts = "".join(f'<span class="{key}" style="width:{share:.4%}"></span>' for key, _, share in shares if share)
    legend = _legend((key, f"{name} {html_tables.percent(share)}") for key, name, share in shares)
    return f'<div class="levels" aria-hidden="true">{parts}</div>\n{legend}'


def _legend(entries: Iterable[tuple[str, str]]) -> str:
    items = "".join(f'<li><span class="swatch {key}"></span>{escaped(name)}</li>' for key, name in entries)
    return f'<ul class="legend">{items}</ul>\n'


def _compare_section(before: Columns, after: Columns, until_ns: int | None) -> str:
    comparison = compare(before, after, until_ns)
    judged = f"{'Keep' if comparison.keep else 'Do not keep'}: {comparison.reason}."
    chart = ""
    if comparison.peak.before:
        chart = (
            '<h3>Calls in flight before</h3>\n<div class="chart steps" id="before-chart" role="img" '
            f'aria-label="Calls in flight before, on the axes of the chart below: peak {comparison.peak.before:.0f}">'
            "</div>\n"
        )
    return _section("Before and after", html_tables.compare_tables(comparison) + chart, judged)


def _chart_sections(summary: Summary, data: dict[str, Any], bars: CallBars) -> list[str]:
    told = f"peak {summary.peak}, mean {summary.mean_in_flight:.2f}, {duration(summary.wall_ns)}"
    curves = [("in-flight", "in flight")] + [("on-wire", "on the wire")] * data["steps"]["waits"]
    curves += [("first-byte", "first byte")] if np.any(bars.first_byte_ns >= 0) else []
    chart = (
        f'{_toolbar()}<div class="chart steps" id="steps-chart" tabindex="0" role="group" '
        f'aria-label="Calls in flight over time: {escaped(told)}. {KEYS}" aria-describedby="readout"></div>\n'
        f'<output id="readout" aria-live="polite"></output>\n{_legend(curves)}<p class="note keys">{KEYS}</p>'
    )
    return [
        _section("Calls in flight", chart, _envelope_note(data)),
        _section("By label", _strip(data), _strip_note(data)),
        _section("Waterfall", _waterfall(bars), _waterfall_note(data)),
    ]


def _toolbar() -> str:
    names = (("in", "Zoom in"), ("out", "Zoom out"), ("left", "Earlier"), ("right", "Later"), ("all", "Show all"))
    buttons = "".join(f'<button type="button" data-view="{key}">{name}</button>' for key, name in names)
    return f'<div class="toolbar" role="group" aria-label="View">{buttons}<output id="view"></output></div>\n'


def _envelope_note(data: dict[str, Any]) -> str:
    note = "Drag to zoom; a double click shows all. Every chart below follows."
    if data["steps"]["in_flight"]["lowest"] is None:
        return note
    slot = duration(data["steps"]["wall_ns"] / (html_charts.POINTS - 1))
    return f"{note} So many steps are told as the lowest and highest level in each {slot}: no peak is lost."


def _strip(data: dict[str, Any]) -> str:
    peak = data["strip"]["peak"]
    scale = f'<p class="scale"><span>1</span><span class="ramp"></span><span>{peak:,} in flight</span></p>\n'
    return '<div class="chart" id="strip-chart" role="img" aria-label="Calls in flight by label"></div>\n' + (
        scale if peak > 1 else _legend([("one-level", "1 in flight")])
    )


def _strip_note(data: dict[str, Any]) -> str:
    strip = data["strip"]
    return f"The highest level in each {duration(strip['wall_ns'] / strip['n_slots'])}, all calls."


def _waterfall_note(data: dict[str, Any]) -> str:
    n, n_kept = data["waterfall"]["n"], data["waterfall"]["n_kept"]
    note = "By run, then by label; the longest calls in view."
    if n_kept == n:
        return note
    return f"{note} The page holds {n_kept:,} of {n:,} calls for it, the longest of each part of the wall."


def _waterfall(bars: CallBars) -> str:
    phases = [(f"{_css(name)}{' hatched' * (name in HATCHES)}", name) for name in html_charts.segments_in(bars)]
    marks = [("first-byte", "first byte")] if np.any(bars.first_byte_ns >= 0) else []
    marks += [("failed", "failed")] * bool(bars.failed.any()) + [("open", "still open")] * bool(bars.is_open.any())
    return (
        '<div class="scroll" tabindex="0" role="region" '
        'aria-label="Waterfall; its numbers are in the table of calls">'
        '<div class="chart" id="waterfall-chart"></div></div>\n'
        f'<output id="waterfall-view" class="note"></output>\n{_legend(phases + marks)}'
    )


def _tables(summary: Summary, columns: Columns, bars: CallBars) -> str:
    search = '<label class="search">Show calls with <input type="search" id="filter" aria-controls="calls"></label>\n'
    calls = html_tables.calls_table(columns, bars)
    return html_tables.steps_table(summary) + html_tables.runs_table(summary) + search + calls
