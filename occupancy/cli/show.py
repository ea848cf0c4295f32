"""`occupancy show`."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from occupancy.cli.reading import read_file, select_option
from occupancy.fleet import is_fleet

if TYPE_CHECKING:
    from occupancy.call import Call
    from occupancy.log import OccupancyLog

FEW = 5
"""Bad rows and open calls that are named; the others are counted."""


@click.command()
@click.argument("file")
@select_option
@click.option("--json", "as_json", is_flag=True, help="The summary as JSON; units are in the names.")
@click.option("--width", type=click.IntRange(60, 1000), default=80, show_default=True, help="Columns.")
def command(file: str, select: str | None, as_json: bool, width: int) -> None:
    """Sum up the calls of a FILE and say what holds the program back.

    FILE is a journal, a CSV or a trace (OTLP, Jaeger, Phoenix, Langfuse, HAR), or the address of a backend, such as
    jaeger+http://localhost:16686?service=agent&since=1h or phoenix+http://localhost:6006?project=default.

    A fleet's calls are counted where they are: clickhouse://host/database?service=agent&since=1h&by=model, or
    chdb:///folder/spans.parquet?by=service.
    """
    if is_fleet(file):
        click.echo(_fleet(file, select, as_json, width))
        return
    log = read_file(file, select)
    click.echo(json.dumps(to_json(log, file), indent=2) if as_json else to_text(log, width))


def _fleet(url: str, select: str | None, as_json: bool, width: int) -> str:
    from occupancy.fleet.api import query
    from occupancy.views.fleet_text import fleet_report

    found = query(url, select)
    return json.dumps(found.to_dict(), indent=2) if as_json else fleet_report(found, width)


def to_text(log: "OccupancyLog", width: int = 80) -> str:
    """Give the report, the labels, the diagnosis, the calls that never ended and the rows that could not be read.

    Args:
        log: A log that was read.
        width: Columns, at least 60.

    Returns:
        Lines of ASCII without a last newline.
    """
    from occupancy.analysis.diagnosis import diagnosis_of
    from occupancy.analysis.groups import CountedCalls
    from occupancy.analysis.summary import summary_of
    from occupancy.views import tables
    from occupancy.views.diagnosis_text import full_diagnosis

    calls = CountedCalls.of(log.columns())
    summary, diagnosis = summary_of(calls), diagnosis_of(calls)
    has_steps = len(summary.by_site) > len(summary.by_label)  # else the table of labels says the same, and more
    parts = [tables.report_of(calls, summary, diagnosis, width, findings=False, table=has_steps)]
    if log.peak:
        table = tables.label_table(summary, width=width)
        parts.append("\n".join(line[:width] for line in table.splitlines()))
        parts.append(full_diagnosis(diagnosis, width, verdict=False))
    opened = [call for call in log.open_calls if call.in_flight_start is not None]
    parts += _named(opened, "open call", lambda call: _place(call, log.origin_ns), width)
    parts += _named(log.bad_rows, "bad row", str, width)
    return "\n\n".join(parts)


def _named(items: Sequence[Any], noun: str, name: Callable[[Any], str], width: int) -> Iterator[str]:
    """Count things, and name the first ones; nothing when there are none."""
    from occupancy.views.text import count, plain, shorten

    if items:
        named = [f"  {shorten(plain(name(item)), width - 2)}" for item in items[:FEW]]
        more = [f"  ... and {len(items) - FEW} more"] if len(items) > FEW else []
        yield "\n".join([f"{count(len(items), noun)}:", *named, *more])


def _place(call: "Call", origin_ns: int) -> str:
    from occupancy.views.text import duration

    target = f"{call.method or ''} {call.host or ''}{call.path or ''}".strip()
    return f"{call.label or '(no label)'}, since {duration(call.start_ns - origin_ns)}: {target}"


def to_json(log: "OccupancyLog", file: str) -> dict[str, Any]:
    """Give the summary of a log that was read as what `json.dumps` takes."""
    from occupancy.views.diagnosis_text import verdict_line

    summary, diagnosis = log.summary(), log.diagnose()
    return {
        "file": file,
        "verdict": verdict_line(diagnosis),
        "diagnosis": plain(diagnosis),
        "start_unix_ns": log.origin_unix_ns + summary.start_ns - log.origin_ns if summary.n else None,
        **plain(summary),
        "level_share": list(summary.level_share),
        "n_bad_rows": len(log.bad_rows),
        "bad_rows": log.bad_rows[:FEW],
    }


def plain(value: Any) -> Any:
    """Turn dataclasses and named tuples into dicts, other sequences into lists."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Sequence) and not isinstance(value, str):
        as_dict = getattr(value, "_asdict", None)
        return [plain(item) for item in value] if as_dict is None else {k: plain(v) for k, v in as_dict().items()}
    return value
