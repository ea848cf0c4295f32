"""Links an SDK's retry to the attempt before it.

The SDKs of OpenAI and Anthropic build each retry anew, so nothing of the request before it is left but a header that
counts. The loop that retries runs in one task or thread, and one such flow makes one call at a time: the attempt before
is the last call of the same flow to the same target. Where there is a GenAI span above, that tells more surely: what is
sent again under one span belongs to it.
"""

from collections import OrderedDict
from typing import TypeVar

from occupancy import caller
from occupancy.call import Call, Outcome

LIMIT = 4096
"""Flows and GenAI spans remembered, the newest of each."""

Key = tuple[int, int, str | None, str | None]
K = TypeVar("K")
V = TypeVar("V")


def _put(remembered: "OrderedDict[K, V]", key: K, value: V) -> None:
    remembered.pop(key, None)  # to the end; in steps that another thread may come between
    remembered[key] = value
    if len(remembered) > LIMIT:
        remembered.popitem(last=False)


def _is_retried(before: Call, call: Call) -> bool:
    """Whether a call may repeat the one before under the same span: that had ended, and not with what was asked for."""
    if before.end_ns is None or call.start_ns < before.end_ns:
        return False
    return before.outcome != Outcome.OK or (before.status is not None and before.status >= 300)


class Retries:
    """The last counted attempt of each flow."""

    def __init__(self) -> None:
        self._last: OrderedDict[Key, tuple[int, int]] = OrderedDict()
        self._under: OrderedDict[int, Call] = OrderedDict()

    def link(self, call: Call, retry_count: str | None) -> None:
        """Give a retry the logical id of the attempt before, where that is known; a first attempt stays as it is."""
        if retry_count and retry_count.isdecimal() and retry_count != "0":
            call.attempt = int(retry_count)
            logical_id, attempt = self._last.get(self._key(call), (0, -1))
            if attempt == call.attempt - 1:
                call.logical_id = logical_id
        before = self._under.get(caller.model_span_above())
        if before is not None and not call.logical_id and _is_retried(before, call):
            call.logical_id = before.logical_id
            call.attempt = call.attempt or before.attempt + 1

    def remember(self, call: Call) -> None:
        """Keep a started call for the retry that may follow."""
        _put(self._last, self._key(call), (call.logical_id, call.attempt))
        model_span = caller.model_span_above()
        if model_span:
            _put(self._under, model_span, call)

    @staticmethod
    def _key(call: Call) -> Key:
        return (*caller.flow_id(), call.host, call.path)
