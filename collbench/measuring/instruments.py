"""Readings around each case, taken by the first rank of each host: counters of interfaces, ports and GPUs, and telemetry meanwhile."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from collbench.control.world import World
from collbench.measuring import counters
from collbench.measuring.counters import Counts, Gpus, Grown, entries, word
from collbench.measuring.crossing import CaseActivity, MovedBytes, moved_bytes
from collbench.measuring.listeners import Listener
from collbench.measuring.prepared_case import PreparedCase
from collbench.results.row import SharedCores

if TYPE_CHECKING:
    from collbench.measuring.telemetry import Telemetry

# The settings and disturbances of a rank's CPUs during a case. All files can be read without privileges on Linux.

_STAT = Path("/proc/stat")
_TASKS = "/proc/self/task"
_CPUS = Path("/sys/devices/system/cpu")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_IDLE_FIELDS = (3, 4)
_STEAL_FIELD = 7  # of a cpu line in /proc/stat: user nice system idle iowait irq softirq steal (proc(5))
_NOTICEABLE_STEAL = 0.02
_FEWEST_TICKS = 5  # of 10 ms each; fewer are rounding
_TICK_S = 0.01
_ACTIVE = 0.01  # of the time: a thread that runs for less does not take a core from others


class CpuReading(msgspec.Struct, frozen=True):
    """Counters of this process and of the CPUs that it may use, in the kernel's ticks (10 ms). Two readings make a `Span`.

    working   ticks in which the CPUs were not idle; run_ns: by thread of this process how long it has run; at_s: when
    """

    stolen: int
    ticks: int
    preempted: int
    working: int = 0
    run_ns: Mapping[str, int] = msgspec.field(default_factory=dict)
    at_s: float = 0.0


class Span(msgspec.Struct, frozen=True):
    """CPU disturbances between two moments.

    stolen     share of the CPUs' time that the hypervisor gave to others (0 … 1); None if the kernel does not count it
    preempted  how often the kernel took the core from this process involuntarily
    threads    how many threads of this process ran, for 1 % of the time or more
    own_s      seconds for which they ran, all together
    working_s  seconds for which the CPUs worked for anybody
    seconds    between both moments
    """

    stolen: float | None
    preempted: int
    threads: int = 0
    own_s: float = 0.0
    working_s: float = 0.0
    seconds: float = 0.0


def now(stat: Path = _STAT, tasks: str = _TASKS) -> CpuReading:
    """Return the current counters; zeros where there is no /proc."""
    usable = {f"cpu{cpu}" for cpu in os.sched_getaffinity(0)}
    rows = [line.split()[1:] for line in counters.text(str(stat)).splitlines() if line.partition(" ")[0] in usable]
    counts = [[int(field) for field in row[: _STEAL_FIELD + 1] if field.isdecimal()] for row in rows]
    stolen = sum(row[_STEAL_FIELD] for row in counts if len(row) > _STEAL_FIELD)
    ticks = sum(map(sum, counts))
    idle = sum(row[column] for row in counts for column in _IDLE_FIELDS if len(row) > column)
    preempted = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    texts = {name: counters.text(f"{tasks}/{name}/schedstat").split() for name in entries(tasks)}
    run_ns = {name: int(words[0]) for name, words in texts.items() if words and words[0].isdecimal()}
    return CpuReading(stolen, ticks, preempted, ticks - idle - stolen, run_ns, time.monotonic())


def between(before: CpuReading, after: CpuReading) -> Span:
    """Return the changes from `before` to `after`."""
    ticks = after.ticks - before.ticks
    stolen = after.stolen - before.stolen
    stolen_share = None
    if after.ticks > 0 and ticks >= 0 and stolen >= 0:
        stolen_share = stolen / ticks if stolen >= _FEWEST_TICKS else 0.0
    seconds = after.at_s - before.at_s
    ran_s = [(run_ns - before.run_ns.get(thread, 0)) * 1e-9 for thread, run_ns in after.run_ns.items()]
    active_s = [thread_s for thread_s in ran_s if thread_s >= _ACTIVE * seconds]
    working_s = max(0, after.working - before.working) * _TICK_S
    return Span(stolen_share, max(0, after.preempted - before.preempted), len(active_s), sum(active_s), working_s, seconds)


def noticeable(stolen: float | None) -> bool:
    """Return whether the hypervisor took enough CPU time to make times unreliable."""
    return stolen is not None and stolen > _NOTICEABLE_STEAL


# Threads of the ranks that share cores. Where more threads take part in an operation than there are cores, a thread that wakes up waits
# for another one's time slice (4 ms): times vary by a multiple, on an idle machine and in a long measurement, too.

_LEAST_SPREAD = 2.0
_MOST_OTHERS = 0.1


def explains_spread(shared: SharedCores) -> bool:
    """Return whether the spread of a case's samples is due to the ranks' own threads."""
    return shared.threads > shared.cores and shared.others <= _MOST_OTHERS and shared.spread >= _LEAST_SPREAD


def shared_cores(spans: Sequence[Mapping[str, Any]], cpus: Sequence[Sequence[int]], spread: float) -> SharedCores | None:
    """Return how the ranks of a host shared its cores, from the `Span` and the usable CPUs of each; None if it is not known."""
    cores = len({cpu for rank_cpus in cpus for cpu in rank_cpus})
    seconds = max(span["seconds"] for span in spans)
    if not cores or not all(span["threads"] for span in spans) or seconds < _FEWEST_TICKS * _TICK_S:
        return None
    working_s = sum({tuple(rank_cpus): span["working_s"] for rank_cpus, span in zip(cpus, spans, strict=True)}.values())
    others = max(0.0, working_s - sum(span["own_s"] for span in spans)) / (cores * seconds)
    return SharedCores(sum(span["threads"] for span in spans), cores, round(others, 3), round(spread, 2))


def settings(cpus_folder: Path = _CPUS, huge_pages: Path = _HUGE_PAGES) -> dict[str, Any]:
    """Return this rank's constant CPU settings: frequency governor and boost of its CPUs, huge pages. None means unknown."""
    governors = {word(f"{cpus_folder}/cpu{cpu}/cpufreq/scaling_governor") for cpu in os.sched_getaffinity(0)}
    boost = {"0": False, "1": True}.get(word(f"{cpus_folder}/cpufreq/boost"))
    if boost is None:
        boost = {"0": True, "1": False}.get(word(f"{cpus_folder}/intel_pstate/no_turbo"))
    # the word in brackets: "madvise" of "always [madvise] never"
    chosen = next((choice.strip("[]") for choice in word(str(huge_pages)).split() if choice.startswith("[")), None)
    return {"governor": "+".join(sorted(governors - {""})) or None, "boost": boost, "huge_pages": chosen}


