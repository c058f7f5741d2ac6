"""What a log of NCCL or RCCL (NCCL_DEBUG=INFO) tells of the paths that the bytes took.

Only the connection lines, "Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/3/GDRDMA", prove a path. Lines such as "Using network IB",
"GPU Direct RDMA Enabled for HCA 0" or "NET/Socket : Using" tell what could be used. Spellings from 2.4 to 2.30 are known.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from collbench.machine.readers.nccl_facts import Facts, bool_of, kinds_of, staged
from collbench.machine.readers.nccl_lines import is_packed, lines_in
from collbench.machine.readers.nccl_startup import CollNet, Communicator, Library, Release, Setting, StartupFact
from collbench.machine.readers.nccl_words import GDR, SHARED_MEMORY, Choice, Connection
from collbench.machine.readers.text import HEAD, Unreadable, printable
from collbench.machine.source_files import text_of

__all__ = ["GDR", "KIND", "SHARED_MEMORY", "NcclLog", "looks_like", "read", "read_file", "read_files"]

KIND = "NCCL log"
_OURS = re.compile(r"\b[NR]CCL (?:INFO|WARN|TRACE)\b|\b[NR]CCL version\b")
_Fact = TypeVar("_Fact", bound=StartupFact)
_NET = re.compile(r"^NET/([^/]+)(?:/(\d{1,4}))?")


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
    channels        (host, connection) of every line that proves a path, the first 16,384 of them; channels_left_out: how many more lines
    names           of network devices by host and NCCL's number: ("node1", 0): "mlx5_0:1/IB", "mlx5_0+mlx5_1"
    choices         (collective, bytes) -> what NCCL chose -> how many calls, the most frequent first. Bytes as NCCL counts them: one
                    rank's part for all-gather and broadcast from 2.24 on; 2.20 to 2.22 name no collective (None)
    stated          how many channels NCCL says it has: {"coll": 16, "nvls": 16, "p2p": 32}
    library         NCCL, unless the log shows RCCL
    startup         (host, fact): what the library prints while it starts, see `nccl_startup`; the host is "" where a line names none
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
    channels: tuple[tuple[str, Connection], ...] = ()
    channels_left_out: int = 0
    names: Mapping[tuple[str, int], str] = field(default_factory=dict)
    choices: Mapping[tuple[str | None, int], Mapping[Choice, int]] = field(default_factory=dict)
    stated: Mapping[str, int] = field(default_factory=dict)
    library: Library = Library.NCCL
    startup: tuple[tuple[str, StartupFact], ...] = ()

    @property
    def gdr_refused(self) -> tuple[str, ...]:
        """HCAs that NCCL says it cannot use so. A distance ("HCA 3") that is too far from one GPU and not from all refuses nothing."""
        near = any(_is_distance(name) for name in self.gdr_enabled)
        return tuple(name for name in self.gdr_disabled if name not in self.gdr_enabled and not (near and _is_distance(name)))

    @property
    def release(self) -> Release | None:
        """The version: as the library prints it, else as nccl-tests does."""
        found = self.startup_of(Release)
        return next((release for release in found if not release.linked), found[0] if found else None)

    @property
    def job(self) -> Communicator | None:
        """The largest communicator."""
        return max(self.startup_of(Communicator), key=lambda each: (each.ranks, each.nodes), default=None)

    @property
    def settings(self) -> dict[str, str]:
        """The variables that were set, by name; the last value that a rank printed."""
        return {setting.name: setting.value for setting in self.startup_of(Setting)}

    @property
    def collnet(self) -> bool:
        """Whether ranks are connected for reductions in the network (SHARP)."""
        return bool(self.lines_of("COLLNET") or self.startup_of(CollNet))

    @property
    def inside_one_node(self) -> bool:
        """Whether all ranks are on one node, as far as the log shows: a cut log may have no more than connections inside a node."""
        return self.job.nodes == 1 if self.job else bool(self.transports) and not self.lines_of("NET")

    def startup_of(self, kind: type[_Fact]) -> list[_Fact]:
        """The facts of one kind, each once, in the order of the log."""
        return list(dict.fromkeys(fact for _, fact in self.startup if isinstance(fact, kind)))

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
    return bool(_OURS.search(text[:HEAD]))


def read(text: str, name: str) -> NcclLog:
    """The facts of a log. Raises Unreadable for text without a line of NCCL."""
    return _log([[line.encode("utf-8", "replace") for line in text.splitlines()]], name)


def read_file(file: Path) -> NcclLog:
    """The facts of a log file of any size, in bounded memory; a compressed one may have 64 MiB.

    Raises Unreadable when it cannot be read, is a folder, a pipe or a device, is empty or binary, or holds no line of NCCL.
    """
    return read(text_of(file), file.name) if is_packed(file) else read_files([file], file.name)


def read_files(files: Iterable[Path], name: str) -> NcclLog:
    """The facts of several plain files as of one log, those of one process. Raises as `read_file` does."""
    return _log((lines for file in files for lines in lines_in(file)), name)


def _log(blocks: Iterable[list[bytes]], name: str) -> NcclLog:
    facts = Facts()
    for lines in blocks:
        facts.take(lines)
    facts.add_up()
    if not facts.lines:
        raise Unreadable(f"{printable(name)} has no line of NCCL: run with NCCL_DEBUG=INFO and save what the ranks print")
    return _told(facts, printable(name))


def _told(facts: Facts, name: str) -> NcclLog:
    net = _net(facts)
    ranks = max(facts.ranks, facts.listings.get(False, 0)) or None
    startup = tuple(facts.startup)
    releases = [fact for _, fact in startup if isinstance(fact, Release)]
    releases.sort(key=lambda release: release.linked)
    return NcclLog(
        name, releases[0].number if releases else None, net, dict(facts.transports), tuple(facts.hosts), tuple(facts.devices["IB"]),
        tuple(facts.devices["Socket"]),
        tuple(facts.gdr[True]), tuple(facts.gdr[False]), ("send", True) in facts.ways, ("receive", True) in facts.ways,
        sum(count for key, count in facts.transports.items() if staged(key)), _sockets(facts, net), bool_of(facts.dma_buf),
        bool_of(facts.nvls), bool_of(facts.ordering), ranks, max(facts.listings.values(), default=ranks), kinds_of(facts.graph),
        dict(facts.paths), tuple(facts.warnings), tuple(facts.speeds), *facts.provider, facts.groups or None,
        tuple(gpu for gpu, ways in facts.local.items() if ways == {"send", "receive"}),
        tuple(gpu for gpu, ways in facts.local.items() if "staged" in ways),
        tuple(facts.channels), facts.left_out, _nics(facts, net), _choices(facts), dict(facts.stated),
        Library.RCCL if facts.rccl else Library.NCCL, startup,
    )  # fmt: skip


def _net(facts: Facts) -> str | None:
    """Connections first, then what NCCL says it uses, then which network it found."""
    used: Counter[str] = Counter()
    for key, count in facts.transports.items():
        if match := _NET.match(key):
            used[match[1]] += count
    if used:
        return used.most_common(1)[0][0]
    return next(reversed(facts.networks), None) or next((kind for kind in ("IB", "Socket") if facts.devices[kind]), None)


def _sockets(facts: Facts, net: str | None) -> Literal["data", "bootstrap"] | None:
    if net == "Socket":
        return "data"
    return "bootstrap" if facts.devices["Socket"] else None


def _nics(facts: Facts, net: str | None) -> dict[tuple[str, int], str]:
    """What NCCL calls a device at last goes before the list in which it found them: 2.30 numbers them anew."""
    kind = "Socket" if net == "Socket" else "IB"
    found = {(host, number): name for (of, host, number), name in facts.listed.items() if of == kind}
    return found | {place: name for place, name in facts.nics.items() if name not in found.get(place, "")}


def _choices(facts: Facts) -> dict[tuple[str | None, int], dict[Choice, int]]:
    found: dict[tuple[str | None, int], dict[Choice, int]] = {}
    for (collective, size, choice), calls in facts.choices.most_common():
        found.setdefault((collective, size), {})[choice] = calls
    return dict(sorted(found.items(), key=lambda item: (item[0][0] or "", item[0][1])))


def _is_distance(name: str) -> bool:
    return name.startswith("HCA ")
