"""What one message of NCCL or RCCL shows, as typed facts. A message is the text after "NCCL INFO "; each kind is recognized here alone.

The forms are those of NCCL 2.4 to 2.32 (src/init.cc, src/mnnvl.cc, src/plugin, src/misc/ibvsymbols.cc, src/graph, src/transport,
src/collectives.cc) and of RCCL 2.16 to 2.27 (src/init.cc, src/transport/net_ib.cc), and the head of a table of nccl-tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache, lru_cache
from typing import Any, ClassVar, NamedTuple, Self

import msgspec

from collbench.machine.readers.text import printable

FABRIC_COMPLETED = 3  # NVML_GPU_FABRIC_STATE_COMPLETED
INIT_COMPLETE = b"Init COMPLETE"  # ends the message of a communicator that can be used
_CALL_MARK = b"opCount"  # in a message for every call, which are most of a log
_WITHOUT_FACTS = (b"GPU/", b"Trees [")  # each rank prints many: distances in the graph, and the trees of all channels
_GRAPH_LINE_BEGINS = (b" ", b"+")  # "              + PCI[24.0] - GPU/0-cf000 (5)"
_CACHE_SIZE = 4096  # every rank of a host prints equal messages, some with every call
_VARIABLE = rb"(?:NCCL|RCCL)_[A-Z0-9_]{1,60}"


def text(part: bytes) -> str:
    """Return untrusted bytes as printable text."""
    return printable(part.decode("utf-8", "replace"))


class LogLibrary(Enum):
    """The library that wrote a log."""

    NCCL = "NCCL"
    RCCL = "RCCL"


Address = int
LowerCase = str
_FALSE = (b"0", b"not available")
_CONVERTERS: dict[str, Callable[[bytes], Any]] = {
    "str": text,
    "int": int,
    "float": float,
    "bool": lambda part: part not in _FALSE,
    "Address": lambda part: 0 if part == b"(nil)" else int(part, 16),
    "LowerCase": lambda part: text(part).lower(),
    "LogLibrary": lambda part: LogLibrary.RCCL if part == b"R" else LogLibrary.NCCL,
}


@cache
def _converters(kind: type[LogFact]) -> tuple[Callable[[bytes], Any], ...]:
    return tuple(_CONVERTERS.get(annotation.partition(" |")[0], text) for annotation in kind.__annotations__.values())


class LogFact(msgspec.Struct, frozen=True):
    """What one message shows.

    hints    texts of which the message has one, for speed
    pattern  of the part of a message with the fact; its groups are the fields, in their order
    of_host  whether the facts of a log are kept by the host that wrote them
    """

    hints: ClassVar[tuple[bytes, ...]] = ()
    pattern: ClassVar[re.Pattern[bytes]]
    of_host: ClassVar[bool] = False

    @classmethod
    def facts_in(cls, message: bytes) -> Sequence[Self]:
        """Return the facts of this kind in a message."""
        return [
            cls(*(None if part is None else convert(part) for convert, part in zip(_converters(cls), match.groups(), strict=False)))
            for match in cls.pattern.finditer(message)
        ]


class Release(LogFact, frozen=True):
    """A library version. number: "2.27.3"; text: "2.27.3+cuda12.9", as printed."""

    hints = (b"CCL version",)
    pattern = re.compile(rb"\b([NR])CCL version\s{0,9}:?\s{0,9}((\d{1,3}\.\d{1,3}(?:\.\d{1,4})?)[\w.+:-]{0,60})")
    library: LogLibrary
    text: str
    number: str


class LogSetting(LogFact, frozen=True):
    """A variable that the library read from the environment or from nccl.conf; its message is the same for both."""

    hints = (b"set ",)  # "NCCL_ALGO set by environment to Ring", "Comm config minCTAs reset to NCCL_MIN_CTAS=32"
    pattern = re.compile(
        rb"(?:reset to (?=\S{1,60}=)|\b(?=\S{1,60} set ))(" + _VARIABLE + rb")(?:=| set (?:by environment )?to )(.{1,300}?)\.?\s*$"
    )
    name: str
    value: str


class PluginSetting(LogFact, frozen=True):
    """A variable that a network plug-in sets itself."""

    hints = (b"NET/",)
    pattern = re.compile(rb"NET/\w{1,20} (?:Adding|Setting) (" + _VARIABLE + rb")(?:=| to )")
    name: str


_LISTING = re.compile(rb"(?:Chan|Ring).{0,40}? :((?:\s{1,9}\d{1,7}){1,4096})(\s{1,9}\.\.\.)?\s{0,9}\Z")


class Communicator(LogFact, frozen=True):
    """A communicator as one of its ranks sees it."""

    hints = (b"nNodes",)
    pattern = re.compile(rb"\bnRanks (\d{1,7}) nNodes (\d{1,6}) localRanks (\d{1,4}) localRank \d{1,4}(?: MNNVL (\d))?")
    ranks: int
    nodes: int
    local_ranks: int
    multi_node_nvlink: bool | None


class RankCount(LogFact, frozen=True):
    """The number of ranks of a communicator: "nranks 16", or the least number by a list: "Channel 00/16 :  0 7 6 5 ..."."""

    hints = (b"anks ", b" :")
    pattern = re.compile(rb"(?i)\bnranks (\d{1,7})\b")
    ranks: int
    truncated: bool = False

    @classmethod
    def facts_in(cls, message: bytes) -> Sequence[Self]:
        """Return the number of ranks."""
        listing = _LISTING.match(message)
        if listing:
            return [cls(max(map(int, listing[1].split())) + 1, listing[2] is not None)]
        return [cls(int(ranks)) for ranks in cls.pattern.findall(message)]


class FabricMember(LogFact, frozen=True):
    """A GPU's NVLink domain; state 3 is complete."""

    of_host = True
    hints = (b"fabric UUID",)
    pattern = re.compile(rb"fabric UUID ([0-9a-f]{1,16}\.[0-9a-f]{1,16}) cliqueId (0x[0-9a-f]{1,8}) state (\d{1,3})")
    domain: str
    clique: str
    state: int


