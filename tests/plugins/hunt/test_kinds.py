"""Several runs of hunts and of training traffic in one report: each whole, and a CSV with one header for those of a kind."""

from __future__ import annotations

import io
import re
from html import unescape
from pathlib import Path

import pytest

from collbench.plugins.hunt import HUNT_FILE
from collbench.plugins.training import FILE
from collbench.report.runs import report_run
from collbench.results.folder import RunFolder
from tests.plugins.hunt.test_hunt_text import SLOW, about
from tests.plugins.hunt.test_hunt_text import text_of as hunt_text
from tests.plugins.hunt.test_records import a_round
from tests.plugins.training.test_text import ROW, stored
from tests.plugins.training.test_text import text_of as steps_text


def hunted(path: Path) -> Path:
    folder = RunFolder.create(path, "hunt", {"hunt": about(SLOW)})
    folder.append_record(a_round().as_json(), HUNT_FILE)
    folder.finish(exit_code=1)
    return path


def records(text: str) -> str:
    """Without the header."""
    return text.split("\n", 1)[1]


def as_csv(*runs: Path) -> str:
    out = io.StringIO()
    report_run(runs, None, "csv", out, err=io.StringIO())
    return out.getvalue()


HUNTED, AGAIN = (hunt_text(about(SLOW), "csv", run=name) for name in "ab")
STEPS = steps_text(ROW, format="csv", run="steps")


@pytest.fixture
def hunts(tmp_path: Path) -> list[Path]:
    return [hunted(tmp_path / "a"), hunted(tmp_path / "b")]


def test_several_hunts_have_one_header(hunts: list[Path], tmp_path: Path) -> None:
    assert records(HUNTED) and as_csv(*hunts) == HUNTED + records(AGAIN)
    assert report_run(hunts, tmp_path / "hunts.csv", "table", io.StringIO(), err=io.StringIO()) == 0
    assert (tmp_path / "hunts.csv").read_bytes().decode() == HUNTED + records(AGAIN)


def test_a_kind_after_another_has_its_own_header(hunts: list[Path], tmp_path: Path) -> None:
    steps = stored(tmp_path / "steps", ROW)
    assert as_csv(hunts[0], steps, hunts[1]) == HUNTED + STEPS + AGAIN


def test_a_run_without_a_row_leaves_the_header_to_the_next(tmp_path: Path) -> None:
    other = ROW.replace(backend="mpi")
    runs = [stored(tmp_path / "a"), stored(tmp_path / "b", ROW), stored(tmp_path / "c", other)]
    assert as_csv(*runs) == steps_text(ROW, format="csv", run="b") + records(steps_text(other, format="csv", run="c"))


def test_a_page_has_the_verdict_evidence_and_rounds_of_a_hunt(hunts: list[Path], tmp_path: Path) -> None:
    err = io.StringIO()
    assert report_run(hunts[:1], None, "table", io.StringIO(), html=tmp_path / "page.html", err=err) == 0
    found = sections(tmp_path / "page.html")["hunt"]
    suspects = about(SLOW)["verdict"]["suspects"]
    assert all(text in found for suspect in suspects for text in suspect["evidence"])
    assert a_round().stage in found and a_round().why in found
    assert f"{HUNT_FILE} (" in sections(tmp_path / "page.html")["provenance"] and "lack" not in err.getvalue()


def test_a_page_has_the_steps_and_parts_of_a_training(tmp_path: Path) -> None:
    wrong = ROW.replace(backend="mpi", wrong=3, wrong_detail="rank 1: 3 wrong elements")
    run = stored(tmp_path / "steps", ROW, wrong)
    assert report_run([run], None, "table", io.StringIO(), html=tmp_path / "page.html", err=io.StringIO()) == 0
    found = sections(tmp_path / "page.html")
    assert all(part.operation in found["training"] for part in ROW.parts) and ROW.backend in found["training"]
    assert "rank 1: 3 wrong elements" in found["training"] and f"{FILE} (" in found["provenance"]


def test_a_run_of_each_kind_is_on_one_page(hunts: list[Path], tmp_path: Path) -> None:
    steps = stored(tmp_path / "steps", ROW)
    assert report_run([*hunts, steps], None, "table", io.StringIO(), html=tmp_path / "page.html", err=io.StringIO()) == 0
    assert {"hunt", "training", "provenance"} <= sections(tmp_path / "page.html").keys()


@pytest.mark.parametrize("file", ["report.md", "report.prom"])
def test_files_without_hunts_say_so(hunts: list[Path], tmp_path: Path, file: str) -> None:
    err, option = io.StringIO(), "markdown" if file.endswith("md") else "openmetrics"
    report_run(hunts[:1], None, "table", io.StringIO(), err=err, **{option: tmp_path / file})  # type: ignore[arg-type]
    assert "a has a hunt, which Markdown and OpenMetrics lack" in err.getvalue()


def sections(path: Path) -> dict[str, str]:
    """Return the text of each section of a page, by its key."""
    found = re.findall(r'<section aria-labelledby="([^"]+)-heading">(.*?)</section>', path.read_text(encoding="utf-8"), re.DOTALL)
    return {key: unescape(re.sub(r"<[^>]+>", " ", text)) for key, text in found}
