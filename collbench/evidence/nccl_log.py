"""What a log of NCCL or RCCL (NCCL_DEBUG=INFO) tells of the paths that the bytes took.

Only the connection lines, "Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/3/GDRDMA", prove a path. Lines such as "Using network IB",
"GPU Direct RDMA Enabled for HCA 0" or "NET/Socket : Using" tell what could be used. Spellings from 2.4 to 2.30 are known.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from collbench.topology.text import Unreadable, decoded, printable

KIND = "NCCL log"
GDR = "/GDRDMA"
SHARED_MEMORY = "SHM"

_HEAD = 64 << 10
_LONGEST_INDEX = 3  # of GPUs; addresses have four digits or more
_LONGEST = 4096  # of a line; ring listings of thousands of ranks are cut
_MOST_WARNINGS = 100
_OURS = re.compile(r"\b[NR]CCL (?:INFO|WARN|TRACE)\b|\b[NR]CCL version\b")
_HOST = re.compile(r"(?:^|[\s>:])([A-Za-z0-9][\w.-]{0,252}):\d{1,10}:\d{1,10} \[-?\d{1,4}\] ")
_PLUGIN = r"NET/(?:[A-Za-z0-9_.-]{1,40} ){1,3}[A-Za-z0-9_.-]{1,40}/[\w./()\[\]-]{1,60}"  # "NET/AWS Libfabric/0/GDRDMA"
_VIA = re.compile(rf"(?:\[(send|receive)\] )?via (direct shared memory|P2P/direct pointer|{_PLUGIN}|[A-Z][\w./()\[\]-]{{1,100}})")
_ENDS = re.compile(r" : \d{1,7}\[([0-9a-f]{1,8})\] -> \d{1,7}\[([0-9a-f]{1,8})\]")
_PROXY = re.compile(r"\([^()]{0,40}\)")
_NET = re.compile(r"^NET/([^/]+)(?:/(\d{1,4}))?")
_VERSION = re.compile(r"\b[NR]CCL version\s*:?\s*(\d{1,3}\.\d{1,3}(?:\.\d{1,3})?)")
_NETWORK = re.compile(r"Using network (\S[\w .-]{0,60})")
_DEVICES = re.compile(r"NET/(IB|Socket) ?: Using (.*)$")
_DEVICE = re.compile(r"\[\d{1,4}\]([\w.-]{1,64}(?::\d{1,3}/\w{1,10})?)")
_GDR = re.compile(r"GPU Direct RDMA (Enabled|Disabled) for (?:GPU \S+ / )?HCA ([0-9a-f]{1,16})\b(?: '([^']{1,64})')?")
_DMA_BUF = re.compile(r"DMA-BUF (?:is (not )?available|registrations: (true|false))")
_NVLS = re.compile(r"NVLS multicast support is (not )?available")
_SPEED = re.compile(r"[Dd]efaulting to 10 Gbps")
_SPEED_OF = re.compile(r"/sys/class/net/([\w.-]{1,64})/speed")
_RANKS = re.compile(r"\bnranks (\d{1,7})\b", re.IGNORECASE)
_LISTING = re.compile(r"(?:Channel|Ring) \d{1,4}(?:/\d{1,4})? :((?: +\d{1,7})+)( *\.\.\.)?\s*$")
_GRAPH = re.compile(r"\+ ([A-Z][A-Z0-9]{1,5})\[(\d{1,7}\.\d{1,3})\] - ")
_PATH = re.compile(r"\(\d{1,3}/\d{1,7}\.\d{1,3}/([A-Z][A-Z0-9]{1,5})\)")
_PROVIDER = re.compile(r"Selected Provider is (\S{1,40}) \(found (\d{1,4}) nics\)", re.IGNORECASE)
_GROUP = re.compile(r"NIC group (\d{1,4}) device")
_BELOW_SWITCH = frozenset({"LOC"})


@dataclass(frozen=True, slots=True)
class NcclLog:
    """A log's facts; () and None where it does not tell.

    version         "2.22.3"
    net             what carried the bytes between hosts: "IB", "Socket", "Libfabric", "IBext_v8", the plugin's own name
    transports      "NET/IB/3/GDRDMA", "P2P/CUMEM", "SHM" -> lines; the number is NCCL's index, not that of mlx5_<number>
    hosts           that wrote lines, in order of appearance
    hcas            "mlx5_0:1/RoCE" as NCCL uses them; interfaces those of its sockets
    gdr_enabled     HCAs that NCCL says GPUs may reach (capability, no proof); gdr_disabled: may not; one may stand in both
    gdr_gpus        of which both directions are shown: (host, "3") by the driver's number, (host, "0000:1b:00.0") in older logs; the
                    host is "" where the lines name none; staged_gpus: those with lines of RDMA without GDRDMA
    gdr_send        a [send] line with GDRDMA is there; gdr_receive a [receive] line; staged: NET lines of RDMA without it
    sockets         "data" where bytes go over TCP, "bootstrap" where only ranks meet there
    dma_buf         NCCL's plugin registers memory through dma-buf; False does not exclude a peer-memory module
    ranks           stated; ranks_at_least from cut listings
    graph           width in GB/s of the links that NCCL assumes, by kind ("PCI", "SYS"); paths: kinds between parts -> how many
    default_speed   interfaces whose speed NCCL could not read and took for 10 Gb/s ("?" where the line names none)
    nics, nic_groups    what a libfabric plugin found
    """

    name: str = ""
    version: str | None = None
    net: str | None = None
    transports: Mapping[str, int] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    hcas: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    gdr_enabled: tuple[str, ...] = ()
    gdr_disabled: tuple[str, ...] = ()
    gdr_send: bool = False
    gdr_receive: bool = False
    staged: int = 0
    sockets: Literal["data", "bootstrap"] | None = None
    dma_buf: bool | None = None
    nvls_available: bool | None = None
    relaxed_ordering: bool | None = None
    ranks: int | None = None
    ranks_at_least: int | None = None
    graph: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    paths: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    default_speed: tuple[str, ...] = ()
    provider: str | None = None
    nics: int | None = None
    nic_groups: int | None = None
    gdr_gpus: tuple[tuple[str, str], ...] = ()
    staged_gpus: tuple[tuple[str, str], ...] = ()

    @property
    def gdr_refused(self) -> tuple[str, ...]:
        """HCAs that NCCL says it cannot use so. A distance ("HCA 3") that is too far from one GPU and not from all refuses nothing."""
        near = any(_is_distance(name) for name in self.gdr_enabled)
        return tuple(name for name in self.gdr_disabled if name not in self.gdr_enabled and not (near and _is_distance(name)))

    @property
    def gdr_proof(self) -> str | None:
        """A sentence that proves GPUDirect RDMA in use: the [send] and the [receive] line; None without both."""
        if not (self.gdr_send and self.gdr_receive):
            return None
        return f"{self.name} has [send] and [receive] via {', '.join(key for key in self.transports if key.endswith(GDR))}"

    @property
    def indices(self) -> tuple[int, ...]:
        """The network devices used, by NCCL's own numbers."""
        found = (_NET.match(key) for key in self.transports)
        return tuple(sorted({int(match[2]) for match in found if match and match[2]}))

    def lines_of(self, kind: str) -> int:
        """How many connections a kind of transport has: "SHM", "P2P", "NET/Socket"."""
        return sum(count for key, count in self.transports.items() if key == kind or key.startswith(f"{kind}/"))


