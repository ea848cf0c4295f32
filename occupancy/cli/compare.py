"""`occupancy compare`."""

import json
from pathlib import Path

import click

from occupancy.cli.plot import save
from occupancy.cli.reading import read_file, select_option
from occupancy.cli.show import plain


@click.command()
@click.argument("before")
@click.argument("after")
@click.option("-o", "--out", metavar="PICTURE", help="Draw both, too: .png, .svg or .pdf.")
@select_option
@click.option("--json", "as_json", is_flag=True, help="The comparison as JSON; units are in the names.")
@click.option("--width", type=click.IntRange(60, 1000), default=80, show_default=True, help="Columns.")
def command(*, before: str, after: str, out: str | None, select: str | None, as_json: bool, width: int) -> None:
    """Compare the calls of two files, BEFORE a change and AFTER it: is the new structure worth keeping?"""
    from occupancy.analysis.comparison import compare
    from occupancy.views.diagnosis_text import comparison_text

    logs = (read_file(before, select).columns(), read_file(after, select).columns())
    comparison = compare(*logs)
    click.echo(json.dumps(plain(comparison), indent=2) if as_json else comparison_text(comparison, width))
    if out is not None:
        from occupancy.views.compare_plot import compare_plot

        save(out, lambda: compare_plot(*logs, names=(Path(before).name, Path(after).name)))
        click.echo(out, err=as_json)
