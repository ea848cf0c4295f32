"""Reads `budget.toml`: budgets, and the environments that have to keep them, the cheapest first.

[budget]
p95_s = 3.0
errors = 0.01

[environments.local]
url = "http://127.0.0.1:8377/v1"
model = "mock-small"

[environments.paid]
url = "https://api.example.com/v1"
model = "large"
key_env = "PAID_KEY"
p95_s = 1.5
"""

import dataclasses
import tomllib
from collections.abc import Mapping
from typing import Any

from occupancy.analysis.latency_budget import Budget
from occupancy.errors import InputError
from occupancy.probe.budget import BudgetOptions
from occupancy.probe.target import Api, Target

_BUDGET = {field.name for field in dataclasses.fields(Budget)}
_OPTIONS = {field.name for field in dataclasses.fields(BudgetOptions)} - {"budget"}
_TARGET = {field.name for field in dataclasses.fields(Target)}


def read_budget(text: str, place: str, given: Mapping[str, Any]) -> dict[str, tuple[Target, BudgetOptions]]:
    """Read a budget file.

    Args:
        text: TOML.
        place: Its file, for the messages.
        given: Fields of `Budget` and `BudgetOptions` that win over the file's, such as options of a command line.

    Returns:
        Target and options of each environment, by name, in the file's order.

    Raises:
        InputError: It cannot be used; names the place and the key.
    """
    try:
        read = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{place} is no TOML: {error}") from None
    unknown = set(read) - {"budget", "environments"}
    if unknown:
        raise InputError(f"{place}: unknown table {sorted(unknown)[0]!r}; known are budget and environments")
    common = _table(read.get("budget", {}), _BUDGET | _OPTIONS, f"{place}: budget")
    environments = read.get("environments", {})
    if not isinstance(environments, dict) or not environments:
        raise InputError(f"{place} names no environment: [environments.NAME] with url and model")
    return {
        name: _environment(table, {**common}, given, f"{place}: environments.{name}")
        for name, table in environments.items()
    }


def _environment(
    table: Any, common: dict[str, Any], given: Mapping[str, Any], place: str
) -> tuple[Target, BudgetOptions]:
    own = _table(table, _BUDGET | _OPTIONS | _TARGET, place)
    values = {**common, **{name: value for name, value in own.items() if name not in _TARGET}, **given}
    target = {name: value for name, value in own.items() if name in _TARGET}
    if isinstance(target.get("headers"), dict):
        target["headers"] = tuple(target["headers"].items())
    if "api" in target and target["api"] not in list(Api):
        raise InputError(f"{place}: api must be one of {', '.join(Api)}, not {target['api']!r}")
    if "url" not in target:
        raise InputError(f"{place}: a url is needed")
    try:
        if "api" in target:
            target["api"] = Api(target["api"])
        budget = Budget(**{name: value for name, value in values.items() if name in _BUDGET})
        options = BudgetOptions(budget=budget, **{name: v for name, v in values.items() if name in _OPTIONS})
        return Target(**target), options
    except TypeError as error:
        raise InputError(f"{place}: a value has the wrong type: {error}") from None
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def _table(table: Any, known: set[str], place: str) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise InputError(f"{place} must be a table, not {table!r}")
    unknown = sorted(set(table) - known)
    if unknown:
        raise InputError(f"{place}: unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}")
    return table
