"""`occupancy plot`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from occupancy.cli.reading import read_file, select_option
from occupancy.errors import InputError
from occupancy.fleet import is_fleet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")


@click.command()
@click.argument("file")
@click.option("-o", "--out", required=True, metavar="PICTURE", help="File to write: .png, .svg or .pdf.")
@select_option
@click.option("--title", help="Line above the picture.")
def command(file: str, out: str, select: str | None, title: str | None) -> None:
    """Draw the calls of a FILE (as `occupancy show` reads it) as a picture: calls in flight over time.

    The picture of a fleet has a row for each group.
    """
    save(out, lambda: (_fleet if is_fleet(file) else _file)(file, select, title))
    click.echo(out)


def _file(file: str, select: str | None, title: str | None) -> "Figure":
    from occupancy.views.step_plot import compare_plot

    return compare_plot([(title or "Calls in flight", read_file(file, select).columns())])


def _fleet(url: str, select: str | None, title: str | None) -> "Figure":
    from occupancy.fleet.api import query
    from occupancy.views.fleet_plot import fleet_strip

    figure = fleet_strip(query(url, select), title=title).get_figure(root=True)
    assert figure is not None
    return figure


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
