"""`occupancy report`."""

from pathlib import Path

import click

from occupancy.cli.reading import read_file, select_option


@click.command()
@click.argument("file")
@click.option("-o", "--out", required=True, metavar="PAGE", help="File to write: .html.")
@click.option("--before", metavar="FILE", help="An earlier log to compare with.")
@select_option
@click.option("--title", help="Title of the page, instead of the name of FILE.")
def command(file: str, out: str, before: str | None, select: str | None, title: str | None) -> None:
    """Write the calls of a FILE (as `occupancy show` reads it) as one HTML page that needs no network.

    It holds the numbers, what they amount to, charts to zoom into and the table of calls; no prompt, key or query.
    """
    from occupancy.errors import InputError
    from occupancy.views.html_report import html_report

    if Path(out).suffix.lower() not in (".html", ".htm"):
        raise InputError(f"cannot write {out!r}: its name must end with .html")
    old = None if before is None else read_file(before, select).columns()
    page = html_report(read_file(file, select).columns(), title=title or Path(file).name, before=old)
    try:
        Path(out).write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {out!r}: {error.strerror}") from error
    click.echo(out)
