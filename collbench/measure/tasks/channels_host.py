"""The channels of a host's own memory: a copy by the CPUs of each NUMA node, and by all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from collbench.measure.tasks.channel_figures import Job, from_times
from collbench.results.steps import Channel

if TYPE_CHECKING:
    from collbench.machine.model import Machine, NumaNode

_PER_CPU_BYTES = 16 * 2**20
_LEAST_BYTES = 256 * 2**20  # source and target together are then twice that: beyond most caches
_PART = 16  # of the free memory, for the source, and as much for the target


def memory_jobs(host: str, machine: Machine, cpus: Sequence[int], seconds: float, patience_s: float) -> list[Job]:
    """One row per NUMA node, where there are several, and one for all CPUs that the ranks of this host may use."""
    nodes = [node for node in machine.numa_nodes if node.cpus]
    single = [_node_job(host, node, cpus, seconds, patience_s) for node in nodes] if len(nodes) > 1 else []
    return [*single, _job(Channel("host_memory", host, host), cpus, seconds, patience_s)]


def node_cpus(node: NumaNode, cpus: Sequence[int]) -> list[int]:
    """The CPUs of a NUMA node that are among these."""
    from collbench.machine.readers.cpu_sets import cpu_list

    return sorted(cpu_list(node.cpus) & set(cpus))


def _node_job(host: str, node: NumaNode, cpus: Sequence[int], seconds: float, patience_s: float) -> Job:
    place = f"{host}/numa{node.id}"
    channel = Channel("host_memory", place, place)
    ours = node_cpus(node, cpus)
    return _job(channel, ours, seconds, patience_s) if ours else Job(_not_ours(channel))


def _not_ours(channel: Channel) -> Channel:
    from dataclasses import replace

    return replace(channel, na="the launcher gave the ranks of this host no CPU of this NUMA node: ask it for all of them")


def _job(channel: Channel, cpus: Sequence[int], seconds: float, patience_s: float) -> Job:
    from dataclasses import replace

    about = (
        f"memory copy by {len(cpus)} CPU{'s' if len(cpus) > 1 else ''}, each byte read and written once; no source tells the DIMMs' rate"
    )
    told = replace(channel, limited_by=about)
    return Job(told, lambda: _copied(told, cpus, seconds, patience_s))


def _copied(channel: Channel, cpus: Sequence[int], seconds: float, patience_s: float) -> Channel:
    import psutil

    from collbench.measure.copies import copy_memory

    wanted = max(_LEAST_BYTES, _PER_CPU_BYTES * len(cpus))
    copied = copy_memory(cpus, min(wanted, int(psutil.virtual_memory().available) // _PART), seconds, patience_s)
    return from_times(channel, copied.seconds, copied.n_bytes, copied.wrong)
