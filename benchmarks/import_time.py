"""What `import occupancy.auto` adds to a program's start, beside OpenTelemetry's SDK with its httpx instrumentor.

Runs the interpreter 25 times with each in turn and prints the shortest and the median wall time above a bare start, and
the ratio. python benchmarks/import_time.py
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

RUNS = 25
PROGRAMS = {
    "bare": "pass",
    "occupancy.auto": "import occupancy.auto",
    "OpenTelemetry": "import opentelemetry.sdk.trace, opentelemetry.instrumentation.httpx",
}


def start_s(program: str, environ: dict[str, str]) -> float:
    """Wall time of one start, in s."""
    began_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], env=environ, check=True)
    return time.perf_counter() - began_s


def main() -> None:
    """Measure in turn, so that a machine that slows down slows all."""
    with tempfile.TemporaryDirectory() as cache:
        environ = {**os.environ, "PYTHONPYCACHEPREFIX": cache, "OCCUPANCY_REPORT": "0"}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        for program in PROGRAMS.values():
            start_s(program, environ)  # compiles
        times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
        for _ in range(RUNS):
            for name, program in PROGRAMS.items():
                times[name].append(start_s(program, environ))
    for what, of in (("shortest", min), ("median", statistics.median)):
        ours, theirs = (of(times[name]) - of(times["bare"]) for name in ("occupancy.auto", "OpenTelemetry"))
        print(f"{what}: occupancy.auto {ours * 1e3:.0f} ms, OpenTelemetry {theirs * 1e3:.0f} ms, {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
