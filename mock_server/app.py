"""The gateway as an ASGI application: its endpoints, and how a request becomes an answer."""

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mock_server import anthropic_shape, openai_shape, responses_shape
from mock_server.admission import Desk, Queued
from mock_server.content import DEFAULT_DELTAS, Content, json_content
from mock_server.faults import PREFIX, FaultError, Faults, parse_faults
from mock_server.gateway import Limits
from mock_server.reply import Reply
from mock_server.stats import CountInFlight, Stats

DEFAULT_DELAY_MS = 20.0
STEP_DELAYS_MS = {"plan": 200.0, "tool_search": 350.0, "tool_fetch": 350.0, "recap": 200.0}

TOKENS = openai_shape.INPUT_TOKENS + DEFAULT_DELTAS
"""What a request counts against a limit of tokens per minute."""
PROMPT_CHARS = 64
"""Prompts that begin alike for so long are one to the prefix cache."""

Answer = Reply | Response | Queued
Endpoint = Callable[[Request], Any]


class RequestError(ValueError):
    """A request that the endpoint cannot answer; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Shape:
    """How one API writes its errors and headers."""

    error_json: Callable[[int, str], dict[str, Any]]
    answer_headers: Callable[[Faults, int], dict[str, str]]


OPENAI = Shape(openai_shape.error_json, openai_shape.answer_headers)
ANTHROPIC = Shape(anthropic_shape.error_json, anthropic_shape.answer_headers)


def create_app(*, delay_ms: float = DEFAULT_DELAY_MS, limits: Limits | None = None) -> Starlette:
    """A gateway with counts of its own, in `app.state.stats`.

    Args:
        delay_ms: wait of the model endpoints before their headers, in ms.
        limits: what the model endpoints can take together, in place of `delay_ms`; needs an asyncio event loop.

    Raises:
        ValueError: `delay_ms` is negative or no number.
    """
    if not 0 <= delay_ms < float("inf"):
        raise ValueError(f"delay_ms must be a number >= 0, got {delay_ms!r}")
    gateway = Gateway(delay_ms, limits)
    app = Starlette(routes=gateway.routes(), middleware=[Middleware(CountInFlight, stats=gateway.stats)])
    app.state.stats = gateway.stats
    return app


class Gateway:
    """The state of one application, and its endpoints.

    Every answer leaves through `_answer`, with the delay that its service takes; where capacity is limited, model
    endpoints wait for a slot first.
    """

    def __init__(self, delay_ms: float, limits: Limits | None = None) -> None:
        self.stats = Stats()
        self._delay_ms = delay_ms
        self._desk = None if limits is None else Desk(limits)
        self._numbers = itertools.count(1)
        self._failed: dict[str, int] = {}

    def routes(self) -> list[Route]:
        """The endpoints."""
        chat = self._model(OPENAI, openai_shape.chat_json, openai_shape.chat_events)
        responses = self._model(OPENAI, responses_shape.response_json, responses_shape.response_events)
        messages = self._model(ANTHROPIC, anthropic_shape.message_json, anthropic_shape.message_events)
        embeddings = self._model(OPENAI, openai_shape.embeddings_json)
        return [
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/responses", responses, methods=["POST"]),
            Route("/v1/messages", messages, methods=["POST"]),
            Route("/v1/embeddings", embeddings, methods=["POST"]),
            Route("/v1/models", self._models, methods=["GET"]),
            Route("/generate/{step}", self._generate, methods=["GET", "POST"]),
            Route("/stats", self._read_stats, methods=["GET"]),
            Route("/stats/reset", self._reset_stats, methods=["POST"]),
        ]

    def _model(
        self,
        shape: Shape,
        whole: Callable[[dict[str, Any], int], dict[str, Any]],
        events: Callable[[dict[str, Any], int, int], Content] | None = None,
    ) -> Endpoint:
        async def endpoint(request: Request) -> Answer:
            body = await request.body()

            def content(faults: Faults, number: int) -> Content:
                asked = _read_json(body)
                if asked.get("stream") is True and events is not None:
                    return events(asked, number, faults.chunks or DEFAULT_DELTAS)
                return json_content(whole(asked, number), faults.chunks or 1)

            answer = self._answer(request, shape, content, self._delay_ms)
            return self._queue(answer, shape, body) if isinstance(answer, Reply) else answer

        return endpoint

    async def _models(self, request: Request) -> Answer:
        shape = ANTHROPIC if "anthropic-version" in request.headers else OPENAI

        def content(faults: Faults, number: int) -> Content:
            return json_content(openai_shape.models_json(), faults.chunks or 1)

        return self._answer(request, shape, content, self._delay_ms)

    async def _generate(self, request: Request) -> Answer:
        step = request.path_params["step"]
        step_ms = STEP_DELAYS_MS.get(step)

        def content(faults: Faults, number: int) -> Content:
            delay_ms = step_ms if faults.delay_ms is None else faults.delay_ms
            if delay_ms is None:
                known = ", ".join(STEP_DELAYS_MS)
                raise RequestError(404, f"unknown step {step!r}; known are {known}, any other needs {PREFIX}delay-ms")
            return json_content({"step": step, "delay_ms": delay_ms, "text": f"{step} done"}, faults.chunks or 1)

        return self._answer(request, OPENAI, content, step_ms or 0.0)

    async def _read_stats(self, request: Request) -> Response:
        return JSONResponse(self.stats.snapshot())

    async def _reset_stats(self, request: Request) -> Response:
        self.stats.reset()
        return JSONResponse(self.stats.snapshot())

    def _answer(
        self, request: Request, shape: Shape, make_content: Callable[[Faults, int], Content], delay_ms: float
    ) -> Answer:
        try:
            faults = parse_faults(request.headers.items(), request.query_params.items())
            if faults.redirect:
                return _redirect(request, faults)
            number = next(self._numbers)
            faults = self._after_failures(faults)
            status = faults.status or 200
            if status >= 400:
                content = json_content(shape.error_json(status, f"status {status}, as asked for"), faults.chunks or 1)
            else:
                content = make_content(faults, number)
        except FaultError as error:
            return JSONResponse(shape.error_json(400, str(error)), 400)
        except RequestError as error:
            return JSONResponse(shape.error_json(error.status, str(error)), error.status)
        headers = {**shape.answer_headers(faults, number), **_retry_headers(faults)}
        return Reply(content, faults, status=status, headers=headers, delay_ms=delay_ms)

    def _queue(self, reply: Reply, shape: Shape, body: bytes) -> Answer:
        """Let an answer wait for a slot, where capacity is limited."""
        if self._desk is None:
            return reply
        buffer = self._desk.line.limits.buffer

        def refuse(status: int, message: str, headers: Mapping[str, str]) -> Response:
            return JSONResponse(shape.error_json(status, message), status, dict(headers))

        return Queued(self._desk, lambda ms: reply.taking(ms, spread=not buffer), refuse, TOKENS, _prompt(body))

    def _after_failures(self, faults: Faults) -> Faults:
        """The faults of this request, once `x-mock-fail-first` has been counted."""
        if faults.fail_first is None or faults.key is None:
            return faults
        failed = self._failed.get(faults.key, 0)
        if failed >= faults.fail_first:
            return faults.without_failure()
        self._failed[faults.key] = failed + 1
        return faults if faults.fails else faults.with_status(503)


def _read_json(body: bytes) -> dict[str, Any]:
    try:
        asked = json.loads(body)
    except ValueError as error:
        raise RequestError(400, f"the body is not JSON: {error}") from None
    if not isinstance(asked, dict):
        raise RequestError(400, f"the body must be a JSON object, got {type(asked).__name__}")
    return {"model": "mock", **asked}


def _prompt(body: bytes) -> str | None:
    """The beginning of what the model is asked."""
    asked = _read_json(body)
    return json.dumps(asked.get("messages", asked.get("input")))[:PROMPT_CHARS]


def _redirect(request: Request, faults: Faults) -> Response:
    """One hop; the query carries the number of those left, since clients repeat their headers on each hop."""
    count = f"{PREFIX}redirect"
    query = [(name, text) for name, text in request.query_params.multi_items() if name.lower() != count]
    query.append((count, str(faults.redirect - 1)))
    path = faults.redirect_to if faults.redirect == 1 and faults.redirect_to else request.url.path
    return Response(status_code=faults.redirect_status, headers={"location": f"{quote(path)}?{urlencode(query)}"})


def _retry_headers(faults: Faults) -> Mapping[str, str]:
    if faults.status is None or faults.status < 400:
        return {}
    headers = {"retry-after": faults.retry_after, "retry-after-ms": faults.retry_after_ms}
    return {name: text for name, text in headers.items() if text is not None}
