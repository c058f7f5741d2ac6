"""Figures that no machine has: they pass every check of type, and would become a ceiling."""

from __future__ import annotations

from collections.abc import Iterator

from collbench.machine.model import Machine
from collbench.machine.readers.text import printable

# Far above what there is: ports of 800 Gb/s, NVLinks of 53 GB/s each way, PCIe Gen7 with 128 GT/s, 18 links of a GPU, hosts of 32 TB.
_MOST_BITS_PER_S = 1e13
_MOST_BYTES_PER_S = 1e12
_MOST_GT_PER_S = 256.0
_MOST_LANES = 64
_MOST_LINKS = 1024
_MOST_BYTES = 1 << 50
_MOST_THREADS = 1 << 20


def impossible(machine: Machine) -> Iterator[str]:
    """ "a speed of -5 at nics/mlx5_0": figures that are negative, or far above what is built."""
    for what, where, value, most in _figures(machine):
        if value is not None and not 0 <= value <= most:
            yield f"{what} of {value:g} at {printable(where, 80)}"


def _figures(machine: Machine) -> Iterator[tuple[str, str, float | None, float]]:
    """(what, where, the figure, the most it can be)."""
    yield from _system(machine)
    for device in machine.pci:
        for speed in (device.link.speed_gt_per_s, device.link.max_speed_gt_per_s):
            yield "a speed in GT/s", f"pci/{device.address}", speed, _MOST_GT_PER_S
        for width in (device.link.width, device.link.max_width):
            yield "a width", f"pci/{device.address}", width, _MOST_LANES
    for gpu in machine.gpus:
        yield "memory", f"gpus/{gpu.key}", gpu.memory_bytes, _MOST_BYTES
        yield "a number of links", f"gpus/{gpu.key}", gpu.c2c_links, _MOST_LINKS
        yield "a speed", f"gpus/{gpu.key}", gpu.c2c_bytes_per_s, _MOST_BYTES_PER_S
    for link in machine.gpu_links:
        yield "a number of links", f"gpu_links/{link.key}", link.count, _MOST_LINKS
        yield "a speed", f"gpu_links/{link.key}", link.bytes_per_s, _MOST_BYTES_PER_S
    yield from _ports(machine)


def _system(machine: Machine) -> Iterator[tuple[str, str, float | None, float]]:
    system = machine.system
    for count in (system.sockets, system.cores, system.threads):
        yield "a number of processors", "system", count, _MOST_THREADS
    for size in (system.memory_bytes, system.shm_bytes, *(node.memory_bytes for node in machine.numa_nodes)):
        yield "memory", "system", size, _MOST_BYTES


def _ports(machine: Machine) -> Iterator[tuple[str, str, float | None, float]]:
    for nic in machine.nics:
        for port in nic.ports:
            for rate in (port.rate_bits_per_s, port.shaped_bits_per_s):
                yield "a speed", f"nics/{nic.name}", rate, _MOST_BITS_PER_S
            yield "an MTU", f"nics/{nic.name}", port.mtu_bytes, _MOST_BYTES
