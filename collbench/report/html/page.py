"""The HTML page of a report: sections in the template, with style and script inside, written in one step."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.errors import UsageError
from collbench.report.headlines import short
from collbench.report.html import against, gate, hunt, machine, overview, pairs, provenance, samples, slowest, sweep, timeline, training
from collbench.report.machine_picture import style as drawing_style
from collbench.report.writers import write_whole
from collbench.units import first_of
from collbench.untrusted import uncollected

if TYPE_CHECKING:
    from collbench.report.html.chart import Section
    from collbench.report.html.material import Material

_HERE = Path(__file__).parent
# In the order of the page. A section without content is None.
SECTIONS: tuple[Callable[[Material], Section | None], ...] = (
    gate.section, overview.section, against.section, hunt.section, pairs.section, training.section, sweep.section_rates,
    sweep.section_latencies, against.section_ratios, samples.section, slowest.section, timeline.section, machine.section,
    provenance.section,
)  # fmt: skip
_NEEDED = ("matplotlib", "jinja2")


def write_html(material: Material) -> None:
    """Write the page to `material.where` in one step. Raises UsageError if that fails, or the extra `report` is missing."""
    write_whole(material.where, html(material), "--html")


def html(material: Material) -> str:
    """Return the page as text. Raises UsageError if the extra `report` is missing."""
    return page(_title(material), lambda: [made for section in SECTIONS if (made := section(material)) is not None])


def page(title: str, make: Callable[[], Sequence[Section]]) -> str:
    """Return the sections that `make` returns as a page, which needs no network. Raises UsageError if the extra `report` is missing."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise UsageError(f"--html needs {' and '.join(missing)}: pip install 'collbench[report]'")
    with uncollected():
        sections = make()
    sheet = f"{_written('css')}\n{drawing_style()}"
    return str(_template().render(title=title, sections=sections, style=sheet, script=_written("js")))


def _written(suffix: str) -> str:
    """Return page.css or page.js, followed by the files of single charts (matrix.js)."""
    own = [_HERE / f"page.{suffix}", *sorted(path for path in _HERE.rglob(f"*.{suffix}") if path.stem != "page")]
    return "\n".join(path.read_text(encoding="utf-8") for path in own)


def _title(material: Material) -> str:
    """Return the title: "collbench: first-run", "collbench: before, after and 2 more"."""
    names = [table.name for table in material.tables] + [run.path.resolve().name for run in material.of_kinds]
    return f"collbench: {first_of((short(name, 80) for name in names), 2)}" if names else "collbench"


def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(_HERE)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["digest"] = _digest
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}  # half the bytes; "<" is escaped
    return environment.get_template("page.html.j2")


def _digest(text: str) -> str:
    """Return the digest of a style or script for the Content-Security-Policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
