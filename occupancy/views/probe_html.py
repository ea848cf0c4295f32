"""A probe's result as one HTML page that needs no other file. On a small screen its pictures scroll, not shrink."""

import html
import io
from collections.abc import Sequence

from matplotlib.figure import Figure

STYLE = (
    ":root{color-scheme:light}body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;"
    "background:#fff;color:#222}h1{font-size:1.3rem;overflow-wrap:anywhere}figure{margin:0;overflow-x:auto}"
    "svg{display:block;width:100%;min-width:36rem;height:auto}"
    "pre{overflow-x:auto;background:#f5f5f5;padding:1rem;font-size:.87rem}"
)


def page(title: str, report: str, figures: Sequence[Figure]) -> str:
    """Give a page with pictures above the report.

    Args:
        title: Plain text.
        report: Plain text, shown as it is.
        figures: Drawn into the page as SVG.
    """
    title = html.escape(title)
    small = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    head = f'<meta charset="utf-8">{small}<title>{title}</title><style>{STYLE}</style>'
    pictures = [f'<figure role="img" aria-label="{title}">{_svg(figure)}</figure>' for figure in figures]
    body = [f"<h1>{title}</h1>", *pictures, f"<pre>{html.escape(report)}</pre>"]
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{"".join(body)}</body></html>\n'


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]  # without the XML declaration, which HTML does not know
