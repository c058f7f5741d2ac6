"""Join the traces of the ranks of a job.

A group is the same at two ranks if its name and its ranks are; where one rank's trace does not contain the ranks of a group, its name
decides, if only one group has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.plugins.traces.model import UNKNOWN, ProcessGroup, RankTrace, Trace
from collbench.units import plural

_MOST_RANKS = 1 << 20
_MOST_ELEMENTS = 1 << 62


def joined(form: str, ranks: Sequence[RankTrace]) -> Trace:
    """Return the trace of a job from those of its ranks. Without a recorded number of ranks, it is the least that the ranks allow.

    Raises UsageError as `read_traces` does.
    """
    ordered = sorted(ranks, key=lambda rank: rank.rank)
    for rank in ordered:
        for name in ("sent", "received"):
            sizes = rank.operations[name]
            wrong = np.flatnonzero((sizes < UNKNOWN) | (sizes > _MOST_ELEMENTS))
            if len(wrong):
                what = f"operation {wrong[0]} of rank {rank.rank}: {int(sizes[wrong[0]]):,} is not a valid size"
                raise UsageError(f"{rank.source}: {what}: record the trace again")
    first = next((rank for rank in ordered if rank.job), ordered[0])
    for rank in ordered:
        if rank.job not in ("", first.job):
            raise UsageError(
                f"{first.source} and {rank.source} are of different jobs ('{first.job}' and '{rank.job}'): give the files of one job"
            )
    for rank, following in pairwise(ordered):
        if rank.rank == following.rank:
            raise UsageError(f"{following.source}: rank {rank.rank} is there twice, also in {rank.source}: give one trace of each rank")
    world = _world(ordered)
    groups, numbers = _unified(ordered, world)
    with_groups = []
    for rank, of_groups in zip(ordered, numbers, strict=True):
        operations = rank.operations
        if of_groups != list(range(len(of_groups))) and len(operations):
            operations = operations.copy()
            operations["group"] = np.array(of_groups, np.int32)[operations["group"]]
        progress = {of_groups[number]: last for number, last in rank.progress.items()}
        with_groups.append(replace(rank, groups=groups, operations=operations, progress=progress))
    return Trace(form, world, groups, tuple(with_groups))


def _world(ranks: Sequence[RankTrace]) -> int:
    """Return the number of ranks of the job. Raises UsageError where the traces disagree, and for ranks outside the job."""
    with_world = [rank for rank in ranks if rank.world != UNKNOWN]
    first = with_world[0] if with_world else ranks[0]
    for rank in with_world:
        if rank.world != first.world:
            raise UsageError(
                f"{rank.source} is of a job of {plural(rank.world, 'rank')}, and {first.source} of {first.world}: give the files of one job"
            )
    peers = [int(rank.operations["root"].max(initial=UNKNOWN)) for rank in ranks]
    members = [max((member for group in rank.groups for member in group.ranks), default=0) for rank in ranks]
    world = first.world if with_world else 1 + max(*(rank.rank for rank in ranks), *peers, *members)
    if not 0 < world <= _MOST_RANKS:
        raise UsageError(f"{first.source}: {world:,} is not a valid number of ranks: record the trace again")
    for rank in ranks:
        if not 0 <= rank.rank < world:
            raise UsageError(f"{rank.source}: rank {rank.rank} is not in a job of {plural(world, 'rank')}: give the files of one job")
    for rank, peer in zip(ranks, peers, strict=True):
        if peer >= world:
            raise UsageError(
                f"{rank.source}: an operation has the root or peer {peer}, and the job has {plural(world, 'rank')}: "
                "give the files of one job"
            )
    return world


def _unified(ranks: Sequence[RankTrace], world: int) -> tuple[tuple[ProcessGroup, ...], list[list[int]]]:
    """Return the job's groups, and by rank and group of its own table the index of the job's group.

    Raises UsageError for groups with ranks outside the job, with a rank twice, or without the rank that uses them.
    """
    by_name: dict[str, list[ProcessGroup]] = {}
    for rank in ranks:
        for group in rank.groups:
            same_name = by_name.setdefault(group.name, [])
            if group.ranks and all(group.ranks != known.ranks for known in same_name):
                _check_group(rank, group, world)
                same_name.append(group)
    groups: dict[tuple[str, tuple[int, ...]], int] = {}
    table: list[ProcessGroup] = []
    numbers: list[list[int]] = []
    for rank in ranks:
        numbers.append([])
        used = set(np.unique(rank.operations["group"]).tolist())
        for number, named in enumerate(rank.groups):
            group = named
            if not named.ranks and len(by_name[named.name]) == 1:
                group = by_name[named.name][0]
            if group.ranks and number in used and rank.rank not in group.ranks:
                raise UsageError(
                    f"{rank.source}: rank {rank.rank} calls operations of process group '{group.name[:80]}', which does not contain it: "
                    "give the files of one job"
                )
            key = group.name, group.ranks
            if key not in groups:
                groups[key] = len(table)
                table.append(group)
            elif group.what and not table[groups[key]].what:
                table[groups[key]] = replace(table[groups[key]], what=group.what)
            numbers[-1].append(groups[key])
    return tuple(table), numbers


def _check_group(rank: RankTrace, group: ProcessGroup, world: int) -> None:
    wrong = next((member for member in group.ranks if not 0 <= member < world), None)
    if wrong is not None:
        raise UsageError(
            f"{rank.source}: process group '{group.name[:80]}' contains rank {wrong}, and the job has {plural(world, 'rank')}: "
            "give the files of one job"
        )
    if len(set(group.ranks)) != len(group.ranks):
        raise UsageError(f"{rank.source}: process group '{group.name[:80]}' contains a rank twice: record the trace again")
