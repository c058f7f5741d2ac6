"""The figure of a run of pairs: a matrix of each quantity, with the slow pair marked in its direction."""

from __future__ import annotations

from pathlib import Path

import pytest

import collbench
from collbench.errors import UsageError
from collbench.plugins.hunt.figures import pairs_panels
from collbench.report.charts import MatrixPanel
from collbench.report.material import Material
from tests.cli.command import ROOT
from tests.stored import stored_reports


def test_a_slow_pair_is_marked_in_the_matrix_of_its_run() -> None:
    runs = collbench.read(stored_reports() / "pairs-trials/pair-0")
    bandwidth, latency = pairs_panels(Material(list(runs), Path()))
    assert isinstance(bandwidth, MatrixPanel) and isinstance(latency, MatrixPanel)
    assert (bandwidth.title, bandwidth.unit, latency.unit) == ("bandwidth, 128 KiB messages", "GB/s", "µs")
    assert list(bandwidth.names) == [f"cb1h{number}" for number in range(1, 9)]
    table = runs.pairs().set_index(["sender", "receiver"])["bandwidth_bytes_per_s"]
    for (sender, receiver), rate in table.items():
        row, column = (int(name[-1]) - 1 for name in (sender, receiver))
        assert bandwidth.values[row][column] == pytest.approx(rate / 1e9)
    assert list(bandwidth.marked) == [(5, 2)]  # cb1h6 sends to cb1h3
    assert bandwidth.values[5][2] * 1e9 == pytest.approx(table.min())
    assert list(latency.marked) == []


def test_other_runs_have_no_such_figure() -> None:
    with pytest.raises(UsageError, match="--kind pairs needs a run of `collbench pairs`"):
        pairs_panels(Material(list(collbench.read(ROOT / "reports/first-run")), Path()))
