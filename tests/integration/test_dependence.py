"""Which call needs which, from what their bodies show, over real connections; the host notices nothing."""

import asyncio
import gzip
import json
import os
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import mock_server
import occupancy
from occupancy.analysis.findings import Cause
from occupancy.instrumentation import evidence
from occupancy.reading import read

ROOT = Path(__file__).parents[2]
SECRET = "doc-48213-secret"
ENCODERS = {"gzip": gzip.compress, "deflate": zlib.compress, "identity": bytes}


class Pages(BaseHTTPRequestHandler):
    """A model that plans, a search that finds a page, and the page."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        encoding = self.headers.get("x-encoding", "identity")
        answers = {"search": {"results": [{"id": SECRET, "title": "how agents wait"}]}, "plan": {"text": "search"}}
        step = self.path.strip("/").partition("/")[0].partition("?")[0]
        body = json.dumps(answers.get(step, {"text": f"of {step}"})).encode()
        if step == "search" and "x-stream" in self.headers:
            body = b"".join(
                b'data: {"delta": "%s"}\n\n' % SECRET[place : place + 4].encode() for place in (0, 4, 8, 12)
            )
        body = ENCODERS[encoding](body)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if "x-stream" in self.headers else "application/json")
        if encoding != "identity":
            self.send_header("content-encoding", encoding)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in (body[:7], body[7:], b""):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()


@pytest.fixture(scope="module")
def pages() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def dependent_chain(stack: Any, url: str, headers: dict[str, str]) -> Any:
    """The page is fetched by what the search has found; another tool needs nothing of both."""
    async with stack.opened(stack.client(base_url=url, headers=headers)) as client:

        async def post(path: str, **body: str) -> Any:
            return (await stack.done(client.post(path, json=body))).content

        plan = await post("/plan", goal="why do agents wait")
        async with stack.opened(client.stream("GET", "/search", params={"q": "agents"})) as response:
            found = b"".join([chunk async for chunk in stack.pieces(response, "bytes")])
        with occupancy.label("fetch"):
            page = await post("/fetch", id=SECRET)
        with occupancy.label("weather"):
            other = await post("/weather", city="Paris")
        return plan, found, page, other


@pytest.mark.parametrize(
    "headers",
    [
        {"x-encoding": "identity"}, {"x-encoding": "gzip"}, {"x-encoding": "deflate"}, {"x-stream": "1"},
        {"x-stream": "1", "x-encoding": "gzip"},
    ],
    ids=lambda headers: " ".join(headers.values()),
)  # fmt: skip
def test_what_a_request_repeats_it_needs(
    stack: Any, pages: str, headers: dict[str, str], compare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCCUPANCY_DEPENDENCE", "1")
    seen, log = compare(stack, dependent_chain, pages, headers)
    assert seen.error is None
    plan, search, fetch, weather = log.calls
    assert [call.needs for call in (plan, search, fetch, weather)] == [0, 0, search.logical_id, 0]


@pytest.mark.parametrize("headers", [{}, {"x-encoding": "gzip"}, {"x-stream": "1"}], ids=str)
def test_clients_on_http_client_are_looked_at(blocking: Any, pages: str, headers: dict[str, str]) -> None:
    def ask(method: str, target: str, body: bytes | None = None) -> bytes:
        return bytes(client.read(client.send(method, pages + target, body, headers)))

    with occupancy.record(dependence=True) as log, blocking.client() as client:
        ask("POST", "/plan", b'{"goal": "why do agents wait"}')
        ask("GET", "/search?q=agents")
        ask("POST", "/fetch", json.dumps({"id": SECRET}).encode())
        ask("GET", f"/fetch/{SECRET}")
        ask("POST", "/weather", b'{"city": "Paris"}')
    search = log.calls[1].logical_id
    assert [call.needs for call in log.calls] == [0, 0, search, search, 0]


@pytest.mark.parametrize("headers", [{}, {"x-stream": "1"}], ids=str)
def test_aiohttp_is_looked_at(fresh: None, pages: str, headers: dict[str, str]) -> None:
    async def main() -> None:
        async with aiohttp.ClientSession(headers=headers) as session:
            for method, target, body in (
                ("POST", "/plan", {"goal": "why do agents wait"}),
                ("GET", "/search?q=agents", None),
                ("POST", "/fetch", {"id": SECRET}),
                ("GET", f"/fetch/{SECRET}", None),
                ("POST", "/weather", {"city": "Paris"}),
            ):
                async with session.request(method, pages + target, json=body) as response:
                    await response.read()

    with occupancy.record(dependence=True) as log:
        asyncio.run(main())
    search = log.calls[1].logical_id
    assert [call.needs for call in log.calls] == [0, 0, search, search, 0]


def test_switched_off_nobody_looks(make_stack: Callable[[str, str], Any], pages: str) -> None:
    stack = make_stack("httpx2", "sync")
    with occupancy.record() as log:
        stack.run(dependent_chain, stack, pages, {})
    assert [call.needs for call in log.calls] == [None] * 4


def test_once_asked_for_it_goes_on_until_nothing_records(fresh: None) -> None:
    with occupancy.record():
        assert evidence._memory is None
        with occupancy.record(dependence=True):
            memory = evidence._memory
            assert memory is not None
            with occupancy.record():  # one that does not ask takes nothing from one that has
                assert evidence._memory is memory
        assert evidence._memory is memory
    assert evidence._memory is None


def test_a_mock_transport_is_looked_into_as_well(make_stack: Callable[[str, str], Any]) -> None:
    stack = make_stack("httpx", "asyncio")

    async def ask_mock() -> None:
        def answer(request: Any) -> Any:
            async def parts() -> Any:
                yield SECRET.encode()

            return stack.library.Response(200, content=parts())

        async with stack.client(transport=stack.library.MockTransport(answer)) as client:
            await client.get("http://mock/search")
            await client.get(f"http://mock/{SECRET}")

    with occupancy.record(dependence=True) as log:
        stack.run(ask_mock)
    search, fetch = log.calls
    assert fetch.needs == search.logical_id


PROGRAM = """
import os, httpx2, occupancy.auto

