"""The command line: one module for each command, imported when it is used."""

import sys
from importlib import import_module
from typing import Any

import click

import occupancy
from occupancy.errors import OccupancyError

COMMANDS = ("demo", "run", "show", "plot", "report", "compare", "convert", "watch", "sweep", "budget")


class LazyGroup(click.Group):
    """Finds the command `name` as `occupancy.cli.name.command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands in the order in which a user meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"{__name__}.{cmd_name}").command
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(occupancy.__version__, "--version", message="%(prog)s %(version)s")
def group() -> None:
    """How many requests does a program have in flight right now, and why not more?"""


def main() -> None:
    """Run a command, and end the process where that has an exit code: 1 for an error, 2 for a wrong command line."""
    result = _run_command()
    if callable(result):  # a program of the user's: outside of click, which would catch its exceptions
        result = result()
    sys.exit(result)


def _run_command() -> Any:
    try:
        return group.main(prog_name="occupancy", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 130
    except OccupancyError as error:
        click.echo(f"occupancy: {error}", err=True)
        return 1
    except BrokenPipeError:
        raise  # who reads has gone: quietly
    except OSError as error:  # a full disk behind stdout
        click.echo(f"occupancy: cannot write: {error.strerror}", err=True)
        return 1
