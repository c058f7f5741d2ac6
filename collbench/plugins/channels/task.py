"""`collbench probe --measure`: measure the data paths (channels) inside and between the hosts of the launch, one row each."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from collbench.backends.backend import Backend, Settings, can_do
from collbench.backends.clock import MonotonicClock
from collbench.backends.registry import backend_class
from collbench.control.world import World
from collbench.errors import FAILED, FINE, USAGE, CollbenchError, UsageError
from collbench.launch.supervise import report_error
from collbench.machine.peak.ceiling import TOLERANCE
from collbench.machine.peak.links import Link
from collbench.measuring import counters
from collbench.measuring.engine import Engine
from collbench.measuring.instruments import Counters, grown, moved, read
from collbench.measuring.listeners import Listener
from collbench.measuring.loop import Loop, Timed
from collbench.measuring.open_backends import missing_anywhere, open_everywhere
from collbench.measuring.prepared_case import BackendContext, PreparedCase, make_groups
from collbench.measuring.probing import together_or_alone
from collbench.measuring.references import bound, copy_memory, first_wrong, repetitions, write_pattern
from collbench.measuring.request import Budget
from collbench.measuring.row import doubts
from collbench.measuring.tasks.cases import CaseWork
from collbench.operations.builtin.p2p import P2P_BANDWIDTH
from collbench.operations.case import Case
from collbench.operations.dtypes import dtype_named
from collbench.operations.program import NativeCall, Program
from collbench.plugins.channels.records import WRONG, Channel
from collbench.plugins.channels.tcp_streams import COUNTED, TcpStream, run_streams
from collbench.plugins.channels.wire_tools import (
    BANDWIDTH,
    FLAGS,
    IB_WRITE_BW,
    LATENCY,
    ToolPair,
    ToolRequest,
    ToolResult,
    Tools,
    WireTool,
    between_devices,
    installed_tools,
    run_tool,
    why_not,
)
from collbench.reason import Fact
from collbench.stats.median import median

if TYPE_CHECKING:
    from collbench.device.gpu import OpenGpu, Stream
    from collbench.machine.model import Machine, NumaNode
    from collbench.plugins.channels.storage import Scratch


Values = NDArray[np.float64]
_ENOUGH = 6  # fewer samples have no 95 % interval


class ChannelJob(msgspec.Struct, frozen=True):
    """A channel of this host and the function that measures it; without a function `channel` has the reason.

    about_s   the seconds that it takes; None: those of any channel
    """

    channel: Channel
    measure: Callable[[], Channel] | None = None
    about_s: float | None = None

    def run(self) -> Channel:
        """Return the channel with its figures, or with the reason why they are missing. Never raises an Exception."""
        if self.measure is None:
            return self.channel
        try:
            return self.measure()
        except (CollbenchError, MemoryError) as error:
            return self.channel.replace(na=str(error) or "not enough memory")
        except Exception as error:
            return self.channel.replace(na=f"{type(error).__name__}: {error}")


def against(channel: Channel, link: Link) -> Channel:
    """Return the channel with the link that limits it, or with the reason if that link is unknown."""
    name = link.name if link.bytes_per_s is None else f"{link.name} ({link.source})"
    return channel.replace(of_bytes_per_s=link.bytes_per_s, limited_by=name)


def from_times(channel: Channel, seconds: Values, n_bytes: float, wrong: str | None = None) -> Channel:
    """Return the channel with the rate of `n_bytes` in the median of these times in seconds."""
    middle = median(seconds)
    value, low, high = (n_bytes / time_s if time_s else None for time_s in (middle.value, middle.ci_high, middle.ci_low))
    return _settled(channel, (value, low, high), seconds, wrong)


def from_rates(channel: Channel, rates: Values, wrong: str | None = None) -> Channel:
    """Return the channel with the median of these rates in bytes per second."""
    middle = median(rates)
    return _settled(channel, (middle.value, middle.ci_low, middle.ci_high), rates, wrong)


def _settled(channel: Channel, rates: tuple[float | None, float | None, float | None], series: Values, wrong: str | None) -> Channel:
    value, low, high = rates
    if wrong:
        return channel.replace(na=f"WRONG: {wrong}", flags=(*channel.flags, WRONG))
    if not value:
        return channel.replace(na="too few bytes arrived within --max-time for a rate: increase it")
    flags = [*channel.flags, *doubts(series, len(series), None, 1)]
    if len(series) < _ENOUGH:
        flags.append("no_interval")
    if channel.of_bytes_per_s is not None and value > TOLERANCE * channel.of_bytes_per_s:
        flags.append("above_bound")
    return channel.replace(bytes_per_s=value, ci_low=low, ci_high=high, flags=tuple(flags))


_PER_CPU_BYTES = 16 * 2**20
_LEAST_BYTES = 256 * 2**20  # source and target together are twice that, more than most caches
_PART = 16  # of the free memory, once for the source and once for the target


def memory_jobs(host: str, machine: Machine, cpus: Sequence[int], seconds: float, patience_s: float) -> list[ChannelJob]:
    """Return the memory channels: one per NUMA node if there are several, and one for all CPUs of this host's ranks."""
    nodes = [node for node in machine.numa_nodes if node.cpus]
    jobs = []
    for node in nodes if len(nodes) > 1 else ():
        place = f"{host}/numa{node.id}"
        usable = node_cpus(node, cpus)
        row = Channel("host_memory", place, place)
        why = "the ranks of this host may use no CPU of this NUMA node: request all CPUs from the launcher"
        jobs.append(_memory_job(row, usable, seconds, patience_s) if usable else ChannelJob(row.replace(na=why)))
    return [*jobs, _memory_job(Channel("host_memory", host, host), cpus, seconds, patience_s)]


