"""One request of a probe: whatever sends it, it becomes a `Sample`."""

import asyncio
import dataclasses
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from occupancy.analysis.samples import Ending, Sample

TIMEOUT_STATUSES = frozenset({408, 504})
MOST_ERROR_CHARS = 200


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a request tells beside its times; stamps are s on the event loop's clock."""

    status: int | None = None
    first_byte_s: float | None = None
    first_event_s: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    pool_s: float | None = None
    connect_s: float | None = None
    tls_s: float | None = None
    wire_s: float | None = None
    retry_after_s: float | None = None
    error: str | None = None
    """Why it cannot be used; None for a good answer."""


Request = Callable[[], Awaitable[Any]]
"""Sends one request and waits for its end. An exception is a failure; any result but an `Answer` is a good answer."""


class Opener(Protocol):
    """Gives a request that so many workers may use at once, for the time of a block."""

    def __call__(self, workers: int) -> AbstractAsyncContextManager[Request]:
        """Open it."""


def opener_of(request: Request) -> Opener:
    """Let any coroutine function be swept: an SDK's call, or a whole agent."""

    @asynccontextmanager
    async def open_request(workers: int) -> AsyncIterator[Request]:
        yield request

    return open_request


async def take_sample(request: Request, number: int, timeout_s: float, origin_s: float = 0.0) -> Sample:
    """Send one request and time it.

    Args:
        request: What to call.
        number: Its place in the round.
        timeout_s: Total time after which it is given up, in s.
        origin_s: Second 0 of the sample's times, on the event loop's clock.

    Raises:
        CancelledError: The probe itself was stopped.
    """
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            answer = await request()
    except TimeoutError as error:
        told = f"no complete answer within {timeout_s:g} s" if limit.expired() else describe(error)
        ending, answer = Ending.TIMEOUT, Answer(error=told)
    except Exception as error:
        ending, answer = classify(error)
    else:
        answer = answer if isinstance(answer, Answer) else Answer(status=_status_of(answer))
        ending = ending_of(answer)
    fields = {field.name: getattr(answer, field.name) for field in dataclasses.fields(answer)}
    for name in ("first_byte_s", "first_event_s"):
        fields[name] = None if fields[name] is None else fields[name] - origin_s
    return Sample(number=number, start_s=start_s - origin_s, end_s=loop.time() - origin_s, ending=ending, **fields)


def ending_of(answer: Answer) -> Ending:
    """Class an answer by its status, and by whether it can be used."""
    if answer.status == 429:
        return Ending.REFUSED
    if answer.status in TIMEOUT_STATUSES:
        return Ending.TIMEOUT
    if answer.status is not None and answer.status >= 300:
        return Ending.HTTP_ERROR
    return Ending.OK if answer.error is None else Ending.ERROR


def classify(error: Exception) -> tuple[Ending, Answer]:
    """Class an exception of any client: by the status it carries, else by its name."""
    response = getattr(error, "response", None)
    status = getattr(error, "status_code", getattr(response, "status_code", None))
    if isinstance(status, int):
        headers = getattr(response, "headers", None) or {}
        answer = Answer(status=status, error=describe(error), retry_after_s=retry_after(headers))
        return ending_of(answer), answer
    is_timeout = isinstance(error, TimeoutError) or "timeout" in type(error).__name__.lower()
    return Ending.TIMEOUT if is_timeout else Ending.ERROR, Answer(error=describe(error))


def describe(error: BaseException) -> str:
    """Give an exception in one line of bounded length."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:MOST_ERROR_CHARS] if text else type(error).__name__


def retry_after(headers: Any) -> float | None:
    """Read what the server asked for, in s: `retry-after-ms`, else `retry-after` in seconds; None for anything else."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            asked_s = float(headers.get(name, "")) * unit_s
        except (TypeError, ValueError):
            continue
        if 0 <= asked_s < math.inf:
            return asked_s
    return None


def _status_of(result: Any) -> int | None:
    status = getattr(result, "status_code", None)
    return status if isinstance(status, int) else None
