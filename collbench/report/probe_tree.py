"""A machine as a tree of text: NUMA nodes, PCIe switches, GPUs and NICs with their links, and what is unknown with its reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from collbench.machine.distance import Capability, Distances, capability
from collbench.machine.model import Gpu, Machine, Nic, PciDevice, PcieLink
from collbench.report.probe_layout import Domain, Part, Switch, arrange
from collbench.report.probe_unknown import disagreement_lines, unknown_lines
from collbench.report.probe_words import (
    c2c_text,
    gigabits,
    gpu_model,
    gpu_name,
    gpus_text,
    links_text,
    listed,
    memory,
    nic_name,
    nics_text,
    numa_text,
    pcie,
    port_text,
    safe,
    switch_text,
    system_text,
    unknown,
)
from collbench.report.table import Line

_MOST_VIRTUAL = 12
_MOST_ALIKE = 16


def tree_lines(machine: Machine) -> Iterator[Line]:
    """The machine, line by line, never cut. Names from outside are made printable; figures keep their units."""
    distances = Distances(machine)
    yield Line(title(machine), "head")
    yield from (Line(f"  {', '.join(text)}") for text in [system_text(machine.system)] if text)
    domains = arrange(machine, distances)
    for place, domain in enumerate(domains):
        yield from _domain(machine, domain, distances, last=place == len(domains) - 1)
    yield from (Line(text) for text in _virtual(machine))
    yield from _section("GPUDirect RDMA (a GPU and its nearest NICs)", _gpudirect(machine, distances))
    yield from _section("unknown", unknown_lines(machine))
    yield from _section("doubts", [safe(doubt, 1000) for doubt in machine.doubts])
    yield from _section("sources disagree", disagreement_lines(machine))
    yield Line(f"read from: {'; '.join(map(safe, machine.sources)) or 'nothing'}", "foot")


def title(machine: Machine, name: str | None = None) -> str:
    """What somebody wants to know first: "node1: 8 × H100 80GB HBM3, 8 NICs at 400 Gb/s InfiniBand"; `name` in place of its own."""
    return f"{name or safe(machine.hostname or 'host name unknown')}: {gpus_text(machine)}, {nics_text(machine)}"


def _domain(machine: Machine, domain: Domain, distances: Distances, last: bool) -> Iterator[Line]:
    yield Line(f"{'└─' if last else '├─'} {numa_text(domain.node, machine)}")
    yield from (Line(text) for text in _branches(machine, domain.below, distances, "   " if last else "│  "))


def part_texts(machine: Machine) -> dict[str, str]:
    """Each GPU, NIC and its ports in one line, by key, as the tree tells them: to find what tells two machines apart."""
    distances = Distances(machine)
    parts: list[Part] = [*machine.gpus, *(nic for nic in machine.nics if nic.virtual is None)]
    return {part.key: "; ".join(_lines_of(machine, part, distances)) for part in parts}


def _branches(machine: Machine, below: tuple[Switch | Part, ...], distances: Distances, indent: str) -> Iterator[str]:
    told = list(_alike(machine, below, distances))
    for place, (each, lines) in enumerate(told):
        last = place == len(told) - 1
        inner = indent + ("   " if last else "│  ")
        first, *more = lines
        yield f"{indent}{'└─' if last else '├─'} {first}"
        yield from (f"{inner}   {text}" for text in more)
        if isinstance(each, Switch):
            yield from _branches(machine, each.below, distances, inner)


def _alike(machine: Machine, below: tuple[Switch | Part, ...], distances: Distances) -> Iterator[tuple[Switch | Part, list[str]]]:
    """Each with its lines; parts without an address of which the same is known (often next to nothing) once, with all their names."""
    told = [(each, _lines_of(machine, each, distances)) for each in below]
    for _, group in groupby(told, lambda one: _but_its_name(*one)):
        (each, (first, *more)), *others = group
        name, _, rest = first.partition("  ")
        kind = name.partition(" ")[0]
        names = listed([name, *(lines[0].partition("  ")[0].removeprefix(f"{kind} ") for _, lines in others)], _MOST_ALIKE)
        yield each, [f"{names}  {rest}" if others else first, *more]


def _but_its_name(each: Switch | Part, lines: list[str]) -> object:
    """What parts must share to be told as one."""
    return id(each) if isinstance(each, Switch) or each.address else (type(each), lines[0].partition("  ")[2], *lines[1:])


def _lines_of(machine: Machine, each: Switch | Part, distances: Distances) -> list[str]:
    if isinstance(each, Switch):
        return [switch_text(each.device)]
    return _gpu(machine, each, distances) if isinstance(each, Gpu) else _nic(machine, each, distances)


def _gpu(machine: Machine, gpu: Gpu, distances: Distances) -> list[str]:
    address = [safe(gpu.address)] if gpu.address and gpu.index is not None else []
    head = "  ".join([gpu_name(gpu), *address, f"{gpu_model(gpu)}, {memory(gpu.memory_bytes)}", _slot(machine, gpu, distances)])
    return [head, *(text for text in (links_text(machine, gpu), c2c_text(gpu)) if text)]


def _nic(machine: Machine, nic: Nic, distances: Distances) -> list[str]:
    address = [safe(nic.address)] if nic.address and nic.address != nic.name else []
    without = "no RDMA device (driver not loaded)" if nic.rdma_missing else "no RDMA" if nic.model or nic.ports else "RDMA unknown"
    verbs = "RDMA" if nic.rdma else without
    kind = f"{safe(nic.model or 'model unknown')}, {verbs}"
    interfaces = f" ({listed(map(safe, nic.interfaces))})" if nic.interfaces not in ((), (nic.name,)) else ""
    head = "  ".join([f"NIC {nic_name(nic)}{interfaces}", *address, kind, _slot(machine, nic, distances)])
    return [head, *([port_text(port) for port in nic.ports] or [f"ports {unknown(machine, f'nics/{nic.key}/ports')}"])]


def _slot(machine: Machine, part: Part, distances: Distances) -> str:
    device = distances.device(part.address)
    if device is None:
        return f"PCIe {unknown(machine, f'pci/{part.address}') if part.address else 'unknown (no PCI address)'}"
    if device.virtual:
        return "PCIe link of a virtual function: unknown"
    text = pcie(_possible(device, distances), isinstance(part, Gpu))
    return f"PCIe {unknown(machine, f'pci/{device.address}/link') if text == 'unknown' else text}"


def _possible(device: PciDevice, distances: Distances) -> PcieLink:
    """The link of a device with what both ends can do as its most: a card in a smaller slot is not downtrained."""
    above, own = distances.device(device.parent), device.link
    if above is None or above.virtual:
        return own
    speeds = [each for each in (own.max_speed_gt_per_s, above.link.max_speed_gt_per_s) if each]
    widths = [each for each in (own.max_width, above.link.max_width) if each]
    return replace(
        own,
        max_speed_gt_per_s=min(speeds) if own.max_speed_gt_per_s else None,
        max_width=min(widths) if own.max_width else None,
    )


def _virtual(machine: Machine) -> list[str]:
    """Interfaces that are no port of the machine: those whose speed is nobody's, and those that other ports carry."""
    kinds: dict[bool, defaultdict[str, list[str]]] = {False: defaultdict(list), True: defaultdict(list)}
    for nic in (nic for nic in machine.nics if nic.virtual is not None):
        known = [gigabits(port.rate_bits_per_s) for port in nic.ports if port.rate_bits_per_s is not None]
        shaped = [f"shaped to {gigabits(port.shaped_bits_per_s)}" for port in nic.ports if port.shaped_bits_per_s is not None]
        kinds[bool(known)][", ".join([safe(nic.virtual or ""), *known, *shaped])].append(nic_name(nic))
    titles = {False: "interfaces that tell no speed", True: "interfaces made of others"}
    told = {known: [f"{listed(names, _MOST_VIRTUAL)} ({kind})" for kind, names in found.items()] for known, found in kinds.items()}
    return [f"{titles[known]}: {', '.join(texts)}" for known, texts in told.items() if texts]


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


def _section(title: str, texts: Iterable[str]) -> list[Line]:
    found = [Line(f"  {text}") for text in texts]
    return [Line(f"{title}:", "head"), *found] if found else []
