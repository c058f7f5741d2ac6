"""The sections below the rows of `collbench report`: fits, slow ranks and forced choices, word for word."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from collbench.report.cases import CHOICE_TITLE, choice_sentences
from collbench.report.headlines import lines
from collbench.results.folder import RunFolder
from collbench.results.reader import Run, read_run
from collbench.results.row import Row
from tests.analysis.test_alpha_beta import SIZES, case
from tests.report.golden import assert_golden
from tests.report.golden import live as printed
from tests.results.rows import make_row, make_times, not_measured


def stored(path: Path, ranks: int, cases: int = 12, slow: int | None = None, **changes: Any) -> Run:
    """A run with rank `slow` 20 % above the others in the cases from 1 KiB on."""
    folder = RunFolder.create(path, "allreduce", {"rank_map": [{"rank": rank, "host": f"node{rank:02d}"} for rank in range(ranks)]})
    rng = np.random.default_rng(11)
    for power in range(8, 8 + cases):
        times = 1e-4 * np.exp(0.05 * rng.normal(size=(ranks, 100)))
        if slow is not None and power >= 10:
            times[slow] *= 1.2
        arrays = {"slowest_rank": times.argmax(axis=0).astype(np.int32), "rank_p50_s": np.median(times, axis=1)}
        known = {"ranks": ranks, "n": 100, "evidence": {"exit_skew_s": {"p50": 1e-7, "p95": 1e-6 if power > 8 else 2e-6}}}
        folder.append(make_row(1 << power, **{**known, **changes}), arrays)
    return read_run(folder.path)


def texts(runs: list[Run], rows: list[Row]) -> list[str]:
    return [line.text for line in lines(runs, rows)]


def test_both_sections(tmp_path: Path) -> None:
    rows = [case(size, alpha, backend=backend) for backend, alpha in (("nccl", 8e-6), ("mpi", 1e-6)) for size in SIZES]
    rows += [case(size, *((2e-6, 1e9) if size < 65536 else (40e-6, 20e9)), backend="gloo") for size in SIZES]
    rows[20] = case(SIZES[20], 16e-6, 24e9)
    rows[3] = case(SIZES[3], flags=("two_modes",))
    rows[4] = not_measured("no", size_bytes=SIZES[4])
    found = lines([stored(tmp_path / "run", 10, slow=3)], rows)
    assert_golden("findings.txt", "".join(f"{line.text}\n" for line in found))
    assert sum(line.style == "head" for line in found) == 3


def test_nothing_is_reported_where_there_is_nothing_but_skew_also_without_arrays() -> None:
    assert lines([], []) == []
    assert lines([Run(Path("run"))], [make_row(), not_measured("no")]) == []
    assert lines([Run(Path("run"), rows=[make_row()])], [make_row()]) == []
    row = make_row(64, time_s=make_times(1e-6), evidence={"exit_skew_s": {"p50": 4e-8, "p95": 3e-7}})
    assert texts([Run(Path("run"), rows=[row])], []) == [
        "", "ranks that finish last", "nccl: start skew 0.0400 µs (95th percentile 0.3000 µs), at most 4.0 % of the time (allreduce 64 B)",
    ]  # fmt: skip
    # the skew of a window is a part of the window s time
    windowed = make_row(64, time_s=make_times(1e-6), evidence={"exit_skew_s": {"p50": 4e-8, "p95": 3e-7, "messages": 40}})
    assert texts([Run(Path("run"), rows=[windowed])], [])[-1].endswith("at most 0.1 % of the time (allreduce 64 B)")


def test_a_latency_that_large_sizes_cannot_show_has_an_upper_end_only() -> None:
    rng = np.random.default_rng(5)
    rows = [case(size, 1e-9, 10e9 * (1 + 0.05 * rng.normal())) for size in SIZES[13:]]
    rows[6] = case(SIZES[19], 1e-9, 10e9 / 25)
    figures = re.split("  +", texts([], rows)[3])
    assert re.fullmatch(r"at most 1\.\d+", figures[3])
    assert len(figures) == 7 and figures[-1] == "4 MiB (25 times)"  # without "n½" and "switches at", which are unknown


def test_like_ranks_have_a_histogram_but_no_sentence_several_runs_a_title_and_eight_ranks_a_bar(tmp_path: Path) -> None:
    found = texts([stored(tmp_path / "run", 2)], [])
    assert found[:3] == ["", "ranks that finish last", "rank  host    finishes last in"]
    assert [line.split()[:2] for line in found[3:5]] in ([["0", "node00"], ["1", "node01"]], [["1", "node01"], ["0", "node00"]])
    assert found[5] == "12 cases with equal weight; an equal share is 50 %"
    assert len(found) == 8
    found = texts([stored(tmp_path / "one", 2), stored(tmp_path / "two", 2), Run(Path("three"))], [])
    assert [line for line in found if line.endswith(":")] == ["one:", "two:"]
    found = texts([stored(tmp_path / "many", 32, cases=4)], [])
    assert sum("█" in line for line in found) == 8
    assert "and 24 more ranks; 4 cases with equal weight; an equal share is 3.1 %" in found


def test_launches_of_one_allocation_are_looked_at_together(tmp_path: Path) -> None:
    launches = [stored(tmp_path / name, 2, cases=4, slow=1) for name in ("one", "two", "three")]
    together = [replace(run, info={**run.info, "allocation_id": "job-7"}) for run in launches]
    found = texts(together, [])
    assert found[2].startswith("rank 1 (node01) finishes last in 99 % ")
    assert "in 6 of 12 cases" in found[2]
    assert sum(line.startswith("rank ") for line in found) == 2  # one sentence, one title
    other = replace(together[2], info={"allocation_id": "job-8"})
    assert [line for line in texts([*together[:2], other], []) if line.endswith(":")] == ["one and 1 more:", "three:"]


@pytest.mark.parametrize("host", ["\x1b[2J", "a\nb"])
def test_names_from_files_cannot_steer_a_terminal(tmp_path: Path, host: str) -> None:
    run = stored(tmp_path / "run", 2, slow=1)
    shown = "".join(texts([replace(run, info={"rank_map": [{"rank": 1, "host": host}]})], []))
    assert shown.isprintable()
    assert "rank 1 (" in shown


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


def test_the_table_of_a_sweep_has_columns_only_where_some_row_needs_them() -> None:
    assert_golden("tuning.txt", printed(SWEEP))
    assert not {"registration", "algorithm", "protocol"} & set(titles([row(8, 1e-6), make_row(8, backend="mpi")]))
    assert not {"registration", "protocol"} & set(titles([row(8, 1e-6), row(8, 1e-6, "tree")]))
    assert "algorithm" in titles([row(8, 1e-6), row(8, 1e-6, "tree")])
    assert "tree" in titles([row(8, 1e-6, "tree"), row(16, 1e-6, "tree")])
    assert "registration" in titles([row(8, 1e-6), row(8, 1e-6, registration="symmetric")])
    assert "symmetric" in titles([row(8, 1e-6, registration="symmetric"), make_row(8, backend="mpi")])
    first = [printed([row(8, 1e-6, registration=word)]).splitlines()[0] for word in ("none", "registered", "symmetric")]
    assert ["buffers" in line.split(" · ")[-3] for line in first] == [True] * 3
    assert [line.split(" · ")[4] for line in first] == ["4 ranks", "buffers registered", "buffers in a symmetric window"]


def test_where_the_automatic_choice_loses_where_it_does_not_and_where_that_cannot_be_judged() -> None:
    assert choice_sentences(SWEEP) == [LOSES, OTHERS]
    assert choice_sentences(SWEEP[:2] + SWEEP[3:5]) == ["allreduce nccl: the automatic choice is the best at all 2 sizes"]
    assert choice_sentences([SWEEP[0], SWEEP[3]]) == ["allreduce nccl: the automatic choice is the best at 1 size"]
    both = [row(8, 10e-6), row(8, 9e-6, "ring")]
    assert choice_sentences(both)[0].endswith("loses 10 % (8.7 to 11) at 8 B: ring is faster")
    assert choice_sentences([make_row(8), row(8, 1e-6), not_measured("no")]) == []
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
    found = [line.text for line in lines([Run(Path("run"), rows=SWEEP)], SWEEP)]
    assert found[:4] == ["", CHOICE_TITLE, LOSES, OTHERS]
    hostile = [row(8, 1e-5), row(8, 9e-6, "\x1b[2J")]
    assert all(line.isprintable() for line in printed(hostile).splitlines())
    assert all(line.text.isprintable() for line in lines([], hostile))


def test_a_forced_choice_is_named_in_nccl_tests_text() -> None:
    text = printed([SWEEP[0], SWEEP[3], row(8, 1e-6, None, "ll", registration="symmetric"), SWEEP[9]], "nccl-tests")
    assert [line.partition(": ")[2] for line in text.splitlines() if "starting" in line] == [
        "allreduce on nccl, isolated, fixed buffers", "allreduce on nccl, isolated, fixed buffers, ring/simple",
        "allreduce on nccl, isolated, fixed buffers, registration symmetric, ll", "allreduce on nccl, isolated, fixed buffers, nvls/ll",
    ]  # fmt: skip
    assert "# n/a: allreduce 8 B nccl float32 sum nvls/ll: no NVLS here\n" in text
