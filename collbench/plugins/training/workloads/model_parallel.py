"""Pipeline- and tensor-parallel training."""

from __future__ import annotations

from collections.abc import Iterator

from collbench.errors import UsageError
from collbench.operations.groups import Groups
from collbench.plugins.training.workloads.shape import (
    blocks,
    crossing,
    host_after_host,
    need_ranks,
    need_transformer,
    ranks_per_host,
    whole,
)
from collbench.plugins.training.workloads.step import Exchange, Regime, Shape, Step
from collbench.units import plural

# Pipeline-parallel training: each stage has some of the layers. Per microbatch it sends activations forward and their gradients back.

_NOTE = (
    "1F1B (arXiv:2104.04473, section 2.2): between two stages an activation goes forward while a gradient comes back; "
    "filling and draining, which go one way, are counted alike"
)


def _step_pipeline(shape: Shape) -> Step:
    need_transformer(shape, PIPELINE_REGIME.name)
    need_ranks(shape, 2, PIPELINE_REGIME.name)
    stages = _stages(shape)
    size = shape.hidden * shape.sequence * shape.microbatch * shape.element_bytes
    exchanges = tuple(
        Exchange("sendrecv", groups, size, f"activations forward, gradients back: {between}", shape.microbatches, shape.dtype)
        for groups, between in _boundaries(stages)
    )
    replicas = len(stages[0])
    parallel = f"; {replicas} pipelines run in parallel; their gradients are not summed here (see data-parallel)" if replicas > 1 else ""
    neighbours = min(2, len(stages) - 1)
    return Step(exchanges, neighbours * shape.microbatches * size, _NOTE + parallel)


def _boundaries(stages: Groups) -> Iterator[tuple[Groups, str]]:
    """Return groups that exchange at the same time. A stage has two neighbors, so every other boundary comes first, then the rest."""
    for first in (0, 1):
        uppers = range(first, len(stages) - 1, 2)
        if uppers:
            pairs = tuple(pair for upper in uppers for pair in zip(stages[upper], stages[upper + 1], strict=True))
            yield pairs, "stages " + (", ".join(f"{upper + 1}-{upper + 2}" for upper in uppers[:4]) + (" …" if len(uppers) > 4 else ""))


def _stages(shape: Shape) -> Groups:
    """Return the ranks of each stage, neighbors on one host if possible. Raises UsageError if the ranks do not fit the stages."""
    number = whole(shape, "stages") or shape.ranks
    fit = [n for n in range(2, shape.ranks + 1) if shape.ranks % n == 0]
    if number not in fit:
        raise UsageError(
            f"--stages {number} does not divide {plural(shape.ranks, 'rank')} into a pipeline: choose {' or '.join(map(str, fit[:8]))}"
        )
    if number > shape.layers:
        fewer = [n for n in fit if n <= shape.layers]
        typed = f"choose --stages {' or '.join(map(str, fewer[-8:]))}" if fewer else f"give --layers {fit[0]} or more"
        raise UsageError(f"{number} stages have too few layers, {shape.layers} in all: {typed}, or a deeper model")
    return blocks(host_after_host(shape), shape.ranks // number)


PIPELINE_REGIME = Regime(
    name="pipeline",
    summary="stages pass activations on and gradients back, microbatch after microbatch",
    step=_step_pipeline,
    options={"stages": ""},
    takes={"layers": "", "hidden": "", "sequence": "", "microbatch": "1", "microbatches": "8"},
    check=lambda shape: whole(shape, "stages"),
    help={"stages": "of the pipeline (default: one per rank); ranks beyond them are pipelines of their own, side by side"},
)


# Tensor-parallel training: each layer is split between the ranks of a group, which sum its outputs twice forward and twice backward.

_PER_LAYER = 2  # after attention and after the MLP, forward and backward: Megatron-LM, arXiv:1909.08053, section 3, figure 4


def _step_tensor_parallel(shape: Shape) -> Step:
    need_transformer(shape, TENSOR_PARALLEL_REGIME.name)
    need_ranks(shape, 2, TENSOR_PARALLEL_REGIME.name)
    groups = _groups(shape)
    size = shape.hidden * shape.sequence * shape.microbatch * shape.element_bytes
    times = _PER_LAYER * shape.layers * shape.microbatches
    exchanges = tuple(
        Exchange("allreduce", groups, size, f"{what}: {_PER_LAYER} per layer and microbatch", times, shape.dtype, "sum")
        for what in ("activations forward", "gradients of activations back")
    )
    parallel = f"{len(groups)} groups at the same time" if len(groups) > 1 else "one group of all ranks"
    across = ", across hosts" if crossing(groups, shape) else ""
    return Step(exchanges, 2 * times * size, f"{parallel}{across}; embedding and loss are left out")


def _groups(shape: Shape) -> Groups:
    """Return groups of neighbors, host by host. Raises UsageError for a size that does not divide the ranks."""
    inside = ranks_per_host(shape)
    size = whole(shape, "tensor") or inside
    fit = " or ".join(str(n) for n in range(2, shape.ranks + 1) if shape.ranks % n == 0)
    if size is None:
        raise UsageError(
            f"a tensor-parallel group is the ranks of a host, but the hosts have different numbers of ranks: use --tensor {fit}"
        )
    if whole(shape, "tensor") is None and size == 1:
        raise UsageError(
            f"a tensor-parallel group is the ranks of a host, but every host has only one: start more per host, or use --tensor {fit}, "
            "for groups across hosts"
        )
    if size < 2 or shape.ranks % size:
        raise UsageError(f"--tensor {size} does not divide {plural(shape.ranks, 'rank')} into groups of 2 and more: choose {fit}")
    return blocks(host_after_host(shape), size)


TENSOR_PARALLEL_REGIME = Regime(
    name="tensor-parallel",
    summary="groups of ranks share each layer: all-reduce of activations, four per layer",
    step=_step_tensor_parallel,
    options={"tensor": ""},
    takes={"layers": "", "hidden": "", "sequence": "", "microbatch": "1", "microbatches": "1"},
    check=lambda shape: whole(shape, "tensor"),
    help={"tensor": "ranks that share a layer (default: those of a host)"},
)
