"""The clients that sit on `http.client`, each under the same few names, so that one scenario runs with all."""

import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import botocore.awsrequest
import botocore.httpsession
import requests
import urllib3

Headers = dict[str, str]


class HttpClient:
    """`http.client` by hand."""

    name = "http.client"
    follows = False
    connect_error = "ConnectionRefusedError"

    def __init__(self, timeout_s: float | None = None) -> None:
        self.timeout_s = timeout_s
        self._connections: dict[str, http.client.HTTPConnection] = {}

    def send(self, method: str, url: str, body: bytes | None = None, headers: Headers | None = None) -> Any:
        """Send a request; the response's body is not read."""
        target = urlsplit(url)
        connection = self._connections.get(target.netloc)
        if connection is None:
            connection = self._connections[target.netloc] = http.client.HTTPConnection(
                target.netloc, timeout=self.timeout_s
            )
        connection.request(
            method, f"{target.path}?{target.query}" if target.query else target.path, body, headers or {}
        )
        return connection.getresponse()

    def raw(self, response: Any) -> Any:
        """The response that can be read piece by piece."""
        return response

    def status(self, response: Any) -> int:
        """The HTTP status."""
        return int(response.status)

    def read(self, response: Any) -> bytes:
        """All of the body."""
        return bytes(response.read())

    def pieces(self, response: Any) -> Iterator[bytes]:
        """The body as it comes."""
        while piece := response.read1(65536):
            yield piece

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Urllib(HttpClient):
    """`urllib.request`."""

    name = "urllib"
    follows = True

    def send(self, method: str, url: str, body: bytes | None = None, headers: Headers | None = None) -> Any:
        """An error's status gives a response too."""
        request = urllib.request.Request(url, body, headers or {}, method=method)
        options = {} if self.timeout_s is None else {"timeout": self.timeout_s}
        try:
            return urllib.request.urlopen(request, **options)
        except urllib.error.HTTPError as error:
            return error


class Urllib3(HttpClient):
    """urllib3."""

    name = "urllib3"
    follows = True
    connect_error = "NewConnectionError"

    def __init__(self, timeout_s: float | None = None, **options: Any) -> None:
        super().__init__(timeout_s)
        self.pools = urllib3.PoolManager(timeout=urllib3.Timeout(timeout_s), **{"retries": False, **options})

    def send(self, method: str, url: str, body: bytes | None = None, headers: Headers | None = None) -> Any:
        """Without reading the body, which is not the default."""
        retries = {"retries": urllib3.Retry(redirect=9)} if headers and "x-mock-redirect" in headers else {}
        return self.pools.request(method, url, body=body, headers=headers, preload_content=False, **retries)

    def read(self, response: Any) -> bytes:
        """All of the body, as its default reads it."""
        return bytes(response.data)

    def pieces(self, response: Any) -> Iterator[bytes]:
        """The body as it comes."""
        return iter(response.stream(65536)) if response.chunked else super().pieces(response)

    def close(self) -> None:
        """Close the connections."""
        self.pools.clear()


class OverUrllib3(HttpClient):
    """What has a response of its own around urllib3's."""

    connect_error = "NewConnectionError"

    def raw(self, response: Any) -> Any:
        """urllib3's response."""
        return response.raw

    def status(self, response: Any) -> int:
        """The HTTP status."""
        return int(response.status_code)

    def read(self, response: Any) -> bytes:
        """All of the body."""
        return bytes(response.content)


class Requests(OverUrllib3):
    """requests."""

    name = "requests"
    follows = True

    def __init__(self, timeout_s: float | None = None) -> None:
        super().__init__(timeout_s)
        self.session = requests.Session()
        self.session.trust_env = False

    def send(self, method: str, url: str, body: bytes | None = None, headers: Headers | None = None) -> Any:
        """Without reading the body, which is not the default."""
        return self.session.request(method, url, data=body, headers=headers, stream=True, timeout=self.timeout_s)

    def pieces(self, response: Any) -> Iterator[bytes]:
        """The body as it comes."""
        return iter(response.iter_content(None))

    def close(self) -> None:
        """Close the connections."""
        self.session.close()


class Botocore(OverUrllib3):
    """botocore's own session, below boto3."""

    name = "botocore"

    def __init__(self, timeout_s: float | None = None) -> None:
        super().__init__(timeout_s)
        self.session = botocore.httpsession.URLLib3Session(timeout=timeout_s)

    def send(self, method: str, url: str, body: bytes | None = None, headers: Headers | None = None) -> Any:
        """With a body that the program streams."""
        return self.session.send(
            botocore.awsrequest.AWSRequest(method, url, headers, body or b"", stream_output=True).prepare()
        )

    def pieces(self, response: Any) -> Iterator[bytes]:
        """The body as it comes."""
        return iter(response.raw.stream(65536))

    def close(self) -> None:
        """Close the connections."""
        self.session.close()


CLIENTS = {client.name: client for client in (HttpClient, Urllib, Urllib3, Requests, Botocore)}
