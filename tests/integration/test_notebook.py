"""The IPython extension, in a kernel as notebooks have it and in IPython on a terminal."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mock_server
import occupancy
from occupancy.notebook import split_cell, take_out

manager = pytest.importorskip("jupyter_client.manager")
pytest.importorskip("ipykernel")

LOAD = "%load_ext occupancy.notebook"
TIMEOUT_S = 30


class Kernel:
    """A kernel, and what it says."""

    def __init__(self, client: Any, interrupt: Callable[[], None]) -> None:
        self.client = client
        self.interrupt = interrupt

    def start(self, cell: str) -> str:
        """Begin to run a cell; give the id of the request."""
        return str(self.client.execute(cell))

    def messages(self, request: str) -> Iterator[tuple[str, Any]]:
        """What a cell says, until it is done."""
        while True:
            message = self.client.get_iopub_msg(timeout=TIMEOUT_S)
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return
            if kind not in {"status", "execute_input"}:
                yield kind, content

    def run(self, cell: str) -> list[tuple[str, Any]]:
        """Run a cell; give what it said."""
        return list(self.messages(self.start(cell)))

    def value(self, expression: str) -> Any:
        """The value of an expression, by JSON."""
        ((_, content),) = self.run(f"import json; print(json.dumps({expression}))")
        return json.loads(content["text"])


@pytest.fixture(scope="module")
def started() -> Iterator[Kernel]:
    kernel_manager, client = manager.start_new_kernel(kernel_name="python3")
    try:
        yield Kernel(client, kernel_manager.interrupt_kernel)
    finally:
        client.stop_channels()
        kernel_manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(started: Kernel, gateway: mock_server.GatewayUrl) -> Iterator[Kernel]:
    """A kernel with the extension, httpx2 and a function that calls; reset for each test."""
    assert started.run("%reset -f\n%load_ext occupancy.notebook") == []
    setup = f"import asyncio, httpx2\nurl = '{gateway}/generate/plan?x-mock-delay-ms=0'\n"
    assert started.run(setup + "def plan():\n    return httpx2.get(url).status_code") == []
    yield started
    started.run("%unload_ext occupancy.notebook")
    assert started.value("len(__import__('occupancy.ledger').ledger.ledger.logs)") == 0


def plain(outputs: list[tuple[str, Any]]) -> list[tuple[str, str]]:
    """Outputs by kind, as text."""
    return [(kind, content.get("data", {}).get("text/plain", "")) for kind, content in outputs]


# Finding the line


@pytest.mark.parametrize(
    ("cell", "option", "rest"),
    [
        ("x = 1", None, "x = 1"),
        ("", None, ""),
        ("%%occupancy", "", "# %%occupancy"),
        ("%%occupancy\nx\ny\n", "", "# %%occupancy\nx\ny\n"),
        ("%%occupancy  log \nx", "log", "# %%occupancy  log \nx"),
        ("\n\n%%occupancy\nx", "", "\n\n%%occupancy\nx".replace("%%occupancy\n", "")),
        ("%%occupancy\n%%time\nx", "", "%%time\nx"),
        ("%%time\n%%occupancy log\nx", "log", "%%time\nx"),
        ("%%occupancy a b\nx", "a b", "# %%occupancy a b\nx"),
        ("%%occupancy_live\nx", None, "%%occupancy_live\nx"),
        (" %%occupancy\nx", None, " %%occupancy\nx"),
        ("x\n%%occupancy", None, "x\n%%occupancy"),
        ("'''\n%%occupancy\n'''", None, "'''\n%%occupancy\n'''"),
    ],
)
def test_the_line_is_found_where_a_magic_can_stand(cell: str, option: str | None, rest: str) -> None:
    assert split_cell(cell) == (option, rest)


def test_a_line_that_cannot_be_used_is_left_to_the_magic() -> None:
    assert take_out(["%%occupancy a b\n", "x\n"]) == ["%%occupancy a b\n", "x\n"]
    assert take_out(["%%occupancy 1\n"]) == ["%%occupancy 1\n"]
    assert take_out(["%%occupancy a\n", "x\n"]) == ["# %%occupancy a\n", "x\n"]


# In a kernel


def test_a_cell_shows_its_value_then_its_calls(kernel: Kernel) -> None:
    value, report, picture = kernel.run("%%occupancy\nplan()\n\nplan()")
    assert (value[0], value[1]["data"]) == ("execute_result", {"text/plain": "200"})
    assert report[0] == picture[0] == "display_data"
    text = report[1]["data"]["text/plain"]
    assert re.match(r"occupancy: 2 calls in .*, peak 1 in flight", text)
    skyline, table, *findings = text.split("\n\n")[1:]
    assert [line.split()[0] for line in table.splitlines()] == ["step", "plan", "plan"]
    html = report[1]["data"]["text/html"]
    assert html.count("<tr>") == 3
    assert skyline not in html
    assert len(findings) == html.count("<pre") - 1 == 1
    assert set(picture[1]["data"]) == {"text/plain", "image/png"}
    assert picture[1]["metadata"]["image/png"] == {"width": 648, "height": 245}


def test_call_sites_are_lines_of_the_cell_as_it_stands_there(kernel: Kernel) -> None:
    outputs = kernel.run("%%occupancy log\nx = 1\nhttpx2.get(url)\n\nhttpx2.get(url);")
    html = outputs[0][1]["data"]["text/html"]
    (number,) = set(re.findall(r"cell (\d+), line 3<", html))
    assert f">cell {number}, line 5<" in html
    assert kernel.value("str(log.calls[0].call_site)") == f"cell {number}, line 3"
    assert kernel.value(f"In[{number}].splitlines()[2]") == "httpx2.get(url)"


def test_a_cell_may_await(kernel: Kernel) -> None:
    cell = """%%occupancy log
