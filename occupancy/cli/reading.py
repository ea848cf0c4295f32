"""What the commands share that read a FILE: `--select`, and telling where it selects nothing."""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from occupancy.log import OccupancyLog

select_option = click.option(
    "--select",
    metavar="SPANS",
    help="Which spans are calls: client, http, genai, all, or attribute=value. "
    "Default: a client's requests, and requests to a model with none of those below.",
)


def read_file(file: str, select: str | None) -> "OccupancyLog":
    """Read the FILE of a command, or the backend at that address.

    Raises:
        ReadError: It cannot be read.
        InputError: `select` selects nothing, or cannot be; or it is a fleet.
    """
    from occupancy.errors import InputError
    from occupancy.fleet import is_fleet
    from occupancy.reading import read

    if is_fleet(file):
        scheme = file.partition("://")[0]
        raise InputError(f"{scheme}://: of a fleet there are counts and no calls; ask occupancy show or occupancy plot")
    log = read(file, select)
    if select is not None and not log.finished and not log.open_calls:
        raise InputError(f"{file.partition('?')[0]}: nothing in it is selected by {select!r}")
    return log
