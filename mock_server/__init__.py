"""A local model gateway whose behaviour is known exactly, for demos and tests.

    with mock_server.serve() as url:          # a free loopback port, a thread of its own
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any")

`python -m mock_server --port 8377` runs it in the foreground; `mock_server.create_app()` is the ASGI application.
Requests overlap without limit, unless `limits` say otherwise, and no key is ever needed.

| endpoint | answers |
|---|---|
| `POST /v1/chat/completions` | OpenAI chat, JSON or events (`stream`, `stream_options.include_usage`) |
| `POST /v1/responses` | OpenAI responses, JSON or `response.*` events |
| `POST /v1/embeddings`, `GET /v1/models` | OpenAI JSON; the models also in Anthropic's fields |
| `POST /v1/messages` | Anthropic messages, JSON or events |
| `GET`, `POST /generate/{step}` | JSON after the step's delay: plan 200 ms, tool_search and tool_fetch 350, recap 200 |
| `GET /stats`, `POST /stats/reset` | what the server counted; see `mock_server.stats` |

Model endpoints wait `delay_ms` (an option of `serve` and `create_app`, `--delay-ms`) before they answer.

Limited capacity
----------------
With `limits=mock_server.Limits(capacity=2, service_s=0.5)` (`--capacity 2 --service 0.5`) the model endpoints share two
slots, first come, first served; `python -m mock_server --help` lists the further options: a bounded queue, a time-out,
cold starts, jitter, limits of requests and tokens per minute, time outside the slots, a prefix cache, drift. A request
is answered 429 (`retry-after`) or 504 in its API's own words. Event streams spread their pieces over the service time
unless `buffer` holds them back. A client that leaves frees its slot, unless the gateway is told to keep working.

Faults
------
Each is a request header, or a query parameter of the same name, which wins where both are given. A name not listed
here, or a value that does not fit, is answered with a 400 that names both.

| name | value | effect |
|---|---|---|
| `x-mock-delay-ms` | number >= 0 | wait before the headers, in place of the endpoint's own delay |
| `x-mock-body-delay-ms` | number >= 0 | wait between the headers and the first body byte |
| `x-mock-chunks` | 1 to 100000 | pieces of the body: text deltas of an event stream (4), parts of a JSON body (1) |
| `x-mock-chunk-gap-ms` | number >= 0 | wait between two pieces |
| `x-mock-ping` | 0 to 100000 | `: ping` comments before the first event, each a piece of its own; event streams only |
| `x-mock-status` | 2xx, 304, 4xx, 5xx | that status; from 400 with an error body; 204 and 304 without body |
| `x-mock-retry-after` | seconds, HTTP date | `retry-after` as given, on failures (status >= 400) |
| `x-mock-retry-after-ms` | number >= 0 | `retry-after-ms` as given, on failures |
| `x-mock-fail-first` | integer >= 0 | `status`, `hang`, `cut` (503 if none is named) meet the key's first N only |
| `x-mock-key` | text | the key that `x-mock-fail-first` counts by; counts last as long as the application |
| `x-mock-hang` | a place | stops there, and stays open until the client leaves or the server stops |
| `x-mock-cut` | a place | closes the connection there |
| `x-mock-redirect` | integer >= 0 | N redirects, at once; the other faults meet the last hop only |
| `x-mock-redirect-to` | /path | where the last redirect leads; the same path if none is named |
| `x-mock-redirect-status` | 301, 302, 303, 307, 308 | the redirects' status (307) |
| `x-mock-ratelimit-requests` | LIMIT/REMAINING | request limits, in the names of the endpoint's API |
| `x-mock-ratelimit-tokens` | LIMIT/REMAINING | token limits, in the names of the endpoint's API |
| `x-mock-ratelimit-reset-s` | number >= 0 | when those limits start anew, in seconds from now (1) |
| `x-mock-gzip` | 0, 1 | `content-encoding: gzip`, each piece readable as soon as it has arrived |
| `x-mock-framing` | length, chunked | `content-length` (JSON) or chunked (events, and bodies stopped at `after-body`) |

Places are `before-headers`, `before-body` (headers sent), `mid-body` (the first half of the pieces sent, rounded up; a
body of one piece is split in two) and `after-body` (all sent, with an event stream's last event, but not the body's
end). `hang` and `cut` need a real connection, as `serve` has: under an in-process ASGI transport a cut is an error.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mock_server.app import create_app
    from mock_server.gateway import Limits
    from mock_server.server import GatewayUrl, run, serve

__all__ = ["GatewayUrl", "Limits", "create_app", "run", "serve"]

_HOMES = {"GatewayUrl": "server", "Limits": "gateway", "create_app": "app", "run": "server", "serve": "server"}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that a missing extra is one clear error.

    Raises:
        ModuleNotFoundError: starlette or uvicorn is not installed; names the install command.
    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        missing = (error.name or __name__).partition(".")[0]
        if missing == __name__:
            raise
        message = f"mock_server needs {missing}, which is not installed: pip install 'occupancy[demo]'"
        raise ModuleNotFoundError(message, name=missing) from error
