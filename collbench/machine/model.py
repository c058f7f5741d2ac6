"""The data model of a machine, as small immutable values.

Unknown is None, never 0; `Machine.unknown` may hold the reason. A fact has a path, such as "gpus/0000:19:00.0/numa": the list in the
machine, the key of the part, the field. Paths are the keys of `unknown` and `origins`, and are part of each disagreement.
Rates are bytes or bits per second of one direction, as their names state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from collbench.machine.readers.text import printable
from collbench.units import plural

PciKind = Literal["gpu", "nic", "nvswitch", "switch", "bridge", "root", "other"]
LinkKind = Literal["nvlink", "xgmi"]
SWITCH = "switch"  # the far end of a GpuLink that goes to an NVSwitch
BRIDGES: Final = frozenset({"switch", "bridge", "root"})  # kinds of PCI functions with others below them


class PcieLink(msgspec.Struct, frozen=True):
    """The link from a device up to the bridge above it: current values, and the maximum of the device (GT/s per lane, lanes)."""

    speed_gt_per_s: float | None = None
    width: int | None = None
    max_speed_gt_per_s: float | None = None
    max_width: int | None = None


class MachinePart(msgspec.Struct, frozen=True):
    """A part of a machine. Its first field identifies it."""

    @property
    def key(self) -> str:
        """The key of this part in fact paths."""
        return str(getattr(self, self.__struct_fields__[0]))


class PciDevice(MachinePart, frozen=True):
    """A PCI function.

    address     "0000:19:00.0", lower case, with its domain; files with invented ids keep theirs
    parent      the address of the bridge above it; None at a root, or unknown (see `Machine.unknown`)
    name        as the source prints it
    acs         the control bits that are set ("SrcValid", "ReqRedir"); None when not read
    virtual     a virtual function, or a bridge that a hypervisor emulates: its link speed is meaningless
    """

    address: str
    kind: PciKind = "other"
    parent: str | None = None
    vendor_id: int | None = None
    device_id: int | None = None
    class_id: int | None = None
    name: str | None = None
    numa: int | None = None
    link: PcieLink = PcieLink()
    acs: tuple[str, ...] | None = None
    driver: str | None = None
    virtual: bool = False


class Gpu(msgspec.Struct, frozen=True):
    """A GPU, or one die of a module where the software counts dies.

    key             its PCI address where known, else "gpu0"
    index           its number in the driver's tool; None when the source does not number GPUs
    architecture    "sm_90", "gfx942"
    links_off       number of NVLink or xGMI links that are not up
    cpu_links       number of NVLinks to a processor (POWER), not GpuLinks; cpu_link_bytes_per_s: rate of one in one direction
    memory_numa     the NUMA node of its memory (`nvidia-smi topo -m`: GPU NUMA ID): the GPU is coherent with its CPU
    c2c_links       number of NVLink-C2C links to its CPU; c2c_bytes_per_s: rate of one link in one direction
    clique          the NVLink domain shared with GPUs of other nodes: cluster UUID and clique id; None when there is none or unknown
    """

    key: str
    index: int | None = None
    address: str | None = None
    vendor: Literal["nvidia", "amd", "intel"] | None = None
    model: str | None = None
    architecture: str | None = None
    numa: int | None = None
    memory_bytes: int | None = None
    links_off: int | None = None
    uuid: str | None = None
    cpu_links: int | None = None
    cpu_link_bytes_per_s: float | None = None
    memory_numa: int | None = None
    c2c_links: int | None = None
    c2c_bytes_per_s: float | None = None
    clique: str | None = None


class GpuLink(msgspec.Struct, frozen=True):
    """`count` links from GPU `a` to `b`, as seen from `a`. A pair of GPUs has two of these, one from each end.

    b               key of a GPU, SWITCH, or None when the source only counts links
    bytes_per_s     rate of one link in one direction, as the source prints it
    """

    a: str
    b: str | None
    count: int
    kind: LinkKind = "nvlink"
    bytes_per_s: float | None = None

    @property
    def key(self) -> str:
        """The key of these links in fact paths."""
        return f"{self.a}>{self.b or '?'}"


class Port(MachinePart, frozen=True):
    """A port of a NIC.

    rate_bits_per_s    data rate after line coding; None when unknown or the port is down
    rate_text          as printed, "400 Gb/sec (4X NDR)"
    state              logical state: "active", "down", "init", "armed"; phys_state: "linkup", "disabled", "polling"
    link_layer         "infiniband" or "ethernet"
    mtu_bytes          the active MTU: InfiniBand's payload (4096), Ethernet's (9000)
    shaped_bits_per_s  rate limit of a traffic shaper
    lanes              lanes in use (4 of "4X"); max_lanes: the most that are supported and enabled
    counters           error and congestion counters by the kernel's names
    guid               of the port
    """

    number: int = 1
    rate_bits_per_s: float | None = None
    rate_text: str | None = None
    state: str | None = None
    phys_state: str | None = None
    link_layer: Literal["infiniband", "ethernet"] | None = None
    mtu_bytes: int | None = None
    lid: int | None = None
    sm_lid: int | None = None
    shaped_bits_per_s: float | None = None
    counters: Mapping[str, int] = msgspec.field(default_factory=dict)
    lanes: int | None = None
    max_lanes: int | None = None
    guid: str | None = None


class Nic(MachinePart, frozen=True):
    """A network device: an RDMA device (InfiniBand, RoCE, EFA) or a plain Ethernet interface.

    name           "mlx5_0", "eth0"
    address        address of its PCI function; None for virtual ones
    rdma           whether it supports verbs
    interfaces     the kernel's network interfaces on it
    virtual        why it is not a physical port ("veth", "scif", "bond"); None for physical ones
    gdr            whether the source reports that GPUs can reach it directly
    guid           shared by the ports of one device
    card_guid      the system image GUID: shared by the devices of one card, with some drivers by all devices of a host
    rdma_missing   the card supports RDMA, but the kernel has no RDMA device for it: a driver is not loaded
    """

    name: str
    address: str | None = None
    model: str | None = None
    rdma: bool = False
    numa: int | None = None
    ports: tuple[Port, ...] = ()
    interfaces: tuple[str, ...] = ()
    virtual: str | None = None
    firmware: str | None = None
    gdr: bool | None = None
    guid: str | None = None
    rdma_missing: bool = False
    card_guid: str | None = None


class NumaNode(MachinePart, frozen=True):
    """A NUMA node with CPUs, or with memory alone; memory of GPUs is not listed. cpus: in the kernel's list format, "0-31,64-95"."""

    id: int
    cpus: str | None = None
    memory_bytes: int | None = None