client = httpx2.Client(base_url=os.environ["PAGES"])

def agent():
    with occupancy.label("plan"):
        client.post("/v1/chat/completions", json={"model": "m", "messages": ["why do agents wait"]})
    with occupancy.label("tool_search"):
        found = client.get("/search").json()["results"][0]["id"]
    with occupancy.label("tool_fetch"):
        client.get("/docs/" + found)

agent()
"""


def run(program: str, folder: Path, **environ: str) -> str:
    file = folder / "agent.py"
    file.write_text(program)
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    command = [sys.executable, str(file)]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=50, check=True)
    return " ".join(done.stderr.split())


def test_a_dependent_chain_without_a_declaration_is_told(tmp_path: Path, pages: str) -> None:
    told = run(PROGRAM, tmp_path, PAGES=pages)
    assert "if neither needs the other" in told
    assert "to look for needs first: OCCUPANCY_DEPENDENCE=1" in told
    told = run(PROGRAM, tmp_path, PAGES=pages, OCCUPANCY_DEPENDENCE="1", OCCUPANCY_JOURNAL="calls.jsonl")
    assert "tool_fetch needs tool_search, as requests show; each other may need the one before" in told
    assert "overlapped, about" not in told
    assert SECRET not in (tmp_path / "calls.jsonl").read_text().replace(f'"path":"/docs/{SECRET}"', "")
    log = read(tmp_path / "calls.jsonl")
    [finding] = log.diagnose().findings
    assert (finding.cause, finding.numbers["shown_needs"]) == (Cause.SERIAL, 1)


def test_tools_that_show_no_need_of_each_other_say_so(gateway: mock_server.GatewayUrl, tmp_path: Path) -> None:
    program = PROGRAM.replace('"/search").json()["results"][0]["id"]', '"/generate/tool_search").json()["step"]')
    program = program.replace('"/docs/" + found', '"/generate/tool_fetch"')
    told = run(program, tmp_path, PAGES=gateway, OCCUPANCY_DEPENDENCE="1")
    assert "neither request shows a need of the other" in told
    assert "OCCUPANCY_DEPENDENCE" not in told
