"""Capacities of links: PCIe, NVLink and xGMI between GPUs, NICs and TCP, and their place in a machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf, isinf
from operator import attrgetter
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.machine.interfaces import Interface
from collbench.machine.merge import origin
from collbench.machine.model import SWITCH, Gpu, GpuLink, Machine, Nic, PciDevice, Port
from collbench.machine.pcie_links import PcieLinks
from collbench.machine.peak.limits import BridgeLimit, GpuLinkLimit, Limit, LimitPart, NicLimit, PcieLimit
from collbench.machine.peak.rates import Pcie, gpu_model, net_of_printed, nvlink, nvlink_of_rate, pcie, rates, xgmi
from collbench.machine.ports import SharedPort, nvlink_management, shared_ports
from collbench.machine.readers.pci import card_of, is_bridged, is_slingshot, is_with_cpu

# A capacity with its name: the element of every reference rate.

COUNTED = "counted"
OPTIONS = ("--nic", "--nvlink", "--pcie")
NCCL = "NCCL"
RCCL = "RCCL"


class Link(msgspec.Struct, frozen=True):
    """The capacity of one direction of a link, or of several links together.

    bytes_per_s         None when it is unknown, and then `name` is the reason
    name                as text: "NVLink 12×25 GB/s", "NIC 4×100 Gb/s", "PCIe Gen4 x16"
    source              "counted" from hardware, the option that set it ("--nic"), or the file that has it
    nccl_bytes_per_s    the rate that NCCL (for AMD: RCCL) reaches by its own constants; None when it has no constant for it
    library             the library of that constant: "NCCL" or "RCCL"
    part                the link as a value, of which `name` is the text; None if it is unknown or absent
    """

    bytes_per_s: float | None
    name: str
    source: str = COUNTED
    nccl_bytes_per_s: float | None = None
    library: str = NCCL
    part: Limit | None = None

    @classmethod
    def of(cls, bytes_per_s: float, part: Limit, source: str = COUNTED, nccl: float | None = None, library: str = NCCL) -> Link:
        """Return a link with the text of `part` as its name."""
        return cls(bytes_per_s, part.render(), source, nccl, library, part)

    @property
    def rate(self) -> float:
        """The rate; infinite when unknown, so that it limits nothing."""
        return inf if self.bytes_per_s is None else self.bytes_per_s

    def as_nccl_takes_it(self) -> Link:
        """Return the same link with NCCL's constant as its rate; without a constant the same rate."""
        return self if self.nccl_bytes_per_s is None else replace(self, bytes_per_s=self.nccl_bytes_per_s)

    def without_constants(self) -> Link:
        """Return the same link for a library other than NCCL and RCCL: what it reaches on the link is not known."""
        return replace(self, nccl_bytes_per_s=None)

    def divided(self, divisor: float, **conditions: Any) -> Link:
        """Return the link with its rate divided. `conditions`: fields of its part that give the reason, such as `fabric`."""
        nccl = None if self.nccl_bytes_per_s is None else self.nccl_bytes_per_s / divisor
        rate = None if self.bytes_per_s is None else self.bytes_per_s / divisor
        return replace(self.under(**conditions), bytes_per_s=rate, nccl_bytes_per_s=nccl)

    def under(self, **conditions: Any) -> Link:
        """Return the same link with other fields of its part."""
        part = None if self.part is None else self.part.of(**conditions)
        return replace(self, part=part, name=self.name if part is None else part.render())


def unknown(why: str) -> Link:
    """Return a link of unknown capacity, with the reason."""
    return Link(None, why)


# PCIe of a machine: the capacity of each device's link, and of the links above that devices share.

_IDLE = 2.5  # GT/s of idle GPUs and emulated bridges
_ROUNDING = 1e-9