class System(msgspec.Struct, frozen=True):
    """Facts of the machine as a whole.

    peer_memory      modules that let NICs read GPU memory, by name ("nvidia_peermem"); () for none; None when not read
    dma_buf          whether the GPU driver can export its memory
    iommu            "off", "passthrough", "translating"
    virtualization   "kvm", "xen", "vmware", "microsoft"; "" on bare metal; None when unknown
    container        "docker", "kubernetes", "slurm"…; "" outside of containers; None when unknown
    acs_ports        number of ports with access control, from a source without addresses; acs_on: how many redirect requests
    """

    architecture: str | None = None
    cpu_model: str | None = None
    cpu_vendor: str | None = None
    sockets: int | None = None
    cores: int | None = None
    threads: int | None = None
    memory_bytes: int | None = None
    kernel: str | None = None
    command_line: str | None = None
    driver: str | None = None
    peer_memory: tuple[str, ...] | None = None
    dma_buf: bool | None = None
    iommu: Literal["off", "passthrough", "translating"] | None = None
    virtualization: str | None = None
    container: str | None = None
    shm_bytes: int | None = None
    acs_ports: int | None = None
    acs_on: int | None = None


class FabricLink(msgspec.Struct, frozen=True):
    """A cable in the output of a subnet manager's tool: a host's port and the port at its other end."""

    host: str
    device: str | None = None
    port: int | None = None
    width: int | None = None
    lane_bits_per_s: float | None = None
    peer: str | None = None
    peer_port: int | None = None


class Disagreement(msgspec.Struct, frozen=True):
    """Two sources that report different values of one fact; the first value is used."""

    path: str
    taken: str
    taken_from: str
    other: str
    other_from: str


def name_by_lid(lid: int) -> str:
    """Return the name of a NIC of which only the LID is known."""
    return f"LID {lid}"


NCCL_TOPOLOGY: Final = "NCCL topology XML"


def is_nccl_topology(source: str) -> bool:
    """Return whether a source is NCCL's topology file, which omits root ports and counts virtual interfaces as networks."""
    return source.startswith(NCCL_TOPOLOGY)


