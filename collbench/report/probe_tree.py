"""A machine as a tree of text: NUMA nodes, PCIe switches, GPUs and NICs with their links, and what is unknown with its reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from collbench.report.probe_layout import Domain, Part, Switch, arrange
from collbench.report.probe_words import (
    gpu_model,
    gpu_name,
    links_text,
    listed,
    memory,
    nic_name,
    numa_text,
    pcie,
    port_text,
    safe,
    switch_text,
    system_text,
    unknown,
)
from collbench.report.table import Line
from collbench.topology.distance import Distances
from collbench.topology.gpudirect import Capability, capability
from collbench.topology.model import Gpu, Machine, Nic

_MOST_VIRTUAL = 12


def tree_lines(machine: Machine) -> Iterator[Line]:
    """The machine, line by line, never cut. Names from outside are made printable; figures keep their units."""
    distances = Distances(machine)
    yield Line(_title(machine), "head")
    domains = arrange(machine, distances)
    for place, domain in enumerate(domains):
        yield from _domain(machine, domain, distances, last=place == len(domains) - 1)
    yield from (Line(text) for text in _virtual(machine))
    yield from _section("GPUDirect RDMA (a GPU and its nearest NICs)", _gpudirect(machine, distances))
    yield from _section("unknown", _reasons(machine))
    yield from _section("doubts", [safe(doubt, 1000) for doubt in machine.doubts])
    yield from _section("sources disagree", _disagreements(machine))
    yield Line(f"read from: {'; '.join(map(safe, machine.sources)) or 'nothing'}", "foot")


def _title(machine: Machine) -> str:
    name = safe(machine.hostname) if machine.hostname else "host name unknown"
    none = [] if machine.gpus else [f"GPUs {unknown(machine, 'gpus')}" if "gpus" in machine.unknown else "no GPU"]
    return " · ".join([name, *system_text(machine.system), *none])


def _domain(machine: Machine, domain: Domain, distances: Distances, last: bool) -> Iterator[Line]:
    yield Line(f"{'└─' if last else '├─'} {numa_text(domain.node, machine)}")
    yield from (Line(text) for text in _branches(machine, domain.below, distances, "   " if last else "│  "))


def _branches(machine: Machine, below: tuple[Switch | Part, ...], distances: Distances, indent: str) -> Iterator[str]:
    for place, each in enumerate(below):
        last = place == len(below) - 1
        inner = indent + ("   " if last else "│  ")
        first, *more = _lines_of(machine, each, distances)
        yield f"{indent}{'└─' if last else '├─'} {first}"
        yield from (f"{inner}   {text}" for text in more)
        if isinstance(each, Switch):
            yield from _branches(machine, each.below, distances, inner)


def _lines_of(machine: Machine, each: Switch | Part, distances: Distances) -> list[str]:
    if isinstance(each, Switch):
        return [switch_text(each.device)]
    return _gpu(machine, each, distances) if isinstance(each, Gpu) else _nic(machine, each, distances)


def _gpu(machine: Machine, gpu: Gpu, distances: Distances) -> list[str]:
    address = [safe(gpu.address)] if gpu.address and gpu.index is not None else []
    head = "  ".join([gpu_name(gpu), *address, f"{gpu_model(gpu)}, {memory(gpu.memory_bytes)}", _slot(machine, gpu, distances)])
    return [head, *([text] if (text := links_text(machine, gpu)) else [])]


def _nic(machine: Machine, nic: Nic, distances: Distances) -> list[str]:
    address = [safe(nic.address)] if nic.address and nic.address != nic.name else []
    verbs = "RDMA" if nic.rdma else "no RDMA" if nic.model or nic.ports else "RDMA unknown"
    kind = f"{safe(nic.model or 'model unknown')}, {verbs}"
    interfaces = [f"interfaces {listed(map(safe, nic.interfaces))}"] if nic.interfaces not in ((), (nic.name,)) else []
    head = "  ".join([f"NIC {nic_name(nic)}", *address, kind, _slot(machine, nic, distances), *interfaces])
    return [head, *([port_text(port) for port in nic.ports] or [f"ports {unknown(machine, f'nics/{nic.key}/ports')}"])]


def _slot(machine: Machine, part: Part, distances: Distances) -> str:
    device = distances.device(part.address)
    if device is None:
        return f"PCIe {unknown(machine, f'pci/{part.address}') if part.address else 'unknown (no PCI address)'}"
    if device.virtual:
        return "PCIe link of a virtual function: unknown"
    text = pcie(device.link, isinstance(part, Gpu))
    return f"PCIe {unknown(machine, f'pci/{device.address}/link') if text == 'unknown' else text}"


def _virtual(machine: Machine) -> list[str]:
    names = [f"{nic_name(nic)} ({safe(nic.virtual)})" for nic in machine.nics if nic.virtual is not None]
    return [f"virtual interfaces: {listed(names, _MOST_VIRTUAL)}"] if names else []


def _gpudirect(machine: Machine, distances: Distances) -> list[str]:
    """One line per state and reason, with the GPUs and NICs it holds for."""
    if not machine.gpus or all(nic.virtual is not None for nic in machine.nics):
        return []
    groups: defaultdict[Capability, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for gpu in machine.gpus:
        for found, nics in _near(machine, gpu, distances).items():
            groups[found][listed(nics)].append(gpu_name(gpu))
    return [f"{found.state}: {safe(found.why)}: {'; '.join(map(_pairs, by_nics, by_nics.values()))}" for found, by_nics in groups.items()]


def _near(machine: Machine, gpu: Gpu, distances: Distances) -> dict[Capability, list[str]]:
    """The states of a GPU with its nearest NICs; with none, that no path is known."""
    near = distances.near_nics(gpu.key)
    states: defaultdict[Capability, list[str]] = defaultdict(list)
    for nic in near:
        states[capability(machine, gpu, nic, distances=distances)].append(nic_name(nic))
    return states if near else {_no_near(machine, gpu, distances): []}


def _pairs(nics: str, gpus: list[str]) -> str:
    names = listed([gpus[0], *(name.removeprefix("GPU ") for name in gpus[1:])], 32)
    return f"{names} with {nics}" if nics else names


def _no_near(machine: Machine, gpu: Gpu, distances: Distances) -> Capability:
    nic = next(nic for nic in machine.nics if nic.virtual is None)
    return Capability("unknown", f"no path to a NIC is known ({distances.why_unknown(gpu.key, nic.key)})")


def _reasons(machine: Machine) -> list[str]:
    """Each reason once, with the facts it holds for; not those that the tree tells where they are missing."""
    told = {"gpus" if not machine.gpus else "", *(f"nics/{nic.key}/ports" for nic in machine.nics if not nic.ports)}
    paths: defaultdict[str, list[str]] = defaultdict(list)
    for path, why in machine.unknown.items():
        if path not in told:
            paths[why].append(safe(path))
    return [f"{listed(facts, 8)}: {safe(why)}" for why, facts in paths.items()]


def _disagreements(machine: Machine) -> list[str]:
    return [
        f"{safe(each.path)}: {safe(each.taken)} ({safe(each.taken_from)}) taken, not {safe(each.other)} ({safe(each.other_from)})"
        for each in machine.disagreements
    ]


def _section(title: str, texts: Iterable[str]) -> list[Line]:
    found = [Line(f"  {text}") for text in texts]
    return [Line(f"{title}:", "head"), *found] if found else []
