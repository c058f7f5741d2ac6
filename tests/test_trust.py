"""The hand-written tables of docs/ have the figures of the stored runs and the names of the code."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from collbench import errors
from collbench.control.diagnosis import HangCause, HangDiagnosis
from collbench.control.path import PathFault, PathProblem
from collbench.operations.registry import commands
from tests.stored import stored_reports

ROOT = Path(__file__).parents[1]
DOCS, REPORTS = ROOT / "docs", ROOT / "reports"
INTERVAL = re.compile(r"(\d+\.\d+)(?: %)? \((\d+\.\d+)–(\d+\.\d+)\)")


def _rows(page: str, section: str = "") -> list[list[str]]:
    """Return the cells of all rows of the tables of a page, or of its section with this title."""
    text = (DOCS / page).read_text(encoding="utf-8")
    if section:
        (text,) = re.findall(rf"^## {re.escape(section)}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def _intervals(cells: list[list[str]]) -> set[tuple[str, ...]]:
    return {found.groups() for row in cells for cell in row for found in INTERVAL.finditer(cell)}


@pytest.mark.parametrize(
    ("section", "pattern"),
    [
        ("OSU 7.4 on MPICH", "reports/peers-mpich/RESULTS.md"),
        ("OSU 7.4 on MPICH, all operations", "reports/peers-mpich-collectives/RESULTS.md"),
        ("OSU 7.4 on MPICH, non-blocking", "reports/peers-mpich-nonblocking/RESULTS.md"),
        ("OSU 7.4 on Open MPI", "reports/peers-openmpi/RESULTS.md"),
        ("IMB on Intel MPI", "reports/peers-impi/RESULTS.md"),
        ("Gloo's own benchmark", "reports/peers-gloo/*/RESULTS.md"),
        ("iperf3", "tools/benchmarks/RESULTS.md"),
    ],
)
def test_the_ratios_to_other_benchmarks_are_those_of_the_stored_pairs(section: str, pattern: str) -> None:
    stored = " ".join(path.read_text(encoding="utf-8") for path in ROOT.glob(pattern)).replace(" × ", " ").replace("|", " ")
    stored = re.sub(r"\s+", " ", stored)
    shown = _intervals(_rows("trust/peers.md", section))
    assert shown
    for median, low, high in shown:
        assert re.search(rf"\b{re.escape(median)} \(?{re.escape(low)} to {re.escape(high)}\b", stored), (median, low, high)


def test_the_rates_of_the_gate_are_those_of_the_stored_self_tests() -> None:
    source = (REPORTS / "gate-self-test/README.md").read_text(encoding="utf-8")
    shown = _intervals(_rows("trust/gate-trials.md", "The gate, simulated"))
    assert len(shown) >= 20 and all(f"{rate} ({low}–{high})" in source for rate, low, high in shown)


def test_the_trials_of_the_gate_are_those_of_the_stored_table() -> None:
    source = (REPORTS / "gate-trials/README.md").read_text(encoding="utf-8").replace("a cell ", "a case ")
    rows = [row for row in _rows("trust/gate-trials.md", "The gate, with the real commands") if row[1].isdigit()]
    assert len(rows) == 6 and all("| " + " | ".join(row) + " |" in source for row in rows)
    as_expected = {row[0]: int(row[3]) / int(row[1]) for row in rows}
    assert as_expected.pop("none") == 1 and min(as_expected.values()) >= 0.8


def test_the_trials_of_hunt_and_pairs_are_counted_right() -> None:
    lines = [json.loads(line) for line in (stored_reports() / "verdict-trials/trials.jsonl").read_text(encoding="utf-8").splitlines()]
    trials = Counter((each["command"], each["truth"]) for each in lines)
    open_ = Counter((each["command"], each["truth"]) for each in lines if each["code"] == errors.NO_VERDICT)
    truths = {"healthy": "healthy", "one host at half the rate": "half"}
    shown = {(row[0], truths[row[1]]): (int(row[2]), int(row[5])) for row in _rows("trust/gate-trials.md") if row[1] in truths}
    assert shown == {key: (count, open_[key]) for key, count in trials.items()}
    assert not [each for each in lines if each["truth"] == "healthy" and each["confirmed"]]
    assert all(each["confirmed"] == [["node", each["slow"]]] for each in lines if each["truth"] == "half")


def test_the_fault_sets_are_counted_right() -> None:
    shown = {
        row[0].split("reports/")[1].split("/")[0]: (int(row[2]), int(row[3]))
        for row in _rows("trust/fault-matrix.md")
        if "reports/" in row[0]
    }
    for folder, (runs, passed) in shown.items():
        lines = [json.loads(line) for line in (stored_reports() / folder / "trials.jsonl").read_text(encoding="utf-8").splitlines()]
        assert (runs, passed) == (len(lines), sum(not each["amiss"] for each in lines)), folder
    assert len(shown) == 3


def test_every_operation_has_a_bus_factor_on_the_page() -> None:
    named = {name.strip(" `") for row in _rows("explanation/bus-bandwidth.md") for name in re.sub(r"\(.*?\)", "", row[0]).split(",")}
    assert named >= set(commands())


def test_the_exit_codes_are_complete() -> None:
    shown = {int(code) for row in _rows("guides/when-things-break.md", "Exit codes") for code in re.findall(r"\d+", row[0])}
    wanted = {errors.FINE, errors.NEGATIVE, errors.USAGE, errors.NO_VERDICT, errors.FAILED, errors.INTERRUPTED, errors.TERMINATED}
    assert shown == wanted


def test_the_messages_of_the_guide_are_those_of_the_program() -> None:
    hang = HangDiagnosis(
        HangCause.BEHIND, "allreduce 64 MiB on mpi: warm-up", (1,), ("rank 1 (node0, pid 4201)",), 3, 4, 60.0, iteration=41
    )
    path = PathFault(PathProblem.MTU, "node0", "node1", 1000)
    texts = (ROOT / "tests/golden" / name for name in ("messages.txt", "sentences/launch.txt", "sentences/operations.txt"))
    golden = " ".join((hang.render(), path.render(), *(file.read_text(encoding="utf-8") for file in texts)))
    quoted = [words for row in _rows("guides/when-things-break.md", "A hang")[2:] for words in re.findall(r"`(.*?)`", row[0])]
    text = (DOCS / "guides/when-things-break.md").read_text(encoding="utf-8")
    quoted += [line for block in re.findall(r"```text\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    assert len(quoted) >= 12 and [words for words in quoted if words not in golden] == []
