"""What a reader of the page and of the site meets: the theme, forced colors, hostile texts, a search, and no network."""

import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from collbench.report.frame import printable
from tests.browser.pages import EVIL, IN_TURN, ObservedPage, hostile_page
from tests.conftest import needs_plugin
from tests.docs.site import built

SHOWN = printable(EVIL)
COLOURS = """(names) => {
  const probe = document.querySelector("h2").appendChild(document.createElement("i"));
  const found = Object.fromEntries(names.map((name) => {
    probe.style.color = `var(${name})`;
    return [name, getComputedStyle(probe).color];
  }));
  probe.remove();
  for (const text of document.querySelectorAll("figure svg text:not(.tagged)")) {
    found[`${text.closest("figure").id}: ${text.textContent}`] = getComputedStyle(text).fill;
  }
  return found;
}"""
DRAWN_IN = ["--ink", "--soft", "--link", "--limit", "--bound", "--bad", *(f"--series-{number}" for number in range(4))]
REFUSED = {
    "connect-src": "void fetch('http://127.0.0.1:9/').catch(() => {})",
    "img-src": "void (new Image().src = 'http://127.0.0.1:9/x.png')",
    "style-src-elem": "void document.head.append(Object.assign(document.createElement('style'), { textContent: 'h1 { color: red }' }))",
    "script-src-elem": "void document.head.append(Object.assign(document.createElement('script'), { textContent: 'var taken' }))",
    "script-src-attr": "document.body.setAttribute('onclick', 'var taken')",
    "base-uri": "void document.head.append(Object.assign(document.createElement('base'), { href: 'http://127.0.0.1:9/' }))",
}


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


@pytest.fixture
def page(browser: Browser, written: Callable[[str], Path]) -> Iterator[Page]:
    """The page of two hosts in Chromium, which can emulate what a reader prefers."""
    seen = ObservedPage.opening(browser.new_page(color_scheme="light", reduced_motion="reduce"), written("two-hosts"))
    yield seen.page
    seen.page.close()
    assert seen.said == []


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


def test_hostile_text_is_shown_and_does_nothing(either: Browser, tmp_path: Path) -> None:
    seen = ObservedPage.opening(either.new_page(), path := hostile_page(tmp_path / "evil.html"))
    assert ({*seen.asked} - {path.as_uri()}, seen.said) == (set(), [])
    assert seen.page.title() != "taken"
    for part, text in (("h1", SHOWN), (".badge", EVIL), (".figures dd", EVIL), (".circumstances", SHOWN), (".more li", SHOWN)):
        assert seen.page.locator(part).text_content() == text, part
    assert seen.page.locator(".folded > p").first.text_content() == SHOWN
    assert seen.page.locator("img, main script:not([type='application/json'])").count() == 0
    seen.page.locator(".drawing").focus()
    seen.page.keyboard.press("ArrowRight")
    assert seen.page.locator("#tip").text_content() == EVIL
    assert seen.page.locator(".links a").get_attribute("href") == "javascript%3Aalert(1)/run.json"
    seen.page.close()


def test_the_page_itself_forbids_the_network_and_what_it_does_not_bring(either: Browser, tmp_path: Path) -> None:
    page = either.new_page()
    page.goto(hostile_page(tmp_path / "page.html").as_uri())
    for directive, tried in REFUSED.items():
        page.evaluate("addEventListener('securitypolicyviolation', (event) => { window.refused = event.effectiveDirective; })")
        page.evaluate(tried)
        page.wait_for_function("(directive) => window.refused === directive", arg=directive, timeout=20_000)
    assert page.evaluate("typeof taken") == "undefined"
    page.close()


