"""`rocm-smi --showtopo`: AMD GPUs, their NUMA nodes, and which of them xGMI joins; it does not count links.

Form: the tables "Link Type between two GPUs" and "Numa Nodes" of rocm-smi (rocm.docs.amd.com, "rocm-smi --showtopo").
"""

from __future__ import annotations

import re

from collbench.machine.lists import with_reasons
from collbench.machine.model import Gpu, Machine
from collbench.machine.readers.text import HEAD, Unreadable, numa_of, printable

KIND = "rocm-smi --showtopo"
_SECTION = re.compile(r"^=+\s*(.*?)\s*=+\s*$")
_ROW = re.compile(r"^GPU(\d{1,3})\s+(.*)$")
_NUMA = re.compile(r"^GPU\[(\d{1,3})\]\s*:\s*\(Topology\) Numa (Node|Affinity):\s*(-?\d+)\s*$")
_UNCOUNTED = "rocm-smi tells which GPUs xGMI joins, not by how many links: read the machine's /sys/class/kfd too"


def looks_like(text: str, name: str) -> bool:
    """A heading of rocm-smi's with a topology table."""
    start = text[:HEAD]
    return "Link Type between two GPUs" in start or "(Topology) Numa" in start


def starts(line: str) -> bool:
    """Whether the line is a heading of rocm-smi's."""
    return bool(_SECTION.match(line.strip()[:400]))


def read(text: str, name: str) -> Machine:
    """The GPUs ("gpu0"…), with the link type, "XGMI" or "PCIE", as their path. Raises Unreadable for rows that do not fit."""
    sections = _sections(text, name)
    types = _link_types(sections.get("Link Type between two GPUs", []), name)
    numa = _numa_nodes(sections.get("Numa Nodes", []))
    indexes = sorted({index for pair in types for index in pair} | set(numa))
    if not indexes:
        raise Unreadable(f"{printable(name)} names no GPU: save the output of `rocm-smi --showtopo` into it")
    paths = {(f"gpu{a}", f"gpu{b}"): word for (a, b), word in types.items() if word in ("XGMI", "PCIE")}
    machine = Machine(
        sources=(f"{KIND} {printable(name)}",),
        gpus=tuple(Gpu(f"gpu{index}", index=index, vendor="amd", numa=numa.get(index)) for index in indexes),
        paths=paths,
        unknown={"gpu_links": _UNCOUNTED} if "XGMI" in paths.values() else {},
    )
    return with_reasons(machine, "rocm-smi", {"gpus"})


def _sections(text: str, name: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    title = ""
    for line in text.splitlines():
        if match := _SECTION.match(line.strip()[:400]):
            title = match[1]
            if title in sections and title.startswith(("Link Type", "Numa")):
                raise Unreadable(f"{printable(name)} has two tables {printable(title)}: give the output for one machine")
            sections[title] = []
        else:
            sections.setdefault(title, []).append(line.strip())
    return sections


def _link_types(lines: list[str], name: str) -> dict[tuple[int, int], str]:
    """The type ("XGMI", "PCIE") from one GPU to another."""
    columns: list[int] = []
    types: dict[tuple[int, int], str] = {}
    for line in lines:
        words = line.split()
        if words and all(re.fullmatch(r"GPU\d{1,3}", word) for word in words):
            columns = [int(word[3:]) for word in words]
        elif columns and (match := _ROW.match(line)):
            types |= _row(int(match[1]), match[2].split(), columns, name)
    return types


def _row(gpu: int, cells: list[str], columns: list[int], name: str) -> dict[tuple[int, int], str]:
    fits = len(cells) == len(columns) and gpu in columns and cells[columns.index(gpu)] == "0"
    if not fits or any(cell not in {"0", "XGMI", "PCIE", "N/A"} for cell in cells):
        raise Unreadable(f"{printable(name)}: row GPU{gpu} does not fit its heading: save the output of `rocm-smi --showtopo` again")
    return {(gpu, peer): cell for peer, cell in zip(columns, cells, strict=True) if peer != gpu}


def _numa_nodes(lines: list[str]) -> dict[int, int]:
    """The NUMA node by GPU; the affinity, where it says a node, is the CPUs' one and goes before the node."""
    found: dict[tuple[int, str], int | None] = {}
    for line in lines:
        if match := _NUMA.match(line):
            found[int(match[1]), match[2]] = numa_of(match[3])
    numa: dict[int, int] = {}
    for word in ("Node", "Affinity"):
        numa |= {gpu: node for (gpu, kind), node in found.items() if kind == word and node is not None}
    return numa
