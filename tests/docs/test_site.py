"""The site builds without a warning, loads nothing from another host, and works as a folder of files."""

import json
import re
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.site import PYTHON, built

pytestmark = pytest.mark.system

_RESOURCES = {**dict.fromkeys(("script", "img", "iframe", "source", "video", "audio", "embed"), "src"), "object": "data"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does."""
    return built(tmp_path_factory.mktemp("site"))


class _Page(HTMLParser):
    """What a page loads, where its links lead, and its anchors."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        if tag in _RESOURCES and found.get(_RESOURCES[tag]):
            self.loads.append(found[_RESOURCES[tag]])
        if tag == "link" and found.get("rel") not in ("canonical", "prev", "next", "alternate"):
            self.loads.append(found.get("href", ""))
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        self.anchors |= {found[name] for name in ("id", "name") if found.get(name)}


def _pages(site: Path) -> Iterator[Path]:
    yield from (file for file in site.rglob("*.html") if "gallery" not in file.parts)


def _is_elsewhere(url: str) -> bool:
    return bool(urlsplit(url).netloc) or urlsplit(url).scheme in ("http", "https")


@pytest.mark.system
def test_no_page_and_no_style_loads_anything_from_another_host(site: Path) -> None:
    found = {str(file): [url for url in _Page(file).loads if _is_elsewhere(url)] for file in _pages(site)}
    assert found and not {page: urls for page, urls in found.items() if urls}
    styles = {str(file): re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)\"']*", file.read_text()) for file in site.rglob("*.css")}
    assert styles and not {file: urls for file, urls in styles.items() if urls}


@pytest.mark.system
def test_every_link_inside_the_site_has_a_target(site: Path) -> None:
    missing = []
    for file in _pages(site):
        for link in _Page(file).links:
            if not _is_elsewhere(link) and not urlsplit(link).scheme and file.name != "404.html":
                target = (file.parent / unquote(urlsplit(link).path)).resolve() if urlsplit(link).path else file
                if not target.exists():
                    missing.append(f"{file.relative_to(site)}: {link}")
    assert not missing


def test_each_page_shows_the_version_and_generated_pages_and_schemas_are_there(site: Path) -> None:
    command = [PYTHON, "-P", "-c", "from importlib.metadata import version; print(version('collbench'))"]
    version = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert f"collbench {version}" in (site / "index.html").read_text(encoding="utf-8")
    places = {entry["location"].partition("#")[0] for entry in json.loads((site / "search/search_index.json").read_text())["docs"]}
    assert {"reference/flags.html", "reference/cli/allreduce.html", "develop/architecture.html", "reference/ports.html"} <= places
    for name in ("suite", "verdict", "recommendation"):
        assert json.loads((site / f"reference/schemas/{name}.schema.json").read_text())["$schema"].startswith("https://json-schema.org/")