class PcieTree:
    """The PCI devices of a machine by address. `doubts` collects values that were read and rejected as implausible."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.doubts: list[str] = []
        self._gpus = {gpu.key: gpu for gpu in machine.gpus}
        self._links = PcieLinks(machine)
        self.devices = self._links.devices
        self._fastest_below: dict[str, float] = {}
        for device in machine.pci:
            row = pcie(_speed(device))
            width = _width(device)
            if device.parent and row and width:
                self._fastest_below[device.parent] = max(row.bytes_per_s(width), self._fastest_below.get(device.parent, 0.0))

    def above(self, address: str | None) -> list[str]:
        """Return the addresses of the bridges above a device, nearest first."""
        return self._links.bridges_above(address)

    def above_gpu(self, key: str) -> list[str]:
        """Return the addresses of the bridges between a GPU and its CPU, nearest first; none if other links than PCIe connect them."""
        gpu = self._gpus[key]
        return [] if _is_on_cpu_module(gpu) or gpu.cpu_links else self.above(gpu.address)

    def has_place_of(self, key: str) -> bool:
        """Return whether it is known which links connect a GPU to its CPU."""
        gpu = self._gpus[key]
        return bool(_is_on_cpu_module(gpu) or gpu.cpu_links or gpu.address in self.devices)

    def of_device(self, address: str | None) -> Link:
        """Return the link of a GPU or NIC to the bridge above it, at the maximum speed of both ends and the current width."""
        device = self.devices.get(address or "")
        if device is None:
            links = f"link of {address} is" if address else "links are"
            return unknown(f"the PCIe {links} in none of the sources; give --pcie")
        row = self._generation(device)
        width = device.link.width or self._links.of(device).max_width
        if device.virtual or row is None or width is None:
            return unknown(f"the PCIe link of {device.address} shows no speed and width that mean anything; give --pcie")
        link = _of_generation(row, width, source_of(self.machine, f"pci/{device.address}/link"))
        return narrowest([link, *map(self._as_slot, self._links.of_card_alone(address))])

    def _as_slot(self, bridge: str) -> Link:
        """Return the link above a bridge as the link of the only card below it; unknown as of `shared`."""
        device = self.devices[bridge]
        row = pcie(_speed(device))
        if isinf(self.shared(bridge)) or row is None:
            return unknown(f"the rate of the PCIe link above {bridge} is unknown")
        return _of_generation(row, _width(device) or 1, source_of(self.machine, f"pci/{bridge}/link"))

    def of_gpu(self, gpu: Gpu) -> Link:
        """Return the link between a GPU and its CPU or switch. A speed or width above the capability of its model is rejected."""
        if gpu.cpu_links:
            return self._to_cpu(gpu, gpu.cpu_links)
        link = self.of_device(gpu.address)
        if _is_on_cpu_module(gpu):
            return unknown(f"{gpu.model or 'the GPU'} reaches its CPU and the NICs over NVLink-C2C, not over its PCIe link")
        model = gpu_model(gpu.model)
        device = self.devices.get(gpu.address or "")
        row = self._generation(device) if device else None
        if link.bytes_per_s is None or model is None or row is None or device is None:
            return link
        if row.generation > model.pcie_generation:
            self.doubts.append(f"{gpu.key}: PCIe Gen{row.generation} was read for a {gpu.model}, which supports Gen{model.pcie_generation}")
            return gen(model.pcie_generation, _width(device) or 16, link.source)
        return link

    def _to_cpu(self, gpu: Gpu, count: int) -> Link:
        """Return the NVLinks between a GPU and its CPU (POWER8, POWER9)."""
        row = nvlink(gpu.architecture, gpu.model, 0)
        rate = gpu.cpu_link_bytes_per_s or (row.gb_per_s * 1e9 if row else None)
        if rate is None:
            return unknown(f"the rate of the NVLinks between {gpu.key} and its CPU is unknown: no source has the GPU's model; give --pcie")
        nccl = count * rate * row.nccl_gb_per_s / row.gb_per_s if row else None
        part = GpuLinkLimit(link="NVLink", count=count, bytes_per_s=rate, way="cpu")
        return Link.of(count * rate, part, source_of(self.machine, f"gpus/{gpu.key}/cpu_links"), nccl)

    def shared(self, bridge: str) -> float:
        """Return the bytes per second of a bridge's upward link; infinity when unknown, virtual, or implausibly slow."""
        device = self.devices[bridge]
        max_speed = device.link.max_speed_gt_per_s
        speed = _speed(device)
        width = _width(device)
        row = pcie(speed)
        if row is None or not width or device.virtual or (speed == _IDLE and max_speed is None):
            return inf
        rate = row.bytes_per_s(width)
        if rate < self._fastest_below.get(bridge, 0.0) and (max_speed is None or speed == _IDLE):
            self.doubts.append(f"{bridge}: {speed:g} GT/s x{width} above faster devices is not taken literally")
            return inf
        return rate

    def uplink(self, bridge: str) -> Link:
        """Return a bridge's upward link, which all devices below it share; without a rate where `shared` is infinite."""
        rate = self.shared(bridge)
        row = pcie(_speed(self.devices[bridge]))
        if isinf(rate) or row is None:
            return unknown(f"the rate of the PCIe link above {bridge} is unknown")
        nccl = rate * row.nccl_bytes_per_s(16) / row.bytes_per_s(16)
        return Link.of(rate, BridgeLimit(address=bridge), source_of(self.machine, f"pci/{bridge}/link"), nccl)

    def between(self, a: str, b: str) -> list[Link]:
        """Return the links above bridges that data passes from one GPU to another over PCIe; not the GPUs' own links."""
        up = self.above_gpu(a)
        down = self.above_gpu(b)
        return [self.uplink(bridge) for bridge in (*up, *down) if (bridge in up) != (bridge in down)]

    def _generation(self, device: PciDevice) -> Pcie | None:
        """Return the generation at the maximum speed of both ends; None when it is unknown."""
        speed = _speed(device)
        if speed == _IDLE and device.link.max_speed_gt_per_s is None:
            return None
        port = self._links.port_above(device)
        port_speed = port.link.max_speed_gt_per_s if port and not port.virtual else None
        return pcie(min(speed, port_speed) if speed and port_speed and port_speed > _IDLE else speed)