class FabricBroken(LogFact, frozen=True):
    """Multi-node NVLink is present but its memory cannot be shared (IMEX); NCCL ends with an error."""

    hints = (b"is available but",)
    pattern = re.compile(rb"MNNVL (?:\(cliqueSize (\d{1,5})\) )?is available but not working")
    clique_size: int | None


class DirectPeers(LogFact, frozen=True):
    """Whether all GPUs of a node reach each other directly."""

    hints = (b"isAllDirectP2p",)
    pattern = re.compile(rb"isAllDirectP2p (\d)")
    every: bool


class PluginKind(Enum):
    """The purpose of a plug-in."""

    NET = "network"
    COLLNET = "in-network reduction"
    TUNER = "tuner"
    PROFILER = "profiler"


class PluginState(Enum):
    """The result of loading a plug-in."""

    LOADED = "loaded"
    ABSENT = "absent"
    UNSUITABLE = "unsuitable"


_LOADED = re.compile(rb"(?:Loaded (?:(net|coll|collnet) plugin )?|Using )(\S.{0,60}?) \(v(\d{1,3})\)")
# v6 is the oldest interface of these releases; older releases try v5 next, and print at the end that none fits.
_UNSUITABLE = re.compile(
    rb"ncclNetPlugin symbols v\d and lower are not supported|ncclNetPlugin symbol \(v4 or v5\)|Failed to find ncclNetPlugin_v6 symbol|"
    rb"External network plugin \S{1,200} is unsupported"
)
_ABSENT = re.compile(rb"Could not find|No plugin found|cannot open shared object")


