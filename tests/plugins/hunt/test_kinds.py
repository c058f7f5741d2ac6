"""Hunts and pairs in reports: beside training traffic, on pages, in figures and concerns, cut or altered; and each word explained."""

import io
import re
import shutil
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import collbench
from collbench.analysis.concerns import FINDING, NOTE, WRONG, Concern, concerns
from collbench.errors import FINE, USAGE, UsageError
from collbench.plugins.hunt import HUNT_FILE, pairs_text
from collbench.plugins.hunt.figures import pairs_panels
from collbench.plugins.hunt.kind import findings_of
from collbench.plugins.hunt.pairs import PairEffects
from collbench.plugins.hunt.pairs_text import DIRECTED_PAIRS
from collbench.plugins.hunt.protocol import CLEARED, CONFIRMED, INCONCLUSIVE
from collbench.plugins.hunt.recommendation import CODES
from collbench.plugins.hunt.text import SUSPECTS
from collbench.plugins.training import FILE
from collbench.report.explain import page
from collbench.report.material import Material
from collbench.report.runs import report_run
from tests.cli.command import ROOT
from tests.cli.test_report_bad_input import shown
from tests.plugins.hunt.pair_matrices import SyntheticMatrix
from tests.plugins.hunt.test_hunt_text import SLOW, about, hunted
from tests.plugins.hunt.test_hunt_text import text_of as hunt_text
from tests.plugins.hunt.test_pairs_text import text as external_text
from tests.plugins.hunt.test_pairs_text import theirs
from tests.plugins.hunt.test_records import a_round
from tests.plugins.training.test_text import ROW, stored
from tests.plugins.training.test_text import text_of as steps_text
from tests.report.test_explain import IDENTITIES
from tests.results.rows import make_row, store
from tests.stored import stored_reports

HUNTED, AGAIN = (hunt_text(about(SLOW), "csv", run=name) for name in "ab")
STEPS = steps_text(ROW, format="csv", run="steps")
HOST_0 = ROOT / "reports" / "pairs-trials" / "host-0"
EXTERNAL_TITLES = external_text(theirs("p2p_bandwidth", 1e-3, 1 << 20, flags=("other_path",)))[2].split()
COLUMNS = {*pairs_text.TITLES, *EXTERNAL_TITLES, *(value.name for kind in (SUSPECTS, DIRECTED_PAIRS) for value in kind.values)}


def without_header(text):
    return text.split("\n", 1)[1]


def as_csv(*runs):
    out = io.StringIO()
    report_run(runs, None, "csv", out, err=io.StringIO())
    return out.getvalue()


@pytest.fixture
def hunts(tmp_path):
    return [hunted(tmp_path / name, about(SLOW), 1, rounds=1) for name in ("a", "b")]


def test_several_hunts_have_one_header_another_kind_its_own_and_a_run_without_a_row_leaves_it_to_the_next(hunts, tmp_path):
    assert as_csv(*hunts) == HUNTED + without_header(AGAIN)
    assert report_run(hunts, tmp_path / "hunts.csv", "table", io.StringIO(), err=io.StringIO()) == 0
    assert (tmp_path / "hunts.csv").read_bytes().decode() == HUNTED + without_header(AGAIN)
    steps = stored(tmp_path / "steps", ROW)
    assert as_csv(hunts[0], steps, hunts[1]) == HUNTED + STEPS + AGAIN
    other = ROW.replace(backend="mpi")
    runs = [stored(tmp_path / "none"), stored(tmp_path / "one", ROW), stored(tmp_path / "two", other)]
    assert as_csv(*runs) == steps_text(ROW, format="csv", run="one") + without_header(steps_text(other, format="csv", run="two"))


def sections(path):
    """Return the text of each section of a page, by its key."""
    found = re.findall(r'<section aria-labelledby="([^"]+)-heading">(.*?)</section>', path.read_text(encoding="utf-8"), re.DOTALL)
    return {key: unescape(re.sub(r"<[^>]+>", " ", text)) for key, text in found}


