"""Fully sharded training (ZeRO stage 3, FSDP): every rank keeps its part of each unit, and gathers the unit where it is needed.

Parameters are gathered forward and again backward, gradients are summed and scattered: three times the model in a step
(ZeRO, arXiv:1910.02054, section 7.2.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from collbench.errors import UsageError
from collbench.operations.groups import Groups
from collbench.workloads.exchange import Exchange, Regime, Shape, Step
from collbench.workloads.laying import counted, everybody, need_ranks


@dataclass(frozen=True)
class Unit:
    """`times` equal units of so many parameters each."""

    parameters: int
    times: int
    what: str


def units(shape: Shape) -> tuple[Unit, ...]:
    """What is gathered at once: the embedding and the rest, then each layer; layers of equal parts where no hidden size is known.

    Raises UsageError where the layers have more parameters than the model.
    """
    if not shape.layers:
        return (Unit(shape.parameters, 1, "the whole model"),)
    each = _of_layer(shape.hidden) if shape.hidden else max(1, shape.parameters // shape.layers)
    rest = shape.parameters - each * shape.layers
    if rest < 0:
        of = f" of hidden size {shape.hidden}" if shape.hidden else ""
        raise UsageError(
            f"{counted(shape.layers, 'layer')}{of} have {each * shape.layers:,} parameters, more than the {shape.parameters:,} of model "
            f"'{shape.name}': give fewer --layers, a smaller --hidden, or more parameters"
        )
    outside = (Unit(rest, 1, "embedding and the rest"),) if rest else ()
    return (*outside, Unit(each, shape.layers, "layers"))


def _of_layer(hidden: int) -> int:
    """Attention and an MLP four times as wide with their biases, and two normalisations."""
    attention, mlp, norms = 4 * (hidden * hidden + hidden), 8 * hidden * hidden + 5 * hidden, 2 * 2 * hidden
    return attention + mlp + norms


def _step(shape: Shape) -> Step:
    need_ranks(shape, 2, REGIME.name)
    groups, parts = everybody(shape), units(shape)
    exchanges = (*_forward(shape, groups, parts), *_backward(shape, groups, parts))
    filled = [f"{-unit.parameters % shape.ranks} elements" for unit in parts if unit.parameters % shape.ranks]
    notes = ["one unit: --layers says how many there are"] if not shape.layers else []
    if filled:
        notes.append(f"units are filled up by {' and '.join(filled)}, so that every rank has an equal part")
    return Step(exchanges, 3 * shape.gradient_bytes, "; ".join(notes))


def _size(unit: Unit, shape: Shape) -> int:
    return -(-unit.parameters // shape.ranks) * shape.ranks * shape.element_bytes


def _forward(shape: Shape, groups: Groups, parts: tuple[Unit, ...]) -> Iterator[Exchange]:
    for unit in parts:
        yield Exchange("allgather", groups, _size(unit, shape), f"parameters forward, {unit.what}", unit.times, shape.dtype)


def _backward(shape: Shape, groups: Groups, parts: tuple[Unit, ...]) -> Iterator[Exchange]:
    for unit in reversed(parts):
        yield Exchange("allgather", groups, _size(unit, shape), f"parameters backward, {unit.what}", unit.times, shape.dtype)
        yield Exchange("reducescatter", groups, _size(unit, shape), f"gradients, {unit.what}", unit.times, shape.dtype, "sum")


REGIME = Regime(
    name="fsdp",
    summary="ZeRO-3: all-gather of parameters forward and backward, reduce-scatter of gradients, layer after layer",
    step=_step,
    takes={"layers": "", "hidden": ""},
)