def _is_on_cpu_module(gpu: Gpu) -> bool:
    """Return whether the GPU is on a module with its CPU, which it reaches over NVLink-C2C."""
    model = gpu_model(gpu.model)
    return bool((model and model.c2c) or is_with_cpu(gpu.model) or gpu.c2c_links)


def gen(generation: int, lanes: int, source: str) -> Link:
    """Return a PCIe link of this generation and width, as set with an option."""
    return _of_generation(next(row for row in rates().pcie if row.generation == generation), lanes, source)


def narrowest(links: Iterable[Link]) -> Link:
    """Return the slowest of the known links; when none is known, the first."""
    return min(links, key=lambda link: link.rate)


def _of_generation(row: Pcie, lanes: int, source: str) -> Link:
    return Link.of(row.bytes_per_s(lanes), PcieLimit(generation=row.generation, lanes=lanes), source, row.nccl_bytes_per_s(lanes))


def _speed(device: PciDevice) -> float | None:
    return device.link.max_speed_gt_per_s or device.link.speed_gt_per_s


def _width(device: PciDevice) -> int | None:
    return device.link.width or device.link.max_width


def source_of(machine: Machine, path: str) -> str:
    """Return the source of a fact of the machine, as text for users."""
    return origin(machine, path) or ", ".join(machine.sources) or "probed"


_MOST_LINKS = 18  # of any GPU so far; more in a row of a matrix mean a switch, counted once per peer
_KINDS: Mapping[str, Literal["NVLink", "xGMI"]] = {"nvlink": "NVLink", "xgmi": "xGMI"}


class Wires(msgspec.Struct):
    """Link rates in bytes per second of one direction: `mesh[a][b]` between GPUs of the job, `switch[a]` into a switch that all share.

    one_link    the rate of one link, for each GPU that has any; its `Link` has NCCL's constant
    count       links of each GPU to others of the job; `into_switch`: those of them to the switch
    doubts      values that were read and rejected as implausible
    """

    mesh: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    switch: dict[str, float] = msgspec.field(default_factory=dict)
    one_link: dict[str, Link] = msgspec.field(default_factory=dict)
    count: dict[str, int] = msgspec.field(default_factory=dict)
    into_switch: dict[str, int] = msgspec.field(default_factory=dict)
    kind: Literal["NVLink", "xGMI"] = "NVLink"
    doubts: list[str] = msgspec.field(default_factory=list)

    def out_of(self, gpu: str) -> Link:
        """Return all links of a GPU to other GPUs of the job, as one link."""
        one_link = self.one_link.get(gpu)
        count = self.count.get(gpu, 0)
        if one_link is None or not count:
            return Link(0.0, "no link between GPUs")
        return self.together(one_link, count, "gpu")

    def together(self, one_link: Link, count: int, way: Literal["gpu", "pair"]) -> Link:
        """Return this number of equal links as one link; way: of a GPU to all others, or of a pair of GPUs."""
        if one_link.bytes_per_s is None:
            return one_link
        part = GpuLinkLimit(link=self.kind, count=count, bytes_per_s=one_link.bytes_per_s, way=way)
        nccl = None if one_link.nccl_bytes_per_s is None else count * one_link.nccl_bytes_per_s
        return Link.of(count * one_link.bytes_per_s, part, one_link.source, nccl, one_link.library)

    def through_third_gpu(self, a: str, b: str) -> float:
        """Return the rate from a to b over all paths through one other GPU."""
        return sum(min(rate, self.mesh[c].get(b, 0.0)) for c, rate in self.mesh.get(a, {}).items() if c in self.mesh)

    def groups(self, keys: Sequence[str]) -> list[list[str]]:
        """Return the groups of GPUs that reach each other over these links, in the order of `keys`."""
        parent = {key: key for key in keys}

        def root(key: str) -> str:
            while parent[key] != key:
                parent[key] = key = parent[parent[key]]
            return key

        on_switch = [key for key in keys if key in self.switch]
        for key in on_switch[1:]:
            parent[root(key)] = root(on_switch[0])
        for a, peers in self.mesh.items():
            for b in peers:
                parent[root(a)] = root(b)
        members: dict[str, list[str]] = {}
        for key in keys:
            members.setdefault(root(key), []).append(key)
        return list(members.values())


