"""A sweep as JSON: its answer at the top, every raw sample below, so that it can be judged anew."""

import dataclasses
import json
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from occupancy.analysis.samples import ClientLoad, Ending, Round, Sample
from occupancy.errors import ReadError

if TYPE_CHECKING:
    from occupancy.probe.sweep_result import SweepResult

SCHEMA = "occupancy.sweep"
VERSION = 1
_SAMPLE_FIELDS = tuple(field.name for field in dataclasses.fields(Sample))


def to_dict(result: "SweepResult") -> dict[str, Any]:
    """Give a sweep as what `json.dumps` takes: units are in the names, None where nothing is known."""
    capacity = result.capacity
    return {
        "recommended": result.recommended,
        "capacity": capacity.fit.capacity,
        "capacity_error99": capacity.fit.error99,
        "plateau": capacity.fit.plateau,
        "parallel_up_to": capacity.fit.at_least,
        "over_limit_at": capacity.over_limit_at,
        "labels": list(result.labels),
        "schema": SCHEMA,
        "version": VERSION,
        "measured_at": result.measured_at,
        "wall_s": result.wall_s,
        "requests": result.sent,
        "is_interrupted": result.is_interrupted,
        "notes": list(result.notes),
        "conditions": dataclasses.asdict(result.conditions),
        "baseline": plain(dataclasses.asdict(capacity.baseline)),
        "usl": None if capacity.fit.usl is None else dataclasses.asdict(capacity.fit.usl),
        "levels": [plain(dataclasses.asdict(level)) for level in capacity.levels],
        "warm_up": None if result.warm_up is None else _sample(result.warm_up),
        "rounds": [round_to_dict(measured) for measured in result.rounds],
        "end": None if result.end is None else round_to_dict(result.end),
        "partial": None if result.partial is None else round_to_dict(result.partial),
    }


def dumps(value: dict[str, Any]) -> str:
    """Write strict JSON: what is no finite number is null."""
    return json.dumps(plain(value), indent=1, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """Turn named tuples into objects, other tuples into lists, and what is no finite number into None."""
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


def round_to_dict(measured: Round) -> dict[str, Any]:
    """Give a round with its samples."""
    return {
        "workers": measured.workers,
        "is_complete": measured.is_complete,
        "client": dataclasses.asdict(measured.client),
        "samples": [_sample(sample) for sample in measured.samples],
    }


def _sample(sample: Sample) -> dict[str, Any]:
    pairs = ((name, getattr(sample, name)) for name in _SAMPLE_FIELDS)
    return {name: value for name, value in pairs if value is not None}


def read_rounds(text: str, place: str) -> tuple[list[Round], dict[str, Any]]:
    """Read the complete rounds of a sweep.

    Args:
        text: JSON that `to_dict` gave.
        place: Its file, for the message.

    Returns:
        The rounds, and the conditions they were measured under.

    Raises:
        ReadError: It is no sweep, or of a newer version.
    """
    try:
        read = json.loads(text)
    except ValueError as error:
        raise ReadError(f"{place} is no JSON: {error}") from None
    if not isinstance(read, dict) or read.get("schema") != SCHEMA:
        raise ReadError(f"{place} holds no sweep: its schema must be {SCHEMA!r}")
    if read.get("version") != VERSION:
        raise ReadError(f"{place} has version {read.get('version')!r}; this occupancy reads {VERSION}")
    try:
        return _complete(read["rounds"]), dict(read["conditions"])
    except (KeyError, TypeError, ValueError) as error:
        raise ReadError(f"{place} is damaged: {type(error).__name__} {error}") from None


def _complete(rounds: Iterable[dict[str, Any]]) -> list[Round]:
    return [read_round(item) for item in rounds if item["is_complete"]]


def read_round(item: dict[str, Any]) -> Round:
    """Read what `round_to_dict` gave.

    Raises:
        KeyError, TypeError, ValueError: It is something else.
    """
    samples = [Sample(**{**sample, "ending": Ending(sample["ending"])}) for sample in item["samples"]]
    return Round(
        workers=item["workers"],
        samples=tuple(samples),
        client=ClientLoad(**item["client"]),
        is_complete=item["is_complete"],
    )
