"""A headless browser for pages. These tests run only where their folder is named: `pytest tests/browser`."""

import os
import shutil
from collections.abc import Iterator

import pytest

ARGUMENTS = (
    "--no-sandbox",  # as root, in a container
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """Chromium, headless, with a new profile; `CHROMIUM` names another executable than the one on the path."""
    from playwright.sync_api import sync_playwright

    executable = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    assert executable, "no chromium on the path; set CHROMIUM to an executable"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=executable, headless=True, args=list(ARGUMENTS))
        yield started
        started.close()
