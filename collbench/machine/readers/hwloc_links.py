"""What hwloc's figures for links mean: a PCIe link is GB/s after line coding, an NVLink matrix is MB/s of all links of a pair together.

Both are made by hwloc from counted things (include/private/misc.h and hwloc/topology-nvml.c of https://github.com/open-mpi/hwloc)
and are turned back only where one count alone can have given them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from collbench.machine.model import SWITCH, GpuLink, PcieLink

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_MOST_OBJECTS, _MOST_LINKS = 512, 18
_PROCESSORS = ("Package", "NUMANode", "Group", "Machine", "Die")  # hwloc names the nearest of them for a POWER processor
_WIDTHS = (1, 2, 4, 8, 16)
# GB/s of a lane by GT/s: 8b/10b, 128b/130b, then 242 of 256 bytes of a flit (misc.h, hwloc__pci_link_speed).
_LANE = {2.5: 0.25, 5.0: 0.5, 8.0: 128 / 130, 16.0: 256 / 130, 32.0: 512 / 130, 64.0: 8 * 242 / 256, 128.0: 16 * 242 / 256}
# The fastest PCIe that a part speaks, from its maker's data sheet, and MB/s that hwloc gives one of its NVLinks (topology-nvml.c).
_PARTS = (
    (re.compile(r"\bP100\b"), 8.0, 20000),
    (re.compile(r"\bV100\b"), 8.0, 25000),
    (re.compile(r"\bT4\b|\bConnectX-3|\bConnectX-4|\bConnect-IB\b|\bConnectX-5(?! Ex)"), 8.0, None),
    (re.compile(r"\bA(?:100|800|30)\b"), 16.0, 25000),
    (re.compile(r"\bA(?:10|40)\b|\bL40?S?\b|\bMI(?:100|2[15]0)|\bConnectX-5 Ex|\bConnectX-6|\bBlueField-2"), 16.0, None),
    (re.compile(r"\b(?:G?H[12]00|H800|H20)\b"), 32.0, 25000),
    (re.compile(r"\bMI3\d\d|\bConnectX-7|\bBlueField-3"), 32.0, None),
    (re.compile(r"\bConnectX-8"), 64.0, None),
    (re.compile(r"\bG?B[123]00\b"), 64.0, 50000),
)


class Links(NamedTuple):
    """GPU links, paths between GPUs, the reason why links are not counted, doubts, and by GPU the NVLinks to processors with their rate."""

    links: tuple[GpuLink, ...] = ()
    paths: Mapping[tuple[str, str], str] = {}
    unknown: str | None = None
    doubts: tuple[str, ...] = ()
    processors: Mapping[str, tuple[int, float]] = {}


def pcie(gigabytes_per_s: str | None, part: str | None) -> tuple[PcieLink, str | None]:
    """The link now, and why not: "15.753846" is 8 GT/s x16 of a part that can no more, else it may be 16 GT/s x8 as well."""
    try:
        told = float((gigabytes_per_s or "0")[:32])
    except ValueError:
        return PcieLink(), "hwloc's figure is no number"
    if not 0 < told < 1e4:
        return PcieLink(), "hwloc tells no speed"
    most = next((speed for pattern, speed, _ in _PARTS if pattern.search(part or "")), 128.0)
    fitting = [
        (speed, width) for speed, lane in _LANE.items() for width in _WIDTHS if speed <= most and abs(lane * width / told - 1) < 1e-3
    ]
    if len(fitting) == 1:
        return PcieLink(*fitting[0]), None
    each = " or ".join(f"{speed:g} GT/s x{width}" for speed, width in fitting) or "no PCIe link"
    return PcieLink(), f"hwloc tells {told:g} GB/s, which is {each}"


def nvlinks(topology: Element, ends: Mapping[str, str], models: Mapping[str, str | None]) -> Links:
    """Links of the matrix "NVLinkBandwidth".

    ends    key of a GPU, or SWITCH, by "OSDev:802" and "PCIDev:449"; other ends are processors (POWER)
    models  by GPU key
    """
    matrix = _matrix(topology, "NVLinkBandwidth")
    if matrix is None:
        return _xgmi(topology, ends)
    names, rows, doubt = matrix
    links: list[GpuLink] = []
    doubts = [doubt] if doubt else []
    for name, row in zip(names, rows, strict=True):
        gpu = ends.get(name, SWITCH)
        if gpu != SWITCH:
            counted = _counted(gpu, _sums(gpu, names, row, ends), models.get(gpu))
            links += counted or []
            doubts += [] if counted is not None else [f"hwloc's NVLink figures of {gpu} are no whole number of its links: not counted"]
    return Links(tuple(links), doubts=tuple(doubts), processors=_to_processors(names, rows, ends, models))


def _to_processors(
    names: Sequence[str], rows: Sequence[Sequence[int]], ends: Mapping[str, str], models: Mapping[str, str | None]
) -> dict[str, tuple[int, float]]:
    """By GPU the NVLinks to processors and the bytes/s of one; not where the figures are no whole number of links."""
    found: dict[str, tuple[int, float]] = {}
    for name, row in zip(names, rows, strict=True):
        gpu = ends.get(name, SWITCH)
        total = sum(value for other, value in zip(names, row, strict=True) if other.partition(":")[0] in _PROCESSORS)
        one = _megabytes_of_a_link(models.get(gpu))
        if gpu != SWITCH and total and one and total % one == 0:
            found[gpu] = (total // one, one * 1e6)
    return found


def _megabytes_of_a_link(model: str | None) -> int | None:
    return next((each for pattern, _, each in _PARTS if each and pattern.search(model or "")), None)


def _sums(gpu: str, names: Sequence[str], row: Sequence[int], ends: Mapping[str, str]) -> dict[str, int]:
    """MB/s by far end, switches together; the figure of a GPU with itself means nothing."""
    sums: dict[str, int] = {}
    for name, value in zip(names, row, strict=True):
        if value and name in ends and ends[name] != gpu:
            sums[ends[name]] = sums.get(ends[name], 0) + value
    return sums


def _counted(gpu: str, sums: Mapping[str, int], model: str | None) -> list[GpuLink] | None:
    """The links of one GPU by far end; None when its figures are no multiples of what one of its links has."""
    one = _megabytes_of_a_link(model)
    if one is None or any(value % one for value in sums.values()) or sum(sums.values()) > one * _MOST_LINKS:
        return None if sums else []
    return [GpuLink(gpu, end, value // one, bytes_per_s=one * 1e6) for end, value in sums.items()]


def _xgmi(topology: Element, ends: Mapping[str, str]) -> Links:
    """AMD's matrix has one made-up figure for every pair that xGMI joins (topology-rsmi.c): it tells pairs, not links."""
    matrix = _matrix(topology, "XGMIBandwidth")
    names, rows, doubt = matrix or ([], [], None)
    paths = {
        (ends[a], ends[b]): "XGMI"
        for a, row in zip(names, rows, strict=True)
        for b, value in zip(names, row, strict=True)
        if value and a != b and a in ends and b in ends
    }
    why = "hwloc tells which GPUs xGMI joins, not by how many links: read the machine's /sys/class/kfd too" if paths else None
    return Links((), paths, why, (doubt,) if doubt else ())


def _matrix(topology: Element, name: str) -> tuple[list[str], list[list[int]], str | None] | None:
    """Names of the objects ("OSDev:802"), rows of values and a doubt; None when the matrix is not there."""
    found = next((each for each in topology if each.tag in ("distances2", "distances2hetero") and each.get("name") == name), None)
    if found is None:
        return None
    kind = found.get("type")
    names = [f"{kind}:{word}" if kind else word for word in _words(found, "indexes")]
    values = _words(found, "u64values")
    complete = len(names) <= _MOST_OBJECTS and len(set(names)) == len(names) and len(values) == len(names) ** 2
    if not complete or found.get("indexing", "gp") != "gp" or not all(re.fullmatch(r"\d{1,15}", word) for word in values):
        return [], [], f"hwloc's matrix {name} has {len(values)} values for {len(names)} objects, or is damaged: not read"
    numbers = [int(word) for word in values]
    return names, [numbers[at : at + len(names)] for at in range(0, len(numbers), len(names) or 1)], None


def _words(matrix: Element, tag: str) -> list[str]:
    return [word for child in matrix if child.tag == tag for word in (child.text or "").split()]
