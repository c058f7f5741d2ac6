"""The notebook runs from its first to its last cell, and its stored outputs are those of this version."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import ROOT

NOTEBOOK = ROOT / "docs/notebooks/first-analysis.ipynb"


def _texts(notebook: Any) -> list[str]:
    """The printed text of each output; of a table its HTML, of a figure nothing, since fonts differ."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    data = [{"text/plain": output.get("text", ""), **output.get("data", {})} for output in outputs]
    found = [each.get("text/html", each["text/plain"]) for each in data if "image/png" not in each]
    return ["".join(text) for text in found]


@pytest.mark.long  # starts a kernel
def test_the_notebook_runs_and_shows_what_is_stored() -> None:
    needed = "pip install 'collbench[pandas,test]'"
    for module in ("pandas", "matplotlib", "nbclient", "ipykernel"):
        pytest.importorskip(module, reason=f"no {module} here: {needed}")
    import nbformat
    from nbclient import NotebookClient

    stored = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=100, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    if os.environ.get("COLLBENCH_GOLDEN") == "1":
        for cell in notebook["cells"]:
            cell["metadata"] = {}
            for output in cell.get("outputs", ()):
                output.get("metadata", {}).clear()
        notebook["metadata"].pop("language_info", None)
        text = json.dumps(notebook, indent=1, ensure_ascii=False)
        assert str(ROOT) not in text and str(Path.home()) not in text
        NOTEBOOK.write_text(f"{text}\n", encoding="utf-8")
        stored = notebook
    assert not [output for cell in notebook["cells"] for output in cell.get("outputs", ()) if output["output_type"] == "error"]
    pictures = [output for cell in notebook["cells"] for output in cell.get("outputs", ()) if "image/png" in output.get("data", {})]
    assert len(pictures) == 3
    assert _texts(notebook) == _texts(stored)
    assert "slowest node: cb1h2\n" in _texts(notebook)


def test_the_stored_notebook_has_its_outputs_and_no_path_of_a_machine() -> None:
    stored = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    code = [cell for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert code and all(cell["outputs"] for cell in code)
    assert "/home/" not in "".join(_texts(stored)) and str(ROOT.parent) not in "".join(_texts(stored))


def test_the_site_shows_its_text_code_and_pictures() -> None:
    from site_pages.notebooks import notebook_pages, notebook_pictures

    page, pictures = notebook_pages()["notebooks/first-analysis.md"], notebook_pictures()
    assert page.startswith("# First analysis\n") and page.count("```python") == 9
    assert all(f"]({Path(path).name})" in page and png.startswith(b"\x89PNG") for path, png in pictures.items()) and len(pictures) == 3
    assert "| A µs |" in page or "A µs" in page
    assert "<td" not in page and "<style" not in page
