"""What a gateway of limited capacity does with a request: a pure model, told the time by whoever drives it.

Requests wait first come, first served for one of `capacity` slots, each for its service time. `Line` holds that state
and knows neither clock nor event loop; `mock_server.admission` drives it in an event loop, real or virtual.
"""

import math
import random
from collections import OrderedDict, deque
from dataclasses import dataclass, field

RATE_WINDOW_S = 60.0
"""Requests and tokens per minute are counted over a window that slides."""
KNOWN_PROMPTS = 1000
"""Prompts that the prefix cache remembers, the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a gateway can take. A default means: no such limit.

    Raises:
        ValueError: A value does not fit; names it.
    """

    capacity: int | None = None
    """Requests worked on at once."""
    service_s: float = 0.0
    """Time in a slot, in s."""
    queue: int | None = None
    """Requests that may wait for a slot; one more is answered 429."""
    timeout_s: float | None = None
    """Time from arrival after which an unfinished request is answered 504, in s."""
    cold_s: float = 0.0
    """Time to wake up, in s: at the first request, and at the first after idling."""
    idle_s: float = 60.0
    """Idling from which on the gateway sleeps, in s."""
    jitter: float = 0.0
    """Service times are uniform within this share of `service_s` on both sides: their mean stays."""
    rpm: int | None = None
    """Requests in any 60 s; one more is answered 429."""
    tpm: int | None = None
    """Tokens in any 60 s."""
    retry_after_s: float | None = None
    """What a 429 asks for, in s; without it, a rate limit tells when it ends and a full queue tells nothing."""
    buffer: bool = False
    """Whether an event stream is held back to its end; else its pieces are spread over the service time."""
    outside_s: float = 0.0
    """Time outside any slot, in s: the network, and whatever else is not limited."""
    cache_speedup: float = 1.0
    """How many times faster a prompt is that begins like an earlier one."""
    drift: float = 0.0
    """Share of `service_s` that each further request takes longer."""
    keep_working: bool = False
    """Whether a request whose client has left, or that has timed out, holds its slot to the end of its service time."""
    seed: int = 0
    """Of the jitter: the same seed and order of arrivals give the same service times."""

    def __post_init__(self) -> None:
        at_least = {"capacity": 1, "rpm": 1, "tpm": 1, "cache_speedup": 1, "seed": -math.inf}
        for name in self.__slots__:
            value = getattr(self, name)
            if value is None or isinstance(value, bool):
                continue
            least = at_least.get(name, 0)
            if not least <= value < math.inf:
                raise ValueError(f"{name} must be a number >= {least}, got {value!r}")
        if self.jitter > 1:
            raise ValueError(f"jitter must be a share from 0 to 1, got {self.jitter!r}")