class NcclPlugin(LogFact, frozen=True):
    """A plug-in; api is its interface version."""

    hints = (b"lugin",)
    pattern = re.compile(rb"(NET|TUNER|PROFILER)/Plugin ?: (.{1,400})")
    kind: PluginKind
    state: PluginState
    name: str | None = None
    api: int | None = None

    @classmethod
    def facts_in(cls, message: bytes) -> Sequence[Self]:
        """Return the plug-in that was loaded, was not found, or does not fit."""
        match = cls.pattern.search(message)
        kind = PluginKind[match[1].decode()] if match else PluginKind.NET
        loaded = _LOADED.search(match[2]) if match else None
        if loaded:
            loaded_kind = PluginKind.COLLNET if loaded[1] in (b"collnet", b"coll") else kind
            return [cls(loaded_kind, PluginState.LOADED, text(loaded[2]), int(loaded[3]))]
        if _UNSUITABLE.search(message):
            return [cls(kind, PluginState.UNSUITABLE)]
        return [cls(kind, PluginState.ABSENT)] if match and _ABSENT.search(match[2]) else []


class PluginRelease(LogFact, frozen=True):
    """The version of a network plug-in or of a library below it: "aws-ofi-nccl", "1.21.1"; "libfabric", "2.3"."""

    hints = (b"aws-ofi-nccl", b"Libfabric version")
    pattern = re.compile(rb"(?:NET/OFI Initializing|Using) (aws-ofi-nccl|Libfabric)(?: version)? (\S{1,40})")
    name: LowerCase
    version: str


class Provider(LogFact, frozen=True):
    """The provider that a libfabric plug-in selected."""

    hints = (b"elected ",)
    pattern = re.compile(rb"(?i)Selected Provider is ([^\s,]{1,40})")
    name: str


class Platform(LogFact, frozen=True):
    """The kind of cloud instance that a network plug-in recognized."""

    hints = (b"platform",)
    pattern = re.compile(rb"Running on (\S{1,60}) platform")
    name: str


class TopologyFile(LogFact, frozen=True):
    """The file that describes the machine to the library."""

    hints = (b"TOPO_FILE", b"topology file")
    pattern = re.compile(rb"(?:NCCL_TOPO_FILE environment variable to|Loading topology file) (\S{1,300})")
    path: str


class UsedNetwork(LogFact, frozen=True):
    """The network that the library selected: "IB", "Socket", "AWS Libfabric"."""

    of_host = True
    hints = (b"Using network",)
    pattern = re.compile(rb"Using network (\S[\w .-]{0,60})")
    name: str


_DEVICE = re.compile(rb"\[(\d{1,4})\]([\w.-]{1,64}(?::\d{1,3}(?::\d{0,5}){0,2}/\w{1,10})?)(/SHARP)?")
_FUSED = re.compile(rb"\[(\d{1,4})\]=\{([^{}]{1,400})\}")  # the two ports of a card as one device, 2.20 to 2.23
_PORT = re.compile(rb"\[\d{1,4}\] ([\w.-]{1,64}:\d{1,3}/\w{1,10})")


class NetDevice(LogFact, frozen=True):
    """A network device that the library lists with its number: kind "IB", name "mlx5_0:1/IB"; sharp: it offers in-network reductions.

    Two ports that are one device have the name "mlx5_0:1/IB+mlx5_1:1/IB".
    """

    of_host = True
    hints = (b": Using ",)
    pattern = re.compile(rb"NET/(IB|Socket) ?: Using (.{0,4096})")
    kind: str
    number: int
    name: str
    sharp: bool = False

    @classmethod
    def facts_in(cls, message: bytes) -> Sequence[Self]:
        """Return the devices by number."""
        match = cls.pattern.search(message)
        if not match:
            return []
        kind = text(match[1])
        listing = match[2].partition(b"OOB")[0]
        devices = [cls(kind, int(number), "+".join(map(text, _PORT.findall(ports)))) for number, ports in _FUSED.findall(listing)]
        for number, name, sharp in _DEVICE.findall(_FUSED.sub(b"", listing)):
            devices.append(cls(kind, int(number), text(name), bool(sharp)))
        return sorted(devices, key=lambda device: (device.number, device.name))


class DeviceName(LogFact, frozen=True):
    """The final name of a network device by its number, without a port: "mlx5_0"."""

    of_host = True
    hints = (b"Made virtual", b" RDMA ")
    pattern = re.compile(
        rb"(?:Made virtual device \[|GPU Direct RDMA \w{7,8} for (?:GPU \S{1,40} / )?HCA )(\d{1,4})(?:\] name=| ')([^'\s]{1,200})"
    )
    number: int
    name: str