async with httpx2.AsyncClient() as client:
    answers = await asyncio.gather(client.get(url), client.get(url))
len(answers)
"""
    outputs = plain(kernel.run(cell))
    assert outputs[0] == ("execute_result", "2")
    assert "peak 2 in flight" in outputs[1][1]
    assert kernel.value("[log.peak, [call.call_site.line for call in log.calls]]") == [2, [3, 3]]


@pytest.mark.parametrize("line", ["", "await asyncio.sleep(0)\n"])
def test_an_error_is_that_of_the_cell(kernel: Kernel, line: str) -> None:
    without = kernel.run(f"# nothing\n{line}plan()\nraise KeyError('mine')")
    outputs = kernel.run(f"%%occupancy log\n{line}plan()\nraise KeyError('mine')")

    def told(content: Any) -> list[str]:
        text = "\n".join(content["traceback"]).replace("%%occupancy log", "nothing")
        return [content["ename"], content["evalue"], re.sub(r"In\[\d+\]|In\x1b\[\d+m\[\x1b\[\d+m\d+", "In", text)]

    (kind, error), *shown = outputs
    assert kind == without[0][0] == "error"
    assert "notebook.py" not in "".join(error["traceback"])
    assert told(error)[:2] == told(without[0][1])[:2]
    assert len(error["traceback"]) == len(without[0][1]["traceback"])
    assert [kind for kind, _ in shown] == ["display_data", "display_data"]
    assert kernel.value("log.peak") == 1


@pytest.mark.parametrize("wait", ["while True: await asyncio.sleep(0.01)", "while True: pass"])
def test_a_cell_that_is_interrupted_ends_its_recording(kernel: Kernel, wait: str) -> None:
    request = kernel.start(f"%%occupancy log\nplan()\nprint('waits')\n{wait}")
    shown = []
    for kind, _ in kernel.messages(request):
        if kind == "stream" and not shown:
            kernel.interrupt()
        if kind != "stream" or not shown:  # a kernel may send what is printed in pieces
            shown.append(kind)
    assert shown == ["stream", "error", "display_data", "display_data"]
    assert kernel.value("[log.peak, len(__import__('occupancy.ledger').ledger.ledger.logs)]") == [1, 0]


def test_a_cell_that_leaves_no_result_ends_its_recording(kernel: Kernel) -> None:
    end = "get_ipython().events.trigger('post_run_cell', None)"  # as a kernel does where its own task is cancelled
    outputs = kernel.run(f"%%occupancy log\nplan()\n{end}\nplan()\nNone")
    assert [kind for kind, _ in outputs] == ["display_data", "display_data"]
    assert kernel.value("len(log.calls)") == 1


def test_a_cell_without_calls_has_no_picture(kernel: Kernel) -> None:
    ((_, content),) = kernel.run("%%occupancy\nx = 1")
    assert content["data"]["text/plain"].endswith("nothing to judge: no call was seen")


def test_a_wrong_line_is_said_and_nothing_runs(kernel: Kernel) -> None:
    ((_, content),) = kernel.run("%%occupancy not a name\nx = 1")
    assert "takes a name to keep the log under, not 'not a name'" in content["text"]
    assert kernel.value("'x' in globals()") is False


def test_with_other_magics(kernel: Kernel) -> None:
    for cell in ("%%time\n%%occupancy\nplan()", "%%occupancy\n%%time\nplan()"):
        outputs = kernel.run(cell)
        assert [kind for kind, _ in outputs] == ["stream", "execute_result", "display_data", "display_data"]
        assert "1 call in" in outputs[2][1]["data"]["text/plain"]
    outputs = kernel.run("get_ipython().run_cell_magic('occupancy', 'log', 'x = plan()')")
    assert [kind for kind, _ in outputs] == ["display_data", "display_data"]
    assert kernel.value("[x, log.peak]") == [200, 1]


def test_a_log_shows_itself(kernel: Kernel) -> None:
    kernel.run("%%occupancy log\nplan()\nlabel = '<b>'")
    ((kind, content),) = kernel.run("log")
    assert (kind, set(content["data"])) == ("execute_result", {"text/plain", "text/html"})
    html = content["data"]["text/html"]
    assert html.startswith('<img width="648" src="data:image/png;base64,')
    assert html.count("<tr>") == 2
    ((_, content),) = kernel.run("[log]")
    assert content["data"] == {"text/plain": "[<OccupancyLog: 1 calls, peak 1>]"}
    kernel.run("%unload_ext occupancy.notebook")
    ((_, content),) = kernel.run("log")
    assert content["data"]["text/plain"].startswith("<occupancy.log.OccupancyLog at")


def test_what_a_log_holds_is_no_markup(kernel: Kernel) -> None:
    kernel.run("import occupancy\nwith occupancy.record() as log, occupancy.label('<script>'): plan()")
    ((_, content),) = kernel.run("log")
    assert "<script>" not in content["data"]["text/html"]
    assert "&lt;script&gt;" in content["data"]["text/html"]


def test_our_own_failure_leaves_the_cell_alone(kernel: Kernel) -> None:
    kernel.run("from occupancy.views import tables\nreport, tables.report = tables.report, None")
    outputs = kernel.run("%%occupancy log\nplan()")
    assert [kind for kind, _ in outputs if kind != "stream"] == ["execute_result"]
    kernel.run("tables.report = report")


# Live


def test_the_view_goes_on_while_a_cell_keeps_the_kernel_busy(
    kernel: Kernel, gateway: mock_server.GatewayUrl, tmp_path: Path
) -> None:
    (view,) = kernel.run("%occupancy_live")
    assert (view[0], view[1]["data"]["text/plain"].splitlines()[0][:15]) == ("display_data", "in flight now 0")
    go_on = tmp_path / "go_on"
    request = kernel.start(f"""
