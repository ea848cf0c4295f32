"""What every reader gives."""

import dataclasses

from occupancy.call import Call


@dataclasses.dataclass(slots=True)
class Recording:
    """Calls that were read, on one monotonic clock, each with a `call_id` of its own."""

    calls: list[Call] = dataclasses.field(default_factory=list)
    origin_ns: int = 0
    """Second 0 of the recording on the clock of the calls' stamps."""
    origin_unix_ns: int = 0
    """The same moment, ns since 1970."""
    bad_rows: list[str] = dataclasses.field(default_factory=list)
    """What could not be read, as `place: reason`; the good rows are kept."""