def uncounted(machine: Machine, keys: Sequence[str]) -> str | None:
    """Return why it is unknown whether these GPUs are linked; None when a source that counts links was read."""
    chosen = set(keys)
    has_paths = any(a in chosen and b in chosen and a != b for a, b in machine.paths)
    if machine.gpu_links:
        linked = {end for link in machine.gpu_links for end in (link.a, link.b)}
        missing = [key for key in keys if key not in linked]
        to_switch = any(link.count > 0 and link.b in (SWITCH, None) and link.a in keys for link in machine.gpu_links)
        if missing and to_switch and not has_paths:
            return f"no source counts the links of {missing[0]}, and those of others lead to a switch; give --nvlink"
        return None
    gpus = [gpu for gpu in machine.gpus if gpu.key in chosen]
    if "gpu_links" not in machine.unknown and (has_paths or all(gpu.architecture for gpu in gpus)):
        return None
    why = machine.unknown.get("gpu_links", "none of the sources counts the links between the GPUs")
    source = "the output of `nvidia-smi topo -m`"
    if any(gpu.vendor == "amd" for gpu in gpus):
        source = "the machine's /sys/class/kfd (`collbench probe --gather`)"
    return f"{why}; add {source}, or give --nvlink or --pcie"


def wires_of(machine: Machine, keys: Sequence[str]) -> Wires:
    """Return the links among the GPUs with these keys. Links to other GPUs do not count."""
    gpus = {gpu.key: gpu for gpu in machine.gpus}
    chosen = set(keys)
    rows: dict[str, list[GpuLink]] = {}
    for link in machine.gpu_links:
        if link.count > 0:
            rows.setdefault(link.a, []).append(replace(link, count=max(link.count, _links_of_pair(link, gpus.get(link.a)))))
    wires = Wires(kind=next((_KINDS[row[0].kind] for row in rows.values()), "NVLink"))
    for key in keys:
        row = rows.get(key)
        if row:
            wires.one_link[key] = _one_link(machine, gpus[key], row)
            _add_links(wires, machine, gpus[key], row, chosen)
    # the other direction of links that only one end lists (a matrix with a missing row)
    for a, peers in list(wires.mesh.items()):
        for b, rate in peers.items():
            from_b = wires.mesh.setdefault(b, {})
            if a not in from_b:
                from_b[a] = rate
                wires.one_link.setdefault(b, wires.one_link[a])
                rate_of_link = wires.one_link[b].bytes_per_s
                wires.count[b] = wires.count.get(b, 0) + (round(rate / rate_of_link) if rate_of_link else 1)
    if len(wires.switch) == 1:
        (gpu,) = wires.switch  # links into a switch to which no other GPU of the job is connected
        del wires.switch[gpu]
        wires.count[gpu] -= wires.into_switch.pop(gpu)
    return wires


def _links_of_pair(link: GpuLink, gpu: Gpu | None) -> int:
    """Return the number of links of a pair of GPUs by their model; 0 where a source has the rate of a link, or the table has no number."""
    if gpu is None or link.kind != "xgmi" or link.b in (SWITCH, None) or link.bytes_per_s:
        return 0
    row = xgmi(gpu.architecture)
    return next((count for model, count in row.links_of_pair.items() if model in (gpu.model or "")), 0) if row else 0


def _one_link(machine: Machine, gpu: Gpu, row: Sequence[GpuLink]) -> Link:
    """Return the rate of one link of a GPU: as printed by a source, else by architecture, model or count."""
    kind = row[0].kind
    count = sum(link.count for link in row)
    if count > _MOST_LINKS:
        count = max(link.count for link in row)
    generation = nvlink(gpu.architecture, gpu.model, count) if kind == "nvlink" else None
    amd = xgmi(gpu.architecture) if kind == "xgmi" else None
    printed = min((link.bytes_per_s for link in row if link.bytes_per_s), default=None)
    by_table = generation or amd
    if printed:
        rate = net_of_printed(printed)
    elif by_table:
        rate = by_table.gb_per_s * 1e9
    else:
        return unknown(f"{_KINDS[kind]} ×{count}: no source has the GPU's model, so the rate of a link is unknown; add --nvlink")
    if generation is None and kind == "nvlink":
        generation = nvlink_of_rate(count * rate / 1e9)
    nccl = None
    if generation:
        nccl = generation.nccl_gb_per_s / generation.gb_per_s * rate
    elif amd:
        nccl = amd.rccl_gb_per_s / amd.gb_per_s * rate
    return Link(rate, _KINDS[kind], source_of(machine, f"gpu_links/{row[0].key}"), nccl, RCCL if amd else NCCL)


