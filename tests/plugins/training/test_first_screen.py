"""The answer of the page of a training: sentence, badge, figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from collbench.plugins.training import FILE
from collbench.report.html.first_screen import BAD, DOUBT, FirstScreen
from collbench.results.folder import RunFolder
from collbench.results.reader import read_run
from tests.plugins.training.test_records import NA, ROW
from tests.report.html.stored import material
from tests.report.html.test_first_screen import screen_of


class TestTraining:
    @staticmethod
    def of(folder: Path, *rows: Any) -> FirstScreen:
        run = RunFolder.create(folder / "run", "workload", {"workload": {"ranks": 2}})
        for row in rows:
            run.append_record(row.as_json(), FILE)
        run.finish(exit_code=0)
        return screen_of(material(read_run(folder / "run")))

    def test_a_step_has_its_time_its_share_and_what_limits(self, tmp_path: Path) -> None:
        found = self.of(tmp_path, ROW)
        assert found.title == (
            "data-parallel training of bert-large on 2 nodes, 2 ranks: a step's exchange takes 20.00 ms over mpi, "
            "0.100 of 0.125 GB/s (80 %), limited by NIC eth0 1 Gb/s"
        )
        assert [figure.value for figure in found.figures] == ["20.00 ms", "80 %"]

    def test_wrong_data_is_bad(self, tmp_path: Path) -> None:
        assert self.of(tmp_path, ROW.replace(wrong=3)).badge == (BAD, "WRONG DATA")

    def test_a_step_that_was_not_measured_has_its_reason(self, tmp_path: Path) -> None:
        found = self.of(tmp_path, NA)
        assert found.badge == (DOUBT, "NOT MEASURED") and "no GPU here" in found.title
