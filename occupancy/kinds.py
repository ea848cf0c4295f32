"""What a call is for, told by where it goes: a model, a tool, or telemetry."""

import functools
import re

from occupancy.call import Kind

_GENERATE = re.compile(
    r"/(?:chat/completions|completions?|responses|messages|embeddings?|embed|rerank|images/generations"
    r"|audio/(?:speech|transcriptions)|v\d+/chat|api/chat|invoke|invoke-with-response-stream|converse|converse-stream)$"
    r"|/(?:api/)?generate(?:_stream)?(?:/(?!tool)|$)"  # a step below it that is named as a tool is one
    r"|:(?:generateContent|streamGenerateContent|embedContent|batchEmbedContents|predict|rawPredict|streamRawPredict)$"
)
TELEMETRY_PATH = re.compile(
    r"/traces/ingest$|/api/public/(?:ingestion|otel/)|/runs/(?:batch|multipart)$|/v1/(?:traces|metrics|logs)$"
    r"|/api/\d+/(?:envelope|store)/?$"
)
TELEMETRY_HOST = re.compile(
    r"(?:^|\.)(?:smith\.langchain\.com|langfuse\.com|posthog\.com|ingest\.sentry\.io|ingest\.us\.sentry\.io"
    r"|datadoghq\.com|honeycomb\.io|logfire-(?:us|eu|api)\.pydantic\.dev)(?::\d+)?$"
)


@functools.lru_cache(maxsize=1024)  # a program asks few targets, each many times
def kind_of(host: str, path: str, exclude: tuple[re.Pattern[str], ...] = ()) -> Kind:
    """What a call to `host` and `path` is for; `exclude` is searched in both, joined."""
    if any(pattern.search(host + path) for pattern in exclude):
        return Kind.OTHER
    if TELEMETRY_PATH.search(path) or TELEMETRY_HOST.search(host):
        return Kind.OTHER
    return Kind.GENERATE if _GENERATE.search(path) else Kind.TOOL
