"""How many requests does this program have in flight right now, and why not more?"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from occupancy.call import Call as Call
    from occupancy.call import Frame as Frame
    from occupancy.call import Kind as Kind
    from occupancy.call import Outcome as Outcome
    from occupancy.caller.labels import agent_run as agent_run
    from occupancy.caller.labels import label as label
    from occupancy.capture import instrument as instrument
    from occupancy.capture import record as record
    from occupancy.capture import uninstrument as uninstrument
    from occupancy.errors import OccupancyError as OccupancyError
    from occupancy.fleet.api import query as query
    from occupancy.instrumentor import OccupancyInstrumentor as OccupancyInstrumentor
    from occupancy.log import OccupancyLog as OccupancyLog
    from occupancy.notebook import load_ipython_extension as load_ipython_extension
    from occupancy.notebook import unload_ipython_extension as unload_ipython_extension
    from occupancy.probe.api import latency_budget as latency_budget
    from occupancy.probe.api import sweep as sweep
    from occupancy.processor import OccupancySpanProcessor as OccupancySpanProcessor
    from occupancy.reading import read as read
    from occupancy.reporting import report as report

_HOMES = {
    "Call": "call",
    "Frame": "call",
    "Kind": "call",
    "OccupancyError": "errors",
    "OccupancyInstrumentor": "instrumentor",
    "OccupancyLog": "log",
    "OccupancySpanProcessor": "processor",
    "Outcome": "call",
    "agent_run": "caller.labels",
    "instrument": "capture",
    "label": "caller.labels",
    "latency_budget": "probe.api",
    "load_ipython_extension": "notebook",
    "query": "fleet.api",
    "read": "reading",
    "record": "capture",
    "report": "reporting",
    "sweep": "probe.api",
    "uninstrument": "capture",
    "unload_ipython_extension": "notebook",
}
"""Where each public name lives. It is imported on first use: a program pays only for what it uses."""

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 - the names are those above


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
