"""The channels of RDMA devices by perftest: from host memory and from GPU memory, to the next host or back into the same device."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from collbench.addresses import LOOPBACK
from collbench.control.world import World
from collbench.machine.peak.link import Link
from collbench.measure import infiniband_counters
from collbench.measure.channels_between import COUNTED, Pair, Told, in_turn, pairs, patience
from collbench.measure.counter_readings import grown
from collbench.measure.perftest import Server, Writes, free_port, why_not, write_to
from collbench.measure.tasks.channel_figures import against, from_rates
from collbench.results.steps import Channel

if TYPE_CHECKING:
    from collbench.machine.model import Machine, Nic

_SOFTWARE_WRITES = 50  # of an emulated device, which is thousands of times slower
_UNVERIFIED = ("unverified", "their_tool")  # perftest does not compare what arrived
HOST_MEMORY, GDR_ON, GDR_OFF = "nic_host_memory_perftest", "nic_gpu_memory_gdr_on", "nic_gpu_memory_gdr_off"
_NO_OFF = (
    "perftest reads GPU memory by GPUDirect RDMA or not at all: `collbench p2p --backend nccl --gdr-check` on two hosts sets both "
    "ways against each other"
)


@dataclass(frozen=True)
class Device:
    """An RDMA device that is up, with what it could carry; `gpu` is the one near it that CUDA shows, by CUDA's number."""

    name: str
    port: int
    link: Link
    software: bool = False
    gpu: int | None = None

    def writes(self, gpu: int | None = None) -> Writes:
        """What is asked of perftest."""
        return Writes(self.name, self.port, gpu, _SOFTWARE_WRITES if self.software else Writes.iterations)


def devices_of(machine: Machine, gpus: dict[str, int]) -> list[Device]:
    """The RDMA devices with a port that is up, in the machine's order; `gpus` are CUDA's numbers by GPU keys."""
    from collbench.machine.distance import Distances
    from collbench.machine.peak.nics import egress_of
    from collbench.machine.peak.pcie import PcieTree

    distances = Distances(machine)
    near = {nic.key: number for key, number in reversed(gpus.items()) for nic in distances.near_nics(key)}
    found = []
    for nic in machine.nics:
        up = [port for port in nic.ports if port.state in (None, "active")]
        if nic.rdma and up:
            link = egress_of(replace(machine, nics=(nic,)), PcieTree(machine)).link
            found.append(Device(nic.name, up[0].number, link, _software(nic), near.get(nic.key)))
    return found


def nic_channels(world: World, machine: Machine | None, gpus: dict[str, int], seconds: float) -> list[Channel]:
    """The rows, at all ranks. All ranks call; `machine` and `gpus` at the first rank of each host."""
    mine = [asdict(device) for device in devices_of(machine, gpus)] if machine else None
    tools = [why_not(), why_not(cuda=True)] if machine else None
    told: list[Any] = world.agree([mine, tools], "looking for RDMA devices")
    rows: list[Channel] = []
    for pair in pairs(world):
        (sources, why), (targets, other) = told[pair.source.rank], told[pair.target.rank]
        ends = _rails([_device(each) for each in sources], [_device(each) for each in targets])
        lacking = [first or second for first, second in zip(why, other, strict=True)]
        rows += _of_pair(pair, ends, lacking, world, seconds)
    return rows


def _of_pair(pair: Pair, rails: list[tuple[Device, Device]], lacking: list[str | None], world: World, seconds: float) -> list[Channel]:
    if not rails:
        why = "no RDMA device with a port that is up"
        return [Channel(name, pair.source.host, pair.target.host, na=why) for name in (HOST_MEMORY, GDR_ON, GDR_OFF)]
    rows = []
    for source, target in rails:
        rows.append(_row(HOST_MEMORY, pair, (source, target), lacking[0], None))
        if rows[-1].na is None:
            rows[-1] = _written(rows[-1], pair, (source.writes(), target.writes()), world, seconds)
        rows += _from_gpu(pair, (source, target), lacking[1], world, seconds)
    return rows


def _from_gpu(pair: Pair, rail: tuple[Device, Device], lacking: str | None, world: World, seconds: float) -> list[Channel]:
    """With GPUDirect RDMA, from the GPU near the one device to the GPU near the other; without it perftest has no way."""
    source, target = rail
    near = source.gpu is not None and target.gpu is not None
    none = None if near else "CUDA shows no GPU near this NIC"
    on = _row(GDR_ON, pair, rail, none or lacking, source.gpu)
    if on.na is None:
        on = _written(on, pair, (source.writes(source.gpu), target.writes(target.gpu)), world, seconds)
    return [on, _row(GDR_OFF, pair, rail, none or _NO_OFF, source.gpu)]


def _row(name: str, pair: Pair, rail: tuple[Device, Device], why: str | None, gpu: int | None) -> Channel:
    source, target = rail
    memory = "" if gpu is None else f"/gpu{gpu}"
    row = Channel(name, f"{pair.source.host}{memory}/{source.name}", f"{pair.target.host}/{target.name}", na=why, flags=_UNVERIFIED)
    if why:
        return replace(row, flags=())
    row = against(row, min((source.link, target.link), key=lambda link: link.known))
    return replace(row, limited_by=f"{row.limited_by}; back into the same device, not over a cable") if pair.inside else row


def _written(row: Channel, pair: Pair, ends: tuple[Writes, Writes], world: World, seconds: float) -> Channel:
    """Measures: the target's server waits while the source writes."""
    (writes, reads), waits = ends, patience(world)
    offer = in_turn(world, pair.target.rank, "starting perftest", free_port, 0.0)
    if "value" not in offer:
        return replace(row, na=f"{pair.target.host}: {offer.get('why')}", flags=())
    address = LOOPBACK if pair.inside else pair.target.address
    write = partial(_write, address, writes, offer["value"], (seconds, waits))
    said = _with_server(Server(reads, offer["value"]), pair, world, write, seconds + 3 * waits)
    if "value" not in said:
        return replace(row, na=said.get("why", "perftest said nothing"), flags=())
    rates, sent = said["value"]
    if sent is not None and sent < COUNTED * len(rates) * writes.n_bytes:
        row = replace(row, of_bytes_per_s=None, flags=(*row.flags, "path_unproven"))
    return from_rates(row, np.array(rates[1:] or rates))


def _with_server(server: Server, pair: Pair, world: World, write: Any, honest_s: float) -> Told:
    if world.rank == pair.target.rank:
        with server:
            return in_turn(world, pair.source.rank, "writing with perftest", write, honest_s)
    return in_turn(world, pair.source.rank, "writing with perftest", write, honest_s)


def _write(address: str, writes: Writes, port: int, times: tuple[float, float]) -> tuple[list[float], int | None]:
    """The rate of each run, and the bytes that the device's port counted meanwhile; None where it counts none."""
    before = infiniband_counters.read()
    rates = write_to(address, writes, port, *times)
    counted = grown(before, infiniband_counters.read()).get(f"{writes.device}/{writes.port}", {})
    return rates.tolist(), infiniband_counters.moved(counted, "tx") if "tx_bytes" in counted else None


def _rails(sources: list[Device], targets: list[Device]) -> list[tuple[Device, Device]]:
    """Devices of the same name; where names differ, in their order."""
    named = {device.name: device for device in targets}
    same = [(device, named[device.name]) for device in sources if device.name in named]
    return same or list(zip(sources, targets, strict=False))


def _device(told: dict[str, Any]) -> Device:
    return Device(**{**told, "link": Link(**told["link"])})


def _software(nic: Nic) -> bool:
    return nic.virtual is not None
