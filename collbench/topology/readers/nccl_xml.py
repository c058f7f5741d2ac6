"""NCCL's and RCCL's topology XML: what NCCL_TOPO_DUMP_FILE writes, and the templates that vendors give for NCCL_TOPO_FILE.

A template lists PCI functions without <gpu> and <net>; its link speeds are what a vendor wants NCCL to believe.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from collbench.topology.model import Machine, System
from collbench.topology.readers.nccl_xml_tree import Found, walk
from collbench.topology.text import Unreadable, printable

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

KIND = "NCCL topology XML"

_HEAD = 64 << 10
_DEEPEST, _MOST_ELEMENTS = 64, 200_000
_MOST_CHARACTERS = 8 << 20  # the largest real one has 100,000; expat's time for a token without an end grows with the square
_AGAIN = "have NCCL write it with NCCL_TOPO_DUMP_FILE"
_NICS_ALONE = "GPUs are not reported in this file"  # a comment in Amazon's templates; their PCI functions have no class


def looks_like(text: str, name: str) -> bool:
    """It has NCCL's <system> with <cpu> in it, or NCCL's <graphs>, of which `read` says what to give instead."""
    head = text[:_HEAD]
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
    """The top element. Entities, depth and number are bounded."""
    top = _bounded(text, name)
    if top.tag == "graphs":
        raise Unreadable(f"{name} holds the rings and trees that NCCL chose (NCCL_GRAPH_DUMP_FILE), no topology: {_AGAIN}")
    if top.tag != "system":
        raise Unreadable(f"{name} begins with <{printable(top.tag, 40)}>, not with NCCL's <system>: {_AGAIN}")
    return top


def _bounded(text: str, name: str) -> Element:
    from defusedxml.ElementTree import iterparse

    if len(text) > _MOST_CHARACTERS:
        raise Unreadable(f"{name} has {len(text) >> 20} Mi characters, more than a machine's topology: {_AGAIN}")
    depth = count = 0
    top: Element | None = None
    try:
        for event, element in iterparse(io.StringIO(text.lstrip("\ufeff \t\r\n")), events=("start", "end"), forbid_dtd=True):
            top = element if top is None else top
            depth += 1 if event == "start" else -1
            count += event == "start"
            if depth > _DEEPEST or count > _MOST_ELEMENTS:
                raise Unreadable(f"{name} nests deeper or has more elements than a machine does: {_AGAIN}")
    except (SyntaxError, ValueError, LookupError) as why:
        raise Unreadable(f"{name} is broken XML ({printable(str(why) or type(why).__name__, 120)}): {_AGAIN}") from None
    if top is None:
        raise Unreadable(f"{name} holds no XML: {_AGAIN}")
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
        doubts=tuple(found.notes.doubts()),
    )


def _word(element: Element, attribute: str) -> str | None:
    return printable(element.get(attribute, ""), 64) or None
