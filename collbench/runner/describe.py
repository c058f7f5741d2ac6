"""What run.json says of a launch: command, ranks, libraries, environment."""

from __future__ import annotations

import os
from typing import Any

from collbench import __version__
from collbench.results.environment import host_facts, loaded_libraries, recorded_environment
from collbench.runner.opening import Opened
from collbench.runner.request import Request
from collbench.world.world import World


def member_places(world: World) -> list[dict[str, Any]]:
    """The rank map: rank, host, local rank, process, CPUs it may use, address."""
    names = ("rank", "host", "local_rank", "pid", "cpus", "address")
    return [{name: getattr(member, name) for name in names} for member in world.members]


def describe_run(request: Request, world: World, opened: list[Opened]) -> dict[str, Any]:
    """Everything about the launch that is known before its first cell."""
    return {
        "collbench": __version__,
        "command": ["collbench", *request.argv],
        "seed": request.seed,
        "launcher": world.info.launcher,
        "launcher_facts": world.info.facts,
        "allocation_id": _allocation(request),
        "launch_index": 0,
        "hosts": list(world.hosts),
        "rank_map": member_places(world),
        "backends": {one.name: dict(one.backend.versions()) if one.backend else {"not measured": one.reason} for one in opened},
        "libraries": loaded_libraries(),
        "environment": recorded_environment(),
        "host": host_facts(),
    }


def _allocation(request: Request) -> str | None:
    """The scheduler's job, else the name given, else None: each command is an allocation of its own."""
    if request.allocation:
        return request.allocation
    job = os.environ.get("SLURM_JOB_ID")
    return f"{os.environ.get('SLURM_CLUSTER_NAME', 'slurm')}-{job}" if job else None
