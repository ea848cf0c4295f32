"""Answers in the shape of OpenAI's Responses API."""

import time
from typing import Any

from mock_server.content import DEFAULT_DELTAS, Content, encode_event, event_content, text_deltas
from mock_server.openai_shape import INPUT_TOKENS


def response_json(request: dict[str, Any], number: int) -> dict[str, Any]:
    """A whole answer of `POST /v1/responses`."""
    text = "".join(text_deltas(DEFAULT_DELTAS))
    return _completed(_response(request, number), _item(number, text), DEFAULT_DELTAS)


def response_events(request: dict[str, Any], number: int, deltas: int) -> Content:
    """A streamed answer of `POST /v1/responses`: `response.created` to `response.completed`."""
    texts = text_deltas(deltas)
    text = "".join(texts)
    events = _Events()
    response, item = _response(request, number), _item(number, text)
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    opening = [
        events.encode("response.created", response=response),
        events.encode("response.in_progress", response=response),
        events.encode("response.output_item.added", output_index=0, item=_item(number, None)),
        events.encode("response.content_part.added", **place, part=_part("")),
    ]
    parts = [events.encode("response.output_text.delta", **place, delta=part, logprobs=[]) for part in texts]
    closing = [
        events.encode("response.output_text.done", **place, text=text, logprobs=[]),
        events.encode("response.content_part.done", **place, part=_part(text)),
        events.encode("response.output_item.done", output_index=0, item=item),
        events.encode("response.completed", response=_completed(response, item, deltas)),
    ]
    return event_content(opening, parts, closing)


class _Events:
    """Numbers the events of one stream, from 0."""

    def __init__(self) -> None:
        self._next = 0

    def encode(self, name: str, **fields: Any) -> bytes:
        event = {"type": name, "sequence_number": self._next, **fields}
        self._next += 1
        return encode_event(event, name)


def _response(request: dict[str, Any], number: int) -> dict[str, Any]:
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": request["model"],
        "output": [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": None,
    }


def _completed(response: dict[str, Any], item: dict[str, Any], output_tokens: int) -> dict[str, Any]:
    usage = {
        "input_tokens": INPUT_TOKENS,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": INPUT_TOKENS + output_tokens,
    }
    return {**response, "status": "completed", "output": [item], "usage": usage}


def _item(number: int, text: str | None) -> dict[str, Any]:
    """The answer's one message; `text` None: not written yet."""
    status = "in_progress" if text is None else "completed"
    content = [] if text is None else [_part(text)]
    return {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": status, "content": content}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
