"""Our code never breaks the host.

Every entry point that runs inside the host's call passes through `guarded`: an exception of ours is logged once and the
host goes on as if we were not there. `BaseException` (cancellation, `KeyboardInterrupt`) is the host's and passes.
"""

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger("occupancy")
_reported: set[str] = set()


def report(where: str, error: Exception) -> None:
    """Log an exception of ours: the first one at each place, with its traceback.

    Args:
        where: The entry point that failed, as `module.function`.
        error: The exception that was caught.
    """
    if where in _reported:
        return
    _reported.add(where)
    try:
        logger.warning(
            "occupancy failed in %s and goes on without it (told once)",
            where,
            exc_info=(type(error), error, error.__traceback__),
        )
    except Exception:  # a host's logging handler may fail too, and that is no reason to break the host
        pass


def tell(text: str) -> None:
    """Log a line that the program's user should see: what cannot be had, or is lost."""
    try:
        logger.warning("occupancy: %s", text)
    except Exception:
        pass


def guarded(function: Callable[P, R]) -> Callable[P, R | None]:
    """Make an entry point return None, logged once, where it would raise an `Exception`."""
    where = f"{function.__module__}.{function.__qualname__}"

    @functools.wraps(function)
    def guard(*args: P.args, **kwargs: P.kwargs) -> R | None:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            report(where, error)
            return None

    return guard


def quietly(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """Call what a call can do without: where it fails, that is logged and the call is counted all the same."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        report(f"{function.__module__}.{function.__qualname__}", error)
        return None