class DirectAccess(LogFact, frozen=True):
    """Whether GPUs can reach an HCA by GPUDirect RDMA according to the library (capability, not proof). name: "mlx5_0", or "HCA 3"."""

    hints = (b" RDMA ",)
    pattern = re.compile(rb"GPU Direct RDMA (Enabled|Disabled) for (?:GPU \S{1,40} / )?(HCA [0-9a-f]{1,16})\b(?: '([^']{1,64})')?")
    name: str
    enabled: bool

    @classmethod
    def facts_in(cls, message: bytes) -> Sequence[Self]:
        """Return the answer for the HCA."""
        return [cls(text(name or number), state == b"Enabled") for state, number, name in cls.pattern.findall(message)]


class Multicast(LogFact, frozen=True):
    """Whether NVLink multicast (NVLS) is available."""

    hints = (b"NVLS mult",)
    pattern = re.compile(rb"NVLS multicast support is (not available|available)")
    available: bool


class AssumedSpeed(LogFact, frozen=True):
    """An interface with an unreadable speed, which NCCL assumes as 10 Gb/s; None where the message has no name."""

    hints = (b"efaulting to 10 Gbps",)
    pattern = re.compile(rb"(?:/sys/class/net/([\w.-]{1,64})/speed.{0,80}?)?efaulting to 10 Gbps")
    interface: str | None


class GraphLink(LogFact, frozen=True):
    """A link of NCCL's topology graph: kind "PCI", "NVL", "SYS", the part below it, and the ids of a switch (part "PCI")."""

    hints = (b"] - ",)
    pattern = re.compile(rb"\+ ([A-Z][A-Z0-9]{1,5})\[(\d{1,7}\.\d{1,3})\] - ([A-Z]{2,5})/[0-9a-fA-F-]{1,24}(?: \(([0-9a-f]{4,16})\))?")
    kind: str
    gb_per_s: float
    part: str
    ids: str | None = None

    @property
    def is_slow(self) -> bool:
        """Whether it is a PCIe link above a switch or GPU with less than any has, so that it is described wrongly: 1.0 x4 has 1 GB/s."""
        return self.kind == "PCI" and self.part in ("PCI", "GPU") and 0 < self.gb_per_s < 1.0

    @property
    def is_emulated(self) -> bool:
        """Whether it leads to a switch of QEMU (modelled on TI's XIO3130) or with Red Hat's vendor id."""
        return self.part == "PCI" and (self.ids or "").startswith(("104c8232", "104c8233", "1b36"))


class CollNet(LogFact, frozen=True):
    """Ranks are connected for reductions in the network (SHARP)."""

    hints = (b"Connected CollNet",)
    pattern = re.compile(rb"Connected CollNet")


class RingPaths(LogFact, frozen=True):
    """How the rings of a communicator reach the NICs: through another GPU (PXN), and by GPUDirect RDMA."""

    hints = (b"use ring",)
    pattern = re.compile(rb"use ring PXN (\d) GDR (\d)")
    pxn: bool
    gdr: bool


class ChannelCount(LogFact, frozen=True):
    """The number of channels of a kind ("coll", "collnet", "nvls", "p2p") that NCCL reports."""

    hints = (b" channels",)
    pattern = re.compile(rb"(\d{1,5}) (coll|collnet|nvls|p2p) channels(?! per)")
    count: int
    kind: str


# include/nccl_common.h of 2.20 to 2.23, which print numbers; later ones print names (collectives.cc)
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")
_CHANNEL_SPAN = re.compile(rb"channel\{Lo\.\.Hi\}=\{(\d{1,4})\.\.(\d{1,4})\}")
_CHANNEL_COUNT = re.compile(rb"nchannels (\d{1,4})")