def binding(cpus: Sequence[Sequence[str]]) -> str:
    """Return how ranks are bound, as text: "each rank on 1 CPU of its own", "ranks share 2 CPUs".

    cpus: for each rank the names of the CPUs that it may use.
    """
    counts = [len(set(rank_cpus)) for rank_cpus in cpus]
    total = len({cpu for rank_cpus in cpus for cpu in rank_cpus})
    if len(counts) > 1 and sum(counts) == total:
        most = max(counts)
        return f"each rank on {most} CPU{'s' if most > 1 else ''} of its own"
    return f"ranks share {total} CPU{'s' if total != 1 else ''}"


# Changes of this host's counters between two readings: bytes of interfaces, RDMA ports and GPUs.
#
# Counters belong to the host, so they include the traffic of other jobs. A counter that decreased (it wrapped, or was reset) is unknown,
# and so is one that only one of the readings has. An unknown value is never 0.

_VOLUME_COUNTERS = {"tx_bytes", "sent_pkts"}  # a port without either does not count its traffic; an interface carries what sent_pkts counts
# networks with their own devices (Slingshot, Aries, BXI); neither interfaces nor ports count their bytes
_UNCOUNTED = ("cxi", "gni", "bxi")


class Counters(msgspec.Struct, frozen=True):
    """One reading of all counters of this host.

    interfaces, ports, gpus   counters by place ("eth0", "mlx5_0/1", a GPU's PCI address); all only ever grow
    leaving                   the interfaces with bytes that leave this host and are counted nowhere else
    states                    by GPU the values that are not counters: temperature_c, slowed_by
    tcp                       TCP segments that this host has sent and retransmitted
    uncounted                 network devices that have no counters here
    pinned_bytes              of other processes' pages, while the kernel copied from them; None if it does not count them
    """

    interfaces: Mapping[str, Counts] = msgspec.field(default_factory=dict)
    ports: Mapping[str, Counts] = msgspec.field(default_factory=dict)
    gpus: Mapping[str, Counts] = msgspec.field(default_factory=dict)
    leaving: frozenset[str] = frozenset()
    states: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)
    uncounted: tuple[str, ...] = ()
    tcp: Counts = msgspec.field(default_factory=dict)
    pinned_bytes: int | None = None


