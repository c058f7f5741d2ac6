"""Ranks and process groups of a job, from the communicators of its processes.

NCCL's own records name a communicator, the process's rank in it, and its size; not the rank in the job. That is the rank in a communicator
of all processes that were read. Without one, the ranks are unknown, and so is which processes a communicator connects.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from collbench.errors import UsageError
from collbench.plugins.traces.model import KIND, UNKNOWN, Part, ProcessGroup, RankTrace
from collbench.units import listed

_MOST_RANKS = 1 << 20
_ROOTED = [KIND[name] for name in ("broadcast", "reduce", "gather", "scatter", "send", "recv")]


class Membership(msgspec.Struct, frozen=True):
    """A process's part in a communicator.

    key   identifies the communicator in all processes
    rank  the rank in it; size: its number of ranks
    what  the program's name of it, or ""
    """

    key: str
    rank: int
    size: int
    what: str = ""


class ProcessTrace(msgspec.Struct, frozen=True):
    """What one rank recorded.

    name        for messages: "process 4711 on node03"
    source      the (first) file that was read
    members     its communicators
    operations  [n] of OPERATION; `group` is an index in `members`, and `root` a rank in that communicator
    rank        the rank in the job, if the record has it
    """

    name: str
    source: Path
    host: str
    members: tuple[Membership, ...]
    operations: NDArray[Any]
    missing: frozenset[Part]
    rank: int = UNKNOWN


def rank_traces(processes: Sequence[ProcessTrace]) -> list[RankTrace]:
    """Return the traces of the ranks, with one table of groups. A group has its ranks if all of them were read.

    Raises UsageError if a rank of a communicator is there twice or invalid, or if the ranks in the job are unknown.
    """
    communicators = _communicators(processes)
    ranks, world = _job_ranks(processes, communicators)
    table: dict[str, int] = {}
    groups: list[ProcessGroup] = []
    job_ranks: list[NDArray[Any]] = []
    for key, owners in communicators.items():
        size = next(iter(owners.values()))[1].size
        by_rank = np.full(size + 1, UNKNOWN, np.int64)  # the last entry is that of an unknown rank
        for rank, (owner, _) in owners.items():
            by_rank[rank] = ranks[owner]
        if size == world and all(by_rank[rank] == rank for rank in owners):
            by_rank[:size] = np.arange(size)
        table[key] = len(groups)
        what = next((member.what for _, member in owners.values() if member.what), "")
        groups.append(ProcessGroup(key, tuple(by_rank[:size].tolist()) if (by_rank[:size] >= 0).all() else (), what))
        job_ranks.append(by_rank)
    traces = []
    for number, process in enumerate(processes):
        operations = process.operations
        members = operations["group"].copy()
        is_rooted = np.isin(operations["kind"], _ROOTED)
        for index, member in enumerate(process.members):
            operations["group"][members == index] = table[member.key]
            rooted = (members == index) & is_rooted
            roots = operations["root"][rooted]
            is_valid = (roots >= 0) & (roots < member.size)
            operations["root"][rooted] = job_ranks[table[member.key]][np.where(is_valid, roots, member.size)]
        operations["root"][~is_rooted] = UNKNOWN
        unknown = {table[member.key] for member in process.members if not groups[table[member.key]].ranks}
        missing = process.missing | ({Part.GROUPS} if unknown else set())
        traces.append(RankTrace(ranks[number], world, process.source, tuple(groups), operations, missing=missing, host=process.host))
    return traces


def _communicators(processes: Sequence[ProcessTrace]) -> dict[str, dict[int, tuple[int, Membership]]]:
    """Return by key and rank in the communicator the index of the process, and its membership."""
    communicators: dict[str, dict[int, tuple[int, Membership]]] = {}
    for number, process in enumerate(processes):
        for member in process.members:
            if not 0 <= member.rank < member.size <= _MOST_RANKS:
                raise UsageError(
                    f"{process.source}: communicator '{member.key[:80]}': rank {member.rank} of {member.size} is not valid: record it again"
                )
            owners = communicators.setdefault(member.key, {})
            first = next(iter(owners.values()), (number, member))
            if first[1].size != member.size:
                raise UsageError(
                    f"{process.source}: communicator '{member.key[:80]}' has {member.size} ranks, and {first[1].size} in "
                    f"{processes[first[0]].source}: give the files of one job"
                )
            if member.rank in owners:
                owner = processes[owners[member.rank][0]]
                raise UsageError(
                    f"{process.source}: rank {member.rank} of communicator '{member.key[:80]}' is there twice, also in "
                    f"{owner.source} ({owner.name}): give one trace of each rank"
                )
            owners[member.rank] = (number, member)
    return communicators


def _job_ranks(processes: Sequence[ProcessTrace], communicators: dict[str, dict[int, tuple[int, Membership]]]) -> tuple[list[int], int]:
    """Return by process its rank in the job, and the number of ranks of the job, UNKNOWN without a communicator of all."""
    largest = max((next(iter(owners.values()))[1].size for owners in communicators.values()), default=0)
    for owners in communicators.values():
        if len(owners) == len(processes) and next(iter(owners.values()))[1].size == largest:
            by_process = {process: rank for rank, (process, _) in owners.items()}
            ranks = [by_process[number] for number in range(len(processes))]
            if all(process.rank in (UNKNOWN, rank) for process, rank in zip(processes, ranks, strict=True)):
                return ranks, largest
    if all(process.rank != UNKNOWN for process in processes):
        return [process.rank for process in processes], UNKNOWN
    without = [process.name for process in processes if all(member.size < largest for member in process.members)]
    raise UsageError(
        f"{listed([str(path) for path in dict.fromkeys(process.source for process in processes)], 3)}: no communicator connects all "
        f"processes{f' (not {listed(without, 3)})' if without else ''}, so their ranks in the job are unknown: give the files of one job, "
        "or record a job that calls a collective of all ranks"
    )


# By kind whether the input, and the output, is that of all ranks. None: only some ranks have it, or none.
_COUNTED: dict[str, tuple[bool | None, bool | None]] = {
    "allreduce": (False, False), "broadcast": (None, False), "reduce": (False, None), "allgather": (False, True),
    "reducescatter": (True, False), "alltoall": (True, True), "gather": (False, None), "scatter": (None, False),
    "send": (False, None), "recv": (None, False),
}  # fmt: skip


@lru_cache(maxsize=1024)
def kind_of_nccl(name: str) -> int:
    """Return the index in KINDS of NCCL's "AllReduce" or "All2All"; that of "other" where a count does not give the sizes."""
    kind = name.lower().replace("all2all", "alltoall")
    return KIND[kind if kind in _COUNTED else "other"]


def set_sizes(operations: NDArray[Any], counts: NDArray[Any], sizes: NDArray[Any]) -> None:
    """Set `sent` and `received` from NCCL's counts: of a gather, a scatter, an all-gather, and so on, the count is that of one rank.

    counts  of each operation; sizes: the number of ranks of its communicator
    """
    for name, of_all_ranks in _COUNTED.items():
        same_kind = operations["kind"] == KIND[name]
        for column, is_of_all in zip(("sent", "received"), of_all_ranks, strict=True):
            if is_of_all is not None:
                operations[column][same_kind] = np.where(is_of_all, sizes[same_kind], 1) * counts[same_kind]
