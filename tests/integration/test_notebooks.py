"""The notebooks run from top to bottom, and what is stored in them is what they give."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
PRIVATE = re.compile(
    r"/(home|root|tmp|work|Users|usr|var|opt|private)/|[A-Z]:\\|site-packages|ipykernel_\d|127\.0\.0\.1|localhost"
)
"""What tells of the machine that a notebook ran on."""


def stored(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(notebook: Any) -> list[list[tuple[str, list[str]]]]:
    """What each cell puts out, by kind."""
    outputs = [cell.outputs for cell in code_cells(notebook)]
    return [[(output.output_type, sorted(output.get("data", {}))) for output in of_cell] for of_cell in outputs]


def told(notebook: Any, kind: str = "text/plain") -> str:
    """All that a notebook puts out as text, or as another kind of text."""
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    return "\n".join(output.get("text") or output.data.get(kind, "") for output in outputs)


def test_they_are_there() -> None:
    assert NOTEBOOKS == ["before_and_after", "finding_the_limit", "reading_a_trace", "serial_or_overlapped"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_what_is_stored_is_whole_and_tells_nothing_of_the_machine(name: str) -> None:
    notebook = stored(name)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert "error" not in {output.output_type for cell in cells for output in cell.outputs}
    assert "stderr" not in {output.get("name") for cell in cells for output in cell.outputs}
    assert "image/png" in str(kinds(notebook)) + told(notebook, "text/html")
    words = told(notebook) + re.sub(r"base64,[^\"]*", "", told(notebook, "text/html"))
    assert PRIVATE.search(words) is None


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Run a notebook, once."""
    done: dict[str, Any] = {}

    def execute(name: str) -> Any:
        if name not in done:
            notebook = stored(name)
            for cell in code_cells(notebook):
                cell.outputs, cell.execution_count = [], None
            place = {"metadata": {"path": os.fspath(tmp_path_factory.mktemp(name))}}
            done[name] = nbclient.NotebookClient(notebook, timeout=50, kernel_name="python3", resources=place).execute()
        return done[name]

    return execute


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_they_run_and_give_what_is_stored(name: str, executed: Any) -> None:
    assert kinds(executed(name)) == kinds(stored(name))


@pytest.mark.parametrize("source", [stored, "run"])
def test_their_numbers_are_those_that_the_words_between_promise(source: Any, executed: Any) -> None:
    give = executed if source == "run" else source
    agent = told(give("serial_or_overlapped"))
    assert re.findall(r"^occupancy: 4 calls in .*, peak (\d) in flight", agent, re.MULTILINE) == ["1", "2", "2"]
    assert re.findall(r"^(serial|overlapped): ", agent, re.MULTILINE)[::2] == ["serial", "overlapped"]
    assert "tool_search and tool_fetch ran one after another at cell 3, line 6" in agent
    walls = [float(wall) for wall in re.findall(r"^(?:serial|threads|asyncio) +(\d\.\d\d) ", agent, re.MULTILINE)]
    assert [wall >= least for wall, least in zip(walls, (1.1, 0.75, 0.75), strict=True)] == [True] * 3  # the server's
    assert agent.splitlines()[-1] == "2"  # as the server counted

    trace = told(give("reading_a_trace"))
    assert "3 runs, each serial in itself, up to 3 in flight together" in trace
    assert re.search(r"agent 2#\d+  chat +429 ", trace)

    compared = told(give("before_and_after"))
    verdicts = re.findall(r"^(keep|do not keep): ", compared, re.MULTILINE)
    assert (
        verdicts[source == "run" :] == ["keep", "do not keep"][source == "run" :]
    )  # calls may be slow on a busy machine
    assert re.findall(r"^peak in flight +(\d) +(\d)", compared, re.MULTILINE) == [("1", "3"), ("1", "3")]

    limits = told(give("finding_the_limit"))
    assert re.findall(r"^(status|peak in flight) +(\w+) +(\w+)$", limits, re.MULTILINE) == [
        ("status", "200", "200"), ("peak in flight", "10", "10"),
    ]  # fmt: skip
    words = re.findall(r"^(limit|serial): |^use (\d) workers?:$|'(?:one|three)': (\w+)", limits, re.MULTILINE)
    if source == "run":  # what was measured depends on the machine, but not that ten waits of 50 ms are above 350 ms
        assert ("", "", "False") in words
    else:
        assert ["".join(word) for word in words] == ["limit", "3", "serial", "1", "False", "True"]
