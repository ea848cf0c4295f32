"""Hook on botocore, and so boto3: its retries are told apart by what it says of them to the server."""

import re
from types import ModuleType
from typing import Any

from occupancy import _guard
from occupancy.instrumentation import attempts
from occupancy.instrumentation.attempts import Trail
from occupancy.instrumentation.patching import Patch, replace_method

_ATTEMPT = re.compile(r"attempt=(\d+)")


@_guard.guarded
def begin(request: Any) -> Trail | None:
    """A session is asked."""
    return attempts.begin_url("botocore", request.method, request.url, retry_count=_retry_count(request.headers))


def _retry_count(headers: Any) -> str | None:
    told = headers.get("amz-sdk-request") or ""
    attempt = _ATTEMPT.match(told if isinstance(told, str) else told.decode("latin-1"))
    return None if attempt is None else str(int(attempt[1]) - 1)


def patch_session(module: ModuleType) -> None:
    """Put the hook into `botocore.httpsession`."""
    replace_method(module.URLLib3Session, "send", _hook_send)


def _hook_send(original: Any, patch: Patch) -> Any:
    def send(session: Any, request: Any) -> Any:
        trail = begin(request) if patch.active else None
        if trail is None:
            return original(session, request)
        return attempts.follow(trail, _status, original, session, request)

    return send


def _status(response: Any) -> int:
    return int(response.status_code)