class Machine(msgspec.Struct, frozen=True):
    """One node.

    paths           paths between parts as a source states them: (key, key) -> "NV12", "PIX", "PXB", "PHB", "NODE", "SYS"; both
                    directions; "XGMI" and "PCIE" where AMD's tools state only the kind of link
    peer_access     (GPU key, GPU key) -> "OK", "NS", "GNS"… of the driver's peer-to-peer matrix
    unknown         by fact path: why it is None; for a list ("nics"): why it is empty although the machine may have such parts
    origins         by fact path: its source (merged machines)
    doubts          sentences about unreliable values of a source
    """

    hostname: str | None = None
    sources: tuple[str, ...] = ()
    system: System = System()
    numa_nodes: tuple[NumaNode, ...] = ()
    pci: tuple[PciDevice, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    gpu_links: tuple[GpuLink, ...] = ()
    nics: tuple[Nic, ...] = ()
    fabric: tuple[FabricLink, ...] = ()
    paths: Mapping[tuple[str, str], str] = msgspec.field(default_factory=dict)
    peer_access: Mapping[tuple[str, str], str] = msgspec.field(default_factory=dict)
    unknown: Mapping[str, str] = msgspec.field(default_factory=dict)
    origins: Mapping[str, str] = msgspec.field(default_factory=dict)
    disagreements: tuple[Disagreement, ...] = ()
    doubts: tuple[str, ...] = ()

    def __repr__(self) -> str:
        lists = {"GPU": self.gpus, "NIC": self.nics, "NUMA node": self.numa_nodes, "PCI device": self.pci}
        counts = [plural(len(parts), noun) for noun, parts in lists.items()]
        return printable(f"<Machine: {self.hostname or 'unknown host'}, {', '.join(counts)}>")

    def links_of(self, gpu: str) -> int | None:
        """Return how many NVLink or xGMI links of a GPU are up, over all far ends; None when no source counts them."""
        counts = [link.count for link in self.gpu_links if link.a == gpu]
        return sum(counts) if counts else None

    @property
    def switched(self) -> bool:
        """Whether GPU links go to a switch: each GPU reaches every other GPU with all its links."""
        return any(link.b == SWITCH for link in self.gpu_links)


# Which lists of a machine a source covers. A list that it does not cover is unknown, not empty: after `with_reasons`, an empty list
# without an entry in `Machine.unknown` means that the machine has no such parts.

LISTS: Final = {
    "numa_nodes": "NUMA nodes",
    "pci": "PCI devices",
    "gpus": "GPUs",
    "gpu_links": "links between GPUs",
    "nics": "NICs",
    "fabric": "cables",
    "paths": "distances",
    "peer_access": "peer access",
}


def with_reasons(machine: Machine, source: str, listed: Collection[str] = ()) -> Machine:
    """Return the machine with a reason in `unknown` for each empty list that the source does not cover.

    source    the source's name in the reasons, such as "nvidia-smi nvlink -s"
    listed    the lists that the source covers: an empty one without a reason means that there are no such parts
    """
    uncovered = [name for name in LISTS if name not in (*listed, *machine.unknown) and not getattr(machine, name)]
    if "gpus" not in uncovered and known_none(machine, "gpus"):
        uncovered = [name for name in uncovered if name not in ("gpu_links", "peer_access")]
    reasons = {name: f"{source} does not list {LISTS[name]}" for name in uncovered}
    return replace(machine, unknown={**machine.unknown, **reasons}) if reasons else machine


def known_none(machine: Machine, name: str) -> bool:
    """Return whether a source reports that the machine has no part of this list."""
    return bool(machine.sources) and not getattr(machine, name) and name not in machine.unknown


# Impossible values: they pass every type check, but would become an expected bandwidth. The limits are far above hardware: ports of
# 800 Gb/s, NVLinks of 53 GB/s each way, PCIe Gen7 with 128 GT/s, 18 links of a GPU, hosts of 32 TB.

_MOST_BITS_PER_S = 1e13
_MOST_BYTES_PER_S = 1e12
_MOST_GT_PER_S = 256.0
_MOST_LANES = 64
_MOST_LINKS = 1024
_MOST_BYTES = 1 << 50
_MOST_THREADS = 1 << 20


def impossible(machine: Machine) -> Iterator[str]:
    """Yield a text for each figure that is negative or far above real hardware: "a speed of -5 at nics/mlx5_0"."""
    for quantity, path, most, *values in _figures(machine):
        for value in values:
            if value is not None and not 0 <= value <= most:
                yield f"{quantity} of {value:g} at {printable(path, 80)}"


def _figures(machine: Machine) -> Iterator[Any]:
    """Yield (quantity, path, maximum, *values) of the figures to check."""
    system = machine.system
    yield "a number of processors", "system", _MOST_THREADS, system.sockets, system.cores, system.threads
    yield "memory", "system", _MOST_BYTES, system.memory_bytes, system.shm_bytes, *(node.memory_bytes for node in machine.numa_nodes)
    for device in machine.pci:
        link = device.link
        yield "a speed in GT/s", f"pci/{device.address}", _MOST_GT_PER_S, link.speed_gt_per_s, link.max_speed_gt_per_s
        yield "a width", f"pci/{device.address}", _MOST_LANES, link.width, link.max_width
    for gpu in machine.gpus:
        yield "memory", f"gpus/{gpu.key}", _MOST_BYTES, gpu.memory_bytes
        yield "a number of links", f"gpus/{gpu.key}", _MOST_LINKS, gpu.c2c_links
        yield "a speed", f"gpus/{gpu.key}", _MOST_BYTES_PER_S, gpu.c2c_bytes_per_s
    for links in machine.gpu_links:
        yield "a number of links", f"gpu_links/{links.key}", _MOST_LINKS, links.count
        yield "a speed", f"gpu_links/{links.key}", _MOST_BYTES_PER_S, links.bytes_per_s
    for nic in machine.nics:
        for port in nic.ports:
            yield "a speed", f"nics/{nic.name}", _MOST_BITS_PER_S, port.rate_bits_per_s, port.shaped_bits_per_s
            yield "an MTU", f"nics/{nic.name}", _MOST_BYTES, port.mtu_bytes
