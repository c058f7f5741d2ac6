"""The table of cases, and where lines go: files, pipes, terminals; rows in any order are read in the planned one."""

import fcntl
import io
import json
import os
import pty
import random
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.report import screen
from collbench.report.blocks import View
from collbench.report.frame import Line
from collbench.report.plan import PlanSummary
from collbench.report.progress import Reporter
from collbench.report.screen import LiveScreen, PlainScreen, is_terminal, make_screen, time_left, wants_color
from collbench.report.writers import OneLinePerAbsentBackend, TableWriter, stopped_by
from collbench.results.folder import RunFolder
from collbench.results.row import Row
from tests.report.golden import assert_golden, live
from tests.results.rows import COPY, make_row, make_times, not_measured

ROWS = [
    make_row(8, time_s=make_times(1.234e-5), busbw_bytes_per_s=1.3e6, algbw_bytes_per_s=1e6, percent_of_ceiling=0.0026),
    make_row(64 << 20),
    make_row(backend="mpi", device="cpu", ceiling=COPY, percent_of_ceiling=123.5, flags=("target_missed", "martian")),
    not_measured("MPI has no bfloat16 sum", backend="mpi", device="cpu", dtype="bfloat16"),
    make_row(1000, operation="broadcast", backend="gloo", device="cpu", redop=None, root=1, percent_of_ceiling=None, wrong=None),
    make_row(1 << 30, wrong=12, wrong_detail="first at 3: wanted 6, got 2"),
    make_row(operation="p2p_bandwidth", redop=None, ranks=1, busbw_bytes_per_s=0.0, window=64, time_s=make_times(0.1234567)),
]


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLLBENCH_TTY", "COLUMNS", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def printed(rows: Sequence[Row], format: str = "table", **options: object) -> tuple[str, str]:
    """What a run with these rows prints on stdout and stderr when neither is a terminal."""
    out, err = io.StringIO(), io.StringIO()
    with Reporter(format, out, err, **options) as reporter:  # type: ignore[arg-type]
        reporter.start(PlanSummary.of(rows))
        for number, row in enumerate(rows):
            reporter.progress("measuring", number, len(rows), 9.0)
            reporter.row(row)
        reporter.note("careful")
        reporter.close()
        reporter.note("results are in runs/x")
    return out.getvalue(), err.getvalue()


def test_the_plain_table_and_why_cases_stopped() -> None:
    out, err = printed(ROWS)
    assert_golden("table.txt", out)
    assert err == "careful\nresults are in runs/x\n"
    rows = [make_row(stopped=word) for word in ("most_samples", "precision", "luck", "iterations", "precision", "max_time", None)]
    assert stopped_by(rows) == ["stopped by: precision 2, max-time 1, most samples 1, iterations 1, luck 1"]
    assert stopped_by([make_row(), not_measured("no")]) == []


MODES = [{"time_s": 2.3e-6, "share": 0.62}, {"time_s": 10.7e-6, "share": 0.38}]
DOUBTFUL = [
    make_row(8, time_s=make_times(2.3e-6), modes=MODES, flags=("two_modes",), stopped="max_time"),
    make_row(64, time_s=make_times(2.4e-6), flags=("drift", "target_missed"), stopped="max_time"),
    make_row(512, time_s=make_times(3.5e-6), flags=("remeasured",), stopped="precision"),
    make_row(4096, time_s=make_times(9.5e-6), stopped="precision"),
]


def test_trouble_is_never_hidden_doubtful_lines_are_yellow_and_wrong_ones_red() -> None:
    assert_golden("doubtful.txt", printed(DOUBTFUL)[0])
    rows = [*DOUBTFUL, make_row(8192, wrong=1, flags=("drift",))]
    lines = printed(rows, color="always")[0].splitlines()[3:]
    assert [line.split("m")[0] for line in lines[:2]] == ["\x1b[33", "\x1b[33"]
    assert [line.split()[0] for line in lines[2:4]] == ["512", "4"]
    assert all(line.startswith("\x1b[1;31m") for line in lines[4:6])


