"""The answer of a page, for each kind of result: sentence, badge, figures."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.machine.peak.ceiling import Ceiling
from collbench.report.html.first_screen import BAD, DOUBT, GOOD, PLAIN, FirstScreen, LargeFigure, first_screen
from collbench.report.html.page import html
from collbench.report.material import Material
from collbench.results.reader import Run, read_run
from collbench.results.row import Row
from tests.gate.verdicts import regression, verdict
from tests.report.html.stored import material, run_of
from tests.report.html.test_curves import hostile_rows
from tests.report.verdict.hostile import hostile
from tests.results.rows import COPY, make_row, make_times, not_measured

REPORTS = Path(__file__).parents[3] / "reports"


def screen_of(found: Material) -> FirstScreen:
    screen = first_screen(found)
    assert len(screen.figures) <= 4 and not screen.title.endswith(".")
    return screen


def of_rows(*rows: Row) -> FirstScreen:
    return screen_of(material(run_of([(row, {}) for row in rows])))


def launches(name: str, factor: float, **changes: Any) -> list[Run]:
    """Three launches of two sizes that take `factor` times as long, with little noise."""
    found = []
    for number in range(3):
        times = {size: make_times(factor * size * 1e-9 * (1 + number / 1000)) for size in (1 << 16, 1 << 20)}
        rows = [make_row(size, **{"time_s": time_s, **changes}) for size, time_s in times.items()]
        found.append(run_of([(row, {}) for row in rows], f"{name}/launch-{number}", allocation_id=name))
    return found


class TestRows:
    def test_one_operation_has_its_rate_and_what_limits_and_several_the_lowest_and_the_highest_share(self) -> None:
        found = of_rows(make_row(), make_row(8, backend="mpi", busbw_bytes_per_s=1e6, percent_of_ceiling=0.002, time_s=make_times(5e-6)))
        assert found.title == "allreduce on 1 node, 4 ranks: 42.0 of 50.0 GB/s (84 %) at 64 MiB, limited by NIC 4×100 Gb/s"
        assert LargeFigure("84 %", "of 50.0 GB/s expected: allreduce over nccl at 64 MiB") in found.figures
        assert LargeFigure("5.000 µs", "allreduce over mpi at 8 B") in found.figures
        found = of_rows(make_row(), make_row(operation="broadcast", busbw_bytes_per_s=20e9, percent_of_ceiling=40.0))
        shares = "40 % (broadcast over nccl) to 84 % (allreduce over nccl)"
        assert found.title == f"2 operations on 1 node, 4 ranks: {shares} of the expected bandwidth"
        assert [figure.value for figure in found.figures] == ["40 %", "84 %"]

    def test_wrong_data_and_rows_above_the_hard_limit_come_before_any_rate(self) -> None:
        found = of_rows(make_row(wrong=3), make_row(operation="broadcast"))
        assert found.badge == (BAD, "BROKEN")
        assert "WRONG DATA in allreduce over nccl" in found.title
        found = of_rows(make_row(), make_row(1 << 20, flags=("above_bound",)), not_measured("no memory", size_bytes=8))
        assert found.badge == (DOUBT, "DOUBTFUL")
        assert "; doubtful: above the hard limit: 1 of 2 cases; the rate exceeds the hard limit: the bytes took another path" in found.title

    @pytest.mark.parametrize(("percent", "changes", "badge", "reason"), [
        (84.0, {}, (GOOD, "OK"), ""),
        (50.5, {"ceiling": COPY}, (GOOD, "OK"), ""),
        (26.0, {"ceiling": COPY}, (PLAIN, "MEASURED"), "; allreduce over nccl reaches only 26 % of the expected bandwidth: "),
        (101.0, {"ceiling": COPY}, (GOOD, "OK"), ""),
        (116.0, {"ceiling": COPY}, (PLAIN, "MEASURED"), "; allreduce over nccl reaches 116 % of a measured reference, above the limit"),
        (107.0, {}, (GOOD, "OK"), ""),  # the ring's rate is no limit
    ])  # fmt: skip
    def test_an_ok_is_green_only_near_the_expected_bandwidth(self, percent, changes, badge, reason):
        found = of_rows(make_row(percent_of_ceiling=percent, **changes))
        assert found.badge == badge
        assert reason in found.title and (";" in found.title) is bool(reason)

    def test_a_run_that_is_not_ok_has_its_first_reason_in_the_title_and_the_others_below(self) -> None:
        bare = replace(make_times(1e-3), ci_low=None, ci_high=None)
        found = of_rows(make_row(time_s=bare, flags=("imported",)))
        assert found.badge == (DOUBT, "INCONCLUSIVE")
        assert found.title.endswith("; inconclusive: allreduce over nccl: no row has a confidence interval")
        slow = of_rows(make_row(percent_of_ceiling=10.0))
        assert slow.more[0].startswith("allreduce over nccl reaches only 42.0 of 50.0 GB/s (10 %)")
        found = of_rows(*(make_row(backend=backend, time_s=bare, flags=("imported",)) for backend in ("mpi", "nccl")))
        assert found.title.endswith("; inconclusive: allreduce over mpi: no row has a confidence interval")
        assert found.more[:2] == [f"allreduce over {backend}: no row has a confidence interval" for backend in ("mpi", "nccl")]
        found = of_rows(make_row(flags=("state_flip",), percent_of_ceiling=30.0))
        assert found.title.endswith("; inconclusive: 1 of 1 row over nccl is noisy or unreliable")
        assert found.more[0].startswith("1 of 1 row over nccl is noisy or unreliable: other work or a changed machine state")

    def test_above_a_measured_reference_a_percentage_has_its_meaning_and_far_above_there_is_none(self) -> None:
        found = of_rows(make_row(ceiling=COPY, percent_of_ceiling=116.0), make_row(operation="broadcast", percent_of_ceiling=60.0))
        assert "to 116 % (allreduce over nccl, above the limit: reference doubtful) of the expected bandwidth" in found.title
        assert found.figures[1].value == "116 %"
        assert found.figures[1].label.endswith("allreduce over nccl at 64 MiB, above the limit: reference doubtful")
        assert "(116 %, above the limit: reference doubtful) at 64 MiB" in found.more[0]
        found = of_rows(make_row(ceiling=COPY, percent_of_ceiling=642.0), make_row(operation="broadcast", percent_of_ceiling=60.0))
        assert ": 60 % (broadcast over nccl) of the expected bandwidth;" in found.title
        assert found.figures[1] == LargeFigure("42.0 GB/s", "allreduce over nccl at 64 MiB, above the limit: reference doubtful")

    def test_of_operations_without_a_rate_the_shortest_time_and_its_backend_are_named(self) -> None:
        barrier = {"operation": "barrier", "busbw_bytes_per_s": None, "percent_of_ceiling": None}
        slow, quick = (make_row(0, backend=name, time_s=make_times(time_s), **barrier) for name, time_s in (("gloo", 4e-4), ("mpi", 9e-6)))
        assert ": barrier over mpi: 9.000 µs" in of_rows(slow, quick).title
        assert "4 ranks: 400.0 µs · no data" in of_rows(slow).title

    def test_the_latency_is_that_of_the_operation_that_measures_it_and_of_one_message(self) -> None:
        collective = make_row(8, busbw_bytes_per_s=1e6, percent_of_ceiling=None, time_s=make_times(1e-6))
        latency = make_row(8, operation="p2p_latency", busbw_bytes_per_s=1e6, percent_of_ceiling=None, time_s=make_times(2e-6))
        assert of_rows(make_row(), collective, latency).figures[-1] == LargeFigure("2.000 µs", "p2p_latency over nccl at 8 B")
        assert of_rows(make_row(), collective).figures[-1] == LargeFigure("1.000 µs", "allreduce over nccl at 8 B")
        rows = [make_row(operation="p2p_bandwidth", window=64), make_row(8, operation="p2p_bandwidth", window=64, time_s=make_times(1e-6))]
        latency = make_row(8, operation="p2p_latency", busbw_bytes_per_s=1e6, percent_of_ceiling=None, time_s=make_times(2e-6))
        assert of_rows(*rows, latency).figures[-1] == LargeFigure("2.000 µs", "p2p_latency over nccl at 8 B")
        assert not any("µs" in figure.value for figure in of_rows(*rows).figures)

    def test_without_an_expected_rate_a_time_or_runs_there_is_no_percentage_a_reason_or_no_page(self) -> None:
        found = of_rows(make_row(ceiling=Ceiling("none", None, "unknown speed"), percent_of_ceiling=None))
        assert "%" not in found.title and "42.0 GB/s" in found.title
        assert "no library" in of_rows(not_measured("no library")).title
        assert first_screen(material()) is None
        with pytest.raises(UsageError, match="no result for a page"):
            html(material())


class TestComparison:
    def test_slower_cases_are_counted_with_the_range_of_their_change(self) -> None:
        found = screen_of(material(*launches("before", 1), *launches("after", 1.3)))
        assert (found.badge, found.title) == ((BAD, "SLOWER"), "allreduce slower (+30.0 %) in 2 of 2 cases")
        assert [figure.value for figure in found.figures] == ["+30.0 % time", "+30.0 % time"]
        assert all(figure.label.startswith("allreduce over nccl at ") for figure in found.figures)
        assert found.more[0].startswith("after against before, the baseline: 2 cases: 2 slower")

    @pytest.mark.parametrize(("factor", "changes", "badge", "title"), [
        (0.5, {}, (GOOD, "FASTER"), "allreduce faster (-50.0 %) in 2 of 2 cases"),
        (1.001, {}, (GOOD, "NO CHANGE"), "allreduce: no change (±5 %) in 2 of 2 cases"),
        (1.3, {"wrong": 5}, (BAD, "WRONG DATA"), "wrong data in 2 of 2 cases"),
        (1.0, {"ranks": 8, "dtype": "int8"}, (DOUBT, "INCONCLUSIVE"), "no case in common: dtype float32 → int8, ranks 4 → 8"),
    ])  # fmt: skip
    def test_no_change_is_claimed_only_inside_the_margin(self, factor: float, changes: Any, badge: tuple[str, str], title: str) -> None:
        found = screen_of(material(*launches("before", 1), *launches("after", factor, **changes)))
        assert (found.badge, found.title) == (badge, title)
        assert ("NO CHANGE" not in badge) or found.figures == [LargeFigure("2", "cases without change")]

    def test_single_runs_without_intervals_are_inconclusive(self) -> None:
        bare = replace(make_times(1e-3), ci_low=None, ci_high=None)
        runs = [run_of([(make_row(8, time_s=bare, flags=("imported",)), {})], name) for name in ("before", "after")]
        found = screen_of(material(*runs))
        assert (found.badge, found.title) == ((DOUBT, "INCONCLUSIVE"), "allreduce: inconclusive in 1 of 1 case (one launch each)")
        assert found.figures == [LargeFigure("1", "inconclusive case")]

    def test_cases_that_one_run_lacks_are_not_judged(self) -> None:
        lost = run_of([(not_measured("no memory", size_bytes=8), {})], "after")
        found = screen_of(material(run_of([(make_row(8), {})], "before"), lost))
        assert (found.badge, found.title) == ((DOUBT, "INCONCLUSIVE"), "none of 1 case was measured in both runs")

    def test_a_link_that_became_slower_is_named_with_the_percentages_of_both_limits(self) -> None:
        runs = [read_run(path) for name in ("before", "after") for path in sorted((REPORTS / "regression" / name).iterdir())]
        screen = screen_of(Material(runs, Path("x.html")))
        assert screen.title == "allreduce slower (+21.1 to +25.7 %) in 7 of 8 cases; eth0 of cb1h2: 1 → 0.8 Gb/s"
        assert screen.more[-1] == (
            "of the bandwidth expected now: allreduce over gloo 84 % to 100 %, allreduce over mpi 100 %; "
            "other percentages are of the bandwidth expected before"
        )


class TestGate:
    @staticmethod
    def of(given: Any) -> FirstScreen:
        return screen_of(Material([Run(Path("night-9"), {}, [make_row()])], Path("page.html"), (), given))

    def test_a_regression_has_the_slowest_groups_as_figures_and_the_cause_below(self) -> None:
        found = self.of(regression())
        assert found.badge == (BAD, "REGRESSION") and found.title.startswith("allreduce on mpi, large messages: +3.0 % time")
        assert found.figures[0] == LargeFigure("+3.0 %", "allreduce on mpi, large messages, limit +1.0 %")
        assert found.figures[-1] == LargeFigure("6", "cases judged")
        assert found.more[0] == "likely cause: the link: large messages are 1.12 times slower on mpi and nccl, small ones are not"
        passed = self.of(verdict())
        assert (passed.badge, passed.title) == ((GOOD, "PASSED"), "no case is slower than its limit")

    def test_hostile_text_is_printable(self) -> None:
        found = self.of(hostile(rows=3))
        every = [found.title, found.circumstances, *found.more, *(figure.label for figure in found.figures)]
        assert not any("\x1b" in text or "\u202e" in text for text in every)
        assert len(found.title) <= 400


@settings(max_examples=30, deadline=None)
@given(hostile_rows(), hostile_rows())
def test_any_rows_have_an_answer_in_printable_text(one: Row, other: Row) -> None:
    for page in (material(run_of([(one, {}), (other, {})])), material(run_of([(one, {})]), run_of([(other, {})]))):
        found = screen_of(page)
        every = [found.title, found.circumstances, *found.more, *(f"{figure.value} {figure.label}" for figure in found.figures)]
        assert not any("\x1b" in text or "\u202e" in text for text in every)
        assert all(len(text) <= 600 for text in every)
