"""Starts calls and numbers the attempts of one: what the hooks of all clients share."""

from collections.abc import Callable
from contextvars import ContextVar
from time import monotonic_ns
from typing import Any

from occupancy import _guard, caller
from occupancy._guard import quietly
from occupancy.call import Call
from occupancy.flight import Flight
from occupancy.instrumentation import exchange, provider, spans
from occupancy.instrumentation.phases import Phases
from occupancy.instrumentation.retries import Retries
from occupancy.ledger import ledger
from occupancy.settings import Settings

settings = Settings()
"""What is kept of a call; set when the hooks are put in."""
retries = Retries()
current: ContextVar["Trail | None"] = ContextVar("occupancy_trail", default=None)


class Trail:
    """What travels with a request: the call until a pool adopts it, then how to number the next attempt.

    Args:
        flight: The call.
        outer: The trail of the request below which this one is made: a transport's, to renew a token for instance.
    """

    __slots__ = ("attempt", "call", "flight", "is_over", "outer", "phases")

    def __init__(self, flight: Flight, outer: "Trail | None") -> None:
        self.flight: Flight | None = flight
        self.call = flight.call
        self.outer = outer
        self.phases: Phases | None = None
        """Where the time goes from the moment a connection pool is asked, where that is not its own hook's to know."""
        self.attempt: object = None
        """What the client's hooks keep of the attempt that is under way."""
        self.is_over = False

    def __deepcopy__(self, memo: object) -> "Trail":
        return self  # a host that copies its request's extensions must not meet our locks

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()

    def adopt(self) -> Flight | None:
        """The call, for the first who asks."""
        flight, self.flight = self.flight, None
        return flight

    def is_for(self, call: Call) -> bool:
        """Whether another request has the same target."""
        mine = self.call
        return (mine.method, mine.host, mine.path) == (call.method, call.host, call.path)


def prepare_run() -> None:
    """Take the provider into use that the span of a run needs, before its first call begins: that may take long."""
    if settings.spans and caller.current_run() is not None:
        quietly(provider.look_for_provider)


def begin(
    call: Call,
    earlier: Trail | None = None,
    retry_count: str | None = None,
    note: Callable[[Call], object] | None = None,
    *,
    is_async: bool = False,
) -> Trail | None:
    """Start a call of which the client has told the target.

    Args:
        call: The call.
        earlier: The trail that it continues, where the client knows.
        retry_count: What an SDK says of the retries before.
        note: Looks at the request once its number is known.
        is_async: Whether the client is asynchronous.

    Returns:
        Its trail, which is now the current one; None where a client above has begun it already.
    """
    outer = current_trail()
    if earlier is None and outer is not None and outer.is_for(call):
        earlier = outer
    if earlier is not None and earlier.flight is not None:
        return None  # a client below a transport, or a second hook of ours, passes on what the first has begun
    own = quietly(spans.own_span, call.client, continues=earlier is not None)
    quietly(caller.describe, call, own, with_stack=settings.call_stack)
    call.sync_in_event_loop = not is_async and bool(quietly(caller.sync_in_event_loop))
    if earlier is not None:  # a redirect, or an auth flow or a transport that sends again
        continue_trail(earlier, call)
    else:
        quietly(retries.link, call, retry_count)
    if note is not None:
        quietly(note, call)
    trail = Trail(ledger.start(call), outer)
    if earlier is None:
        quietly(retries.remember, call)
    current.set(trail)
    return trail


def begin_url(
    library: str, method: str, url: str, earlier: Trail | None = None, retry_count: str | None = None
) -> Trail | None:
    """The same for a synchronous client that is asked for a URL; None also where it is not to be seen."""
    if not ledger.logs or bool(quietly(spans.is_suppressed)):
        return None
    prepare_run()
    call = Call(client=library, start_ns=monotonic_ns())
    quietly(exchange.describe_url, call, method, url, settings)
    return begin(call, earlier, retry_count)


def current_trail() -> Trail | None:
    """The trail of the request below which this code runs: for a transport that builds its request anew."""
    trail = current.get()
    return None if trail is None or trail.is_over else trail


def continue_trail(trail: Trail, call: Call) -> None:
    """Make a call the next attempt of a trail's."""
    call.logical_id, call.attempt = trail.call.logical_id, trail.call.attempt + 1
    trail.call = call


def follow(trail: Trail, status_of: Callable[[Any], int], send: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Have a synchronous client send, and end its call where nothing below has taken it over."""
    flight = trail.flight
    try:
        response = send(*args, **kwargs)
    except BaseException as error:
        fail(trail, flight, error)
        raise
    finally:
        leave(trail)
    if trail.flight is not None:
        complete_unseen(trail, status_of, response)
    return response


@_guard.guarded
def fail(trail: Trail, flight: Flight | None, error: BaseException) -> None:
    """A client's request failed; what is no longer its own has ended already."""
    if trail.phases is not None:
        trail.phases.stop()
    if flight is not None and flight.call.headers_ns is None:
        flight.fail(error)


@_guard.guarded
def complete_unseen(trail: Trail, status_of: Callable[[Any], int], response: Any) -> None:
    """The client has a response that no connection has brought, as of a test's stand-in: it ends at once."""
    flight = trail.adopt()
    if flight is not None:
        status = quietly(status_of, response)
        if status is not None:
            flight.headers(status, monotonic_ns())
        flight.complete()


@_guard.guarded
def leave(trail: Trail) -> None:
    """The client's request is over. No token is used: a coroutine may be closed in another context."""
    trail.is_over = True
    if current.get() is trail:
        current.set(trail.outer)
    trail.outer = trail.attempt = None


def next_attempt(trail: Trail, entered_ns: int, note: Callable[[Call], object] | None = None) -> Flight:
    """A further attempt below the client, as a retrying transport makes it; `note` tells what differs."""
    call = Call(start_ns=entered_ns, client_ns=0)
    for name in caller.SHARED_BY_ATTEMPTS:
        setattr(call, name, getattr(trail.call, name))
    if note is not None:
        quietly(note, call)
    continue_trail(trail, call)
    return ledger.start(call)


def take_headers(flight: Flight, status: int, headers: dict[str, str]) -> bool:
    """Stamp the headers; False where the call ends with them, since no body can come."""
    flight.headers(status, monotonic_ns())
    quietly(exchange.describe_response, flight.call, headers, settings)
    if flight.call.siblings_held is False:
        quietly(caller.look_again, flight.call)
    if settings.call_stack:
        quietly(caller.describe_later, flight.call)
    if quietly(exchange.has_no_body, flight.call.method, status, headers):
        flight.complete()
        return False
    return True
