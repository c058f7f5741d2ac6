"""What a reader of the page meets in a real browser: nothing from outside, charts that are there, at every width, and on paper."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.pages import EVIL, Seen, hostile_page

FIGURES = """() => [...document.querySelectorAll("figure")].map((figure) => {
  const picture = figure.querySelector(".drawing svg, .drawing img");
  const box = picture?.getBoundingClientRect();
  return {
    key: figure.id,
    width: box?.width ?? 0,
    height: box?.height ?? 0,
    marks: picture?.querySelectorAll("path, use, circle, rect, image, text").length ?? 0,
    says: figure.querySelector("figcaption p").textContent,
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
DRAWN_IN = ["--ink", "--soft", "--link", "--limit", "--bound", "--bad", *(f"--series-{number}" for number in range(4))]
AXE = """async (rules) => {
  const found = await axe.run(document, { resultTypes: ["violations"], ...(rules && { runOnly: rules }) });
  return found.violations.filter((each) => ["serious", "critical"].includes(each.impact))
    .map((each) => `${each.id}: ${each.nodes.slice(0, 3).map((node) => node.html.slice(0, 200)).join(" | ")}`);
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


def test_the_page_asks_nobody_for_anything_and_has_no_error(seen: Seen, report: Path) -> None:
    assert seen.asked == [report.as_uri()]
    assert seen.said == []
    assert seen.page.evaluate("performance.getEntriesByType('resource').length") == 0


def test_every_chart_is_drawn_says_what_it_shows_and_has_its_table(page: Page) -> None:
    figures = page.evaluate(FIGURES)
    assert len(figures) >= 4
    for figure in figures:
        assert figure["width"] > 200, figure
        assert figure["height"] > 60, figure
        assert figure["marks"] > 3, figure
        assert len(figure["says"]) > 10, figure
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
    page.locator("nav a").last.click()
    page.locator("nav li:last-child a[aria-current]").wait_for()
    page.evaluate("scrollTo({ top: 0, behavior: 'instant' })")
    page.locator("nav li:first-child a[aria-current]").wait_for()
    assert page.locator("nav a[aria-current]").count() == 1


@pytest.mark.parametrize("width", [320, 768, 1920])
def test_the_page_is_never_wider_than_the_window(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.evaluate("for (const part of document.querySelectorAll('details')) part.open = false")
    page.set_viewport_size({"width": 1280, "height": 900})


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
    page.emulate_media(media="screen")
    button.click()
    page.evaluate("delete document.documentElement.dataset.theme")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_whatever_is_drawn_stands_out_from_the_paper(page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    paper = _background(page)
    colours = page.evaluate(COLOURS, DRAWN_IN)
    assert len(colours) > len(DRAWN_IN)
    assert {name: colour for name, colour in colours.items() if _contrast(colour, paper) < 4.5} == {}
    page.emulate_media(color_scheme="light")


def test_axe_finds_nothing_serious_with_everything_open(page: Page, axe: str) -> None:
    page.evaluate(axe)
    page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
    assert page.evaluate(AXE, None) == []
    page.evaluate("for (const part of document.querySelectorAll('details')) part.open = false")


def test_axe_finds_every_text_legible_in_the_dark(page: Page, axe: str) -> None:
    page.emulate_media(color_scheme="dark")
    page.evaluate(axe)
    assert page.evaluate(AXE, ["color-contrast"]) == []
    page.emulate_media(color_scheme="light")


def test_folded_parts_are_printed(page: Page) -> None:
    page.emulate_media(media="print")
    heights = page.evaluate("[...document.querySelectorAll('details table')].map((table) => table.getBoundingClientRect().height)")
    assert min(heights) > 20
    assert not page.locator("nav").is_visible()
    page.emulate_media(media="screen")
    assert page.pdf(format="A4").startswith(b"%PDF-")


def test_a_browser_that_keeps_folded_parts_off_the_paper_has_them_opened_meanwhile(page: Page) -> None:
    folded = "document.querySelectorAll('details:not([open])').length"
    before = page.evaluate(folded)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(folded) == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(folded) == before > 0


def test_without_a_script_all_is_read_and_folded_parts_open(browser: Browser, report: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.locator("figure svg, figure img").first.is_visible()
    assert not page.locator("#theme").is_visible()
    values = page.locator("details").nth(1)
    assert not values.locator("table").is_visible()
    values.locator("summary").click()
    assert values.locator("table").is_visible()
    context.close()


def test_hostile_text_is_shown_and_does_nothing(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen.opening(browser.new_page(), path := hostile_page(tmp_path / "evil.html", monkeypatch))
    assert (seen.asked, seen.said) == ([path.as_uri()], [])
    assert seen.page.title() == "collbench"
    assert seen.page.locator("section > p").first.inner_text() == EVIL
    assert seen.page.locator("img, main script:not([type='application/json'])").count() == 0
    seen.page.locator(".drawing").focus()
    seen.page.keyboard.press("ArrowRight")
    assert seen.page.locator("#tip").inner_text() == EVIL
    assert seen.page.locator(".links a").get_attribute("href") == "javascript%3Aalert(1)/run.json"
    seen.page.close()


def test_the_page_itself_forbids_the_network(browser: Browser, report: Path) -> None:
    page = browser.new_page()
    page.goto(report.as_uri())
    refused = """() => new Promise((done) => {
      addEventListener("securitypolicyviolation", (event) => done(event.effectiveDirective));
      fetch("http://127.0.0.1:9/").catch(() => {});
    })"""
    assert page.evaluate(refused) == "connect-src"
    page.close()
