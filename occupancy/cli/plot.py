"""`occupancy plot`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from occupancy.cli.reading import read_file, select_option
from occupancy.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")


@click.command()
@click.argument("file")
@click.option("-o", "--out", required=True, metavar="PICTURE", help="File to write: .png, .svg or .pdf.")
@select_option
@click.option("--title", default="Calls in flight", help="Line above the picture.")
def command(file: str, out: str, select: str | None, title: str) -> None:
    """Draw the calls of a FILE (as `occupancy show` reads it) as a picture: calls in flight over time."""
    from occupancy.views.step_plot import compare_plot

    save(out, lambda: compare_plot([(title, read_file(file, select).columns())]))
    click.echo(out)


def save(out: str, draw: "Callable[[], Figure]") -> None:
    """Draw a figure and write it to a file of one of `SUFFIXES`.

    Raises:
        InputError: The name has another ending, which is told before anything is drawn, or cannot be written.
    """
    if Path(out).suffix.lower() not in SUFFIXES:
        raise InputError(f"cannot draw {out!r}: its name must end with one of {', '.join(SUFFIXES)}")
    figure = draw()
    try:
        figure.savefig(out, dpi=150)
    except OSError as error:
        raise InputError(f"cannot write {out!r}: {error.strerror}") from error
