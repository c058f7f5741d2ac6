"""The page as a file: what it is made of, that nothing in it is markup by accident, that it is written in one step."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.report.html import page
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.material import Material
from collbench.results.reader import read_run
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


def test_it_replaces_the_old_page_and_leaves_nothing_beside_it(material: Material, tmp_path: Path) -> None:
    material.where.write_text("old")
    page.write_html(material)
    assert material.where.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert {path.name for path in tmp_path.iterdir()} == {"page.html", "run<b>"}
