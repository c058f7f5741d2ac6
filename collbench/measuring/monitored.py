"""Measure a case with monitoring: state probe, CPUs and the hosts' counters before and after.

The case is measured again when the machine state changed meanwhile.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from collbench.control.world import World
from collbench.measuring import disturbances
from collbench.measuring.crossing import MovedBytes, OtherPath
from collbench.measuring.disturbances import CaseDisturbed, HostNetwork, NetworkCounts, Stall, of_host, stalls
from collbench.measuring.instruments import between, explains_spread, moved_evidence, noticeable, now, shared_cores
from collbench.measuring.listeners import Listener
from collbench.measuring.phases import Phases
from collbench.measuring.prepared_case import PreparedCase
from collbench.measuring.request import Budget
from collbench.measuring.sampling import Measurement, slowest
from collbench.measuring.sync import shared_page
from collbench.native.library import StateProbeStruct, library
from collbench.results.row import LoopTime, SharedCores
from collbench.stats.median import middle, quantile

# The state probe: a short measurement of the machine before and after each case.
#
# Two cores exchange a cache line. On one machine that takes 65 or 260 ns, and the state changes without a visible cause; every latency
# below some microseconds changes with it. If a rank has no partner on its host, or if ranks share cores, a fixed piece of work is timed
# instead. It detects changes of the clock rate and time taken by a hypervisor, but not of the cache's state.

FLIP = 1.25  # a larger ratio of two probes means another state; within one state it is at most 1.15
_BLOCKS = 15
# round trips of a block, 3 to 18 µs; in one state (440 ns) 6,000 neighboring blocks were within 1.12, with 100 round trips all but 2
_ROUNDS = 40
_STEPS = 10_000  # multiplications of a block: about 10 µs
_DEADLINE_S = 0.02
_LINE_BYTES = 128  # two lines, since the next one is prefetched


class StateProbe:
    """A short, fixed measurement of the machine. All ranks of the world create it together and call `measure` at the same time."""

    def __init__(self, world: World) -> None:
        mates = [member.rank for member in world.on_host()]
        paired = all(len(world.on_host(host)) > 1 for host in world.hosts) and not world.oversubscribed
        self.kind = "cache line" if paired else "work"
        self._ball: StateProbeStruct | None = None
        if paired:
            self._page = shared_page(world, _LINE_BYTES * len(mates))
            index = mates.index(world.rank)
            if index < len(mates) // 2 * 2:  # an odd last rank has no partner
                line = ctypes.addressof(ctypes.c_char.from_buffer(self._page)) + index // 2 * _LINE_BYTES
                self._ball = StateProbeStruct(line=line, first=index % 2 == 0, base=0, rounds=_ROUNDS, deadline_ns=int(_DEADLINE_S * 1e9))

    def measure(self) -> float | None:
        """Return the seconds of a round trip or of the fixed work: the median of some blocks. None if it could not be measured."""
        native = library()
        if native is None or (self.kind == "cache line" and self._ball is None):
            return None
        elapsed = np.zeros(_BLOCKS, np.int64)
        out = ctypes.c_void_p(elapsed.ctypes.data)
        rounds = 1
        if self._ball is None:
            native.collbench_work(ctypes.c_int64(_BLOCKS), ctypes.c_int64(_STEPS), out)
        else:
            rounds = _ROUNDS
            if native.collbench_ping_pong(ctypes.byref(self._ball), ctypes.c_int64(_BLOCKS), out):
                return None
        return float(sorted(elapsed.tolist())[_BLOCKS // 2]) * 1e-9 / rounds


def state_probe(world: World) -> StateProbe | None:
    """Return a state probe, or None if some rank has no native loop. All ranks must call it."""
    lacking = world.first_error(None if library() else "no native loop", "preparing the state probe")
    return None if lacking else StateProbe(world)


def flipped(before: float | None, after: float | None) -> bool:
    """Return whether the machine state changed between two values of the state probe, in seconds."""
    return bool(before and after and max(before, after) > FLIP * min(before, after))


_MOST_REPEATS = 2
_LEAST_LEFT = 0.2  # of the budget: with less time a repetition would be less precise than the first measurement
_LAUNCH_BOUND = 0.8  # of the device's time: with more host time per call, the sample measures the calls


class MonitoredMeasurement(msgspec.Struct, frozen=True):
    """A measurement of a case and its evidence, at rank 0.

    probe_s    {"before", "after"}: the slowest rank's state probe, None unknown; empty without a probe
    silent     two ranks of a host could not run at the same time, so that the state probe gave no value
    stolen     the largest share of CPU time that a hypervisor took at any rank; None unknown
    preempted  the largest number of involuntary context switches of any rank
    repeats    how often the case was measured again because the machine state had changed
    flipped    whether it also changed during the last repetition
    loop_s     seconds spent in the loop
    moved      changes of the counters; None if none was read
    enqueue_s  the host's seconds per call if calls only enqueue
    launch_bound   whether the samples measure these seconds, not the device's work
    telemetry  by host the samples during the measurement
    paused_s   by rank the seconds for which its process was paused; only ranks that were
    networks   with several hosts, the disturbances of each host's network; stalls: samples far longer than the median
    phases     warm-up and samples at rank 0, of all repetitions
    reports    what the listeners of each rank reported
    sharing    how the ranks' threads shared the cores of the host with the most threads per core; None: not known
    """

    measured: Measurement
    probe_s: dict[str, float | None]
    silent: bool
    stolen: float | None
    preempted: int
    repeats: int
    flipped: bool
    loop_s: float = 0.0
    moved: MovedBytes | None = None
    enqueue_s: float | None = None
    launch_bound: bool = False
    telemetry: dict[str, list[dict[str, Any]]] = msgspec.field(default_factory=dict)
    paused_s: dict[str, float] = msgspec.field(default_factory=dict)
    networks: tuple[HostNetwork, ...] = ()
    stalls: tuple[Stall, ...] = ()
    phases: Phases = msgspec.field(default_factory=Phases)
    reports: Sequence[Mapping[str, Any]] = ()
    sharing: SharedCores | None = None

    @property
    def flags(self) -> list[str]:
        """The quality flags of the row."""
        conditions = {
            "remeasured": self.repeats and not self.flipped,
            "state_flip": self.flipped,
            "cpu_shared": self.silent or noticeable(self.stolen),
            "other_path": self.other_path,
            "launch_bound": self.launch_bound,
            "straggler": bool(self.paused_s),
            "threads_share_cores": self.sharing is not None and explains_spread(self.sharing),
        }
        return [flag for flag, holds in conditions.items() if holds] + disturbances.flags(self.networks)

    def disturbance(self, title: str, hosts: Sequence[str]) -> CaseDisturbed | None:
        """Return stalls and links that went down as one fact; None without any. `hosts`: the host of each rank."""
        paused = {hosts[int(rank)]: seconds for rank, seconds in self.paused_s.items() if int(rank) < len(hosts)}
        return disturbances.case_disturbed(title, self.stalls, self.networks, paused)

    @property
    def other_path(self) -> OtherPath | None:
        """Return the path that the bytes took instead of the network; None if they took the network.

        With a path the row has no percentage.
        """
        return self.moved.other_path_fact if self.moved else None

    @property
    def evidence(self) -> dict[str, Any]:
        """Return the parts of the row's evidence that this measurement has, JSON-ready."""
        parts: dict[str, Any] = LoopTime(self.loop_s).entry()
        if self.paused_s:
            parts["paused_s"] = self.paused_s
        if self.moved:
            parts |= self.moved.entry()
        parts |= NetworkCounts.entry_of({network.host: network.counts for network in self.networks})
        parts |= Stall.entry_of(self.stalls)
        if self.sharing is not None and self.sharing.threads > self.sharing.cores:
            parts |= self.sharing.entry()
        if self.enqueue_s is not None:
            parts["enqueue_s"] = self.enqueue_s
        return parts


