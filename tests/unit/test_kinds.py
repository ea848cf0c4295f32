"""What a call is for, told by where it goes."""

import re

import pytest

from occupancy.call import Kind
from occupancy.kinds import kind_of


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/chat/completions", Kind.GENERATE),
        ("/openai/deployments/gpt/chat/completions", Kind.GENERATE),
        ("/v1/responses", Kind.GENERATE),
        ("/v1/messages", Kind.GENERATE),
        ("/v1/embeddings", Kind.GENERATE),
        ("/v1beta/models/gemini:streamGenerateContent", Kind.GENERATE),
        ("/model/claude/invoke-with-response-stream", Kind.GENERATE),
        ("/api/generate", Kind.GENERATE),
        ("/api/chat", Kind.GENERATE),
        ("/generate/plan", Kind.GENERATE),
        ("/v1/messages/count_tokens", Kind.TOOL),
        ("/v1/models", Kind.TOOL),
        ("/search", Kind.TOOL),
        ("/", Kind.TOOL),
        ("/v1/traces/ingest", Kind.OTHER),
        ("/v1/traces", Kind.OTHER),
        ("/api/public/otel/v1/traces", Kind.OTHER),
        ("/runs/batch", Kind.OTHER),
        ("/api/42/envelope/", Kind.OTHER),
    ],
)
def test_kind_by_path(path: str, kind: Kind) -> None:
    assert kind_of("api.example.com", path) is kind


@pytest.mark.parametrize("host", ["cloud.langfuse.com", "api.smith.langchain.com", "eu.posthog.com:443"])
def test_kind_by_host(host: str) -> None:
    assert kind_of(host, "/any") is Kind.OTHER
    assert kind_of(f"{host}.example.com", "/any") is Kind.TOOL


def test_kind_by_exclusion() -> None:
    exclude = (re.compile(r"^tool\.local/health"),)
    assert kind_of("tool.local", "/health", exclude) is Kind.OTHER
    assert kind_of("tool.local", "/search", exclude) is Kind.TOOL
