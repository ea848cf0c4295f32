"""The commands that send requests, as a user runs them: exit codes, files, secrets, Ctrl-C."""

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import mock_server

SECRET = "sk-very-secret-0123456789"
CALL = (
    "import sys; from occupancy.cli.{0} import command; sys.exit(command.main(prog_name='{0}', standalone_mode=False))"
)


def run(command: str, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CALL.format(command), *args],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**os.environ, "COLUMNS": "120", **environment},
    )


@pytest.fixture
def quick() -> Iterator[str]:
    with mock_server.serve(delay_ms=5) as url:
        yield url


FEW = ["--levels", "1,2", "--requests", "4"]


def test_a_sweep_writes_every_format_with_the_answer_at_the_top(quick: str, tmp_path: Path) -> None:
    names = [tmp_path / f"result{ending}" for ending in (".json", ".csv", ".md", ".html", ".png", ".svg")]
    outs = [arg for name in names for arg in ("-o", str(name))]
    ended = run("sweep", quick, "--model", "mock", *FEW, *outs)
    assert ended.returncode in (0, 5), ended.stderr  # 5: at 5 ms the machine's own noise may look like drift
    found = json.loads(names[0].read_text())
    assert next(iter(found)) == "recommended"
    assert (found["schema"], found["version"]) == ("occupancy.sweep", 1)
    assert [len(measured["samples"]) for measured in found["rounds"]] == [8, 8][: len(found["rounds"])] or found[
        "rounds"
    ]
    assert names[1].read_text().splitlines()[0].startswith("workers,number,start_s")
    assert "asyncio.Semaphore(" in names[2].read_text()
    assert names[3].read_text().startswith("<!doctype html>")
    assert all(name.stat().st_size > 1000 for name in names[3:])
    assert "at most" in ended.stderr
    assert f"asyncio.Semaphore({found['recommended']})" in ended.stdout


def test_a_sweep_goes_on_where_it_stopped(quick: str, tmp_path: Path) -> None:
    old, new = str(tmp_path / "old.json"), str(tmp_path / "new.json")
    run("sweep", quick, "--model", "mock", *FEW, "-o", old)
    before = mock_stats(quick)
    ended = run("sweep", quick, "--model", "mock", "--levels", "1,2,4", "--requests", "4", "--resume", old, "-o", new)
    assert ended.returncode in (0, 5), ended.stderr
    rounds = json.loads(Path(new).read_text())["rounds"]
    assert [measured["workers"] for measured in rounds] == [1, 2, 4]
    assert mock_stats(quick) - before == 1 + len(rounds[2]["samples"]) + 10  # warm-up, the new level, the end
    other = run("sweep", quick, "--model", "other", "--resume", old)
    assert (other.returncode, other.stderr.splitlines()[-1]) == (
        2,
        f"occupancy: cannot resume '{old}': its model is 'mock', not 'other'",
    )


def mock_stats(url: str) -> int:
    assert isinstance(url, mock_server.GatewayUrl)
    total: int = url.stats()["total"]
    return total


def test_nothing_is_sent_by_a_dry_run_or_without_consent(quick: str) -> None:
    dry = run("sweep", quick, "--model", "mock", "--dry-run")
    assert (dry.returncode, mock_stats(quick)) == (0, 0)
    assert "workers (requests): 1 (20), 2 (20), 4 (20), 8 (32), 16 (64), 32 (64)" in dry.stdout
    remote = run("sweep", "https://api.example.com/v1", "--model", "m")
    assert remote.returncode == 2
    assert remote.stderr.splitlines()[-1] == (
        "occupancy: https://api.example.com/v1/chat/completions is not on this machine, and requests may cost money: "
        "repeat with --yes"
    )
    assert run("budget", "--url", "https://api.example.com/v1", "--model", "m").returncode == 2


def test_never_more_than_max_requests(quick: str) -> None:
    ended = run("sweep", quick, "--model", "mock", "--max-requests", "30")
    assert mock_stats(quick) == 30 or mock_stats(quick) == 21
    assert "2 workers left out" in ended.stdout


