"""The reporter: rows measured in any order are read in the planned one, nothing is lost, and a log hears that the run is alive."""

from __future__ import annotations

import io
import random
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.report import screen
from collbench.report.frame import Line
from collbench.report.plan import PlanSummary
from collbench.report.progress import Reporter
from collbench.report.screen import LiveScreen, PlainScreen, time_left
from collbench.results.folder import RunFolder
from tests.results.rows import make_row, not_measured

SIZES = [8, 16, 32, 64]
ROWS = [make_row(size) for size in SIZES]


class Lines(io.StringIO):
    """stdout that can be asked which sizes it has shown so far."""

    def sizes(self) -> list[int]:
        return [int(line.split()[0]) for line in self.getvalue().splitlines() if line.endswith(" ok")]


@pytest.mark.parametrize(("places", "sizes"), [
    pytest.param((2, 0, 3, 1), [[], [8], [8], SIZES], id="a row waits for those before it"),
    pytest.param((None, None), [[8], [8, 16]], id="without places rows are printed at once"),
])  # fmt: skip
def test_the_order_of_rows(places: tuple[int | None, ...], sizes: list[list[int]]) -> None:
    out, shown = Lines(), []
    with Reporter("table", out, io.StringIO()) as reporter:
        reporter.start(PlanSummary.of(ROWS))
        for number, place in enumerate(places):
            reporter.row(ROWS[number if place is None else place], *(() if place is None else (place,)))
            shown.append(out.sizes())
    assert shown == sizes


def test_a_place_that_comes_twice_loses_no_row() -> None:
    out = Lines()
    with Reporter("table", out, io.StringIO()) as reporter:
        reporter.start(PlanSummary.of(ROWS))
        for place in (1, 1, 0, 0):
            reporter.row(ROWS[place], place)
    assert sorted(out.sizes()) == [8, 8, 16, 16]


@settings(max_examples=30, deadline=None)
@given(order=st.permutations(range(len(ROWS))), measured=st.integers(0, len(ROWS)))
def test_an_interrupted_run_shows_every_row_it_has_in_order(order: list[int], measured: int) -> None:
    out = Lines()
    with pytest.raises(KeyboardInterrupt), Reporter("table", out, io.StringIO()) as reporter:
        reporter.start(PlanSummary.of(ROWS))
        for place in order[:measured]:
            reporter.row(ROWS[place], place)
        raise KeyboardInterrupt
    assert out.sizes() == sorted(SIZES[place] for place in order[:measured])
    assert ("quality: ok" in out.getvalue()) is (measured > 0)


@pytest.mark.parametrize("format", ["json", "csv"])
def test_formats_for_programs_print_as_measured(format: str) -> None:
    out = io.StringIO()
    reporter = Reporter(format, out, io.StringIO())
    reporter.start(PlanSummary.of(ROWS))
    head = len(out.getvalue().splitlines())
    for count, place in enumerate((2, 0, 3, 1), start=1):
        reporter.row(ROWS[place], place)
        assert len(out.getvalue().splitlines()) == head + count


def test_both_placings_meet_on_one_line_of_nccl_tests_for_any_order() -> None:
    rows = [make_row(size, in_place=in_place) for size in (8, 16) for in_place in (False, True)]
    out = io.StringIO()
    with Reporter("nccl-tests", out, io.StringIO()) as reporter:
        reporter.start(PlanSummary.of(rows))
        for place in random.Random(1).sample(range(4), 4):
            reporter.row(rows[place], place)
    lines = [line.split() for line in out.getvalue().splitlines() if line.strip() and not line.startswith("#")]
    assert [(line[0], "N/A" in line) for line in lines] == [("8", False), ("16", False)]


