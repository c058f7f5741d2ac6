"""What run.json says of a launch: command, ranks, libraries, environment."""

from __future__ import annotations

import os
from typing import Any

from collbench import __version__
from collbench.control.members import Member
from collbench.control.world import World
from collbench.launch import software
from collbench.launch import software as build
from collbench.measure.conditions import binding, settings
from collbench.measure.opening import Opened
from collbench.measure.request import Request
from collbench.results.environment import host_facts, loaded_libraries, recorded_environment


def member_places(world: World, opened: list[Opened]) -> list[dict[str, Any]]:
    """The rank map: rank, host, local rank, process, CPUs it may use, address; where a process drives several ranks, each of them.

    "gpu" is the PCI address of the rank's GPU, where a backend needs one.
    """
    gpus: tuple[str, ...] = max((one.backend.gpus for one in opened if one.backend), key=len, default=())
    each = max(1, len(gpus) // world.size)
    places = [_place(member, each, turn) for member in world.members for turn in range(each)]
    return [place | {"gpu": gpu} for place, gpu in zip(places, gpus, strict=True)] if gpus else places


def _place(member: Member, each: int, turn: int) -> dict[str, Any]:
    numbers = {"rank": member.rank * each + turn, "host": member.host, "local_rank": member.local_rank * each + turn}
    return numbers | {name: getattr(member, name) for name in ("pid", "cpus", "address")}


def software_of_hosts(world: World, opened: list[Opened]) -> list[dict[str, Any]]:
    """The software of each host, one entry for each combination of versions, at rank 0; empty elsewhere. All ranks call."""
    everyone = world.gather(_software(opened), "comparing the software") or []
    return software.grouped(zip((member.host for member in world.members), everyone, strict=False))


def _software(opened: list[Opened]) -> software.Software:
    """This rank's: what its backends have loaded comes before what is installed."""
    about = [dict(one.backend.versions()) for one in opened if one.backend]
    loaded = {name: found for name in ("torch", "mpi", "nccl") for one in about if (found := one.get(name) or one.get(f"torch_{name}"))}
    return {"collbench": str(build.own()), "native": build.native(), **software.installed(), **loaded}


def describe_run(request: Request, world: World, opened: list[Opened], of_hosts: list[dict[str, Any]]) -> dict[str, Any]:
    """Everything about the launch that is known before its first cell; `of_hosts`: what `software_of_hosts` found."""
    return {
        "collbench": __version__,
        "software": of_hosts,
        "command": ["collbench", *request.argv],
        "seed": request.seed,
        "launcher": world.info.launcher,
        "launcher_facts": world.info.facts,
        "allocation_id": _allocation(request),
        "launch_index": request.launch_index,
        "launches": request.launches,
        "hosts": list(world.hosts),
        "rank_map": member_places(world, opened),
        "backends": {one.name: dict(one.backend.versions()) if one.backend else {"not measured": one.reason} for one in opened},
        "libraries": loaded_libraries(),
        "environment": recorded_environment(_of_user(opened)),
        "host": host_facts(),
        **({"slowed": request.slowed.texts} if request.slowed else {}),
        **({"suite": dict(request.suite)} if request.suite else {}),
    }


def _of_user(opened: list[Opened]) -> dict[str, str]:
    """The environment without what NCCL's logs needed there."""
    env = dict(os.environ)
    for one in opened:
        env = one.paths.log.of_user(env) if one.paths else env
    return env


def describe_conditions(world: World) -> dict[str, Any]:
    """For every row's evidence: governor, boost and huge pages of all ranks (a list where they differ), and how ranks are bound."""
    everyone = world.agree(settings(), "reading the CPUs' settings")
    found = {name: sorted({str(one[name]) for one in everyone}) for name in everyone[0]}
    same = {name: everyone[0][name] if len(values) == 1 else values for name, values in found.items()}
    cpus = [[f"{member.host} {cpu}" for cpu in member.cpus] for member in world.members]
    return {**same, "binding": binding(cpus)}


def _allocation(request: Request) -> str | None:
    """The scheduler's job, else the name given, else None: each command is an allocation of its own."""
    if request.allocation:
        return request.allocation
    job = os.environ.get("SLURM_JOB_ID")
    return f"{os.environ.get('SLURM_CLUSTER_NAME', 'slurm')}-{job}" if job else None
