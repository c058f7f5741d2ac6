"""A replay by the Python API, and an autopsy in a notebook."""

from __future__ import annotations

from pathlib import Path

import pytest

import collbench
from tests.api import test_measure
from tests.api.test_html import check_fragment
from tests.plugins.traces.recorded import Op, write_dumps
from tests.plugins.traces.test_autopsy_command import HANG

folder = test_measure.folder  # a fixture


def test_an_autopsy_shows_its_findings() -> None:
    found = collbench.autopsy(*HANG)
    assert (found.code, len(found.findings)) == ("autopsy_verdict", 1)
    texts = check_fragment(found._repr_html_())  # type: ignore[attr-defined]
    assert texts[0] == found.render() and found.findings[0].cause.value in texts
    assert repr(found) == f"<AutopsyVerdict: {found.render()}>"


@pytest.mark.long
def test_a_replay_is_a_stored_run(folder: Path) -> None:
    operations = [Op("allreduce", sent=256, start_ms=0, end_ms=1), Op("broadcast", sent=64, root=0, start_ms=3, end_ms=4)]
    traces = write_dumps(folder / "dumps", {"world": (0, 1)}, {0: operations, 1: operations})
    runs = collbench.replay(traces, step="all", backend="simulated", iterations=20, out=folder / "out")
    (row,) = runs.rows
    assert (row.operation, row.ranks, row.wrong, row.n) == ("replay", 2, 0, 20)
    table = runs.workloads()
    assert list(table["trace_format"]) == ["flight-recorder"] and list(table["recorded_step_time_s"]) == [pytest.approx(0.004)]
    with pytest.raises(collbench.UsageError, match="--step all"):
        collbench.replay(traces, step="median", backend="simulated")
