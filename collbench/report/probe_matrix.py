"""Distances between all GPUs and NICs as a table like `nvidia-smi topo -m` prints, from whatever source the machine was read."""

from __future__ import annotations

from collections.abc import Iterator

from collbench.machine.distance import Distances
from collbench.machine.model import Gpu, Machine, Nic
from collbench.report.probe_words import gpus_text, listed, nic_name, nics_text, safe
from collbench.report.table import Line

MOST_PARTS = 128  # a table of more is no table for people, and its cost is quadratic
UNKNOWN = "?"
_NOTHING = "–"
_LEGEND = (
    ("X", "X: itself"),
    ("NV", "NVk: k NVLinks"),
    ("XGMI", "XGMI: xGMI links, their number unknown"),
    ("XG", "XGk: k xGMI links"),
    ("PIX", "PIX: at most one PCIe switch"),
    ("PXB", "PXB: several PCIe switches, no host bridge"),
    ("PHB", "PHB: a PCIe host bridge, within a NUMA node"),
    ("NODE", "NODE: between host bridges of a NUMA node"),
    ("SYS", "SYS: between NUMA nodes"),
    ("PCIE", "PCIE: PCIe, the distance unknown"),
)


def matrix_lines(machine: Machine) -> Iterator[Line]:
    """The table, a legend of the words that occur, NIC numbers with their names, and why paths are unknown. Never cut."""
    everything: list[Gpu | Nic] = [*machine.gpus, *(nic for nic in machine.nics if nic.virtual is None)]
    parts = everything[:MOST_PARTS]
    if not parts:
        yield Line(f"{gpus_text(machine)}, {nics_text(machine)}: there are no distances")
        return
    distances = Distances(machine)
    names = _names(parts)
    cells = [[distances.path(row.key, column.key) or UNKNOWN for column in parts] for row in parts]
    ends = [_affinity(machine, distances, part) for part in parts]
    table = [["", *names, "CPU affinity", "NUMA"], *([name, *row, *end] for name, row, end in zip(names, cells, ends, strict=True))]
    first, *rest = _aligned(table)
    yield Line(first, "head")
    yield from (Line(text) for text in rest)
    yield from (Line(text, "foot") for text in _foot(distances, parts, names, cells, len(everything)))


def _names(parts: list[Gpu | Nic]) -> list[str]:
    gpus, nics = 0, 0
    names: list[str] = []
    for part in parts:
        if isinstance(part, Gpu):
            names.append(f"GPU{gpus if part.index is None else part.index}")
            gpus += 1
        else:
            names.append(f"NIC{nics}")
            nics += 1
    return names


def _affinity(machine: Machine, distances: Distances, part: Gpu | Nic) -> list[str]:
    numa = distances.numa_of(part.key)
    cpus = next((node.cpus for node in machine.numa_nodes if node.id == numa), None) if numa is not None else None
    return [safe(cpus) if cpus else _NOTHING if cpus == "" else UNKNOWN, UNKNOWN if numa is None else str(numa)]


def _aligned(table: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def _foot(distances: Distances, parts: list[Gpu | Nic], names: list[str], cells: list[list[str]], in_all: int) -> Iterator[str]:
    words = {cell[:2] if cell[:2] in ("NV", "XG") and cell != "XGMI" else cell for row in cells for cell in row}
    yield "; ".join(text for word, text in _LEGEND if word in words)
    nics = [f"{name} {nic_name(part)}" for name, part in zip(names, parts, strict=True) if isinstance(part, Nic)]
    if nics:
        yield listed(nics, MOST_PARTS)
    if UNKNOWN in words:
        yield f"{UNKNOWN}: unknown ({'; '.join(_reasons(distances, parts, cells))})"
    if in_all > len(parts):
        yield f"{in_all - len(parts)} more parts are not shown: see --format json"


def _reasons(distances: Distances, parts: list[Gpu | Nic], cells: list[list[str]]) -> list[str]:
    """Why paths are unknown: of each part one, so that one thing that is missing is not told for every pair."""
    whys: dict[str, None] = {}
    for row, found in zip(parts, cells, strict=True):
        column = found.index(UNKNOWN) if UNKNOWN in found else None
        why = distances.why_unknown(row.key, parts[column].key) if column is not None else None
        if why:
            whys[safe(why)] = None
    return list(whys)[:4]
