"""Kernels on the fake GPU (a test double: its times mean nothing): sizes of the arrays, batches that are queued first, wrong elements."""

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from collbench.errors import UsageError
from collbench.plugins.channels.kernels import fitting_size
from tests.fake_gpu import ROOT, environment

MIB = 1 << 20


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


def printed(program: str, gpus: int) -> str:
    env = environment(gpus)
    env["PYTHONPATH"] += f":{ROOT}"
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


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
    found = json.loads(printed(LAZY_KERNELS, 2))
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
    actual = printed(BATCHES, 1).splitlines()
    assert actual[0] == f"15 True {15 * 20} {{0}}"
    assert actual[1].startswith("GPU 0 (FAKE GPU (test double)): 1 ") and actual[1].endswith(" 0.001 s")
