"""Rows of a sweep over algorithms and protocols: their labels, and the sentences below them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from collbench.report.cases import CHOICE_TITLE, choice_sentences
from collbench.report.headlines import lines as findings
from collbench.results.reader import Run
from collbench.results.row import Row
from tests.report.golden import assert_golden
from tests.report.golden import live as printed
from tests.results.rows import make_row, make_times, not_measured

K, M = 1024, 1024**2


def row(size: int, p50: float, algorithm: str | None = None, protocol: str | None = None, **changes: Any) -> Row:
    values = {"time_s": make_times(p50), "registration": "none", "algorithm": algorithm, "protocol": protocol, **changes}
    return make_row(size, **values)


SWEEP = [
    *(row(size, p50) for size, p50 in ((8, 20e-6), (4 * K, 24e-6), (4 * M, 150e-6))),
    *(row(size, p50, "ring", "simple") for size, p50 in ((8, 30e-6), (4 * K, 36e-6), (4 * M, 149e-6))),
    *(row(size, p50, "tree", "ll128") for size, p50 in ((8, 20.1e-6), (4 * K, 24e-6), (4 * M, 132e-6))),
    *(not_measured("no NVLS here", size_bytes=size, registration="none", algorithm="nvls", protocol="ll") for size in (8, 4 * K, 4 * M)),
]
LOSES = "allreduce nccl: the automatic choice loses 12 % (11 to 13) at 4 MiB: tree/ll128 is faster"
OTHERS = "allreduce nccl: at 2 other sizes the automatic choice is the best, or within 1.4 % of the best"


def titles(rows: list[Row]) -> list[str]:
    """The titles of the blocks, and the headings."""
    return [word for line in printed(rows).splitlines() if line.endswith(("quality", "Gb/s")) for word in line.split()]


def test_the_table_of_a_sweep() -> None:
    assert_golden("tuning.txt", printed(SWEEP))


def test_columns_are_there_only_where_some_row_needs_them() -> None:
    assert not {"registration", "algorithm", "protocol"} & set(titles([row(8, 1e-6), make_row(8, backend="mpi")]))
    assert not {"registration", "protocol"} & set(titles([row(8, 1e-6), row(8, 1e-6, "tree")]))
    assert "algorithm" in titles([row(8, 1e-6), row(8, 1e-6, "tree")])
    assert "tree" in titles([row(8, 1e-6, "tree"), row(16, 1e-6, "tree")])
    assert "registration" in titles([row(8, 1e-6), row(8, 1e-6, registration="symmetric")])
    assert "symmetric" in titles([row(8, 1e-6, registration="symmetric"), make_row(8, backend="mpi")])


def test_a_registration_that_all_rows_share_is_reported_above_them() -> None:
    first = [printed([row(8, 1e-6, registration=word)]).splitlines()[0] for word in ("none", "registered", "symmetric")]
    assert ["buffers" in line.split(" · ")[-3] for line in first] == [True] * 3
    assert [line.split(" · ")[4] for line in first] == ["4 ranks", "buffers registered", "buffers in a symmetric window"]


def test_where_the_automatic_choice_loses_where_it_does_not_and_where_nothing_was_forced() -> None:
    assert choice_sentences(SWEEP) == [LOSES, OTHERS]
    assert choice_sentences(SWEEP[:2] + SWEEP[3:5]) == ["allreduce nccl: the automatic choice is the best at all 2 sizes"]
    assert choice_sentences([SWEEP[0], SWEEP[3]]) == ["allreduce nccl: the automatic choice is the best at 1 size"]
    both = [row(8, 10e-6), row(8, 9e-6, "ring")]
    assert choice_sentences(both)[0].endswith("loses 10 % (8.7 to 11) at 8 B: ring is faster")
    assert choice_sentences([make_row(8), row(8, 1e-6), not_measured("no")]) == []


def test_sizes_that_cannot_be_judged_are_named() -> None:
    refused = [each for each in SWEEP if each.algorithm == "nvls"]
    (sentence,) = choice_sentences([*SWEEP[:3], *refused])
    assert sentence.startswith("allreduce nccl: inconclusive at 3 sizes (8 B, 4 KiB, 4 MiB)")
    best, unknown = choice_sentences([*SWEEP[:2], SWEEP[3]])
    assert best.startswith("allreduce nccl: the automatic choice is the best ")
    assert unknown.startswith("allreduce nccl: inconclusive at 1 size (4 KiB)")


def test_series_are_distinguished_by_what_differs() -> None:
    both = [row(8, p50, algorithm, dtype=dtype) for dtype in ("float32", "int8") for algorithm, p50 in ((None, 10e-6), ("ring", 9e-6))]
    assert [sentence.partition(":")[0] for sentence in choice_sentences(both)] == ["allreduce nccl float32", "allreduce nccl int8"]
    both = [row(8, 1e-5, algorithm, registration=word) for word in ("none", "symmetric") for algorithm in (None, "ring")]
    assert [sentence.partition(":")[0] for sentence in choice_sentences(both)] == [
        "allreduce nccl registration none", "allreduce nccl registration symmetric",
    ]  # fmt: skip


def test_reports_of_stored_runs_have_it_as_a_section_and_no_control_characters() -> None:
    found = [line.text for line in findings([Run(Path("run"), rows=SWEEP)], SWEEP)]
    assert found[:4] == ["", CHOICE_TITLE, LOSES, OTHERS]
    hostile = [row(8, 1e-5), row(8, 9e-6, "\x1b[2J")]
    assert all(line.isprintable() for line in printed(hostile).splitlines())
    assert all(line.text.isprintable() for line in findings([], hostile))


def test_a_forced_choice_is_named_in_nccl_tests_text() -> None:
    text = printed([SWEEP[0], SWEEP[3], row(8, 1e-6, None, "ll", registration="symmetric"), SWEEP[9]], "nccl-tests")
    assert [line.partition(": ")[2] for line in text.splitlines() if "starting" in line] == [
        "allreduce on nccl, isolated, fixed buffers",
        "allreduce on nccl, isolated, fixed buffers, ring/simple",
        "allreduce on nccl, isolated, fixed buffers, registration symmetric, ll",
        "allreduce on nccl, isolated, fixed buffers, nvls/ll",
    ]
    assert "# n/a: allreduce 8 B nccl float32 sum nvls/ll: no NVLS here\n" in text