def test_a_log_hears_from_a_silent_run_every_ten_seconds() -> None:
    clock = [0.0]
    out, err = io.StringIO(), io.StringIO()
    screen = PlainScreen(out, err, now=lambda: clock[0])
    for second in range(0, 41, 4):
        clock[0] = float(second)
        screen.progress("allreduce 1 MiB mpi", second // 4, 34, None if second < 30 else 65.0)
        if second == 24:
            screen.data(Line("a row"))
    assert err.getvalue().splitlines() == [
        "3 of 34 cases measured: allreduce 1 MiB mpi",  # at 12 s
        "6 of 34 cases measured: allreduce 1 MiB mpi",  # at 24 s, when a row appears too
        "9 of 34 cases measured, 1 min 05 s left: allreduce 1 MiB mpi",  # at 36 s
    ]
    assert out.getvalue() == "a row\n"


def test_a_log_hears_of_the_start_only_if_nothing_else_comes_for_three_seconds() -> None:
    clock = [0.0]
    err = io.StringIO()
    screen = PlainScreen(io.StringIO(), err, now=lambda: clock[0])
    for second, text in ((0.5, "opening mpi…"), (2.9, "reading the hardware…"), (3.5, "measuring the references…"), (6.0, "x")):
        clock[0] = second
        screen.status(text)
    assert err.getvalue() == "measuring the references…\n"


def test_a_quiet_run_stays_silent_and_so_does_one_that_shows_rows() -> None:
    clock = [0.0]
    err = io.StringIO()
    for quiet in (True, False):
        screen = PlainScreen(io.StringIO(), err, quiet=quiet, now=lambda: clock[0])
        for done in range(5):
            clock[0] += 60 if quiet else 9
            screen.progress("x", done, 5, None)
            screen.data(Line("a row"))
    assert err.getvalue() == ""


def test_the_foot_names_the_rank_that_ends_last(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "allreduce", {})
    rng = np.random.default_rng(3)
    stored = []
    for size in SIZES:
        times = 1e-4 * np.exp(0.05 * rng.normal(size=(2, 100)))
        times[1] *= 1.2
        arrays = {"slowest_rank": times.argmax(axis=0).astype(np.int32), "rank_p50_s": np.median(times, axis=1)}
        stored.append(folder.append(make_row(size, ranks=2, n=100), arrays))
    out = io.StringIO()
    with Reporter("table", out, io.StringIO()) as reporter:
        reporter.start(PlanSummary.of(stored, [{"rank": 1, "host": "node05"}], str(folder.path)))
        for row in [*stored, not_measured("no")]:
            reporter.row(row)
    assert any(line.startswith("rank 1 (node05) finishes last in 99 % ") for line in out.getvalue().splitlines())


@pytest.mark.parametrize(("eta_s", "elapsed_s", "text"), [
    (12.0, 0.0, "12 s left"), (12.0, 3.2, "9 s left"), (12.0, 12.0, "0 s left"), (12.0, 12.9, "0 s left"), (12.0, 15.1, "3 s late"),
    (0.0, 0.0, "0 s left"), (-4.0, 0.0, "4 s late"), (None, 0.4, ""), (None, 61.0, "1 min 01 s"),
])  # fmt: skip
def test_time_left_goes_on_after_the_estimate(eta_s: float | None, elapsed_s: float, text: str) -> None:
    assert time_left(eta_s, elapsed_s) == text


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True

    def wait_for(self, text: str) -> None:
        """Wait until the text is written, 10 s at most."""
        ending = time.monotonic() + 10
        while text not in self.getvalue():
            assert time.monotonic() < ending, self.getvalue()
            time.sleep(0.01)


def test_the_time_left_goes_on_during_one_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "_TICK_S", 0.01)
    out, clock = Terminal(), [100.0]
    live = LiveScreen(out, out, out, color=False)
    live._now = lambda: clock[0]
    try:
        for show in (lambda: live.progress("allreduce 8 B", 1, 4, 5.0), lambda: live.status("opening gloo…", 5.0)):
            show()
            for seconds, text in ((0.0, "5 s left"), (2.0, "3 s left"), (6.0, "3 s late")):
                clock[0] += seconds
                out.wait_for(text)
            out.truncate(0)
    finally:
        live.close()
    assert "allreduce" not in out.getvalue()
