"""The ceilings of 1,024 nodes of eight GPUs, all different: from probed machines to all ceilings, links, slots and cuts."""

from __future__ import annotations

from time import perf_counter

from collbench.machine.model import Gpu, GpuLink, Machine, Nic, PciDevice, PcieLink, Port
from collbench.machine.peak.collective import OPERATIONS, ceilings
from collbench.machine.peak.node import Job, node_of
from tools.benchmarks.figures import SECONDS, Outcome, timed

NODES, GPUS, MOST_S = 1024, 8, 2.0
_LINK = PcieLink(32.0, 16)


def machine(number: int) -> Machine:
    """A node with a mesh of its own, eight GPUs and NICs below four PCIe switches; every seventh has one NIC at half the rate."""
    keys = [f"0000:{16 + i:02x}:00.0" for i in range(GPUS)]
    switches = [PciDevice(f"0000:{i:02x}:00.0", "switch", link=_LINK) for i in range(1, 5)]
    below = [PciDevice(key, "gpu", switches[i // 2].address, link=_LINK) for i, key in enumerate(keys)]
    slots = [PciDevice(f"0000:{64 + i:02x}:00.0", "nic", switches[i // 2].address, link=_LINK) for i in range(GPUS)]
    counts = {(a, b): 1 + (number >> (a % 10) & 1) + (a * b + number) % 2 for a in range(GPUS) for b in range(a)}
    links = tuple(GpuLink(keys[i], keys[j], count) for (a, b), count in counts.items() for i, j in ((a, b), (b, a)))
    gpus = tuple(Gpu(key, i, key, "nvidia", None, "sm_90", i // 4) for i, key in enumerate(keys))
    nics = tuple(Nic(f"mlx5_{i}", slot.address, rdma=True, ports=(_port(number, i),)) for i, slot in enumerate(slots))
    return Machine(f"node{number}", ("made",), pci=(*switches, *below, *slots), gpus=gpus, gpu_links=links, nics=nics)


def _port(number: int, index: int) -> Port:
    rate = 200e9 if number % 7 == 0 and index == number % GPUS else 400e9
    return Port(1, rate, state="active", link_layer="infiniband")


def job(machines: list[Machine]) -> Job:
    """The machines as the nodes of one job."""
    return Job(tuple(node_of(one) for one in machines))


def seconds(machines: list[Machine]) -> float:
    """From machines to the ceilings of every operation."""
    start = perf_counter()
    whole = job(machines)
    for operation in OPERATIONS:
        ceilings(operation, whole)
    return perf_counter() - start


def measure(n: int = 10) -> Outcome:
    """n times."""
    machines = [machine(number) for number in range(NODES)]
    found = [seconds(machines) for _ in range(n)]
    how = f"From {NODES} machines of {GPUS} GPUs, no two alike, to the ceilings of {len(OPERATIONS)} operations, in one process."
    return Outcome("ceilings_1024", how, [timed("seconds", found, SECONDS, below=MOST_S)], [{"seconds": each} for each in found])
