"""Links an SDK's retry to the attempt before it.

The SDKs of OpenAI and Anthropic build each retry anew, so nothing of the request before it is left but a header that
counts. The loop that retries runs in one task or thread, and one such flow makes one call at a time: the attempt before
is the last call of the same flow to the same target.
"""

from collections import OrderedDict

from occupancy import caller
from occupancy.call import Call

LIMIT = 4096
"""Flows remembered, the newest."""

Key = tuple[int, int, str | None, str | None]


class Retries:
    """The last counted attempt of each flow."""

    def __init__(self) -> None:
        self._last: OrderedDict[Key, tuple[int, int]] = OrderedDict()

    def link(self, call: Call, retry_count: str | None) -> None:
        """Give a retry the logical id of the attempt before, where that is known; a first attempt stays as it is."""
        if not retry_count or not retry_count.isdecimal() or retry_count == "0":
            return
        call.attempt = int(retry_count)
        logical_id, attempt = self._last.get(self._key(call), (0, -1))
        if attempt == call.attempt - 1:
            call.logical_id = logical_id

    def remember(self, call: Call) -> None:
        """Keep a started call for the retry that may follow."""
        key = self._key(call)
        self._last.pop(key, None)  # to the end; in steps that another thread may come between
        self._last[key] = (call.logical_id, call.attempt)
        if len(self._last) > LIMIT:
            self._last.popitem(last=False)

    @staticmethod
    def _key(call: Call) -> Key:
        return (*caller.flow_id(), call.host, call.path)
