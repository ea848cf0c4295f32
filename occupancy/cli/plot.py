"""`occupancy plot`."""

from pathlib import Path

import click

SUFFIXES = (".png", ".svg", ".pdf")


@click.command()
@click.argument("file")
@click.option("-o", "--out", required=True, metavar="PICTURE", help="File to write: .png, .svg or .pdf.")
@click.option("--title", default="Calls in flight", help="Line above the picture.")
def command(file: str, out: str, title: str) -> None:
    """Draw the calls of a FILE, a journal or a CSV, as a picture: calls in flight over time."""
    from occupancy.errors import InputError
    from occupancy.reading import read

    if Path(out).suffix.lower() not in SUFFIXES:
        raise InputError(f"cannot draw {out!r}: its name must end with one of {', '.join(SUFFIXES)}")
    log = read(file)
    from occupancy.views.step_plot import compare_plot

    figure = compare_plot([(title, log.columns())])
    try:
        figure.savefig(out, dpi=150)
    except OSError as error:
        raise InputError(f"cannot write {out!r}: {error.strerror}") from error
    click.echo(out)
