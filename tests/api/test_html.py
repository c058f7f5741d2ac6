"""Notebooks: what their tables show, that untrusted text in them stays text, and the stored notebook, which runs to its last cell."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import collbench
from collbench.api.shown import ShownVerdict, shown
from tests.cli.command import ROOT
from tests.gate.verdicts import regression
from tests.report.test_hostile import EVIL, Page, check_letters
from tests.results.rows import make_row, not_measured, store

REPORTS = ROOT / "reports"


def check_fragment(text: str) -> list[str]:
    """The texts; there is nothing but paragraphs and a table, without addresses and scripts."""
    found = Page(text)
    assert {tag for tag, _ in found.elements} <= {"p", "b", "table", "thead", "tbody", "tr", "th", "td"}
    assert {name for _, attributes in found.elements for name in attributes} <= {"style"}
    check_letters(text)
    return found.texts


def test_runs_are_a_table_of_which_the_first_are_shown(tmp_path: Path) -> None:
    texts = check_fragment(collbench.read(REPORTS / "regression")._repr_html_())
    assert texts[0] == "10 runs" and {"run", "started (UTC)", "command", "best"} <= set(texts)
    assert sum("launch-" in text and text.startswith(str(REPORTS)) for text in texts) == 10
    for number in range(25):
        store(tmp_path / f"run-{number}", [make_row()])
    texts = check_fragment(collbench.read(tmp_path)._repr_html_())
    assert "and 5 more" in texts and not any(text.endswith("run-20") for text in texts)


def test_a_damaged_run_and_one_that_is_gone_are_shown_with_the_reason(tmp_path: Path) -> None:
    for name in ("a", "b"):
        store(tmp_path / name, [make_row()])
    runs = collbench.read(tmp_path)
    (tmp_path / "a/cells.jsonl").write_text("{}\n")
    for file in (tmp_path / "b").iterdir():
        file.unlink()
    texts = check_fragment(runs._repr_html_())
    assert any("line 1" in text for text in texts) and any("is not a run folder" in text for text in texts)


def test_comparisons_and_verdicts_show_their_cases_suspects_and_groups() -> None:
    found = collbench.compare(REPORTS / "regression/before", REPORTS / "regression/after")
    texts = check_fragment(found._repr_html_())  # type: ignore[attr-defined]
    assert any("7 slower" in text for text in texts) and {"A µs", "B µs", "outcome"} <= set(texts)
    assert sum("slower +" in text for text in texts) == 7
    verdict = regression()
    texts = check_fragment(shown(verdict, ShownVerdict)._repr_html_())
    assert texts[0].startswith("regression: ") and {"state", "what"} <= set(texts)
    assert {each.name for each in verdict.groups} <= set(texts)


def test_ceilings_show_their_limits_and_sizes() -> None:
    found = collbench.peak("allreduce", nodes=2, gpus_per_node=8, nic="8x400Gb", nvlink_bytes_per_s=450e9, sizes=[8, 1 << 30])
    texts = check_fragment(found._repr_html_())  # type: ignore[attr-defined]
    assert {"size", "8 B", "1 GiB"} <= set(texts) and sum(" limited by " in text for text in texts) == 3
    assert repr(found).startswith("<CollectiveCeilings: ") and len(repr(found)) < 200
    without_sizes = collbench.peak("allreduce", gpus_per_node=8, nvlink_bytes_per_s=450e9)
    assert "size" not in check_fragment(without_sizes._repr_html_())  # type: ignore[attr-defined]


def test_rows_and_machines_have_a_short_repr() -> None:
    row = collbench.read(REPORTS / "first-run").rows[0]
    assert repr(row).startswith("<Row: allreduce over mpi, 64 KiB, 2 ranks, ") and len(repr(row)) < 120
    assert repr(not_measured("no\x1b[31m bfloat16")).count("\x1b") == 0
    (machine,) = collbench.probe(REPORTS / "example-node")
    assert repr(machine).startswith("<Machine: ") and "8 GPUs" in repr(machine) and len(repr(machine)) < 120


@pytest.mark.parametrize("evil", EVIL, ids=range(len(EVIL)))
def test_hostile_names_stay_text(evil: str, tmp_path: Path) -> None:
    facts = {"command": ["collbench", evil], "allocation_id": evil}
    runs = []
    for name in "ab":
        rows = [make_row(8, operation=evil, backend=evil, flags=(evil, name))]
        runs.append(store(tmp_path / name, rows, hosts=[evil, name], backends={evil: name}, **facts))
    check_fragment(collbench.read(*runs)._repr_html_())
    check_fragment(collbench.compare(*runs)._repr_html_())
    verdict = regression()
    suspicions = tuple(replace(suspect, name=evil) for suspect in verdict.suspicions)
    groups = tuple(replace(group, name=evil, worst=evil) for group in verdict.groups)
    hostile = replace(verdict, suspicions=suspicions, groups=groups, baseline=evil, candidates=(evil,))
    check_fragment(shown(hostile, ShownVerdict)._repr_html_())


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
    assert "| A µs |" in page
    assert "<td" not in page and "<style" not in page
