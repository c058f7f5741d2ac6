"""Startup messages of NCCL and RCCL: version, settings, plug-ins, nodes, NVLink domain, and missing host features.

Each message becomes typed facts. The forms are those of NCCL 2.4 to 2.31 (src/init.cc, src/mnnvl.cc, src/plugin,
src/misc/ibvsymbols.cc,
src/graph/topo.cc) and of RCCL 2.16 to 2.27 (src/init.cc, src/transport/net_ib.cc), and the head of a table of nccl-tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

import msgspec

from collbench.machine.readers.text import printable

OF_A_CALL = b"opCount"  # in a message for every call, which are most of a log and not part of the start
FABRIC_COMPLETED = 3  # NVML_GPU_FABRIC_STATE_COMPLETED
_SLOWEST_SENSIBLE_GB_PER_S = 1.0  # a GPU or switch with less is described wrongly: PCIe 1.0 x4 has 1 GB/s
_EMULATED_BRIDGES = ("104c8232", "104c8233", "1b36")  # QEMU's switch ports (modelled on TI's XIO3130), and Red Hat's vendor id


class LogLibrary(Enum):
    """The library that wrote a log."""

    NCCL = "NCCL"
    RCCL = "RCCL"


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


class StartupRecord(msgspec.Struct, frozen=True):
    """What one message of a start shows."""


class Release(StartupRecord, frozen=True):
    """A library version. number: "2.27.3"; text: "2.27.3+cuda12.9", as printed; linked: nccl-tests reports it, not the library."""

    library: LogLibrary
    number: str
    text: str
    linked: bool = False


class LogSetting(StartupRecord, frozen=True):
    """A variable that the library read from the environment or from nccl.conf; its message is the same for both."""

    name: str
    value: str


class PluginSetting(StartupRecord, frozen=True):
    """A variable that a network plug-in sets itself."""

    name: str


class Communicator(StartupRecord, frozen=True):
    """A communicator as one of its ranks sees it."""

    ranks: int
    nodes: int
    local_ranks: int
    multi_node_nvlink: bool | None


class FabricMember(StartupRecord, frozen=True):
    """A GPU's NVLink domain; state 3 is complete."""

    domain: str
    clique: str
    state: int


class FabricBroken(StartupRecord, frozen=True):
    """Multi-node NVLink is present but its memory cannot be shared (IMEX); NCCL ends with an error."""

    clique_size: int | None


class NcclPlugin(StartupRecord, frozen=True):
    """A plug-in; api is its interface version."""

    kind: PluginKind
    state: PluginState
    name: str | None = None
    api: int | None = None


class DirectPeers(StartupRecord, frozen=True):
    """Whether all GPUs of a node reach each other directly."""

    every: bool


class SlowGraphLink(StartupRecord, frozen=True):
    """A PCIe link below 1 GB/s in NCCL's topology graph, above a switch ("PCI") or a GPU."""

    gb_per_s: float
    part: str
    emulated: bool


class NvSwitch(StartupRecord, frozen=True):
    """The graph has an NVSwitch."""


class CollNet(StartupRecord, frozen=True):
    """Ranks are connected for reductions in the network (SHARP)."""


class CollNetDevice(StartupRecord, frozen=True):
    """A network device that offers reductions in the network (SHARP)."""

    name: str


class TopologyFile(StartupRecord, frozen=True):
    """The file that describes the machine to the library."""

    path: str


class Platform(StartupRecord, frozen=True):
    """The kind of cloud instance that a network plug-in recognized."""

    name: str


