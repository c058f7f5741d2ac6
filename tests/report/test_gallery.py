"""The gallery and the recordings of terminals are what the commands make of the committed runs and logs."""

import io
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lxml import html

from collbench.cli.main import run as run_command
from collbench.report.runs import report_run
from tests.cli.command import ROOT
from tests.conftest import needs_all_plugins, needs_plugin

SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "tools" / "gallery"))
PAGES: dict[str, list[str]] = SCRIPT["PAGES"]
EVERY = [*PAGES, *SCRIPT["AUTOPSIES"], *SCRIPT["CERTIFICATES"]]
GALLERY = ROOT / "reports" / "gallery"
WORDS = runpy.run_path(str(ROOT / "tools" / "words"))["findings"]
OFTEN = "slow-host"  # small; the others take their turn


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the committed runs at the same paths as in the project, and no page."""
    (tmp_path / "reports" / "gallery").mkdir(parents=True)
    for folder in (ROOT / "reports").iterdir():
        if folder != GALLERY:
            (tmp_path / "reports" / folder.name).symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@needs_all_plugins  # each page has their styles
@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name == OFTEN else pytest.mark.long) for name in PAGES])
def test_a_page_is_what_the_command_makes_of_the_committed_runs(name: str, elsewhere: Path) -> None:
    address = SCRIPT["address"](name)
    runs = [Path(run) for run in PAGES[name]]
    assert report_run(runs, None, "table", io.StringIO(), html=Path(address), err=io.StringIO()) == 0
    same = (elsewhere / address).read_bytes() == (ROOT / address).read_bytes()
    assert same, f"{address} is not what `tools/gallery {name}` makes: run it, look at the page, and commit it"


@pytest.mark.parametrize(("command", "name", "words"), [
    pytest.param("autopsy", "autopsy", SCRIPT["AUTOPSIES"]["autopsy"], marks=needs_plugin("traces")),
    pytest.param("certify", "certificate", SCRIPT["CERTIFICATES"]["certificate"], marks=needs_all_plugins),
], ids=["autopsy", "certificate"])  # fmt: skip
def test_a_page_is_what_its_own_command_makes_of_the_committed_files(command: str, name: str, words: list[str], elsewhere: Path) -> None:
    address = SCRIPT["address"](name)
    assert run_command([command, *words, "--html", address]) == 1
    assert (elsewhere / address).read_bytes() == (ROOT / address).read_bytes()


@needs_plugin("importers")
def test_the_imported_run_is_what_the_command_makes_of_the_committed_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    committed, again = ROOT / SCRIPT["IMPORTED"], tmp_path / "again"
    words = [str(ROOT / word) if word.endswith(".log") else word for word in SCRIPT["import_words"](str(again))]
    assert run_command(words) == 0
    assert (again / "cells.jsonl").read_bytes() == (committed / "cells.jsonl").read_bytes()
    one, other = (json.loads((folder / "run.json").read_text())["imported"] for folder in (again, committed))
    assert {name: one[name] for name in ("files", "tables")} == {name: other[name] for name in ("files", "tables")}
    assert "366 rows" in capsys.readouterr().out


@needs_plugin("plot")
@pytest.mark.parametrize("name", SCRIPT["FIGURES"])
def test_a_figure_is_what_the_command_makes_of_the_committed_runs(name: str, elsewhere: Path) -> None:
    words = SCRIPT["figure_words"](name)
    assert run_command(words) == 0
    same = (elsewhere / words[-1]).read_bytes() == (ROOT / words[-1]).read_bytes()
    assert same, f"{words[-1]} is not what `tools/gallery {name}` makes: run it, look at the figure, and commit it"


def test_there_is_no_other_page_than_those_of_the_script_and_a_small_picture() -> None:
    figures = {f"{name}.svg" for name in SCRIPT["FIGURES"]}
    assert {path.name for path in GALLERY.iterdir()} == {*(f"{name}.html" for name in EVERY), f"{SCRIPT['PICTURED']}.png"} | figures
    data = (GALLERY / f"{SCRIPT['PICTURED']}.png").read_bytes()
    assert data.startswith(b"\x89PNG") and len(data) < 200_000
    assert [int.from_bytes(data[at : at + 4], "big") for at in (16, 20)] == [SCRIPT["WIDE"], SCRIPT["HIGH"]]


@pytest.mark.parametrize("name", EVERY)
def test_a_page_shows_nothing_of_the_machine_that_made_it_and_its_links_lead_to_what_is_there(name: str) -> None:
    text = (GALLERY / f"{name}.html").read_text(encoding="utf-8")
    assert not re.search(r"/(?:work|root|home|tmp)/", text)
    links = re.findall(r'<a [^>]*href="([^"#]+)"', text)
    assert links or name in [*SCRIPT["AUTOPSIES"], *SCRIPT["CERTIFICATES"]]
    assert [link for link in links if not (GALLERY / link).is_file()] == []


@pytest.mark.parametrize("name", EVERY)
def test_a_page_is_in_plain_english(name: str) -> None:
    page = html.fromstring((GALLERY / f"{name}.html").read_text(encoding="utf-8").encode())
    for part in page.xpath("//script | //style"):
        part.drop_tree()
    assert list(WORDS(page.text_content())) == []


@pytest.mark.parametrize(("name", "words"), [
    ("slow-host", ["cb1h2 sends and receives at 50 % of what the others do"]),
    ("published-8xa100", ["of 300 GB/s", "nccl_allreduce.log", "imported"]),
    ("regression", ["eth0 of cb1h2: 1 → 0.8 Gb/s", "7 slower", "1 inconclusive", "NIC eth0 0.8 Gb/s",
                    "0.120 GB/s (80 %, 100 % of the 0.0956 GB/s expected now)"]),
    ("two-hosts", ["NIC eth0 1 Gb/s", "2 hosts: cb1h1, cb1h2", "alltoall"]),
    ("hunt", ["FAULTY", "cb1h7 sends and receives at 51 % of the others", "scontrol update"]),
    ("replay", ["exposed communication", "The recorded step, by rank", "rank 1", "exchange while computing"]),
    ("routing", ["imbalance tax", "zipf:1.2", "The step with each routing"]),
    ("kv", ["are the fastest (their intervals overlap)", "100 % of the link", "of the time to first token", "µs per block"]),
    ("load", ["INTERFERENCE", "ring runs at 100 %: interference, 2.00× (2.00–2.00×) the time without aggressors",
              "ring at 0 %: 1.00× (1.00–1.00×), no interference"]),
    ("autopsy", ["CAUSE FOUND", "rank 2", "3 of 3"]),
    ("training", ["a step&#39;s exchange takes 859.2 ms", "0.119 of 0.120 GB/s (100 %)", "gradients, bucket"]),
])  # fmt: skip
def test_a_page_answers_what_it_was_made_for(name: str, words: list[str]) -> None:
    text = (GALLERY / f"{name}.html").read_text(encoding="utf-8")
    assert [word for word in words if word not in text] == []


def test_the_page_of_a_slower_link_calls_no_rank_slow_and_no_wide_interval_the_same() -> None:
    text = (GALLERY / "regression.html").read_text(encoding="utf-8")
    assert not re.search(r"rank \d+( \([^)]*\))?(, or a path into it,)? is slow|same within|of 0\.0956 GB/s", text)


@pytest.mark.system
def test_the_recordings_are_those_of_the_command(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "tools" / "recordings", tmp_path], check=True, cwd=ROOT)
    made = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    stored = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "reports" / "terminal").iterdir()}
    assert sorted(made) == ["two-hosts.svg"]
    assert made == stored