def _add_links(wires: Wires, machine: Machine, gpu: Gpu, row: Sequence[GpuLink], chosen: set[str]) -> None:
    """Add the links of a GPU to the mesh or the switch of `wires`."""
    rate = wires.one_link[gpu.key].bytes_per_s or 0.0
    to_peers = [link for link in row if link.b is not None and link.b not in (SWITCH, gpu.key)]
    to_switch = sum(link.count for link in row if link.b == SWITCH)
    if sum(link.count for link in to_peers) > _MOST_LINKS:
        to_switch = max(link.count for link in to_peers)
        to_peers = []
    unclear = sum(link.count for link in row if link.b is None or link.b == gpu.key)
    leads_back = any(link.b == gpu.key for link in row)
    if unclear and _reaches_all(wires, gpu, unclear, leads_back, max(len(machine.gpus), len(chosen))):
        to_switch += unclear
    if to_switch:
        wires.switch[gpu.key] = to_switch * rate
        wires.count[gpu.key] = wires.into_switch[gpu.key] = to_switch
    for link in to_peers:
        if link.b in chosen:
            peers = wires.mesh.setdefault(gpu.key, {})
            peers[str(link.b)] = peers.get(str(link.b), 0.0) + link.count * rate
            wires.count[gpu.key] = wires.count.get(gpu.key, 0) + link.count


def _reaches_all(wires: Wires, gpu: Gpu, count: int, leads_back: bool, gpus: int) -> bool:
    """Return whether links with unknown far ends lead to a switch. Cards with bridges to one other card do not."""
    model = gpu_model(gpu.model)
    bridged = is_bridged(gpu.model) or (model is not None and model.bridge)
    if (leads_back or bridged) and gpus > 2:
        why = f"those of {gpu.model} lead to one other card, and no source shows to which"
        if leads_back:
            why = "the source shows that they lead back to the GPU"
        wires.doubts.append(f"{wires.kind}s are not counted ({count} of each GPU): {why}")
        return False
    wires.doubts.append(f"no source shows where the {wires.kind}s lead; assumed: to every GPU")
    return True


# TCP rate of a host: its interface's rate without the headers.

_HEADERS = 52  # IPv4 20, TCP 20, timestamps 12: headers in a packet of MTU bytes
_FRAME = 14  # Ethernet header, which a token bucket counts
_WIRE = 38  # header, checksum, preamble and gap, which use time on the wire


def tcp_efficiency(mtu: int, shaped: bool) -> float:
    """Return the payload per byte that a NIC (or a token bucket) counts: 94.1 % at MTU 1500 on the wire, 95.6 % of a shaped rate."""
    return (mtu - _HEADERS) / (mtu + (_FRAME if shaped else _WIRE))


def tcp_link(interface: Interface) -> Link:
    """Return the TCP payload rate of an interface; unknown, with the reason, for virtual ones without a shaper."""
    bits_per_s = interface.shaped_bits_per_s or interface.speed_bits_per_s
    if not bits_per_s:
        why = f"{interface.virtual} has no speed of its own" if interface.virtual else "the kernel does not report its speed"
        return unknown(f"interface {interface.name}: {why}; give one with --ceiling GB/s")
    shaped = bool(interface.shaped_bits_per_s)
    source = f"tc qdisc on {interface.name}" if shaped else f"/sys/class/net/{interface.name}/speed"
    part = NicLimit(ports=((1, bits_per_s),), interface=interface.name)
    return Link.of(bits_per_s / 8 * tcp_efficiency(interface.mtu, shaped), part, source)


# Egress of a node: the NICs that carry its traffic, each limited by its slot.

_DOWN = frozenset({"disabled", "polling", "sleep", "down"})
_OTHER_FABRIC = 0.5  # an Ethernet port below half the fastest port's rate is for storage or management


def nccl_of_nics(bytes_per_s: float) -> float:
    """Return what NCCL's channels take of the data rate of NICs."""
    return rates().algorithms.nic * bytes_per_s


class NicRate(msgspec.Struct, frozen=True):
    """A slot with its NIC: rates of the active ports in bits per second, the payload fraction, and the slot's capacity."""

    names: tuple[str, ...]
    address: str | None
    port_bits_per_s: tuple[float, ...]
    payload: float
    slot: Link

    @property
    def name(self) -> str:
        """The names of the card's functions: "mlx5_0+mlx5_1"."""
        return "+".join(self.names)

    @property
    def wire(self) -> float:
        """The payload of all ports together, in bytes per second."""
        return sum(self.port_bits_per_s) / 8 * self.payload

    @property
    def link(self) -> Link:
        """The slower of ports and slot."""
        nccl = min(self.wire, nccl_of_nics(sum(self.port_bits_per_s) / 8), self.slot.nccl_bytes_per_s or inf)
        return Link(min(self.wire, self.slot.rate), self.name, nccl_bytes_per_s=nccl)


class Egress(msgspec.Struct, frozen=True):
    """All NICs together, one entry per slot, with doubts and NICs that were left out."""

    link: Link
    nics: tuple[NicRate, ...] = ()
    doubts: tuple[str, ...] = ()


