"""`occupancy budget`."""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from occupancy.cli import probing

if TYPE_CHECKING:
    from occupancy.formats.budget_json import Before
    from occupancy.probe.budget import BudgetOptions
    from occupancy.probe.budget_result import BudgetResult
    from occupancy.probe.target import Target

Environments = Mapping[str, tuple["Target", "BudgetOptions"]]
ENDINGS = (".json", ".csv", ".md", ".html", ".xml", ".png", ".svg", ".pdf")


@click.command()
@click.argument("file", required=False)
@click.option("--url", metavar="URL", help="One environment, instead of a FILE.")
@click.option("--model", metavar="M", help="Its model.")
@click.option("--api", type=click.Choice(["openai", "anthropic"]), default="openai", show_default=True)
@click.option("--key-env", metavar="NAME", help="Environment variable with its key.")
@click.option("--stream", is_flag=True, help="Ask it for an event stream.")
@click.option("--p95", "p95_s", type=float, metavar="S", help="Budget of the p95, warm and concurrent [3.0].")
@click.option("--errors", type=float, metavar="SHARE", help="Budget of failed requests [0.01].")
@click.option("--warm", type=click.IntRange(1), metavar="N", help="Requests one after another [20].")
@click.option("--concurrent", type=click.IntRange(1), metavar="N", help="Requests at once [10].")
@click.option("--timeout", "timeout_s", type=float, metavar="S", help="For one request [30].")
@click.option("--cold-after", "cold_after_s", type=float, metavar="S", help="Idle so long before the first request.")
@click.option("--quick", is_flag=True, help="Three requests with three prompts, each on a connection of its own.")
@click.option("--baseline", metavar="OLD.json", help="Show what has become slower.")
@click.option("--any", "any_suffices", is_flag=True, help="Pass where one environment does.")
@click.option("--require-proof", is_flag=True, help="Exit 3 where a pass is not proven at 95 %.")
@click.option(
    "-o", "--out", "outs", multiple=True, metavar="FILE", help=f"Results: {', '.join(ENDINGS)} (.xml: JUnit)."
)
@click.option("--dry-run", is_flag=True, help="Say what would be sent, and stop.")
@click.option("--yes", is_flag=True, help="Send to URLs that are not on this machine.")
def command(**given: Any) -> int:
    """Measure whether the environments of a FILE (TOML) keep a latency budget, and which is the cheapest that does.

    For each: one request after idling, 20 one after another, 10 at once. Exit codes: 0 all pass, 1 a budget failed,
    2 wrong use, 3 not proven (--require-proof), 4 unreachable, 5 measurement invalid, 130 interrupted.
    """
    return probing.guarded(lambda: _budget(given))


def _budget(given: dict[str, Any]) -> int:
    from occupancy.probe.api import BudgetJob

    environments = _environments(given)
    targets = [target for target, _ in environments.values()]
    probing.check_outputs(given["outs"], _writers(None))
    for target in targets:
        target.request_headers()
    requests = 3 * len(targets) if given["quick"] else sum(options.requests for _, options in environments.values())
    probing.announce(targets, requests)
    if given["dry_run"]:
        return 0
    probing.ask_consent(targets, yes=given["yes"])
    if given["quick"]:
        return _quick(environments)
    before, is_interrupted = _before(given["baseline"]), False
    with probing.progress(requests) as shown:
        job = BudgetJob(environments, before=before, on_environment=shown.begin, on_sample=shown.step)
        try:
            asyncio.run(job.run())
        except KeyboardInterrupt:
            is_interrupted = True
    result = job.result(is_interrupted=is_interrupted)
    click.echo(str(result))
    probing.write_outputs(given["outs"], _writers(result))
    if is_interrupted:
        return probing.INTERRUPTED
    return result.exit_code(require_proof=given["require_proof"], any_suffices=given["any_suffices"])


def _environments(given: dict[str, Any]) -> Environments:
    from occupancy.analysis.latency_budget import Budget
    from occupancy.errors import InputError
    from occupancy.probe.budget import BudgetOptions
    from occupancy.probe.budget_file import read_budget
    from occupancy.probe.target import Api, Target

    names = ("p95_s", "errors", "warm", "concurrent", "timeout_s", "cold_after_s")
    asked = {name: given[name] for name in names if given[name] is not None}
    if (given["file"] is None) == (given["url"] is None):
        raise InputError("give either a FILE or --url URL")
    if given["file"] is not None:
        return read_budget(probing.read_file(given["file"]), given["file"], asked)
    budget = Budget(**{name: asked.pop(name) for name in ("p95_s", "errors") if name in asked})
    target = Target(
        url=given["url"], model=given["model"], api=Api(given["api"]), key_env=given["key_env"], stream=given["stream"]
    )
    return {"endpoint": (target, BudgetOptions(budget=budget, **asked))}


def _before(path: str | None) -> "dict[str, Before] | None":
    from occupancy.formats.budget_json import read_before

    return None if path is None else read_before(probing.read_file(path), path)


def _quick(environments: Environments) -> int:
    """Show three times for each environment, as `curl -w '%{time_total}'` does: no percentile, and no proof."""
    from occupancy.probe.budget import measure_quick

    code = 0
    for name, (target, options) in environments.items():
        samples = asyncio.run(measure_quick(target, options.timeout_s))
        times = "  ".join(f"{sample.latency_s:.6f}" for sample in samples)
        failed = [sample.error or str(sample.ending) for sample in samples if not sample.is_ok]
        slow = sum(sample.latency_s >= options.budget.p95_s for sample in samples)
        told = failed[0] if failed else f"{slow} of {len(samples)} not below {options.budget.p95_s:g} s"
        click.echo(f"{name}: {times} s; {told}")
        code = max(code, 4 if len(failed) == len(samples) else int(bool(failed or slow)))
    click.echo("three requests show an order of magnitude, no percentile")
    return code


def _writers(result: "BudgetResult | None") -> dict[str, Callable[[str], None]]:
    """Give a writer for each ending of a file's name; `result` is None where only the names are wanted."""
    from occupancy.probe.writing import write_text

    def text(make: Callable[["BudgetResult"], str]) -> Callable[[str], None]:
        return lambda path: None if result is None else write_text(path, make(result))

    def picture(path: str) -> None:
        if result is not None:
            result.plot().get_figure(root=True).savefig(path, dpi=150)  # type: ignore[union-attr]

    writers = {
        ".json": text(lambda r: r.to_json()),
        ".csv": text(lambda r: r.to_pandas().to_csv(index=False)),
        ".md": text(_markdown),
        ".html": text(_html),
        ".xml": text(_junit),
    }
    return {**writers, **dict.fromkeys(ENDINGS[5:], picture)}


def _markdown(result: "BudgetResult") -> str:
    from occupancy.views.probe_budget import markdown

    return markdown(result)


def _junit(result: "BudgetResult") -> str:
    from occupancy.formats.junit import to_junit

    return to_junit(result)


def _html(result: "BudgetResult") -> str:
    from occupancy.views.probe_html import page

    figure: Any = result.plot().get_figure(root=True)
    return page("Latency budget", str(result), [figure])
