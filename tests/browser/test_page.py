"""What a reader of the page meets in a real browser: nothing from outside, charts that are there, at every width, and on paper."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.pages import EVIL, ObservedPage, hostile_page

FIGURES = """() => [...document.querySelectorAll("figure")].map((figure) => {
  const picture = figure.querySelector(".drawing svg, .drawing img");
  const box = picture?.getBoundingClientRect();
  return {
    key: figure.id,
    width: box?.width ?? 0,
    height: box?.height ?? 0,
    marks: picture?.querySelectorAll("path, use, circle, rect, image, text").length ?? 0,
    caption: figure.querySelector("figcaption p").textContent,
    made: figure.querySelector("details > p").textContent,
    rows: figure.querySelectorAll("details tbody tr").length,
  };
})"""
COLLIDING = """() => [...document.querySelectorAll("figure svg")].flatMap((svg) => {
  const texts = [...svg.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
  const wide = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left); // how far both go together; below 0 the gap
  const high = (a, b) => Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
  return texts.flatMap(([one, a], index) => texts.slice(index + 1)
    .filter(([, b]) => wide(a, b) > -2 && high(a, b) > 3)
    .map(([other]) => `${svg.closest("figure").id}: ${one} | ${other}`));
})"""
COLOURS = """(names) => {
  const probe = document.querySelector("h2").appendChild(document.createElement("i"));
  const found = Object.fromEntries(names.map((name) => {
    probe.style.color = `var(${name})`;
    return [name, getComputedStyle(probe).color];
  }));
  probe.remove();
  for (const text of document.querySelectorAll("figure svg text")) {
    found[`${text.closest("figure").id}: ${text.textContent}`] = getComputedStyle(text).fill;
  }
  return found;
}"""
NAMELESS = """() => [...document.querySelectorAll("main > section, .drawing, .scroll, table")].filter((each) => {
  const named = each.getAttribute("aria-labelledby")?.split(" ").map((id) => document.getElementById(id)?.textContent ?? "").join("");
  return !(named ?? each.getAttribute("aria-label") ?? "").trim();
}).map((each) => each.outerHTML.slice(0, 200))"""
OFF_PAPER = """() => [...document.querySelectorAll("table, .sheet, p, h1, h2, h3")]
  .filter((each) => each.getBoundingClientRect().right > innerWidth + 1)
  .map((each) => `${each.closest("figure, section")?.id}: ${each.textContent.slice(0, 80)}`)"""
FOLDED = "details:not([open]) :is(p, table)"
READ = f"[...document.querySelectorAll('{FOLDED}')].map((part) => part.checkVisibility({{ contentVisibilityAuto: true }}))"
PAPER = 688  # pixels between the margins of A4
OPEN = "for (const part of document.querySelectorAll('details')) part.open = true"
DRAWN_IN = ["--ink", "--soft", "--link", "--limit", "--bound", "--bad", *(f"--series-{number}" for number in range(4))]
REFUSED = {
    "connect-src": "void fetch('http://127.0.0.1:9/').catch(() => {})",
    "img-src": "void (new Image().src = 'http://127.0.0.1:9/x.png')",
    "style-src-elem": "void document.head.append(Object.assign(document.createElement('style'), { textContent: 'h1 { color: red }' }))",
    "script-src-elem": "void document.head.append(Object.assign(document.createElement('script'), { textContent: 'var taken' }))",
    "script-src-attr": "document.body.setAttribute('onclick', 'var taken')",
    "base-uri": "void document.head.append(Object.assign(document.createElement('base'), { href: 'http://127.0.0.1:9/' }))",
}
AXE = """async (rules) => {
  const found = await axe.run(document, { resultTypes: ["violations"], ...(rules && { runOnly: rules }) });
  return found.violations
    .map((each) => `${each.impact} ${each.id}: ${each.nodes.slice(0, 3).map((node) => node.html.slice(0, 200)).join(" | ")}`);
}"""


def _light(colour: str) -> float:
    """The relative luminance of "rgb(0, 90, 148)" as WCAG 2 defines it."""
    shares = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    dark, bright = sorted((_light(one), _light(other)))
    return (bright + 0.05) / (dark + 0.05)


def _background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.querySelector('figure')).backgroundColor"))


def test_the_page_requests_nothing_and_has_no_error(seen: ObservedPage, report: Path) -> None:
    assert seen.asked == [report.as_uri()]
    assert seen.said == []
    assert seen.page.evaluate("performance.getEntriesByType('resource').length") == 0


def test_every_chart_is_drawn_with_its_caption_and_its_table(page: Page) -> None:
    figures = page.evaluate(FIGURES)
    assert len(figures) >= 4
    for figure in figures:
        assert figure["width"] > 200, figure
        assert figure["height"] > 60, figure
        assert figure["marks"] > 3, figure
        assert len(figure["caption"]) > 10, figure
        assert len(figure["made"]) > 40, figure
        assert figure["rows"] > 0, figure


def test_no_label_of_a_drawing_lies_upon_another(page: Page) -> None:
    assert page.evaluate(COLLIDING) == []


def test_anchors_are_unique_and_the_contents_lead_to_every_section(page: Page) -> None:
    names = page.evaluate("[...document.querySelectorAll('[id]')].map((each) => each.id)")
    assert len(names) == len(set(names))
    assert page.evaluate("[...document.querySelectorAll('nav a')].map((link) => link.hash.slice(1))") == page.evaluate(
        "[...document.querySelectorAll('main > section')].map((section) => section.id)"
    )


def test_the_contents_mark_the_section_that_is_read(page: Page) -> None:
    assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"  # this reader wants no motion
    page.locator("nav a").last.click()
    page.locator("nav li:last-child a[aria-current]").wait_for()
    page.evaluate("scrollTo({ top: 0, behavior: 'instant' })")
    page.locator("nav li:first-child a[aria-current]").wait_for()
    assert page.locator("nav a[aria-current]").count() == 1


@pytest.mark.parametrize("width", [320, 640, 768, 1920])
def test_the_page_is_never_wider_than_the_window(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate(OPEN)
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_light_and_dark_follow_the_system_until_the_button_is_pressed(page: Page) -> None:
    light, dark = "rgb(255, 255, 255)", "rgb(20, 23, 26)"
    button = page.locator("#theme")
    expect(button).to_have_text("☾ Dark")
    assert _background(page) == light
    page.emulate_media(color_scheme="dark")
    expect(button).to_have_text("☀ Light")
    assert _background(page) == dark
    button.click()
    expect(button).to_have_text("☾ Dark")
    assert _background(page) == light
    page.emulate_media(color_scheme="light")
    button.click()
    assert _background(page) == dark
    page.emulate_media(media="print")
    assert _background(page) in (light, "rgba(0, 0, 0, 0)")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(26, 35, 48)"


@pytest.mark.parametrize("look", [{"color_scheme": "light"}, {"color_scheme": "dark"}, {"forced_colors": "active"}], ids=str)
def test_every_drawing_is_visible_on_the_paper(page: Page, look: dict[str, Any]) -> None:
    page.emulate_media(**look)
    if "forced_colors" in look:
        page.evaluate("document.documentElement.dataset.theme = 'dark'")  # the button's earlier choice does not apply here
    paper = _background(page)
    colours = page.evaluate(COLOURS, DRAWN_IN)
    assert len(colours) > len(DRAWN_IN)
    assert {name: colour for name, colour in colours.items() if _contrast(colour, paper) < 4.5} == {}


def test_where_the_reader_chooses_the_colours_only_marked_rows_have_a_border(page: Page) -> None:
    page.emulate_media(forced_colors="active")
    assert not page.locator("#theme").is_visible()
    style = "(rows) => [...new Set(rows.map((row) => getComputedStyle(row).borderLeftStyle))]"
    assert page.locator("tbody tr:not([class]) > th").evaluate_all(style) == ["none"]
    assert page.locator("tr.doubtful > th").evaluate_all(style) == ["dashed"]


def test_a_screen_reader_hears_a_name_for_all_there_is_to_go_to(page: Page) -> None:
    assert page.evaluate(NAMELESS) == []
    assert page.locator("thead th:not([scope=col])").count() == 0
    rows = page.locator("tbody tr").count()
    assert page.locator("tbody tr > th:first-child").count() == rows > 50


def test_axe_finds_nothing_with_everything_open(page: Page, axe: str) -> None:
    page.evaluate(axe)
    page.evaluate(OPEN)
    assert page.evaluate(AXE, None) == []


def test_axe_finds_every_text_legible_in_the_dark(page: Page, axe: str) -> None:
    page.emulate_media(color_scheme="dark")
    page.evaluate(axe)
    assert page.evaluate(AXE, ["color-contrast"]) == []


def test_folded_parts_are_printed_and_nothing_is_wider_than_the_paper(page: Page) -> None:
    assert set(page.evaluate(READ)) == {False}
    page.set_viewport_size({"width": PAPER, "height": 900})
    page.emulate_media(media="print")
    page.reload()  # start in print mode: Chromium sometimes keeps the screen's state of folded parts
    page.wait_for_function(f"{READ}.every(Boolean)", timeout=20_000)
    assert page.evaluate(OFF_PAPER) == []
    assert page.evaluate("document.documentElement.scrollWidth") == PAPER
    assert not page.locator("nav").is_visible()


def test_the_page_becomes_a_pdf_of_many_sheets(page: Page) -> None:
    paper = page.pdf(format="A4")
    assert paper.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type ?/Page\b", paper)) > 5


def test_a_browser_that_keeps_folded_parts_off_the_paper_has_them_opened_meanwhile(page: Page) -> None:
    folded = "document.querySelectorAll('details:not([open])').length"
    before = page.evaluate(folded)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(folded) == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(folded) == before > 0


def test_without_a_script_all_is_read_the_first_key_skips_the_contents_and_folded_parts_open(browser: Browser, report: Path) -> None:
    page = browser.new_page(java_script_enabled=False)
    page.goto(report.as_uri())
    page.keyboard.press("Tab")
    skip = page.locator("a.skip:focus")
    expect(skip).to_be_in_viewport()
    skip.press("Enter")
    page.keyboard.press("Tab")
    assert page.locator("main :focus").count() == 1
    for part in ("h1", "h2", "h3", "section > p", ".block table", "figure svg", "figcaption p", "summary", ".links a"):
        assert page.locator(part).count() == page.locator(part).filter(visible=True).count() > 0, part
    assert not page.locator("#theme").is_visible()
    values = page.locator("details").nth(1)
    assert not values.locator("table").is_visible()
    values.locator("summary").click()
    assert values.locator("table").is_visible()
    page.close()


def test_hostile_text_is_shown_and_does_nothing(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = ObservedPage.opening(browser.new_page(), path := hostile_page(tmp_path / "evil.html", monkeypatch))
    assert (seen.asked, seen.said) == ([path.as_uri()], [])
    assert seen.page.title() == "collbench"
    assert seen.page.locator("section > p").first.inner_text() == EVIL
    assert seen.page.locator("img, main script:not([type='application/json'])").count() == 0
    seen.page.locator(".drawing").focus()
    seen.page.keyboard.press("ArrowRight")
    assert seen.page.locator("#tip").inner_text() == EVIL
    assert seen.page.locator(".links a").get_attribute("href") == "javascript%3Aalert(1)/run.json"
    seen.page.close()


def test_the_page_itself_forbids_the_network_and_what_it_does_not_bring(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = browser.new_page()
    page.goto(hostile_page(tmp_path / "page.html", monkeypatch).as_uri())
    for directive, tried in REFUSED.items():
        page.evaluate("addEventListener('securitypolicyviolation', (event) => { window.refused = event.effectiveDirective; })")
        page.evaluate(tried)
        page.wait_for_function("(directive) => window.refused === directive", arg=directive, timeout=20_000)
    assert page.evaluate("typeof taken") == "undefined"
    page.close()
