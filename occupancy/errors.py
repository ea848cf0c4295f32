"""What can go wrong, said with the offending value and its place."""


class OccupancyError(Exception):
    """Base of every error that occupancy raises on purpose."""


class InputError(OccupancyError, ValueError):
    """An argument or an environment variable has a value that cannot be used."""


class ReadError(OccupancyError):
    """A file or a backend could not be read as calls; the message names it and the first bad place."""


class DependencyError(OccupancyError, ImportError):
    """An optional dependency is missing; the message holds the command that installs it."""
