"""Links that set a ceiling, inputs of a hard limit, and what `collbench peak` prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from collbench.machine.peak.collective import ceilings
from collbench.machine.peak.comparison import InputGiven, InputRead, SumsNotCounted, lines
from collbench.machine.peak.limits import BridgeLimit, GpuLinkLimit, LimitedBy, NicLimit, PcieLimit
from collbench.machine.peak.node import Job, UserOverride, node_from_user, parse_gigabytes, parse_nic, parse_pcie
from tests.messages import Message

NICS = NicLimit(ports=((4, 100e9),))
NVLINK = GpuLinkLimit(link="NVLink", count=12, bytes_per_s=25e9)
SLOT = PcieLimit(generation=4, lanes=16)
FOUR = Job((node_from_user(8, UserOverride(nic=(4, 100e9), nvlink=300e9)),) * 4)
AMD = Job((node_from_user(8, UserOverride(nvlink=448e9)),))


def _shown(operation: str, measured: float | None, job: Job) -> str:
    return "\n".join(lines(operation, measured, ceilings(operation, job), job))


MESSAGES: Mapping[str, Message] = {
    "NICs": NICS,
    "NICs of several rates": NicLimit(ports=((7, 400e9), (1, 200e9))),
    "NICs in slow slots": NICS.of(slots=(SLOT,)),
    "an interface": NicLimit(ports=((1, 10e9),), interface="eth0"),
    "shared NICs": NICS.of(shared_by=2, sharing="pairs"),
    "NICs, thin fabric": NICS.of(fabric=2.0),
    "NICs of a domain": NICS.of(nodes=18),
    "a PCIe link": SLOT,
    "PCIe links of GPUs": SLOT.of(gpus=8),
    "the link above a switch": BridgeLimit(address="0000:01:00.0"),
    "the links above switches": BridgeLimit(address="0000:01:00.0", others=3),
    "links to the CPU": GpuLinkLimit(link="NVLink", count=2, bytes_per_s=20e9, way="cpu"),
    "NVLinks": NVLINK,
    "NVLinks with sums": NVLINK.of(nvls=True),
    "typed NVLinks": GpuLinkLimit(link="NVLink", bytes_per_s=450e9),
    "links of a pair": GpuLinkLimit(link="xGMI", count=1, bytes_per_s=64e9, way="pair"),
    "a third GPU": GpuLinkLimit(link="NVLink", bytes_per_s=25e9, way="third_gpu"),
    "between sets": GpuLinkLimit(link="NVLink", bytes_per_s=100e9, way="sets", sets=(4, 4)),
    "links together": LimitedBy((NVLINK, NICS)),
    "links of a host": LimitedBy((NVLINK.of(host="node7"), NICS.of(host="node7"))),
    "given input": InputGiven("NIC 4×100 Gb/s", "--nic"),
    "input from a file": InputRead("NIC 4×100 Gb/s", "ibstat.txt"),
    "NVLink SHARP": SumsNotCounted("--nvls"),
    "InfiniBand SHARP": SumsNotCounted("--sharp", "NIC 4×100 Gb/s", "ibstat.txt"),
    "peak without a rate": lambda: _shown("allreduce", None, FOUR),
    "peak below the ring": lambda: _shown("allreduce", 42e9, FOUR),
    "peak above the hard limit": lambda: _shown("allreduce", 70e9, FOUR),
    "peak of all-to-all": lambda: _shown("alltoall", 4e9, FOUR),
    "peak of a barrier": lambda: _shown("barrier", 1e9, FOUR),
    "peak against a given ceiling": lambda: _shown("allreduce", 42e9, replace(FOUR, ceiling_from_user=84e9)),
    "peak of typed xGMI": lambda: _shown("allreduce", None, AMD),
    "peak of an unknown link": lambda: _shown("allreduce", 1e9, Job((node_from_user(8, UserOverride()),))),
    "not a number of NICs": lambda: parse_nic("4x"),
    "not a PCIe link": lambda: parse_pcie("gen7x16"),
    "not a rate": lambda: parse_gigabytes("--nvlink", "fast"),
    "not an operation": lambda: ceilings("sort", FOUR),
}
