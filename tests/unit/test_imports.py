"""Hooks that wait for imports, on modules made for it."""

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from occupancy import _guard
from occupancy.instrumentation import imports

NAME = "hooked_by_name"


@pytest.fixture
def module_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    _guard._reported.clear()
    before = list(sys.meta_path)
    path = tmp_path / f"{NAME}.py"
    path.write_text("value = 1\n")
    yield path
    imports.forget(NAME)
    sys.modules.pop(NAME, None)
    assert sys.meta_path == before


def test_hook_at_import(module_file: Path) -> None:
    seen: list[Any] = []
    imports.when_imported(NAME, lambda module: seen.append((module.value, NAME in sys.modules)))
    assert seen == []
    module = importlib.import_module(NAME)
    assert seen == [(1, True)]
    assert importlib.import_module(NAME) is module
    assert len(seen) == 1


def test_hook_of_an_imported_module(module_file: Path) -> None:
    module, seen = importlib.import_module(NAME), list[ModuleType]()
    imports.when_imported(NAME, seen.append)
    assert seen == [module]


def test_module_looks_untouched(module_file: Path) -> None:
    plain = importlib.import_module(NAME)
    del sys.modules[NAME]
    imports.when_imported(NAME, lambda module: None)
    hooked = importlib.import_module(NAME)
    assert type(hooked.__loader__) is type(plain.__loader__)
    assert hooked.__spec__ is not None
    assert hooked.__spec__.loader is hooked.__loader__
    assert hooked.__file__ == plain.__file__
    assert vars(hooked).keys() == vars(plain).keys()


def test_found_but_not_imported(module_file: Path) -> None:
    """Who only looks for the module may ask the loader for more than loading."""
    imports.when_imported(NAME, lambda module: None)
    spec = importlib.util.find_spec(NAME)
    assert spec is not None
    assert spec.loader is not None
    assert spec.loader.get_source(NAME) == "value = 1\n"
    assert spec.loader.get_code(NAME) is not None
    with pytest.raises(AttributeError):
        spec.loader.nothing_of_the_kind  # noqa: B018
    assert NAME not in sys.modules


def test_reload_hooks_again(module_file: Path) -> None:
    seen: list[ModuleType] = []
    imports.when_imported(NAME, seen.append)
    module = importlib.import_module(NAME)
    assert importlib.reload(module) is module
    assert seen == [module, module]


def test_hook_that_fails(module_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(module: ModuleType) -> None:
        raise LookupError("ours")

    imports.when_imported(NAME, fail)
    assert importlib.import_module(NAME).value == 1
    assert [record.name for record in caplog.records] == ["occupancy"]


def test_module_that_fails(module_file: Path) -> None:
    module_file.write_text("raise LookupError('theirs')\n")
    seen: list[ModuleType] = []
    imports.when_imported(NAME, seen.append)
    with pytest.raises(LookupError, match="theirs"):
        importlib.import_module(NAME)
    assert seen == []
    assert NAME not in sys.modules


def test_module_that_is_not_there(module_file: Path) -> None:
    module_file.unlink()
    importlib.invalidate_caches()
    imports.when_imported(NAME, lambda module: None)
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{NAME}'"):
        importlib.import_module(NAME)
    assert importlib.util.find_spec(NAME) is None


def test_forgotten_hook(module_file: Path) -> None:
    seen: list[ModuleType] = []
    imports.when_imported(NAME, seen.append)
    imports.forget(NAME)
    importlib.import_module(NAME)
    assert seen == []


def test_finder_that_asks_all_the_others(module_file: Path) -> None:
    """As ours does: neither may send the other round in a circle."""

    class Asking:
        asked = 0

        def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
            self.asked += 1
            specs = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
            return next((spec for spec in specs if spec is not None), None)

    asking, seen = Asking(), list[ModuleType]()
    sys.meta_path.insert(0, asking)
    try:
        imports.when_imported(NAME, seen.append)
        importlib.import_module(NAME)
    finally:
        sys.meta_path.remove(asking)
    assert len(seen) == 1
    assert asking.asked < 5


def test_while_another_thread_imports(module_file: Path) -> None:
    """The hook waits until the module is whole."""
    module_file.write_text("import sys\nsys.reached.set()\nassert sys.go_on.wait(10)\nvalue = 1\n")
    sys.reached, sys.go_on = threading.Event(), threading.Event()
    seen: list[int] = []
    try:
        importer = threading.Thread(target=importlib.import_module, args=(NAME,))
        importer.start()
        assert sys.reached.wait(10)
        hooker = threading.Thread(target=imports.when_imported, args=(NAME, lambda module: seen.append(module.value)))
        hooker.start()
        assert seen == []
        sys.go_on.set()
        importer.join(10)
        hooker.join(10)
    finally:
        del sys.reached, sys.go_on
    assert seen == [1]


def test_from_inside_the_module(module_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A module that switches us on while it is imported is not looked at half done; the next import of it is."""
    module_file.write_text("import sys\nsys.switch_on()\nvalue = 1\n")
    seen: list[int] = []
    sys.switch_on = lambda: imports.when_imported(NAME, lambda module: seen.append(module.value))
    try:
        module = importlib.import_module(NAME)
    finally:
        del sys.switch_on
    assert (seen, caplog.records) == ([], [])
    imports.when_imported(NAME, lambda module: seen.append(module.value))
    assert (seen, module.value) == ([1], 1)
