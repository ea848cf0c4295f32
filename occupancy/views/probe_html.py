"""A probe's result as one HTML page that needs no other file."""

import html
import io
from collections.abc import Sequence

from matplotlib.figure import Figure

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
    "h1{font-size:1.3rem}pre{overflow-x:auto;background:#f5f5f5;padding:1rem}svg{max-width:100%;height:auto}"
)


def page(title: str, report: str, figures: Sequence[Figure]) -> str:
    """Give a page with pictures above the report.

    Args:
        title: Plain text.
        report: Plain text, shown as it is.
        figures: Drawn into the page as SVG.
    """
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    body = [f"<h1>{html.escape(title)}</h1>", *map(_svg, figures), f"<pre>{html.escape(report)}</pre>"]
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{"".join(body)}</body></html>\n'


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]  # without the XML declaration, which HTML does not know
