"""What OpenTelemetry calls a model's operations and providers, by where requests go."""

import pytest
from opentelemetry.semconv._incubating.attributes.gen_ai_attributes import (
    GenAiOperationNameValues,
    GenAiProviderNameValues,
)

from occupancy.instrumentation import genai_names
from occupancy.instrumentation.genai_names import attributes_of


@pytest.mark.parametrize(
    ("host", "path", "operation", "provider"),
    [
        ("api.openai.com", "/v1/chat/completions", "chat", "openai"),
        ("api.openai.com", "/v1/responses", "chat", "openai"),
        ("api.openai.com", "/v1/completions", "text_completion", "openai"),
        ("api.anthropic.com", "/v1/messages", "chat", "anthropic"),
        ("mine.openai.azure.com", "/openai/deployments/x/chat/completions", "chat", "azure.ai.openai"),
        (
            "generativelanguage.googleapis.com",
            "/v1beta/models/m:streamGenerateContent",
            "generate_content",
            "gcp.gemini",
        ),
        ("europe-west1-aiplatform.googleapis.com", "/v1/x:generateContent", "generate_content", "gcp.vertex_ai"),
        ("bedrock-runtime.eu-west-1.amazonaws.com", "/model/m/converse-stream", "chat", "aws.bedrock"),
        ("api.x.ai", "/v1/chat/completions", "chat", "x_ai"),
        ("127.0.0.1:8000", "/generate/plan", None, None),
        ("notopenai.com", "/v1/chat/completions/x", None, None),
        ("api.openai.com.evil.example", "/", None, None),
        (None, None, None, None),
    ],
)
def test_names(host: str | None, path: str | None, operation: str | None, provider: str | None) -> None:
    found = attributes_of(host, path)
    assert (found.get("gen_ai.operation.name"), found.get("gen_ai.provider.name")) == (operation, provider)
    assert None not in found.values()


def test_all_are_names_of_the_conventions() -> None:
    assert {name for _, name in genai_names._OPERATIONS} <= {value.value for value in GenAiOperationNameValues}
    assert {name for _, name in genai_names._PROVIDERS} <= {value.value for value in GenAiProviderNameValues}
