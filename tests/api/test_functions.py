"""compare, gate, peak and probe return the values of the commands, and raise their sentences."""

import json
from pathlib import Path

import pytest

import collbench
from collbench.analysis.compare import Comparison
from collbench.analysis.compare import compare as compare_folders
from collbench.analysis.outcome import Outcome
from collbench.gating.verdict import Verdict, read_verdict
from collbench.machine.model import Machine
from collbench.machine.peak.collective import CollectiveCeilings
from collbench.records import document
from tests.cli.command import ROOT, run_here
from tests.machines import captures
from tests.results.rows import make_row, store
from tests.stored import stored_reports

REPORTS = ROOT / "reports"
BEFORE, AFTER = REPORTS / "regression/before", REPORTS / "regression/after"
TRIALS = stored_reports() / "gate-trials"


def test_a_comparison_is_that_of_the_command() -> None:
    found, expected = collbench.compare(BEFORE, collbench.read(AFTER)), compare_folders(BEFORE, AFTER)
    assert isinstance(found, Comparison)
    assert [(case.outcome, case.time) for case in found.cases] == [(case.outcome, case.time) for case in expected.cases]
    assert found.summary == expected.summary and found.summary.outcomes[Outcome.SLOWER] == 7
    assert repr(found).startswith("<Comparison: before → after: 8 cases: 7 slower")
    assert collbench.compare(BEFORE, AFTER, margin=0.5).summary.outcomes[Outcome.NO_CHANGE] > 0


def test_a_list_of_paths_is_read_as_one() -> None:
    launches = sorted(BEFORE.glob("launch-*"))
    assert collbench.read(launches).paths == collbench.read(*launches).paths == launches
    assert collbench.read(launches[:1], launches[1]).paths == launches[:2]
    found = collbench.compare(launches, sorted(AFTER.glob("launch-*")))
    assert repr(found).startswith("<Comparison: before → after: 8 cases: 7 slower")
    with pytest.raises(collbench.UsageError, match="no path is named"):
        collbench.read([])


def test_sides_that_cannot_be_compared_are_one_sentence(tmp_path: Path) -> None:
    a, b = (store(tmp_path / name, [make_row(size)]) for name, size in (("a", 8), ("b", 16)))
    for sides, words in (
        ((a, b), "no case in common"),
        ((a, a), "named twice"),
        ((a, tmp_path / "missing"), "does not exist"),
        ((collbench.read(tmp_path), b), "named twice"),
    ):
        with pytest.raises(collbench.UsageError, match=words):
            collbench.compare(*sides)


@pytest.fixture(scope="module")
def trial() -> Path:
    """The runs of a trial of the gate: three allocations, on a link that became slower."""
    return TRIALS / "link-0/runs"


def test_a_verdict_is_that_of_the_command(trial: Path, tmp_path: Path) -> None:
    allocations = sorted(trial.iterdir())
    found = collbench.gate(TRIALS / "baseline-link", allocations)
    assert isinstance(found, Verdict)
    done = run_here(tmp_path, "gate", "--baseline", str(TRIALS / "baseline-link"), *map(str, allocations), "--out", "verdict.json")
    command = read_verdict(tmp_path / "verdict.json")
    assert (found.result, found.exit_code) == (command.result, done.returncode) == ("regression", 1)
    assert found.suspicions == command.suspicions and json.loads((tmp_path / "verdict.json").read_text()) == json.loads(
        json.dumps(document(found))
    )
    assert repr(found).startswith("<Verdict: regression")
    assert collbench.gate(TRIALS / "baseline-link", collbench.read(allocations[0])).result == "no verdict"


def test_launches_that_are_missing_are_noticed_in_runs_too(trial: Path) -> None:
    first = sorted(trial.iterdir())[0]
    part = collbench.read(first)[:1]
    found = collbench.gate(str(TRIALS / "baseline-link"), part)
    assert found.result == "no verdict" and found.reasons


def test_what_cannot_be_judged_is_one_sentence(tmp_path: Path) -> None:
    for baseline, runs, words in (
        (tmp_path / "none", BEFORE, "none"),
        (TRIALS / "baseline-link", tmp_path / "none", "none"),
        (7, BEFORE, "not a valid path"),
    ):
        with pytest.raises(collbench.UsageError, match=words):
            collbench.gate(baseline, runs)  # type: ignore[arg-type]


def test_the_ceilings_are_those_of_the_command(tmp_path: Path) -> None:
    found = collbench.peak("allreduce", nodes=4, gpus_per_node=8, nic="8x400Gb", nvlink_bytes_per_s=450e9)
    assert isinstance(found, CollectiveCeilings) and found.expected is not None and found.expected.bytes_per_s == 384e9
    words = "peak allreduce --nodes 4 --gpus-per-node 8 --nic 8x400Gb --nvlink 450 --format json"
    command = json.loads(run_here(tmp_path, *words.split()).stdout)
    assert command["expected"]["bytes_per_s"] == found.expected.bytes_per_s
    assert command["bound"]["bytes_per_s"] == (found.bound and found.bound.bytes_per_s)


def test_machines_from_files_have_ceilings() -> None:
    folder = captures.folder(captures.having("nvidia-smi-topo-m.txt")[0])
    (machine,) = collbench.probe(folder)
    assert isinstance(machine, Machine) and len(machine.gpus) > 1
    assert collbench.peak("allreduce", machines=[machine]) == collbench.peak("allreduce", machines=folder)


@pytest.mark.contract
def test_this_machine_is_probed() -> None:
    (machine,) = collbench.probe()
    assert machine.hostname and machine.numa_nodes


@pytest.mark.parametrize(("operation", "options", "words"), [
    ("sum", {"nodes": 2}, "no ceiling is known for 'sum'"), ("allreduce", {}, "two ranks or more"),
    ("allreduce", {"nodes": 2, "nic": "fast"}, "--nic 'fast'"),
    ("allreduce", {"nodes": 2, "nvlink_bytes_per_s": float("nan")}, "nvlink_bytes_per_s=nan"),
    ("allreduce", {"machines": "missing.xml"}, r"missing\.xml"),
])  # fmt: skip
def test_bad_hardware_is_one_sentence(operation: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(collbench.UsageError, match=words):
        collbench.peak(operation, **options)  # type: ignore[arg-type]
