"""`occupancy sweep`."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from occupancy.cli import probing

if TYPE_CHECKING:
    from occupancy.analysis.samples import Round
    from occupancy.probe.sweep import SweepOptions
    from occupancy.probe.sweep_result import SweepResult
    from occupancy.probe.target import Target

ENDINGS = (".json", ".csv", ".md", ".html", ".png", ".svg", ".pdf")


@click.command()
@click.argument("url", required=False)
@click.option("--model", metavar="M", help="The model to ask.")
@click.option("--api", type=click.Choice(["openai", "anthropic"]), default="openai", show_default=True)
@click.option(
    "--request", "request_file", metavar="FILE", help="Any HTTP request, as JSON: method, url, headers, json."
)
@click.option(
    "--key-env", metavar="NAME", help="Environment variable with the key [OPENAI_API_KEY, ANTHROPIC_API_KEY]."
)
@click.option("--levels", metavar="1,2,4", help="Numbers of workers, instead of 1, 2, 4, ... 32 and the plateau.")
@click.option("--requests", type=click.IntRange(2), metavar="N", help="Requests of each level, at the least [20].")
@click.option("--max-requests", type=click.IntRange(1), metavar="N", help="Of the whole sweep.")
@click.option("--timeout", type=float, default=60.0, show_default=True, metavar="S", help="For one request.")
@click.option("--level-timeout", type=float, default=600.0, show_default=True, metavar="S", help="For one level.")
@click.option("--stream", is_flag=True, help="Ask for an event stream.")
@click.option("--no-nonce", is_flag=True, help="Send the same prompt each time: a prefix cache may answer.")
@click.option("--prompt", metavar="TEXT", help="Instead of a short one.")
@click.option(
    "--max-tokens", type=click.IntRange(1), default=16, show_default=True, metavar="N", help="Of each answer."
)
@click.option("--region", metavar="TEXT", help="Of the endpoint: kept with the result.")
@click.option("--place", metavar="TEXT", help="Of this client: kept with the result.")
@click.option("-o", "--out", "outs", multiple=True, metavar="FILE", help=f"Results: {', '.join(ENDINGS)}. Repeatable.")
@click.option("--resume", metavar="FILE", help="Do not measure again what this .json has.")
@click.option("--dry-run", is_flag=True, help="Say what would be sent, and stop.")
@click.option("--yes", is_flag=True, help="Send to a URL that is not on this machine.")
def command(**given: Any) -> int:
    """Measure how many requests the endpoint at URL works on at once, and how many to send.

    Sends 1, 2, 4, 8, ... requests at once until the limit is known. Keys come from the environment alone, and are in no
    output. Exit codes: 0 measured, 2 wrong use, 4 no usable answer, 5 nothing to judge or unstable, 130 interrupted.
    """
    return probing.guarded(lambda: _sweep(given))


def _sweep(given: dict[str, Any]) -> int:
    from occupancy.probe.api import SweepJob, conditions_of
    from occupancy.probe.errors import InvalidError

    target, options = _target(given), _options(given)
    probing.check_outputs(given["outs"], _writers(None))
    target.request_headers()
    probing.announce([target], options.most_planned)
    if given["dry_run"]:
        levels = ", ".join(f"{workers} ({options.requests_of(workers)})" for workers in options.workers)
        click.echo(f"workers (requests): {levels}; warm-up 1, at the end {options.end_requests}")
        return 0
    probing.ask_consent([target], yes=given["yes"])
    done = _resumed(given["resume"], conditions_of(target)) if given["resume"] else []
    is_interrupted = False
    with probing.progress(options.most_planned) as shown:
        job = SweepJob(
            target,
            options,
            done=done,
            on_level=lambda workers, n: shown.begin(f"{workers} worker{'s' * (workers != 1)}", n),
            on_sample=shown.step,
        )
        try:
            asyncio.run(job.run())
        except KeyboardInterrupt:
            is_interrupted = True
    try:
        result = job.result(is_interrupted=is_interrupted)
    except InvalidError as error:
        if not is_interrupted:
            raise
        click.echo(f"occupancy: interrupted; {error}", err=True)
        return probing.INTERRUPTED
    click.echo(str(result))
    probing.write_outputs(given["outs"], _writers(result))
    if is_interrupted:
        return probing.INTERRUPTED
    return 0 if result.is_valid else 5


def _target(given: dict[str, Any]) -> "Target":
    from occupancy.errors import InputError
    from occupancy.probe.target import PROMPT, Api, Target, read_request

    common = {name: given[name] for name in ("key_env", "region", "place")}
    if given["request_file"]:
        return Target(**{**read_request(probing.read_file(given["request_file"])), **common})
    if not given["url"]:
        raise InputError("a URL is needed, or --request FILE")
    return Target(
        url=given["url"],
        model=given["model"],
        api=Api(given["api"]),
        prompt=given["prompt"] or PROMPT,
        max_tokens=given["max_tokens"],
        stream=given["stream"],
        nonce=not given["no_nonce"],
        **common,
    )


def _options(given: dict[str, Any]) -> "SweepOptions":
    from occupancy.probe.sweep import SweepOptions

    more = {} if given["requests"] is None else {"least_requests": given["requests"]}
    return SweepOptions(
        levels=_levels(given["levels"]),
        max_requests=given["max_requests"],
        timeout_s=given["timeout"],
        level_timeout_s=given["level_timeout"],
        **more,
    )


def _levels(text: str | None) -> tuple[int, ...] | None:
    from occupancy.errors import InputError

    try:
        return None if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--levels must be numbers such as 1,2,4, not {text!r}") from None


def _resumed(path: str, conditions: Any) -> "list[Round]":
    """Give the rounds of an earlier sweep of the same target.

    Raises:
        InputError: It holds for something else.
    """
    from dataclasses import asdict

    from occupancy.errors import InputError
    from occupancy.formats.sweep_json import read_rounds

    rounds, before = read_rounds(probing.read_file(path), path)
    for name, value in asdict(conditions).items():
        if before.get(name) != value:
            raise InputError(f"cannot resume {path!r}: its {name} is {before.get(name)!r}, not {value!r}")
    return rounds


def _writers(result: "SweepResult | None") -> dict[str, Callable[[str], None]]:
    """Give a writer for each ending of a file's name; `result` is None where only the names are wanted."""
    from occupancy.probe.writing import write_text

    def text(make: Callable[["SweepResult"], str]) -> Callable[[str], None]:
        return lambda path: None if result is None else write_text(path, make(result))

    def picture(path: str) -> None:
        from occupancy.views.sweep_plot import plot_sweep

        if result is not None:
            plot_sweep(result.capacity, result.conditions.target).savefig(path, dpi=150)

    writers = {".json": text(lambda r: r.to_json()), ".csv": text(_csv), ".md": text(_markdown), ".html": text(_html)}
    return {**writers, **dict.fromkeys(ENDINGS[4:], picture)}


def _csv(result: "SweepResult") -> str:
    from occupancy.formats.samples_table import to_csv

    return to_csv([*result.rounds, *([result.end] if result.end else [])])


def _markdown(result: "SweepResult") -> str:
    from occupancy.views.probe_tables import markdown

    return markdown(result)


def _html(result: "SweepResult") -> str:
    from occupancy.views.probe_html import page
    from occupancy.views.sweep_plot import plot_sweep

    return page(f"Concurrency sweep: {result.conditions.target}", str(result), [plot_sweep(result.capacity, "")])
