"""An agent whose metrics are scraped: `scraped_agent.py PORT`. One call, then three at once, until its input ends.

Its input's first line ends the work; it goes on to answer scrapes until its input ends too.
"""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
from opentelemetry import metrics
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import start_http_server

import mock_server
import occupancy

LONGEST_S = 120
DELAY = {"x-mock-delay-ms": "150"}

metrics.set_meter_provider(MeterProvider([PrometheusMetricReader()]))
start_http_server(int(sys.argv[1]), addr="127.0.0.1")
occupancy.instrument()
stopping = threading.Event()


def call(step: str) -> None:
    client.post(f"/generate/{step}", json={"model": "m"}, headers=DELAY).raise_for_status()


def chat() -> None:
    body = {"model": "m", "stream": True}
    client.post("/v1/chat/completions", json=body, headers=DELAY).raise_for_status()


with mock_server.serve() as url, httpx2.Client(base_url=url) as client, ThreadPoolExecutor(3) as pool:
    threading.Thread(target=lambda: (sys.stdin.readline(), stopping.set()), daemon=True).start()
    deadline_s = time.monotonic() + LONGEST_S
    while not stopping.is_set() and time.monotonic() < deadline_s:
        chat()
        list(pool.map(call, ["tool_a", "tool_b", "tool_c"]))
        time.sleep(0.05)
print("idle", flush=True)
sys.stdin.read()
