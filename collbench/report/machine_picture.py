"""A machine as a picture (SVG): NUMA nodes with their switches, GPUs and NICs; lines as wide as their links are fast.

What is slower than it could be, or down, is dashed or hatched and says so in words: colour alone tells nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from collbench.machine.distance import Distances
from collbench.machine.model import Gpu, Machine, Nic, Port
from collbench.report.probe_layout import Domain, Switch, arrange, first_parts
from collbench.report.probe_places import CARD, HEADER, PAD, Box, Plan, Planner, Wire
from collbench.report.probe_svg import BOLD, curve, document, fitting, rect, tag, text, text_width
from collbench.report.probe_wires import gpu_links
from collbench.report.probe_words import (
    gigatransfers_in_all,
    gpu_model,
    gpu_name,
    idle,
    links_text,
    listed,
    memory,
    nic_name,
    numa_text,
    pcie,
    pcie_short,
    port_rate,
    port_state,
    port_text,
    safe,
    slower,
    switch_text,
    system_text,
)

MOST_PARTS = 96


def picture(machine: Machine, limiting: frozenset[str] = frozenset()) -> str:
    """The machine as one SVG document.

    `limiting` marks what limits: NICs by name (their ports), PCIe links by the address of the device below them (of a GPU its key),
    GPU links by `GpuLink.key`. Of a machine with more than 96 GPUs and NICs the first ones are drawn, and it says so.
    """
    distances = Distances(machine)
    drawn = first_parts(machine, MOST_PARTS)
    domains = arrange(drawn, distances)
    empty = [domain for domain in domains if not domain.below]
    shown = [domain for domain in domains if domain.below] or domains[:8]
    plan = Planner(shown, {device.address: device for device in machine.pci}).plan
    plan.width = max(plan.width, min(900, 48 + round(max(map(text_width, system_text(machine.system)), default=0.0))))
    links, bottom = gpu_links(drawn, plan, limiting)
    body = [
        *_head(machine, plan.width),
        *_domains(plan, machine),
        *_wires(plan, limiting),
        *_boxes(plan),
        *links,
        *_parts(plan, machine, limiting),
    ]
    left_out = len(machine.gpus) + len(machine.nics) - len(drawn.gpus) - len(drawn.nics)
    notes = list(_notes(empty if len(empty) < len(domains) else [], left_out, plan, machine))
    body += [text(20, bottom + 22 + 17 * place, note, "small", room=plan.width - 40, size=10.5) for place, note in enumerate(notes)]
    return document(plan.width, bottom + 22 + 17 * len(notes), _title(machine), _description(machine), body)


def _title(machine: Machine) -> str:
    return safe(machine.hostname) if machine.hostname else "machine without a name"


def _description(machine: Machine) -> str:
    gpus = [f"{gpu_name(gpu)}: {gpu_model(gpu)}. {links_text(machine, gpu)}" for gpu in machine.gpus[:16]]
    nics = [f"{nic_name(nic)}: {'; '.join(map(port_text, nic.ports))}" for nic in machine.nics[:32] if nic.virtual is None]
    return f"{len(machine.numa_nodes)} NUMA nodes, {len(machine.gpus)} GPUs, {len(machine.nics)} NICs. " + ". ".join([*gpus, *nics])


def _head(machine: Machine, width: float) -> Iterator[str]:
    yield text(20, 34, _title(machine), "h1", room=width - 40, size=18)
    about = system_text(machine.system) or ["nothing is known of its processors"]
    for place, words in enumerate(about):
        yield text(20, 56 + 18 * place, words, "soft", room=width - 40)


def _domains(plan: Plan, machine: Machine) -> Iterator[str]:
    for domain, box in plan.domains:
        name, _, about = numa_text(domain.node, machine).partition(": ")
        yield rect(box, "panel", radius=12)
        yield rect(Box(box.x + PAD, box.y + PAD, box.width - 2 * PAD, HEADER), "cpu")
        yield text(box.middle, box.y + 38, name, "name mid", room=box.width - 40, size=BOLD)
        yield text(box.middle, box.y + 56, _that_fits([about, about.partition(", ")[0]], box.width - 38), "soft mid", room=box.width - 38)
        if not domain.below:
            yield text(box.middle, box.y + 92, "no GPU, no NIC", "small mid")


def _wires(plan: Plan, limiting: frozenset[str]) -> Iterator[str]:
    for wire in plan.wires:
        line = f"M{wire.x:g} {wire.above:g}V{wire.below:g}"
        link = wire.device.link if wire.device and not wire.device.virtual else None
        rate = gigatransfers_in_all(link) if link else None
        bad = link is not None and slower(link) and not idle(link, wire.gpu)
        width = 1.2 + 5.8 * min(1.0, (rate / 1024) ** 0.5) if rate else 1.6
        limits = wire.address in limiting
        if limits:
            yield curve(line, width + 9, "halo")
        yield curve(
            line, width, f"wire{' slow' if bad else ''}{'' if rate else ' dim'}", f"PCIe {pcie(link, wire.gpu) if link else 'unknown'}"
        )
        yield from _label(wire, bad, limits)


def _label(wire: Wire, bad: bool, limits: bool) -> Iterator[str]:
    link = wire.device.link if wire.device and not wire.device.virtual else None
    now, most = pcie_short(link) if link else ("", "")
    x, y = wire.x + 8, wire.label_at
    if now and bad:
        yield text(x, y - 11, now, "small bad") + text(x, y + 1, f"of {most}", "small bad")
    elif link and slower(link):
        yield text(x, y - 11, now, "small") + text(x, y + 1, "idle", "small")
    else:
        yield text(x, y, now or (f"≤{most}" if most else "?"), "small")
    if limits:
        yield tag(wire.x, y - 32 if bad else y - 18)


def _boxes(plan: Plan) -> Iterator[str]:
    for switch, box in plan.switches:
        yield rect(box, "switch", switch_text(switch.device))
        yield text(box.middle, box.y + 19.5, _switch_name(switch, box.width), "mid", room=box.width - 8)


def _switch_name(switch: Switch, room: float) -> str:
    address = safe(switch.device.address)
    short = address.removeprefix("0000:")
    return _that_fits([f"PCIe switch {address}", f"switch {short}", short], room - 8)


def _that_fits(choices: list[str], room: float, size: float = 12) -> str:
    """The first that needs no cutting; else the last."""
    return next((words for words in choices if fitting(words, room, size) == words), choices[-1])


def _parts(plan: Plan, machine: Machine, limiting: frozenset[str]) -> Iterator[str]:
    for part, box in plan.parts:
        if isinstance(part, Gpu):
            lines = [gpu_model(part), memory(part.memory_bytes)]
            yield from _card(box, "gpu", _gpu_name(part), lines, links_text(machine, part), bad=False)
        else:
            yield from _nic(part, box, part.key in limiting)


def _gpu_name(gpu: Gpu) -> str:
    name = gpu_name(gpu)
    return _that_fits([name, name.removeprefix("GPU "), name.removeprefix("GPU 0000:")], CARD - 8, BOLD)


def _nic(nic: Nic, box: Box, limits: bool) -> Iterator[str]:
    down = [port for port in nic.ports if port.state not in (None, "active")]
    name = _that_fits([nic_name(nic), nic_name(nic).removeprefix("0000:")], CARD - 8, BOLD)
    titles = "; ".join(map(port_text, nic.ports)) or "ports unknown"
    yield from _card(box, "nic", name, _port_lines(nic), f"{safe(nic.model or '')} {titles}", bad=bool(down), limits=limits)


def _port_lines(nic: Nic) -> list[str]:
    """Two lines for any number of ports: rates, then states."""
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
    return _that_fits([whole, short, short.replace("link layer unknown", "layer ?")], CARD - 6, 10.5)


def _card(box: Box, kind: str, name: str, lines: list[str], about: str, *, bad: bool, limits: bool = False) -> Iterator[str]:
    style = f"{kind}{' down' if bad else ''}{' limit' if limits else ''}"
    yield rect(box, style, f"{name}: {about}")
    if bad:
        yield rect(box, "hatch")
    yield text(box.middle, box.y + 20, name, "name mid", room=box.width - 8, size=BOLD)
    yield text(box.middle, box.y + 37, lines[0], "small mid", room=box.width - 6, size=10.5)
    yield text(box.middle, box.y + 52, lines[1], f"small mid{' bad' if bad else ''}", room=box.width - 6, size=10.5)
    if limits:
        yield tag(box.middle, box.y - 4)


def _notes(empty: list[Domain], left_out: int, plan: Plan, machine: Machine) -> Iterator[str]:
    """Below the picture: how to read it, and what is not in it."""
    if plan.wires:
        yield "Lines are as wide as their links are fast; dotted: unknown."
        yield "Dashed, and told in words: slower than the device could be, or down."
    nodes = ", ".join(str(domain.node.id) for domain in empty if domain.node)
    if nodes:
        yield f"Without GPU or NIC: NUMA {'nodes' if ',' in nodes else 'node'} {nodes}."
    virtual = [nic_name(nic) for nic in machine.nics if nic.virtual is not None]
    if virtual:
        yield f"Virtual interfaces are not drawn: {listed(virtual, 6)}."
    if left_out > len(virtual):
        yield f"{left_out - len(virtual)} more GPUs and NICs are not drawn."