def interrupted(*args: str, url: str, after: int) -> tuple[int, str]:
    """Run a command until the gateway has been sent more than so many requests, then press Ctrl-C."""
    ran = [sys.executable, "-c", CALL.format(args[0]), *args[1:]]
    with subprocess.Popen(ran, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while mock_stats(url) <= after:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        stdout, _ = process.communicate(timeout=30)
    return process.returncode, stdout


def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    with mock_server.serve(limits=mock_server.Limits(service_s=0.1)) as url:
        few = ["--model", "mock", "--requests", "4", "-o", str(out)]
        code, stdout = interrupted("sweep", url, *few, url=url, after=1 + 8 + 8)  # warm-up, one worker, two
    assert code == 130
    assert "interrupted" in stdout
    found = json.loads(out.read_text())
    assert found["is_interrupted"]
    assert found["rounds"][0]["workers"] == 1


def test_ctrl_c_keeps_the_running_environment_too(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    with mock_server.serve(delay_ms=5) as quick, mock_server.serve(limits=mock_server.Limits(service_s=0.1)) as slow:
        file = budget_file(tmp_path, free=quick, paid=slow, best=quick)
        code, stdout = interrupted("budget", file, "-o", str(out), url=slow, after=4)
        assert (code, mock_stats(quick)) == (130, 31)
    assert "paid: interrupted after " in stdout
    free, paid = json.loads(out.read_text())["environments"]
    assert (free["name"], free["is_complete"], paid["name"], paid["is_complete"]) == ("free", True, "paid", False)
    assert len(paid["samples"]["cold"]) == 1
    assert 3 <= len(paid["samples"]["warm"]) < 20


class Odd(http.server.BaseHTTPRequestHandler):
    """Answers HTML, or an error with status 200, or refuses a key and repeats it."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        html, busy = self.path.startswith("/html"), self.path.startswith("/busy")
        told = {"error": {"message": f"wrong key {self.headers.get('authorization')} or {self.headers.get('x-key')}"}}
        body = b"<!doctype html><p>Welcome" if html else json.dumps(told).encode()
        self.send_response(200 if html or busy else 401)
        self.send_header("content-type", "text/html" if html else "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def odd() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Odd) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("command", ["sweep", "budget"])
@pytest.mark.parametrize(
    ("fault", "args", "told"),
    [
        ("x-mock-status=401", [], "status 401"),
        ("x-mock-status=404", [], "status 404"),
        ("x-mock-hang=mid-body", ["--stream", "--timeout", "0.5"], "no complete answer within 0.5 s"),
        ("x-mock-cut=mid-body", ["--stream"], "RemoteProtocolError"),
        ("x-mock-status=204", [], "not a JSON object"),
    ],
)
def test_bad_endpoints_end_with_one_line(quick: str, command: str, fault: str, args: list[str], told: str) -> None:
    url = f"{quick}/v1/chat/completions?{fault}"
    asked = [url] if command == "sweep" else ["--url", url, "--p95", "0.4"]
    ended = run(command, *asked, "--model", "mock", *args)
    assert ended.returncode == 4, ended.stderr + ended.stdout
    line = next(line for line in (ended.stderr + ended.stdout).splitlines() if told in line)
    assert "the first request failed: " in line
    assert "Traceback" not in ended.stderr


def test_a_failure_names_its_layer(quick: str) -> None:
    layers = {
        "http://no-such-host.invalid": "the name cannot be looked up",
        "http://127.0.0.1:9": "nobody accepts connections",
        quick.replace("http://", "https://"): "TLS failed",
    }
    for url, layer in layers.items():
        ended = run("sweep", url, "--model", "m", "--yes")
        assert ended.returncode == 4
        expected = f"occupancy: the first request failed: cannot connect to {url}/v1/chat/completions: {layer}: "
        assert ended.stderr.splitlines()[-1].startswith(expected)


def test_html_is_told(odd: str) -> None:
    ended = run("sweep", f"{odd}/html/v1", "--model", "m")
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (
        4,
        "occupancy: the first request failed: answered HTML, not JSON: is this the API's URL?",
    )


def test_an_error_with_a_good_status_is_told(odd: str) -> None:
    ended = run("sweep", f"{odd}/busy/v1", "--model", "m", OPENAI_API_KEY=SECRET)
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (
        4,
        "occupancy: the first request failed: the answer has no 'choices': wrong key *** or None",
    )


def test_keys_are_in_no_output(odd: str, quick: str, tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    file = {"url": f"{odd}/x?token={SECRET}", "headers": {"x-key": "${MY_KEY}"}, "json": {"a": "{nonce}"}}
    request.write_text(json.dumps(file))
    outs = [arg for ending in ("json", "csv", "md", "html", "svg") for arg in ("-o", str(tmp_path / f"r.{ending}"))]
    keys = {"OPENAI_API_KEY": SECRET, "MY_KEY": SECRET}
    address = quick.replace("http://", f"http://user:{SECRET}@")
    ran = [
        run("sweep", odd, "--model", "m", *outs, **keys),
        run("sweep", "--request", str(request), *outs, **keys),
        run("sweep", address, "--model", "m", *FEW, *outs, **keys),
        run("budget", "--url", odd, "--model", "m", *outs, "-o", str(tmp_path / "r.xml"), **keys),
        run("budget", "--url", odd, "--model", "m", "--quick", **keys),
    ]
    assert [ended.returncode for ended in ran[:2]] == [4, 4]
    assert "wrong key *** or None" in ran[0].stderr or "wrong key Bearer *** or None" in ran[0].stderr
    shown = [ended.stdout + ended.stderr for ended in ran]
    shown += [path.read_text() for path in tmp_path.glob("r.*")]
    assert len(shown) == 11
    assert not [text for text in shown if SECRET in text]


def test_a_plain_request_is_swept(quick: str, tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"method": "GET", "url": f"{quick}/generate/x?x-mock-delay-ms=20"}))
    ended = run("sweep", "--request", str(request), *FEW)
    assert ended.returncode in (0, 5), ended.stderr
    assert "/generate/x\n" in ended.stdout
    request.write_text("[]")
    assert run("sweep", "--request", str(request)).returncode == 2


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ([], "a URL is needed"),
        (["http://127.0.0.1:1"], "a model is needed"),
        (["ftp://h", "--model", "m"], "'ftp://h' is no http or https URL"),
        (["http://127.0.0.1:99999", "--model", "m"], "is no URL"),
        (["http://127.0.0.1:1", "--model", "m", "--levels", "a"], "--levels must be numbers such as 1,2,4, not 'a'"),
        (["http://127.0.0.1:1", "--model", "m", "--key-env", "NOT_SET_1"], "NOT_SET_1 holds no key"),
        (["http://127.0.0.1:1", "--model", "m", "-o", "x.doc"], "'x.doc': its name must end with one of"),
        (["http://127.0.0.1:1", "--model", "m", "-o", "none/x.md"], "there is no such folder"),
        (["http://127.0.0.1:1", "--model", "m", "--resume", "none.json"], "cannot read 'none.json'"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_two(args: list[str], told: str) -> None:
    ended = run("sweep", *args)
    assert ended.returncode == 2
    assert told in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


def budget_file(folder: Path, **urls: str) -> str:
    path = folder / "budget.toml"
    path.write_text("\n".join(f'[environments.{name}]\nurl = "{url}"\nmodel = "mock"' for name, url in urls.items()))
    return str(path)


def test_budget_passes_and_names_the_cheapest(quick: str, tmp_path: Path) -> None:
    xml = tmp_path / "junit.xml"
    ended = run("budget", budget_file(tmp_path, free=quick, paid=quick), "-o", str(xml))
    assert ended.returncode == 0, ended.stderr + ended.stdout
    assert "free keeps the budget: a bigger plan buys nothing" in ended.stdout
    assert [suite.get("failures") for suite in ET.parse(xml).getroot()] == ["0", "0"]
    assert run("budget", budget_file(tmp_path, free=quick), "--require-proof").returncode == 3


def test_budget_fails(tmp_path: Path, quick: str) -> None:
    with mock_server.serve(limits=mock_server.Limits(capacity=1, service_s=0.15)) as slow:
        file = budget_file(tmp_path, free=slow, paid=quick)
        assert run("budget", file, "--p95", "0.5").returncode == 1
        passed = run("budget", file, "--p95", "0.5", "--any")
    assert passed.returncode == 0, passed.stdout
    assert "paid is the cheapest that keeps the budget" in passed.stdout
    assert "most of the time goes to: first byte" in passed.stdout


def test_quick_shows_three_times(quick: str) -> None:
    ended = run("budget", "--url", quick, "--model", "mock", "--quick")
    assert ended.returncode == 0
    assert len([word for word in ended.stdout.splitlines()[0].split() if "." in word]) == 3
    assert mock_stats(quick) == 3


def test_budget_shows_regressions(tmp_path: Path, quick: str) -> None:
    old = str(tmp_path / "old.json")
    run("budget", "--url", quick, "--model", "mock", "-o", old)
    with mock_server.serve(delay_ms=60) as slower:
        ended = run("budget", "--url", slower, "--model", "mock", "--baseline", old)
    assert "REGRESSION: warm p50" in ended.stdout
    assert "compared with another target" in ended.stdout
