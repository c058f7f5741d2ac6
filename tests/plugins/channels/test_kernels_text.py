"""A line per kernel: its rate, the limit, the interval; or why it was not measured."""

import json
import math
from io import StringIO
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from collbench.plugins.channels.kernels import KernelFigure, KernelsWriter, kernel_frame
from collbench.report.frame import table_lines
from collbench.report.screen import PlainScreen

MIB = 1 << 20
RATE = 4.8e12
SECONDS = tuple(1e9 / 4.4e12 * (1 + k / 1000) for k in (0, 3, 1, 4, 2, 5, -1))
COPY = KernelFigure("copy", (0,), 512 * MIB, 10**9, SECONDS, RATE, "memory clock × width × 2", 0)
GPU: Any = SimpleNamespace(index=0, name="FAKE GPU (test double)", arch="sm_90", memory_rate=RATE, l2_bytes=50 * MIB)


def printed(format: str, *figures: KernelFigure, width: int | None = None) -> list[str]:
    out = StringIO()
    writer = KernelsWriter(format, PlainScreen(out, out), width)
    writer.start([GPU], 512 * MIB)
    for figure in figures:
        writer.figure(figure)
    writer.end()
    return out.getvalue().splitlines()


def line(figure: KernelFigure) -> str:
    return list(table_lines(kernel_frame([figure])))[1].text


def test_the_table_names_the_gpu_and_sets_each_kernel_against_its_floor() -> None:
    lines = printed("table", COPY)
    assert lines[0] == "GPU 0: FAKE GPU (test double) (sm_90, memory 4800 GB/s, level-2 cache 50 MiB)"
    assert lines[1] == "arrays of 512 MiB"
    assert lines[2].split("  ")[0] == "GPU"
    assert lines[3] == "0      copy           512 MiB   4391 of 4800 GB/s (91 %)     4378–4404        0      memory clock × width × 2"


def test_a_rate_without_or_above_a_floor_has_the_reason_or_a_doubt() -> None:
    fast = KernelFigure("copy", (0,), 512 * MIB, 10**9, (1e9 / 5e12,) * 7, RATE, "memory clock × width × 2", 0)
    lines = printed("table", fast)
    assert "5000 of 4800 GB/s above_bound" in lines[3]
    assert lines[-1].startswith("above_bound: ")
    assert (fast.percent_of_floor, fast.flags) == (None, ["above_bound"])
    assert line(KernelFigure("peer_read", (0, 1), MIB, MIB, (1e-3,) * 6, None, "no link is known", 2)).split() == [
        "0→1", "peer_read", "1", "MiB", "1.05", "GB/s", "1.05–1.05", "2", "no", "link", "is", "known",
    ]  # fmt: skip


def test_latencies_are_in_microseconds_and_missing_figures_have_their_reason() -> None:
    chase = KernelFigure("pointer_chase", (0,), seconds=tuple(6e-7 + k * 1e-9 for k in range(7)), floor="over 200 MiB", wrong=0)
    assert line(chase) == "0      pointer_chase            0.6030 µs                    0.6000–0.6060    0      over 200 MiB"
    assert chase.bytes_per_s is None
    assert line(KernelFigure("peer_read", (0,), why="one GPU is visible")) == "0      peer_read                n/a (one GPU is visible)"
    missing = KernelFigure("peer_read", (0,), why="one").as_json()
    assert (missing["time_s"], missing["n"]) == (None, 0)


def test_json_is_one_object_a_line_with_the_samples_and_the_gpus_name() -> None:
    (only,) = printed("json", COPY)
    row = json.loads(only)
    assert (row["kernel"], row["gpus"], row["gpu_names"]) == ("copy", [0], ["FAKE GPU (test double)"])
    assert (row["size_bytes"], row["moved_bytes"], row["n"], row["wrong"], row["why"]) == (512 * MIB, 10**9, 7, 0, None)
    assert math.isclose(row["bytes_per_s"], 1e9 / sorted(SECONDS)[3])
    assert math.isclose(row["percent_of_floor"], 100 * row["bytes_per_s"] / RATE)
    assert row["bytes_per_s_ci"][0] < row["bytes_per_s"] < row["bytes_per_s_ci"][1]
    assert row["samples_s"] == [*SECONDS]


@given(st.integers(40, 200))
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    why = KernelFigure("peer_read", (0,), why="one GPU is visible, so no link between GPUs can be measured on this machine")
    assert max(map(len, printed("table", COPY, why, width=width))) <= width
