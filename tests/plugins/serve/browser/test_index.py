"""The index of `collbench report DIR --serve` in Chromium and Firefox: runs, search, trends, and the page of each run."""

import threading
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from collbench.plugins.serve.server import RunServer
from tests.browser.pages import ObservedPage
from tests.browser.test_gallery import AXE, SVG_CONTRAST
from tests.results.rows import make_row, store

GIB = 1e9


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of eight nights of two operations, one name of which is hostile."""
    folder = tmp_path_factory.mktemp("runs")
    for night in range(1, 9):
        rows = [make_row(operation=each, busbw_bytes_per_s=(40 - night) * GIB) for each in ("allreduce", "broadcast")]
        name = "night-<img src=x>" if night == 8 else f"night-{night}"
        store(folder / name, rows if night % 2 else rows[:1], started_utc=f"2026-11-{night:02}T03:00:00+00:00", exit_code=0)
    with RunServer(folder, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.address
        server.shutdown()
        thread.join()


@pytest.fixture
def index(either: Browser, address: str) -> Iterator[Page]:
    """The index in each browser; afterwards it must have written nothing to the console."""
    page = either.new_page(viewport={"width": 1280, "height": 900})
    seen = ObservedPage(page)
    page.on("console", lambda message: seen.said.append(message.text))
    page.on("pageerror", lambda error: seen.said.append(str(error)))
    page.on("request", lambda request: seen.asked.append(request.url))
    page.goto(address)
    yield page
    page.close()
    assert seen.said == []
    assert [url for url in seen.asked if not url.startswith(address)] == []


def names(page: Page) -> list[str]:
    return page.locator("tbody th").all_inner_texts()


def test_the_keyboard_searches_runs_and_their_operations(index: Page) -> None:
    index.get_by_role("searchbox").focus()
    index.keyboard.type("broadcast night")
    index.keyboard.press("Enter")
    expect(index.locator("tbody th")).to_have_text(["night-7", "night-5", "night-3", "night-1"])
    assert index.get_by_role("searchbox").input_value() == "broadcast night"
    assert "4 of 8 runs" in index.locator("form > p").first.inner_text()


def test_a_run_leads_to_its_page_and_back(index: Page) -> None:
    index.get_by_role("link", name="night-3", exact=True).click()
    expect(index.locator("h1")).to_contain_text("2 operations on 1 node, 4 ranks")
    expect(index.locator("main > .charts svg")).to_be_visible()
    index.go_back()
    assert names(index) == ["night-<img src=x>", *(f"night-{night}" for night in range(7, 0, -1))]
    index.get_by_role("link", name="night-3", exact=True).click()
    index.get_by_role("link", name="All runs").click()
    expect(index.locator("tbody th")).to_have_count(8)


def test_selected_runs_are_compared_by_keyboard(index: Page) -> None:
    for name in ("night-2", "night-<img src=x>"):
        index.get_by_role("checkbox", name=f"compare {name}", exact=True).focus()
        index.keyboard.press("Space")
    index.get_by_role("button", name="Compare the selected runs").click()
    expect(index.locator(".badge").first).to_be_visible()
    expect(index.locator(".more li").first).to_contain_text("night-<img src=x> against night-2, the baseline")
    assert index.locator("img").count() == 0
    index.get_by_role("link", name="All runs").click()
    expect(index.locator("tbody th")).to_have_count(8)


def test_nothing_is_too_wide_and_axe_finds_nothing(index: Page, axe: str) -> None:
    index.evaluate(axe)
    assert index.evaluate(AXE) == []
    assert index.evaluate(SVG_CONTRAST) == []
    for width in (320, 400, 1920):
        index.set_viewport_size({"width": width, "height": 900})
        assert index.evaluate("document.documentElement.scrollWidth") <= width


def test_it_is_legible_in_the_dark(browser: Browser, address: str, axe: str) -> None:
    page = browser.new_page(color_scheme="dark")
    page.goto(address)
    assert page.evaluate("getComputedStyle(document.querySelector('figure')).backgroundColor") == "rgb(20, 23, 26)"
    page.evaluate(axe)
    assert page.evaluate(AXE) == []
    assert page.evaluate(SVG_CONTRAST) == []
    page.close()