@pytest.mark.parametrize("name", ["good", "bad", "doubt", "plain"])
def test_the_badge_is_printed_with_its_color_and_a_border(page: Page, name: str) -> None:
    """A printer leaves out backgrounds that the page does not insist on: of a filled badge a PDF would have white letters on white."""
    page.evaluate("(name) => { document.querySelector('.badge').className = `badge ${name}`; }", name)
    page.emulate_media(media="print")
    style = page.evaluate(
        """(() => {
          const badge = document.querySelector(".badge");
          const { borderTopColor, borderTopStyle, backgroundColor, color, printColorAdjust } = getComputedStyle(badge);
          return { borderTopColor, borderTopStyle, backgroundColor, color, printColorAdjust };
        })()"""
    )
    assert (style["borderTopStyle"], style["printColorAdjust"]) == ("solid", "exact")
    assert _contrast(style["borderTopColor"], "rgb(255, 255, 255)") >= 3
    is_filled = name != "plain"
    assert style["backgroundColor"] == (style["borderTopColor"] if is_filled else "rgba(0, 0, 0, 0)")
    assert _contrast(style["color"], style["backgroundColor"] if is_filled else "rgb(255, 255, 255)") >= 4.5
    filled = f" {' '.join(_pdf_number(int(value) / 255) for value in re.findall(r'[0-9]+', style['borderTopColor'])[:3])} rg"
    page.evaluate("document.querySelector('.badge').style.borderColor = 'transparent'")
    with_background = _drawn(page.pdf(format="A4", print_background=False)).count(filled)
    page.evaluate("document.querySelector('.badge').style.printColorAdjust = 'economy'")
    assert (with_background > _drawn(page.pdf(format="A4", print_background=False)).count(filled)) is is_filled


PHONE: Any = {"viewport": {"width": 400, "height": 800}, "reduced_motion": "reduce"}
UNFOLD = "for (const part of document.querySelectorAll('details')) part.open = true"
# Parts that scroll and that the keyboard cannot reach; and texts outside of drawings with letters of less than 11 pixels.
UNREACHABLE = """() => [...document.querySelectorAll("body, body *")].filter((part) => {
  const style = getComputedStyle(part);
  const scrolls = part.scrollWidth > part.clientWidth + 1 && /auto|scroll/.test(style.overflowX);
  return (scrolls || (part.scrollHeight > part.clientHeight + 1 && /auto|scroll/.test(style.overflowY))) && part.tabIndex < 0;
}).map((part) => part.outerHTML.slice(0, 200))"""
TINY = """() => [...document.querySelectorAll("body *")].filter((part) =>
  !part.closest("svg, script, style, .u-legend")
  && [...part.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim())
  && parseFloat(getComputedStyle(part).fontSize) < 11).map((part) => part.outerHTML.slice(0, 200))"""


@pytest.mark.parametrize("name", IN_TURN)
def test_on_a_phone_what_scrolls_can_be_reached_by_keyboard_and_letters_are_large(browser, written, axe, name):
    page = browser.new_page(**PHONE)
    page.goto(written(name).as_uri())
    page.evaluate(UNFOLD)
    assert page.evaluate(UNREACHABLE) == []
    assert page.evaluate(TINY) == []
    page.evaluate(axe)
    found = page.evaluate("axe.run({ runOnly: ['scrollable-region-focusable'] })")
    assert [node["html"] for rule in found["violations"] for node in rule["nodes"]] == []
    page.close()


@pytest.mark.parametrize(("name", "word"), [
    pytest.param("kv", "MEASURED", marks=needs_plugin("kv")),
    pytest.param("training", "MEASURED", marks=needs_plugin("training")),
    ("two-hosts", "INCONCLUSIVE"),
])  # fmt: skip
def test_a_page_without_a_good_verdict_has_no_green_badge(browser: Browser, written: Callable[[str], Path], name: str, word: str) -> None:
    page = browser.new_page(color_scheme="light")
    page.goto(written(name).as_uri())
    badge = page.locator(".badge")
    assert badge.inner_text() == word
    green = page.evaluate(COLOURS, ["--limit"])["--limit"]
    style = badge.evaluate(
        "(badge) => { const { backgroundColor, borderTopColor } = getComputedStyle(badge); return [backgroundColor, borderTopColor]; }"
    )
    assert green not in style
    if word == "INCONCLUSIVE":
        assert "; inconclusive: " in page.locator("h1").inner_text()
    page.close()


def _pdf_number(value: float) -> str:
    """Return a number as Chromium writes it into a PDF: ".4118"."""
    return f"{value:.4f}".rstrip("0").rstrip(".").removeprefix("0") or "0"


def _drawn(pdf: bytes) -> str:
    """Return the drawing commands of a PDF."""
    parts = []
    for stream in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL):
        with suppress(zlib.error):
            parts.append(zlib.decompress(stream).decode("latin-1"))
    return "\n".join(parts)


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
