"""Distance between two parts of a machine, in the terms of `nvidia-smi topo -m`.

X the part itself · NVk, XGk k NVLink or xGMI links · PIX at most one PCIe switch · PXB several switches · PHB a host bridge ·
NODE between host bridges of one NUMA node · SYS between NUMA nodes ·
PCIE, XGMI the kind of link alone, as AMD's tools report it. Source of the terms: the legend that `nvidia-smi topo -m` prints.
Some sources leave root ports out (NCCL's XML) and cannot distinguish PHB from NODE. There PHB means both, as in NCCL.

The second half decides whether GPUDirect RDMA is possible between a GPU and a NIC (`capability`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

import msgspec

from collbench.machine.merge import origin
from collbench.machine.model import BRIDGES, SWITCH, Gpu, Machine, Nic, PciDevice, System, is_nccl_topology
from collbench.machine.pcie_links import bus_of
from collbench.machine.readers.pci import NAMED_BY_A_FILE, card_of, is_with_cpu

CLOSE: Final = ("PIX", "PXB")  # the bytes stay below a host bridge
ORDER: Final = ("X", "NV", "XG", "PIX", "PXB", "PHB", "NODE", "SYS")
ANY_PCIE: Final = "PCIE"  # over PCIe, at a distance that the source does not show

_NODES_OF_TWO_SOCKETS = 8
_DEEPEST = 256  # buses in a PCI domain
_PREFIX = {"nvlink": "NV", "xgmi": "XG"}


def closeness(path: str) -> int:
    """Return a sort key for paths: nearer paths first, unknown terms last."""
    word = path[:2] if path[:2] in _PREFIX.values() else path
    return ORDER.index(word) if word in ORDER else len(ORDER)


class _Chain(NamedTuple):
    """A device and the bridges above it, nearest first. `broken` is the reason why the root is not reached ("" if it is)."""

    devices: list[str]
    broken: str = ""
    circular: bool = False


class Distances:
    """The distances between the parts of one machine. Creation takes linear time; each query takes the depth of the PCI tree."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._pci = {device.address: device for device in machine.pci}
        self._shortened = _shortened(machine)
        self._in_matrix = {key for pair in machine.paths for key in pair}
        self._parts: dict[str, Gpu | Nic] = {**{nic.key: nic for nic in machine.nics}, **{gpu.key: gpu for gpu in machine.gpus}}
        self._links: Counter[tuple[str, str | None, str]] = Counter()
        for link in machine.gpu_links:
            self._links[link.a, link.b, link.kind] += max(link.count, 0)

    def path(self, a: str, b: str) -> str | None:
        """Return the path between two GPUs or NICs, given by key; None when it is unknown."""
        return self._answer(a, b)[0]

    def why_unknown(self, a: str, b: str) -> str | None:
        """Return why `path` gives None for this pair, as a short text; None when the path is known."""
        path, why = self._answer(a, b)
        return None if path else why

    def near_nics(self, gpu: str) -> tuple[Nic, ...]:
        """Return the NICs at the smallest known distance from a GPU. At equal distance PXB, those with the fewest bridges between.

        Only RDMA devices where the machine has any. Virtual NICs are never included.
        """
        hardware = [nic for nic in self.machine.nics if nic.virtual is None]
        above_gpu = self._above(gpu)
        distances: list[tuple[tuple[int, int], Nic]] = []
        for nic in [nic for nic in hardware if nic.rdma] or hardware:
            path = self.path(gpu, nic.key)
            if path:
                above_nic = self._above(nic.key)
                common = next((address for address in above_gpu if address in above_nic), None)
                bridges = above_gpu.index(common) + above_nic.index(common) if common else 0
                distances.append(((closeness(path), bridges), nic))
        least = min((distance for distance, _ in distances), default=None)
        return tuple(nic for distance, nic in distances if distance == least)

    def numa_of(self, key: str) -> int | None:
        """Return the NUMA node of a part: its own, that of its bridges, or the machine's only node. None when unknown."""
        part = self._parts.get(key)
        stated = [part.numa if part else None, *(self._pci[address].numa for address in self._above(key) if address in self._pci)]
        nodes = self.machine.numa_nodes
        return next((numa for numa in stated if numa is not None), nodes[0].id if len(nodes) == 1 else None)

    def are_across_sockets(self, a: str, b: str) -> bool | None:
        """Return whether two parts are at different sockets; None if the sockets of their NUMA nodes are unknown.

        Linux numbers the NUMA nodes socket by socket. Machines with 8 nodes or more have two sockets, with several nodes each (NPS4, SNC4).
        """
        nodes = sorted(node.id for node in self.machine.numa_nodes if node.cpus != "")
        sockets = self.machine.system.sockets
        if sockets is None and len(nodes) >= _NODES_OF_TWO_SOCKETS:
            sockets = 2
        first = self.numa_of(a)
        second = self.numa_of(b)
        if first not in nodes or second not in nodes or not sockets or len(nodes) % sockets:
            return None
        nodes_per_socket = len(nodes) // sockets
        return nodes.index(first) // nodes_per_socket != nodes.index(second) // nodes_per_socket

    def hides_bridges(self, *parts: Gpu | Nic) -> bool:
        """Return whether each part is alone in a PCI domain of its own, without a bridge, as in virtual machines."""
        addresses = [part.address for part in parts if part.address]
        domains = [address.partition(":")[0] for address in addresses]
        if len(addresses) < len(parts) or len(set(domains)) < len(domains):
            return False
        one_per_domain = all(sum(device.address.startswith(f"{domain}:") for device in self.machine.pci) <= 1 for domain in domains)
        return one_per_domain and not any(self.bridges(address) for address in addresses)

    def device(self, address: str | None) -> PciDevice | None:
        """Return the PCI device at an address; None when no source lists it."""
        return self._pci.get(address) if address else None

    def bridges(self, address: str) -> tuple[PciDevice, ...]:
        """Return the known bridges above a PCI device, nearest first."""
        return tuple(self._pci[bridge] for bridge in self._chain(address).devices[1:] if bridge in self._pci)

    def _answer(self, a: str, b: str) -> tuple[str | None, str]:
        if a == b:
            return "X", ""
        stated = self.machine.paths.get((a, b)) or self.machine.paths.get((b, a))
        if stated and stated != ANY_PCIE:
            return stated, ""
        for kind, prefix in _PREFIX.items():
            direct = max(self._links[a, b, kind], self._links[b, a, kind])
            count = direct or min(self._links[a, SWITCH, kind], self._links[b, SWITCH, kind])
            if count:
                return f"{prefix}{count}", ""
        if stated:
            return self._over_pci(a, b)[0] or stated, ""
        if all(any(self._links[gpu, None, kind] for kind in _PREFIX) for gpu in (a, b)):
            return None, "the source counts the GPUs' links but does not show where they lead"
        return self._over_pci(a, b)

    def _over_pci(self, a: str, b: str) -> tuple[str | None, str]:
        chains: list[_Chain] = []
        for key in (a, b):
            part = self._parts.get(key)
            if part and not part.address and self._in_matrix and key not in self._in_matrix:
                return None, "the matrix of distances has no row for it"
            if part is None or not part.address:
                return None, f"{key} has no known PCI address" if part else f"{key} is not among the machine's parts"
            chain = self._chain(part.address)
            if chain.circular:
                return None, chain.broken  # the common part depends on the unknown part above
            chains.append(chain)
        above_a, above_b = (chain.devices for chain in chains)
        common = next((address for address in above_a if address in above_b), None)
        below_a = above_a[: above_a.index(common)] if common else above_a
        below_b = above_b[: above_b.index(common)] if common else above_b
        for address in (*below_a, *below_b, common):
            device = self.device(address)
            if device and device.virtual and device.kind in BRIDGES and not device.address.startswith(NAMED_BY_A_FILE):
                return None, "a hypervisor made up the bridges above them"
        if common is None:
            broken = " and ".join(dict.fromkeys(chain.broken for chain in chains if chain.broken))
            return self._over_host(a, b, (above_a[-1], above_b[-1]), broken)
        return self._below(common, below_a, below_b), ""

    def _below(self, common: str, first: list[str], second: list[str]) -> str:
        """Return the path of two parts with a common bridge. Each list holds the devices below that bridge, nearest to the part first."""
        if not first or not second:
            return "PIX"
        device = self._pci.get(common)
        if device and device.kind == "root" and card_of(first[-1]) != card_of(second[-1]):
            return "PHB"  # a root port has one slot below it, so this one is a host bridge
        # All devices below a bridge are on one bus. Otherwise the source shows a switch as one bridge instead of three.
        whole = bus_of(first[-1]) == bus_of(second[-1])
        return "PIX" if max(len(first), len(second)) <= (2 if whole else 1) else "PXB"

    def _over_host(self, a: str, b: str, tops: tuple[str, str], broken: str) -> tuple[str | None, str]:
        hypervisor = self.machine.system.virtualization
        if hypervisor:
            return None, f"a virtual machine ({hypervisor}) hides the PCIe switches"
        numa_a = self.numa_of(a)
        numa_b = self.numa_of(b)
        if numa_a is not None and numa_b is not None and numa_a != numa_b:
            return "SYS", ""
        if broken:
            return None, broken
        if bus_of(tops[0]) == bus_of(tops[1]):
            return "PHB", ""
        if numa_a is None or numa_b is None:
            return None, f"the NUMA node of {a if numa_a is None else b} is unknown"
        incomplete = self._shortened or any(f"pci/{top}/parent" in self.machine.unknown for top in tops)
        are_ports = all(top in self._pci and self._pci[top].kind in ("root", "bridge") for top in tops)
        return "NODE" if are_ports and not incomplete else "PHB", ""

    def _above(self, key: str) -> list[str]:
        part = self._parts.get(key)
        return self._chain(part.address).devices if part and part.address else []

    def _chain(self, address: str) -> _Chain:
        chain: list[str] = []
        current: str | None = address
        while current is not None:
            if current in chain or len(chain) > _DEEPEST:
                return _Chain(chain, f"the bridges above {address} go in circles", circular=True)
            chain.append(current)
            device = self._pci.get(current)
            if device is None:
                return _Chain(chain, f"PCI device {current} was not read" if self._pci else "no PCI tree was read")
            current = device.parent
        source = origin(self.machine, f"pci/{chain[-1]}") or next(iter(self.machine.sources), "")
        only_root_ports_missing = is_nccl_topology(source)
        return _Chain(chain, "" if only_root_ports_missing else self.machine.unknown.get(f"pci/{chain[-1]}/parent", ""))


