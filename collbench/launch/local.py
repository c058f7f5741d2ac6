"""Ranks that collbench started itself: COLLBENCH_LOCAL (spawn.start_local) and COLLBENCH_WORKER (spawn.node_workers)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from collbench.errors import UsageError
from collbench.launch.info import LaunchInfo
from collbench.launch.variables import place

# Open MPI first: with both there, PMI_* is the leftover of an outer launcher
_RANK_ORDER = ("COLLBENCH_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_RANK_VARIABLES = {"COLLBENCH_RANK": None, "PMI_RANK": "pmi", "OMPI_COMM_WORLD_RANK": "pmix"}


def detect(env: Mapping[str, str]) -> LaunchInfo | None:
    """This rank of collbench's own start, or None. Raises UsageError where its variables are broken."""
    if "COLLBENCH_WORKER" in env:
        return _worker(env["COLLBENCH_WORKER"])
    return _local(env) if "COLLBENCH_LOCAL" in env else None


def is_follower(env: Mapping[str, str]) -> bool:
    """Whether this is a rank other than 0 of a start on this host: all ranks get the same signal, and rank 0 or the parent reports it."""
    return "COLLBENCH_LOCAL" in env and next((env[name] for name in _RANK_ORDER if name in env), "0") != "0"


def _local(env: Mapping[str, str]) -> LaunchInfo:
    folder = env["COLLBENCH_LOCAL"]
    name = next((n for n in _RANK_ORDER if n in env), None)
    if name is None or not folder:
        raise UsageError(f"COLLBENCH_LOCAL={folder!r} is set but no rank is: it belongs to collbench's own start, unset it")
    rank, ranks = place(env, name, "COLLBENCH_RANKS")
    mpi = _RANK_VARIABLES[name]
    return LaunchInfo("local", rank, ranks, rank, ranks, f"ipc://{folder}/control", token=folder, mpi=mpi, secret=f"{folder}/secret")


def to_variable(info: LaunchInfo) -> str:
    """The text of COLLBENCH_WORKER for one rank."""
    return json.dumps(asdict(info))


def _worker(text: str) -> LaunchInfo:
    try:
        values = json.loads(text)
        info = LaunchInfo(**{**values, "hosts": tuple(values["hosts"])})
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _broken() from error
    if not _sound(info):
        raise _broken()
    return info


def _sound(info: LaunchInfo) -> bool:
    wanted: dict[str, Any] = {"str": str, "int": int, "int | None": int | None, "str | None": str | None, "dict[str, str]": dict}
    typed = all(isinstance(getattr(info, f.name), wanted.get(str(f.type), tuple)) for f in fields(info))
    texts = typed and all(isinstance(t, str) for t in (*info.hosts, *info.facts, *info.facts.values()))
    return texts and 0 <= info.rank < info.ranks and 0 <= info.local_rank < info.local_ranks <= info.ranks


def _broken() -> UsageError:
    return UsageError("COLLBENCH_WORKER does not hold a rank of collbench's own start: unset it")
