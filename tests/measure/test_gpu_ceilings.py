"""What lies between two GPUs, as the kernels and the channels of a host are both set against it."""

from __future__ import annotations

from collbench.machine.peak.node import node_of
from collbench.measure.ceilings import link_between
from tests.peak.made import gpus, wired

MACHINE = wired(gpus(3, "sm_90"), {(0, 1): 6, (0, 2): 2, (1, 2): 2})
A, B, C = (gpu.key for gpu in MACHINE.gpus)


def test_each_pair_has_its_own_link() -> None:
    assert [link_between(MACHINE, *pair).bytes_per_s for pair in ((A, B), (B, A), (B, C))] == [150e9, 150e9, 50e9]
    assert link_between(MACHINE, A, B) == node_of(MACHINE, [A, B]).pair


def test_a_gpu_that_no_source_reports_has_an_unknown_link() -> None:
    found = link_between(MACHINE, A, "0000:ff:00.0")
    assert (found.bytes_per_s, found.name) == (None, f"no source has both GPUs, {A} and 0000:ff:00.0")
