"""Links that set a ceiling, inputs of a hard limit, and what `collbench peak` prints."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collbench.machine.peak.collective import ceilings
from collbench.machine.peak.comparison import lines
from collbench.machine.peak.limits import NicLimit, PcieLimit, limited_by
from collbench.machine.peak.node import Job, UserOverride, node_from_user, parse_gigabytes, parse_nic, parse_pcie
from tests.helpers import Call, said

FOUR = Job((node_from_user(8, UserOverride(nic=(4, 100e9), nvlink=300e9)),) * 4)


def _shown(operation: str, measured: float | None, job: Job) -> str:
    return "\n".join(lines(operation, measured, ceilings(operation, job), job))


WORDS: dict[str, tuple[Call, str]] = {
    "links of a host": (lambda: limited_by((PcieLimit(generation=4, lanes=16, host="n7"), NicLimit(ports=((4, 100e9),), host="n7"))),
        "PCIe Gen4 x16 and NIC 4×100 Gb/s of n7"),
    "peak of a barrier": (lambda: _shown("barrier", 1e9, FOUR), "1.00 GB/s, no ceiling: this operation moves no bytes"),
    "peak against a given ceiling": (lambda: _shown("allreduce", 42e9, replace(FOUR, ceiling_from_user=84e9)),
        "42.0 of 84.0 GB/s: 50 % of the given ceiling"),
    "peak of an unknown link": (lambda: _shown("allreduce", 1e9, Job((node_from_user(8, UserOverride()),))),
        "1.00 GB/s, no ceiling: the links between the GPUs are unknown: add --nvlink GB/s or --pcie gen4x16"),
    "not a number of NICs": (lambda: parse_nic("4x"),
        "--nic '4x' is not a valid number of NICs and rate: use e.g. 4x100Gb/s (bits) or 4x12.5GB/s (bytes), at most 10000 Gb/s"),
    "not a PCIe link": (lambda: parse_pcie("gen7x16"),
        "--pcie 'gen7x16' is not a valid PCIe link: use generation (1 to 6) and lanes, such as gen4x16"),
    "not a rate": (lambda: parse_gigabytes("--nvlink", "fast"),
        "--nvlink 'fast' is not a valid rate: use GB/s, a number above 0 and at most 100000"),
    "not an operation": (lambda: ceilings("sort", FOUR),
        "no ceiling is known for 'sort': write one of allreduce, allgather, reducescatter, broadcast, reduce, scan, hypercube, "
        "alltoall, alltoallv, barrier, gather, scatter, sendrecv, p2p, multipair, allgatherv, gatherv, scatterv, reducescatterv, "
        "put, get, accumulate, neighbor-allgather, neighbor-alltoall, init, exscan"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "text"), WORDS.values(), ids=WORDS)
def test_the_words_of_a_message(call: Call, text: str) -> None:
    assert said(call) == text
