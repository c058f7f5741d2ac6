"""The nccl-tests text: byte for byte, and parsed back the way its users do."""

import subprocess
from collections.abc import Sequence
from typing import Any

import pytest

from collbench import __version__
from collbench.report.nccl_tests import figure
from collbench.results.row import Row
from tests.report.golden import assert_golden, live
from tests.results.rows import make_row, make_times, not_measured

RANK_MAP = [{"rank": rank, "host": f"node{rank // 2}", "local_rank": rank % 2, "pid": 4000 + rank} for rank in range(4)]


def text_of(rows: Sequence[Row], places: Sequence[dict[str, Any]] = RANK_MAP) -> str:
    """The rows as nccl-tests text, in the order given."""
    return live(rows, "nccl-tests", places)


def parse(text: str) -> list[list[str]]:
    """The columns of all lines except comments, as awk, SuperBench and others read them."""
    return [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def test_two_blocks_with_both_placings() -> None:
    times = {8: make_times(1.2e-5), 1 << 30: make_times(0.0384)}
    both = [make_row(size, in_place=in_place, time_s=time_s) for size, time_s in times.items() for in_place in (False, True)]
    other = [
        make_row(1024, operation="broadcast", backend="mpi", dtype="float64", redop=None, root=1, in_place=True, wrong=None, count=128),
        not_measured("no bfloat16 here", operation="broadcast", backend="mpi", dtype="float64", redop=None, root=1, in_place=True),
    ]
    text = text_of([*both, *other])
    assert_golden("nccl-tests.txt", text.replace(__version__, "VERSION"))


@pytest.mark.parametrize(("row", "columns"), [
    (make_row(dtype="float16", redop="max"), "half max -1 2399.00 28.00 42.00 0 N/A N/A N/A N/A"),
    (make_row(dtype="bfloat16", redop="avg"), "bfloat16 avg -1 2399.00 28.00 42.00 0 N/A N/A N/A N/A"),
    (make_row(dtype="uint8", redop=None), "uint8 none -1 2399.00 28.00 42.00 0 N/A N/A N/A N/A"),
    (make_row(wrong=1234567), "float sum -1 2399.00 28.00 42.00 1.23457e+06 N/A N/A N/A N/A"),
    (make_row(operation="reduce", root=3), "float sum 3 2399.00 28.00 42.00 0 N/A N/A N/A N/A"),
    (make_row(operation="gather", redop=None, root=0), "float none 0 2399.00 28.00 42.00 0 N/A N/A N/A N/A"),
    (make_row(operation="sendrecv", redop=None), "float sum -1 2399.00 28.00 42.00 0 N/A N/A N/A N/A"),
    (make_row(operation="hypercube", redop=None, in_place=True), "float none -1 N/A N/A N/A N/A 2399.00 28.00 42.00 0"),
    (make_row(ranks=1, busbw_bytes_per_s=0.0), "float sum -1 2399.00 28.00 N/A 0 N/A N/A N/A N/A"),
])  # fmt: skip
def test_columns_of_one_row(row: Row, columns: str) -> None:
    assert parse(text_of([row])) == [["67108864", "16777216", *columns.split()]]


def test_an_unpaired_row_is_not_lost_and_the_foot_counts_and_averages_as_nccl_tests_does() -> None:
    rows = [make_row(8), make_row(8, in_place=True), make_row(16), make_row(32), make_row(32, in_place=True), make_row(64, in_place=True)]
    assert [(line[0], line[5] == "N/A", line[9] == "N/A") for line in parse(text_of(rows))] == [
        ("8", False, False), ("16", False, True), ("32", False, False), ("64", True, False),
    ]  # fmt: skip
    text = text_of([make_row(8, wrong=5, busbw_bytes_per_s=1e9), make_row(16, busbw_bytes_per_s=2.5e9, flags=("few_samples",))])
    assert "# Out of bounds values : 1 FAILED\n# Avg bus bandwidth    : 1.75 \n# flag at 16 B: few samples: " in text
    assert text.endswith("#\n# Collective test concluded: allreduce on nccl, isolated, fixed buffers\n#\n\n")


def test_a_block_without_figures_has_comments_only_and_one_rank_no_bus() -> None:
    text = text_of([not_measured("no NCCL\nhere")])
    assert parse(text) == []
    assert "# n/a: allreduce 64 MiB nccl float32 sum: no NCCL?here\n" in text
    assert "# Avg bus bandwidth    : N/A \n" in text
    text = text_of([make_row(ranks=1, busbw_bytes_per_s=0.0)])
    assert "# one rank: no bus\n" in text
    assert "# Avg bus bandwidth    : N/A \n" in text


VALUES = [
    0, 0.001, 0.129, 9.999, 99.994, 99.995, 99.999, 999.99, 1000, 9999.96, 9999.99, 99999.5, 123456.7, 999999.4, 999999.6,
    1e7, 1.25e8, 1e12,
]  # fmt: skip


@pytest.mark.contract
@pytest.mark.parametrize("width", [6, 7])
def test_figures_follow_printf(width: int) -> None:
    """The output of nccl-tests' rule, by printf itself: the first form with a text that fits."""
    columns = []
    for form in (f"%{width}.2f\n", f"%{width}.1f\n", f"%{width}.0f\n", f"%{width}.{1 if width >= 7 else 0}e\n"):
        done = subprocess.run(["printf", form, *map(str, VALUES)], capture_output=True, text=True, check=True)
        columns.append(done.stdout.splitlines())
    for value, *texts, exponent in zip(VALUES, *columns, strict=True):
        assert figure(value, width) == next((text for text in texts if len(text) <= width), exponent)


def test_heads_count_the_gpus_of_a_process() -> None:
    places = [{"rank": i, "host": "node0", "local_rank": i, "pid": 4000 + i // 2, "gpu": f"0000:{i}b:00.0"} for i in range(4)]
    text = text_of([make_row()], places)
    assert "# nThread 1 nGpus 2 minBytes" in text
    assert "#  Rank  3 Group  0 Pid   4001 on      node0 device  3 [0000:3b:00] cuda\n" in text


@pytest.mark.parametrize(("requested", "head"), [
    ({}, "minBytes 8 maxBytes 512 warmup iters: adaptive iters: adaptive"),
    ({"span": [8, 1000], "options": {"--warmup": 5, "--iterations": 20}}, "minBytes 8 maxBytes 1000 warmup iters: 5 iters: 20"),
    ({"span": None, "options": {"--warmup": 0}}, "minBytes 8 maxBytes 512 warmup iters: 0 iters: adaptive"),
    ({"span": "\x1b[1m", "options": {"--iterations": "\x1b[1m"}}, "minBytes 8 maxBytes 512 warmup iters: adaptive iters: adaptive"),
    ({"span": ["a", "b"], "options": ["--warmup"]}, "minBytes 8 maxBytes 512 warmup iters: adaptive iters: adaptive"),
])  # fmt: skip
def test_heads_have_what_was_requested(requested: dict[str, Any], head: str) -> None:
    text = live([make_row(8), make_row(512)], "nccl-tests", RANK_MAP, requested=requested)
    assert f" {head} agg iters: 1 " in text


def test_a_barrier_has_its_time_alone() -> None:
    row = make_row(0, operation="barrier", dtype="uint8", redop=None, count=0, algbw_bytes_per_s=None, busbw_bytes_per_s=None)
    text = text_of([row])
    assert parse(text) == [["0", "0", "uint8", "none", "-1", "2399.00", "N/A", "N/A", "0", "N/A", "N/A", "N/A", "N/A"]]
    assert "# n/a: barrier nccl uint8: no barrier\n" in text_of(
        [not_measured("no barrier", size_bytes=0, operation="barrier", dtype="uint8", redop=None)]
    )


def test_groups_traffic_and_streams_are_reported_in_the_comments() -> None:
    groups = {"count": 2, "ranks": 2, "p50_s": [1e-3, 1e-3], "busbw_bytes_per_s": [9.45e9, 9.41e9], "total_busbw_bytes_per_s": 18.86e9}
    text = text_of([make_row(group="MOD 2", groups=groups)])
    assert "# groups at 64 MiB: 2 groups of 2 ranks: 9.41–9.45 GB/s each, 18.9 GB/s in total\n" in text
    assert [line.split()[4] for line in text.splitlines() if line.startswith("#  Rank")] == ["0", "1", "0", "1"]
    assert "# Collective test starting: allreduce on nccl, isolated, fixed buffers, groups MOD 2\n" in text
    text = text_of([make_row(operation="alltoallv", redop=None, traffic="skew 4", streams=2)])
    assert "# Collective test starting: alltoallv on nccl, isolated, fixed buffers, traffic skew 4, 2 streams\n" in text
