"""NCCL's and RCCL's topology XML: what NCCL_TOPO_DUMP_FILE writes, and the templates that vendors give for NCCL_TOPO_FILE.

A template lists PCI functions without <gpu> and <net>; its link speeds are what a vendor wants NCCL to believe.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from collbench.machine.model import Machine, System
from collbench.machine.readers.doubts import few
from collbench.machine.readers.nccl_xml_tree import Found, walk
from collbench.machine.readers.safe_xml import Limits, top_element
from collbench.machine.readers.text import HEAD, Reader, Unreadable, printable

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

KIND = "NCCL topology XML"

_AGAIN = "have NCCL write it with NCCL_TOPO_DUMP_FILE"
_LIMITS = Limits("a machine's topology", _AGAIN, 8 << 20, depth=64, elements=200_000)  # the largest real one has 100,000 characters
_NICS_ALONE = "GPUs are not reported in this file"  # a comment in Amazon's templates; their PCI functions have no class


def looks_like(text: str, name: str) -> bool:
    """It has NCCL's <system> with <cpu> in it, or NCCL's <graphs>, of which `read` says what to give instead."""
    head = text[:HEAD]
    return bool(re.search(r"<system\b", head) and re.search(r"<cpu\b", head)) or bool(re.search(r"<graphs\b", head))


def read(text: str, name: str) -> Machine:
    """The machine that the XML describes. Link speeds are maxima; parents end below the root ports, which NCCL leaves out.

    Raises Unreadable for text that is no such XML, for hostile XML, and for a PCI address that is missing, wrong or there twice.
    """
    called = printable(name)
    root = _root(text, called)
    hosts = list(dict.fromkeys(cpu.get("host_hash") for cpu in root.iterfind("cpu")))
    cpus = [cpu for cpu in root.iterfind("cpu") if cpu.get("host_hash") == hosts[0]]
    try:
        found = walk(cpus, nics_alone=_NICS_ALONE in text)
    except Unreadable as why:
        raise Unreadable(f"{called} is not as NCCL writes it: {why}; {_AGAIN}") from None
    if not found.pci and not found.nics:
        raise Unreadable(f"{called} names no PCI device and no network: {_AGAIN}")
    if len(hosts) > 1:
        found.notes.doubt(called, f"it holds {len(hosts)} hosts, and only the first was read")
    return _machine(found, called, cpus[0])


def _root(text: str, name: str) -> Element:
    """NCCL's <system>."""
    top = top_element(text, name, _LIMITS)
    if top.tag == "graphs":
        raise Unreadable(f"{name} holds the rings and trees that NCCL chose (NCCL_GRAPH_DUMP_FILE), no topology: {_AGAIN}")
    if top.tag != "system":
        raise Unreadable(f"{name} begins with <{printable(top.tag, 40)}>, not with NCCL's <system>: {_AGAIN}")
    return top


def _machine(found: Found, name: str, cpu: Element) -> Machine:
    if not found.dump:
        found.notes.doubt(name, "a vendor's template, not what NCCL found: its link speeds are not measured")
    return Machine(
        sources=(f"{KIND} {name}",),
        system=System(architecture=_word(cpu, "arch"), cpu_vendor=_word(cpu, "vendor")),
        numa_nodes=tuple(found.numa[key] for key in sorted(found.numa)),
        pci=tuple(found.pci.values()),
        gpus=tuple(gpu for gpu, _ in found.gpus.values()),
        gpu_links=tuple(found.links),
        nics=tuple(found.nics.values()),
        unknown=found.notes.unknown,
        doubts=few(found.notes.doubts()),
    )


def _word(element: Element, attribute: str) -> str | None:
    return printable(element.get(attribute, ""), 64) or None


NCCL_XML = Reader(KIND, looks_like, read, lists=frozenset({"pci"}))
