"""`import occupancy.auto`: what it imports, what it reports, that it changes nothing else. Each test is a process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 60
HEAVY = {"numpy", "pandas", "matplotlib", "click", "rich", "httpx", "httpx2", "opentelemetry", "asyncio"}

ONE_CALL = """
import sys
import occupancy.auto
import httpx2
import mock_server

def fetch(url):
    return httpx2.get(f"{url}/generate/plan?x-mock-delay-ms=1").status_code

with mock_server.serve() as url:
    print(fetch(url))
"""


def environment(**variables: str) -> dict[str, str]:
    """This process's, without what would change a report."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OCCUPANCY_", "OTEL_"))}
    return {**kept, "PYTHONPATH": str(ROOT), **variables}


def run(code: str, folder: Path, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code as a script named `agent.py` in a folder."""
    script = folder / "agent.py"
    script.write_text(code, encoding="utf-8")
    command = [sys.executable, str(script), *args]
    env = environment(**variables)
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def reports(stderr: str) -> int:
    """How many reports there are."""
    return stderr.count("\nstep  ") + stderr.count("no call was seen")


# The import


def test_it_imports_nothing_heavy() -> None:
    command = [sys.executable, "-X", "importtime", "-c", "import occupancy.auto"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    imported = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]
    assert "occupancy.auto" in imported
    assert HEAVY.isdisjoint(name.partition(".")[0] for name in imported)


def test_log_is_the_process_log(tmp_path: Path) -> None:
    code = "import occupancy.auto; print(occupancy.auto.log is occupancy.instrument())"
    assert run(code, tmp_path).stdout == "True\n"


def test_switched_off_it_does_nothing(tmp_path: Path) -> None:
    code = ONE_CALL + "print(occupancy.auto.log.calls, occupancy.auto.log.peak)"
    done = run(code, tmp_path, OCCUPANCY_ENABLED="0")
    assert (done.stdout, done.stderr) == ("200\n[] 0\n", "")


def test_a_journal_that_cannot_be_written_is_told_once_and_recording_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "no" / "calls.jsonl"
    done = run(ONE_CALL + "print(occupancy.auto.log.finished)", tmp_path, OCCUPANCY_JOURNAL=str(path))
    assert (done.stdout, done.returncode) == ("200\n1\n", 0)
    first = (
        f"occupancy: cannot write the journal {str(path)!r}: No such file or directory; recording goes on without it"
    )
    assert done.stderr.splitlines()[0] == first
    assert done.stderr.count("cannot write") == 1
    assert reports(done.stderr) == 1


# The report


def test_the_report_is_short_plain_and_ends_with_the_command_for_more(tmp_path: Path) -> None:
    done = run(ONE_CALL, tmp_path)
    lines = done.stderr.splitlines()
    assert done.stdout == "200\n"
    assert lines[1].startswith("occupancy: 1 call in ")
    assert lines[2] == "one call: 1 in flight is right"
    assert lines[-1] == "keep the calls: OCCUPANCY_JOURNAL=calls.jsonl, or occupancy run script.py"
    assert any(line.startswith("fetch ") and line.endswith("  agent.py:8") for line in lines)
    assert len(lines) <= 22
    assert max(map(len, lines)) <= 80
    assert done.stderr.isascii()
    assert "\x1b" not in done.stderr


def test_with_a_journal_the_command_opens_it(tmp_path: Path) -> None:
    done = run(ONE_CALL, tmp_path, OCCUPANCY_JOURNAL="my calls.jsonl")
    assert done.stderr.splitlines()[-1] == "more: occupancy show 'my calls.jsonl'"
    assert (tmp_path / "my calls.jsonl").stat().st_size


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    assert run(ONE_CALL, tmp_path, OCCUPANCY_REPORT="0").stderr == ""


def test_an_own_report_is_not_repeated_at_exit(tmp_path: Path) -> None:
    assert reports(run(ONE_CALL + "occupancy.report()", tmp_path).stderr) == 1


def test_a_call_after_an_own_report_brings_another(tmp_path: Path) -> None:
    code = ONE_CALL + "    occupancy.report(); fetch(url)"
    assert reports(run(code, tmp_path).stderr) == 2


def test_an_own_report_elsewhere_leaves_the_one_at_exit(tmp_path: Path) -> None:
    done = run(ONE_CALL + "occupancy.report(sys.stdout)", tmp_path)
    assert (reports(done.stdout), reports(done.stderr)) == (1, 1)


def test_without_recording_the_report_says_how_to_begin(tmp_path: Path) -> None:
    done = run("import occupancy; occupancy.report()", tmp_path)
    assert done.stderr == "occupancy: nothing is recorded: import occupancy.auto, or call occupancy.instrument()\n"


# No call seen


@pytest.mark.parametrize(
    ("imports", "told"),
    [
        ("", ["occupancy: no call was seen: the program imported no HTTP client"]),
        (
            "import httpx2",
            ["occupancy: no call was seen; HTTP clients imported: httpx2", "httpx2: traced, sent no request"],
        ),
        (
            "import requests",
            [
                "occupancy: no call was seen; HTTP clients imported: requests",
                "requests: traced, sent no request",
            ],
        ),
        (
            "import httpx2; from urllib.request import urlopen",
            [
                "occupancy: no call was seen; HTTP clients imported: httpx2, urllib.request",
                "httpx2 and urllib.request: traced, sent no request",
            ],
        ),
        (
            "import urllib3, http.client, tornado.httpclient",
            [
                "occupancy: no call was seen; HTTP clients imported: urllib3, http.client, tornado.httpclient",
                "urllib3 and http.client: traced, sent no request",
                'trace tornado.httpclient by hand: with occupancy.auto.log.track("fetch"): ...',
            ],
        ),
    ],
)
def test_no_call_seen_names_the_clients_that_were_imported(tmp_path: Path, imports: str, told: list[str]) -> None:
    done = run(f"import occupancy.auto\n{imports}", tmp_path)
    assert done.stderr.splitlines() == ["", *told]


def test_a_tracked_call_is_a_call(tmp_path: Path) -> None:
    code = "import time, occupancy.auto\nwith occupancy.auto.log.track('fetch'): time.sleep(0.001)"
    assert "occupancy: 1 call in " in run(code, tmp_path).stderr


# However the program ends


@pytest.mark.parametrize(
    ("ending", "code"),
    [("", 0), ("sys.exit(3)", 3), ("sys.exit('no')", 1), ("1 / 0", 1), ("import os; os._exit(4)", 4)],
)
def test_the_exit_code_is_the_programs(tmp_path: Path, ending: str, code: int) -> None:
    done = run(ONE_CALL + ending, tmp_path)
    assert done.returncode == code
    assert reports(done.stderr) == (ending != "import os; os._exit(4)")


def test_ctrl_c_reports_once_and_still_ends_the_process(tmp_path: Path) -> None:
    code = ONE_CALL.replace("    print(fetch(url))", "    fetch(url)\n    print('ready', flush=True)\n    input()")
    (tmp_path / "agent.py").write_text(code, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, "agent.py"],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == -signal.SIGINT
    assert stderr.count("KeyboardInterrupt") == 1
    assert reports(stderr) == 1


@pytest.mark.parametrize("ending", ["sys.stderr.close()", "sys.stderr = None", "os.close(2)"])
def test_a_stderr_that_is_gone_changes_nothing(tmp_path: Path, ending: str) -> None:
    done = run(f"{ONE_CALL}\nimport os\n{ending}\nsys.exit(3)", tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("200\n", "", 3)


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="needs SIGPIPE")
@pytest.mark.parametrize("handler", ["SIG_IGN", "SIG_DFL"])
def test_a_stderr_that_nobody_reads_changes_nothing(tmp_path: Path, handler: str) -> None:
    code = f"import signal; signal.signal(signal.SIGPIPE, signal.{handler})\n{ONE_CALL}\nsys.exit(3)"
    (tmp_path / "agent.py").write_text(code, encoding="utf-8")
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [sys.executable, "agent.py"],
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=write_end,
            timeout=TIMEOUT_S,
            check=False,
        )
    finally:
        os.close(write_end)
    assert (done.stdout, done.returncode) == (b"200\n", 3)


KEEP = "keep the calls: OCCUPANCY_JOURNAL=calls.jsonl, or occupancy run script.py"
FORKED = """
with mock_server.serve() as url:
    child = os.fork()
    if not child:
        fetch(url)
        sys.exit(0)
    print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_worker_prints_nothing_unless_asked(tmp_path: Path) -> None:
    code = "import os\n" + ONE_CALL.partition("with mock_server")[0] + FORKED
    quiet, asked = run(code, tmp_path), run(code, tmp_path, OCCUPANCY_REPORT_CHILDREN="1")
    assert quiet.stdout == asked.stdout == "0\n"
    assert quiet.stderr.splitlines()[-4:] == [
        "occupancy: no call was seen; HTTP clients imported: httpx2",
        "httpx2: traced, sent no request",
        "not in this report, but traced: the process that this one has forked",
        "all in one report: OCCUPANCY_JOURNAL=calls.jsonl, or occupancy run script.py",
    ]
    assert (reports(quiet.stderr), reports(asked.stderr)) == (1, 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_one_call_is_no_verdict_on_what_was_forked(tmp_path: Path) -> None:
    code = "import os\n" + ONE_CALL + "    " + FORKED.partition("\n    ")[2]
    alone = run(code, tmp_path).stderr.splitlines()
    assert alone[2] == "of this process alone: one call: 1 in flight is right"
    assert alone[-2] == "not in this report, but traced: the process that this one has forked"
    together = run(code, tmp_path, OCCUPANCY_JOURNAL="calls.jsonl").stderr.splitlines()
    assert together[1].startswith("occupancy: 2 calls of 2 processes in ")
    assert together[-1] == "more: occupancy show calls.jsonl"
    assert not any("alone" in line or "not in this report" in line for line in together)


SPAWNING = """
import subprocess, sys
import occupancy.auto
import httpx2
subprocess.run([sys.executable, "-c", 'import occupancy.auto\\nwith occupancy.auto.log.track("work"): pass'])
"""


def test_programs_that_it_started_are_told_of(tmp_path: Path) -> None:
    alone = run(SPAWNING, tmp_path).stderr.splitlines()
    assert alone[-4:] == [
        "occupancy: no call was seen; HTTP clients imported: httpx2",
        "httpx2: traced, sent no request",
        "processes that this one has started are traced if they import occupancy.auto",
        KEEP,
    ]
    for n_calls, told in [(1, "1 call was"), (2, "2 calls were")]:
        path = f"{n_calls}.jsonl"
        code = SPAWNING + "\n".join(SPAWNING.splitlines()[-1:] * (n_calls - 1))
        together = run(code, tmp_path, OCCUPANCY_JOURNAL=path).stderr.splitlines()
        others = "another process" if n_calls == 1 else "2 other processes"
        assert together[-2:] == [
            f"{told} written to {path} meanwhile by {others}",
            f"more: occupancy show {path}",
        ]


def test_what_libraries_ask_of_the_system_is_no_process_to_trace(tmp_path: Path) -> None:
    done = run("import subprocess, occupancy.auto; subprocess.run(['true'])", tmp_path)
    assert done.stderr.splitlines() == ["", "occupancy: no call was seen: the program imported no HTTP client"]


def test_a_spawned_worker_prints_nothing(tmp_path: Path) -> None:
    code = """
import multiprocessing
import occupancy.auto

def work(number):
    with occupancy.auto.log.track("work"):
        return number + 1

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=work, args=(1,))
    process.start()
    process.join()
    print(process.exitcode)
"""
    done = run(code, tmp_path)
    assert done.stdout == "0\n"
    assert reports(done.stderr) == 1
    assert "no call was seen" in done.stderr