def _shortened(machine: Machine) -> bool:
    """Return whether the source shows a switch as one bridge and omits root ports: devices below one bridge are on different buses."""
    bus_below: dict[str, str] = {}
    devices = [device for device in machine.pci if device.parent]
    return any(bus_below.setdefault(str(device.parent), bus_of(device.address)) != bus_of(device.address) for device in devices)


# GPUDirect RDMA: whether a NIC can reach a GPU's memory. Only NCCL's log proves its use.
#
# It needs a peer-memory module or dma-buf, and a path below the host bridges. NCCL stages longer paths through the host by default.
# Sources: NCCL's src/transport/net_ib (gdr.cc) and NCCL_NET_GDR_LEVEL in its documentation.

State = Literal["proven used", "capable, not used", "capable; use not checked", "not capable", "unknown"]
STATES: tuple[State, ...] = ("proven used", "capable, not used", "capable; use not checked", "not capable", "unknown")
BEST_FIRST: tuple[State, ...] = ("proven used", "capable; use not checked", "capable, not used", "unknown", "not capable")
_UNCHECKED: State = "capable; use not checked"
_POWER = ("ppc64le", "ppc64")
_ARM = ("aarch64", "arm64")  # as the kernel and as NCCL write it
DMA_BUF_KERNEL = (5, 12)  # the first with verbs that take dma-buf memory
_MODULES = {
    "nvidia": frozenset({"nvidia_peermem", "nv_peer_mem", "nv_mem", "nv_mem_nc", "efa_nv_peermem"}),
    "amd": frozenset({"amdkfd"}),
}
_KERNEL = re.compile(r"^(\d{1,3})\.(\d{1,3})")


