"""What is read around a cell on each host, by the first of its ranks: counters of interfaces, ports and GPUs, and telemetry meanwhile."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from collbench.control.world import World
from collbench.measure import counters
from collbench.measure.counters import Counts, Gpus, entries
from collbench.measure.crossing import CaseActivity, evidence
from collbench.measure.prepared_cell import PreparedCase
from collbench.measure.telemetry import Telemetry
from collbench.operations.cell import Cell

# What a rank's CPUs were allowed and made to do while a cell was measured. Everything is readable without privileges on Linux.

_STAT = Path("/proc/stat")
_CPUS = Path("/sys/devices/system/cpu")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_STEAL_FIELD = 7  # of a cpu line in /proc/stat: user nice system idle iowait irq softirq steal (proc(5))
_NOTICEABLE_STEAL = 0.02
_FEWEST_TICKS = 5  # of 10 ms: less is a rounding


@dataclass(frozen=True)
class CpuReading:
    """Counters of this process and of the CPUs it may use; two of them make a `Span`. Ticks are the kernel's (10 ms)."""

    stolen: int
    ticks: int
    preempted: int


@dataclass(frozen=True)
class Span:
    """What happened between two moments.

    stolen     share of the CPUs' time that the hypervisor gave to others (0 … 1); None where the kernel does not count it
    preempted  how often this process lost its core against its will
    """

    stolen: float | None
    preempted: int

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def now(stat: Path = _STAT) -> CpuReading:
    """The counters at this moment; zeros where there is no /proc."""
    usable = {f"cpu{cpu}" for cpu in os.sched_getaffinity(0)}
    rows = [line.split()[1:] for line in _lines(stat) if line.startswith("cpu") and line.partition(" ")[0] in usable]
    counts = [[int(field) for field in row[: _STEAL_FIELD + 1] if field.isdecimal()] for row in rows]
    stolen = sum(row[_STEAL_FIELD] for row in counts if len(row) > _STEAL_FIELD)
    return CpuReading(stolen, sum(map(sum, counts)), resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw)


def between(before: CpuReading, after: CpuReading) -> Span:
    """What happened from `before` to `after`."""
    ticks, stolen = after.ticks - before.ticks, after.stolen - before.stolen
    known = after.ticks > 0 and ticks >= 0 and stolen >= 0
    return Span((stolen / ticks if stolen >= _FEWEST_TICKS else 0.0) if known else None, max(0, after.preempted - before.preempted))


def noticeable(stolen: float | None) -> bool:
    """Whether the hypervisor took so much that times mean something else."""
    return stolen is not None and stolen > _NOTICEABLE_STEAL


def settings(cpus_folder: Path = _CPUS, huge_pages: Path = _HUGE_PAGES) -> dict[str, Any]:
    """What does not change from cell to cell on this rank: frequency governor and boost of its CPUs, huge pages; None is unknown."""
    names = sorted({text for cpu in os.sched_getaffinity(0) if (text := _text(cpus_folder / f"cpu{cpu}" / "cpufreq" / "scaling_governor"))})
    return {"governor": "+".join(names) or None, "boost": _boost(cpus_folder), "huge_pages": _chosen(_text(huge_pages))}


def binding(cpus: Sequence[Sequence[str]]) -> str:
    """How ranks are bound, from the names of the CPUs each may use: "each rank on 1 CPU of its own", "ranks share 2 CPUs"."""
    sizes, together = [len(set(each)) for each in cpus], {cpu for each in cpus for cpu in each}
    if len(sizes) > 1 and sum(sizes) == len(together):
        most = max(sizes)
        return f"each rank on {most} CPU{'s' if most > 1 else ''} of its own"
    return f"ranks share {len(together)} CPU{'s' if len(together) != 1 else ''}"


