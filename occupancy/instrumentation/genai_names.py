"""OpenTelemetry's names for what a model is asked and who runs it, told by where the request goes."""

import re

_OPERATIONS = (
    (re.compile(r"/(?:chat/completions|messages|responses|v\d+/chat|api/chat|converse(?:-stream)?)$"), "chat"),
    (re.compile(r"/completions?$"), "text_completion"),
    (re.compile(r":(?:stream)?generateContent$", re.IGNORECASE), "generate_content"),
)
_DOMAINS = {
    r"openai\.azure\.com": "azure.ai.openai",
    r"openai\.com": "openai",
    r"anthropic\.com": "anthropic",
    r"generativelanguage\.googleapis\.com": "gcp.gemini",
    r"(?:[\w-]+-)?aiplatform\.googleapis\.com": "gcp.vertex_ai",
    r"bedrock-runtime\.[\w-]+\.amazonaws\.com": "aws.bedrock",
    r"mistral\.ai": "mistral_ai",
    r"cohere\.(?:com|ai)": "cohere",
    r"deepseek\.com": "deepseek",
    r"groq\.com": "groq",
    r"perplexity\.ai": "perplexity",
    r"x\.ai": "x_ai",
}
_PROVIDERS = tuple((re.compile(rf"(?:^|\.){domain}(?::\d+)?$"), name) for domain, name in _DOMAINS.items())


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