import os, threading
hangs = threading.Thread(target=lambda: httpx2.get(url + "&x-mock-hang=before-headers"), name="hangs")
hangs.start()
while not os.path.exists({str(go_on)!r}):
    pass
""")
    for kind, content in kernel.messages(request):
        if kind == "update_display_data" and "in flight now 1" in content["data"]["text/plain"]:
            assert content["transient"] == view[1]["transient"]
            assert "in flight now 1" in content["data"]["text/html"]
            go_on.touch()
    assert go_on.exists()


def test_the_view_is_up_to_date_at_the_end_of_a_cell(kernel: Kernel) -> None:
    kernel.run("%occupancy_live")
    updates = [content for kind, content in kernel.run("plan()\nplan()") if kind == "update_display_data"]
    assert "in all       2 ended, 0 failed" in updates[-1]["data"]["text/plain"]
    outputs = kernel.run("%occupancy_live off")
    assert [kind for kind, _ in outputs] == ["update_display_data"]
    assert [kind for kind, _ in kernel.run("plan()")] == ["execute_result"]


def test_a_second_view_ends_the_first(kernel: Kernel) -> None:
    (first,) = kernel.run("%occupancy_live")
    second = next(content for kind, content in kernel.run("%occupancy_live on") if kind == "display_data")
    assert first[1]["transient"] != second["transient"]
    updates = [content for kind, content in kernel.run("plan()") if kind == "update_display_data"]
    assert {json.dumps(content["transient"]) for content in updates} == {json.dumps(second["transient"])}


def test_a_wrong_word_is_said(kernel: Kernel) -> None:
    ((_, content),) = kernel.run("%occupancy_live please")
    assert "takes on or off, not 'please'" in content["text"]


# On a terminal


def ipython(*lines: str) -> str:
    """What IPython says on a terminal to lines that are typed."""
    options = ["--simple-prompt", "--no-banner", "--colors=NoColor", "--HistoryManager.enabled=False"]
    return python("-m", "IPython", *options, typed="\n".join(lines) + "\n")


def python(*args: str, typed: str = "") -> str:
    command = [sys.executable, *args]
    return subprocess.run(
        command, input=typed, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True
    ).stdout


def test_on_a_terminal_it_is_text(gateway: mock_server.GatewayUrl) -> None:
    text = ipython(
        "import sys, httpx2",
        LOAD,
        "%%occupancy log",
        f"httpx2.get('{gateway}/generate/plan?x-mock-delay-ms=0').status_code",
        "",
        "",
        "log",
        "%occupancy_live",
        "'matplotlib' in sys.modules",
    )
    assert "Out[3]: 200\n" in text
    assert text.count("occupancy: 1 call in ") == 2
    assert text.count("cell 3, line 2") == 2
    assert "UsageError: %occupancy_live needs a notebook; in a terminal, " in text
    assert "Out[6]: False\n" in text


def test_the_package_is_the_extension() -> None:
    assert occupancy.load_ipython_extension is not None
    text = ipython("%load_ext occupancy", "%lsmagic", "%unload_ext occupancy", "%lsmagic")
    assert text.count("%%occupancy") == 1
    assert text.count("%occupancy_live") == 1


def test_importing_it_imports_no_ipython() -> None:
    code = "import sys, occupancy.notebook; print({'IPython', 'matplotlib', 'numpy'} & set(sys.modules))"
    assert python("-c", code) == "set()\n"
