"""Clients of the mock server, and what a program asks it: for tests that run whole programs."""

import ssl
from typing import Any

import httpx2
import openai

TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
CHAT: dict[str, Any] = {"model": "mock", "messages": [{"role": "user", "content": "hello"}]}


def client(url: str, **options: Any) -> httpx2.Client:
    return httpx2.Client(base_url=url, verify=TLS, **options)


def async_client(url: str, **options: Any) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=url, verify=TLS, timeout=options.pop("timeout", 30), **options)


def sdk(url: str, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", http_client=async_client(url), **options)


def work(ms: float, **faults: Any) -> dict[str, str]:
    """Headers for a call of some ms."""
    return {"x-mock-delay-ms": str(ms)} | {
        f"x-mock-{name.replace('_', '-')}": str(text) for name, text in faults.items()
    }
