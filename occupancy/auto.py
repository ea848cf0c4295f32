"""The one import with a side effect: records every call from here on, and reports on stderr at exit.

    import occupancy.auto

`occupancy.auto.log` is the process's log. `OCCUPANCY_ENABLED=0` makes the import do nothing, `OCCUPANCY_REPORT=0` keeps
the report away, `OCCUPANCY_JOURNAL=calls.jsonl` streams the calls to a file; see `occupancy.settings`. Where `OTEL_*`
variables name an exporter and the program sets no provider, the calls are exported as spans.
"""

from occupancy import _guard, capture, reporting
from occupancy.instrumentation import provider
from occupancy.log import OccupancyLog
from occupancy.settings import read_settings


def _begin() -> OccupancyLog:
    settings = read_settings()
    if not settings.enabled:
        return OccupancyLog()  # records nothing; what the program does with `log` still works
    if settings.report:
        reporting.report_at_exit()
    provider.exports_alone = True
    return capture.begin()


log: OccupancyLog = _guard.guarded(_begin)() or OccupancyLog()
"""The process's log."""
