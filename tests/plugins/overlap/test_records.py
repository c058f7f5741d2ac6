"""The evaluation of interleaved states whose times are known: overlap, exposed time, payer, outcome, and when it is inconclusive."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from collbench.analysis.concerns import DOUBTFUL
from collbench.plugins.overlap import records
from collbench.plugins.overlap.page import concerns, section
from collbench.plugins.overlap.records import CoresSharedWithProgress, Overlap, OverlapEstimate, States, StepOverlap, evaluate
from collbench.plugins.overlap.text import format_outcome, format_overlap, overlap_lines
from collbench.report.compare import compare_runs
from collbench.report.material import Material
from collbench.results.folder import RunFolder
from collbench.results.reader import read_run
from collbench.results.row import Row, Times


def states(both, *, computing=None, blocks=40, communication=1.0, computation=1.0, noise=0.01):
    """States of known times, with a noise that all states of a block share in part."""
    draw = np.random.default_rng(7)

    def series(value):
        return value * (1 + noise * draw.standard_normal(blocks))

    known = [series(value) for value in (communication, computation, both, computation, computation if computing is None else computing)]
    return States(*known)


@pytest.mark.parametrize(("both", "percent", "outcome"), [(1.0, 100, "hidden"), (2.0, 0, "exposed"), (1.5, 50, "partial")])
def test_a_known_overlap_is_found_with_an_interval_that_has_it(both: float, percent: float, outcome: str) -> None:
    found = evaluate(states(both), "threads", None, None)
    assert found.outcome == outcome and found.doubt is None and found.blocks == 40
    assert found.percent.low is not None and found.percent.high is not None
    assert found.percent.low <= percent <= found.percent.high and found.percent.high - found.percent.low < 5
    assert found.exposed_s.value == pytest.approx(both - 1, abs=0.02)


def test_overlaps_are_read_back_and_their_text_is_limited() -> None:
    found = evaluate(states(2.5), "calls", None, None)
    assert found.percent.value == pytest.approx(-50, abs=3)
    assert format_overlap(found.percent) == "0 % (0–0)"
    assert format_overlap(OverlapEstimate(84.6, None, None)) == "85 %"
    found = evaluate(states(1.5, blocks=3), "calls", None, None)
    assert records.overlap_of(found.as_json()) == found
    flat = records.flat_values(found.as_json())
    assert flat["percent"] == found.percent.value and flat["percent_low"] is None
    assert records.overlap_of({}) is None and records.overlap_of({"percent": "no number"}) is None and not list(overlap_lines([]))


@pytest.mark.parametrize(("both", "computing", "payer"), [(1.02, 1.0, "none"), (1.5, 1.45, "computation"), (1.5, 1.0, "waiting")])
def test_what_pays_is_what_became_longer(both: float, computing: float, payer: str) -> None:
    found = evaluate(states(both, computing=computing), "threads", None, None)
    assert found.payer == payer and found.slowdown.value == pytest.approx(computing, abs=0.02)


def test_what_cannot_be_determined_is_inconclusive_with_its_reason() -> None:
    shared = CoresSharedWithProgress("node1", 2, 2, 2)
    doubts = [
        evaluate(states(1.5, blocks=3), "calls", None, None), evaluate(states(1.5), "threads", None, shared),
        evaluate(states(1.5, computation=2.0), "calls", None, None), evaluate(states(1.5, noise=0.6), "calls", None, None),
    ]  # fmt: skip
    assert {each.outcome for each in doubts} == {"inconclusive"}
    reasons = [records.TooFewBlocks, CoresSharedWithProgress, records.ComputationMissed, records.OverlapWide]
    assert [type(each.doubt) for each in doubts] == reasons
    assert doubts[0].percent.low is None and format_outcome(doubts[1]) == "inconclusive"
    found = evaluate(states(1.5, computing=0.7), "calls", None, None)
    assert isinstance(found.doubt, records.ComputationUnsteady) and found.outcome == "inconclusive"
    assert evaluate(states(1.5, computing=0.95), "calls", None, None).doubt is None


def step(both: float, *, goal_s: float = 1.0, **known) -> StepOverlap:
    series = states(both, **known)
    return StepOverlap(goal_s, True, evaluate(series, "calls", None, None, goal_s), records.efficiency_of(series))


@pytest.mark.parametrize(("both", "efficiency"), [(1.0, 1.0), (1.25, 0.8), (2.0, 0.5)])
def test_a_known_efficiency_is_found_with_an_interval_that_has_it(both: float, efficiency: float) -> None:
    found = step(both)
    assert found.conclusive and found.efficiency is not None
    assert found.efficiency.low is not None and found.efficiency.high is not None
    assert found.efficiency.low <= efficiency <= found.efficiency.high and found.efficiency.high - found.efficiency.low < 0.05


def test_efficiency_needs_no_narrow_overlap_but_has_reasons_to_be_inconclusive() -> None:
    long = step(10.05, goal_s=10.0, computation=10.0, communication=0.1, noise=0.005)
    assert (
        isinstance(long.overlap.doubt, records.OverlapWide) and long.conclusive and long.efficiency.value == pytest.approx(0.995, abs=0.005)
    )
    assert not step(2.0, blocks=3).conclusive
    missed = step(3.0, goal_s=1.0, computation=2.0)
    assert isinstance(missed.overlap.doubt, records.StepTimeMissed) and not missed.conclusive
    shared = evaluate(states(2.0), "threads", None, CoresSharedWithProgress("node1", 2, 2, 2), 1.0)
    assert not StepOverlap(1.0, True, shared, OverlapEstimate(0.5, 0.5, 0.5)).conclusive


KNOWN = Overlap(
    10e-6, 11e-6, 15e-6, OverlapEstimate(60.0, 55.0, 65.0), OverlapEstimate(4e-6, 3.9e-6, 4.1e-6), OverlapEstimate(1.2, 1.1, 1.3),
    "waiting", "calls", None, None, 40, "partial",
)  # fmt: skip
ROW = Row(
    "allreduce", "mpi", "mpi", "cpu", "float32", "sum", None, mode="overlap", in_place=False, buffers="fixed", group="all", window=None,
    size_bytes=65536, count=16384, ranks=2, nodes=1, time_s=Times(15e-6, *[15e-6] * 6), overlap=KNOWN.as_json(),
)  # fmt: skip


def material(folder: Path, *rows: Row) -> Material:
    run = RunFolder.create(folder / "run", "allreduce", {})
    for row in rows:
        run.append(row, {})
    run.finish(exit_code=0)
    return Material([read_run(folder / "run")], Path("page.html"))


def test_each_case_is_a_line(tmp_path: Path) -> None:
    found = section(material(tmp_path, ROW, replace(ROW, overlap={}, mode="isolated")))
    assert found is not None and found.key == "overlap"
    ((caption, table),) = found.tables
    assert caption == "each case"
    assert table.rows == [
        ["allreduce 64 KiB", "mpi", "10.00", "11.00", "15.00", "4.000", "60 % (55–65)", "+20 %", "–", "partial, waiting pays"]
    ]


def test_the_section_and_the_concerns_of_overlaps(tmp_path: Path) -> None:
    hostile: dict[str, Any] = {"both_s": "<script>"}
    assert section(material(tmp_path, replace(ROW, overlap={}), replace(ROW, overlap=hostile))) is None
    doubtful = replace(KNOWN, outcome="inconclusive", doubt=CoresSharedWithProgress("node1", 2, 2, 2))
    row = replace(ROW, overlap=doubtful.as_json())
    doubted = material(tmp_path / "second" / "doubtful", row)
    (concern,) = concerns(doubted)
    assert concern.severity == DOUBTFUL and list(concerns(material(tmp_path / "second" / "known", ROW))) == []
    assert any(each.severity == DOUBTFUL and each.what == concern.what for each in doubted.concerns)


def test_compare_shows_the_exposed_time_of_both_sides(tmp_path: Path) -> None:
    slower = replace(KNOWN, both_s=30e-6, exposed_s=OverlapEstimate(19e-6, 18e-6, 20e-6))
    for name, row in (("a", ROW), ("b", replace(ROW, time_s=Times(30e-6, *[30e-6] * 6), overlap=slower.as_json()))):
        material(tmp_path / name, row)
    out = io.StringIO()
    assert compare_runs(tmp_path / "a" / "run", tmp_path / "b" / "run", "table", out) == 0
    assert "slower" in out.getvalue()
    assert "exposed µs of allreduce 64 KiB on mpi: 4 (3.9–4.1) → 19 (18–20)" in out.getvalue().splitlines()
