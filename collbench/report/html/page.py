"""The page: sections put into the template, with the style and the script inside, and written in one step."""

from __future__ import annotations

import base64
import hashlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.errors import UsageError
from collbench.report.html import against, latencies, machine, matrix, overview, provenance, rates, ratios, slowest, spread, timeline

if TYPE_CHECKING:
    from collbench.report.html.material import Material

_HERE = Path(__file__).parent
SECTIONS = (overview, against, matrix, rates, latencies, ratios, spread, slowest, timeline, machine, provenance)


def write_html(material: Material) -> None:
    """Writes the page to `material.where`, in one step. Raises UsageError where that cannot be done, or the extra `report` is missing."""
    text = html(material)
    path = material.where
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as draft:
            draft.write(text)
        Path(draft.name).chmod(0o644)
        Path(draft.name).replace(path)
    except OSError as error:
        raise UsageError(f"--html {path} cannot be written ({error.strerror or error}): choose another file") from error


def html(material: Material) -> str:
    """The page as text. Raises UsageError where the extra `report` is missing."""
    sections = [made for module in SECTIONS if (made := module.section(material)) is not None]
    style, script = ((_HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return str(_template().render(sections=sections, style=style, script=script, script_hash=f"sha256-{digest}"))


def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(_HERE)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True).get_template(
        "page.html.j2"
    )
