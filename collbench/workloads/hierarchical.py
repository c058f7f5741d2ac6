"""Data-parallel training whose sums go in three steps: inside each host, across hosts (each rank its part), inside each host again."""

from __future__ import annotations

from collections.abc import Iterator

from collbench.errors import UsageError
from collbench.operations.groups import Groups
from collbench.workloads.buckets import Bucket, buckets, filled_up
from collbench.workloads.exchange import Exchange, Regime, Shape, Step
from collbench.workloads.laying import by_host, counted, need_ranks
from collbench.workloads.shaping import BUCKET


def _step(shape: Shape) -> Step:
    need_ranks(shape, 4, REGIME.name)
    inside = _inside(shape)
    across: Groups = tuple(zip(*inside, strict=True))
    local = len(inside[0])
    exchanges = tuple(exchange for one in buckets(shape, local) for exchange in _of_bucket(one, inside, across, shape.dtype))
    note = f"{counted(len(across), 'all-reduce')} of {counted(len(inside), 'host')} at the same time share the wire"
    return Step(exchanges, shape.gradient_bytes, "; ".join(filter(None, (note, filled_up(shape, local)))))


def _of_bucket(one: Bucket, inside: Groups, across: Groups, dtype: str) -> Iterator[Exchange]:
    part = one.size_bytes // len(inside[0])
    yield Exchange("reducescatter", inside, one.size_bytes, f"gradients, {one.which}: sums inside each host", one.times, dtype, "sum")
    yield Exchange("allreduce", across, part, f"gradients, {one.which}: each part across hosts", one.times, dtype, "sum")
    yield Exchange("allgather", inside, one.size_bytes, f"gradients, {one.which}: back to all ranks of each host", one.times, dtype)


def _inside(shape: Shape) -> Groups:
    """The ranks of each host. Raises UsageError where that makes no two levels."""
    groups, remedy = by_host(shape), "or take data-parallel, which is flat"
    sizes = sorted({len(ranks) for ranks in groups})
    if len(groups) == 1:
        raise UsageError(f"hierarchical over one host has nothing to sum across hosts: start ranks on several hosts, {remedy}")
    if len(sizes) > 1:
        raise UsageError(
            f"hierarchical needs equally many ranks on every host, and these have {sizes[0]} to {sizes[-1]}: start equally many, {remedy}"
        )
    if sizes == [1]:
        raise UsageError(f"hierarchical over one rank per host has nothing to sum inside of one: start 2 or more per host, {remedy}")
    return groups


REGIME = Regime(
    name="hierarchical",
    summary="data-parallel in two levels: reduce-scatter in each host, all-reduce across, all-gather in each host",
    step=_step,
    takes={"bucket": BUCKET},
)
