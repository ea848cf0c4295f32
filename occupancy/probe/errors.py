"""Why a probe could not measure."""

from occupancy.errors import OccupancyError


class ProbeError(OccupancyError):
    """A probe ended without a result; `exit_code` is the command's."""

    exit_code = 5


class UnreachableError(ProbeError):
    """The first request got no answer that can be used."""

    exit_code = 4


class InvalidError(ProbeError):
    """There were answers, but nothing that can be judged."""

    exit_code = 5
