"""Starts calls and numbers the attempts of one: what the hooks of all clients share."""

from contextvars import ContextVar
from time import monotonic_ns

from occupancy import _guard, caller
from occupancy._guard import quietly
from occupancy.call import Call
from occupancy.flight import Flight
from occupancy.instrumentation import exchange
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

    __slots__ = ("call", "flight", "is_over", "outer")

    def __init__(self, flight: Flight, outer: "Trail | None") -> None:
        self.flight: Flight | None = flight
        self.call = flight.call
        self.outer = outer
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


def current_trail() -> Trail | None:
    """The trail of the request below which this code runs: for a transport that builds its request anew."""
    trail = current.get()
    return None if trail is None or trail.is_over else trail


def continue_trail(trail: Trail, call: Call) -> None:
    """Make a call the next attempt of a trail's."""
    call.logical_id, call.attempt = trail.call.logical_id, trail.call.attempt + 1
    trail.call = call


@_guard.guarded
def leave(trail: Trail) -> None:
    """The client's request is over. No token is used: a coroutine may be closed in another context."""
    trail.is_over = True
    if current.get() is trail:
        current.set(trail.outer)
    trail.outer = None


def next_attempt(trail: Trail, entered_ns: int) -> Flight:
    """A further attempt below the client, as a retrying transport makes it."""
    call = Call(start_ns=entered_ns, client_ns=0)
    for name in caller.SHARED_BY_ATTEMPTS:
        setattr(call, name, getattr(trail.call, name))
    continue_trail(trail, call)
    return ledger.start(call)


def take_headers(flight: Flight, status: int, headers: dict[str, str]) -> bool:
    """Stamp the headers; False where the call ends with them, since no body can come."""
    flight.headers(status, monotonic_ns())
    quietly(exchange.describe_response, flight.call, headers, settings)
    if settings.call_stack:
        quietly(caller.describe_later, flight.call)
    if quietly(exchange.has_no_body, flight.call.method, status, headers):
        flight.complete()
        return False
    return True
