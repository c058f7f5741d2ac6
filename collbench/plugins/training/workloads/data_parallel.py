"""Data-parallel training (every rank has the whole model, gradients are summed in buckets), FSDP, and hierarchical sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from collbench.errors import UsageError
from collbench.operations.groups import Groups
from collbench.plugins.training.workloads.shape import BUCKET, by_host, everybody, need_ranks
from collbench.plugins.training.workloads.step import Action, Compute, Exchange, Regime, Shape, Start, Step, Wait
from collbench.units import plural

# Gradient buckets: equal ones, and a smaller last one.


class Bucket(msgspec.Struct, frozen=True):
    """`times` equal gradient buckets of size_bytes each; which: "buckets 1 to 51 of 52"."""

    size_bytes: int
    times: int
    which: str


def buckets(shape: Shape, unit: int = 1) -> tuple[Bucket, ...]:
    """Return the gradient buckets of a shape, each a whole number of `unit` elements; the last one is padded if necessary.

    Bucket sizes are rounded down to whole units. Raises UsageError for a bucket smaller than one unit.
    """
    width = shape.element_bytes * unit
    size = shape.bucket_bytes // width * width
    if not size:
        room = f"{unit} elements of {shape.dtype}" if unit > 1 else f"one {shape.dtype}"
        raise UsageError(f"--bucket {shape.bucket_bytes} has no room for {room}: give {width} bytes or more, like 25M")
    return tuple(_buckets(-(-shape.gradient_bytes // width) * width, size))


def _buckets(total: int, size: int) -> Iterator[Bucket]:
    whole, last = divmod(total, size)
    number = whole + (last > 0)
    if whole:
        yield Bucket(size, whole, f"buckets 1 to {whole} of {number}" if whole > 1 else f"bucket 1 of {number}")
    if last:
        yield Bucket(last, 1, f"bucket {number} of {number}")


def filled_up(shape: Shape, unit: int) -> str:
    """Return a sentence if the last bucket is padded to a whole number of units, else ""."""
    missing = -shape.parameters % unit
    return f"the last bucket is padded by {missing} of {unit} elements, so that all ranks have parts of the same size" if missing else ""


# Fully sharded training (ZeRO stage 3, FSDP): every rank stores its part of each unit, and gathers the whole unit before it uses it.
#
# Parameters of layers are gathered for the forward and again for the backward pass, gradients are reduce-scattered: three times the layers
# (ZeRO, arXiv:1910.02054, section 7.2.2). What is outside the layers is gathered once, as FSDP and FSDP2 do: backward needs it first.
# `collbench workload fsdp2` compares this with FSDP2 itself. FSDP2 pads each tensor, FSDP and DeepSpeed the whole unit, as here.


class ShardedUnit(msgspec.Struct, frozen=True):
    """`times` equal sharding units of this many parameters each."""

    parameters: int
    times: int
    what: str


def units(shape: Shape) -> tuple[ShardedUnit, ...]:
    """Return what is gathered at once: the embedding and the rest, then each layer; equal layers if the hidden size is unknown.

    Raises UsageError if the layers have more parameters than the model.
    """
    if not shape.layers:
        return (ShardedUnit(shape.parameters, 1, "the whole model"),)
    each = _of_layer(shape.hidden) if shape.hidden else max(1, shape.parameters // shape.layers)
    rest = shape.parameters - each * shape.layers
    if rest < 0:
        of = f" of hidden size {shape.hidden}" if shape.hidden else ""
        raise UsageError(
            f"{plural(shape.layers, 'layer')}{of} have {each * shape.layers:,} parameters, more than the {shape.parameters:,} of model "
            f"'{shape.name}': give fewer --layers, a smaller --hidden, or more parameters"
        )
    outside = (ShardedUnit(rest, 1, "embedding and the rest"),) if rest else ()
    return (*outside, ShardedUnit(each, shape.layers, "layers"))


def _of_layer(hidden: int) -> int:
    """Return the parameters of a layer: attention, an MLP four times as wide, their biases, and two normalizations."""
    attention, mlp, norms = 4 * (hidden * hidden + hidden), 8 * hidden * hidden + 5 * hidden, 2 * 2 * hidden
    return attention + mlp + norms


def _step_fsdp(shape: Shape) -> Step:
    need_ranks(shape, 2, FSDP_REGIME.name)
    groups, parts = everybody(shape), units(shape)
    exchanges = (*_forward(shape, groups, parts), *_backward(shape, groups, parts))
    filled = [f"{-unit.parameters % shape.ranks} elements" for unit in parts if unit.parameters % shape.ranks]
    notes = ["one unit: use --layers to set the number of units"] if not shape.layers else []
    if filled:
        notes.append(f"units are padded by {' and '.join(filled)}, so that all ranks have parts of the same size")
    kept = parts[0].parameters if len(parts) > 1 else 0
    return Step(exchanges, (3 * shape.parameters - kept) * shape.element_bytes, "; ".join(notes))


def _size(unit: ShardedUnit, shape: Shape) -> int:
    return -(-unit.parameters // shape.ranks) * shape.ranks * shape.element_bytes


def _forward(shape: Shape, groups: Groups, parts: tuple[ShardedUnit, ...]) -> Iterator[Exchange]:
    for unit in parts:
        yield Exchange("allgather", groups, _size(unit, shape), f"parameters forward, {unit.what}", unit.times, shape.dtype)


def _backward(shape: Shape, groups: Groups, parts: tuple[ShardedUnit, ...]) -> Iterator[Exchange]:
    for unit in reversed(parts):
        if unit is not parts[0] or len(parts) == 1:
            yield Exchange("allgather", groups, _size(unit, shape), f"parameters backward, {unit.what}", unit.times, shape.dtype)
        yield Exchange("reducescatter", groups, _size(unit, shape), f"gradients, {unit.what}", unit.times, shape.dtype, "sum")


def _prefetched(exchanges: Sequence[Exchange], computing_s: float) -> tuple[Action, ...]:
    """Return the actions of a step: each unit is gathered while the one before it computes, and its gradients are scattered meanwhile.

    The backward pass of a unit computes twice as long as its forward pass, as its matrix products do.
    """
    gathers = [place for place, one in enumerate(exchanges) if one.operation == "allgather"]
    scatters = [place for place, one in enumerate(exchanges) if one.operation == "reducescatter"]
    number, found = len(scatters), list[Action]()
    one = Compute(computing_s / (3 * number))
    for here, computing in ((gathers[:number], (one,)), (gathers[number:], (one, one))):
        found += [Start(here[0])] if here else []
        for unit in range(number):
            found += [Wait(here[unit])] if unit < len(here) else []
            found += [Start(here[unit + 1])] if unit + 1 < len(here) else []
            found += computing
            found += [Start(scatters[unit])] if len(computing) > 1 else []
    return (*found, *map(Wait, scatters))


FSDP_REGIME = Regime(
    name="fsdp",
    summary="ZeRO-3: all-gather of parameters forward and backward, reduce-scatter of gradients, layer after layer",
    step=_step_fsdp,
    takes={"layers": "", "hidden": ""},
    with_computing=_prefetched,
)


# Hierarchical data-parallel training: sums inside each host, then across hosts (each rank sums its part), then a gather inside each host.


def _step_hierarchical(shape: Shape) -> Step:
    need_ranks(shape, 4, HIERARCHICAL_REGIME.name)
    inside = _inside(shape)
    across: Groups = tuple(zip(*inside, strict=True))
    local = len(inside[0])
    exchanges = tuple(exchange for one in buckets(shape, local) for exchange in _of_bucket(one, inside, across, shape.dtype))
    note = f"{plural(len(across), 'all-reduce')} of {plural(len(inside), 'host')} at the same time share the wire"
    return Step(exchanges, shape.gradient_bytes, "; ".join(filter(None, (note, filled_up(shape, local)))))


def _of_bucket(one: Bucket, inside: Groups, across: Groups, dtype: str) -> Iterator[Exchange]:
    part = one.size_bytes // len(inside[0])
    yield Exchange("reducescatter", inside, one.size_bytes, f"gradients, {one.which}: sums inside each host", one.times, dtype, "sum")
    yield Exchange("allreduce", across, part, f"gradients, {one.which}: each part across hosts", one.times, dtype, "sum")
    yield Exchange("allgather", inside, one.size_bytes, f"gradients, {one.which}: back to all ranks of each host", one.times, dtype)


def _inside(shape: Shape) -> Groups:
    """Return the ranks of each host. Raises UsageError if hosts do not form two levels of groups."""
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


HIERARCHICAL_REGIME = Regime(
    name="hierarchical",
    summary="data-parallel in two levels: reduce-scatter in each host, all-reduce across, all-gather in each host",
    step=_step_hierarchical,
    takes={"bucket": BUCKET},
)


def _step(shape: Shape) -> Step:
    need_ranks(shape, 2, REGIME.name)
    exchanges = tuple(
        Exchange("allreduce", everybody(shape), one.size_bytes, f"gradients, {one.which}", one.times, shape.dtype, "sum")
        for one in buckets(shape)
    )
    return Step(exchanges, shape.gradient_bytes, "buckets one after the other, none hidden behind the computation")


def _during_backward(exchanges: Sequence[Exchange], computing_s: float) -> tuple[Action, ...]:
    """Return the actions of a step: each bucket starts when its gradients are computed, and the step waits for all at its end.

    The backward pass computes twice as long as the forward pass, as its matrix products do.
    """
    one = Compute(computing_s / (3 * len(exchanges)))
    backward = (action for bucket in range(len(exchanges)) for action in (one, one, Start(bucket)))
    return (*[one] * len(exchanges), *backward, *map(Wait, range(len(exchanges))))


REGIME = Regime(
    name="data-parallel",
    summary="all ranks sum their gradients: all-reduce in buckets",
    step=_step,
    takes={"bucket": BUCKET},
    with_computing=_during_backward,
)
