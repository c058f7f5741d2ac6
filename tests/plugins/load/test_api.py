"""Loads by the Python API."""

from pathlib import Path

import pytest

import collbench
from tests.cli.command import ROOT
from tests.plugins.load.loads import PLAN, load_run, simulated_row

pytest.importorskip("pandas", reason="no pandas here: pip install 'collbench[pandas]'")
REPORTS = ROOT / "reports"


def test_loads_as_a_frame_and_as_typed_values(tmp_path: Path) -> None:
    made = [simulated_row(1, 2.0), simulated_row(2, 3.0, plan=PLAN.replace(level=0.5))]
    runs = collbench.read(load_run(tmp_path / "a", *made))
    frame = runs.loads()
    ascending = [made[1][0], made[0][0]]
    assert runs.load_rows == ascending
    assert frame["level"].to_list() == [0.5, 1.0] and frame["p50_factor"].to_list() == [row.factor.value for row in ascending]
    assert frame["flags"].to_list() == [row.flags for row in ascending]  # the names of flags, as in the other tables
    assert set(frame["verdict"]) == {"interference"} and frame["aggressor_nodes"].to_list() == [2, 2]
    assert [row.mode for row in runs.rows] == ["isolated", "load"] * 2 and runs.rows[1].interference["factor"] == made[0][0].factor.value
    assert len(collbench.read(REPORTS / "first-run").loads()) == 0
    with (tmp_path / "a/load.jsonl").open("a") as lines:
        lines.write("{}\n")
    with pytest.raises(collbench.UnreadableRun, match=r"load\.jsonl"):
        collbench.read(tmp_path / "a").loads()
    allowed = collbench.read(tmp_path / "a", strict=False)
    assert len(allowed.load_rows) == 2 and any("load.jsonl" in text for text in allowed.warnings)