def measure_monitored(
    ready: PreparedCase,
    world: World,
    budget: Budget,
    sample: Callable[[Budget], Measurement | None],
    probe: StateProbe | None,
    *,
    listeners: Sequence[Listener] = (),
) -> MonitoredMeasurement | None:
    """Take the samples of a case on all ranks, and again while the machine state changes and the budget allows. The result is at rank 0.

    sample: takes samples within a budget, as `Engine.sample`
    """
    ends_s = time.monotonic() + budget.max_time_s
    phase = f"{ready.case.title()}: reading the machine state"
    repeats = 0
    loop_s = 0.0
    phases = Phases()
    while True:
        before = probe.measure() if probe else None  # before the counters: reading them delays a rank
        for listener in listeners:
            listener.begin(ready, world)
        cpu_before = now()
        paused_before_s = world.watchdog.paused_s
        measured = sample(budget)
        span = between(cpu_before, now())
        after = probe.measure() if probe else None
        report = {"before": before, "after": after, **msgspec.to_builtins(span), "enqueue_s": ready.loop.enqueue_s,
                  "paused_s": world.watchdog.paused_s - paused_before_s}  # fmt: skip
        for listener in listeners:
            report |= listener.end(ready)
        reports = world.gather(report, phase)
        left_s = ends_s - time.monotonic()
        result = None
        if measured and reports:
            loop_s += measured.loop_s
            phases += measured.phases
            result = _result(measured, reports, probe is not None, repeats)
        again = result is not None and result.flipped and repeats < _MOST_REPEATS and left_s > _LEAST_LEFT * budget.max_time_s
        left_s = world.broadcast(left_s if again else 0.0, phase)
        if not left_s:
            if result is None or reports is None:
                return None
            return _with_evidence(replace(result, loop_s=loop_s, phases=phases), ready, world, reports)
        repeats += 1
        budget = replace(budget, max_time_s=left_s)


