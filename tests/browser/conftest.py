"""One browser, one page and axe-core for all tests of what a reader sees."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.pages import ObservedPage, real_page
from tests.conftest import cannot

HERE = Path(__file__).parent
AS_OPENED: Any = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"}  # nothing glides: there is nothing to wait for
CLOSED = """() => {
  delete document.documentElement.dataset.theme;
  for (const part of document.querySelectorAll("details[open]")) part.open = false;
  document.activeElement.blur();
  hideTip();
}"""


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Debian's Chromium without a window; as root it cannot have its sandbox."""
    chromium = shutil.which("chromium")
    if chromium is None:
        cannot("no chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"], timeout=90_000)
        yield started
        started.close()


@pytest.fixture(scope="package")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of runs in reports/: two of collectives, which are compared, and one of pairs."""
    return real_page(tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="package")
def seen(browser: Browser, report: Path) -> Iterator[ObservedPage]:
    """The page, opened once, 1280 pixels wide, and what it did meanwhile."""
    page = browser.new_page(**AS_OPENED)
    yield ObservedPage.opening(page, report)
    page.close()


@pytest.fixture
def page(seen: ObservedPage) -> Iterator[Page]:
    """The page alone; afterwards, also of a test that failed, it is as it was opened."""
    yield seen.page
    seen.page.set_viewport_size(AS_OPENED["viewport"])
    seen.page.emulate_media(media="screen", color_scheme="light", forced_colors="none")
    seen.page.evaluate(CLOSED)


@pytest.fixture(scope="package")
def axe() -> str:
    """The script of axe-core, as the lock file pins it."""
    if shutil.which("npm") is None:
        cannot("no npm here, which brings axe-core: apt-get install npm")
    for _ in range(3):  # what is far away may be out of reach for a moment
        done = subprocess.run(["timeout", "90", HERE / "get_axe"], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
    else:
        cannot(f"npm could not bring axe-core: {' '.join(done.stderr.split())[:300]}")
    return Path(done.stdout.strip()).read_text(encoding="utf-8")
