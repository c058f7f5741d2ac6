"""Batches on the fake GPU (a test double: its times mean nothing) wait until they are queued, and report if they were not."""

from __future__ import annotations

import subprocess
import sys

from tests.fake_gpu import ROOT, environment

PROGRAM = """
import time
from collbench.device import bandwidth as stopwatch
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


def test_a_batch_is_queued_while_its_stream_is_held() -> None:
    env = environment(1)
    env["PYTHONPATH"] += f":{ROOT}"
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    actual = done.stdout.splitlines()
    assert actual[0] == f"15 True {15 * 20} {{0}}"
    assert actual[1].startswith("GPU 0 (FAKE GPU (test double)): 1 ") and actual[1].endswith(" 0.001 s")
