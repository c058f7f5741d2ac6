"""Exact values, under the pointer and by the arrow keys."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page

LIST = "figure > script.spots"
PLACES = """(list) => {
  const picture = list.parentElement.querySelector(".drawing svg, .drawing img");
  const box = picture.getBoundingClientRect();
  const scale = box.width / (picture.viewBox ? picture.viewBox.baseVal.width : picture.naturalWidth);
  return JSON.parse(list.textContent).map(([x, y, text]) => ({
    x: box.left + x * scale, y: box.top + y * scale, text, inside: x * scale <= box.width && y * scale <= box.height && Math.min(x, y) >= 0,
  }));
}"""


@pytest.fixture
def page(opened: Callable[[str], Page]) -> Page:
    """The page of two hosts with everything open."""
    page = opened("two-hosts")
    page.evaluate("for (const part of document.querySelectorAll('.folded')) part.open = true")
    return page


@pytest.fixture
def drawing(page: Page) -> Locator:
    """The first chart with spots, in the middle of the window."""
    found = page.locator("figure:has(> script.spots) .drawing").first
    found.evaluate("(one) => one.scrollIntoView({ block: 'center', behavior: 'instant' })")
    return found


def _told(page: Page) -> str | None:
    tip = page.locator("#tip")
    return str(tip.evaluate("(tip) => tip.textContent")) if tip.is_visible() else None


def test_every_spot_lies_in_its_drawing_and_reports_something(page: Page) -> None:
    spots = page.evaluate(f"[...document.querySelectorAll('{LIST}')].flatMap({PLACES})")
    assert len(spots) > 20
    assert all(spot["inside"] and spot["text"].strip() for spot in spots)


def test_the_pointer_finds_the_exact_value_and_leaves_nothing_behind(page: Page, drawing: Locator) -> None:
    places = page.locator(LIST).first.evaluate(PLACES)
    spot = places[len(places) // 2]
    page.mouse.move(spot["x"], spot["y"])
    assert _told(page) in {each["text"] for each in places if abs(each["x"] - spot["x"]) + abs(each["y"] - spot["y"]) < 0.5}
    box = page.locator("#tip").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 1280
    page.mouse.move(2, 2)
    assert _told(page) is None
    assert page.locator(".here").count() == 0


def test_a_finger_that_lifts_leaves_the_value_until_the_next_touch(page: Page, drawing: Locator) -> None:
    spot = page.locator(LIST).first.evaluate(PLACES)[0]
    at = {"clientX": spot["x"], "clientY": spot["y"], "pointerType": "touch"}
    drawing.dispatch_event("pointerdown", at)
    drawing.dispatch_event("pointerleave", at)
    assert _told(page) == spot["text"]
    page.locator("h1").dispatch_event("pointerdown", at)
    assert _told(page) is None


def test_arrow_keys_walk_through_the_points_and_change_the_series_at_the_same_size(page: Page, drawing: Locator) -> None:
    texts = [each["text"] for each in page.locator(LIST).first.evaluate(PLACES)]
    drawing.focus()
    walk = [("Home", 0), ("ArrowRight", 1), ("ArrowLeft", 0), ("ArrowLeft", 0), ("End", -1), ("ArrowRight", -1), ("Home", 0)]
    for key, index in walk:
        page.keyboard.press(key)
        assert _told(page) == texts[index]
        assert page.locator("#announcement[aria-live=polite]").evaluate("(one) => one.textContent") == texts[index]
    page.keyboard.press("Escape")
    assert _told(page) is None
    places = page.locator(LIST).first.evaluate(PLACES)
    first = places[0]
    above = [each for each in places if abs(each["x"] - first["x"]) < 0.5 and each["y"] < first["y"] - 0.5]
    drawing.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowUp")
    assert _told(page) == (max(above, key=lambda each: each["y"])["text"] if above else first["text"])
    page.keyboard.press("Escape")


def test_the_keyboard_reaches_a_chart_and_shows_where_it_is(page: Page, drawing: Locator) -> None:
    drawing.focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    assert drawing.evaluate("(one) => one === document.activeElement && getComputedStyle(one).outlineStyle") == "solid"
    drawing.evaluate("(one) => one.blur()")
