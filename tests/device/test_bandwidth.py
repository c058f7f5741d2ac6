"""A kernel that skips work is not a fast kernel: the result has the number of wrong elements. On the fake GPU (a test double)."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.fake_gpu import ROOT, environment

PROGRAM = """
import json
from collbench.device.bandwidth import Arrays
from collbench.device.bandwidth import memory_figures
from collbench.device.gpu import OpenGpu
from collbench.device.kernels import Kernels
from collbench.device.bandwidth import peer_figures

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


def test_what_a_kernel_left_out_is_counted() -> None:
    env = environment(2)
    env["PYTHONPATH"] += f":{ROOT}"
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == [
        ["fill", 0], ["verify", 0], ["read_memory", 1], ["write_memory", 4], ["copy", 4], ["triad", 4], ["reduce_copy", 8],
        ["flush", None], ["pointer_chase", 0], ["delay", None],
        ["peer_read", 8], ["peer_write", 0], ["peer_both", 16], ["reduce_copy", 8], ["copy_engine", 0],
        ["pingpong", 0], ["pointer_chase", 0],
    ]  # fmt: skip
