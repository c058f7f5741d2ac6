"""The answer of the page of a hunt, and of pairs: sentence, badge, figures."""

import numpy as np
import pytest

from collbench.report.html.first_screen import BAD, DOUBT, GOOD, LargeFigure
from collbench.results.reader import read_run
from tests.plugins.hunt.html.matrices import even
from tests.plugins.hunt.pair_matrices import SyntheticMatrix
from tests.plugins.hunt.test_hunt_text import CLEARED, SLOW, UNDECIDED, about, hunted
from tests.plugins.hunt.test_pairs_text import rounds, stored
from tests.report.html.stored import material
from tests.report.html.test_first_screen import screen_of


class TestHunt:
    @staticmethod
    def of(folder, hunt):
        return screen_of(material(read_run(hunted(folder / "run", hunt, 0))))

    def test_a_confirmed_suspect_is_the_answer_and_a_hunt_that_stopped_early_has_none(self, tmp_path):
        found = self.of(tmp_path, about(SLOW, CLEARED, UNDECIDED))
        assert (found.badge, found.title) == ((BAD, "FAULTY"), "b sends and receives at 50 % of the others (49 % to 52 %)")
        assert found.figures == [LargeFigure("50 %", "of the others: b"), LargeFigure("4", "nodes searched")]
        found = self.of(tmp_path / "stopped", {**about(), "verdict": None})
        assert (found.badge, found.title) == ((DOUBT, "NO VERDICT"), "the hunt stopped early, without a verdict")

    @pytest.mark.parametrize(("hunt", "badge"), [
        (about(result="nobody"), (GOOD, "HEALTHY")), (about(UNDECIDED, result="no verdict"), (DOUBT, "NO VERDICT")),
    ], ids=["no suspect", "inconclusive suspects"])  # fmt: skip
    def test_without_a_confirmed_suspect_it_is_healthy_or_without_a_verdict(self, hunt, badge, tmp_path):
        assert self.of(tmp_path, hunt).badge == badge


def of_pairs(folder, matrix):
    return screen_of(material(read_run(stored(folder, rounds(matrix), matrix.n))))


def test_four_places_or_more_are_even_only_if_each_pair_is_near_what_its_ends_suggest(tmp_path):
    calm = of_pairs(tmp_path / "calm", SyntheticMatrix(6, sigma=0.004).matrix())
    assert (calm.badge, calm.title) == ((GOOD, "EVEN"), "none of 6 places and none of their pairs is slower than the others")
    wild = SyntheticMatrix(6, sigma=0.004)
    wild.latencies *= 1 + 60 * np.triu(wild.drawn.random((6, 6)), 1)
    found = of_pairs(tmp_path / "latencies", wild.matrix())
    assert found.badge == (DOUBT, "INCONCLUSIVE")
    assert " times the latency expected from their other pairs; chance explains that in this measurement" in found.title
    assert any(note.startswith("latency: the pairs scatter too much to detect a single slow one") for note in found.more)
    found = of_pairs(tmp_path / "bandwidths", SyntheticMatrix(4, seed=2, sigma=0.15).matrix())
    assert found.badge == (DOUBT, "INCONCLUSIVE")
    assert found.title == "node1 to node4: 61 % of the bandwidth expected from their other pairs; chance explains that in this measurement"
    for n in (2, 3):
        assert of_pairs(tmp_path / f"{n} places", even(n)).badge == (DOUBT, "INCONCLUSIVE")