def test_a_page_has_the_verdict_evidence_and_rounds_of_a_hunt_and_the_steps_and_parts_of_a_training(hunts, tmp_path):
    wrong = ROW.replace(backend="mpi", wrong=3, wrong_detail="rank 1: 3 wrong elements")
    runs = [*hunts, stored(tmp_path / "steps", ROW, wrong)]
    assert report_run(runs, None, "table", io.StringIO(), html=tmp_path / "page.html", err=io.StringIO()) == 0
    page = sections(tmp_path / "page.html")
    found = page["hunt"]
    suspects = about(SLOW)["verdict"]["suspects"]
    assert all(text in found for suspect in suspects for text in suspect["evidence"])
    assert a_round().stage in found and a_round().why in found
    assert all(part.operation in page["training"] for part in ROW.parts) and ROW.backend in page["training"]
    assert "rank 1: 3 wrong elements" in page["training"]
    assert f"{HUNT_FILE} (" in page["provenance"] and f"{FILE} (" in page["provenance"]


@pytest.mark.parametrize("file", ["report.md", "report.prom"])
def test_files_without_hunts_are_reported(hunts, tmp_path, file):
    err, option = io.StringIO(), "markdown" if file.endswith("md") else "openmetrics"
    report_run(hunts[:1], None, "table", io.StringIO(), err=err, **{option: tmp_path / file})
    assert "a has a hunt, which Markdown and OpenMetrics lack" in err.getvalue()


def test_slow_places_and_pairs_with_wrong_data_are_concerns():
    slowed = SyntheticMatrix(8, seed=1).slow(2).matrix()
    wrong = np.zeros((8, 8))
    wrong[1, 3] = wrong[3, 1] = 5
    effect = PairEffects(replace(slowed, wrong=wrong))
    found = concerns([], [], [], findings_of(effect))
    assert found[0] == Concern(WRONG, f"wrong data between {slowed.places[1]} and {slowed.places[3]}: 5 elements are wrong")
    assert (found[1].severity, found[1].what.split()[0]) == (FINDING, slowed.places[2])
    assert {each.severity for each in found[2:]} <= {NOTE}


def test_a_slow_pair_is_marked_in_the_matrix_of_its_run_and_other_runs_have_none():
    runs = collbench.read(stored_reports() / "pairs-trials/pair-0")
    bandwidth, latency = pairs_panels(Material(list(runs), Path()))
    assert (bandwidth.title, bandwidth.unit, latency.unit) == ("bandwidth, 128 KiB messages", "GB/s", "µs")
    assert list(bandwidth.names) == [f"cb1h{number}" for number in range(1, 9)]
    table = runs.pairs().set_index(["sender", "receiver"])["bandwidth_bytes_per_s"]
    for (sender, receiver), rate in table.items():
        row, column = (int(name[-1]) - 1 for name in (sender, receiver))
        assert bandwidth.values[row][column] == pytest.approx(rate / 1e9)
    assert list(bandwidth.marked) == [(5, 2)]  # cb1h6 sends to cb1h3
    assert bandwidth.values[5][2] * 1e9 == pytest.approx(table.min())
    assert list(latency.marked) == []
    with pytest.raises(UsageError, match="--kind pairs needs a run of `collbench pairs`"):
        pairs_panels(Material(list(collbench.read(ROOT / "reports/first-run")), Path()))


def test_pairs_that_do_not_fit_their_run_json_leave_the_others(tmp_path):
    good, bad = store(tmp_path / "good", [make_row(8)]), store(tmp_path / "bad", [], pairs=5)
    code, printed, said = shown(bad, good)
    assert code == USAGE and len(said) == 1 and said[0].startswith(f"{bad} ") and "run.json" in said[0]
    assert printed.startswith("good (1 row)\n")


@pytest.mark.parametrize(("change", "code", "value", "count"), [
    (lambda data: b"", USAGE, "has no results", "0 of 56 "), (lambda data: data[: len(data) // 2], FINE, "line 5", "32 of 56 "),
    (lambda data: data.replace(b"e-05", b"e400"), FINE, "pairs.jsonl", "all 56 "),
], ids=["empty", "half", "no numbers"])  # fmt: skip
def test_pairs_that_are_cut_or_not_numbers(change, code, value, count, tmp_path):
    folder = Path(shutil.copytree(HOST_0, tmp_path / "run"))
    (folder / "pairs.jsonl").write_bytes(change((folder / "pairs.jsonl").read_bytes()))
    ended, printed, said = shown(folder)
    assert ended == code and count in printed
    assert len(said) == 1 and value in said[0]


@pytest.mark.parametrize("word", [*sorted(COLUMNS - IDENTITIES), *CODES, CLEARED, CONFIRMED, INCONCLUSIVE])
def test_columns_and_words_of_a_hunt_are_explained(word):
    assert page(word)