class CallChoice(LogFact, frozen=True):
    """NCCL's choice for a call: algorithm "RING", protocol "SIMPLE" and number of channels; None if not printed.

    The size is as NCCL counts it: one rank's part for all-gather and broadcast from 2.24 on. 2.20 to 2.22 print no collective.
    """

    hints = (b" Bytes -> ",)
    pattern = re.compile(
        rb"(?:([A-Z][A-Za-z]{1,30})(?: \[([A-Za-z ]{1,30})\])?: )?(\d{1,18}) Bytes -> "
        rb"(?:Algo (\w{1,30}) proto (\w{1,20})|Kernel (\w{1,60})|cudaMemcpy|RMA proxy|Rail )"
    )
    collective: str | None
    size_bytes: int
    algorithm: str | None
    protocol: str | None
    channels: int | None

    @classmethod
    def facts_in(cls, message: bytes) -> Sequence[Self]:
        """Return the choice."""
        match = cls.pattern.search(message)
        if not match:
            return []
        collective, special, size, algorithm, protocol, kernel = (text(part) if part else None for part in match.groups())
        channels: int | None = None
        if span := _CHANNEL_SPAN.search(message):
            channels = int(span[2]) - int(span[1]) + 1
        elif count := _CHANNEL_COUNT.search(message):
            channels = int(count[1])
        if algorithm and protocol:
            algorithm = _upper_name(algorithm, _ALGORITHMS)
            protocol = _upper_name(protocol, _PROTOCOLS)
        else:
            algorithm = " ".join(filter(None, (special, kernel))) or None
        return [cls(collective, int(size or 0), algorithm, protocol, channels)]


def _upper_name(word: str, names: tuple[str, ...]) -> str:
    return names[int(word)] if word.isdigit() and int(word) < len(names) else word.upper()


class HostProblem(Enum):
    """A host feature that a library reports as missing or misconfigured; the value is its text."""

    NO_RDMA_DEVICE = "NET/IB found no device"
    NO_VERBS_LIBRARY = "libibverbs cannot be loaded"
    NO_IOMMU_PASSTHROUGH = "iommu=pt is missing from the kernel command line"
    NO_AMD_IOMMU = "amd_iommu=on is missing from the kernel command line"
    NO_FINE_GRAIN_PCIE = "HSA_FORCE_FINE_GRAIN_PCIE=1 is missing from the environment"
    NUMA_BALANCING = "automatic NUMA balancing is on"
    NO_PEER_MEMORY = "no peer-memory support in the kernel"
    NO_PLUGIN_GDR = "the network plug-in has no GPUDirect RDMA here"


_PROBLEMS = {
    HostProblem.NO_RDMA_DEVICE: re.compile(rb"NET/IB ?: No device found"),
    # Since 2.30 there is a line for each name that is tried; libibverbs.so alone is missing wherever no development package is installed.
    HostProblem.NO_VERBS_LIBRARY: re.compile(rb"Failed to open libibverbs|Cou(?:nt|ld) not open libibverbs\.so\.1"),
    HostProblem.NO_IOMMU_PASSTHROUGH: re.compile(rb'Missing "iommu=pt" from kernel command line'),
    HostProblem.NO_AMD_IOMMU: re.compile(rb'Missing "amd_iommu=on" from kernel command line'),
    HostProblem.NO_FINE_GRAIN_PCIE: re.compile(rb'Missing "HSA_FORCE_FINE_GRAIN_PCIE=1" from environment'),
    HostProblem.NUMA_BALANCING: re.compile(rb"NUMA auto balancing enabled"),
    HostProblem.NO_PLUGIN_GDR: re.compile(rb"NET/OFI .{0,80}(?:GDR not supported|disabling GDR)"),
    HostProblem.NO_PEER_MEMORY: re.compile(rb"GDRDMA not enabled\. Could not find memory_peers directory"),
}


class ReportedProblem(LogFact, frozen=True):
    """A problem of the host that the library reports."""

    hints = (b"No device found", b"libibverbs", b'Missing "', b"NUMA auto", b"NET/OFI", b"GDRDMA not")
    problem: HostProblem

    @classmethod
    def facts_in(cls, message: bytes) -> Sequence[Self]:
        """Return the problems that the message shows."""
        return [cls(problem) for problem, pattern in _PROBLEMS.items() if pattern.search(message)]


