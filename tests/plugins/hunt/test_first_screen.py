"""The answer of the page of a hunt, and of pairs: sentence, badge, figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from collbench.plugins.hunt import HUNT_FILE
from collbench.report.html.first_screen import BAD, DOUBT, GOOD, FirstScreen, LargeFigure
from collbench.report.material import Material
from collbench.results.folder import RunFolder
from collbench.results.reader import read_run
from tests.plugins.hunt.test_hunt_text import CLEARED, SLOW, UNDECIDED, about
from tests.plugins.hunt.test_records import a_round
from tests.report.html.stored import material
from tests.report.html.test_first_screen import REPORTS, screen_of


class TestHunt:
    @staticmethod
    def of(folder: Path, hunt: dict[str, Any]) -> FirstScreen:
        run = RunFolder.create(folder / "run", "hunt", {"hunt": hunt})
        for number in range(5):
            run.append_record(a_round(number).as_json(), HUNT_FILE)
        run.finish(exit_code=0)
        return screen_of(material(read_run(folder / "run")))

    def test_a_confirmed_suspect_is_the_answer(self, tmp_path: Path) -> None:
        found = self.of(tmp_path, about(SLOW, CLEARED, UNDECIDED))
        assert (found.badge, found.title) == ((BAD, "FAULTY"), "b sends and receives at 50 % of the others (49 % to 52 %)")
        assert found.figures == [LargeFigure("50 %", "of the others: b"), LargeFigure("4", "nodes searched")]

    def test_no_suspect_is_healthy(self, tmp_path: Path) -> None:
        assert self.of(tmp_path, about(result="nobody")).badge == (GOOD, "HEALTHY")

    def test_inconclusive_suspects_have_no_verdict(self, tmp_path: Path) -> None:
        assert self.of(tmp_path, about(UNDECIDED, result="no verdict")).badge == (DOUBT, "NO VERDICT")

    def test_a_hunt_that_stopped_early_has_no_verdict(self, tmp_path: Path) -> None:
        found = self.of(tmp_path, {**about(), "verdict": None})
        assert (found.badge, found.title) == ((DOUBT, "NO VERDICT"), "the hunt stopped early, without a verdict")

    def test_a_host_that_became_slow_is_faulty_in_a_stored_hunt(self) -> None:
        found = screen_of(Material([read_run(REPORTS / "hunt-host")], Path("x.html")))
        assert found.badge == (BAD, "FAULTY")
        assert found.more[0].startswith("to drain cb1h7: `scontrol update NodeName=cb1h7 State=DRAIN Reason=")


def test_pairs_name_the_slow_host() -> None:
    found = screen_of(Material([read_run(REPORTS / "pairs-trials/host-0")], Path("x.html")))
    assert found.badge == (BAD, "SLOW")
    assert found.title.startswith("cb1h2 sends and receives at 50 % ")
    assert found.figures[0] == LargeFigure("50 %", "of the others: cb1h2")
