"""Pipeline-parallel training: each stage has some of the layers, and passes activations on and their gradients back, per microbatch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from collbench.errors import UsageError
from collbench.operations.groups import Groups
from collbench.workloads.exchange import Exchange, Regime, Shape, Step
from collbench.workloads.laying import blocks, counted, host_after_host, need_ranks
from collbench.workloads.shaping import need_transformer, whole

_NOTE = (
    "1F1B (arXiv:2104.04473, section 2.2): between two stages an activation goes forward while a gradient comes back; "
    "filling and draining, which go one way, are counted alike"
)


def _step(shape: Shape) -> Step:
    need_transformer(shape, REGIME.name)
    need_ranks(shape, 2, REGIME.name)
    stages = _stages(shape)
    size = shape.hidden * shape.sequence * shape.microbatch * shape.element_bytes
    exchanges = tuple(
        Exchange("sendrecv", groups, size, f"activations forward, gradients back: {between}", shape.microbatches, shape.dtype)
        for groups, between in _boundaries(stages)
    )
    replicas = len(stages[0])
    beside = f"; {replicas} pipelines side by side, whose gradients are not summed here (see data-parallel)" if replicas > 1 else ""
    neighbours = min(2, len(stages) - 1)
    return Step(exchanges, neighbours * shape.microbatches * size, _NOTE + beside)


def _check(shape: Shape) -> None:
    whole(shape, "stages")


def _boundaries(stages: Groups) -> Iterator[tuple[Groups, str]]:
    """Pairs that exchange at the same time: a stage has two neighbours, so every other boundary, then those between."""
    for first in (0, 1):
        uppers = range(first, len(stages) - 1, 2)
        if uppers:
            pairs = tuple(pair for upper in uppers for pair in zip(stages[upper], stages[upper + 1], strict=True))
            yield pairs, "stages " + (", ".join(f"{upper + 1}-{upper + 2}" for upper in uppers[:4]) + (" …" if len(uppers) > 4 else ""))


def _stages(shape: Shape) -> Groups:
    """The ranks of each stage; neighbours are on one host as far as possible. Raises UsageError for a number that does not fit."""
    number = whole(shape, "stages") or shape.ranks
    fit = [n for n in range(2, shape.ranks + 1) if shape.ranks % n == 0]
    if number not in fit:
        raise UsageError(f"--stages {number} does not divide {counted(shape.ranks, 'rank')} into a pipeline: choose {_listed(fit[:8])}")
    if number > shape.layers:
        fewer = [n for n in fit if n <= shape.layers]
        typed = f"choose --stages {_listed(fewer[-8:])}" if fewer else f"give --layers {fit[0]} or more"
        raise UsageError(f"{number} stages have too few layers, {shape.layers} in all: {typed}, or a deeper model")
    return blocks(host_after_host(shape), shape.ranks // number)


def _listed(numbers: Sequence[int]) -> str:
    return " or ".join(map(str, numbers))


REGIME = Regime(
    name="pipeline",
    summary="stages pass activations on and gradients back, microbatch after microbatch",
    step=_step,
    options={"stages": ""},
    takes={"layers": "", "hidden": "", "sequence": "", "microbatch": "1", "microbatches": "8"},
    check=_check,
    help={"stages": "of the pipeline (default: one per rank); ranks beyond them are pipelines of their own, side by side"},
)
