"""What the environment says; read once when the capture is switched on."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from occupancy import _guard
from occupancy.errors import InputError

_OFF = frozenset({"0", "false", "no", "off"})
_ON = frozenset({"1", "true", "yes", "on"})


@dataclass(frozen=True, slots=True)
class Settings:
    """The `OCCUPANCY_*` variables."""

    enabled: bool = True
    """`OCCUPANCY_ENABLED`: whether `import occupancy.auto` and `occupancy run` do anything."""
    report: bool = True
    """`OCCUPANCY_REPORT`: whether `occupancy.auto` reports on stderr at exit."""
    report_children: bool = False
    """`OCCUPANCY_REPORT_CHILDREN`: whether forked and spawned workers report too."""
    spans: bool = True
    """`OCCUPANCY_SPANS`: whether OpenTelemetry's httpx instrumentors are switched on and its spans held."""
    metrics: bool = True
    """`OCCUPANCY_METRICS`: whether calls are counted for the program's OpenTelemetry meter provider."""
    phases: bool = True
    """`OCCUPANCY_PHASES`: whether pool, connect, TLS, send and wait are told apart."""
    call_stack: bool = True
    """`OCCUPANCY_CALL_STACK`: whether user frames are kept."""
    model: bool = True
    """`OCCUPANCY_MODEL`: whether the model's name is read from the request body."""
    request_id: bool = True
    """`OCCUPANCY_REQUEST_ID`: whether the server's request id is kept."""
    key_id: bool = True
    """`OCCUPANCY_KEY_ID`: whether the key is told apart from others, by 8 hex digits of its hash."""
    dependence: bool = False
    """`OCCUPANCY_DEPENDENCE`: whether bodies are looked at for signs that one call needs another."""
    journal: str | None = None
    """`OCCUPANCY_JOURNAL`: a file to stream calls to."""
    exclude: tuple[re.Pattern[str], ...] = ()
    """`OCCUPANCY_EXCLUDE`: regular expressions, separated by commas; calls whose `host/path` one finds are `other`."""


def read_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the `OCCUPANCY_*` variables. A value that cannot be used is told in the log, and its default holds."""
    defaults = Settings()
    flags = {name: value for name in Settings.__slots__ if isinstance(value := getattr(defaults, name), bool)}
    for name, default in flags.items():
        flags[name] = _flag(f"OCCUPANCY_{name.upper()}", environ, default=default)
    return Settings(
        **flags, journal=environ.get("OCCUPANCY_JOURNAL") or None, exclude=_patterns("OCCUPANCY_EXCLUDE", environ)
    )


def _flag(variable: str, environ: Mapping[str, str], *, default: bool) -> bool:
    value = environ.get(variable, "").strip().lower()
    if value and value not in _OFF | _ON:
        _guard.report(variable, InputError(f"{variable} must be 0 or 1, not {value!r}"))
    return value in _ON or (default and value not in _OFF)


def _patterns(variable: str, environ: Mapping[str, str]) -> tuple[re.Pattern[str], ...]:
    patterns = []
    for text in filter(None, map(str.strip, environ.get(variable, "").split(","))):
        try:
            patterns.append(re.compile(text))
        except re.error as error:
            _guard.report(variable, InputError(f"{variable}: {text!r} is no regular expression: {error}"))
    return tuple(patterns)
