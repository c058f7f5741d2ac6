"""Runs against a baseline: the worst first, intervals where there are any, and never more than was measured."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collbench.analysis.launches import read_all
from collbench.report.html.against import MOST_LINES, section
from collbench.report.html.chart import Section
from collbench.report.material import MOST_CANDIDATES, Material
from collbench.results.row import Row, Times
from tests.results.rows import make_row, make_times, not_measured, store

NO_INTERVAL = Times(2e-3, None, None, 1e-3, 3e-3, 3e-3, 3e-3)


def row(size: int, p50: float, **changes: Any) -> Row:
    return make_row(size, **{"time_s": make_times(p50), **changes})


def side(folder: Path, rows: list[Row], launches: int = 1) -> Path:
    """Launches with these rows, each a little slower than the one before; a single one is the folder itself."""
    if launches == 1:
        return store(folder, rows, command=["collbench", "allreduce"])
    for number in range(launches):
        moved = [replace(row, time_s=scaled(row.time_s, 1 + 0.001 * number)) for row in rows]
        store(folder / f"launch-{number + 1}", moved, allocation_id=folder.name, command=["collbench", "allreduce"])
    return folder


def scaled(times: Times | None, by: float) -> Times | None:
    return times and Times(**{name: value and value * by for name, value in vars(times).items()})


def shown(*folders: Path) -> Section:
    made = section(Material(read_all(folders), folders[0].parent / "page.html"))
    assert made is not None
    return made


def test_a_single_run_has_no_comparison_and_nothing_in_common_is_reported(tmp_path: Path) -> None:
    before = side(tmp_path / "before", [row(8, 1e-3)])
    assert section(Material(read_all([before]), tmp_path / "page.html")) is None
    made = shown(before, side(tmp_path / "after", [row(8, 1e-3, ranks=8, dtype="int8")]))
    assert made.texts[1] == "after (1 launch) has no case in common with it: dtype float32 → int8, ranks 4 → 8."
    assert made.charts == []


def test_the_worst_case_is_on_top(tmp_path: Path) -> None:
    before = [row(8, 1e-6), row(16, 1e-6), row(32, 1e-6), row(64, 1e-6), row(128, 1e-6), row(256, 1e-6, time_s=NO_INTERVAL)]
    lost = not_measured("no memory", size_bytes=128)
    after = [row(8, 1.3e-6), row(16, 1e-6), row(32, 2e-6), row(64, 0.5e-6, wrong=3), lost, row(256, 1e-6)]
    made = shown(side(tmp_path / "before", before, 3), side(tmp_path / "after", after, 3))
    assert made.texts[0].startswith("Baseline (A): before (3 launches)")
    assert made.texts[1] == (
        "after (3 launches): 6 cases: 2 slower (+30.0 % to 2.00×), 1 faster (0.000500×), 1 no change (±5 %), 0 inconclusive, "
        "1 with wrong data, 1 n/a."
    )
    (chart,) = made.charts
    assert [cases[1] for cases in chart.table.rows][:4] == ["64 B", "128 B", "32 B", "8 B"]
    assert chart.table.rows[2][-2] == "slower 2.00× (2.00–2.00×)"
    assert chart.table.marks == {0: "wrong", 1: "na"}
    assert chart.table.rows[1][-2] == "n/a (no memory) in B"


def test_hovering_shows_the_exact_values(tmp_path: Path) -> None:
    made = shown(side(tmp_path / "before", [row(1024, 1e-6)], 2), side(tmp_path / "after", [row(1024, 1.5e-6, flags=("drift",))], 2))
    (spot,) = made.charts[0].spots
    name, words, both, flags = spot.text.split("\n")
    assert (name, flags) == ("allreduce 1 KiB nccl float32 sum", "drift in B")
    assert both == "baseline 1.000 µs, candidate 1.501 µs"
    assert words.startswith("slower +50.0 % (")
    assert "slower +50.0 % (+49.5 to +50.5 %)" in made.charts[0].drawing  # figures in a drawing's text are never shortened


def test_without_an_interval_the_marker_is_hollow_and_nothing_is_claimed(tmp_path: Path) -> None:
    made = shown(
        side(tmp_path / "before", [row(8, 1e-3)]), side(tmp_path / "after", [row(8, 2e-3, time_s=NO_INTERVAL, flags=("imported",))])
    )
    (chart,) = made.charts
    assert chart.table.rows[0][-2] == "inconclusive (one launch each): 2.0×"
    assert re.search(r'data-mark="inconclusive 0"><path fill="var\(--paper\)" stroke="var\(--soft\)"', chart.drawing)
    assert "one launch each: changes as measured, the largest first" in chart.method


def test_many_cases_are_drawn_up_to_a_limit(tmp_path: Path) -> None:
    before, after = ([row(8 * number, by * 1e-6) for number in range(1, MOST_LINES + 3)] for by in (1, 1.2))
    made = shown(side(tmp_path / "before", before), side(tmp_path / "after", [*after, row(1 << 20, 1e-3)]))
    (chart,) = made.charts
    assert chart.caption.endswith(f"Drawn are {MOST_LINES} of {MOST_LINES + 2} cases, the worst first.")
    assert len(chart.spots) == MOST_LINES
    assert len(chart.table.rows) == MOST_LINES + 2
    assert made.texts[1].endswith(", 1 only in the candidate.")
    assert len(chart.drawing) < 40_000


def test_many_candidates_are_counted(tmp_path: Path) -> None:
    folders = [side(tmp_path / f"run-{number}", [row(8, 1e-6, na="x", time_s=None)]) for number in range(MOST_CANDIDATES + 3)]
    made = shown(*folders)
    assert made.texts[-1] == "2 more runs are not compared here: `collbench compare` compares any two."
    assert (len(made.charts), len(made.tables)) == (0, MOST_CANDIDATES)
    assert made.tables[0][1].rows[0][-2] == "n/a (x) in A; n/a (x) in B"


@pytest.mark.parametrize("name", ["$\\frac{1}{0}$", "<script>alert(1)</script>", "\u202ex" * 300])
def test_names_that_would_be_markup(name: str, tmp_path: Path) -> None:
    before, after = ([row(8, 1e-6, backend=name)], [row(8, 2e-6, backend=name, flags=(name,))])
    (chart,) = shown(side(tmp_path / "before", before), side(tmp_path / "after", after)).charts
    assert "<script" not in chart.drawing and "\u202e" not in chart.drawing
    assert "\u202e" not in chart.spots[0].text and len(chart.spots[0].text) < 600
