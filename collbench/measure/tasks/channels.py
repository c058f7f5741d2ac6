"""`collbench probe --measure`: the channels of every host of the launch, and between the hosts, one row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from collbench.control.world import World
from collbench.errors import FAILED, FINE, USAGE
from collbench.launch.supervise import say
from collbench.measure.probing import together_or_alone
from collbench.measure.tasks.channel_figures import Job
from collbench.measure.wire import Tools, tools_at_hand
from collbench.results.steps import WRONG, Channel

if TYPE_CHECKING:
    from collbench.device.gpu import Gpu
    from collbench.machine.model import Machine

_AROUND_S = 2.0  # per channel, for allocating and comparing, which others wait for
Tell = Callable[[Sequence[Channel]], None]


@dataclass(frozen=True)
class _Host:
    """What the first rank of a host measures with: the machine, the CPUs of all its ranks, the GPUs that CUDA shows, or why none."""

    machine: Machine
    cpus: Sequence[int]
    gpus: Sequence[Gpu]
    no_gpu: str


def measure_channels(env: Mapping[str, str], timeout_s: float, seconds: float, tell: Tell, tools: Sequence[str] = ()) -> int:
    """Measures for about `seconds` per channel, calls `tell` with all rows at rank 0, and returns the exit code on all ranks.

    0 when something was measured, 2 when nothing could be, 4 when bytes arrived wrongly. The first rank of each host measures, the hosts at
    the same time what is theirs alone, then pair after pair what is between them. `tools` are names of wire tools that are to run, too.
    Raises CollbenchError, on all ranks; UsageError where such a tool is missing on a host.
    """
    with together_or_alone(env, timeout_s) as world:
        others = tools_at_hand(world, tools)
        host = _this_host(world, env) if world.on_host()[0] == world.me else None
        rows = [*_inside(world, host, seconds), *_between(world, host, others, seconds)]
        if world.rank == 0:
            tell(rows)
        return world.decide(exit_code(rows), "telling what was measured")


def exit_code(rows: Sequence[Channel]) -> int:
    """The exit code of these rows."""
    if any(WRONG in row.flags for row in rows):
        return FAILED
    return FINE if any(row.bytes_per_s is not None for row in rows) else USAGE


def _this_host(world: World, env: Mapping[str, str]) -> _Host:
    from collbench.machine.here import this_machine

    with world.watchdog.phase("probing this host"):
        machine = this_machine()
        cpus = sorted({cpu for member in world.on_host() for cpu in member.cpus})
        gpus, why = _gpus(env)
    return _Host(machine, cpus, gpus, why)


def _gpus(env: Mapping[str, str]) -> tuple[list[Gpu], str]:
    """The GPUs that CUDA shows, or why none can be used."""
    from collbench.device.present import why_unavailable

    why = why_unavailable(env)
    if why:
        return [], "; ".join(why)
    from collbench.device.gpu import Gpu, gpu_count
    from collbench.errors import CollbenchError

    try:
        return [Gpu(index) for index in range(gpu_count())], ""
    except CollbenchError as error:
        return [], str(error)


def _inside(world: World, host: _Host | None, seconds: float) -> list[Channel]:
    """The rows of all hosts, at rank 0; elsewhere none."""
    jobs = _jobs(world, host, seconds) if host else []
    most = max(world.agree(len(jobs), "counting the channels"))
    with world.patient(most * (seconds + _AROUND_S)):
        mine = [asdict(_run(job, world, f"{place} of {len(jobs)}", seconds)) for place, job in enumerate(jobs, 1)]
        told = world.gather(mine, "measuring the hosts")
    return [Channel(**{**row, "flags": tuple(row["flags"])}) for rows in told or [] for row in rows]


def _jobs(world: World, host: _Host, seconds: float) -> list[Job]:
    from collbench.measure.tasks.channels_gpu import gpu_jobs, no_gpu
    from collbench.measure.tasks.channels_host import memory_jobs

    name = world.me.host
    memory = memory_jobs(name, host.machine, host.cpus, seconds, world.timeout_s)
    return [*memory, *(gpu_jobs(name, host.machine, host.gpus, host.cpus, seconds) if host.gpus else no_gpu(name, host.no_gpu))]


def _run(job: Job, world: World, place: str, seconds: float) -> Channel:
    row = job.channel
    what = f"measuring {row.channel} {row.source} -> {row.target}"
    if job.measure and world.rank == 0 and seconds >= 1:
        say(f"{what}, {place} channels of this host")
    with world.watchdog.phase(what):
        return job.run()


def _between(world: World, host: _Host | None, others: Tools, seconds: float) -> list[Channel]:
    """The rows between hosts, or of the only host's NICs and loopback; at rank 0 with all figures. All ranks call."""
    from collbench.measure.tasks.channels_gpu import numbers_of_gpus
    from collbench.measure.tasks.channels_mpi import mpi_channels
    from collbench.measure.tasks.channels_nic import nic_channels
    from collbench.measure.tasks.channels_tcp import links_of, tcp_channels
    from collbench.measure.tasks.channels_tools import tool_channels

    links = links_of(world)
    numbers = numbers_of_gpus(host.machine, host.gpus) if host else {}
    nics = nic_channels(world, host.machine if host else None, numbers, seconds)
    tcp = [*tcp_channels(world, links, seconds), *tool_channels(world, others, links, seconds)]
    return [*nics, *mpi_channels(world, host.machine if host else None, links.get(world.hosts[0]), seconds), *tcp]
