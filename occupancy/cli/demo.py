"""`occupancy demo`."""

import click


@click.command()
@click.option("--out", default="occupancy-demo", show_default=True, metavar="FOLDER", help="Where the results go.")
def command(out: str) -> None:
    """Run a four-step agent, serial and overlapped.

    The agent asks a mock gateway on this machine: first step by step, then with its two tools at once, in threads and
    with asyncio. Prints both skylines and a table; writes the calls as CSV, and a picture.
    """
    from occupancy.demo import run_demo

    run_demo(out, click.echo)
