"""The channels from one host's memory to another's through MPI. Which link its library took, the counters tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from collbench.backends.backend import Backend, Settings, can_do
from collbench.backends.registry import backend_class
from collbench.control.world import World
from collbench.machine.peak.link import Link
from collbench.measure import infiniband_counters
from collbench.measure.budget import Budget
from collbench.measure.channels_between import COUNTED
from collbench.measure.counter_readings import moved, read
from collbench.measure.one_cell import Ready, Stage, make_groups, prepare, time_cell, verify_cell
from collbench.measure.opening import missing_anywhere, open_everywhere
from collbench.measure.protocol import Measured
from collbench.measure.tasks.channel_figures import against, from_times
from collbench.operations.builtin.p2p import P2P_BANDWIDTH
from collbench.operations.cell import Cell
from collbench.operations.dtypes import dtype_named
from collbench.results.steps import Channel

if TYPE_CHECKING:
    from collbench.machine.model import Machine

_DEVICES = {"nic_host_memory_mpi": "cpu", "nic_gpu_memory_mpi": "cuda"}
_SIZE_BYTES, _WINDOW = 2**20, 8


@dataclass(frozen=True)
class Way:
    """What left the sending host: bytes over RDMA ports and over interfaces (None: not counted), and how many had to."""

    rdma: float | None
    interfaces: float | None
    payload: float


def mpi_channels(world: World, machine: Machine | None, tcp: Link | None, seconds: float) -> list[Channel]:
    """From host memory, and from GPU memory where the library takes it; with figures at rank 0 alone.

    All ranks call; `machine` is known at the first rank of each host, `tcp` is the first host's interface.
    """
    rows = [Channel(name, world.hosts[0], world.hosts[-1]) for name in _DEVICES]
    why = _misfit(world)
    backend, why = (None, why) if why else _opened(world)
    if backend is None:
        return [replace(row, na=why) for row in rows]
    try:
        return [_measured(row, world, backend, seconds, (_rdma(machine), tcp)) for row in rows]
    finally:
        with world.watchdog.phase("closing mpi"):
            backend.close()


def _misfit(world: World) -> str | None:
    if len(world.hosts) == 1:
        return "one host: MPI passes bytes through its memory and over no NIC; a launch on two hosts measures it"
    if len(world.hosts) != 2:
        return f"measured between two hosts, and these are {len(world.hosts)}: launch on two of them"
    hosts = [[world.members[rank].host for rank in group] for group in ((i, i + world.size // 2) for i in range(world.size // 2))]
    if world.size % 2 or any(pair != list(world.hosts) for pair in hosts):
        return "the ranks are not laid out in two equal blocks, one a host: launch as many on each"
    return None


def _opened(world: World) -> tuple[Backend | None, str | None]:
    """The backend, open on all ranks, or why not."""
    kind = backend_class("mpi")
    if missing := missing_anywhere("mpi", kind, world):
        return None, missing
    backend: Backend = kind()
    wrong = open_everywhere(backend, world, Settings(timeout_s=world.timeout_s))
    return (None, wrong[0]) if wrong else (backend, None)


def _measured(row: Channel, world: World, backend: Backend, seconds: float, links: tuple[Link | None, Link | None]) -> Channel:
    device = _DEVICES[row.channel]
    cell = Cell("p2p_bandwidth", "mpi", dtype_named("uint8"), _SIZE_BYTES, device=device, in_place=False, window=_WINDOW)
    why = world.first(can_do(backend, P2P_BANDWIDTH, cell), f"asking mpi for {device}")
    if why:
        return replace(row, na=why)
    members = make_groups(backend, [], world)
    whole = members[tuple(range(world.size))]
    ready = prepare(P2P_BANDWIDTH, cell, Stage(backend, members, backend.sync(whole) if whole else None), world)
    if isinstance(ready, str):
        return replace(row, na=ready)
    before, already = read(), ready.loop.iterations_run
    measured = time_cell(ready, world, Budget(seconds))
    way = _way(moved(before, read()), (ready.loop.iterations_run - already) * _bytes_each(ready))
    wrong = verify_cell(ready, world, 1)
    if measured is None:
        return row
    told = _told(row, way, links, backend)
    told = replace(told, limited_by=f"{told.limited_by}; MPI does not tell whether by GPUDirect RDMA") if device == "cuda" else told
    return _figures(told, ready, measured, wrong[0].sentence() if wrong else None)


def _bytes_each(ready: Ready) -> float:
    """That leave the sending host in one iteration of all pairs."""
    return float(len(ready.groups) * P2P_BANDWIDTH.moves(ready.cell) * ready.cell.size_bytes)


def _figures(row: Channel, ready: Ready, measured: Measured, wrong: str | None) -> Channel:
    return from_times(row, measured.samples[ready.timed].max(axis=0), _bytes_each(ready), wrong)


def _told(row: Channel, way: Way, links: tuple[Link | None, Link | None], backend: Backend) -> Channel:
    """Against the link that the counters say was taken; where they do not, against none."""
    rdma, tcp = links
    library = backend.versions().get("mpi", "MPI")
    if rdma and way.rdma is not None and way.rdma >= COUNTED * way.payload:
        row = against(row, rdma)
    elif tcp and way.interfaces is not None and way.interfaces >= COUNTED * way.payload:
        row = against(row, tcp)
        row = replace(row, limited_by=f"{row.limited_by}; {library} did not use RDMA" if rdma else row.limited_by)
    else:
        row = replace(row, limited_by=f"no counter of {row.source} shows the way that {library} took", flags=("path_unproven",))
    return row


def _way(moves: Mapping[str, Any], payload: float) -> Way:
    ports = [infiniband_counters.moved(counts, "tx") for name, counts in moves["ports"].items() if name not in moves["silent"]]
    out = [moves["interfaces"].get(name, {}).get("tx_bytes", 0) for name in moves["leaving"]]
    return Way(_sum(ports), _sum(out), payload)


def _sum(counts: list[int | None]) -> float | None:
    known = [count for count in counts if count is not None]
    return float(sum(known)) if known and len(known) == len(counts) else None


def _rdma(machine: Machine | None) -> Link | None:
    """All RDMA devices of the host together; None without one that has a rate."""
    from collbench.machine.peak.nics import egress_of
    from collbench.machine.peak.pcie import PcieTree

    nics = tuple(nic for nic in machine.nics if nic.rdma and nic.virtual is None) if machine else ()
    if machine is None or not nics:
        return None
    link = egress_of(replace(machine, nics=nics), PcieTree(machine)).link
    return link if link.bytes_per_s is not None else None
