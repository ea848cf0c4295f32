"""Answers in the shape of Anthropic's API."""

from datetime import UTC, datetime, timedelta
from typing import Any

from mock_server.content import DEFAULT_DELTAS, Content, encode_event, event_content, text_deltas
from mock_server.faults import Faults

INPUT_TOKENS = 8
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def message_json(request: dict[str, Any], number: int) -> dict[str, Any]:
    """A whole answer of `POST /v1/messages`."""
    content = [{"type": "text", "text": "".join(text_deltas(DEFAULT_DELTAS))}]
    return {**_message(request, number, DEFAULT_DELTAS), "content": content, "stop_reason": "end_turn"}


def message_events(request: dict[str, Any], number: int, deltas: int) -> Content:
    """A streamed answer of `POST /v1/messages`: `message_start` to `message_stop`."""
    block = {"type": "text", "text": ""}
    opening = [
        _event("message_start", message=_message(request, number, 1)),
        _event("content_block_start", index=0, content_block=block),
        _event("ping"),
    ]
    parts = [
        _event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})
        for text in text_deltas(deltas)
    ]
    stop = {"stop_reason": "end_turn", "stop_sequence": None}
    closing = [
        _event("content_block_stop", index=0),
        _event("message_delta", delta=stop, usage={"output_tokens": deltas}),
        _event("message_stop"),
    ]
    return event_content(opening, parts, closing)


def error_json(status: int, message: str) -> dict[str, Any]:
    """An error's body."""
    return {"type": "error", "error": {"type": _ERROR_TYPES.get(status, "api_error"), "message": message}}


def answer_headers(faults: Faults, number: int) -> dict[str, str]:
    """The request id, and the rate limits asked for."""
    headers = {"request-id": f"req_{number}"}
    reset = datetime.now(UTC) + timedelta(seconds=faults.ratelimit_reset_s)
    limits = [("requests", faults.ratelimit_requests)]
    limits += [(kind, faults.ratelimit_tokens) for kind in ("tokens", "input-tokens", "output-tokens")]
    for kind, limit in limits:
        if limit is not None:
            headers[f"anthropic-ratelimit-{kind}-limit"] = str(limit.limit)
            headers[f"anthropic-ratelimit-{kind}-remaining"] = str(limit.remaining)
            headers[f"anthropic-ratelimit-{kind}-reset"] = reset.strftime("%Y-%m-%dT%H:%M:%SZ")
    return headers


def _message(request: dict[str, Any], number: int, output_tokens: int) -> dict[str, Any]:
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": request["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": INPUT_TOKENS, "output_tokens": output_tokens},
    }


def _event(name: str, **fields: Any) -> bytes:
    return encode_event({"type": name, **fields}, name)
