"""AMD GPUs as their kernel driver tells them: /sys/class/kfd/kfd/topology, one node per die or partition, CPUs among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collbench.machine.files import Files
from collbench.machine.model import Gpu, GpuLink
from collbench.machine.readers.text import whole

KIND = "AMD KFD topology"
_NODES = "/sys/class/kfd/kfd/topology/nodes"
_XGMI = 11  # HSA_IOLINKTYPE_XGMI, libhsakmt's hsakmttypes.h
_ONE_HOP = 15  # the kernel's weight of a direct xGMI link: 15 per hop (kfd_crat.c)
_MEMORY_OF_GPU = (1, 2)  # heap types: frame buffer, public and private
_MOST_MB_PER_S = 1_000_000
_MOST_LINKS = 16
_MOST_BYTES = 1 << 50


@dataclass(frozen=True, slots=True)
class Found:
    """GPUs in the driver's order, and the xGMI links between them, from both ends."""

    gpus: tuple[Gpu, ...] = ()
    links: tuple[GpuLink, ...] = ()
    doubts: tuple[str, ...] = ()


def read(files: Files) -> Found:
    """GPUs, and xGMI links between GPUs (links to CPUs are left out); never raises. No folder: nothing found."""
    doubts: list[str] = []
    nodes = sorted(int(name) for name in files.names(_NODES) if name.isascii() and name.isdigit() and len(name) < 6)
    properties = {node: _properties(files.text(f"{_NODES}/{node}/properties")) for node in nodes}
    gpus = _gpus(files, {node: each for node, each in properties.items() if each.get("simd_count", 0) > 0}, doubts)
    links = [link for node in gpus for link in _links(files, node, gpus, doubts)]
    return Found(tuple(gpus.values()), tuple(links), tuple(dict.fromkeys(doubts)))


def architecture(version: int | None) -> str | None:
    """gfx942 of 90402: two decimal digits each for minor and stepping, which the name has in hexadecimal (90010 is gfx90a)."""
    if not version or version > 999_999:
        return None
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def address(properties: Mapping[str, int]) -> str | None:
    """The PCI address: location_id is bus, device and function in 8, 5 and 3 bits, domain is apart."""
    location, domain = properties.get("location_id"), properties.get("domain", 0)
    if not location or location > 0xFFFF or domain > 0xFFFFFFFF:
        return None
    return f"{domain:04x}:{location >> 8:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"


def _properties(text: str | None) -> dict[str, int]:
    pairs = (line.split() for line in (text or "").splitlines())
    numbers = {pair[0]: whole(pair[1], 0, (1 << 64) - 1) for pair in pairs if len(pair) == 2}
    return {name: value for name, value in numbers.items() if value is not None}


def _gpus(files: Files, nodes: Mapping[int, Mapping[str, int]], doubts: list[str]) -> dict[int, Gpu]:
    found: dict[int, Gpu] = {}
    keys: set[str] = set()
    for node, properties in nodes.items():
        where = address(properties)
        key = where or f"gpu{len(found)}"
        if key in keys:
            doubts.append(f"{key}: the driver lists it in several partitions: counted once, with the memory of the first")
            continue
        keys.add(key)
        found[node] = Gpu(
            key,
            len(found),
            where,
            "amd",
            architecture=architecture(properties.get("gfx_target_version")),
            memory_bytes=_memory(files, node),
        )
    return found


def _memory(files: Files, node: int) -> int | None:
    folder = f"{_NODES}/{node}/mem_banks"
    banks = [_properties(files.text(f"{folder}/{bank}/properties")) for bank in files.names(folder)[:64]]
    size = sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _MEMORY_OF_GPU)
    return size if 0 < size <= _MOST_BYTES else None


def _links(files: Files, node: int, gpus: Mapping[int, Gpu], doubts: list[str]) -> Sequence[GpuLink]:
    folder = f"{_NODES}/{node}/io_links"
    listed = [_properties(files.text(f"{folder}/{name}/properties")) for name in files.names(folder)]
    there = {each["node_to"]: each for each in listed if each.get("type") == _XGMI and each.get("node_to") in gpus}
    links = []
    for peer, link in there.items():
        count = _count(link, doubts) if peer != node else 0
        one = link.get("min_bandwidth", 0)
        rate = one * 1e6 if 0 < one <= _MOST_MB_PER_S else None
        links += [GpuLink(gpus[node].key, gpus[peer].key, count, "xgmi", rate)] if count else []
    return links


def _count(link: Mapping[str, int], doubts: list[str]) -> int:
    """Links of a pair: its bandwidth over that of one link; 0 for a pair that only reaches each other over others.

    The kernel gives the bandwidth of one link as the least and that of all as the most, which is 0 where the route is indirect
    (amdgpu_amdkfd_get_xgmi_bandwidth_mbytes). Before MI200 both are 0, and a direct pair has one link.
    """
    one, most = link.get("min_bandwidth", 0), link.get("max_bandwidth", 0)
    if not one and not most:
        return 1 if link.get("weight", _ONE_HOP) <= _ONE_HOP else 0
    if not one or most % one or most // one > _MOST_LINKS:
        doubts.append(f"an xGMI link of {most} MB/s made of links of {one} MB/s: counted as one")
        return 1
    return most // one
