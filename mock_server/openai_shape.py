"""Answers in the shape of OpenAI's API, but for the Responses API, which has a module of its own."""

import base64
import struct
import time
from typing import Any

from mock_server.content import DEFAULT_DELTAS, Content, encode_event, event_content, text_deltas
from mock_server.faults import Faults

INPUT_TOKENS = 8
MODELS = ("mock-large", "mock-small")
# Exact as 32-bit floats, so that base64 gives the same numbers.
EMBEDDING = (0.25, -0.5, 0.75)
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def chat_json(request: dict[str, Any], number: int) -> dict[str, Any]:
    """A whole answer of `POST /v1/chat/completions`."""
    message = {"role": "assistant", "content": "".join(text_deltas(DEFAULT_DELTAS)), "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    head = _chat_head(request, number, "chat.completion")
    return {**head, "choices": [choice], "usage": _chat_usage(DEFAULT_DELTAS)}


def chat_events(request: dict[str, Any], number: int, deltas: int) -> Content:
    """A streamed answer of `POST /v1/chat/completions`: a role, the text, a finish, `[DONE]`."""
    options = request.get("stream_options")
    with_usage = isinstance(options, dict) and options.get("include_usage") is True
    head = _chat_head(request, number, "chat.completion.chunk") | ({"usage": None} if with_usage else {})

    def chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return encode_event({**head, "choices": [choice]})

    usage = [encode_event({**head, "choices": [], "usage": _chat_usage(deltas)})] if with_usage else []
    return event_content(
        [chunk({"role": "assistant", "content": ""})],
        [chunk({"content": text}) for text in text_deltas(deltas)],
        [chunk({}, "stop"), *usage, encode_event("[DONE]")],
    )


def embeddings_json(request: dict[str, Any], number: int) -> dict[str, Any]:
    """The answer of `POST /v1/embeddings`: the same vector for each input."""
    inputs = request.get("input", "")
    # A string or a list of token numbers is one input.
    count = len(inputs) if isinstance(inputs, list) and not all(isinstance(item, int) for item in inputs) else 1
    packed = base64.b64encode(struct.pack(f"<{len(EMBEDDING)}f", *EMBEDDING)).decode()
    vector = packed if request.get("encoding_format") == "base64" else list(EMBEDDING)
    return {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": vector} for index in range(count)],
        "model": request["model"],
        "usage": {"prompt_tokens": INPUT_TOKENS * count, "total_tokens": INPUT_TOKENS * count},
    }


def models_json() -> dict[str, Any]:
    """The answer of `GET /v1/models`, with the fields of both APIs, which share the path."""
    created = {"created": 0, "created_at": "1970-01-01T00:00:00Z"}
    kind = {"object": "model", "type": "model", "owned_by": "mock"}
    data = [{"id": name, "display_name": name, **kind, **created} for name in MODELS]
    return {"object": "list", "data": data, "first_id": MODELS[0], "last_id": MODELS[-1], "has_more": False}


def error_json(status: int, message: str) -> dict[str, Any]:
    """An error's body."""
    kind = _ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def answer_headers(faults: Faults, number: int) -> dict[str, str]:
    """The request id, and the rate limits asked for."""
    headers = {"x-request-id": f"req_{number}"}
    for kind, limit in (("requests", faults.ratelimit_requests), ("tokens", faults.ratelimit_tokens)):
        if limit is not None:
            headers[f"x-ratelimit-limit-{kind}"] = str(limit.limit)
            headers[f"x-ratelimit-remaining-{kind}"] = str(limit.remaining)
            headers[f"x-ratelimit-reset-{kind}"] = f"{faults.ratelimit_reset_s:g}s"
    return headers


def _chat_head(request: dict[str, Any], number: int, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{number}", "object": kind, "created": int(time.time()), "model": request["model"]}


def _chat_usage(output_tokens: int) -> dict[str, int]:
    total = INPUT_TOKENS + output_tokens
    return {"prompt_tokens": INPUT_TOKENS, "completion_tokens": output_tokens, "total_tokens": total}
