"""Drawings (SVG) of machines: NUMA nodes with their switches, GPUs and NICs; lines as wide as their links are fast.

A part that is down, or slower than its maximum, is dashed or hatched and has the reason as text: color alone has no meaning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from collbench.machine.distance import Distances
from collbench.machine.model import Gpu, Machine, Nic, Port
from collbench.machine.pcie_links import PcieLinks
from collbench.plugins.drawings.gpu_links import gpu_links
from collbench.plugins.drawings.layout import CARD, HEADER, PAD, PictureLayout
from collbench.plugins.drawings.svg import BOLD, Box, card, curve, document, first_that_fits, rect, tag, text, text_width
from collbench.report.machine import (
    Domain,
    arrange,
    gigatransfers_in_all,
    gpu_model,
    gpu_name,
    gpu_number,
    idle,
    links_text,
    memory,
    nic_name,
    numa_facts,
    pcie,
    pcie_short,
    port_rate,
    port_state,
    port_text,
    safe,
    shown_parts,
    slower,
    switch_text,
    system_text,
)
from collbench.units import first_of

MOST_PARTS = 96


class UsedInterface(msgspec.Struct, frozen=True):
    """What the picture shows of an interface that carried traffic or limits: its rate as text ("": that of its ports), and its mark."""

    rate: str
    mark: str = ""


def picture(machine: Machine, limiting: frozenset[str] = frozenset(), used: Mapping[str, UsedInterface] = MappingProxyType({})) -> str:
    """Return the machine as one SVG document.

    `limiting` are the parts to mark as limits: NICs by name (their ports), PCIe links by the address of the device below them (a GPU's by
    its key), GPU links by `GpuLink.key`. `used` has the interfaces that carried traffic by name: virtual ones are drawn only if they are
    among them. For a machine with more than 96 GPUs and NICs only the first ones are drawn, with a note.
    """
    distances = Distances(machine)
    gpus = machine.gpus[:MOST_PARTS]
    nics = [part for part in shown_parts(machine, used) if isinstance(part, Nic)]
    drawn = replace(machine, gpus=gpus, nics=tuple(nics[: MOST_PARTS - len(gpus)]))
    domains = arrange(drawn, distances, used)
    empty = [domain for domain in domains if not domain.below]
    shown = [domain for domain in domains if domain.below] or domains[:8]
    pcie_links = PcieLinks(machine)
    plan = PictureLayout(shown, {device.address: replace(device, link=pcie_links.of(device)) for device in machine.pci})
    plan.width = max(plan.width, min(900, 48 + round(max(map(text_width, system_text(machine.system)), default=0.0))))
    links, bottom = gpu_links(drawn, plan, limiting)
    name = safe(machine.hostname) if machine.hostname else "machine without a name"
    about = system_text(machine.system) or ["nothing is known of its processors"]
    boxes = []
    for switch, box in plan.switches:
        address = safe(switch.device.address)
        short = address.removeprefix("0000:")
        label = first_that_fits([f"PCIe switch {address}", f"switch {short}", short], box.width - 8)
        boxes.append(rect(box, "switch", switch_text(switch.device)))
        boxes.append(text(box.middle, box.y + 19.5, label, "mid", room=box.width - 8))
    body = [
        text(20, 34, name, "h1", room=plan.width - 40, size=18),
        *(text(20, 56 + 18 * place, words, "soft", room=plan.width - 40) for place, words in enumerate(about)),
        *_domains(plan, machine),
        *_wires(plan, limiting),
        *boxes,
        *links,
        *_parts(plan, machine, limiting, used),
    ]
    left_out = len(machine.gpus) + len(machine.nics) - len(drawn.gpus) - len(drawn.nics)
    hidden = [nic_name(nic) for nic in machine.nics if nic.virtual is not None and nic.name not in used]
    notes = list(_notes(empty if len(empty) < len(domains) else [], left_out, hidden, plan))
    body += [text(20, bottom + 22 + 17 * place, note, "small", room=plan.width - 40, size=10.5) for place, note in enumerate(notes)]
    parts = [f"{gpu_name(gpu)}: {gpu_model(gpu)}. {links_text(machine, gpu)}" for gpu in machine.gpus[:16]]
    parts += [f"{nic_name(nic)}: {'; '.join(map(port_text, nic.ports))}" for nic in drawn.nics[:32]]
    counts = f"{len(machine.numa_nodes)} NUMA nodes, {len(machine.gpus)} GPUs, {len(nics)} NICs"
    return document(plan.width, bottom + 22 + 17 * len(notes), name, f"{counts}. {'. '.join(parts)}", body)


def _domains(plan: PictureLayout, machine: Machine) -> Iterator[str]:
    for domain, box in plan.domains:
        name, *about = numa_facts(domain.node, machine)
        yield rect(box, "panel", radius=12)
        yield rect(Box(box.x + PAD, box.y + PAD, box.width - 2 * PAD, HEADER), "cpu")
        yield text(box.middle, box.y + 38, name, "name mid", room=box.width - 40, size=BOLD)
        yield text(box.middle, box.y + 56, first_that_fits([", ".join(about), *about[:1]], box.width - 38), "soft mid", room=box.width - 38)
        if not domain.below:
            is_virtual = any(nic.virtual for nic in machine.nics)
            yield text(box.middle, box.y + 92, f"no GPU, no{' physical' if is_virtual else ''} NIC", "small mid")


def _wires(plan: PictureLayout, limiting: frozenset[str]) -> Iterator[str]:
    for wire in plan.wires:
        line = f"M{wire.x:g} {wire.above:g}V{wire.below:g}"
        link = wire.device.link if wire.device and not wire.device.virtual else None
        rate = gigatransfers_in_all(link) if link else None
        bad = link is not None and slower(link) and not idle(link, wire.gpu)
        width = 1.2 + 5.8 * min(1.0, (rate / 1024) ** 0.5) if rate else 1.6
        style = f"wire{' slow' if bad else ''}{'' if rate else ' dim'}"
        if wire.is_virtual:
            yield curve(line, width, style)
            continue
        if wire.address in limiting:
            yield curve(line, width + 9, "halo")
        yield curve(line, width, style, f"PCIe {pcie(link, wire.gpu) if link else 'unknown'}")
        now, most = pcie_short(link) if link else ("", "")
        x, y = wire.x + 8, wire.label_at
        if now and bad:
            yield text(x, y - 11, now, "small bad") + text(x, y + 1, f"of {most}", "small bad")
        elif link and slower(link):
            yield text(x, y - 11, now, "small") + text(x, y + 1, "idle", "small")
        else:
            yield text(x, y, now or (f"≤{most}" if most else "?"), "small")
        if wire.address in limiting:
            yield tag(wire.x, y - 32 if bad else y - 18)


def _parts(plan: PictureLayout, machine: Machine, limiting: frozenset[str], used: Mapping[str, UsedInterface]) -> Iterator[str]:
    for part, box in plan.parts:
        if isinstance(part, Gpu):
            number = gpu_number(part)
            name = first_that_fits([f"GPU {number}", number, number.removeprefix("0000:")], CARD - 8, BOLD)
            yield from card(box, "gpu", name, [gpu_model(part), memory(part.memory_bytes)], links_text(machine, part))
        else:
            down = any(port.state not in (None, "active") for port in part.ports)
            name = first_that_fits([nic_name(part), nic_name(part).removeprefix("0000:")], CARD - 8, BOLD)
            about = f"{safe(part.model or '')} {'; '.join(map(port_text, part.ports)) or 'ports unknown'}"
            lines = _port_lines(part)
            mark = "limits" if part.key in limiting else ""
            if part.name in used:
                lines[0] = used[part.name].rate or lines[0]
                mark = used[part.name].mark or mark
            yield from card(box, "nic", name, lines, about, bad=down, mark=mark)


def _port_lines(nic: Nic) -> list[str]:
    """Return two lines for any number of ports: rates, then states."""
    if not nic.ports:
        return ["ports unknown", ""]
    shared = {(_rate(port), port_state(port)) for port in nic.ports}
    times = f"{len(nic.ports)} × " if len(nic.ports) > 1 and len(shared) == 1 else ""
    if times or len(nic.ports) == 1:
        return [times + _rate(nic.ports[0]), port_state(nic.ports[0])]
    return [f"{port.number}: {_rate(port)}, {port.state or 'state unknown'}" for port in nic.ports[:2]]


def _rate(port: Port) -> str:
    whole = port_rate(port)
    short = whole.replace("InfiniBand", "IB").replace("Ethernet", "Eth")
    return first_that_fits([whole, short, short.replace("link layer unknown", "layer ?")], CARD - 6, 10.5)


def _notes(empty: list[Domain], left_out: int, hidden: list[str], plan: PictureLayout) -> Iterator[str]:
    """Yield the lines below the picture: how to read it, and what it leaves out."""
    if plan.wires:
        yield "Lines are as wide as their links are fast; dotted: unknown."
        yield "Dashed, with the reason as text: slower than the device could be, or down."
    nodes = ", ".join(str(domain.node.id) for domain in empty if domain.node)
    if nodes:
        yield f"Without GPU or NIC: NUMA {'nodes' if ',' in nodes else 'node'} {nodes}."
    if hidden:
        yield f"Virtual interfaces are not drawn: {first_of(hidden, 6)}."
    if left_out > len(hidden):
        yield f"{left_out - len(hidden)} more GPUs and NICs are not drawn."
