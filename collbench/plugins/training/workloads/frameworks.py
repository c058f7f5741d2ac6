"""The exchanges of real frameworks for a small model, tensor for tensor: DistributedDataParallel and FSDP2 of PyTorch.

`collbench workload ddp` and `fsdp2` train this model with the framework itself, and compare what it exchanged with these lists.
The model is `layers` encoder layers of a transformer, and an embedding with the rest of the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import msgspec

from collbench.errors import UsageError
from collbench.plugins.training.workloads.data_parallel import units
from collbench.plugins.training.workloads.shape import BUCKET, everybody, need_ranks
from collbench.plugins.training.workloads.step import Exchange, Regime, Shape, Step
from collbench.units import parse_size

Size = tuple[int, ...]


class ModelTensors(msgspec.Struct, frozen=True):
    """The shapes of a model's parameters.

    root    those outside the layers: the embedding [rows, hidden], and a vector of what is left over
    layer   those of one layer, in the order in which backward completes their gradients
    """

    root: tuple[Size, ...]
    layer: tuple[Size, ...]
    layers: int

    @property
    def rows(self) -> int:
        """The rows of the embedding: the number of different tokens."""
        return self.root[-1][0]

    @property
    def left_over(self) -> int:
        """The elements of the vector beside the embedding, 0 without one."""
        return self.root[0][0] if len(self.root) > 1 else 0

    @property
    def by_gradient(self) -> tuple[Size, ...]:
        """All tensors, in the order in which backward completes their gradients: the last layer's first, the embedding's last."""
        return (*self.layer * self.layers, *self.root)


def tensors_of(shape: Shape) -> ModelTensors:
    """Return the tensors of a model with this number of parameters, layers and this hidden size. Raises UsageError if they do not fit."""
    h = shape.hidden
    outside = sum(one.parameters for one in units(shape)[:-1])  # the last one is the layers
    if outside < h:
        raise UsageError(
            f"the layers leave {outside:,} of {shape.parameters:,} parameters for an embedding of hidden size {h}: use a larger "
            "--model, fewer --layers, or a smaller --hidden"
        )
    rows, left = divmod(outside, h)
    vectors: tuple[Size, ...] = ((h,), (h,))
    mlp: tuple[Size, ...] = ((h,), (h, 4 * h), (4 * h,), (4 * h, h))
    attention: tuple[Size, ...] = ((h,), (h, h), (3 * h,), (3 * h, h))
    return ModelTensors(((left,), (rows, h)) if left else ((rows, h),), (*vectors, *mlp, *vectors, *attention), shape.layers)


# DistributedDataParallel (torch 2.13: torch/nn/parallel/distributed.py, torch/csrc/distributed/c10d/reducer.cpp): whole gradients fill a
# bucket until it has the limit or more, in the order in which backward completes them. With the default of 25 MiB the limit of the first
# bucket is 1 MiB, so that it is sent early. Only the first step of a job has another order, that of the program.

FIRST_BUCKET = 2**20


def ddp_buckets(sizes: Sequence[int], limit: int) -> tuple[int, ...]:
    """Return the bytes of each bucket, in the order in which they are sent, from the bytes of each gradient as backward completes them."""
    limits = iter((FIRST_BUCKET,) if limit == parse_size(BUCKET) else ())
    found, room, taken = [], next(limits, limit), 0
    for size in sizes:
        taken += size
        if taken >= room:
            found.append(taken)
            room, taken = next(limits, limit), 0
    return (*found, *([taken] if taken else []))


def _step_ddp(shape: Shape) -> Step:
    need_ranks(shape, 2, DDP.name)
    gradients = [prod(size) * shape.element_bytes for size in tensors_of(shape).by_gradient]
    sizes = ddp_buckets(gradients, shape.bucket_bytes)
    exchanges = tuple(
        Exchange("allreduce", everybody(shape), size, f"gradients, bucket {at} of {len(sizes)}", dtype=shape.dtype, redop="sum")
        for at, size in enumerate(sizes, 1)
    )
    return Step(exchanges, shape.gradient_bytes)


# FSDP2 (torch 2.13, torch/distributed/fsdp/_fully_shard): each tensor is divided along its first dimension into parts of equal size, the
# last ones padded. A unit's parts are gathered and reduce-scattered together. The root's parameters stay after forward; in backward the
# gather of a layer begins before the gradients of the layer above are scattered.


def sharded_elements(tensors: Sequence[Size], ranks: int) -> int:
    """Return the elements of a unit that is gathered from all ranks, with padding."""
    return sum(-(-size[0] // ranks) * ranks * prod(size[1:]) for size in tensors)


def _step_fsdp2(shape: Shape) -> Step:
    need_ranks(shape, 2, FSDP2.name)
    exchanges = tuple(_of_fsdp2(shape, tensors_of(shape)))
    return Step(exchanges, sum(one.size_bytes for one in exchanges))


def _of_fsdp2(shape: Shape, model: ModelTensors) -> Iterator[Exchange]:
    groups, width, n = everybody(shape), shape.element_bytes, shape.ranks
    root, layer = (sharded_elements(tensors, n) * width for tensors in (model.root, model.layer))

    def gather(what: str, size: int) -> Exchange:
        return Exchange("allgather", groups, size, what, dtype=shape.dtype)

    def scatter(what: str, size: int) -> Exchange:
        return Exchange("reducescatter", groups, size, what, dtype=shape.dtype, redop="sum")

    yield gather("parameters forward, root", root)
    for at in range(1, model.layers + 1):
        yield gather(f"parameters forward, layer {at}", layer)
    for at in range(model.layers, 0, -1):
        yield gather(f"parameters backward, layer {at}", layer)
        if at < model.layers:
            yield scatter(f"gradients, layer {at + 1}", layer)
    yield scatter("gradients, layer 1", layer)
    yield scatter("gradients, root", root)


_TAKES = {"model": "2M", "layers": "4", "hidden": "128", "sequence": "32", "microbatch": "2"}

DDP = Regime(
    name="ddp",
    summary="real steps of PyTorch's DistributedDataParallel, and whether it exchanges what the model of it does",
    step=_step_ddp,
    takes={**_TAKES, "bucket": BUCKET},
    check=tensors_of,
    models="data-parallel",
)
FSDP2 = Regime(
    name="fsdp2",
    summary="real steps of PyTorch's fully_shard (FSDP2), and whether it exchanges what the model of it does",
    step=_step_fsdp2,
    takes=_TAKES,
    check=tensors_of,
    models="fsdp",
)
