"""A line per kernel: its rate, the limit, the interval; or why it was not measured."""

import json
import math
import subprocess
import sys
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.plugins.channels.kernels import KernelFigure, KernelsWriter, fitting_size, kernel_frame
from collbench.report.frame import table_lines
from collbench.report.screen import PlainScreen
from tests.fake_gpu import ROOT, environment

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


def test_rates_latencies_and_missing_figures_of_kernels() -> None:
    fast = KernelFigure("copy", (0,), 512 * MIB, 10**9, (1e9 / 5e12,) * 7, RATE, "memory clock × width × 2", 0)
    lines = printed("table", fast)
    assert "5000 of 4800 GB/s above_bound" in lines[3]
    assert lines[-1].startswith("above_bound: ")
    assert (fast.percent_of_floor, fast.flags) == (None, ["above_bound"])
    assert line(KernelFigure("peer_read", (0, 1), MIB, MIB, (1e-3,) * 6, None, "no link is known", 2)).split() == [
        "0→1", "peer_read", "1", "MiB", "1.05", "GB/s", "1.05–1.05", "2", "no", "link", "is", "known",
    ]  # fmt: skip
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


def gpus(*free_mib: int) -> list[Any]:
    return [
        SimpleNamespace(index=i, name="FAKE GPU (test double)", free_bytes=lambda free=free: free * MIB) for i, free in enumerate(free_mib)
    ]


@pytest.mark.parametrize(("free_mib", "size_mib"), [((80_000,), 512), ((80_000, 900), 256), ((1600,), 512), ((1599,), 256), ((70,), 2)])
def test_usually_512_mib_and_halved_until_three_fit_into_every_gpu(free_mib: tuple[int, ...], size_mib: int) -> None:
    assert fitting_size(gpus(*free_mib), None) == size_mib * MIB


def test_a_size_is_taken_as_given_if_it_fits() -> None:
    assert fitting_size(gpus(80_000), 1040) == 1040
    with pytest.raises(UsageError, match=r"3 arrays of 1 GiB .* GPU 1 .* 3 GiB is free"):
        fitting_size(gpus(80_000, 3072), 1024 * MIB)
    with pytest.raises(UsageError, match=r"3 arrays of 1 MiB .* GPU 0"):
        fitting_size(gpus(60), None)


@pytest.mark.parametrize("size", [16, 1000, 1025])
def test_a_size_that_no_kernel_takes_is_refused(size: int) -> None:
    with pytest.raises(UsageError, match=f"--size {size}: .*16 bytes"):
        fitting_size(gpus(80_000), size)


def output_of(program: str, gpus: int) -> str:
    env = environment(gpus)
    env["PYTHONPATH"] += f":{ROOT}"
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# The two sides of a ping-pong of the double are threads: on a busy machine they wait for a core in each round trip.
FEW_ROUNDS = """
from collbench.plugins.channels import kernels
kernels._ROUNDS = 20
kernels._TIMEOUT_NS = 20 * 10**9
"""
LAZY_KERNELS = """
import json
from collbench.plugins.channels.kernels import Arrays, memory_figures, peer_figures
from collbench.device.gpu import OpenGpu
from collbench.device.kernels import Kernels

def lazily(kernel, *, place):  # all but the last 32 bytes
    def run(self, *words, **named):
        words = tuple(word - 32 if at == place else word for at, word in enumerate(words))
        return kernel(self, *words, **{name: value - 32 if name == "n_bytes" else value for name, value in named.items()})
    return run

for name, place in {"read": 2, "write": 2, "copy": 3, "triad": 4, "reduce_copy": 4, "peer_read": 3, "peer_both": 9}.items():
    setattr(Kernels, name, lazily(getattr(Kernels, name), place=place))
x, y = (Arrays(OpenGpu(index), 4096) for index in (0, 1))
found = [*memory_figures(x), *peer_figures(x, y)]
print(json.dumps([[figure.kernel, figure.wrong] for figure in found]))
"""


@pytest.mark.system
def test_what_a_kernel_left_out_is_counted() -> None:
    found = json.loads(output_of(FEW_ROUNDS + LAZY_KERNELS, 2))
    assert found == [
        ["fill", 0], ["verify", 0], ["read_memory", 1], ["write_memory", 4], ["copy", 4], ["triad", 4], ["reduce_copy", 8],
        ["flush", None], ["pointer_chase", 0], ["delay", None],
        ["peer_read", 8], ["peer_write", 0], ["peer_both", 16], ["reduce_copy", 8], ["copy_engine", 0],
        ["pingpong", 0], ["pointer_chase", 0],
    ]  # fmt: skip


BATCHES = """
import time
from collbench.plugins.channels import kernels as stopwatch
from collbench.device.buffers import kernels_of
from collbench.device.gpu import OpenGpu
from collbench.errors import RunFailed

gpu = OpenGpu(0)
watch = stopwatch.Stopwatch(gpu, kernels_of(gpu))
queued = []
stopwatch._BUDGET_S = 100.0

def run():
    queued.append(int(watch._words[0]))
    kernels_of(gpu).delay(watch.stream, 10**5)

seconds = watch.samples(run)
print(len(seconds), min(seconds) >= 1e-4, len(queued) - 4, {*queued})
stopwatch._HELD_NS = 10**6
try:
    watch.samples(lambda: time.sleep(0.02))
except RunFailed as error:
    print(error)
"""


@pytest.mark.system
def test_a_batch_is_queued_while_its_stream_is_held() -> None:
    actual = output_of(BATCHES, 1).splitlines()
    assert actual[0] == f"15 True {15 * 20} {{0}}"
    assert actual[1].startswith("GPU 0 (FAKE GPU (test double)): 1 ") and actual[1].endswith(" 0.001 s")