def test_nothing_is_cut_and_no_control_character_is_written() -> None:
    reason = "x" * 500 + "\x1b[31m"
    out, err = printed([not_measured(reason), make_row(flags=("f" * 300,))], view=View(verbose=True))
    assert f"n/a ({'x' * 500}?[31m)" in out
    assert "f" * 300 in out
    assert all(letter.isprintable() or letter == "\n" for letter in out + err)


def test_each_line_is_flushed_when_its_case_is_done() -> None:
    read, write = os.pipe()
    with open(read, "rb", buffering=0) as pipe, open(write, "w", encoding="utf-8") as out:  # noqa: PTH123
        reporter = Reporter("table", out, io.StringIO())
        reporter.start(PlanSummary.of([make_row(8)]))
        assert pipe.read(10_000).count(b"\n") == 1
        reporter.row(make_row(8))
        assert pipe.read(10_000).startswith(b"allreduce over nccl")


def test_an_aborted_run_still_explains_its_rows_and_launches_widen_what_an_interval_claims() -> None:
    aborted = io.StringIO()
    with pytest.raises(KeyboardInterrupt), Reporter("table", aborted, io.StringIO()) as reporter:
        reporter.start(PlanSummary.of([make_row()] * 2))
        reporter.row(make_row(flags=("simulated",)))
        raise KeyboardInterrupt
    assert aborted.getvalue().splitlines()[-1].startswith("quality: ")
    launched = live([make_row(launches=3)], launches=3)
    assert "CI: 95 % confidence interval over the medians of 3 launches" in launched.splitlines()
    assert "within one launch" in printed([make_row()])[0]


def test_quiet_leaves_only_data() -> None:
    out, err = printed(ROWS, quiet=True, view=View(quiet=True))
    every = printed(ROWS)[0].splitlines()
    foot = next(number for number, line in enumerate(every) if line.startswith("CI: "))
    answers = every.index("", foot)
    data = [*every[:foot], *(line for line in every[answers:] if not line.startswith("quality: "))]
    assert (out.splitlines(), err) == (data, "")


def test_unknown_formats_and_colours_are_refused() -> None:
    with pytest.raises(UsageError, match=r"--format 'xml': .*table, nccl-tests, csv, "):
        Reporter("xml")
    with pytest.raises(UsageError, match=r"--color 'red' .*auto, always, never"):
        Reporter("table", io.StringIO(), io.StringIO(), "red")


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


@pytest.mark.parametrize(("environ", "color", "on_terminal", "on_file"), [
    ({}, "auto", True, False), ({"NO_COLOR": "1"}, "auto", False, False), ({"NO_COLOR": ""}, "auto", True, False),
    ({"FORCE_COLOR": "1"}, "auto", True, True), ({"FORCE_COLOR": "0"}, "auto", True, False),
    ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, "auto", False, False), ({"TERM": "dumb"}, "auto", False, False),
    ({"NO_COLOR": "1"}, "always", True, True), ({"FORCE_COLOR": "1"}, "never", False, False),
    ({"COLLBENCH_TTY": "0"}, "auto", False, False), ({"COLLBENCH_TTY": "stdout,stderr"}, "auto", True, True),
    ({"COLLBENCH_TTY": "stderr"}, "auto", False, False), ({"OMPI_COMM_WORLD_RANK": "0"}, "auto", False, False),
])  # fmt: skip
def test_when_to_colour(environ: dict[str, str], color: str, on_terminal: bool, on_file: bool) -> None:
    assert wants_color(Terminal(), color, environ) is on_terminal
    assert wants_color(io.StringIO(), color, environ) is on_file


def test_colour_in_a_file_only_when_forced_and_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [make_row(wrong=1)]
    assert "\x1b[1;31m64 MiB" in printed(rows, color="always")[0]
    assert "\x1b" not in printed(rows)[0]
    monkeypatch.setenv("TERM", "dumb")
    assert type(make_screen(Terminal(), Terminal())) is PlainScreen


