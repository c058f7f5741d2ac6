"""The list of formats in the docs is that of the code."""

from __future__ import annotations

import re
from pathlib import Path

from collbench.results.importers.store import READERS

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "imports.md"


def test_the_docs_list_the_formats_that_there_are() -> None:
    listed = re.findall(r"^\| `([\w-]+)` \| (.+) \|$", DOCS.read_text(), re.MULTILINE)
    assert listed == [(reader.name, reader.tools) for reader in READERS]
