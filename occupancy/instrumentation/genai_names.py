"""OpenTelemetry's names for what a model is asked and who runs it, told by where the request goes."""

import re

_OPERATIONS = (
    (re.compile(r"/(?:chat/completions|messages|responses|v\d+/chat|api/chat|converse(?:-stream)?)$"), "chat"),
    (re.compile(r"/completions?$"), "text_completion"),
    (re.compile(r":(?:stream)?generateContent$", re.IGNORECASE), "generate_content"),
)
_PROVIDERS = (
    (re.compile(r"(?:^|\.)openai\.azure\.com"), "azure.ai.openai"),
    (re.compile(r"(?:^|\.)openai\.com"), "openai"),
    (re.compile(r"(?:^|\.)anthropic\.com"), "anthropic"),
    (re.compile(r"^generativelanguage\.googleapis\.com"), "gcp.gemini"),
    (re.compile(r"(?:^|-)aiplatform\.googleapis\.com"), "gcp.vertex_ai"),
    (re.compile(r"^bedrock-runtime\..*\.amazonaws\.com"), "aws.bedrock"),
    (re.compile(r"(?:^|\.)mistral\.ai"), "mistral_ai"),
    (re.compile(r"(?:^|\.)cohere\.(?:com|ai)"), "cohere"),
    (re.compile(r"(?:^|\.)deepseek\.com"), "deepseek"),
    (re.compile(r"(?:^|\.)groq\.com"), "groq"),
    (re.compile(r"(?:^|\.)perplexity\.ai"), "perplexity"),
    (re.compile(r"(?:^|\.)x\.ai"), "x_ai"),
)


def attributes_of(host: str | None, path: str | None) -> dict[str, str | int]:
    """Give `gen_ai.operation.name` and `gen_ai.provider.name`, as far as they are known."""
    found: dict[str, str | int] = {}
    for name, text, table in (
        ("gen_ai.operation.name", path, _OPERATIONS),
        ("gen_ai.provider.name", host, _PROVIDERS),
    ):
        value = next((value for pattern, value in table if pattern.search(text or "")), None)
        if value is not None:
            found[name] = value
    return found
