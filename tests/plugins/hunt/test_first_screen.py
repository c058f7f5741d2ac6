"""The answer of the page of a hunt, and of pairs: sentence, badge, figures."""

from pathlib import Path

import numpy as np
import pytest

from collbench.plugins.hunt import HUNT_FILE
from collbench.plugins.hunt.kind import PairsKind
from collbench.plugins.hunt.page import section
from collbench.plugins.hunt.pairs import PairEffects
from collbench.report.html.first_screen import BAD, DOUBT, GOOD, LargeFigure
from collbench.report.material import Material
from collbench.results.folder import RunFolder
from collbench.results.reader import read_run
from tests.plugins.hunt.html.matrices import even
from tests.plugins.hunt.pair_matrices import SyntheticMatrix
from tests.plugins.hunt.test_hunt_text import CLEARED, SLOW, UNDECIDED, about
from tests.plugins.hunt.test_records import a_round
from tests.report.html.stored import material
from tests.report.html.test_first_screen import REPORTS, screen_of


class TestHunt:
    @staticmethod
    def of(folder, hunt):
        run = RunFolder.create(folder / "run", "hunt", {"hunt": hunt})
        for number in range(5):
            run.append_record(a_round(number).as_json(), HUNT_FILE)
        run.finish(exit_code=0)
        return screen_of(material(read_run(folder / "run")))

    def test_a_confirmed_suspect_is_the_answer(self, tmp_path):
        found = self.of(tmp_path, about(SLOW, CLEARED, UNDECIDED))
        assert (found.badge, found.title) == ((BAD, "FAULTY"), "b sends and receives at 50 % of the others (49 % to 52 %)")
        assert found.figures == [LargeFigure("50 %", "of the others: b"), LargeFigure("4", "nodes searched")]

    @pytest.mark.parametrize(
        ("hunt", "badge"),
        [(about(result="nobody"), (GOOD, "HEALTHY")), (about(UNDECIDED, result="no verdict"), (DOUBT, "NO VERDICT"))],
        ids=["no suspect", "inconclusive suspects"],
    )
    def test_without_a_confirmed_suspect_it_is_healthy_or_without_a_verdict(self, hunt, badge, tmp_path):
        assert self.of(tmp_path, hunt).badge == badge

    def test_a_hunt_that_stopped_early_has_no_verdict(self, tmp_path):
        found = self.of(tmp_path, {**about(), "verdict": None})
        assert (found.badge, found.title) == ((DOUBT, "NO VERDICT"), "the hunt stopped early, without a verdict")

    def test_a_host_that_became_slow_is_faulty_and_the_chart_has_its_percentage_of_the_median(self):
        page = Material([read_run(REPORTS / "hunt-host")], Path("x.html"))
        found = screen_of(page)
        assert found.badge == (BAD, "FAULTY")
        assert found.more[0].startswith("to drain cb1h7: `scontrol update NodeName=cb1h7 State=DRAIN Reason=")
        assert found.title.startswith("cb1h7 sends and receives at 51 % of the others (50 % to 53 %)")
        assert "median 0.0236 GB/s; the expected bandwidth is unknown" in found.more
        (chart,) = section(page).charts
        (slow,) = (row for row in chart.table.rows if row[0] == "cb1h7")
        assert slow == ["cb1h7", "0.0120", "51 % (50 % to 53 %)", "confirmed"]
        healthy = [row for row in chart.table.rows if row[0] != "cb1h7"]
        for _, rate, share, _ in healthy:
            assert abs(100 * float(rate) / 0.0236 - float(share.removesuffix(" %"))) < 1
        assert "% of the median of all pairs" in chart.drawing


def unnamed(matrix):
    effects = PairEffects(matrix)
    assert effects.findings() == []
    return PairsKind._without_findings(effects)


def test_pairs_are_even_only_if_each_is_near_what_its_ends_suggest():
    calm = SyntheticMatrix(6, sigma=0.004).matrix()
    assert unnamed(calm) == ((GOOD, "EVEN"), ["none of 6 places and none of their pairs is slower than the others"])
    wild = SyntheticMatrix(6, sigma=0.004)
    wild.latencies *= 1 + 60 * np.triu(wild.drawn.random((6, 6)), 1)
    badge, (first, *others) = unnamed(wild.matrix())
    assert badge == (DOUBT, "INCONCLUSIVE")
    assert " times the latency expected from their other pairs; chance explains that in this measurement" in first
    assert any(text.startswith("latency: the pairs scatter too much to detect a single slow one") for text in others)
    badge, sentences = unnamed(SyntheticMatrix(4, seed=2, sigma=0.15).matrix())
    assert badge == (DOUBT, "INCONCLUSIVE")
    assert sentences[0] == "node1 to node4: 61 % of the bandwidth expected from their other pairs; chance explains that in this measurement"


@pytest.mark.parametrize("n", [2, 3])
def test_two_or_three_places_cannot_be_judged(n):
    badge, sentences = unnamed(even(n))
    assert badge == (DOUBT, "INCONCLUSIVE") and sentences


def test_pairs_name_the_slow_host():
    found = screen_of(Material([read_run(REPORTS / "pairs-trials/host-0")], Path("x.html")))
    assert found.badge == (BAD, "SLOW")
    assert found.title.startswith("cb1h2 sends and receives at 50 % ")
    assert found.figures[0] == LargeFigure("50 %", "of the others: cb1h2")
