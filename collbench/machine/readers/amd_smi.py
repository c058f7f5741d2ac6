"""`amd-smi topology`, as text or with --json: AMD GPUs by PCI address, which of them xGMI joins, and which reach each other directly.

Form: the tables "ACCESS TABLE:", "LINK TYPE TABLE:" … of amd-smi (rocm.docs.amd.com, "amd-smi topology"). It does not count links.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from collbench.machine.model import Gpu, Machine
from collbench.machine.readers.text import HEAD, Reader, Unreadable, bounded, pci_address, printable, whole

KIND = "amd-smi topology"
_TITLE = re.compile(r"^\s*([A-Z][A-Z -]{2,40}) TABLE:\s*$", re.MULTILINE)
_MOST_CHARACTERS = 4 << 20
_MOST_GPUS = 256
_ACCESS = {"ENABLED": "OK", "DISABLED": "NS"}
_LINK_TYPES = {"XGMI": "XGMI", "PCIE": "PCIE"}
_UNCOUNTED = "amd-smi prints which GPUs xGMI joins, not by how many links: read the machine's /sys/class/kfd too"
_AGAIN = "save the output of `amd-smi topology` again"


@dataclass
class _Topology:
    """What the text lists: GPUs by address with their index, and words by pair of addresses."""

    gpus: dict[str, int] = field(default_factory=dict)
    links: dict[tuple[str, str], str] = field(default_factory=dict)
    access: dict[tuple[str, str], str] = field(default_factory=dict)


def looks_like(text: str, name: str) -> bool:
    """Its tables with PCI addresses, or its JSON."""
    start = text[:HEAD]
    if start.lstrip().startswith("["):
        return '"link_type"' in start and '"bdf"' in start
    return bool({"LINK TYPE", "ACCESS", "WEIGHT", "HOPS"} & set(_TITLE.findall(start)))


def read(text: str, name: str) -> Machine:
    """The GPUs by PCI address, "XGMI" or "PCIE" as the path between two, and peer access. Raises Unreadable for rows that do not fit."""
    bounded(text, name, _MOST_CHARACTERS, "a machine's GPUs fill", "give the output for one machine")
    found = _of_json(text, name) if text.lstrip().startswith("[") else _of_tables(text, name)
    if not found.gpus:
        raise Unreadable(f"{printable(name)} lists no GPU: {_AGAIN}")
    return Machine(
        sources=(f"{KIND} {printable(name)}",),
        gpus=tuple(Gpu(address, index=index, address=address, vendor="amd") for address, index in found.gpus.items()),
        paths={pair: _LINK_TYPES[word] for pair, word in found.links.items() if word in _LINK_TYPES},
        peer_access={pair: _ACCESS[word] for pair, word in found.access.items() if word in _ACCESS},
        unknown={"gpu_links": _UNCOUNTED} if "XGMI" in found.links.values() else {},
    )


def _of_tables(text: str, name: str) -> _Topology:
    found = _Topology()
    columns: list[str] = []
    kept: dict[tuple[str, str], str] | None = None
    seen: set[str] = set()
    for line in text.splitlines():
        if match := _TITLE.match(line):
            title, columns = match[1], []
            if title in seen:
                raise Unreadable(f"{printable(name)} has two tables {printable(title)}: give the output for one machine")
            seen.add(title)
            kept = {"LINK TYPE": found.links, "ACCESS": found.access}.get(title)
            continue
        words = line.split()
        addresses = [pci_address(word) for word in words]
        if words and all(addresses) and not columns:
            columns = [address for address in addresses if address]
            _add(found, columns, name)
        elif kept is not None and columns and words and addresses[0]:
            _row(kept, addresses[0], words[1:], columns, name)
    return found


def _add(found: _Topology, addresses: list[str], name: str) -> None:
    if len(addresses) > _MOST_GPUS or len(set(addresses)) != len(addresses):
        raise Unreadable(f"{printable(name)} lists a GPU twice, or more than {_MOST_GPUS}: {_AGAIN}")
    for index, address in enumerate(addresses):
        found.gpus.setdefault(address, index)


def _row(kept: dict[tuple[str, str], str], gpu: str, cells: list[str], columns: list[str], name: str) -> None:
    if len(cells) != len(columns) or gpu not in columns:
        raise Unreadable(f"{printable(name)}: row {gpu} does not fit its heading: {_AGAIN}")
    kept.update({(gpu, peer): cell for peer, cell in zip(columns, cells, strict=True) if peer != gpu})


def _of_json(text: str, name: str) -> _Topology:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError):
        raise Unreadable(f"{printable(name)}: invalid JSON, perhaps cut off: save the output of `amd-smi topology --json` again") from None
    found = _Topology()
    for row in rows:
        gpu = _address(row)
        index = whole(str(row.get("gpu")), 0, _MOST_GPUS - 1) if isinstance(row, Mapping) else None
        if gpu is None or index is None or gpu in found.gpus:
            raise Unreadable(f"{printable(name)}: an entry has no 'gpu' and 'bdf' of its own: save `amd-smi topology --json` again")
        found.gpus[gpu] = index
        for link in row.get("links") or ():
            peer = _address(link)
            if peer and peer != gpu:
                found.links[gpu, peer] = str(link.get("link_type"))
                found.access[gpu, peer] = str(link.get("link_status"))
    return found


def _address(entry: object) -> str | None:
    return pci_address(str(entry.get("bdf"))) if isinstance(entry, Mapping) else None


AMD_SMI = Reader(KIND, looks_like, read)
