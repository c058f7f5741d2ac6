"""Every page of the gallery and one of a machine with eight GPUs: no console message, one style sheet, drawings in the page's colours."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser.pages import REPORTS, ObservedPage, gpu_page

GALLERY = sorted((REPORTS / "gallery").glob("*.html"))
EIGHT_GPUS = "eight-gpus"
# By class of box, the fills of the machine drawings; and everything else in any drawing that is black, which no theme uses.
FILLS = """() => {
  const fill = (each) => getComputedStyle(each).fill;
  const shapes = [...document.querySelectorAll("figure svg :is(rect, circle, path, text, use)")].filter((each) => !each.closest("defs"));
  return {
    boxes: Object.fromEntries(["page", "panel", "cpu", "switch", "gpu", "nic"].map((name) =>
      [name, [...new Set([...document.querySelectorAll(`svg.probe rect.${name}`)].map(fill))]])),
    words: [...new Set([...document.querySelectorAll("svg.probe text.name")].map(fill))],
    black: shapes.filter((each) => fill(each) === "rgb(0, 0, 0)").map((each) => each.outerHTML.slice(0, 120)),
    sheets: document.querySelectorAll("style").length,
  };
}"""
LIGHT = {
    "page": "rgb(255, 255, 255)", "panel": "rgb(246, 248, 251)", "cpu": "rgb(227, 233, 242)",
    "switch": "rgb(233, 228, 246)", "gpu": "rgb(228, 243, 223)", "nic": "rgb(224, 239, 251)",
}  # fmt: skip
DARK = {
    "page": "rgb(20, 23, 26)", "panel": "rgb(23, 30, 41)", "cpu": "rgb(36, 48, 67)",
    "switch": "rgb(43, 37, 68)", "gpu": "rgb(27, 51, 32)", "nic": "rgb(21, 47, 71)",
}  # fmt: skip
INK = {"light": "rgb(26, 35, 48)", "dark": "rgb(232, 237, 244)"}


@pytest.fixture(scope="module")
def eight_gpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run on two nodes with eight GPUs each."""
    return gpu_page(tmp_path_factory.mktemp("gpus"))


@pytest.mark.parametrize("name", [*(path.stem for path in GALLERY), EIGHT_GPUS])
def test_a_page_has_no_console_message_and_draws_in_its_own_colours(name: str, browser: Browser, eight_gpus: Path) -> None:
    path = eight_gpus if name == EIGHT_GPUS else REPORTS / "gallery" / f"{name}.html"
    page = browser.new_page(color_scheme="light")
    seen = ObservedPage.opening(page, path)
    for scheme, wanted in (("light", LIGHT), ("dark", DARK)):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        found = page.evaluate(FILLS)
        drawn = {box: fills for box, fills in found["boxes"].items() if fills}
        assert drawn == {box: [wanted[box]] for box in drawn}
        assert set(found["words"]) <= {INK[scheme]}
        assert found["black"] == []
        assert found["sheets"] == 1
        if name == EIGHT_GPUS:
            assert set(drawn) == set(wanted)
    assert seen.said == []
    page.close()