def read(root: str = "", gpus: Gpus | None = None, inside: bool = False) -> Counters:
    """Return the current counters. An interface takes about 0.1 ms; RDMA ports and GPUs take longer, since the driver asks the card.

    `root` is the folder of a copied /sys. inside: for a job inside this host, without what concerns the network alone. Never raises:
    values that are missing or not readable are left out.
    """
    interfaces, leaving = counters.read(root, inside)
    counts, states = gpus.read() if gpus else ({}, {})
    uncounted = tuple(name for kind in _UNCOUNTED for name in entries(f"{root}/sys/class/{kind}"))
    return Counters(
        interfaces, counters.read_infiniband(root), counts, leaving, states, uncounted, {} if inside else counters.read_tcp(root),
        counters.read_pinned(root),
    )  # fmt: skip


def moved(before: Counters, after: Counters) -> dict[str, Any]:
    """Return the changes between two readings, JSON-ready: per place the counters that grew, and by how much (None: unknown).

    interfaces, ports, gpus   places where something grew
    tcp             segments sent and retransmitted
    leaving         interfaces with bytes that leave this host, changed or not
    came_or_went    places that only one of the two readings has
    silent          ports and devices that do not count what they move
    idle            ports that count, and sent nothing
    states          by GPU the states at both ends
    pinned_bytes    of other processes' pages, while the kernel copied from them
    """
    kinds = [(before.interfaces, after.interfaces), (before.ports, after.ports), (before.gpus, after.gpus)]
    interfaces, ports, gpus = (grown(then, now) for then, now in kinds)
    counting = [name for name, counts in before.ports.items() if "tx_bytes" in counts and "tx_bytes" in after.ports.get(name, {})]
    silent_ports = [name for name, counts in after.ports.items() if not counts.keys() & _VOLUME_COUNTERS]
    pinned_bytes = None
    if before.pinned_bytes is not None and after.pinned_bytes is not None:
        pinned_bytes = after.pinned_bytes - before.pinned_bytes
    return {
        "interfaces": interfaces, "ports": ports, "gpus": gpus,
        "leaving": sorted(before.leaving & after.leaving), "tcp": _difference(before.tcp, after.tcp),
        "came_or_went": sorted(name for then, now in kinds for name in set(then) ^ set(now)),
        "silent": [*after.uncounted, *silent_ports],
        "idle": [name for name in counting if counters.moved(ports.get(name, {}), "tx") == 0],
        "states": {name: {"before": before.states.get(name), "after": state} for name, state in after.states.items()},
        "pinned_bytes": pinned_bytes,
    }  # fmt: skip


