"""Each page looks as its stored picture: light, dark, on a phone and on paper. COLLBENCH_GOLDEN=1 takes the pictures again: look at them.

A picture is the screenshot in Chromium in 16 levels of grey, a point for 8 × 8 pixels. One of 250 points may differ by more than 32 of 255:
a browser that smooths edges otherwise stays below, and a missing chart or a title upon other text is far above.
"""

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops
from PIL.PngImagePlugin import PngInfo
from playwright.sync_api import Browser, Page

from tests.browser.pages import PAGES, ObservedPage, page_parameter
from tests.conftest import cannot

FOLDER = Path(__file__).parents[1] / "golden" / "looks"
POINT, LEVEL = 8, 17  # pixels of a point; 16 levels from 0 to 255
FAR, MOST = 32, 0.004  # a point differs; so many of all may
HIGHEST = 2400  # pixels of a page that are compared
MOST_BYTES = 20_000
LOOKS: dict[str, Any] = {
    "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 400, "height": 800}, "color_scheme": "light"},
    "paper": {"viewport": {"width": 688, "height": 900}, "color_scheme": "light"},  # the pixels between the margins of A4
}
ADOPT = """(style) => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(style);
  document.adoptedStyleSheets = [sheet];
}"""
# Each is a way to break the page, as a style.
BROKEN = {
    "a chart is missing": "main > .charts { display: none }",
    "a chart is empty": ".drawing { visibility: hidden }",
    "the title lies upon the figures": ".answer { height: 0; margin-bottom: -1rem } .figures { margin-top: -2rem }",
    "the figures are missing": ".figures { visibility: hidden }",
}


def opened(browser: Browser, path: Path, look: str) -> Page:
    """Return the page in one of the LOOKS."""
    page = browser.new_page(reduced_motion="reduce", **LOOKS[look])
    ObservedPage.opening(page, path)
    if look == "paper":
        page.emulate_media(media="print")
    return page


def taken(page: Page) -> Image.Image:
    """Return the picture of the page."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    shot = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("L")
    grey = shot.crop((0, 0, shot.width, min(shot.height, HIGHEST))).reduce(POINT)
    return grey.point([(value // 16) * LEVEL for value in range(256)])


def font_of(page: Page) -> str:
    """Return the font that Chromium draws the title with: other fonts break lines elsewhere."""
    session = page.context.new_cdp_session(page)
    session.send("DOM.enable")
    session.send("CSS.enable")
    root = session.send("DOM.getDocument")["root"]["nodeId"]
    title = session.send("DOM.querySelector", {"nodeId": root, "selector": "h1"})["nodeId"]
    fonts = session.send("CSS.getPlatformFontsForNode", {"nodeId": title})["fonts"]
    return ", ".join(sorted(str(font["familyName"]) for font in fonts))


def difference(one: Image.Image, other: Image.Image) -> float:
    """Return the share of points that differ by more than FAR; 1.0 where the height differs by more than two points."""
    if one.width != other.width or abs(one.height - other.height) > 2:
        return 1.0
    box = (0, 0, one.width, min(one.height, other.height))
    counts = ImageChops.difference(one.crop(box), other.crop(box)).histogram()
    return sum(counts[FAR + 1 :]) / (box[2] * box[3])


def golden(name: str, page: Page) -> Image.Image:
    """Return the stored picture; with COLLBENCH_GOLDEN=1 after storing that of the page. Skips if the page has other fonts."""
    path, font = FOLDER / f"{name}.png", font_of(page)
    if os.environ.get("COLLBENCH_GOLDEN") == "1":
        FOLDER.mkdir(exist_ok=True)
        info = PngInfo()
        info.add_text("font", font)
        taken(page).save(path, optimize=True, pnginfo=info)
    stored = Image.open(path)
    if stored.info.get("font") != font:  # type: ignore[no-untyped-call]
        cannot(f"the pictures have the font {stored.info.get('font')}, and Chromium draws with {font} here")
    return stored.convert("L")


@pytest.mark.often("slow-host-light")
@pytest.mark.long
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", [page_parameter(name) for name in sorted(PAGES)])
def test_a_page_looks_as_its_stored_picture(browser: Browser, written: Callable[[str], Path], name: str, look: str) -> None:
    page = opened(browser, written(name), look)
    found = difference(golden(f"{name}-{look}", page), taken(page))
    page.close()
    assert found <= MOST


@pytest.mark.often("the title lies upon the figures")
@pytest.mark.long
@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_page_does_not(browser: Browser, written: Callable[[str], Path], broken: str) -> None:
    page = opened(browser, written("two-hosts"), "light")
    stored = golden("two-hosts-light", page)
    assert difference(stored, taken(page)) <= MOST
    page.evaluate(ADOPT, BROKEN[broken])
    found = difference(stored, taken(page))
    page.close()
    assert found > 2 * MOST


def test_the_pictures_are_small_and_each_is_of_a_page() -> None:
    sizes = {path.stem: path.stat().st_size for path in FOLDER.iterdir()}
    assert sizes.keys() == {f"{name}-{look}" for name in PAGES for look in LOOKS}
    assert max(sizes.values()) <= MOST_BYTES