class RcclMessage(LogFact, frozen=True):
    """A message that only RCCL prints."""

    hints = (b"rccl", b"version", b"hipify", b"Dmabuf", b"GDRDMA not", b"gpu_id")
    pattern = re.compile(
        rb"[lL]ibrccl|ROCr version|Hipruntime version|/hipify/|Kernel version: \d|Dmabuf feature|GDRDMA not enabled|"
        rb"gpu_id = \d{1,9}; unique_id"
    )


class LoggedWarning(LogFact, frozen=True):
    """The text of a warning, and whether it is a known message or shows a known problem."""

    text: str
    explained: bool


class ListedRank(LogFact, frozen=True):
    """A rank in the list of devices of nccl-tests, with its GPU."""

    pattern = re.compile(
        rb"(?:^|#)\s{0,9}Rank\s{1,9}(\d{1,7})\s{1,9}(?:Group\s{1,9}(\d{1,7})\s{1,9})?Pid\s{1,9}\d{1,10} on\s{1,40}(\S{1,253}) "
        rb"device\s{1,9}(\d{1,4})(?: \[[^\]]{1,20}\] (\S.{0,80}?)\s*$)?"
    )
    rank: int
    group: int | None
    host: str
    device: int
    model: str | None


class LinkedRelease(LogFact, frozen=True):
    """NCCL_VERSION_CODE of the library as nccl-tests prints it."""

    pattern = re.compile(rb"nccl-headers=\d{4,6} nccl-library=(\d{4,6})")
    code: int


_RECOGNIZED = tuple((hint, kind) for kind in LogFact.__subclasses__() for hint in kind.hints)


@lru_cache(maxsize=_CACHE_SIZE)
def facts_in(message: bytes) -> tuple[LogFact, ...]:
    """Return the facts of one message, the text after "NCCL INFO " or "NCCL WARN ", or "NCCL version ..."."""
    if message[:1] in _GRAPH_LINE_BEGINS and b"] - " in message:
        return tuple(GraphLink.facts_in(message))
    if _CALL_MARK in message or message.startswith(_WITHOUT_FACTS):
        return ()
    return tuple(fact for hint, kind in _RECOGNIZED if hint in message for fact in kind.facts_in(message))


