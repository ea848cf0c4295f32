"""`occupancy convert`."""

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from occupancy.cli.reading import read_file, select_option

if TYPE_CHECKING:
    from occupancy.log import OccupancyLog

ENDINGS = {".csv": "csv", ".har": "har", ".perfetto.json": "chrome", ".trace.json": "chrome", ".json": "otlp"}
"""What the end of a name asks for: the first that fits."""
FORMATS = ("otlp", "har", "chrome", "csv")


@click.command()
@click.argument("source", metavar="IN")
@click.argument("out")
@click.option("--to", "format_", type=click.Choice(FORMATS), help="Format of OUT; by default its name tells.")
@select_option
def command(source: str, out: str, format_: str | None, select: str | None) -> None:
    """Write the calls of IN (what `occupancy show` reads) to OUT in another format.

    The name of OUT tells which: .json is OTLP, .har is HAR, .trace.json or .perfetto.json is a trace for
    ui.perfetto.dev and chrome://tracing, .csv is our CSV; each also with .gz.
    """
    from occupancy.errors import InputError
    from occupancy.formats.writing import write

    pieces = _pieces(format_ or _format_of(out))
    if os.path.exists(source) and os.path.exists(out) and os.path.samefile(source, out):
        raise InputError(f"IN and OUT are one file, {out!r}: only its calls would be left of it")
    write(out, pieces(read_file(source, select)))
    click.echo(out)


def _format_of(out: str) -> str:
    from occupancy.errors import InputError

    name = out.lower().removesuffix(".gz")
    for ending, format_ in ENDINGS.items():
        if name.endswith(ending):
            return format_
    raise InputError(
        f"cannot tell the format of {out!r}: its name must end with one of {', '.join(ENDINGS)}, or say --to"
    )


def _pieces(format_: str) -> "Callable[[OccupancyLog], Iterable[str]]":
    from occupancy.formats import chrome_trace, har, occupancy_csv, otlp_writer

    return {
        "otlp": otlp_writer.pieces,
        "har": har.pieces,
        "chrome": chrome_trace.pieces,
        "csv": occupancy_csv.pieces,
    }[format_]