def _result(measured: Measurement, reports: Sequence[dict[str, Any]], has_probe: bool, repeats: int) -> MonitoredMeasurement:
    probe_s = {when: _largest(report[when] for report in reports) for when in ("before", "after")} if has_probe else {}
    return MonitoredMeasurement(
        measured,
        probe_s=probe_s,
        silent=None in probe_s.values(),
        stolen=_largest(report["stolen"] for report in reports),
        preempted=max(report["preempted"] for report in reports),
        repeats=repeats,
        flipped=any(flipped(report["before"], report["after"]) for report in reports),
        paused_s={str(rank): round(report["paused_s"], 3) for rank, report in enumerate(reports) if report["paused_s"]},
        reports=reports,
    )


def _with_evidence(result: MonitoredMeasurement, ready: PreparedCase, world: World, reports: list[dict[str, Any]]) -> MonitoredMeasurement:
    """Return the measurement with evidence from the hosts' counters and the host's share of the time.

    It is computed when the ranks no longer wait for it.
    """
    measured = result.measured
    by_host = list(zip([member.host for member in world.members], reports, strict=True))
    networks: tuple[HostNetwork, ...] = ()
    if len(world.hosts) > 1:  # on one host ranks need no network
        networks = tuple(of_host(host, report["moved"]) for host, report in by_host if report.get("moved"))
    series = slowest(measured.samples, ready.timed)
    median_s = middle(np.sort(series)) if len(series) else None
    long = stalls(measured.durations, median_s * measured.batch * measured.iterations) if networks and median_s is not None else []
    enqueue_s = _largest(report["enqueue_s"] for report in reports)
    return replace(
        result,
        moved=moved_evidence(ready, world, reports) if "moved" in reports[0] else None,
        enqueue_s=enqueue_s,
        launch_bound=enqueue_s is not None and median_s is not None and enqueue_s >= _LAUNCH_BOUND * median_s,
        telemetry={host: report["telemetry"] for host, report in by_host if report.get("telemetry")},
        networks=networks,
        stalls=tuple(long),
        sharing=_sharing(world, reports, series),
    )


def _sharing(world: World, reports: Sequence[dict[str, Any]], series: NDArray[np.float64]) -> SharedCores | None:
    """Return how threads share the cores of the host with the most threads per core; None without samples, or if it is not known."""
    if not len(series):
        return None
    ordered = np.sort(series)
    low = quantile(ordered, 0.1)
    spread = quantile(ordered, 0.9) / low if low > 0 else 1.0
    by_host = [[member for member in world.members if member.host == host] for host in world.hosts]
    shared = [shared_cores([reports[member.rank] for member in mates], [member.cpus for member in mates], spread) for mates in by_host]
    return max((cores for cores in shared if cores), key=lambda cores: cores.threads / cores.cores, default=None)


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