def dotted(code: int) -> str:
    """Return NCCL_VERSION_CODE as text: 22907 is 2.29.7, 2708 is 2.7.8 (nccl.h changed the form with 2.9)."""
    major, rest = divmod(code, 10000) if code >= 10000 else divmod(code, 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


# NCCL's table of latencies and bandwidths (subsystem TUNING).


class TunedRate(NamedTuple):
    """An entry of NCCL's own table: latency and algorithm bandwidth by which it selects algorithm and protocol.

    Names are as in the table: "AllReduce", "Ring", "LL128". gb_per_s is 0 if NCCL cannot or may not use the combination.
    """

    collective: str
    algorithm: str
    protocol: str
    latency_us: float
    gb_per_s: float


_TABLE_PROTOCOLS = ("LL", "LL128", "Simple")
_TABLE_COLLECTIVES = frozenset({b"Broadcast", b"Reduce", b"AllGather", b"ReduceScatter", b"AllReduce"})
_TABLE_NAME = re.compile(rb"[A-Za-z_]{1,20}(?: {0,20}/ {0,20}[A-Za-z0-9]{1,10})?")
_TABLE_ENTRY = re.compile(rb" {0,20}(\d{1,9}\.\d)/ {0,20}(\d{1,9}\.\d) ?")
_MOST_COLUMNS = 64


def table_columns(message: bytes) -> list[tuple[str, str]] | None:
    """Return (algorithm, protocol) of each column below a heading of the table; None for other messages.

    "  Algorithm   |     Tree     |     Ring     |" has three protocols below each name; NCCL before 2.19 prints
    "Latency/AlgBw |    Tree/    LL |    Tree/ LL128 |" instead.
    """
    title, *cells = [cell.strip() for cell in message.split(b"|")]
    names = cells[:-1]
    if title not in (b"Algorithm", b"Latency/AlgBw") or len(cells) >= _MOST_COLUMNS or not all(map(_TABLE_NAME.fullmatch, names)):
        return None
    if title == b"Algorithm":
        return [(text(name), protocol) for name in names for protocol in _TABLE_PROTOCOLS]
    pairs = [text(name).partition("/") for name in names]
    return [(algorithm.strip(), protocol.strip()) for algorithm, _, protocol in pairs]


def table_row(message: bytes, columns: Sequence[tuple[str, str]]) -> list[TunedRate] | None:
    """Return the entries of a row of the table, "AllReduce |  16.8/  0.5 |  31.0/  0.0 |"; None for other messages."""
    collective, *cells = message.split(b"|")
    if collective.strip() not in _TABLE_COLLECTIVES or len(cells) != len(columns) + 1 or cells[-1].strip():
        return None
    entries = zip(columns, map(_TABLE_ENTRY.fullmatch, cells), strict=False)
    return [TunedRate(text(collective), *column, float(entry[1]), float(entry[2])) for column, entry in entries if entry]


# Connections. Only their lines prove a path: "Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA".

GDR = "/GDRDMA"
SHARED_MEMORY = "SHM"
_LONGEST_INDEX = 3  # of GPUs; addresses have four digits or more
_PLUGIN = rb"NET/(?:[A-Za-z0-9_.-]{1,40} ){1,3}[A-Za-z0-9_.-]{1,40}/[\w./()\[\]-]{1,60}"  # "NET/AWS Libfabric/0/GDRDMA"
_TRANSPORT = re.compile(rb"direct shared memory|P2P/direct pointer|" + _PLUGIN + rb"|[A-Z][\w./()\[\]-]{1,100}")
_PROXY = re.compile(r"\([^()]{0,40}\)")
_CHANNEL = re.compile(rb"\S{1,20}\s{1,9}\[?(\d{1,4})\]?(?:/\d{1,4})?\s{1,9}:")
_RANK = rb"\s{1,9}\d{1,7}(?:\[([0-9a-f]{1,8})\])?"
_ENDS = re.compile(_CHANNEL.pattern + _RANK + rb"(?:\s{1,9}->" + _RANK + rb")?")
_LONGEST_PATH = 120
_NETWORK = re.compile(r"NET/([^/]+)(?:/(\d{1,4}))?(.*)")


class Connection(NamedTuple):
    """What a line proves: its host, the GPU that wrote it ("3", "0000:1b:00.0", None when unknown), its direction, and the transport.

    `way`: "send", "receive" or "" (inside a host).
    """

    host: str
    gpu: str | None
    way: str
    transport: str

    @property
    def is_direct(self) -> bool:
        """Whether it uses GPUDirect RDMA."""
        return self.transport.endswith(GDR)


class NetworkPath(NamedTuple):
    """The parts of a transport between hosts: "NET/IB/3/GDRDMA" is of network IB, device 3 by NCCL's number, with suffix "/GDRDMA"."""

    network: str
    device: int | None
    suffix: str


@lru_cache(maxsize=_CACHE_SIZE)
def transport(text: bytes) -> str | None:
    """Return the transport after "via": "NET/IB/3/GDRDMA", "P2P/CUMEM/read", "SHM"; None for other text.

    Without proxy ranks, kinds of memory in brackets and what follows GDRDMA. Old and new names of shared memory are unified.
    """
    match = _TRANSPORT.match(text)
    if not match:
        return None
    name = _PROXY.sub("", match[0].decode("ascii", "replace")).rstrip("/.")
    if name == "direct shared memory" or name.split("/")[0] == SHARED_MEMORY:
        return SHARED_MEMORY
    network, direct, _ = name.partition(GDR)
    return network + direct if direct else name.removesuffix("/Shared")


@lru_cache(maxsize=_CACHE_SIZE)
def network_path(transport: str) -> NetworkPath | None:
    """Return the parts of a transport between hosts; None for one inside a host."""
    match = _NETWORK.fullmatch(transport)
    if match is None:
        return None
    return NetworkPath(match[1], int(match[2]) if match[2] else None, match[3])


def is_staged(transport: str) -> bool:
    """Return whether a transport is RDMA without GPUDirect, staged through host memory."""
    return (
        transport.startswith("NET/") and GDR not in transport and not transport.startswith("NET/Socket") and "tcp" not in transport.lower()
    )


def connection(host: str, message: bytes) -> Connection | None:
    """Return the connection that a line proves; None for other messages."""
    ranks, _, path = message.partition(b" via ")
    name = transport(path[:_LONGEST_PATH])
    if name is None:
        return None
    way = next((way for way in ("send", "receive") if ranks.endswith(f"[{way}]".encode())), "")
    ends = _ENDS.match(ranks)
    gpu = None
    if ends and way:  # a [send] line is written by the sending GPU, a [receive] line by the receiving one
        gpu = ends[2] if way == "send" else ends[3]
    return Connection(host, _gpu(gpu.decode()) if gpu else None, way, name)


def channel_of(message: bytes) -> int | None:
    """Return the channel of a connection, from the begin of its line; None where it has none."""
    match = _CHANNEL.match(message)
    return int(match[1]) if match else None


def _gpu(printed: str) -> str:
    """Return the driver's number, or the PCI address that older logs print as one hexadecimal number ("1b000")."""
    if len(printed) <= _LONGEST_INDEX:
        return printed
    number = int(printed, 16)
    return f"{number >> 20:04x}:{number >> 12 & 0xFF:02x}:{number >> 4 & 0xFF:02x}.{number & 0xF:x}"


# Calls (subsystem COLL), and the communicators that they use (INIT).

_ADDRESS = rb"(0x[0-9a-f]{1,16}|\(nil\))"
_BUFFER = rb"(?:0x[0-9a-f]{1,16}|\(nil\))"


class CollectiveCall(LogFact, frozen=True):
    """A call of a rank, with NCCL's numbers of data type and reduction op.

    launch is NCCL's count of launches (`opCount`): calls of one group have the same. rank: in the job, which only RCCL prints.
    """

    pattern = re.compile(
        rb"(\w{1,40}): opCount ([0-9a-f]{1,16}) sendbuff " + _BUFFER + rb" recvbuff " + _BUFFER + rb"(?: acc " + _BUFFER + rb")? "
        rb"count (\d{1,13}) datatype (\d{1,3}) op (\d{1,10}) root (\d{1,7}) comm " + _ADDRESS + rb" \[nranks=(\d{1,7})\] "
        rb"stream " + _ADDRESS + rb"(?: task \d{1,10} globalrank (\d{1,7}))?"
    )  # fmt: skip
    name: str
    launch: Address
    elements: int
    dtype: int
    redop: int
    root: int
    communicator: Address
    ranks: int
    stream: Address
    rank: int | None


class CommunicatorEvent(LogFact, frozen=True):
    """The begin or end of a communicator at one rank. event: "Init START", "Init COMPLETE", "Destroy COMPLETE" or "Abort COMPLETE".

    id: NCCL's, "0x…". A communicator that is a part of another one has the address of that one, the number of the split and its color.
    """

    pattern = re.compile(
        rb"\A(?:\[Rank \d{1,7}\] )?\w{0,40} ?comm " + _ADDRESS + rb" rank (\d{1,7}) nranks (\d{1,7}) cudaDev (\d{1,4}) .{0,200}?"
        rb"(?:commId (0x[0-9a-f]{1,16}) |parent " + _ADDRESS + rb" (?:split|child)Count (\d{1,10}) color (-?\d{1,10}) key -?\d{1,10} ?)?"
        rb"- (Init START|Init COMPLETE|Destroy COMPLETE|Abort COMPLETE)"
    )  # fmt: skip
    address: Address
    rank: int
    ranks: int
    device: int
    id: str | None
    parent: Address | None
    split: int | None
    color: int | None
    event: str
