"""Pages of the notebooks in docs/notebooks: their text, code and stored outputs, as a test has executed them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from site_pages.links import DOCS, ROOT
from site_pages.markdown import block, escaped, table

FOLDER = DOCS / "notebooks"


def notebook_pages() -> dict[str, str]:
    """Return the Markdown text of each notebook's page, by its path in the site."""
    return {_page_of(file): "\n\n".join(_parts(file)) + "\n" for file in sorted(FOLDER.glob("*.ipynb"))}


def notebook_pictures() -> dict[str, bytes]:
    """Return the PNG pictures of the notebooks, by their path in the site."""
    return {
        f"notebooks/{name}": base64.b64decode(png)
        for file in sorted(FOLDER.glob("*.ipynb"))
        for name, png in _pictures(file)
    }  # fmt: skip


def _page_of(file: Path) -> str:
    return f"notebooks/{file.stem}.md"


def _cells(file: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["cells"]
    return cells


def _parts(file: Path) -> Iterator[str]:
    for number, cell in enumerate(_cells(file)):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield text
            if number == 0:
                yield f"[{file.name}](../../{file.relative_to(ROOT).as_posix()}) is the notebook itself."
            continue
        yield block(text, "python")
        for at, output in enumerate(cell["outputs"]):
            yield from _output(output, f"{file.stem}-{number}-{at}.png")


def _output(output: dict[str, Any], picture: str) -> Iterator[str]:
    """Yield an output: a picture, a table of HTML with its paragraphs, or text."""
    data = output.get("data", {})
    if "image/png" in data:
        yield f"![the figure that the cell draws]({picture})"
    elif "text/html" in data:
        yield from _Fragment("".join(data["text/html"])).parts
    elif "text/plain" in data or "text" in output:
        yield block("".join(data.get("text/plain", output.get("text", ""))))


def _pictures(file: Path) -> Iterator[tuple[str, str]]:
    for number, cell in enumerate(_cells(file)):
        for at, output in enumerate(cell.get("outputs", ())):
            if png := output.get("data", {}).get("image/png"):
                yield f"{file.stem}-{number}-{at}.png", png


class _Fragment(HTMLParser):
    """The paragraphs and tables of a fragment of HTML as Markdown; styles are left out."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._rows: list[list[str]] = []
        self._text: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self._rows.append([])
        elif tag in ("p", "th", "td"):
            self._text = ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            head, *rows = self._rows
            self.parts.append(table([each or "\u00a0" for each in head], rows))
            self._rows = []
        elif tag in ("p", "th", "td") and self._text is not None:
            where = self.parts if tag == "p" else self._rows[-1]
            where.append(escaped(self._text))
            self._text = None

    def handle_data(self, data: str) -> None:
        if self._text is not None:
            self._text += data