class Capability(msgspec.Struct, frozen=True):
    """The GPUDirect RDMA state of a pair: one of STATES, and a sentence with the fact that decides it."""

    state: State
    why: str


def capability(
    machine: Machine, gpu: Gpu, nic: Nic, *, proof: str | None = None, refusal: str | None = None, distances: Distances | None = None
) -> Capability:
    """Return what is known of GPUDirect RDMA between a GPU and a NIC.

    proof       evidence that it is in use (lines of NCCL's log)
    refusal     evidence that NCCL found it impossible, even if modules are loaded
    distances   distances of the machine, to create them once for many pairs
    """
    if proof:
        return Capability("proven used", proof)
    if refusal:
        return Capability("not capable", refusal)
    distance = _distance(distances or Distances(machine), gpu, nic)
    memory = _memory(machine, gpu, nic)
    for state in ("not capable", "unknown", "capable, not used"):
        for requirement in (_device(nic), memory, distance):
            if requirement.state == state:
                return requirement
    return Capability(_UNCHECKED, f"{memory.why}, {distance.why}")


def best_of(states: Iterable[Capability]) -> Capability:
    """Return the first of the best states."""
    return min(states, key=lambda capability: BEST_FIRST.index(capability.state))


def not_used(capable: Capability, why: str) -> Capability:
    """Return the state of a pair that a log or counters show unused. "not capable" and "unknown" stay as they are."""
    return Capability("capable, not used" if capable.state == _UNCHECKED else capable.state, why)


