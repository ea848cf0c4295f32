"""Words and numbers for a terminal: plain ASCII, of known width."""

from collections.abc import Sequence

MAX_ROWS = 50
"""Rows of a table that could have as many as there are calls."""
UNITS = (("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000))


def plain(text: str) -> str:
    """Replace all that is not printable ASCII by `?`: nothing a log holds can move the cursor or break a line."""
    return "".join(char if " " <= char <= "~" else "?" for char in text)


def shorten(text: str, width: int) -> str:
    """Cut plain text from the left to at most `width` columns: the end of a path or a label tells more."""
    if len(text) <= width:
        return text
    return "..."[:width] + text[len(text) - max(width - 3, 0) :] if width > 3 else text[len(text) - width :]


def duration(ns: float) -> str:
    """Give a time in its own unit with three digits: `350 ms`, `1.10 s`, `12 ns`; whole seconds from 1000 s on."""
    for unit, size in UNITS:
        value = ns / size
        if value < 999.5 or unit == "s":
            break
    if unit == "ns" or value >= 99.95:
        return f"{value:.0f} {unit}"
    return f"{value:.2f} {unit}" if value < 9.995 else f"{value:.1f} {unit}"


def duration_of_ms(ms: float | None) -> str:
    """Give a time in ms as `duration` does; `-` for None."""
    return "-" if ms is None else duration(ms * 1e6)


def count(n: int, noun: str) -> str:
    """Give a number with its noun: `1 call`, `2 calls`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


GAP = "  "
"""Between two columns of a table."""


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], align: str, width: int = 80) -> str:
    """Lay out a table.

    Args:
        headers: One for each column.
        rows: Cells as plain text, one for each column.
        align: For each column `<` or `>`.
        width: Columns of the whole line: the last column is cut from the left to what is left of it, at least 8.

    Returns:
        Lines without a last newline; the headers alone when there are no rows.
    """
    lines = [headers, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    widths[-1] = min(widths[-1], max(width - sum(widths[:-1]) - len(GAP) * (len(widths) - 1), 8))
    return "\n".join(
        GAP.join(f"{shorten(cell, w):{side}{w}}" for cell, side, w in zip(line, align, widths, strict=True)).rstrip()
        for line in lines
    )
