"""What a probe asks, how it reads answers, and that it shows no secret."""

import json
from typing import Any

import pytest

from occupancy.analysis.samples import Ending
from occupancy.errors import InputError
from occupancy.probe.client import Answer, classify, describe, ending_of, retry_after
from occupancy.probe.target import Api, Target, read_request, without_secrets

KEY = "sk-secret-0123"


def target(url: str = "http://127.0.0.1:1", **more: Any) -> Target:
    return Target(**{"url": url, "model": "m", **more})


@pytest.mark.parametrize(
    ("url", "api", "full"),
    [
        ("http://h", Api.OPENAI, "http://h/v1/chat/completions"),
        ("http://h/", Api.OPENAI, "http://h/v1/chat/completions"),
        ("http://h/v1/", Api.OPENAI, "http://h/v1/chat/completions"),
        ("http://h/api/v4", Api.OPENAI, "http://h/api/v4/chat/completions"),
        ("http://h/v1/chat/completions?a=1", Api.OPENAI, "http://h/v1/chat/completions?a=1"),
        ("http://h/proxy", Api.OPENAI, "http://h/proxy/v1/chat/completions"),
        ("http://h", Api.ANTHROPIC, "http://h/v1/messages"),
        ("http://h/x", Api.PLAIN, "http://h/x"),
    ],
)
def test_a_base_gets_the_path_of_its_api(url: str, api: Api, full: str) -> None:
    assert target(url, api=api).full_url == full


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        ("127.0.0.1", True), ("127.8.9.1", True), ("localhost", True), ("[::1]", True),
        ("127.0.0.1.example.com", False), ("localhost.example.com", False), ("10.0.0.1", False), ("0.0.0.0", False),
    ],
)  # fmt: skip
def test_what_is_on_this_machine(host: str, is_loopback: bool) -> None:
    assert target(f"http://{host}:1").is_loopback == is_loopback


def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert "authorization" not in target().request_headers()
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert target().request_headers()["authorization"] == f"Bearer {KEY}"
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    assert target(api=Api.ANTHROPIC).request_headers()["x-api-key"] == KEY
    monkeypatch.setenv("MINE", KEY + "4")
    assert target(key_env="MINE").request_headers()["authorization"] == f"Bearer {KEY}4"
    plain = target(api=Api.PLAIN, headers=(("X-Key", "a ${MINE}"),))
    assert plain.request_headers()["x-key"] == f"a {KEY}4"
    with pytest.raises(InputError, match="NOT_SET_1"):
        target(headers=(("a", "${NOT_SET_1}"),)).request_headers()


def test_secrets_are_scrubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    secret = target("http://user:pass-word@h/v1?token=abcdef")
    assert secret.scrub(f"Bearer {KEY}, {KEY}, pass-word, token=abcdef") == "***, ***, ***, ***"
    assert secret.shown_url == "http://h/v1/chat/completions"
    assert without_secrets("https://a:b@h:1/p?q#f") == "https://h:1/p"


def test_each_prompt_begins_differently_unless_told_not_to() -> None:
    texts = [json.loads(target().request_body())["messages"][0]["content"] for _ in range(2)]
    assert texts[0] != texts[1]
    assert all(text.endswith("Return the single word ok.") for text in texts)
    same = [target(nonce=False).request_body() for _ in range(2)]
    assert same[0] == same[1]
    plain = target(api=Api.PLAIN, body={"a": ["{nonce}", 1]})
    assert plain.request_body() != plain.request_body()
    assert target(api=Api.PLAIN).request_body() == b""


def test_streams_are_asked_for_with_their_usage() -> None:
    assert json.loads(target(stream=True).request_body())["stream_options"] == {"include_usage": True}
    assert "stream_options" not in json.loads(target(stream=True, api=Api.ANTHROPIC).request_body())