class PluginRelease(StartupRecord, frozen=True):
    """The version of a network plug-in or of a library below it: "aws-ofi-nccl", "1.21.1"."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class RingPaths:
    """How the rings of a communicator reach the NICs: through another GPU (PXN), and by GPUDirect RDMA."""

    pxn: bool
    gdr: bool


class ListedGpu(StartupRecord, frozen=True):
    """A GPU in the list of devices of nccl-tests."""

    host: str
    device: int
    model: str


StartupFact = StartupRecord | RingPaths | HostProblem

_RELEASE = re.compile(rb"([NR])CCL version\s{0,9}:?\s{0,9}((\d{1,3}\.\d{1,3}(?:\.\d{1,3})?)[^\s,;]{0,60})")
_PLUGIN = re.compile(rb"(NET|TUNER|PROFILER)/Plugin ?: (.{1,400})")
_LOADED = re.compile(rb"(?:Loaded (?:(net|collnet) plugin )?|Using )(\S.{0,60}?) \(v(\d{1,3})\)")
_OLD_LOADED = re.compile(rb"Loaded (net|coll) plugin (\S.{0,60}?) \(v(\d{1,3})\)")
# v6 is the oldest interface of these releases; older releases try v5 next, and print at the end that none fits.
_UNSUITABLE = re.compile(
    rb"ncclNetPlugin symbols v\d and lower are not supported|ncclNetPlugin symbol \(v4 or v5\)|Failed to find ncclNetPlugin_v6 symbol|"
    rb"External network plugin \S{1,200} is unsupported"
)
_TREE_PART = re.compile(rb"\+ ([A-Z]{2,5})\[(\d{1,7}\.\d{1,3})\] - (PCI|GPU|NVS)/[0-9a-fA-F-]{1,24}(?: \(([0-9a-f]{4,16})\))?")
_TESTS = re.compile(rb"nccl-headers=(\d{4,6}) nccl-library=(\d{4,6})")
_GPU = re.compile(
    rb"#\s{0,9}Rank\s{1,9}\d{1,7}\s.{0,80}?Pid\s{1,9}\d{1,10} on\s{1,40}(\S{1,253}) device\s{1,9}(\d{1,3})"
    rb" \[[^\]]{1,20}\] (\S.{0,80}?)\s*$"
)
_CAUSES: tuple[tuple[re.Pattern[bytes], HostProblem], ...] = (
    (re.compile(rb"NET/IB ?: No device found"), HostProblem.NO_RDMA_DEVICE),
    # Since 2.30 there is a line for each name that is tried; libibverbs.so alone is missing wherever no development package is installed.
    (re.compile(rb"Failed to open libibverbs|Cou(?:nt|ld) not open libibverbs\.so\.1"), HostProblem.NO_VERBS_LIBRARY),
    (re.compile(rb'Missing "iommu=pt" from kernel command line'), HostProblem.NO_IOMMU_PASSTHROUGH),
    (re.compile(rb'Missing "amd_iommu=on" from kernel command line'), HostProblem.NO_AMD_IOMMU),
    (re.compile(rb'Missing "HSA_FORCE_FINE_GRAIN_PCIE=1" from environment'), HostProblem.NO_FINE_GRAIN_PCIE),
    (re.compile(rb"NUMA auto balancing enabled"), HostProblem.NUMA_BALANCING),
    (re.compile(rb"NET/OFI .{0,80}(?:GDR not supported|disabling GDR)"), HostProblem.NO_PLUGIN_GDR),
    (re.compile(rb"GDRDMA not enabled\. Could not find memory_peers directory"), HostProblem.NO_PEER_MEMORY),
)
_ONLY_RCCL = re.compile(
    rb"librccl|ROCr version|Hipruntime version|/hipify/|Librccl path|Kernel version: \d|Dmabuf feature|GDRDMA not enabled|"
    rb"gpu_id = \d{1,9}; unique_id"
)
# The messages of one fact each.
_FACTS: tuple[tuple[bytes, Callable[[re.Match[bytes]], StartupFact]], ...] = (
    (
        rb"\b((?:NCCL|RCCL)_[A-Z0-9_]{1,60}) set by environment to (.{1,300}?)\.?\s*$",
        lambda found: LogSetting(text(found[1]), text(found[2])),
    ),
    (
        rb"Comm config \w{1,40} reset to ((?:NCCL|RCCL)_[A-Z0-9_]{1,60})=(\S{1,80})",
        lambda found: LogSetting(text(found[1]), text(found[2])),
    ),
    (rb"NET/\w{1,20} (?:Adding|Setting) ((?:NCCL|RCCL)_[A-Z0-9_]{1,60})(?:=| to )", lambda found: PluginSetting(text(found[1]))),
    (
        rb"\bnRanks (\d{1,7}) nNodes (\d{1,6}) localRanks (\d{1,4}) localRank \d{1,4}(?: MNNVL (\d))?",
        lambda found: Communicator(int(found[1]), int(found[2]), int(found[3]), None if found[4] is None else found[4] != b"0"),
    ),
    (
        rb"fabric UUID ([0-9a-f]{1,16}\.[0-9a-f]{1,16}) cliqueId (0x[0-9a-f]{1,8}) state (\d{1,3})",
        lambda found: FabricMember(text(found[1]), text(found[2]), int(found[3])),
    ),
    (rb"MNNVL (?:\(cliqueSize (\d{1,5})\) )?is available but not working", lambda found: FabricBroken(int(found[1]) if found[1] else None)),
    (rb"isAllDirectP2p (\d)", lambda found: DirectPeers(found[1] != b"0")),
    (rb"Connected CollNet", lambda found: CollNet()),
    (rb"(?:NCCL_TOPO_FILE environment variable to|Loading topology file) (\S{1,300})", lambda found: TopologyFile(text(found[1]))),
    (rb"Running on (\S{1,60}) platform", lambda found: Platform(text(found[1]))),
    (rb"NET/OFI (?:Initializing|Using) (aws-ofi-nccl) (\S{1,40})", lambda found: PluginRelease(text(found[1]), text(found[2]))),
    (rb"Using Libfabric version (\d{1,3}\.\d{1,3})", lambda found: PluginRelease("libfabric", text(found[1]))),
    (rb"use ring PXN (\d) GDR (\d)", lambda found: RingPaths(found[1] != b"0", found[2] != b"0")),
)
_PATTERNS = tuple((re.compile(pattern), fact) for pattern, fact in _FACTS)
# Every message with a fact contains one of these. Most messages have none, and this test is fast.
_HINT = re.compile(
    rb"CCL version|set by environment|reset to|nNodes|fabric UUID|is available but|/Plugin|plugin|No device found|libibverbs|Missing \"|"
    rb"NUMA auto|GDRDMA not|isAllDirect|GDR|NET/OFI|CollNet|opology file|NCCL_TOPO_FILE|platform|use ring"
)


def startup_facts(message: bytes) -> tuple[StartupFact, ...]:
    """Return the facts of one message, () without any. A message is the text after "NCCL INFO " or "NCCL WARN "."""
    if OF_A_CALL in message or not _HINT.search(message):
        return ()
    release = release_in(message)
    facts: list[StartupFact] = [release] if release else []
    facts += [fact(match) for pattern, fact in _PATTERNS if (match := pattern.search(message))]
    facts += [cause for pattern, cause in _CAUSES if pattern.search(message)]
    return (*facts, *_plugins(message))


def tree_facts(message: bytes) -> tuple[StartupFact, ...]:
    """Return the facts of one line of the graph: "              + PCI[0.2] - GPU/0-cf000 (5)"."""
    match = _TREE_PART.search(message)
    if not match:
        return ()
    part, width = match[3].decode(), float(match[2])
    if part == "NVS":
        return (NvSwitch(),)
    if match[1] != b"PCI" or not 0 < width < _SLOWEST_SENSIBLE_GB_PER_S:
        return ()
    return (SlowGraphLink(width, part, part == "PCI" and (match[4] or b"").decode().startswith(_EMULATED_BRIDGES)),)


def release_in(line: bytes) -> Release | None:
    """Return the version in a line: "NCCL version 2.27.3+cuda12.9", "RCCL version : 2.22.3-develop:1234abc"."""
    match = _RELEASE.search(line)
    if not match:
        return None
    return Release(LogLibrary.RCCL if match[1] == b"R" else LogLibrary.NCCL, text(match[3]), text(match[2]))


def head_facts(line: bytes) -> tuple[StartupFact, ...]:
    """Return the facts of a line that nccl-tests prints above its table."""
    if match := _TESTS.search(line):
        # "2.26.2" for 22602; up to 2.8 the code was shorter: 2708
        code = int(match[2])
        major, rest = divmod(code, 10000) if code >= 10000 else divmod(code, 1000)
        number = f"{major}.{rest // 100}.{rest % 100}"
        return (Release(LogLibrary.NCCL, number, number, linked=True),)
    if match := _GPU.search(line):
        return (ListedGpu(text(match[1]), int(match[2]), text(match[3])),)
    return ()


def only_rccl(message: bytes) -> bool:
    """Return whether only RCCL prints this message."""
    return bool(_ONLY_RCCL.search(message))


def _plugins(message: bytes) -> Iterator[NcclPlugin]:
    if b"plugin" not in message and b"Plugin" not in message:
        return
    match = _PLUGIN.search(message)
    kind = PluginKind[match[1].decode()] if match else PluginKind.NET
    if match and (loaded := _LOADED.search(match[2]) or _OLD_LOADED.search(match[2])):
        kind = PluginKind.COLLNET if loaded[1] in (b"collnet", b"coll") else kind
        yield NcclPlugin(kind, PluginState.LOADED, text(loaded[2]), int(loaded[3]))
    elif _UNSUITABLE.search(message):
        yield NcclPlugin(kind, PluginState.UNSUITABLE)
    elif match and (b"Could not find" in match[2] or b"No plugin found" in match[2] or b"cannot open shared object" in match[2]):
        yield NcclPlugin(kind, PluginState.ABSENT)


def text(part: bytes) -> str:
    """Return untrusted bytes as printable text."""
    return printable(part.decode("utf-8", "replace"))
