"""The answer of a run agrees with its rows, and no line of a table or answer is wider than the terminal."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from collbench.analysis.health import SeriesCheck, verdict_of
from collbench.errors import UsageError
from collbench.machine.peak.ceiling import LEAST_RATE_BYTES, Ceiling, ceiling_from_rate
from collbench.report import runs
from collbench.report.answer import HeadlineRate, Latency, answer_lines, answers
from collbench.report.blocks import COLUMNS, DEFAULT_VIEW, View, check_columns, parse_columns
from collbench.report.plan import PlanSummary, in_print_order
from collbench.report.writers import OneLinePerAbsentBackend, TableWriter, csv_columns
from collbench.results.quality import half_width, quality_of
from collbench.results.reader import read_run
from collbench.results.row import Row, Times
from tests.cli.command import run_here
from tests.conftest import needs_plugin
from tests.report.golden import live, report_of
from tests.results.rows import COPY, NIC, make_row, make_times, not_measured, store

REPORTS = Path(__file__).parents[2] / "reports"
STORED = sorted(str(path.parent.relative_to(REPORTS)) for path in REPORTS.rglob("cells.jsonl") if path.stat().st_size)


@cache
def rows_of(name: str) -> list[Row]:
    return in_print_order(read_run(REPORTS / name).rows)


def table(rows: list[Row], width: int | None, view: View = View(), *, known: bool = False) -> list[str]:  # noqa: B008  # immutable
    """The lines of a table: of rows as they are measured, or of those that are known beforehand."""
    writer = TableWriter(width, view, rows) if known else OneLinePerAbsentBackend(TableWriter(width, view), room=width)
    before = writer.start(PlanSummary.of(rows, run="runs/x"))
    return [line.text for line in [*before, *(line for row in rows for line in writer.row(row)), *writer.end()]]


@pytest.mark.parametrize("name", STORED)
def test_the_answer_agrees_with_the_rows(name: str) -> None:
    """Computed from the rows again, without the functions of the answer."""
    rows = rows_of(name)
    for each in answers(rows):
        own = [row for row in rows if (row.operation, row.backend) == (each.operation, each.backend) and row.time_s and row.na is None]
        if each.missing:
            assert any(row.na is not None for row in rows)
            continue
        assert each.verification and each.verification.wrong == 0 and each.verification.cases <= len(own)
        if each.rate:
            (row,) = (row for row in own if (row.busbw_bytes_per_s, row.size_bytes) == (each.rate.bytes_per_s, each.rate.size_bytes))
            assert row.size_bytes >= LEAST_RATE_BYTES
            assert each.rate.percent == row.percent_of_ceiling
            if row.ceiling and row.percent_of_ceiling is not None:
                assert each.rate.expected_bytes_per_s == row.ceiling.bytes_per_s and each.rate.limited_by in ("", row.ceiling.limited_by)
                assert each.rate.percent == pytest.approx(100 * each.rate.bytes_per_s / each.rate.expected_bytes_per_s)
        if each.latency and len(each.latency.times_s) == 1:
            assert each.latency.size_bytes == min(row.size_bytes for row in own)
            assert each.latency.times_s[0] in {row.time_s.p50 for row in own if row.time_s}


def test_the_best_rate_is_a_reliable_one_a_given_one_is_no_limit_and_small_messages_have_a_latency_alone() -> None:
    rows = [make_row(8), make_row(1 << 20, busbw_bytes_per_s=60e9, flags=("above_bound",)), make_row(busbw_bytes_per_s=42e9)]
    (found,) = answers(rows)
    assert isinstance(found.rate, HeadlineRate) and (found.rate.size_bytes, found.rate.unreliable) == (64 << 20, False)
    (found,) = answers(rows[1:2])
    assert found.rate and found.rate.unreliable
    given = {"ceiling": ceiling_from_rate(50), "percent_of_ceiling": 84.0}
    (found,) = answers([make_row(1 << 20, busbw_bytes_per_s=60e9, flags=("clock_stepped",), **given), make_row(2 << 20, **given)])
    assert found.rate == HeadlineRate(42e9, 2 << 20, 50e9, 84.0)
    (found,) = answers([make_row(8, time_s=make_times(2e-6)), make_row(2048, time_s=make_times(3e-6))])
    assert (found.rate, found.latency) == (None, Latency((2e-6,), 8))


@pytest.mark.parametrize(("size", "percent", "is_shown"), [(65536, 0.9, False), (65536, 1.0, True), (1 << 20, 0.01, True)])
def test_a_tiny_share_is_hidden_for_small_messages_alone(size: int, percent: float, is_shown: bool) -> None:
    (found,) = answers([make_row(size, percent_of_ceiling=percent)])
    assert bool(found.rate) is is_shown and (bool(found.latency) or is_shown)


def test_modes_are_apart_absent_backends_have_their_reason_and_without_data_nothing_is_verified() -> None:
    found = answers([make_row(mode="batched"), make_row(), not_measured("no GPU", backend="gloo")])
    assert [(each.backend, each.how, each.missing) for each in found] == [
        ("nccl", ("batched",), ""), ("nccl", ("isolated",), ""), ("gloo", (), "no GPU"),
    ]  # fmt: skip
    (found,) = answers([make_row(0, operation="barrier", wrong=None, checked=0)])
    assert found.verification.without_data
    (found,) = answers([make_row(8, wrong=None, checked=0)])
    assert not found.verification.without_data


def test_wrong_data_is_no_rate_and_loud_and_programs_get_no_answer() -> None:
    found = list(answer_lines([make_row(wrong=3)]))
    assert found[0].style == "wrong" and "WRONG DATA" in found[0].text and "GB/s" not in found[0].text
    assert not any("quality:" in live([make_row()], format) for format in ("csv", "json", "nccl-tests"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(STORED), st.integers(80, 240), st.booleans(), st.booleans())
def test_no_line_is_wider_than_the_terminal(name: str, width: int, known: bool, verbose: bool) -> None:
    lines = table(rows_of(name), width, View(verbose=verbose), known=known)
    assert max(map(len, lines)) <= width
    headings = [line for line in lines if line.startswith(" ") and "time µs" in line]
    assert headings and not any("…" in line for line in headings)
    has_intervals = not known or any(half_width(row) is not None for row in rows_of(name))
    assert all(bool(re.search(r"± CI .*quality$", line)) is has_intervals for line in headings)


@pytest.mark.parametrize("width", [80, 100, 120, None])
@pytest.mark.parametrize("known", [True, False])
def test_no_figure_is_cut(width: int | None, known: bool) -> None:
    for name in STORED:
        rows = rows_of(name)
        lines = table(rows, width, known=known)
        assert not [line for line in lines if "…" in line and "n/a" not in line and "over" not in line]
        words = [quality.word for row in rows if (quality := quality_of(row)) is not None]
        assert [word for line in lines if (word := line.rpartition(" ")[2]) in ("ok", "noisy", "unreliable")] == words


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_the_whole_report_fits(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", str(width))
    assert max(map(len, report_of(REPORTS / "first-run")[0].splitlines())) <= width


@pytest.mark.parametrize(("width", "titles"), [
    (74, ["size", "time µs", "± CI", "busbw GB/s", "% of expected", "quality"]),
    (80, ["size", "time µs", "± CI", "busbw GB/s", "% of expected", "wrong", "quality"]),
    (100, ["size", "time µs", "± CI", "busbw GB/s", "expected GB/s", "% of expected", "wrong", "quality"]),
    (120, ["size", "time µs", "± CI", "95 % CI µs", "busbw GB/s", "expected GB/s", "% of expected", "wrong", "quality"]),
])  # fmt: skip
def test_the_columns_of_a_terminal(width: int, titles: list[str]) -> None:
    lines = table([make_row()], width)
    heading = next(line for line in lines if "time µs" in line)
    assert re.split("  +", heading.strip()) == titles
    sentences = " ".join(" ".join(lines).split())
    hidden = re.split(" (?:–:|allreduce over) ", sentences.partition("not shown on a terminal this narrow: ")[2])[0]
    every = re.split("  +", next(line for line in table([make_row()], None) if "time µs" in line).strip())
    assert hidden.split(", ") == [title for title in every if title not in titles]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_column_with_only_dashes_is_not_shown(device: str, nodes: int) -> None:
    rows = [make_row(8, device=device, nodes=nodes), make_row(device=device, nodes=nodes)]
    unchecked = [replace(row, wrong=None) for row in rows]
    for width in (None, 200):
        known, seen = (table(unchecked, width, known=known)[2] for known in (True, False))
        assert "% of hard limit" not in known and "wrong" not in known
        # while rows are measured, only what a CPU has inside a host is known beforehand
        assert ("% of hard limit" in seen) is (device != "cpu" or nodes > 1) and "wrong" in seen
    bounded = [replace(row, hard_bound=NIC) for row in rows]
    assert "% of hard limit" in table(bounded, None, known=True)[2]
    assert "wrong" in table(unchecked, None, View(*parse_columns("size,wrong")), known=True)[2]


def test_one_line_explains_blanks_and_dashes_where_there_are_some() -> None:
    def legend(*rows: Row, view: View = DEFAULT_VIEW) -> list[str]:
        return [line for line in table(list(rows), None, view) if line.startswith(("blank:", "–:"))]

    full = make_row(hard_bound=NIC)
    assert legend(full) == []
    assert legend(full, make_row(8, hard_bound=NIC)) == ["blank: no meaning at this size"]
    assert legend(full, replace(full, wrong=None)) == ["–: unknown"]
    assert legend(full, make_row(8, wrong=None)) == ["blank: no meaning at this size; –: unknown"]
    assert legend(make_row(ranks=1)) == ["blank: no meaning for one rank"]
    assert legend(full, make_row(8, wrong=None), view=View(("size", "time"))) == []
    assert legend(full, not_measured("no GPU")) == []


@pytest.mark.parametrize("known", [True, False])
def test_one_remedy_per_table_and_all_of_them_if_wanted(known: bool) -> None:
    wide = Times(1e-3, 8e-4, 1.2e-3, 1e-3, 1e-3, 1e-3, 1e-3)
    rows = [make_row(flags=("cpu_shared",)), make_row(8, time_s=wide)]
    idle, few = "disturbed the measurement. Repeat on an idle machine.", "too few samples for a narrow interval."
    text = " ".join(table(rows, None, known=known))
    assert (text.count(idle), text.count(few)) == (0 if known else 1, 0)  # of known rows the report has the line on quality at its top
    every = table(rows, None, View(verbose=True), known=known)
    assert [line for line in every if line.startswith("1 case: ")] == [
        f"1 case: other work or a changed machine state {idle}", f"1 case: there are {few} Use `--max-time 10`.",
    ]  # fmt: skip


def test_quiet_leaves_the_rows_of_a_report() -> None:
    lines = [line for line in report_of(REPORTS / "first-run", view=View(quiet=True))[0].splitlines() if line]
    assert lines[0].startswith("first-run") and lines[-1].startswith(" 64 MiB")
    assert not any(line.startswith(("quality: ", "next: ", "CI: ", "blank: ")) for line in lines)


def test_columns_can_be_chosen_and_added() -> None:
    rows = [make_row(8), make_row(time_s=make_times(1e-3))]
    lines = table(rows, 80, View(*parse_columns("size,p99,max,n")))
    assert [re.split("  +", line.strip()) for line in lines[2:5]] == [
        ["size", "p99 µs", "max µs", "samples"], ["8 B", "3598", "4798", "200"], ["64 MiB", "1500", "2000", "200"],
    ]  # fmt: skip
    added = table(rows, 100, View(*parse_columns("+p95")))[2]
    assert added.split()[:2] == ["size", "time"] and "p95 µs  quality" in added


@pytest.mark.parametrize(("folder", "message"), [
    ("first-run", "unknown column 'nope': choose from size, time"),
    pytest.param("kv", "'nope' of block transfers: choose from method, backend, .*, percent_of_link", marks=needs_plugin("kv")),
    pytest.param("training", "have fixed columns: use `--format csv` for regime, model", marks=needs_plugin("training")),
])  # fmt: skip
def test_an_unknown_column_of_a_run_is_refused_with_those_of_its_kind(folder: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        report_of(REPORTS / folder, view=View(("nope",)))
    for text in ("p98", "size,", "", "size;time"):
        with pytest.raises(UsageError, match=r"choose from size, time, .*, quality, or a column of `--format csv`"):
            check_columns(parse_columns(text)[0])


def test_every_declared_column_can_be_chosen() -> None:
    names = csv_columns()[1:]
    check_columns(names)
    row = make_row(n_eff=6.857142857142858, time_rank_mean_s=1e-3, reached=True, groups={"busbw_bytes_per_s": [1e9, 2e9]})
    chosen = ("size", "n_eff", "time_rank_mean_s", "reached", "backend", "groups_busbw_bytes_per_s")
    lines = [re.split("  +", line.strip()) for line in table([row], None, View(chosen))[2:4]]
    assert lines == [
        ["size", "n_eff", "time_rank_mean µs", "reached", "backend", "each group GB/s"],
        ["64 MiB", "6.857", "1000", "yes", "nccl", "1.00, 2.00"],
    ]
    assert "n_eff" not in table([row], None)[2]  # the usual table stays
    barrier = make_row(0, operation="barrier", busbw_bytes_per_s=None)
    assert len(table([row, barrier], None, View(tuple(names)))[2].split("  ")) > 80


@needs_plugin("kv")
def test_columns_of_another_kind_of_run_can_be_chosen() -> None:
    out, _ = report_of(REPORTS / "kv", view=View(("method", "n", "percent_of_link")))
    lines = [re.split("  +", line.strip()) for line in out.splitlines()[2:4]]
    assert lines == [["method", "n", "of link"], ["writev", "60", "–"]]


def text_of(key: str, row: Row) -> str:
    return next(column for column in COLUMNS if column.key == key).text(row)


@pytest.mark.parametrize(("half", "text"), [(0.016, "±1.6 %"), (1.0, "±100 %"), (1.001, ">100 %"), (2062.12, ">100 %"), (None, "–")])
def test_an_interval_wider_than_the_median_is_above_100_percent(half: float | None, text: str) -> None:
    low, high = (None, None) if half is None else (1 - half, 1 + half)
    assert text_of("ci", make_row(time_s=Times(1.0, low, high, 1.0, 1.0, 1.0, 1.0))) == text


def test_small_sizes_have_times_and_large_ones_rates_and_a_percentage_has_to_mean_something() -> None:
    rows = [make_row(), make_row(0, operation="barrier", busbw_bytes_per_s=None), make_row(ceiling=COPY), make_row(ranks=1)]
    assert all(isinstance(column.text(row), str) for column in COLUMNS for row in rows)
    small, large = ([text_of(key, make_row(size)) for key in ("time", "busbw", "percent")] for size in (8, LEAST_RATE_BYTES))
    assert (small, large) == (["2399", "", ""], ["2399", "42.0", "84 %"])
    for size, percent, shown in ((65536, 0.9, ""), (65536, 1.0, "1.0 %"), (1 << 20, 0.9, "0.9 %"), (1 << 20, 0.01, "<0.1 %")):
        assert text_of("percent", make_row(size, percent_of_ceiling=percent)) == shown


def test_a_reports_first_or_last_lines_are_the_answer_and_another_limit_begins_a_block(tmp_path: Path) -> None:
    rows = [make_row(1 << 20), make_row(2 << 20), make_row(4 << 20, ceiling=COPY)]
    titles = [line for line in table(rows, 100) if line.startswith("allreduce over nccl ·")]
    assert [title.rpartition("limited by ")[2] for title in titles] == ["NIC 4×100 Gb/s", "memory copy and sum"]
    shown = live([make_row()], run="runs/x").splitlines()
    assert [line.partition(" ")[0] for line in shown[-4:]] == ["", "allreduce", "quality:", "next:"]
    first, _ = report_of(store(tmp_path / "run", [make_row()]))
    assert [line.partition(" ")[0] for line in first.splitlines()[:4]] == ["run", "allreduce", "quality:", ""]


def test_flags_are_shown_if_they_are_wanted_or_counted_if_they_are_no_matter_of_quality() -> None:
    rows = [make_row(flags=("drift",))]
    assert not any("flags: drift" in line for line in table(rows, 80))
    assert any(line.strip() == "flags: drift" for line in table(rows, 80, View(verbose=True)))
    rows = [make_row(flags=("size_rounded", "simulated", "drift")), make_row(8, flags=("simulated", "few_samples"))]
    assert "flags: simulated 2, size rounded 1; `-v` explains them" in table(rows, 80)
    assert not any(line.startswith("flags: ") for line in table(rows[:1], 80, View(verbose=True)))


def test_a_report_ends_with_the_answer_on_a_terminal_and_is_it_alone_with_a_page(tmp_path: Path) -> None:
    run = store(tmp_path / "run", [make_row(), make_row(8)])
    shown = run_here(tmp_path, "report", str(run), env={"COLLBENCH_TTY": "stdout", "COLUMNS": "160"}).stdout.splitlines()
    assert [line.partition(" ")[0] for line in shown[-3:]] == ["", "allreduce", "quality:"]
    assert shown[1] and not any("quality:" in line for line in shown[:-1])
    done = run_here(tmp_path, "report", str(run), "--html", "page.html")
    assert (done.returncode, done.stderr) == (0, "wrote page.html\n")
    assert [line.partition(" ")[0] for line in done.stdout.splitlines()] == ["run", "allreduce", "quality:"]
    rows = run_here(tmp_path, "report", str(run), "--html", "page.html", "--format", "csv").stdout.splitlines()
    assert len(rows) == 3 and rows[0].startswith("run,")


@needs_plugin("hunt")
def test_with_a_page_a_report_of_a_hunt_prints_the_answer_alone(tmp_path: Path) -> None:
    hunt = run_here(tmp_path, "report", str(REPORTS / "hunt-host"), "--html", "page.html")
    assert len(hunt.stdout.splitlines()) == 1 and "cb1h7" in hunt.stdout


def test_every_output_has_the_same_headline(tmp_path: Path) -> None:
    """The largest reliable size of at least 4 MiB: the answer, a report, its page, the list of runs, and the verdict of check."""
    shared = Ceiling("measured", 20e9, "shared memory and sum", low_bytes_per_s=19e9, high_bytes_per_s=21e9)

    def row(size_bytes: int, rate: float, **changes: Any) -> Row:
        time = size_bytes / rate
        times = Times(time, 0.99 * time, 1.01 * time, time, time, time, time)
        given = {"backend": "mpi", "device": "cpu", "ranks": 2, "nodes": 1, "hard_bound": None}
        given |= {"ceiling": shared, "percent_of_ceiling": 100 * rate / 20e9, "busbw_bytes_per_s": rate, "time_s": times}
        return make_row(size_bytes, **given | changes)

    rows = [row(8, 5e6), row(4 << 20, 19e9), row(16 << 20, 16.4e9), row(64 << 20, 1.1e9, n=1, flags=("budget_exceeded",))]
    folder = store(tmp_path / "run", rows)
    text = "16.4 of 20.0 GB/s (82 %)"
    rate = answers(rows)[0].rate
    assert (rate.bytes_per_s, rate.size_bytes, round(rate.percent or 0)) == (16.4e9, 16 << 20, 82)
    report = run_here(tmp_path, "report", str(folder), "--html", str(tmp_path / "page.html"))
    assert report.returncode == 0
    plain = run_here(tmp_path, "report", str(folder)).stdout
    assert f"{text} at 16 MiB" in plain
    page = (tmp_path / "page.html").read_text("utf-8")
    assert text in page and "16 MiB" in page
    assert "82 %" in run_here(tmp_path, "runs", str(tmp_path)).stdout
    (check,) = [each for each in verdict_of(rows, []).evidence if isinstance(each, SeriesCheck)]
    assert (check.size_bytes, check.busbw, check.percent) == (16 << 20, 16.4e9, 82)