@pytest.mark.parametrize(
    ("more", "content_type", "body", "fault"),
    [
        ({}, "application/json", b'{"choices": []}', None),
        ({}, "application/json", b'{"error": 1}', "the answer has no 'choices'"),
        ({}, "application/json", b"[1]", "answered application/json, not a JSON object"),
        ({}, "", b"", "answered no content type, not a JSON object"),
        ({}, "text/html", b"x", "answered HTML, not JSON: is this the API's URL?"),
        ({}, "text/plain", b" <!DOCTYPE html>", "answered HTML, not JSON: is this the API's URL?"),
        ({"stream": True}, "", b"data: {}\n\ndata: [DONE]\n\n", None),
        ({"stream": True}, "", b'data: {"a": "data: [DONE]"}\n', "the event stream ended before its last event"),
        ({"stream": True, "api": Api.ANTHROPIC}, "", b"event: message_stop\ndata: {}\n\n", None),
        ({"api": Api.PLAIN}, "text/html", b"<html>", None),
    ],
)
def test_what_makes_an_answer_usable(more: dict[str, Any], content_type: str, body: bytes, fault: str | None) -> None:
    assert target(**more).fault_of(content_type, body) == fault


def test_tokens_are_read_in_the_words_of_each_api() -> None:
    assert target().tokens_of(b'{"usage": {"prompt_tokens": 8, "completion_tokens": 4}}') == (8, 4)
    assert target().tokens_of(b'{"input_tokens": 8, "output_tokens": 1}\n{"output_tokens": 4}') == (8, 4)
    assert target().tokens_of(b"{}") == (None, None)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x", "JSON object"),
        ("{}", "needs a url"),
        ('{"url": "http://h", "body": 1}', "no 'body'"),
        ('{"url": "http://h", "headers": {"a": 1}}', "object of strings"),
    ],
)
def test_bad_request_files_are_told(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        read_request(text)


def test_request_files() -> None:
    assert read_request('{"url": "http://h"}')["method"] == "GET"
    read = read_request('{"url": "http://h", "headers": {"a": "b"}, "json": 1}')
    assert (read["method"], read["headers"], read["body"]) == ("POST", (("a", "b"),), 1)


# Answers of any client


class StatusError(Exception):
    def __init__(self, status_code: int, headers: dict[str, str] | None = None) -> None:
        super().__init__("refused\nby the server")
        self.response = type("Response", (), {"status_code": status_code, "headers": headers or {}})()


class ReadTimeout(Exception):  # noqa: N818 - named as clients name it
    pass


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (StatusError(429, {"retry-after": "3"}), Ending.REFUSED),
        (StatusError(504), Ending.TIMEOUT),
        (StatusError(500), Ending.HTTP_ERROR),
        (ReadTimeout(), Ending.TIMEOUT),
        (TimeoutError(), Ending.TIMEOUT),
        (ValueError("x"), Ending.ERROR),
    ],
)
def test_exceptions_are_classed(error: Exception, ending: Ending) -> None:
    assert classify(error)[0] is ending


def test_an_exception_becomes_one_short_line() -> None:
    answer = classify(StatusError(429, {"retry-after": "3"}))[1]
    assert (answer.error, answer.retry_after_s) == ("StatusError: refused by the server", 3.0)
    assert len(describe(ValueError("x" * 1000))) == 200
    assert describe(ValueError()) == "ValueError"


@pytest.mark.parametrize(
    ("headers", "expected_s"),
    [
        ({"retry-after": "2"}, 2.0), ({"retry-after": "9", "retry-after-ms": "1500"}, 1.5), ({}, None),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, None), ({"retry-after": "-1"}, None),
        ({"retry-after": "inf"}, None),
    ],
)  # fmt: skip
def test_what_the_server_asks_to_wait(headers: dict[str, str], expected_s: float | None) -> None:
    assert retry_after(headers) == expected_s


@pytest.mark.parametrize(
    ("answer", "ending"),
    [
        (Answer(), Ending.OK), (Answer(status=200), Ending.OK), (Answer(status=200, error="HTML"), Ending.ERROR),
        (Answer(status=307, error="redirect"), Ending.HTTP_ERROR), (Answer(status=408), Ending.TIMEOUT),
    ],
)  # fmt: skip
def test_answers_are_classed(answer: Answer, ending: Ending) -> None:
    assert ending_of(answer) is ending