def node_cpus(node: NumaNode, cpus: Sequence[int]) -> list[int]:
    """Return the CPUs of a NUMA node that are among `cpus`."""
    from collbench.machine.readers.text import cpu_list

    return sorted(cpu_list(node.cpus) & set(cpus))


def _memory_job(channel: Channel, cpus: Sequence[int], seconds: float, patience_s: float) -> ChannelJob:
    copying = f"memory copy by {len(cpus)} CPU{'s' if len(cpus) > 1 else ''}, each byte read and written once"
    row = channel.replace(limited_by=f"{copying}; the rate of the DIMMs is unknown")

    def measure() -> Channel:
        import psutil

        n_bytes = min(max(_LEAST_BYTES, _PER_CPU_BYTES * len(cpus)), int(psutil.virtual_memory().available) // _PART)
        copied = copy_memory(cpus, n_bytes, seconds, patience_s)
        return from_times(row, copied.seconds, copied.n_bytes, copied.wrong)

    return ChannelJob(row, measure)


# The channels of a host's GPUs: to and from pinned memory on each NUMA node, and from GPU to GPU, by the copy engines.
#
# The method is that of nvbandwidth (https://github.com/NVIDIA/nvbandwidth): a thread on the NUMA node's CPUs pins the memory, and the
# sending GPU's engine copies between GPUs. The host's clock times several copies together, until the stream is complete.

KINDS = ("h2d", "d2h", "h2d_d2h")
PEER = "gpu_peer"
_BYTES = 64 * 2**20
_LEAST_S, _MOST_COPIES = 3e-3, 16  # of one sample; the wait for the stream takes 10 to 20 µs of it


class Copy(msgspec.Struct, frozen=True):
    """One direction of a transfer: its addresses and stream, and the verification.

    clear    makes the target differ from the source
    arrived  returns the target's bytes
    """

    to: int
    source: int
    stream: Stream
    clear: Callable[[], None]
    arrived: Callable[[], NDArray[np.uint8]]


class Pinned:
    """Pinned memory per NUMA node, kept until the last job: cupy's pool would reuse returned memory for any node.

    cpus   by NUMA node with CPUs that this host's ranks may use these CPUs; {None: all} if no source lists nodes
    """

    def __init__(self, machine: Machine, cpus: Sequence[int]) -> None:
        self.machine = machine
        cpus_of = {node.id: node_cpus(node, cpus) for node in machine.numa_nodes if node.cpus}
        usable: dict[int | None, Sequence[int]] = {node: of_node for node, of_node in cpus_of.items() if of_node}
        self.cpus = usable or {None: cpus}
        self._made: dict[int | None, tuple[NDArray[np.uint8], NDArray[np.uint8]]] = {}

    def pair(self, node: int | None, gpu: OpenGpu) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return two pinned arrays on the node (source and target of copies). The caller must run on the node's CPUs."""
        if node not in self._made:
            self._made[node] = (gpu.pinned(_BYTES), gpu.pinned(_BYTES))
        return self._made[node]


def numbers_of_gpus(machine: Machine, gpus: Sequence[OpenGpu]) -> dict[str, int]:
    """Return CUDA's number of each GPU by its key in the machine. GPUs that no source lists are left out."""
    by_address = {gpu.address: gpu.key for gpu in machine.gpus if gpu.address}
    return {by_address[gpu.bus_id]: gpu.index for gpu in gpus if gpu.bus_id in by_address}


def gpu_jobs(host: str, machine: Machine, gpus: Sequence[OpenGpu], cpus: Sequence[int], seconds: float) -> list[ChannelJob]:
    """Return the GPU channels: per GPU and NUMA node each direction and both at once; per pair of GPUs each direction."""
    pinned = Pinned(machine, cpus)
    jobs = [_host_job(kind, host, (gpu, node), pinned, seconds) for gpu in gpus for node in pinned.cpus for kind in KINDS]
    if len(gpus) < 2:
        return [*jobs, ChannelJob(Channel(PEER, host, host, na="CUDA shows one GPU here"))]
    return [*jobs, *(_peer_job(host, machine, a, b, seconds) for a, b in permutations(gpus, 2))]


def _host_job(kind: str, host: str, ends: tuple[OpenGpu, int | None], pinned: Pinned, seconds: float) -> ChannelJob:
    from collbench.machine.peak.links import PcieTree, unknown

    gpu, node = ends
    memory = host if node is None else f"{host}/numa{node}"
    card = f"{host}/gpu{gpu.index}"
    row = Channel(kind, card, memory) if kind == "d2h" else Channel(kind, memory, card)
    listed = next((listed for listed in pinned.machine.gpus if listed.address == gpu.bus_id), None)
    row = against(row, PcieTree(pinned.machine).of_gpu(listed) if listed else unknown(f"no source has {gpu.name} at {gpu.bus_id}"))
    if kind == "h2d_d2h":
        row = row.replace(limited_by=f"{row.limited_by}; per direction, both at once")

    def measure() -> Channel:
        with bound(pinned.cpus[node]), gpu.use():
            source, target = pinned.pair(node, gpu)
            copies = {"h2d": [_up(gpu, source)], "d2h": [_down(gpu, target)], "h2d_d2h": [_up(gpu, source), _down(gpu, target)]}[kind]
            return _measured(row, copies, seconds)

    return ChannelJob(row, measure)


def _peer_job(host: str, machine: Machine, a: OpenGpu, b: OpenGpu, seconds: float) -> ChannelJob:
    from collbench.measuring.link_ceilings import link_between

    row = against(Channel(PEER, f"{host}/gpu{a.index}", f"{host}/gpu{b.index}"), link_between(machine, a.bus_id, b.bus_id))

    def measure() -> Channel:
        from collbench.device.gpu import open_peer

        direct = open_peer(a, b)
        described = row if direct else row.replace(limited_by="through host memory: the driver refuses peer access", of_bytes_per_s=None)
        with a.use():
            return _measured(described, [_across(a, b)], seconds)

    return ChannelJob(row, measure)


def _up(gpu: OpenGpu, source: NDArray[np.uint8]) -> Copy:
    write_pattern(source)
    memory = gpu.allocate(_BYTES)
    stream = gpu.stream()
    zeros = np.zeros(_BYTES, np.uint8)
    return Copy(
        memory.address, source.ctypes.data, stream,
        lambda: gpu.upload(memory.address, zeros, stream), lambda: gpu.download(memory.address, _BYTES),
    )  # fmt: skip


def _down(gpu: OpenGpu, target: NDArray[np.uint8]) -> Copy:
    memory = gpu.allocate(_BYTES)
    stream = gpu.stream()
    _fill(gpu, memory.address, stream)

    def clear(keep: object = memory) -> None:
        target[:] = 0

    return Copy(target.ctypes.data, memory.address, stream, clear, lambda: target)


def _across(a: OpenGpu, b: OpenGpu) -> Copy:
    source = a.allocate(_BYTES)
    target = b.allocate(_BYTES)
    stream = a.stream()
    clearing = b.stream()
    _fill(a, source.address, stream)
    zeros = np.zeros(_BYTES, np.uint8)

    def clear(keep: object = source) -> None:
        b.upload(target.address, zeros, clearing)

    return Copy(target.address, source.address, stream, clear, lambda: b.download(target.address, _BYTES))


def _fill(gpu: OpenGpu, address: int, stream: Stream) -> None:
    pattern = np.empty(_BYTES, np.uint8)
    write_pattern(pattern)
    gpu.upload(address, pattern, stream)


def _measured(row: Channel, copies: Sequence[Copy], seconds: float) -> Channel:
    """Measure the channel. Time all copies together, then clear the targets, copy again and compare every byte."""
    once = float(_loop(copies, 1).run(2)[0].min())
    count = min(max(int(_LEAST_S / max(once, 1e-9)), 1), _MOST_COPIES)
    loop = _loop(copies, count)
    times = loop.run(repetitions(once * count, seconds))[0]
    for copy in copies:
        copy.clear()
    _loop(copies, 1).run(1)
    wrong = next(filter(None, (first_wrong(copy.arrived()) for copy in copies)), None)
    return from_times(row, times, count * _BYTES, wrong)


def _loop(copies: Sequence[Copy], count: int) -> Loop:
    """Return a loop that enqueues `count` copies on each stream, alternating between streams, and waits for all of them."""
    from collbench.device.gpu import driver_address, driver_error

    enqueue = driver_address("cuMemcpyAsync")
    wait = driver_address("cuStreamSynchronize")
    calls = [NativeCall("cuMemcpyAsync", enqueue, (copy.to, copy.source, _BYTES, copy.stream.address)) for copy in copies] * count
    calls += [NativeCall("cuStreamSynchronize", wait, (copy.stream.address,)) for copy in copies]
    program = Program((tuple(calls),), keep=copies, explain=driver_error)
    return Loop(Timed(program, None, MonotonicClock(), ctypes.c_int64()))


# The channels between the memory of two hosts through MPI. The counters show which link the library used.

_DEVICES = {"nic_host_memory_mpi": "cpu", "nic_gpu_memory_mpi": "cuda"}
_SIZE_BYTES, _WINDOW = 2**20, 8


def mpi_channels(world: World, machine: Machine | None, tcp: Link | None, seconds: float) -> list[Channel]:
    """Measure the MPI channels from host memory, and from GPU memory if the library supports it. Rank 0 has the figures.

    All ranks must call it. `machine` is known at the first rank of each host; `tcp` is the first host's interface.
    """
    rows = [Channel(name, world.hosts[0], world.hosts[-1]) for name in _DEVICES]
    kind = backend_class("mpi")
    why = _misfit(world) or missing_anywhere("mpi", kind, world)
    if why:
        return [row.replace(na=why) for row in rows]
    backend: Backend = kind()
    wrong = open_everywhere(backend, world, Settings(timeout_s=world.timeout_s))
    if wrong:
        return [row.replace(na=wrong[0].render()) for row in rows]
    try:
        return [_measured_mpi(row, world, backend, seconds, (_rdma(machine), tcp)) for row in rows]
    finally:
        with world.watchdog.phase("closing mpi"):
            backend.close()


def _misfit(world: World) -> str | None:
    if len(world.hosts) == 1:
        return "one host: MPI uses shared memory and not the NIC; start on two hosts to measure it"
    if len(world.hosts) != 2:
        return f"measured between two hosts, but this launch has {len(world.hosts)}: start on two of them"
    hosts = [[world.members[rank].host for rank in group] for group in ((i, i + world.size // 2) for i in range(world.size // 2))]
    if world.size % 2 or any(pair != list(world.hosts) for pair in hosts):
        return "the hosts have different numbers of ranks: start the same number on each"
    return None


class CountedBytes(Listener, msgspec.Struct):
    """The changes of this host's counters while the samples were taken, and the iterations that were run."""

    before: Counters = msgspec.field(default_factory=Counters)
    iterations: int = 0
    moved: Mapping[str, Any] = msgspec.field(default_factory=dict)

    def begin(self, ready: PreparedCase, world: World) -> None:
        """Read the counters."""
        self.iterations = -ready.loop.iterations_run
        self.before = read()

    def end(self, ready: PreparedCase) -> Mapping[str, Any]:
        """Read them again."""
        self.moved = moved(self.before, read())
        self.iterations += ready.loop.iterations_run
        return {}


@dataclass
class CountedWork(CaseWork):
    """A case with the bytes that the counters saw."""

    counted: CountedBytes = field(default_factory=CountedBytes)

    def listeners(self) -> Sequence[Listener]:
        """Return the counters."""
        return [self.counted]


def _measured_mpi(row: Channel, world: World, backend: Backend, seconds: float, links: tuple[Link | None, Link | None]) -> Channel:
    device = _DEVICES[row.channel]
    case = Case("p2p_bandwidth", "mpi", dtype_named("uint8"), _SIZE_BYTES, device=device, in_place=False, window=_WINDOW)
    why = world.first_error(can_do(backend, P2P_BANDWIDTH, case), f"asking mpi for {device}")
    if why:
        return row.replace(na=why)
    members = make_groups(backend, [], world)
    whole = members[tuple(range(world.size))]
    context = BackendContext(backend, members, backend.sync(whole) if whole else None)
    work = CountedWork(context, P2P_BANDWIDTH, case)
    result = Engine(world, check=1).measure(work, Budget(seconds))
    if isinstance(result, Fact):
        return row.replace(na=result.render())
    if result.measured is None:
        return row
    ready = result.ready
    # the bytes that leave the sending host in one iteration of all pairs
    n_bytes = float(len(ready.groups) * P2P_BANDWIDTH.moves(ready.case) * ready.case.size_bytes)
    row = _with_path(row, work.counted.moved, work.counted.iterations * n_bytes, links, backend)
    if device == "cuda":
        row = row.replace(limited_by=f"{row.limited_by}; MPI does not report whether it uses GPUDirect RDMA")
    wrong = result.wrong[0].sentence() if result.wrong else None
    return from_times(row, result.measured.samples[ready.timed].max(axis=0), n_bytes, wrong)


def _with_path(row: Channel, moves: Mapping[str, Any], n_bytes: float, links: tuple[Link | None, Link | None], backend: Backend) -> Channel:
    """Return the row compared with the link by which the counters show that n_bytes left, or without a link if they show none."""
    rdma, tcp = links
    library = backend.versions().get("mpi", "MPI")
    by_ports, by_interfaces = _bytes_left(moves)
    if rdma and by_ports is not None and by_ports >= COUNTED * n_bytes:
        return against(row, rdma)
    if tcp and by_interfaces is not None and by_interfaces >= COUNTED * n_bytes:
        row = against(row, tcp)
        return row.replace(limited_by=f"{row.limited_by}; {library} did not use RDMA") if rdma else row
    return row.replace(limited_by=f"the counters of {row.source} do not show the path that {library} took", flags=("path_unproven",))


def _bytes_left(moves: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return the bytes that left the host over RDMA ports, and over interfaces; None: not counted."""
    ports = [counters.moved(counts, "tx") for name, counts in moves["ports"].items() if name not in moves["silent"]]
    return _sum(ports), _sum([moves["interfaces"].get(name, {}).get("tx_bytes", 0) for name in moves["leaving"]])


def _sum(counts: list[int | None]) -> float | None:
    if not counts or None in counts:
        return None
    return float(sum(count or 0 for count in counts))


def _rdma(machine: Machine | None) -> Link | None:
    """Return all RDMA devices of the host as one link; None if none has a known rate."""
    from collbench.machine.peak.links import PcieTree, egress_of

    nics = tuple(nic for nic in machine.nics if nic.rdma and nic.virtual is None) if machine else ()
    if machine is None or not nics:
        return None
    link = egress_of(replace(machine, nics=nics), PcieTree(machine)).link
    return link if link.bytes_per_s is not None else None


# The channels of RDMA devices, measured with perftest from host memory and GPU memory: to the next host, or back into the same device.

_WRITE_BYTES, _WRITES, _MOST_RUNS = 65536, 5000, 24  # bytes of a write, writes of a run
_SOFTWARE_WRITES = 50  # of an emulated device, which is thousands of times slower
_UNVERIFIED = ("unverified", "their_tool")  # perftest does not compare the received data
HOST_MEMORY, GDR_ON, GDR_OFF = "nic_host_memory_perftest", "nic_gpu_memory_gdr_on", "nic_gpu_memory_gdr_off"
_NO_OFF = "perftest reads GPU memory only by GPUDirect RDMA: `collbench p2p --backend nccl --gdr-check` on two hosts compares both paths"


class RdmaDevice(msgspec.Struct, frozen=True):
    """An active RDMA device with the rate of its link. gpu: CUDA's number of the nearest visible GPU."""

    name: str
    port: int
    link: Link
    software: bool = False
    gpu: int | None = None

    def words(self, gpu: int | None = None) -> list[str]:
        """Return perftest's options: the device, and the GPU whose memory it uses; None: host memory."""
        words = ["-d", self.name, "-i", str(self.port)]
        return words if gpu is None else [*words, f"--use_cuda={gpu}"]


def devices_of(machine: Machine, gpus: dict[str, int]) -> list[RdmaDevice]:
    """Return the RDMA devices with a port that is up, in the machine's order; gpus: CUDA's numbers by GPU keys."""
    from collbench.machine.distance import Distances
    from collbench.machine.peak.links import PcieTree, egress_of

    distances = Distances(machine)
    near = {nic.key: number for key, number in reversed(gpus.items()) for nic in distances.near_nics(key)}
    devices = []
    for nic in machine.nics:
        up = [port for port in nic.ports if port.state in (None, "active")]
        if nic.rdma and up:
            link = egress_of(replace(machine, nics=(nic,)), PcieTree(machine)).link
            devices.append(RdmaDevice(nic.name, up[0].number, replace(link, part=None), nic.virtual is not None, near.get(nic.key)))
    return devices


def pairs(world: World) -> list[ToolPair]:
    """Return the first ranks of each host and the next one, the last to the first; of a single host the same rank twice."""
    leaders = [world.on_host(host)[0] for host in world.hosts]
    return [ToolPair(leader, leaders[(place + 1) % len(leaders)]) for place, leader in enumerate(leaders)]


def nic_channels(world: World, machine: Machine | None, gpus: dict[str, int], seconds: float) -> list[Channel]:
    """Measure the RDMA devices with perftest; return the rows at all ranks. All ranks must call it.

    `machine` and `gpus` are known at the first rank of each host.
    """
    devices = [msgspec.to_builtins(device) for device in devices_of(machine, gpus)] if machine else None
    tools = [why_not(), why_not(cuda=True)] if machine else None
    replies: list[Any] = world.allgather([devices, tools], "looking for RDMA devices")
    rows: list[Channel] = []
    for pair in pairs(world):
        sources, source_lacks = replies[pair.source.rank]
        targets, target_lacks = replies[pair.target.rank]
        rails = _rails(*([RdmaDevice(**{**device, "link": Link(**device["link"])}) for device in end] for end in (sources, targets)))
        lacking = [first or second for first, second in zip(source_lacks, target_lacks, strict=True)]
        if not rails:
            why = "no RDMA device with a port that is up"
            rows += [Channel(name, pair.source.host, pair.target.host, na=why) for name in (HOST_MEMORY, GDR_ON, GDR_OFF)]
        for rail in rails:
            rows += _of_rail(pair, rail, lacking, world, seconds)
    return rows


def _of_rail(pair: ToolPair, rail: tuple[RdmaDevice, RdmaDevice], lacking: list[str | None], world: World, seconds: float) -> list[Channel]:
    """Measure from host memory, and GPUDirect RDMA from the GPU near one device to the GPU near the other.

    lacking: why perftest cannot be used, at all and on GPU memory, for which it needs GPUDirect RDMA.
    """
    source, target = rail
    host = _row(HOST_MEMORY, pair, rail, lacking[0], None)
    if host.na is None:
        host = _written(host, pair, rail, world, seconds)
    far = "CUDA shows no GPU near this NIC" if source.gpu is None or target.gpu is None else None
    on = _row(GDR_ON, pair, rail, far or lacking[1], source.gpu)
    if on.na is None:
        on = _written(on, pair, rail, world, seconds, on_gpus=True)
    return [host, on, _row(GDR_OFF, pair, rail, far or _NO_OFF, source.gpu)]


def _row(name: str, pair: ToolPair, rail: tuple[RdmaDevice, RdmaDevice], why: str | None, gpu: int | None) -> Channel:
    source, target = rail
    memory = "" if gpu is None else f"/gpu{gpu}"
    row = Channel(name, f"{pair.source.host}{memory}/{source.name}", f"{pair.target.host}/{target.name}", na=why, flags=_UNVERIFIED)
    if why:
        return row.replace(flags=())
    row = against(row, min((source.link, target.link), key=lambda link: link.rate))
    return row.replace(limited_by=f"{row.limited_by}; back to the same device, without a cable") if pair.inside else row


def _written(
    row: Channel, pair: ToolPair, rail: tuple[RdmaDevice, RdmaDevice], world: World, seconds: float, *, on_gpus: bool = False
) -> Channel:
    """Measure one row: runs of perftest one after the other, of which the first is warm-up."""
    lacking = world.first_error(why_not(ipv6=True), "asking perftest for IPv6") if ":" in pair.address else None
    if lacking:
        return row.replace(na=lacking, flags=())
    source, target = rail
    tool = between_devices(source.words(source.gpu if on_gpus else None), target.words(target.gpu if on_gpus else None))
    writes = _SOFTWARE_WRITES if source.software or target.software else _WRITES
    request = ToolRequest(BANDWIDTH, _WRITE_BYTES, seconds, writes)
    rates: list[float] = []
    before = counters.read_infiniband()
    end = time.monotonic() + seconds
    while len(rates) <= _MOST_RUNS and (not rates or world.broadcast(time.monotonic() < end, "timing perftest")):
        (ran,) = run_tool(world, tool, request, [pair], [""] * world.size)
        if ran.figure is None:
            return row.replace(na=ran.why, flags=())
        rates.append(request.size_bytes / ran.figure.time_s)
    counted = grown(before, counters.read_infiniband()).get(f"{source.name}/{source.port}", {})
    sent = counters.moved(counted, "tx") if "tx_bytes" in counted else None
    sent = world.allgather(sent, "reading the counters of the RDMA devices")[pair.source.rank]
    if sent is not None and sent < COUNTED * len(rates) * writes * _WRITE_BYTES:
        row = row.replace(of_bytes_per_s=None, flags=(*row.flags, "path_unproven"))
    return from_rates(row, np.array(rates[1:] or rates))


def _rails(sources: list[RdmaDevice], targets: list[RdmaDevice]) -> list[tuple[RdmaDevice, RdmaDevice]]:
    """Return pairs of devices with the same name; if the names differ, in the order of the lists."""
    named = {device.name: device for device in targets}
    same = [(device, named[device.name]) for device in sources if device.name in named]
    return same or list(zip(sources, targets, strict=False))


# The channels over TCP, with one stream and with several, from each host to the next. A single host uses loopback.

STREAMS = (1, 8)
_INSIDE = "loopback: uses no link; the CPUs limit it"


def tcp_channels(world: World, links: dict[str, Link], seconds: float) -> list[Channel]:
    """Measure TCP streams between the hosts; return the rows at all ranks. All ranks must call it. links: from `links_of`."""
    rows = []
    for pair in pairs(world):
        for count in STREAMS:
            (report,) = run_streams(world, [TcpStream(pair.source, pair.target, pair.address, count=count)], seconds)
            row = _between_interfaces(Channel(f"tcp_{count}", pair.source.host, pair.target.host), pair, links)
            # an error of either end is the row's reason
            rows.append(row.replace(na=report.why) if report.why else from_rates(row, report.rates, report.wrong))
    return rows


def _between_interfaces(row: Channel, pair: ToolPair, links: dict[str, Link]) -> Channel:
    """Return the row with the slower of the two hosts' interfaces as its link."""
    if pair.inside:
        return row.replace(limited_by=_INSIDE)
    ends = [links[pair.source.host], links[pair.target.host]]
    unclear = next((link for link in ends if link.bytes_per_s is None), None)
    return against(row, unclear or min(ends, key=lambda link: link.rate))


def links_of(world: World) -> dict[str, Link]:
    """Return by host the TCP payload rate of the interface with its address; empty for a single host. All ranks must call it."""
    from collbench.machine.interfaces import interface_with, read_interface
    from collbench.machine.peak.links import tcp_link

    fields: tuple[float | None, str, str] | None = None
    if len(world.hosts) > 1 and world.on_host()[0] == world.me:
        link = tcp_link(read_interface(interface_with(world.me.address)))
        fields = (link.bytes_per_s, link.name, link.source)
    replies = world.allgather(fields, "reading the interfaces")
    return {member.host: Link(*fields) for member, fields in zip(world.members, replies, strict=True) if fields}


_TOOLS_SIZE_BYTES = 2**20
_TCP = "tcp"
_UNKNOWN = "which link it takes, {} decides"


def tool_channels(world: World, tools: Tools, links: dict[str, Link], seconds: float) -> list[Channel]:
    """Run the external tools between the hosts; return the rows at all ranks. All ranks must call it. links: from `links_of`.

    Tools run one after the other, so that they do not share a link. ib_write_bw is not included, since `nic_channels` runs it
    for each device.
    """
    rows = []
    for pair in pairs(world):
        for tool in tools.tools:
            if tool is not IB_WRITE_BW:
                operation = BANDWIDTH if BANDWIDTH in tool.operations else LATENCY  # latency then means one message at a time
                request = ToolRequest(operation, _TOOLS_SIZE_BYTES, seconds)
                (ran,) = run_tool(world, tool, request, [pair], tools.versions[tool.name])
                rows.append(_of_tool(tool, pair, request, ran, links))
    return rows


def _of_tool(tool: WireTool, pair: ToolPair, request: ToolRequest, ran: ToolResult, links: dict[str, Link]) -> Channel:
    """Return the row of a run. TCP tools use the interface between the hosts; other libraries choose their interface."""
    row = Channel(tool.name, pair.source.host, pair.target.host, flags=FLAGS)
    on_tcp = tool.api == _TCP or pair.inside
    row = _between_interfaces(row, pair, links) if on_tcp else row.replace(limited_by=_UNKNOWN.format(tool.api))
    row = row.replace(tool={"operation": request.operation, "size_bytes": request.size_bytes, **ran.evidence(tool)})
    if ran.figure is None:
        return row.replace(na=ran.why, flags=FLAGS[:1])
    row = row.replace(of_bytes_per_s=None, flags=(*row.flags, "other_path")) if ran.other_path else row
    return row.replace(bytes_per_s=request.size_bytes / ran.figure.time_s)


_AROUND_S = 2.0  # per channel, to allocate and compare while other ranks wait
Report = Callable[[Sequence[Channel]], None]


class _Host(msgspec.Struct, frozen=True):
    """The resources of a host, at its first rank: the machine, the CPUs of all its ranks, and the GPUs that CUDA shows.

    Without GPUs it has the reason.
    """

    machine: Machine
    cpus: Sequence[int]
    gpus: Sequence[OpenGpu]
    no_gpu: str


def measure_channels(
    env: Mapping[str, str], timeout_s: float, seconds: float, report: Report, tools: Sequence[str] = (), *, scratch: Scratch | None = None
) -> int:
    """Measure for about `seconds` per channel, call `report` with all rows at rank 0, and return the exit code on all ranks.

    Exit codes: 0 if a channel was measured, 2 if none could be, 4 if wrong bytes arrived. The first rank of each host
    measures. Channels inside the hosts are measured at the same time, then those between hosts pair by pair.
    tools: names of external tools to run as well. scratch: the folder of each host, to measure the storage below it. Raises
    CollbenchError on all ranks, and UsageError if a host lacks such a tool or folder.
    """
    with together_or_alone(env, timeout_s) as world:
        _check_scratch(world, scratch)
        external = installed_tools(world, tools)
        host = _this_host(world, env) if world.on_host()[0] == world.me else None
        rows = _inside(world, host, seconds, scratch)
        links = links_of(world)
        machine = host.machine if host else None
        rows += nic_channels(world, machine, numbers_of_gpus(host.machine, host.gpus) if host else {}, seconds)
        tcp = [*tcp_channels(world, links, seconds), *tool_channels(world, external, links, seconds)]
        rows += [*mpi_channels(world, machine, links.get(world.hosts[0]), seconds), *tcp]
        if world.rank == 0:
            report(rows)
        return world.broadcast(exit_code(rows), "sending the results")


def _check_scratch(world: World, scratch: Scratch | None) -> None:
    why = None
    if scratch is not None and world.on_host()[0] == world.me:
        folder = scratch.folder
        problems = {
            "is missing": not folder.exists(), "is not a folder": not folder.is_dir(),
            "cannot be written": not os.access(folder, os.W_OK | os.X_OK),
        }  # fmt: skip
        problem = next((problem for problem, applies in problems.items() if applies), None)
        why = problem and f"--scratch {folder}: it {problem} on {world.me.host}; name a folder on the disk to measure"
    why = world.first_error(why, "looking for the folder of --scratch")
    if why:
        raise UsageError(why)


def exit_code(rows: Sequence[Channel]) -> int:
    """Return the exit code for these rows (see `measure_channels`)."""
    if any(WRONG in row.flags for row in rows):
        return FAILED
    return FINE if any(row.bytes_per_s is not None for row in rows) else USAGE


def _this_host(world: World, env: Mapping[str, str]) -> _Host:
    from collbench.device.unavailable import gpu_obstacle
    from collbench.machine.here import this_machine

    with world.watchdog.phase("probing this host"):
        machine = this_machine()
        cpus = sorted({cpu for member in world.on_host() for cpu in member.cpus})
        why = gpu_obstacle(env)
        if why:
            return _Host(machine, cpus, [], why.render())
        from collbench.device.gpu import OpenGpu, gpu_count

        try:
            return _Host(machine, cpus, [OpenGpu(index) for index in range(gpu_count())], "")
        except CollbenchError as error:
            return _Host(machine, cpus, [], str(error))


def _inside(world: World, host: _Host | None, seconds: float, scratch: Scratch | None) -> list[Channel]:
    """Return the rows inside all hosts at rank 0; empty elsewhere."""
    from collbench.plugins.channels.storage import storage_jobs

    jobs = []
    if host:
        name = world.me.host
        gpus = [ChannelJob(Channel(kind, name, name, na=host.no_gpu)) for kind in (*KINDS, PEER)]
        if host.gpus:
            gpus = gpu_jobs(name, host.machine, host.gpus, host.cpus, seconds)
        jobs = [*memory_jobs(name, host.machine, host.cpus, seconds, world.timeout_s), *gpus]
        jobs += storage_jobs(name, scratch, host.gpus, host.no_gpu, seconds)
    own_s = sum(_AROUND_S + (seconds if job.about_s is None else job.about_s) for job in jobs)
    rows: list[dict[str, Any]] = []
    with world.extend_timeout(max(world.allgather(own_s, "counting the channels"))):
        for place, job in enumerate(jobs, 1):
            measuring = f"measuring {job.channel.channel} {job.channel.source} -> {job.channel.target}"
            if job.measure and world.rank == 0 and seconds >= 1:
                report_error(f"{measuring}, {place} of {len(jobs)} channels of this host")
            with world.watchdog.phase(measuring):
                rows.append(job.run().as_json())
        replies = world.gather(rows, "measuring the hosts")
    return [msgspec.convert(row, Channel) for rows in replies or [] for row in rows]
