"""Every kind of page, in Chromium and Firefox: no console message, no request, never too wide, legible in light and dark."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.pages import CHARTLESS, IN_TURN, ObservedPage
from tests.conftest import needs_plugin

# By class of box, the fills of the machine drawings; and everything else in any drawing that is black, which no theme uses.
FILLS = """() => {
  const fill = (each) => getComputedStyle(each).fill;
  const shapes = [...document.querySelectorAll("figure svg :is(rect, circle, text, use)")].filter((each) => !each.closest("defs"));
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
OPEN = "for (const part of document.querySelectorAll('details')) part.open = true"
FITS = """() => {
  const shown = [...document.querySelectorAll("h1, .badge, .figures dd, .figures dt, .controls button, .uplot")];
  const fits = (element) => element.getBoundingClientRect().left >= 0 && element.getBoundingClientRect().right <= innerWidth;
  return shown.every(fits) && document.documentElement.scrollWidth <= innerWidth;
}"""
# Nothing is cut off: axe judges what it can see.
UNCUT = """() => {
  for (const part of document.querySelectorAll(".charts")) part.style.display = "block";
  for (const part of document.querySelectorAll(".scroll")) Object.assign(part.style, { maxHeight: "none", overflow: "visible" });
  for (const part of document.querySelectorAll(".block")) part.style.minWidth = "max-content";
}"""
# axe cannot judge the color of text in SVG: SVG_CONTRAST does.
AXE = """async () => {
  const found = await axe.run({ exclude: ["svg"] });
  const open = found.incomplete.filter((each) => each.id === "color-contrast");
  return [...found.violations, ...open].map((each) => `${each.id}: ${each.nodes.slice(0, 3).map((node) => node.html).join(" | ")}`);
}"""
# Text in drawings with a contrast below 4.5 to the paper; in drawings of machines and matrices each text has a box of its own.
SVG_CONTRAST = """() => {
  const light = (color) => {
    const [red, green, blue] = color.match(/[\\d.]+/g).slice(0, 3).map(Number).map((each) => each / 255)
      .map((share) => share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  return [...document.querySelectorAll("figure svg:not(.probe) text")].filter((text) => {
    const colors = [getComputedStyle(text).fill, getComputedStyle(text.closest("figure")).backgroundColor];
    const [dark, bright] = colors.map(light).sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05) < 4.5;
  }).map((text) => `${text.closest("figure").id}: ${text.textContent} ${getComputedStyle(text).fill}`);
}"""
COLLIDING = """() => [...document.querySelectorAll("figure svg")].flatMap((svg) => {
  const visible = [...svg.querySelectorAll("text")].filter((text) => text.getBoundingClientRect().width);
  const texts = visible.map((text) => [text.textContent, text.getBoundingClientRect()]);
  const wide = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left); // how far both go together; below 0 the gap
  const high = (a, b) => Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
  return texts.flatMap(([one, a], index) => texts.slice(index + 1)
    .filter(([, b]) => wide(a, b) > -1 && high(a, b) > 0.6 * Math.min(a.height, b.height)) // boxes are higher than letters
    .map(([other]) => `${svg.closest("figure").id}: ${one} | ${other}`));
})"""
NAMELESS = """() => [...document.querySelectorAll("main > section, .plot, .scroll, table, figure svg")].filter((each) => {
  const named = each.getAttribute("aria-labelledby")?.split(" ").map((id) => document.getElementById(id)?.textContent ?? "").join("");
  return !(named ?? each.getAttribute("aria-label") ?? "").trim() && !each.closest("[aria-hidden=true]");
}).map((each) => each.outerHTML.slice(0, 200))"""
SHEETS = re.compile(rb"/Type ?/Page\b")


@pytest.mark.often("firefox-two-hosts")
def test_a_page_requests_nothing_and_has_no_console_message(seen: ObservedPage) -> None:
    seen.page.evaluate(OPEN)
    assert [url for url in seen.asked if url != seen.page.url] == []
    assert seen.page.evaluate("performance.getEntriesByType('resource').length") == 0
    assert seen.said == []


def test_machines_are_drawn_in_the_colors_of_the_theme(seen: ObservedPage) -> None:
    seen.page.evaluate(OPEN)
    for scheme, wanted in (("light", LIGHT), ("dark", DARK)):
        found = seen.page.evaluate(FILLS)
        drawn = {box: fills for box, fills in found["boxes"].items() if fills}
        assert drawn == {box: [wanted[box]] for box in drawn}
        assert set(found["words"]) <= {INK[scheme]}
        assert found["black"] == []
        assert found["sheets"] == 1
        seen.page.locator("#theme").click()
    assert seen.said == []


def test_the_first_screen_has_the_answer_with_a_word_and_a_shape(page: Page) -> None:
    assert len(page.locator("h1").inner_text()) > 10
    badge = page.locator(".badge")
    if badge.count():
        assert badge.inner_text().strip()
        assert badge.evaluate("(badge) => getComputedStyle(badge, '::before').content") in ('"●"', '"▲"', '"◆"', '"○"')
    assert page.locator(".figures div").count() <= 4
    lowest = page.evaluate(
        "Math.max(...[...document.querySelectorAll('h1, .badge, .figures')].map((each) => each.getBoundingClientRect().bottom))"
    )
    assert lowest < 450
    if Path(page.url).stem in CHARTLESS:
        return
    chart = page.locator("main > .charts > figure").locator(".sheet > svg:visible, canvas:visible").first.bounding_box()
    assert chart and chart["y"] < 600 and chart["height"] > 100


def test_sections_are_folded_unless_there_is_only_one_and_the_contents_open_them(page: Page) -> None:
    names = page.evaluate("[...document.querySelectorAll('[id]')].map((each) => each.id)")
    assert len(names) == len(set(names))
    sections = page.locator("main > section > details")
    assert sections.evaluate_all("(all) => all.filter((each) => each.open).length") == (sections.count() == 1)
    links = page.evaluate("[...document.querySelectorAll('nav a')].map((link) => link.hash.slice(1))")
    assert links == sections.evaluate_all("(all) => all.map((each) => each.id)") != []
    page.locator("nav a").last.click()
    page.wait_for_function("(id) => document.getElementById(id).open", arg=links[-1])


@pytest.mark.parametrize("width", [320, 400, 640, 1920])
def test_the_page_is_never_wider_than_the_window(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate(OPEN)
    page.wait_for_function(FITS)  # a chart changes its size after the window


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_and_leaves_no_color_open(page: Page, axe: str, dark: bool) -> None:
    if dark:
        page.locator("#theme").click()
    page.evaluate(axe)
    page.evaluate(OPEN)
    page.evaluate(UNCUT)
    assert page.evaluate(AXE) == []
    assert page.evaluate(SVG_CONTRAST) == []
    assert page.evaluate(NAMELESS) == []


@needs_plugin("drawings")
@pytest.mark.parametrize("name", ["eight-gpus", "regression", "two-hosts"])
def test_on_a_phone_a_drawing_that_scrolls_has_the_focus_and_a_name(opened: Callable[[str], Page], axe: str, name: str) -> None:
    page = opened(name)
    page.set_viewport_size({"width": 400, "height": 800})
    page.evaluate(OPEN)
    page.evaluate(axe)
    rules = "axe.run({ runOnly: ['scrollable-region-focusable'] })"
    assert page.evaluate(f"{rules}.then((found) => found.violations.map((each) => each.id))") == []
    drawing = page.locator("#machine .drawing").last
    assert drawing.evaluate("(drawing) => drawing.scrollWidth > drawing.clientWidth")
    drawing.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("(drawing) => drawing.scrollLeft > 0", arg=drawing.element_handle())
    title = "(drawing) => document.getElementById(drawing.getAttribute('aria-labelledby')).textContent"
    assert drawing.evaluate(title) == page.locator("#machine figure h3").last.inner_text()


def test_no_label_of_a_drawing_lies_upon_another(page: Page) -> None:
    page.evaluate(OPEN)
    assert page.evaluate(COLLIDING) == []


def test_a_drawing_of_eight_gpus_fits_its_frame(opened: Callable[[str], Page]) -> None:
    page = opened("eight-gpus")
    page.set_viewport_size({"width": 1024, "height": 900})
    page.evaluate(OPEN)
    frame = page.locator(".drawing:has(svg.probe)").first
    assert frame.locator("rect.gpu").count() >= 8
    assert frame.evaluate("(frame) => frame.scrollWidth <= frame.clientWidth")


def test_a_page_is_short_before_it_is_unfolded(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollHeight") <= 4000


def test_the_file_of_many_cases_is_small_and_what_is_unfolded_is_printed(written: Callable[[str], Path], browser: Browser) -> None:
    assert written("cpu-sweep").stat().st_size <= 400_000
    page = browser.new_page()
    page.goto(written("two-hosts").as_uri())
    page.evaluate("for (const part of document.querySelectorAll('.folded')) part.open = true")
    assert 2 < len(SHEETS.findall(page.pdf(format="A4"))) <= 16
    page.close()


def test_on_a_phone_every_percentage_and_the_whole_chart_are_in_view(opened: Callable[[str], Page]) -> None:
    page = opened("two-hosts")
    page.set_viewport_size({"width": 400, "height": 800})
    first = page.locator(".figures dd").first
    assert first.inner_text().endswith(" %")
    assert 0 < first.bounding_box()["y"] < 400  # type: ignore[index]
    page.evaluate(OPEN)
    chart = page.locator("#sizes-0 canvas")
    page.wait_for_function("(canvas) => canvas.getBoundingClientRect().right <= innerWidth", arg=chart.element_handle())
    results = page.locator("#overview td[data-head='bus bandwidth']")
    right = "(all) => all.map((each) => [each.textContent, Math.max(each.getBoundingClientRect().right, each.scrollWidth)])"
    found = results.evaluate_all(right)
    assert any(" %)" in text for text, _ in found)
    assert [text for text, end in found if end > 400] == []


@pytest.mark.parametrize("name", IN_TURN)
def test_a_page_prints_on_few_sheets_with_its_chart(browser: Browser, written: Callable[[str], Path], name: str) -> None:
    page = browser.new_page(viewport={"width": 688, "height": 900})  # the pixels between the margins of A4
    seen = ObservedPage.opening(page, written(name))
    assert len(SHEETS.findall(page.pdf(format="A4"))) <= 2
    page.emulate_media(media="print")
    assert page.locator(".plot:visible, .controls:visible, nav:visible, #theme:visible").count() == 0
    assert name in CHARTLESS or page.locator("main > .charts > figure .sheet > svg").is_visible()
    page.evaluate(OPEN)
    assert page.evaluate("document.documentElement.scrollWidth") == 688
    assert page.evaluate(SVG_CONTRAST) == []
    page.close()
    assert seen.said == []