@pytest.mark.parametrize(("terminals", "on_stdout", "on_stderr"), [
    ("0", False, False), ("1", True, True), ("stdout,stderr", True, True), ("stdout", True, False), ("stderr", False, True),
])  # fmt: skip
def test_the_local_spawner_passes_on_what_is_a_terminal(
    terminals: str, on_stdout: bool, on_stderr: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLBENCH_TTY", terminals)
    assert (is_terminal(Terminal(), "stdout"), is_terminal(io.StringIO(), "stderr")) == (on_stdout, on_stderr)


def test_a_placing_left_to_the_library_is_reported_on_each_row() -> None:
    out = io.StringIO()
    reporter = Reporter("table", out, io.StringIO())
    reporter.start(PlanSummary.of([replace(make_row(), in_place=None)]))  # type: ignore[arg-type]
    reporter.row(make_row(in_place=True))
    assert "out of place" not in out.getvalue() and " · sum · in place · limited by" in out.getvalue()


_RUN = """
import sys
from collbench.report.plan import PlanSummary
from collbench.report.writers import TableWriter, stopped_by
from collbench.report.progress import Reporter
from tests.results.rows import make_row
rows = [make_row(1 << power) for power in range(3, 31)] * int(sys.argv[1])
with Reporter("table") as reporter:
    reporter.start(PlanSummary.of(rows))
    for number, row in enumerate(rows):
        reporter.progress("allreduce on nccl", number, len(rows), 65.0)
        reporter.row(row)
    reporter.close()
    reporter.note("results are in runs/x")
"""


def _on_a_terminal(columns: int, times: int = 1, stdout: Path | None = None) -> str:
    """What a terminal of this width receives from a run; stdout may be a file instead."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [sys.executable, "-c", _RUN, str(times)]
    with stdout.open("w") if stdout else os.fdopen(os.dup(theirs), "w") as out:
        # readline puts COLUMNS behind os.environ
        child = subprocess.Popen(command, stdin=theirs, stdout=out, stderr=theirs, env=dict(os.environ))
    os.close(theirs)
    received = b""
    with suppress(OSError):  # EIO: Linux reports so that the other side of a terminal was closed
        while chunk := os.read(ours, 65536):
            received += chunk
    os.close(ours)
    assert child.wait() == 0
    return received.decode().replace("\r\n", "\n")


def _shown(received: str) -> list[str]:
    """The lines that remain on the screen: what follows the last erasure of each."""
    lines = [re.split(r"\r|\x1b\[2K", line)[-1] for line in received.split("\n")]
    return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in lines]


@pytest.mark.contract
def test_on_a_terminal_every_row_stays_and_the_progress_line_goes() -> None:
    received = _on_a_terminal(200, times=10)
    shown = _shown(received)
    rows = [line for line in shown if line.endswith("ok")]
    assert len(rows) == 280
    assert rows[0].split() == ["8", "B", "2399", "±1.0", "%", "2375–2423", "200", "0", "ok"]
    assert "0/280  1 min 05 s left  allreduce on nccl" in received
    assert shown[-2] == "results are in runs/x"
    assert received.count("\x1b[?25l") == received.count("\x1b[?25h") == 1  # the cursor comes back


@pytest.mark.contract
def test_a_narrow_terminal_drops_columns() -> None:
    shown = _shown(_on_a_terminal(80))
    assert "   size        time µs     ± CI  busbw GB/s  % of expected    wrong  quality" in shown
    assert " 64 MiB           2399   ±1.0 %        42.0           84 %        0  ok" in shown
    hidden = " ".join(" ".join(shown).split())
    assert "not shown on a terminal this narrow: 95 % CI µs, algbw GB/s, expected GB/s, % of hard limit, samples " in hidden
    assert all(len(line) <= 80 for line in shown)


def test_what_distinguishes_rows_is_never_left_out() -> None:
    rows = [make_row(backend=backend, dtype=dtype) for backend in ("mpi", "gloo") for dtype in ("float32", "bfloat16")]
    for room, titles in ((100, 2), (70, 4)):
        writer = TableWriter(room=room)
        writer.start(PlanSummary.of(rows))
        lines = [line.text for row in rows for line in writer.row(row)]
        assert sum("allreduce over" in line for line in lines) == titles
        assert sum("bfloat16" in line for line in lines) == 2


@pytest.mark.contract
def test_data_in_a_file_and_progress_on_the_terminal(tmp_path: Path) -> None:
    received = _on_a_terminal(80, stdout=tmp_path / "out")
    text = (tmp_path / "out").read_text()
    assert "0/28  1 min 05 s left" in received
    assert "results are in runs/x" in received
    assert text == printed([make_row(1 << power) for power in range(3, 31)])[0]


# A backend that measures nothing is one line in what people read, and a record for each case in what programs read.

WHY = "srun --mpi=pmix serves Open MPI, but mpi4py uses MPICH 5.0.2"
SIZES = (8, 1024, 1 << 20)
ONE = f"mpi, 3 cases: n/a ({WHY})"


def absent(backend: str = "mpi", why: str = WHY) -> list[Row]:
    return [replace(not_measured(why, backend=backend, device="cpu"), size_bytes=size) for size in SIZES]


def measured(backend: str = "gloo") -> list[Row]:
    return [make_row(size, backend=backend, device="cpu") for size in SIZES]


def lines(rows: list[Row], format: str = "table") -> list[str]:
    return printed(rows, format)[0].splitlines()


@pytest.mark.parametrize(("rows", "reasons", "measured_rows"), [
    pytest.param([*absent(), *measured()], [ONE], 3, id="first"),
    pytest.param([*measured(), *absent()], [ONE], 3, id="last"),
    pytest.param([*absent(), *absent("nccl", "no GPU here"), *measured()], [ONE, "nccl, 3 cases: n/a (no GPU here)"], 3, id="two backends"),
])  # fmt: skip
def test_an_absent_backend_is_one_line(rows: list[Row], reasons: list[str], measured_rows: int) -> None:
    found = lines(rows)
    assert [line for line in found if "n/a" in line] == reasons and sum(line.endswith(" ok") for line in found) == measured_rows


def test_rows_with_different_reasons_single_rows_and_those_between_measured_ones_stay_rows() -> None:
    mixed = [absent("gloo")[0], measured()[1], absent("gloo")[2]]
    assert [("n/a" in line) for line in lines(mixed) if "n/a" in line or line.endswith(" ok")] == [True, False, True]
    rows = [*absent()[:2], *absent(why="another")[2:], *measured()]
    assert sum("n/a" in line for line in lines(rows)) == 3
    assert [line.split()[:3] for line in lines([*absent()[:1], *measured()]) if "n/a" in line] == [["8", "B", "n/a"]]


def test_absent_backends_of_a_run_that_ends_early_and_of_stored_rows() -> None:
    plan = PlanSummary.of([*absent(), *measured()])
    writer = OneLinePerAbsentBackend(TableWriter())
    writer.start(plan)
    assert [line for row in absent()[:2] for line in writer.row(row)] == []
    assert writer.end()[0].text == f"mpi, 2 cases: n/a ({WHY})"
    rows = [replace(row, operation=operation) for operation in ("allgather", "allreduce") for row in [*absent(), *measured()]]
    writer = TableWriter(rows=rows)
    writer.start(PlanSummary.of(rows))
    found = [line.text for row in rows for line in writer.row(row)]
    assert found[0] == f"mpi, 6 cases: n/a ({WHY})" and sum(line.endswith(" ok") for line in found) == 6


def test_programs_get_a_record_for_each_case_and_nccl_tests_text_one_comment() -> None:
    assert [line for line in lines([*absent(), *measured()], "nccl-tests") if "n/a" in line] == [f"# {ONE}"]
    assert sum(json.loads(line)["na"] == WHY for line in lines([*absent(), *measured()], "json")) == 3
    assert sum(WHY in line for line in lines([*absent(), *measured()], "csv")) == 3


PLANNED_SIZES = [8, 16, 32, 64]
PLANNED = [make_row(size) for size in PLANNED_SIZES]


class Lines(io.StringIO):
    """stdout that can be asked which sizes it has shown so far."""

    def sizes(self) -> list[int]:
        return [int(line.split()[0]) for line in self.getvalue().splitlines() if line.endswith(" ok")]


@pytest.mark.parametrize(("places", "sizes"), [
    pytest.param((2, 0, 3, 1), [[], [8], [8], PLANNED_SIZES], id="a row waits for those before it"),
    pytest.param((None, None), [[8], [8, 16]], id="without places rows are printed at once"),
    pytest.param((1, 1, 0, 0), [[], [], [8, 16, 16], [8, 16, 16]], id="a place that comes twice loses no row"),
])  # fmt: skip
def test_the_order_of_rows(places: tuple[int | None, ...], sizes: list[list[int]]) -> None:
    out, shown = Lines(), []
    rows = [PLANNED[number if place is None else place] for number, place in enumerate(places)]
    with Reporter("table", out, io.StringIO()) as reporter:
        reporter.start(PlanSummary.of(PLANNED))
        for row, place in zip(rows, places, strict=True):
            reporter.row(row, place)
            shown.append(out.sizes())
    assert shown == sizes
    assert sorted(out.sizes()) == sorted(row.size_bytes for row in rows)


@settings(max_examples=30, deadline=None)
@given(order=st.permutations(range(len(PLANNED))), measured=st.integers(0, len(PLANNED)))
def test_an_interrupted_run_shows_every_row_it_has_in_order(order: list[int], measured: int) -> None:
    out = Lines()
    with pytest.raises(KeyboardInterrupt), Reporter("table", out, io.StringIO()) as reporter:
        reporter.start(PlanSummary.of(PLANNED))
        for place in order[:measured]:
            reporter.row(PLANNED[place], place)
        raise KeyboardInterrupt
    assert out.sizes() == sorted(PLANNED_SIZES[place] for place in order[:measured])
    assert ("quality: ok" in out.getvalue()) is (measured > 0)


@pytest.mark.parametrize("format", ["json", "csv"])
def test_formats_for_programs_print_as_measured(format: str) -> None:
    out = io.StringIO()
    reporter = Reporter(format, out, io.StringIO())
    reporter.start(PlanSummary.of(PLANNED))
    head = len(out.getvalue().splitlines())
    for count, place in enumerate((2, 0, 3, 1), start=1):
        reporter.row(PLANNED[place], place)
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


def test_a_log_hears_of_the_start_after_three_silent_seconds_and_nothing_from_a_quiet_run_or_one_that_shows_rows() -> None:
    clock = [0.0]
    err = io.StringIO()
    for quiet in (True, False):
        screen = PlainScreen(io.StringIO(), err, quiet=quiet, now=lambda: clock[0])
        for done in range(5):
            clock[0] += 60 if quiet else 9
            screen.progress("x", done, 5, None)
            screen.data(Line("a row"))
    assert err.getvalue() == ""
    clock = [0.0]
    screen = PlainScreen(io.StringIO(), err, now=lambda: clock[0])
    for second, text in ((0.5, "opening mpi…"), (2.9, "reading the hardware…"), (3.5, "measuring the references…"), (6.0, "x")):
        clock[0] = second
        screen.status(text)
    assert err.getvalue() == "measuring the references…\n"


def test_the_foot_names_the_rank_that_ends_last(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "allreduce", {})
    rng = np.random.default_rng(3)
    stored = []
    for size in PLANNED_SIZES:
        times = 1e-4 * np.exp(0.05 * rng.normal(size=(2, 100)))
        times[1] *= 1.2
        arrays = {"slowest_rank": times.argmax(axis=0).astype(np.int32), "rank_p50_s": np.median(times, axis=1)}
        stored.append(folder.append(make_row(size, ranks=2, n=100), arrays))
    shown = live([*stored, not_measured("no")], places=[{"rank": 1, "host": "node05"}], run=str(folder.path))
    assert any(line.startswith("rank 1 (node05) finishes last in 99 % ") for line in shown.splitlines())


@pytest.mark.parametrize(("eta_s", "elapsed_s", "text"), [
    (12.0, 0.0, "12 s left"), (12.0, 3.2, "9 s left"), (12.0, 12.0, "0 s left"), (12.0, 12.9, "0 s left"), (12.0, 15.1, "3 s late"),
    (0.0, 0.0, "0 s left"), (-4.0, 0.0, "4 s late"), (None, 0.4, ""), (None, 61.0, "1 min 01 s"),
])  # fmt: skip
def test_time_left_goes_on_after_the_estimate(eta_s: float | None, elapsed_s: float, text: str) -> None:
    assert time_left(eta_s, elapsed_s) == text


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