def looks_like(text: str, name: str) -> bool:
    """Its first 64 KiB have a line of NCCL or RCCL."""
    return bool(_OURS.search(text[:_HEAD]))


def read(text: str, name: str) -> NcclLog:
    """The facts of a log. Raises Unreadable for text without a line of NCCL."""
    facts = _Facts()
    for line in _lines(text):
        facts.take(line)
    if not facts.lines:
        raise Unreadable(f"{printable(name)} has no line of NCCL: run with NCCL_DEBUG=INFO and save what the ranks print")
    return facts.log(printable(name))


def read_file(file: Path) -> NcclLog:
    """The facts of a log file. Raises Unreadable when it cannot be read, is binary, or holds no line of NCCL."""
    try:
        data = file.read_bytes()
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise Unreadable(f"{printable(str(file))} cannot be read ({why}): name the file that holds NCCL's log") from None
    return read(decoded(data, file.name), file.name)


class _Facts:
    """Grows line by line."""

    def __init__(self) -> None:
        self.lines = 0
        self.version: str | None = None
        self.hosts: dict[str, None] = {}
        self.transports: Counter[str] = Counter()
        self.ways: Counter[tuple[str, str]] = Counter()
        self.local: dict[tuple[str, str], set[str]] = {}
        self.networks: list[str] = []
        self.devices: dict[str, dict[str, None]] = {"IB": {}, "Socket": {}}
        self.gdr: dict[str, dict[str, None]] = {"Enabled": {}, "Disabled": {}}
        self.nvls: list[bool] = []
        self.dma_buf: list[bool] = []
        self.ordering: list[bool] = []
        self.ranks: list[int] = []
        self.listed: list[tuple[int, bool]] = []
        self.graph: dict[str, set[float]] = {}
        self.paths: Counter[str] = Counter()
        self.warnings: dict[str, None] = {}
        self.speeds: dict[str, None] = {}
        self.provider: tuple[str | None, int | None] = (None, None)
        self.groups: set[int] = set()

    def take(self, line: str) -> None:
        """A line of the log; others on the way (the program's own output) are passed over."""
        if not _OURS.search(line):
            return
        self.lines += 1
        if match := _HOST.search(line):
            self.hosts.setdefault(match[1])
        if (match := _VERSION.search(line)) and self.version is None:
            self.version = match[1]
        if "NCCL WARN" in line and len(self.warnings) < _MOST_WARNINGS:
            self.warnings.setdefault(printable(line.partition("NCCL WARN")[2]))
        self._connection(line)
        self._network(line)
        self._capability(line)
        self._graph(line)

    def _connection(self, line: str) -> None:
        if match := _VIA.search(line):
            transport = _transport(match[2])
            self.transports[transport] += 1
            self.ways[match[1] or "", "gdr" if transport.endswith(GDR) else "other"] += 1
            self._local(line, match[1], transport)
        elif match := _LISTING.search(line):
            self.listed.append((max(map(int, match[1].split())) + 1, bool(match[2])))
        if match := _RANKS.search(line):
            self.ranks.append(int(match[1]))

    def _local(self, line: str, way: str | None, transport: str) -> None:
        """A [send] line is written by the GPU that sends, a [receive] line by the one that receives."""
        ends, host = _ENDS.search(line), _HOST.search(line)
        if way and ends and (transport.endswith(GDR) or _staged(transport)):
            gpu = (host[1] if host else "", _gpu(ends[1] if way == "send" else ends[2]))
            self.local.setdefault(gpu, set()).add(way if transport.endswith(GDR) else "staged")

    def _network(self, line: str) -> None:
        if match := _NETWORK.search(line):
            self.networks.append(match[1].strip())
        if match := _DEVICES.search(line):
            used = match[2].partition("OOB")[0]
            self.devices[match[1]].update(dict.fromkeys(_DEVICE.findall(used)))
            if match[1] == "IB":
                self.ordering.append("[RO]" in used)
        if _SPEED.search(line):
            named = _SPEED_OF.search(line)
            self.speeds.setdefault(named[1] if named else "?")
        if match := _PROVIDER.search(line):
            self.provider = match[1], int(match[2])
        if match := _GROUP.search(line):
            self.groups.add(int(match[1]))

    def _capability(self, line: str) -> None:
        if match := _GDR.search(line):
            self.gdr[match[1]].setdefault(match[3] or f"HCA {match[2]}")
        if match := _NVLS.search(line):
            self.nvls.append(match[1] is None)
        if match := _DMA_BUF.search(line):
            self.dma_buf.append(match[1] is None and match[2] != "false")

    def _graph(self, line: str) -> None:
        for kind, width in _GRAPH.findall(line):
            self.graph.setdefault(kind, set()).add(float(width))
        self.paths.update(kind for kind in _PATH.findall(line) if kind not in _BELOW_SWITCH)

    def log(self, name: str) -> NcclLog:
        """What was found."""
        net = self._net()
        ranks = max((*self.ranks, *(most for most, cut in self.listed if not cut)), default=None)
        return NcclLog(
            name, self.version, net, dict(self.transports), tuple(self.hosts), tuple(self.devices["IB"]), tuple(self.devices["Socket"]),
            tuple(self.gdr["Enabled"]), tuple(self.gdr["Disabled"]), bool(self.ways["send", "gdr"]), bool(self.ways["receive", "gdr"]),
            sum(count for key, count in self.transports.items() if _staged(key)), self._sockets(net), _all(self.dma_buf), _all(self.nvls),
            _all(self.ordering), ranks, max((most for most, _ in self.listed), default=ranks),
            {kind: tuple(sorted(widths)) for kind, widths in self.graph.items()}, dict(self.paths), tuple(self.warnings),
            tuple(self.speeds), self.provider[0], self.provider[1], max(self.groups) + 1 if self.groups else None,
            tuple(gpu for gpu, ways in self.local.items() if ways == {"send", "receive"}),
            tuple(gpu for gpu, ways in self.local.items() if "staged" in ways),
        )  # fmt: skip

    def _net(self) -> str | None:
        """Connections first, then what NCCL says it uses, then which network it found."""
        used = Counter({match[1]: count for key, count in self.transports.items() if (match := _NET.match(key))})
        if used:
            return used.most_common(1)[0][0]
        return self.networks[-1] if self.networks else next((kind for kind in ("IB", "Socket") if self.devices[kind]), None)

    def _sockets(self, net: str | None) -> Literal["data", "bootstrap"] | None:
        if net == "Socket":
            return "data"
        return "bootstrap" if self.devices["Socket"] else None


def _transport(text: str) -> str:
    """Without proxies' ranks and memory kinds in brackets; old and new words for shared memory are one."""
    bare = _PROXY.sub("", text).rstrip("/.")
    return SHARED_MEMORY if bare == "direct shared memory" or bare.split("/")[0] == SHARED_MEMORY else bare.removesuffix("/Shared")


def _staged(transport: str) -> bool:
    match = _NET.match(transport)
    return bool(match) and not transport.endswith(GDR) and not transport.startswith("NET/Socket") and "tcp" not in transport.lower()


def _gpu(text: str) -> str:
    """The driver's number, or the PCI address that older logs print as one hexadecimal number ("1b000")."""
    if len(text) <= _LONGEST_INDEX:
        return text
    number = int(text, 16)
    return f"{number >> 20:04x}:{number >> 12 & 0xFF:02x}:{number >> 4 & 0xFF:02x}.{number & 0xF:x}"


def _is_distance(name: str) -> bool:
    return name.startswith("HCA ")


def _all(answers: Iterable[bool]) -> bool | None:
    listed = list(answers)
    return all(listed) if listed else None


def _lines(text: str) -> Iterator[str]:
    return (line[:_LONGEST] for line in text.splitlines())