def egress_of(machine: Machine, tree: PcieTree) -> Egress:
    """Return the sum over slots of min(ports, slot), one direction; unknown, with the reason, when a counted NIC has no rate."""
    management = nvlink_management(machine)
    candidates = [nic for nic in machine.nics if not nic.virtual and nic.name not in management and any(map(_is_up, nic.ports))]
    if not candidates:
        return Egress(unknown(_why_no_nic(machine, management)))
    # InfiniBand, else RDMA over Ethernet, else one plain interface
    infiniband = [nic for nic in candidates if any(port.link_layer == "infiniband" and _is_up(port) for port in nic.ports)]
    rdma = [nic for nic in candidates if has_rdma(nic, tree)]
    fabric = infiniband or _fastest(rdma) or _fastest(candidates)[:1]
    why = "slower, or without RDMA" if rdma else "TCP takes one interface"
    if infiniband:
        why = "Ethernet, while InfiniBand is up"
    others = ", ".join(nic.name for nic in candidates if nic not in fabric)
    shared = shared_ports(machine)
    doubts = tuple(_doubts_of_nics(machine, fabric, management, shared))
    if others:
        doubts = (f"not counted: {others} ({why})", *doubts)
    without_rate = next(((nic, port) for nic in fabric for port in nic.ports if _is_up(port) and not _bits_per_s(port)), None)
    if without_rate:
        nic, port = without_rate
        why = machine.unknown.get(f"nics/{nic.key}/ports/{port.number}/rate_bits_per_s") or "its rate is in none of the sources"
        return Egress(unknown(f"NIC {nic.name}: {why}; give one with --nic"), (), doubts)
    slots = _by_slot(fabric, tree, [port for port in shared if port.certain])
    return Egress(_all_slots(slots, source_of(machine, f"nics/{fabric[0].key}/ports")), slots, doubts)


def _doubts_of_nics(machine: Machine, fabric: Sequence[Nic], management: Sequence[str], shared: Sequence[SharedPort]) -> Iterator[str]:
    if management:
        yield f"not counted: {_text_of_management(management)}"
    names = {nic.name for nic in fabric}
    counted = [port for port in shared if names.issuperset(port.names)]
    as_one = "; ".join(" and ".join(port.names) for port in counted if port.certain)
    as_two = "; ".join(" and ".join(port.names) for port in counted if not port.certain)
    if as_one:
        yield f"counted as one port, by the GUID or place of their card: {as_one}"
    if as_two:
        yield f"counted as two ports, which may be one port with two PCIe functions: {as_two}; give --nic if so"
    without_rdma = [nic.name for nic in machine.nics if nic.rdma_missing]
    if without_rdma:
        yield f"{', '.join(without_rdma)}: RDMA cards without an RDMA device (a driver is not loaded): with them the rate may be another"
    without_ports = [nic.name for nic in machine.nics if not nic.virtual and not nic.ports and not nic.rdma_missing]
    if without_ports:
        yield f"not counted: {', '.join(without_ports)} (no source lists their ports)"


def _all_slots(slots: Sequence[NicRate], source: str) -> Link:
    """Return the NICs of all slots as one link."""
    links = [slot.link for slot in slots]
    total = sum(link.rate for link in links)
    port_rates = Counter(rate for slot in slots for rate in slot.port_bits_per_s)
    slot_limits: dict[str, Limit | None] = {}
    if total < 0.999 * sum(slot.wire for slot in slots):
        slot_limits = {slot.slot.name: slot.slot.part for slot in slots if slot.slot.bytes_per_s}
    part = NicLimit(
        ports=tuple((count, rate) for rate, count in sorted(port_rates.items(), reverse=True)),
        interface=slots[0].name if len(slots) == 1 and slots[0].payload < 1 else None,
        slots=tuple(limit for _, limit in sorted(slot_limits.items()) if isinstance(limit, PcieLimit)),
    )
    return Link.of(total, part, source, sum(link.as_nccl_takes_it().rate for link in links))


def _text_of_management(names: Sequence[str]) -> str:
    return f"{', '.join(names)} (ports to the NVLink switches, for their management)"


def _why_no_nic(machine: Machine, management: Sequence[str]) -> str:
    if not machine.nics:
        return "no source lists a NIC; add --nic"
    if any(not nic.virtual and not nic.ports for nic in machine.nics):
        return "the NICs' rates are in none of the sources; give them with --nic"
    down = [nic.name for nic in machine.nics if not nic.virtual and nic.name not in management]
    if not down:
        return f"NIC {machine.nics[0].name} is {machine.nics[0].virtual}: no rate of its own"
    uncounted_ports = f"; not counted: {_text_of_management(management)}" if management else ""
    return f"no port is up: {', '.join(down)}{uncounted_ports}"


