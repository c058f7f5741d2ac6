"""Reading a machine's files into the model costs the same per link however many links there are: PCIe trees and xGMI meshes to 100,000."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from collbench.machine.readers import linux
from tests.machine.trees import Tree, pci, tree
from tools.benchmarks.figures import Figure, Outcome

SIZES = (1_000, 10_000, 100_000)
_PORTS = 125  # of the switch in one PCI domain; with what is below them, a root port and an upstream port 252 links
_LINEAR = 1.1  # slope of the fit that still counts as linear: 100 times the links in less than 160 times the time
_LINK = {"current_link_speed": "32.0 GT/s PCIe", "current_link_width": "16", "max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16"}


def pcie(links: int) -> Tree:
    """At least that many PCIe links: in each domain a switch with GPUs and NICs in turns."""
    parts = []
    for domain in range(-(-links // (2 * _PORTS + 2))):
        root = f"pci{domain:04x}:00/{domain:04x}:00:01.0"
        top = f"{root}/{domain:04x}:01:00.0"
        parts += [_function(root, "60400", "1000:C030"), _function(top, "60400", "1000:C030")]
        for port in range(_PORTS):
            above = f"{top}/{domain:04x}:02:{port // 8:02x}.{port % 8}"
            what = ("30200", "10DE:2330") if port % 2 else ("20700", "15B3:1021")
            parts += [_function(above, "60400", "1000:C030"), _function(f"{above}/{domain:04x}:{3 + port:02x}:00.0", *what)]
    return tree(*parts)


def xgmi(links: int) -> Tree:
    """At least that many xGMI links, counted from both ends: GPUs with eight peers each."""
    nodes, files = "/sys/class/kfd/kfd/topology/nodes", {}
    count = -(-links // 8)
    for node in range(count):
        location = f"simd_count 1216\ndomain {node // 0xFF}\nlocation_id {(1 + node % 0xFF) << 8}\ngfx_target_version 90402"
        files[f"{nodes}/{node}/properties"] = location
        for peer in range(8):
            to = (node + peer + 1) % count
            files[f"{nodes}/{node}/io_links/{peer}/properties"] = f"type 11\nnode_to {to}\nmin_bandwidth 64000\nmax_bandwidth 64000"
    return Tree(files)


KINDS: dict[str, Callable[[int], Tree]] = {"PCIe": pcie, "xGMI": xgmi}


def measure(n: int = 3, sizes: Sequence[int] = SIZES) -> Outcome:
    """The best of n readings of each size."""
    figures, raw = [], []
    for kind, made in KINDS.items():
        points = [_point(made(size), n) for size in sizes]
        figures += [Figure(f"{kind}, {links:,} links", f"{1e6 * seconds / links:.1f} µs per link") for links, seconds in points]
        sizes_found, times = np.log(np.array(points, np.float64)).T
        slope = float(np.polyfit(sizes_found, times, 1)[0])
        figures.append(Figure(f"{kind}, slope of time over links", f"{slope:.3f}", "", f"< {_LINEAR}", slope < _LINEAR))
        raw += [{"kind": kind, "links": links, "read_s": seconds} for links, seconds in points]
    how = f"`linux.read` of made-up files in memory, best of {n}; the slope is that of a straight line through the logarithms: 1 is linear."
    return Outcome("topology_build", how, figures, raw, ("figure", "best", "", "target", "verdict"))


def _function(path: str, class_id: str, ids: str) -> tuple[dict[str, str], dict[str, str]]:
    return pci(path, uevent=f"PCI_CLASS={class_id}\nPCI_ID={ids}", **_LINK)


def _point(files: Tree, n: int) -> tuple[int, float]:
    """Links found, and seconds."""
    spent = []
    for _ in range(n):
        before = time.perf_counter()
        machine = linux.read(files)
        spent.append(time.perf_counter() - before)
    return sum(device.link.width is not None for device in machine.pci) + len(machine.gpu_links), min(spent)
