"""Chromium, Firefox, the pages and axe-core for all tests of what a reader sees."""

import atexit
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, Page, Playwright, sync_playwright

from tests.browser.pages import IN_TURN, PAGES, ObservedPage
from tests.conftest import cannot

HERE = Path(__file__).parent
AS_OPENED: Any = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"}  # nothing glides: there is nothing to wait for


@cache
def _started() -> Playwright:
    """Playwright can be started once in a process, and tests of several folders use it: it ends with the process."""
    started = sync_playwright().start()
    atexit.register(started.stop)
    return started


@pytest.fixture(scope="package")
def playwright() -> Playwright:
    """What starts the browsers."""
    return _started()


@pytest.fixture(scope="package")
def browser(playwright: Playwright) -> Iterator[Browser]:
    """Debian's Chromium without a window; as root it cannot have its sandbox."""
    chromium = shutil.which("chromium")
    if chromium is None:
        cannot("no chromium here: apt-get install chromium")
    started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"], timeout=90_000)
    yield started
    started.close()


@pytest.fixture(scope="package")
def firefox(playwright: Playwright) -> Iterator[Browser]:
    """Debian's Firefox without a window, over WebDriver BiDi: without emulated media, and with a style of Playwright in screenshots."""
    found = shutil.which("firefox-esr")
    if found is None:
        cannot("no firefox-esr here: apt-get install firefox-esr")
    started = playwright.firefox.launch(executable_path=found, channel="moz-firefox", timeout=90_000)
    try:
        started.new_page().close()
    except Error as why:
        started.close()
        cannot(f"this Playwright cannot drive this Firefox (use the version in constraints.txt): {why.message}")
    yield started
    started.close()


@pytest.fixture(scope="package", params=["chromium", pytest.param("firefox", marks=pytest.mark.long)])
def either(request: pytest.FixtureRequest) -> Browser:
    """Both browsers, one after the other."""
    found: Browser = request.getfixturevalue("browser" if request.param == "chromium" else request.param)
    return found


@pytest.fixture(scope="package")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the file of a page in `PAGES`, written once."""
    folder = tmp_path_factory.mktemp("pages")

    def write(name: str) -> Path:
        path = folder / f"{name}.html"
        return path if path.exists() else PAGES[name](path)

    return write


@pytest.fixture(params=IN_TURN)
def seen(request: pytest.FixtureRequest, either: Browser, written: Callable[[str], Path]) -> Iterator[ObservedPage]:
    """Each page in each browser, 1280 pixels wide, and what it did meanwhile."""
    page = either.new_page(**AS_OPENED)
    yield ObservedPage.opening(page, written(request.param))
    page.close()


@pytest.fixture
def page(seen: ObservedPage) -> Page:
    """The page alone."""
    return seen.page


@pytest.fixture
def opened(either: Browser, written: Callable[[str], Path]) -> Iterator[Callable[[str], Page]]:
    """Open one page in each browser; afterwards it must not have written to the console."""
    pages: list[ObservedPage] = []

    def open_page(name: str) -> Page:
        pages.append(ObservedPage.opening(either.new_page(**AS_OPENED), written(name)))
        return pages[-1].page

    yield open_page
    for each in pages:
        each.page.close()
        assert each.said == []


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