class RefusedError(Exception):
    """A request is answered 429 at once.

    Attributes:
        retry_after_s: When to come back, in s; None where the gateway does not tell.
    """

    def __init__(self, reason: str, retry_after_s: float | None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


@dataclass(slots=True, eq=False)
class Ticket:
    """A request inside the gateway. Times are s on the driver's clock."""

    number: int
    """From 0, in the order of arrivals."""
    arrived_s: float
    work_s: float
    """Service time once the gateway is awake, in s."""
    started_s: float | None = None
    """When it took a slot; None while it waits."""
    service_s: float = 0.0
    """Time in its slot, in s, waking up included; known from the start on."""

    @property
    def ends_s(self) -> float:
        """When its service is over; only once it has started."""
        if self.started_s is None:
            raise ValueError(f"request {self.number} waits for a slot")
        return self.started_s + self.service_s


@dataclass(slots=True)
class RateWindow:
    """At most `limit` in any `RATE_WINDOW_S`."""

    limit: int
    used: int = 0
    _taken: deque[tuple[float, int]] = field(default_factory=deque)

    def wait_s(self, now_s: float, amount: int) -> float:
        """Give the time until `amount` fits, in s; infinite if it never will."""
        while self._taken and self._taken[0][0] <= now_s - RATE_WINDOW_S:
            self.used -= self._taken.popleft()[1]
        over = self.used + amount - self.limit
        if over <= 0:
            return 0.0
        for taken_s, taken in self._taken:
            over -= taken
            if over <= 0:
                return taken_s + RATE_WINDOW_S - now_s
        return math.inf

    def take(self, now_s: float, amount: int) -> None:
        """Count `amount` in."""
        self._taken.append((now_s, amount))
        self.used += amount


class Line:
    """The requests inside one gateway: those in its slots, and those in line for one.

    Times given to its methods must not go back.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.working: list[Ticket] = []
        self.waiting: deque[Ticket] = deque()
        self.peak_working = 0
        """Most slots taken at once."""
        self.refused = 0
        """Requests answered 429."""
        self._arrived = 0
        self._random = random.Random(limits.seed)
        self._rates = [None if limit is None else RateWindow(limit) for limit in (limits.rpm, limits.tpm)]
        self._prompts: OrderedDict[str, None] = OrderedDict()
        self._awake_at_s = -math.inf
        self._idle_since_s = -math.inf

    def arrive(self, now_s: float, tokens: int = 0, prompt: str | None = None) -> Ticket:
        """Let a request in; it starts at once where a slot is free.

        Args:
            now_s: The time, in s.
            tokens: Counted against `tpm`.
            prompt: The beginning of its prompt; None: never in the cache.

        Raises:
            RefusedError: The queue is full, or a rate is used up.
        """
        full = bool(self.limits.queue is not None and not self._has_slot and len(self.waiting) >= self.limits.queue)
        if full:
            raise self._refuse(
                f"the queue is full: {len(self.waiting)} of {self.limits.queue}", self.limits.retry_after_s
            )
        self._take_rates(now_s, tokens)
        ticket = Ticket(self._arrived, now_s, self._work_s(prompt))
        self._arrived += 1
        self.waiting.append(ticket)
        self._start_waiting(now_s)
        return ticket

    def leave(self, ticket: Ticket, now_s: float) -> list[Ticket]:
        """Let a request out of its slot, or out of the line.

        Returns:
            The requests that take a slot now, in their order.
        """
        if ticket.started_s is None:
            self.waiting.remove(ticket)
            return []
        self.working.remove(ticket)
        started = self._start_waiting(now_s)
        if not self.working:
            self._idle_since_s = now_s
        return started

    @property
    def _has_slot(self) -> bool:
        return self.limits.capacity is None or len(self.working) < self.limits.capacity

    def _start_waiting(self, now_s: float) -> list[Ticket]:
        started = []
        while self.waiting and self._has_slot:
            ticket = self.waiting.popleft()
            self._wake(now_s)
            ticket.started_s = now_s
            ticket.service_s = ticket.work_s + max(self._awake_at_s - now_s, 0.0)
            self.working.append(ticket)
            started.append(ticket)
        self.peak_working = max(self.peak_working, len(self.working))
        return started

    def _wake(self, now_s: float) -> None:
        if self.limits.cold_s and not self.working and now_s - self._idle_since_s >= self.limits.idle_s:
            self._awake_at_s = now_s + self.limits.cold_s

    def _work_s(self, prompt: str | None) -> float:
        """Give the service time of the next request: the random number is drawn in the order of arrivals."""
        spread = 1 + self.limits.jitter * self._random.uniform(-1, 1)
        drifted = 1 + self.limits.drift * self._arrived
        speedup = self.limits.cache_speedup if self._is_cached(prompt) else 1
        return self.limits.service_s * spread * drifted / speedup

    def _is_cached(self, prompt: str | None) -> bool:
        if prompt is None or self.limits.cache_speedup == 1:
            return False
        known = prompt in self._prompts
        self._prompts[prompt] = None
        self._prompts.move_to_end(prompt)
        if len(self._prompts) > KNOWN_PROMPTS:
            self._prompts.popitem(last=False)
        return known

    def _take_rates(self, now_s: float, tokens: int) -> None:
        """Count a request against both rates, or against none."""
        rates = [(rate, amount) for rate, amount in zip(self._rates, (1, tokens), strict=True) if rate is not None]
        wait_s = max((rate.wait_s(now_s, amount) for rate, amount in rates), default=0.0)
        if wait_s > 0:
            known_s = wait_s if wait_s < math.inf else None
            asked_s = self.limits.retry_after_s
            raise self._refuse("the rate is used up", known_s if asked_s is None else asked_s)
        for rate, amount in rates:
            rate.take(now_s, amount)

    def _refuse(self, reason: str, retry_after_s: float | None) -> RefusedError:
        self.refused += 1
        return RefusedError(reason, retry_after_s)
