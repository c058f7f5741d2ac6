"""The page as a file: nothing in it is markup by accident, it is written in one step, and it shows where the numbers come from."""

import base64
import hashlib
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from collbench.errors import UsageError
from collbench.report.html import page
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.provenance import section
from collbench.report.material import Material
from collbench.results.folder import RunFolder
from collbench.results.reader import read_run
from collbench.results.row import Row
from tests.conftest import needs_plugin
from tests.results.rows import make_row, make_times, store

REPORTS = Path(__file__).parents[3] / "reports"
EVIL = '<script>alert(1)</script>"&\u202e'
CHART = Chart(
    "one", f"title {EVIL}", f"caption {EVIL}", f"method {EVIL}", Table(["head"], [["cell"], [EVIL]], marks={1: "wrong"}), "<svg></svg>"
)
SECTION = Section("part", f"part {EVIL}", [f"text {EVIL}"], [(f"heading {EVIL}", Table([EVIL], [["a"]]))], [CHART])


@pytest.fixture
def material(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Material:
    """A run, and a page of one made-up section and one that returns None."""
    monkeypatch.setattr(page, "sections", lambda: (lambda material: SECTION, lambda material: None))
    return Material([read_run(store(tmp_path / "run<b>", [make_row()]))], tmp_path / "page.html")


def test_everything_is_in_it_and_all_text_is_text(material: Material) -> None:
    text = page.html(material)
    assert text.count('<details class="folded" id="part" open>') == 1 and "<svg></svg>" in text
    for part in ("part", "text", "heading", "title", "caption", "method"):
        assert f"{part} &lt;script&gt;alert(1)&lt;/script&gt;&#34;&amp;" in text
    assert "alert(1)</script>" not in text and "<b>" not in text
    assert re.search(r"<title>collbench: [A-Z]+: allreduce on 1 node, 4 ranks: [^<]*</title>", text)


def test_the_policy_allows_this_script_and_nothing_else(material: Material) -> None:
    text = page.html(material)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert policy and len(scripts) == len(styles) == 1
    style, script = (base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in (styles[0], scripts[0]))
    assert policy[1] == (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; style-src-elem 'sha256-{style}'; "
        f"script-src 'sha256-{script}'; base-uri 'none'; form-action 'none'"
    )
    assert not re.search(r"""(?:src|href)=["']?(?!#|data:)[a-z/]|@import|url\((?!#|data:)""", text.replace(scripts[0], ""))


def test_equal_runs_give_equal_pages_with_the_licence_of_the_library_and_none_without_an_answer(material: Material, tmp_path: Path) -> None:
    notice = (Path(page.__file__).parent / "vendor" / "uPlot.LICENSE").read_text(encoding="utf-8")
    assert "Copyright" in notice and notice in page.html(material)
    assert page.html(material) == page.html(material)
    with pytest.raises(UsageError, match="no result"):
        page.html(Material([], tmp_path / "page.html"))


@pytest.mark.parametrize(("run", "parts"), [
    ("cpu-sweep", {"sizes"}), ("check", {"sizes"}), ("first-run", {"sizes"}), ("two-hosts", {"sizes"}),
    pytest.param("pairs-trials/host-0", {"pairs"}, marks=needs_plugin("hunt")), pytest.param("kv", set(), marks=needs_plugin("kv")),
])  # fmt: skip
def test_a_page_has_only_the_scripts_that_its_charts_need_and_no_label_is_source_text(run: str, parts: set[str], tmp_path: Path) -> None:
    text = page.html(Material([read_run(REPORTS / run)], tmp_path / "page.html"))
    kinds = set(re.findall(r'class="data">\{"kind":"(\w+)"', text))
    drawn = set(re.findall(r'eachChart\("(\w+)"', text))
    assert kinds == drawn == parts
    assert ("Leon Sorokin" in text) == ("var uPlot" in text) == ("sizes" in parts)
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", text)
    assert (labels or not parts) and not [label for label in labels if re.search(r"[$\\{}]", label)]


def test_every_section_occurs_once(tmp_path: Path) -> None:
    runs = [read_run(store(tmp_path / name, [make_row(size_bytes=size) for size in (1 << 10, 1 << 20)])) for name in ("a", "b")]
    text = page.html(Material(runs, tmp_path / "page.html"))
    found = re.findall(r'<details class="folded" id="([^"]*)"', text)
    assert (found[0], found[-1]) == ("overview", "provenance")
    assert len(found) == len(set(found))


@pytest.mark.parametrize(("run", "key", "rest"), [
    pytest.param("pairs-trials/host-0", "pairs-0-bandwidth", ["pairs-0-latency"], marks=needs_plugin("hunt")),
    pytest.param("hunt-host", "hunt-0", [], marks=needs_plugin("hunt")),
    pytest.param("training", "training-0", [], marks=needs_plugin("training")),
])  # fmt: skip
def test_the_chart_of_the_answer_is_on_the_first_screen_and_only_there(run: str, key: str, rest: list[str], tmp_path: Path) -> None:
    text = page.html(Material([read_run(REPORTS / run)], tmp_path / "page.html"))
    first, sections = text.split("<nav ")
    charts = r'<figure id="((?!machine)[^"]*)"'
    assert re.findall(charts, first) == [key]
    assert re.findall(charts, sections) == rest


def test_a_comparison_of_several_operations_begins_with_all_cases_and_then_the_operation_that_changed_most(tmp_path: Path) -> None:
    runs = []
    for name, factor in (("before", 1.0), ("after", 2.0)):
        for number in range(3):
            rows = [
                make_row(size, operation=operation, time_s=make_times(each * size * 1e-9 * (1 + number / 1000)))
                for operation, each in (("allgather", 1.0), ("broadcast", factor))
                for size in (1 << 16, 1 << 20)
            ]
            runs.append(read_run(store(tmp_path / f"{name}/launch-{number}", rows, allocation_id=name)))
    text = page.html(Material(runs, tmp_path / "page.html"))
    titles = re.findall(r'<h[23] id="[^"]*-title">([^<]*)</h[23]>', text)
    assert titles[:2] == ["after against before: time, case by case", "broadcast: bus bandwidth over message size"]


def shown(page: Path, *runs: Path) -> Section:
    return section(Material([read_run(run) for run in runs], page))


def stored(folder: Path, rows: list[Row] | None = None, **info: Any) -> Path:
    return store(folder, rows or [make_row()], **{"command": ["collbench", "allreduce"], "allocation_id": folder.name, **info})


def table(made: Section, caption: str) -> Table:
    return next(table for title, table in made.tables if title.startswith(caption))


def test_each_run_shows_what_was_typed_and_how_it_ended(tmp_path: Path) -> None:
    done = stored(
        tmp_path / "done", command=["collbench", "allreduce", "--sizes", "8 B"], launcher="srun", hosts=["n2", "n1"], rank_map=[{}, {}]
    )
    broken = RunFolder.create(tmp_path / "broken", "allreduce", {})
    broken.append(make_row(), {})
    runs = table(shown(tmp_path / "page.html", done, broken.path), "Runs")
    (_, command, *_, rows, end), last = runs.rows
    assert (command, rows, end) == ("collbench allreduce --sizes '8 B'", "1", "complete")
    assert last[-1] == "not finished"
    assert runs.marks == {1: "doubtful"}


def test_versions_and_environment_of_one_run_and_definitions_of_its_numbers(tmp_path: Path) -> None:
    run = stored(tmp_path / "run", backends={"mpi": {"mpi": "MPICH 5.0"}}, environment={"UCX_TLS": "tcp", "HOME": "/root"})
    rows = table(shown(tmp_path / "page.html", run), "Versions").rows
    assert ["software", "mpi mpi", "MPICH 5.0"] in rows
    assert ["environment", "UCX_TLS", "tcp"] in rows
    assert all("HOME" not in row for row in rows)
    terms = [row[0] for row in table(shown(tmp_path / "page.html", stored(tmp_path / "other")), "Definitions").rows]
    assert terms == ["time", "95 % interval", "busbw", "of expected"]


def test_several_runs_show_what_differs_and_equal_ones_that_nothing_does(tmp_path: Path) -> None:
    before = stored(tmp_path / "before", backends={"mpi": {"mpi": "MPICH 4.3"}})
    after = stored(tmp_path / "after", backends={"mpi": {"mpi": "MPICH 5.0"}}, environment={"UCX_TLS": "tcp"})
    made = shown(tmp_path / "page.html", before, after)
    differing = table(made, "Differences: before → after")
    assert differing.head == ("kind", "what", "before", "after")
    assert ["software", "mpi mpi", "MPICH 4.3", "MPICH 5.0"] in differing.rows
    assert ["environment", "UCX_TLS", "–", "tcp"] in differing.rows
    assert ["software", "mpi mpi", "MPICH 4.3"] in table(made, "Versions, machine and environment of the first run").rows
    one, other = (stored(tmp_path / name, backends={"mpi": {"mpi": "MPICH 5.0"}}) for name in ("one", "other"))
    made = shown(tmp_path / "page.html", one, other)
    assert table(made, "Differences").rows == [["none", "in what the runs recorded", "–", "–"]]


def test_links_are_relative_encoded_and_only_to_what_exists(tmp_path: Path) -> None:
    run = stored(tmp_path / "runs" / 'a "b" #1?\u00fc')
    ((caption, links),) = shown(tmp_path / "pages" / "page.html", run).links
    assert caption == 'a "b" #1?\u00fc'
    assert [link.text.split(" ")[0] for link in links] == ["run.json", "cells.jsonl"]
    assert links[0].address == "../runs/a%20%22b%22%20%231%3F%C3%BC/run.json"
    assert (tmp_path / "pages" / unquote(links[1].address)).parent.resolve() == run
    # a name that would be a scheme is a file
    ((_, links),) = shown(tmp_path / "page.html", stored(tmp_path / "javascript:alert(1)")).links
    assert links[0].address == "javascript%3Aalert%281%29/run.json"


def test_untrusted_text_in_run_json(tmp_path: Path) -> None:
    run = stored(
        tmp_path / "run", command=[1, None, "=cmd|'/c calc'!A0", "<script>", "\u202e" * 999], hosts={"a": 1}, rank_map="x",
        started_utc=7, imported={"files": [{"name": "\u202e", "size_bytes": "x"}], "tables": 3, "doubts": [1]},
        launcher={}, collbench="\x1b[31m", backends=[{}], environment={"UCX_X": "<script>\u202e"},
    )  # fmt: skip
    made = shown(tmp_path / "page.html", run)
    cases = [case for _, each in made.tables for row in each.rows for case in row]
    assert all(case.isprintable() and len(case) <= 600 for case in cases)
    assert ["environment", "UCX_X", "<script>?"] in table(made, "Versions").rows
