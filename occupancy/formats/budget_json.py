"""A latency budget's measurement as JSON, with every raw sample."""

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from occupancy.analysis.latency import CONFIDENCE, QUANTILE_METHOD
from occupancy.analysis.samples import Ending, Sample
from occupancy.errors import ReadError
from occupancy.formats.sweep_json import plain

if TYPE_CHECKING:
    from occupancy.probe.budget_result import BudgetResult, EnvironmentResult

SCHEMA = "occupancy.budget"
VERSION = 1


def to_dict(result: "BudgetResult") -> dict[str, Any]:
    """Give a measurement as what `json.dumps` takes: units are in the names, None where nothing is known."""
    return {
        "passed": result.passed,
        "cheapest": None if result.cheapest is None else result.cheapest.name,
        "advice": result.advice,
        "schema": SCHEMA,
        "version": VERSION,
        "measured_at": result.measured_at,
        "wall_s": result.wall_s,
        "is_interrupted": result.is_interrupted,
        "quantile_method": QUANTILE_METHOD,
        "confidence": CONFIDENCE,
        "environments": [_environment(one) for one in result.environments],
    }


def _environment(one: "EnvironmentResult") -> dict[str, Any]:
    verdict, change = one.verdict, one.change
    measured = one.measured
    return {
        "name": one.name,
        "passed": one.passed,
        "is_complete": one.is_complete,
        "evidence": None if verdict is None else str(verdict.evidence),
        "error": one.error,
        "conditions": dataclasses.asdict(one.conditions),
        "budget": dataclasses.asdict(one.budget),
        "verdict": None if verdict is None else plain(dataclasses.asdict(verdict)),
        "change": None if change is None else {**dataclasses.asdict(change), "share": change.share},
        "warnings": list(one.warnings),
        "samples": None
        if measured is None
        else {
            "cold": [dataclasses.asdict(measured.cold)] if measured.cold else [],
            "warm": [dataclasses.asdict(sample) for sample in measured.warm],
            "concurrent": [dataclasses.asdict(sample) for sample in measured.concurrent],
        },
    }


@dataclasses.dataclass(frozen=True, slots=True)
class Before:
    """An environment of an earlier measurement."""

    warm: tuple[Sample, ...]
    conditions: dict[str, Any]
    measured_at: str


def read_before(text: str, place: str) -> dict[str, Before]:
    """Read the environments of an earlier measurement, by name; those that could not be measured are left out.

    Args:
        text: JSON that `to_dict` gave.
        place: Its file, for the message.

    Raises:
        ReadError: It is no budget, or of a newer version.
    """
    try:
        read = json.loads(text)
    except ValueError as error:
        raise ReadError(f"{place} is no JSON: {error}") from None
    if not isinstance(read, dict) or read.get("schema") != SCHEMA:
        raise ReadError(f"{place} holds no latency budget: its schema must be {SCHEMA!r}")
    if read.get("version") != VERSION:
        raise ReadError(f"{place} has version {read.get('version')!r}; this occupancy reads {VERSION}")
    try:
        return {
            one["name"]: Before(
                tuple(Sample(**{**item, "ending": Ending(item["ending"])}) for item in one["samples"]["warm"]),
                one["conditions"],
                read["measured_at"],
            )
            for one in read["environments"]
            if one["samples"]
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ReadError(f"{place} is damaged: {type(error).__name__} {error}") from None