def _boost(cpus_folder: Path) -> bool | None:
    """Turbo, as the generic driver or Intel's reports it."""
    generic, intel = _text(cpus_folder / "cpufreq" / "boost"), _text(cpus_folder / "intel_pstate" / "no_turbo")
    if generic in ("0", "1"):
        return generic == "1"
    return intel == "0" if intel in ("0", "1") else None


def _chosen(text: str | None) -> str | None:
    """The word in brackets: "always [madvise] never" is madvise."""
    return next((word.strip("[]") for word in (text or "").split() if word.startswith("[")), None)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def _lines(path: Path) -> list[str]:
    return (_text(path) or "").splitlines()


# What this host's interfaces, RDMA ports and GPUs counted between two readings: which of them moved how many bytes.
#
# Counters belong to the host, not to the job: what else runs there is counted, too. One that went back (it wrapped, or was reset)
# is unknown, and so is what came or went between the readings; nothing that is unknown is ever 0.

Grown = dict[str, dict[str, int | None]]
_TELLING = ("tx_bytes", "sent_pkts")  # a port without either does not count what it moves; what sent_pkts counts an interface carries
_UNCOUNTED = ("cxi", "gni", "bxi")  # networks of their own (Slingshot, Aries, BXI) with bytes that neither interfaces nor ports count


@dataclass(frozen=True)
class Counters:
    """One reading.

    interfaces, ports, gpus   counters by place ("eth0", "mlx5_0/1", a GPU's PCI address); all only ever grow
    leaving                   the interfaces with bytes that leave this host and are counted nowhere else
    states                    by GPU the values that are not counters: temperature_c, slowed_by
    tcp                       segments that this host's TCP has sent, and sent again
    uncounted                 devices of networks that have no counters here
    """

    interfaces: Mapping[str, Counts] = field(default_factory=dict)
    ports: Mapping[str, Counts] = field(default_factory=dict)
    gpus: Mapping[str, Counts] = field(default_factory=dict)
    leaving: frozenset[str] = frozenset()
    states: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    uncounted: tuple[str, ...] = ()
    tcp: Counts = field(default_factory=dict)


def read(root: str = "", gpus: Gpus | None = None) -> Counters:
    """The counters at this moment. About 0.1 ms an interface; RDMA ports, for which the driver asks the card, and GPUs take longer.

    `root` is where a copied /sys lies. Never raises: what is not there or not readable is not in the reading.
    """
    interfaces, leaving = counters.read(root)
    counts, states = gpus.read() if gpus else ({}, {})
    uncounted = tuple(name for kind in _UNCOUNTED for name in entries(f"{root}/sys/class/{kind}"))
    return Counters(interfaces, counters.read_infiniband(root), counts, leaving, states, uncounted, counters.read_tcp(root))


def moved(before: Counters, after: Counters) -> dict[str, Any]:
    """JSON-ready: per place the counters that grew and by how much (None: unknown), and what keeps the sum from being known.

    interfaces, ports, gpus   places where something grew
    tcp             segments sent, and sent again
    leaving         interfaces with bytes that leave this host, moved or not
    came_or_went    places that only one of the two readings has
    silent          ports and devices that do not count what they move
    idle            ports that count it, and sent nothing
    states          by GPU the states at both ends
    """
    kinds = [(before.interfaces, after.interfaces), (before.ports, after.ports), (before.gpus, after.gpus)]
    ports = grown(*kinds[1])
    counting = [name for name, counts in before.ports.items() if "tx_bytes" in counts and "tx_bytes" in after.ports.get(name, {})]
    return {
        "interfaces": grown(*kinds[0]), "ports": ports, "gpus": grown(*kinds[2]),
        "leaving": sorted(before.leaving & after.leaving), "tcp": _difference(before.tcp, after.tcp),
        "came_or_went": sorted(name for then, now in kinds for name in set(then) ^ set(now)),
        "silent": [*after.uncounted, *(name for name, counts in after.ports.items() if not any(word in counts for word in _TELLING))],
        "idle": [name for name in counting if counters.moved(ports.get(name, {}), "tx") == 0],
        "states": {name: {"before": before.states.get(name), "after": state} for name, state in after.states.items()},
    }  # fmt: skip


