"""The HTML page of a report: sections in the template, with style and script inside, written in one step."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.plugin import hooks_of, loaded_parts, plugins
from collbench.report.html import (
    against,
    consistency,
    curves,
    expected_time,
    gate,
    overview,
    provenance,
    samples,
    slowest,
    timeline,
)
from collbench.report.html.first_screen import FirstScreen, first_screen
from collbench.report.writers import write_whole
from collbench.untrusted import uncollected

if TYPE_CHECKING:
    from collbench.report.html.chart import Section
    from collbench.report.material import Material

_HERE = Path(__file__).parent
_COMMENTS = re.compile(r"^[ \t]*(?://.*\n|\n)?", re.MULTILINE)  # lines of comments, empty lines and indentation, which a page does not need
_PLUGINS = _HERE.parents[1] / "plugins"
# In the order of the page, after the charts of the operations. A section without content is None.
_SECTIONS: Mapping[str, Callable[[Material], Section | None]] = {
    "gate": gate.section, "overview": overview.section, "expected_time": expected_time.section, "consistency": consistency.section,
    "against": against.section, "samples": samples.section, "slowest": slowest.section,
    "timeline": timeline.section, "provenance": provenance.section,
}  # fmt: skip


def sections() -> Iterator[Callable[[Material], Section | None]]:
    """Yield the sections in the order of the page: after each of the core, those of the plug-ins that follow it."""
    for name, section in _SECTIONS.items():
        yield section
        for plugin in plugins().values():
            yield from loaded_parts(place for place, after in plugin.sections.items() if after == name)


def write_html(material: Material) -> None:
    """Write the page to `material.where` in one step. Raises UsageError without an answer, and if the file cannot be written."""
    write_whole(material.where, html(material), "--html")


def html(material: Material, index: str = "") -> str:
    """Return the page as text. Raises UsageError without an answer. index: address of a list of runs that the page links to; "": none."""
    screen = first_screen(material)
    if screen is None:
        raise UsageError("--html: these runs have no result for a page")

    def make() -> list[Section]:
        made = [curves.section(material, screen.operation), *(section(material) for section in sections())]
        return [section for section in made if section is not None]

    return page(screen, make, index)


def write_page(where: Path, screen: FirstScreen, make: Callable[[], Sequence[Section]]) -> None:
    """Write the page of a result that is not a run, in one step. Raises UsageError if the file cannot be written."""
    write_whole(where, page(screen, make), "--html")


def page(screen: FirstScreen, make: Callable[[], Sequence[Section]], index: str = "") -> str:
    """Return the page, which needs no network: the first screen with its main chart, and the sections that `make` returns, folded.

    The main chart is the first one of the section that the screen names, or of the operations if that has none. A section without
    anything else is left out.
    """
    with uncollected():
        made = make()
    by_key = {section.key: section for section in made}
    key = next((key for key in (screen.section, "curves") if key in by_key and by_key[key].charts), "")
    main = by_key[key].charts[0] if key else None
    rest = [replace(section, charts=section.charts[1:]) if section.key == key else section for section in made]
    shown = [section for section in rest if section.texts or section.tables or section.charts or section.links]
    kinds = {str(chart.data.get("kind")) for section in made for chart in section.charts if chart.data}
    return _rendered(
        _HERE / "page.html.j2",
        "\n".join([_written("css", kinds), *(style() for style in hooks_of("page_style"))]),
        _written("js", kinds),
        screen=screen,
        main=main,
        sections=shown,
        index=index,
    )


def _written(suffix: str, kinds: Collection[str] = ()) -> str:
    """Return drawing.css and page.css, or page.js, with what charts of these kinds (`Chart.data["kind"]`) need besides.

    That is KIND.css or KIND.js, here or in a plug-in's folder; for charts of sizes also uPlot with its licence.
    """
    texts = []
    files = [_HERE / f"drawing.{suffix}", _HERE / f"page.{suffix}"]
    if "sizes" in kinds:
        licence = (_HERE / "vendor/uPlot.LICENSE").read_text(encoding="utf-8")
        library = (_HERE / f"vendor/uPlot.{suffix}").read_text(encoding="utf-8")
        texts = [f"/*\n{licence}*/", library]
        files.append(_HERE / f"plot_tools.{suffix}")
    for kind in sorted(kinds):
        files += [_HERE / f"{kind}.{suffix}", *_PLUGINS.glob(f"*/{kind}.{suffix}")]
    texts += [_COMMENTS.sub("", path.read_text(encoding="utf-8")) for path in files if path.exists()]
    return "\n".join(texts)


def static_page(template: Path, title: str, **content: Any) -> str:
    """Return a page without a script, from what a plug-in's template, which extends page.html.j2, shows."""
    return _rendered(template, _written("css"), "", screen=FirstScreen(title), **content)


def _rendered(template: Path, style: str, script: str, **content: Any) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader([_HERE, template.parent])
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"digest": _digest, "code": _with_code}
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}  # half the bytes; "<" is escaped
    return environment.get_template(template.name).render(style=style, script=script, **content)


def _with_code(text: str) -> Any:
    """Return the text as markup, with what is between backticks as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _digest(text: str) -> str:
    """Return the digest of a style or script for the Content-Security-Policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
