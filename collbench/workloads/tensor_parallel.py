"""Tensor-parallel training: each layer is cut between the ranks of a group, which sum its outputs twice forward and twice backward."""

from __future__ import annotations

from collbench.errors import UsageError
from collbench.operations.groups import Groups
from collbench.workloads.exchange import Exchange, Regime, Shape, Step
from collbench.workloads.laying import blocks, counted, crossing, host_after_host, need_ranks, ranks_per_host
from collbench.workloads.shaping import need_transformer, whole

_PER_LAYER = 2  # behind attention and behind the MLP, each way: Megatron-LM, arXiv:1909.08053, section 3, figure 4


def _step(shape: Shape) -> Step:
    need_transformer(shape, REGIME.name)
    need_ranks(shape, 2, REGIME.name)
    groups = _groups(shape)
    size = shape.hidden * shape.sequence * shape.microbatch * shape.element_bytes
    times = _PER_LAYER * shape.layers * shape.microbatches
    exchanges = tuple(
        Exchange("allreduce", groups, size, f"{what}: {_PER_LAYER} per layer and microbatch", times, shape.dtype, "sum")
        for what in ("activations forward", "gradients of activations back")
    )
    beside = f"{len(groups)} groups at the same time" if len(groups) > 1 else "one group of all ranks"
    across = ", across hosts" if crossing(groups, shape) else ""
    return Step(exchanges, 2 * times * size, f"{beside}{across}; embedding and loss are left out")


def _check(shape: Shape) -> None:
    whole(shape, "tensor")


def _groups(shape: Shape) -> Groups:
    """Neighbours, host after host. Raises UsageError for a size that does not divide the ranks."""
    inside = ranks_per_host(shape)
    size = whole(shape, "tensor") or inside
    fit = " or ".join(str(n) for n in range(2, shape.ranks + 1) if shape.ranks % n == 0)
    if size is None:
        raise UsageError(f"tensor-parallel groups are those of a host, and hosts have unequally many ranks: say --tensor {fit}")
    if whole(shape, "tensor") is None and size == 1:
        raise UsageError(
            f"tensor-parallel groups are those of a host, and every host has one rank: start more per host, or say --tensor {fit}, "
            "which crosses hosts"
        )
    if size < 2 or shape.ranks % size:
        raise UsageError(f"--tensor {size} does not divide {counted(shape.ranks, 'rank')} into groups of 2 and more: choose {fit}")
    return blocks(host_after_host(shape), size)


REGIME = Regime(
    name="tensor-parallel",
    summary="groups of ranks share each layer: all-reduce of activations, four per layer",
    step=_step,
    options={"tensor": ""},
    takes={"layers": "", "hidden": "", "sequence": "", "microbatch": "1", "microbatches": "1"},
    check=_check,
    help={"tensor": "ranks that share a layer (default: those of a host)"},
)
