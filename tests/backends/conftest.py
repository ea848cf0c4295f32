"""Real backends. These tests run where their folder is named, in an environment of their own: `make test-backends`."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

READY_S = 120
"""How long a server may take to start."""


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def phoenix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Phoenix server's URL; its project is what a resource's `openinference.project.name` says."""
    folder, port = tmp_path_factory.mktemp("phoenix"), free_port()
    settings = {
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    command = [str(Path(sys.executable).with_name("phoenix")), "serve"]
    with running(command, f"http://127.0.0.1:{port}/healthz", folder / "phoenix.log", settings):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def ports() -> list[int]:
    """Two ports that nobody listens on now."""
    return [free_port(), free_port()]


@pytest.fixture
def prometheus(tmp_path: Path, ports: list[int]) -> Iterator[str]:
    """The URL of a Prometheus server that scrapes both ports; `PROMETHEUS` names another executable."""
    executable = os.environ.get("PROMETHEUS") or shutil.which("prometheus")
    assert executable, "no prometheus on the path; set PROMETHEUS to an executable"
    targets, port = [f"127.0.0.1:{port}" for port in ports], free_port()
    config = {
        "global": {"scrape_interval": "500ms"},
        "scrape_configs": [{"job_name": "agents", "static_configs": [{"targets": targets}]}],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    command = [
        executable,
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with running(command, f"http://127.0.0.1:{port}/-/ready", tmp_path / "prometheus.log"):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def running(command: list[str], ready: str, told: Path, settings: Mapping[str, str] | None = None) -> Iterator[None]:
    """Run a server, from when a URL of it answers; what it says goes to a file."""
    with told.open("wb") as log:
        server = subprocess.Popen(command, env={**os.environ, **(settings or {})}, stdout=log, stderr=log)
    try:
        await_ready(ready, server, told)
        yield
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def await_ready(url: str, server: "subprocess.Popen[bytes]", told: Path) -> None:
    """Wait until a URL answers 200; fail with what the server said where it does not."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.2)
    pytest.fail(f"{url} does not answer:\n{told.read_text(errors='replace')[-4000:]}")