def _is_up(port: Port) -> bool:
    return port.state in (None, "active") and (port.phys_state or "") not in _DOWN


def has_rdma(nic: Nic, tree: PcieTree) -> bool:
    """Return whether libraries send over a NIC by RDMA: with an RDMA device, or as Slingshot's, which has none."""
    return bool(nic.rdma or nic.gdr or is_slingshot(tree.devices.get(nic.address or "")))


def _bits_per_s(port: Port) -> float | None:
    return min((rate for rate in (port.rate_bits_per_s, port.shaped_bits_per_s) if rate), default=None)


def _fastest(nics: Sequence[Nic]) -> list[Nic]:
    """Return the NICs of the fastest fabric, the fastest first; all NICs when a rate is missing."""
    rate_of = {nic.key: sum(_bits_per_s(port) or 0.0 for port in nic.ports if _is_up(port)) for nic in nics}
    if not all(rate_of.values()):
        return list(nics)
    highest = max(rate_of.values(), default=0.0)
    return sorted((nic for nic in nics if rate_of[nic.key] >= highest * _OTHER_FABRIC), key=lambda nic: -rate_of[nic.key])


def _by_slot(nics: Iterable[Nic], tree: PcieTree, shared: Sequence[SharedPort]) -> tuple[NicRate, ...]:
    """Return the NICs grouped by card. Functions of one card share its slots; that of virtual functions is unknown.

    shared    devices that are one port: their card has a slot for each
    """
    first_of = {name: port.names[0] for port in shared for name in port.names}
    slot_of = {nic.name: _slot_name(nic, tree) for nic in nics}
    cards: dict[str, list[Nic]] = {}
    for nic in nics:
        first = first_of.get(nic.name, nic.name)
        cards.setdefault(slot_of.get(first, slot_of[nic.name]), []).append(nic)
    return tuple(_card(card, tree, first_of) for card in cards.values())


def _slot_name(nic: Nic, tree: PcieTree) -> str:
    device = tree.devices.get(nic.address or "")
    if nic.address is None or device is None or device.virtual:
        return nic.address or nic.name
    return card_of(nic.address)


def _card(card: Sequence[Nic], tree: PcieTree, first_of: Mapping[str, str]) -> NicRate:
    counted = {first_of.get(nic.name, nic.name): nic for nic in reversed(card)}.values()
    rates_of_ports = [_bits_per_s(port) for nic in card if nic in counted for port in nic.ports if _is_up(port)]
    port_bits_per_s = tuple(rate for rate in rates_of_ports if rate)
    payload = 1.0
    if not any(has_rdma(nic, tree) or any(port.link_layer == "infiniband" for port in nic.ports) for nic in card):
        port = card[0].ports[0]
        payload = tcp_efficiency(port.mtu_bytes or 1500, bool(port.shaped_bits_per_s))
    links = list({_slot_name(nic, tree): tree.of_device(nic.address) for nic in reversed(card)}.values())
    address = card[0].address if len(links) == 1 else None
    slot = narrowest(links)
    if len(links) > 1 and any(link.bytes_per_s is None for link in links):
        slot = unknown(slot.name)
    elif len(links) > 1:
        nccl = sum(link.as_nccl_takes_it().rate for link in links)
        slot = replace(slot, bytes_per_s=sum(link.rate for link in links), nccl_bytes_per_s=nccl)
    return NicRate(tuple(nic.name for nic in card), address, port_bits_per_s, payload, slot)


# What reaches the NICs: data from GPUs or from host memory crosses the links above the switches between them.

_HOST = ""  # the place of host memory in the PCIe tree, above all bridges


def reachable(egress: Egress, tree: PcieTree, senders: Mapping[str, Link] | None) -> Link:
    """Return the NICs' link, limited by the PCIe links from the senders to the NICs.

    senders    the link of each GPU to its CPU or switch, by the GPU's key; None: the data is in host memory

    A GPU and a NIC below one switch do not use the link above the switch. All other traffic of the devices below shares that link.
    """
    nics = egress.link
    if nics.bytes_per_s is None:
        return nics
    flow = _Flow(tree, senders or {}, egress.nics)
    rate, above_senders, above_nics, nics_could_take_more = flow.solve(attrgetter("rate"))
    nccl, *_ = flow.solve(lambda link: link.as_nccl_takes_it().rate)
    if rate >= (1 - _ROUNDING) * nics.bytes_per_s:
        return replace(nics, nccl_bytes_per_s=None if nics.nccl_bytes_per_s is None else min(nics.nccl_bytes_per_s, nccl))
    links = list((senders or {}).values())
    if links and rate >= (1 - _ROUNDING) * sum(link.rate for link in links):
        return replace(links[0].under(gpus=len(links)), bytes_per_s=rate, nccl_bytes_per_s=nccl)
    # the bridges with a link that the flow fills: those above the senders if the NICs could take more, else above the NICs
    first, *others = (above_senders if nics_could_take_more else above_nics) or above_senders or above_nics
    return Link.of(rate, BridgeLimit(address=first, others=len(others)), source_of(tree.machine, f"pci/{first}/link"), nccl)


