"""SVG as text: elements, text that fits its box, and the one style sheet of all drawings (light and dark)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

import msgspec

from collbench.report.machine import safe

_WIDTH = 0.57  # of a letter of a sans-serif font, in font sizes, slightly too wide
BOLD = 14.5  # the size of an ordinary font with letters as wide as bold ones of 13 pixels
_STYLE = Path(__file__).parent / "style" / "probe.css"
_HATCH = (
    '<defs><pattern id="probe-hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<line y2="7" stroke="var(--bad)" stroke-width="1.6" opacity=".45"/></pattern></defs>'
)


class Box(msgspec.Struct, frozen=True):
    """A rectangle in pixels."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """Return its horizontal center."""
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        """Return its lower edge."""
        return self.y + self.height


def rect(box: Box, style: str, title: str = "", radius: int = 7) -> str:
    """Return a rounded box; `title` is its tooltip."""
    tag = f'<rect class="{style}" x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}" rx="{radius}"'
    return f"{tag}>{_tooltip(title)}</rect>" if title else f"{tag}/>"


def text(x: float, y: float, words: str, style: str = "", *, room: float | None = None, size: float = 12) -> str:
    """Return a line of text at its base line; text wider than `room` pixels ends in an ellipsis and is complete in its tooltip."""
    shown = fitting(words, room, size) if room is not None else safe(words, 1000)
    whole = _tooltip(words) if shown != safe(words, 1000) else ""
    named = f' class="{style}"' if style else ""
    return f'<text{named} x="{x:g}" y="{y:g}">{whole}{escape(shown)}</text>'


def curve(path: str, width: float, style: str, title: str = "") -> str:
    """Return a stroke along an SVG path."""
    tag = f'<path class="{style}" d="{path}" stroke-width="{width:.2g}"'
    return f"{tag}>{_tooltip(title)}</path>" if title else f"{tag}/>"


def tag(x: float, y: float, words: str = "limits") -> str:
    """Return a small label on a colored background, centred on x."""
    width = 14 + text_width(words, 10.5)
    return rect(Box(x - width / 2, y - 8, width, 16), "tag", radius=8) + text(x, y + 4, words, "tagged")


def fitting(words: str, room: float, size: float = 12) -> str:
    """Return `words`, printable, cut with an ellipsis to about `room` pixels."""
    whole = safe(words, 1000)
    letters = max(1, int(room / (size * _WIDTH)))
    return whole if len(whole) <= letters else whole[: letters - 1].rstrip() + "…"


def text_width(words: str, size: float = 12) -> float:
    """Return the approximate width of a text in pixels."""
    return len(words) * size * _WIDTH


@cache
def style() -> str:
    """Return the style sheet of all drawings: `document` carries it, and a page that embeds drawings has it in its own sheet."""
    return _STYLE.read_text(encoding="utf-8")


def document(width: float, height: float, title: str, description: str, body: list[str]) -> str:
    """Return the whole SVG with its style sheet and the text for screen readers."""
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="probe" role="img" {size}'
    words = f"{_tooltip(title)}<desc>{escape(safe(description, 2000))}</desc>"
    ground = f'<rect class="page" width="{width:g}" height="{height:g}"/>'
    label = f" aria-label={quoteattr(safe(title))}"
    return f"{head}{label}>{words}{_style_element()}{_HATCH}{ground}{''.join(body)}</svg>\n"


def embedded(svg: str, *, first: bool) -> str:
    """Return a `document` as an element of a page, without its style: the page has `style()` in its own sheet, the only one that it allows.

    The first drawing of a page brings the pattern that all of them use.
    """
    width = re.search(r' width="([\d.]+)" height="[\d.]+"', svg)
    sized = svg.replace(width[0], f' style="max-width:{width[1]}px"', 1) if width else svg
    return sized.replace(f"{_style_element()}{'' if first else _HATCH}", "", 1)


@cache
def _style_element() -> str:
    """Return the style sheet without comments and line breaks."""
    without_comments = re.sub(r"/\*.*?\*/", "", style(), flags=re.DOTALL)
    packed = re.sub(r"\s*([{};,])\s*", r"\1", without_comments).strip().replace(": ", ":")
    return f"<style>{packed}</style>"


def _tooltip(words: str) -> str:
    return f"<title>{escape(safe(words, 1000))}</title>"


def first_that_fits(choices: list[str], room: float, size: float = 12) -> str:
    """Return the first choice that fits without cutting; else the last."""
    return next((words for words in choices if fitting(words, room, size) == words), choices[-1])


def card(box: Box, kind: str, name: str, lines: Sequence[str], about: str, *, bad: bool = False, mark: str = "") -> Iterator[str]:
    """Yield a box with a name, two lines of facts, a tooltip, and its mark above."""
    style = f"{kind}{' down' if bad else ''}{' limit' if mark else ''}"
    yield rect(box, style, f"{name}: {about}")
    if bad:
        yield rect(box, "hatch")
    yield text(box.middle, box.y + 20, name, "name mid", room=box.width - 8, size=BOLD)
    yield text(box.middle, box.y + 37, lines[0], "small mid", room=box.width - 6, size=10.5)
    yield text(box.middle, box.y + 52, lines[1], f"small mid{' bad' if bad else ''}", room=box.width - 6, size=10.5)
    if mark:
        yield tag(box.middle, box.y - 4, mark)