def grown(before: Mapping[str, Counts], after: Mapping[str, Counts]) -> Grown:
    """By place what changed of the counters that both have; None for one that went back. Places without a change are left out."""
    found = {name: _difference(before[name], counts) for name, counts in after.items() if name in before}
    return {name: changes for name, changes in found.items() if changes}


def _difference(before: Counts, after: Counts) -> dict[str, int | None]:
    """A counter that is no longer reported is unknown, as one that decreased."""
    lost: dict[str, int | None] = dict.fromkeys((name for name in before if name not in after), None)
    steps = {name: after[name] - before[name] for name in after if name in before}
    return {**{name: step if step > 0 else None for name, step in steps.items() if step}, **lost}


_SMALL_BYTES = 1 << 20  # a case of smaller messages shows nothing about clocks, and is the one that a second process would disturb


@dataclass
class Instruments:
    """This process's: NVML and telemetry only where it is its host's first rank, and the cells are of GPUs.

    reads   whether this process reads its host's counters
    """

    reads: bool
    gpus: Gpus | None = None
    telemetry: Telemetry | None = None
    _before: Counters = field(default_factory=Counters)
    _iterations: int = 0

    @classmethod
    def ready(cls, world: World, cuda: bool, telemetry_hz: float) -> Instruments:
        """Opened for a launch; `cuda`: whether any of its cells is of GPUs."""
        first = world.on_host()[0].rank == world.rank
        gpus = Gpus.open() if first and cuda else None
        return cls(first, gpus, Telemetry(telemetry_hz) if gpus and telemetry_hz > 0 else None)

    def begin(self, ready: PreparedCase, world: World) -> None:
        """Read, on all ranks; no rank begins to send before every host has read."""
        if self.telemetry:
            self.telemetry.taken()
            self.telemetry.switch(ready.cell.size_bytes >= _SMALL_BYTES)
        self._iterations = ready.loop.iterations_run
        if self.reads:
            self._before = read(gpus=self._of(ready.cell))
        if len(world.hosts) > 1:  # on one host rank 0 is the only one that reads
            world.gather(None, f"{ready.cell.title()}: reading counters")  # the ranks wait for rank 0's word, and that for this

    def end(self, ready: PreparedCase) -> dict[str, Any]:
        """What this process reports to rank 0, JSON-ready."""
        own_moved = moved(self._before, read(gpus=self._of(ready.cell))) if self.reads else None
        if self.telemetry:
            self.telemetry.switch(False)
        return {
            "moved": own_moved, "iterations": ready.loop.iterations_run - self._iterations,
            "driven": [group.ranks[rank] for group in ready.mine for rank in group.driven],
            "telemetry": self.telemetry.taken() if self.telemetry else [],
        }  # fmt: skip

    def close(self) -> None:
        """Ends telemetry and leaves NVML."""
        if self.telemetry:
            self.telemetry.close()
        if self.gpus:
            self.gpus.close()

    def _of(self, cell: Cell) -> Gpus | None:
        return self.gpus if cell.device == "cuda" else None


def told(ready: PreparedCase, world: World, everyone: list[dict[str, Any]]) -> dict[str, Any]:
    """At rank 0, from the reports of all processes at the `end`: the row's evidence "moved"."""
    hosts = [member.host for member in world.members]
    host_of = {rank: host for host, one in zip(hosts, everyone, strict=True) for rank in one["driven"]}
    by_host = {host: one["moved"] for host, one in zip(hosts, everyone, strict=True) if one["moved"] is not None}
    must = ready.must(host_of) if ready.must else None
    return evidence(CaseActivity(ready.operation, ready.cell, ready.groups, host_of, everyone[0]["iterations"], must), by_host)