def grown(before: Mapping[str, Counts], after: Mapping[str, Counts]) -> Grown:
    """Return by place the changes of the counters that both readings have; None for a counter that decreased.

    Places without a change are left out.
    """
    changes_of = {name: _difference(before[name], counts) for name, counts in after.items() if name in before}
    return {name: changes for name, changes in changes_of.items() if changes}


def _difference(before: Counts, after: Counts) -> dict[str, int | None]:
    """Return the change of each counter. A counter that decreased or is no longer reported is unknown."""
    lost: dict[str, int | None] = dict.fromkeys((name for name in before if name not in after), None)
    steps = {name: after[name] - before[name] for name in after if name in before}
    return {**{name: step if step > 0 else None for name, step in steps.items() if step}, **lost}


_SMALL_BYTES = 1 << 20  # cases of smaller messages show nothing about clocks, and a second process would disturb them


@dataclass
class Instruments(Listener):
    """This process's instruments. NVML and telemetry run only on a host's first rank, and only if cases use GPUs.

    reads   whether this process reads its host's counters
    """

    reads: bool
    gpus: Gpus | None = None
    telemetry: Telemetry | None = None
    _before: Counters = field(default_factory=Counters)
    _iterations: int = 0
    _inside: bool = False  # whether the whole job is on this host

    @classmethod
    def ready(cls, world: World, cuda: bool, telemetry_hz: float) -> Instruments:
        """Return the opened instruments of a launch; `cuda`: whether any of its cases uses GPUs."""
        first = world.on_host()[0].rank == world.rank
        gpus = Gpus.open() if first and cuda else None
        if gpus is None or telemetry_hz <= 0:
            return cls(first, gpus)
        from collbench.measuring.telemetry import Telemetry

        return cls(first, gpus, Telemetry(telemetry_hz))

    def begin(self, ready: PreparedCase, world: World) -> None:
        """Read the counters. All ranks must call it. No rank begins to send before every host has read them."""
        if self.telemetry:
            self.telemetry.taken()
            self.telemetry.switch(ready.case.size_bytes >= _SMALL_BYTES)
        self._iterations = ready.loop.iterations_run
        self._inside = len(world.hosts) == 1
        if self.reads:
            self._before = read(gpus=self.gpus if ready.case.device == "cuda" else None, inside=self._inside)
        if not self._inside:  # on one host only rank 0 reads
            world.gather(None, f"{ready.case.title()}: reading counters")  # the ranks wait for rank 0's word, and that for this

    def end(self, ready: PreparedCase) -> dict[str, Any]:
        """Read again and return what this process reports to rank 0, JSON-ready."""
        gpus = self.gpus if ready.case.device == "cuda" else None
        changes = moved(self._before, read(gpus=gpus, inside=self._inside)) if self.reads else None
        if self.telemetry:
            self.telemetry.switch(False)
        return {
            "moved": changes, "iterations": ready.loop.iterations_run - self._iterations,
            "driven": [group.ranks[rank] for group in ready.own_groups for rank in group.driven],
            "telemetry": self.telemetry.taken() if self.telemetry else [],
        }  # fmt: skip

    def close(self) -> None:
        """End telemetry and shut NVML down."""
        if self.telemetry:
            self.telemetry.close()
        if self.gpus:
            self.gpus.close()


def moved_evidence(ready: PreparedCase, world: World, reports: list[dict[str, Any]]) -> MovedBytes:
    """Return what the counters of all hosts show, at rank 0, from the reports that all processes gave at `end`."""
    hosts = [member.host for member in world.members]
    host_of = {rank: host for host, report in zip(hosts, reports, strict=True) for rank in report["driven"]}
    by_host = {host: report["moved"] for host, report in zip(hosts, reports, strict=True) if report["moved"] is not None}
    must = ready.must(host_of) if ready.must else None
    return moved_bytes(CaseActivity(ready.operation, ready.case, ready.groups, host_of, reports[0]["iterations"], must), by_host)
