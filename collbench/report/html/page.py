"""The HTML page of a report: sections in the template, with style and script inside, written in one step."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.errors import UsageError
from collbench.report.html import (
    against,
    curves,
    gate,
    hunt,
    machine,
    overview,
    pairs,
    provenance,
    samples,
    slowest,
    timeline,
    training,
)
from collbench.report.html.first_screen import FirstScreen, first_screen
from collbench.report.machine_picture import style as drawing_style
from collbench.report.writers import write_whole
from collbench.untrusted import uncollected

if TYPE_CHECKING:
    from collbench.report.html.chart import Chart, Section
    from collbench.report.material import Material

_HERE = Path(__file__).parent
# In the order of the page, after the charts of the operations. A section without content is None.
SECTIONS: tuple[Callable[[Material], Section | None], ...] = (
    gate.section, hunt.section, training.section, overview.section, against.section, pairs.section,
    samples.section, slowest.section, timeline.section, machine.section, provenance.section,
)  # fmt: skip


def write_html(material: Material) -> None:
    """Write the page to `material.where` in one step. Raises UsageError without an answer, and if the file cannot be written."""
    write_whole(material.where, html(material), "--html")


def html(material: Material) -> str:
    """Return the page as text. Raises UsageError without an answer."""
    screen = first_screen(material)
    if screen is None:
        raise UsageError("--html: these runs have no result for a page")
    with uncollected():
        every = [curves.section(material, screen.operation), *(make(material) for make in SECTIONS)]
    main, sections = _taken([each for each in every if each is not None], screen.section)
    return page(screen, lambda: sections, lambda: main)


def _taken(sections: Sequence[Section], key: str) -> tuple[Chart | None, list[Section]]:
    """Return the first chart of a section, for the first screen, and the sections without it; one that has nothing else is left out."""
    main = next((chart for each in sections if each.key == key for chart in each.charts[:1]), None)
    rest = [replace(each, charts=each.charts[1:]) if main and each.key == key else each for each in sections]
    return main, [each for each in rest if each.texts or each.tables or each.charts or each.links]


def write_page(
    where: Path, screen: FirstScreen, make: Callable[[], Sequence[Section]], main: Callable[[], Chart | None] = lambda: None
) -> None:
    """Write the page of a result that is not a run, in one step. Raises UsageError if the file cannot be written."""
    write_whole(where, page(screen, make, main), "--html")


def page(screen: FirstScreen, make: Callable[[], Sequence[Section]], main: Callable[[], Chart | None] = lambda: None) -> str:
    """Return the page, which needs no network: the first screen with its main chart, and the sections that `make` returns, folded."""
    with uncollected():
        chart, sections = main(), make()
    sheet = f"{_written('css')}\n{drawing_style()}"
    return str(_template().render(screen=screen, title=screen.title, main=chart, sections=sections, style=sheet, script=_written("js")))


def _written(suffix: str) -> str:
    """Return uPlot with its licence, page.css or page.js, and the files of single charts (matrix.js, sizes.js)."""
    licence, library = ((_HERE / f"vendor/uPlot.{name}").read_text(encoding="utf-8") for name in ("LICENSE", suffix))
    own = [_HERE / f"page.{suffix}", *sorted(path for path in _HERE.glob(f"*.{suffix}") if path.stem != "page")]
    return "\n".join([f"/*\n{licence}*/", library, *(path.read_text(encoding="utf-8") for path in own)])


def index_page(**content: Any) -> str:
    """Return the page with the runs of a folder, from what index.html.j2 shows."""
    return str(_template("index.html.j2").render(**content, style=_written("css")))


def _template(name: str = "page.html.j2") -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(_HERE)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["digest"] = _digest
    environment.filters["code"] = _with_code
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}  # half the bytes; "<" is escaped
    return environment.get_template(name)


def _with_code(text: str) -> Any:
    """Return the text as markup, with what is between backticks as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _digest(text: str) -> str:
    """Return the digest of a style or script for the Content-Security-Policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
