"""The documentation site, opened as files: the search works, and no host is asked for anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.docs.site import built


@pytest.mark.system
def test_opened_as_files_the_search_works_and_asks_no_host(browser: Browser, tmp_path: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((built(tmp_path / "site") / "index.html").as_uri())
    page.locator("input.md-search__input").click()
    page.keyboard.type("oversubscribed")
    page.locator(".md-search-result__link").first.wait_for(timeout=30_000)
    found = page.locator(".md-search-result__link").evaluate_all("links => links.map(link => link.href)")
    page.close()
    assert any("reference/flags.html" in link for link in found), found
    assert asked and all(url.startswith(("file:", "data:", "blob:", "about:")) for url in asked)