class _Flow:
    """The greatest flow of data from senders to NICs in the PCIe tree: what can stay below a switch does so."""

    def __init__(self, tree: PcieTree, senders: Mapping[str, Link], nics: Sequence[NicRate]) -> None:
        self.bridges: dict[str, str] = {}  # the bridge above each, or _HOST
        self.sources = [(_HOST, unknown("host memory"))]
        placed = all(map(tree.has_place_of, senders))
        if senders:
            self.sources = [(self._add_chain(tree.above_gpu(key) if placed else []), link) for key, link in senders.items()]
        self.targets = [(self._add_chain(tree.above(nic.address) if placed else []), nic.link) for nic in nics]
        self.uplinks = {bridge: tree.uplink(bridge) for bridge in self.bridges}
        self.lowest_first = sorted(self.bridges, key=lambda bridge: -len(tree.above(bridge)))

    def _add_chain(self, chain: Sequence[str]) -> str:
        """Add the bridges of a chain up to the root, and return the first."""
        self.bridges.update(pairwise([*chain, _HOST]))
        return chain[0] if chain else _HOST

    def solve(self, rate_of: Callable[[Link], float]) -> tuple[float, list[str], list[str], bool]:
        """Return (the flow in bytes per second, full bridges above senders, and above NICs, whether the NICs could take more)."""
        out: dict[str, float] = dict.fromkeys([*self.bridges, _HOST], 0.0)
        into = dict(out)
        for bridge, link in self.sources:
            out[bridge] += rate_of(link)
        for bridge, link in self.targets:
            into[bridge] += rate_of(link)
        total = 0.0
        above_senders: list[str] = []
        above_nics: list[str] = []
        for bridge in self.lowest_first:
            inside = min(out[bridge], into[bridge])
            uplink = rate_of(self.uplinks[bridge])
            total += inside
            for flow, full in ((out, above_senders), (into, above_nics)):
                upward = flow[bridge] - inside
                if upward > uplink:
                    full.append(bridge)
                flow[self.bridges[bridge]] += min(upward, uplink)
        total += min(out[_HOST], into[_HOST])
        return total, above_senders, above_nics, into[_HOST] > out[_HOST]


# The parts of a machine that limit a rate, so that a diagram can mark them.


def limiting_parts(machine: Machine, parts: Iterable[LimitPart]) -> frozenset[str]:
    """Return the devices and links of a machine that a reference's parts name, for a drawing to mark.

    Several where only all of them together, or each of them, have that rate; for a mesh the links of one GPU. Empty where the
    machine does not have such a link, such as a link of another node.
    """
    try:
        return frozenset(name for part in parts for name in _limiting(machine, part))
    except UsageError:  # the sources contradict each other
        return frozenset()


def _limiting(machine: Machine, part: LimitPart) -> Iterator[str]:
    tree = PcieTree(machine)
    if isinstance(part, NicLimit) and part.interface is not None:
        yield from (nic.name for nic in machine.nics if part.interface in (nic.name, *nic.interfaces))
    elif isinstance(part, NicLimit):
        egress = egress_of(machine, tree)
        slots = egress.nics if egress.link.part == part.alone() else ()
        yield from (name for slot in slots for name in slot.names)
        yield from (slot.address for slot in slots if part.slots and slot.address and slot.slot.rate < slot.wire)
    elif isinstance(part, BridgeLimit):
        yield from ({part.address} & tree.devices.keys())
    elif isinstance(part, PcieLimit):
        yield from (gpu.address or gpu.key for gpu in machine.gpus if tree.of_gpu(gpu).part == part.alone())
    elif isinstance(part, GpuLinkLimit):
        yield from _limiting_gpu_links(machine, part)


def _limiting_gpu_links(machine: Machine, part: GpuLinkLimit) -> Iterator[str]:
    """Yield all such links of each GPU that has them; in a mesh, where each link has two ends, those of the first such GPU."""
    keys = [gpu.key for gpu in machine.gpus]
    links = [link for link in machine.gpu_links if link.b in keys or link.b == SWITCH]
    if part.way == "pair":
        yield from [link.key for link in links if link.count == part.count and link.b != SWITCH][:1]
        return
    wires = wires_of(machine, keys)
    gpus = [key for key in keys if wires.out_of(key).part == part.alone()]
    meshed = [link.key for link in links if link.a in gpus[:1] and link.b != SWITCH]
    yield from meshed or [link.key for link in links if link.a in gpus]