def may_use_c2c(system: System, gpu: Gpu) -> bool:
    """Return whether C2C may connect the GPU to its CPU. NCCL then reaches NICs of that CPU directly, at any PCIe distance."""
    by_memory = gpu.memory_numa is not None and system.architecture not in _POWER  # there NVLink makes it so
    coherent = by_memory or bool(gpu.c2c_links) or is_with_cpu(gpu.model)
    return gpu.vendor in (None, "nvidia") and (coherent or system.architecture in _ARM)


def _device(nic: Nic) -> Capability:
    if nic.virtual is not None:
        return Capability("not capable", f"a virtual interface ({nic.virtual})")
    if not nic.rdma and nic.gdr is None and nic.model is None and not nic.ports:
        return Capability("unknown", "the source does not show whether the NIC is an RDMA device")
    if nic.rdma_missing:
        return Capability("not capable", "the kernel has no RDMA device for the card: its driver is not loaded")
    if not nic.rdma and nic.gdr is not True:
        return Capability("not capable", "the NIC is not an RDMA device")
    return Capability(_UNCHECKED, "an RDMA device")


def _distance(distances: Distances, gpu: Gpu, nic: Nic) -> Capability:
    path = distances.path(gpu.key, nic.key)
    if path is None:
        return Capability("unknown", f"the path between them is unknown ({distances.why_unknown(gpu.key, nic.key)})")
    if path in CLOSE:
        return Capability(_UNCHECKED, f"{path} apart")
    if may_use_c2c(distances.machine.system, gpu):
        return Capability("unknown", f"{path} apart on PCIe; C2C to the CPU may carry it, if the NIC is on the same CPU")
    hypervisor = distances.machine.system.virtualization
    if hypervisor or distances.hides_bridges(gpu, nic):
        which = f" ({hypervisor})" if hypervisor else ""
        return Capability("unknown", f"{path} apart, but a virtual machine{which} hides the PCIe switches")
    if gpu.vendor == "amd" and path in ("PHB", "NODE"):
        return Capability(_UNCHECKED, f"{path} apart, which RCCL uses on some processors")
    return Capability("capable, not used", f"{path} apart, which NCCL stages through the host by default (NCCL_NET_GDR_LEVEL)")


def _memory(machine: Machine, gpu: Gpu, nic: Nic) -> Capability:
    system = machine.system
    if nic.gdr is not None:
        source = origin(machine, f"nics/{nic.key}/gdr") or next(iter(machine.sources), "the source")
        return Capability(_UNCHECKED if nic.gdr else "not capable", f"{source} has gdr={int(nic.gdr)}")
    if system.container:
        return Capability("unknown", f"inside a container ({system.container}): its view of the host's modules proves nothing")
    loaded = next((name for name in system.peer_memory or () if name in _MODULES.get(gpu.vendor or "", ())), None)
    if loaded:
        return Capability(_UNCHECKED, f"{loaded} is loaded")
    # dma-buf is the alternative to a peer-memory module
    module = "no peer-memory module for this GPU is loaded" if system.peer_memory is not None else "peer-memory modules were not looked at"
    version = _KERNEL.match(system.kernel or "")
    old = version is not None and (int(version[1]), int(version[2])) < DMA_BUF_KERNEL
    if system.dma_buf and version and not old:
        return Capability(_UNCHECKED, "the driver exports dma-buf")
    lacks = f"kernel {system.kernel} is older than 5.12, which dma-buf needs" if old else "the driver exports no dma-buf"
    if system.dma_buf is False or old:
        return Capability("unknown" if system.peer_memory is None else "not capable", f"{module}, and {lacks}")
    return Capability("unknown", f"{module}, and {'the kernel version is' if system.dma_buf else 'dma-buf support is'} unknown")
