"""Expert-parallel training: every rank has some experts of each layer; tokens are sent to theirs and come back, forward and backward.

A token goes to `top_k` different experts. With an imbalance of X the experts of one rank, drawn by the seed, get X times the average
of all tokens, and the others share the rest evenly.
"""

from __future__ import annotations

import random
import re
from fractions import Fraction

from collbench.errors import UsageError
from collbench.operations.traffic import Traffic
from collbench.workloads.exchange import Exchange, Regime, Shape, Step
from collbench.workloads.laying import counted, everybody, need_ranks, need_table, printable
from collbench.workloads.shaping import need_transformer

_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9}|/\d{1,9})?", re.ASCII)  # a Fraction takes exponents, too, and works them out to the last digit
# To the experts, and back: gradients of results, too, go where the results came from.
_FORWARD = ("tokens to their experts", "results back to the tokens' ranks")
_BACKWARD = ("gradients of results to the experts", "gradients of tokens back to their ranks")


def _step(shape: Shape) -> Step:
    need_ranks(shape, 2, REGIME.name)
    need_table(shape, REGIME.name)
    _check_experts(shape)
    need_transformer(shape, REGIME.name, shape.top_k)
    imbalance, seed = _imbalance(shape), _seed(shape)
    there = _routed(shape, imbalance, random.Random(f"experts, {seed}").randrange(shape.ranks))
    name = f"experts, imbalance {float(imbalance):g}, seed {seed}"
    back = tuple(zip(*there, strict=True))
    ways = (Traffic(name, matrix=there), Traffic(f"{name}, back", matrix=back))
    size, times = int(max(map(sum, (*there, *back)))), shape.layers * shape.microbatches
    exchanges = tuple(
        Exchange("alltoallv", everybody(shape), size, what, times, shape.dtype, traffic=way)
        for pass_ in (_FORWARD, _BACKWARD)
        for what, way in zip(pass_, ways, strict=True)
    )
    note = f"{shape.experts or shape.ranks} experts in each of {counted(shape.layers, 'layer')}, top {shape.top_k}"
    return Step(exchanges, len(exchanges) * times * int(sum(there[0])), note)


def _routed(shape: Shape, imbalance: Fraction, busiest: int) -> tuple[tuple[float, ...], ...]:
    """[ranks × ranks] bytes from the tokens' rank to the experts', its own included; every row adds up to all copies of its tokens."""
    n, copies = shape.ranks, _tokens(shape) * shape.top_k
    width = shape.hidden * shape.element_bytes
    most = round(imbalance * copies / n)
    base, more = divmod(copies - most, n - 1)
    rows = []
    for rank in range(n):
        others = [other for other in ((rank + step) % n for step in range(n)) if other != busiest]
        row = [float(most * width)] * n
        for turn, other in enumerate(others):
            row[other] = float((base + (turn < more)) * width)
        rows.append(tuple(row))
    return tuple(rows)


def _tokens(shape: Shape) -> int:
    return shape.sequence * shape.microbatch


def _check_experts(shape: Shape) -> None:
    """Raises UsageError for experts that do not fit the ranks, or a top_k beyond them."""
    experts = shape.experts or shape.ranks
    if experts % shape.ranks:
        near = -(-experts // shape.ranks) * shape.ranks
        raise UsageError(
            f"--experts {experts} cannot be shared evenly by {counted(shape.ranks, 'rank')}: choose a multiple of them, like {near}"
        )
    if shape.top_k > experts:
        raise UsageError(
            f"--top-k {shape.top_k} asks for more experts than the {experts} there are: choose 1 to {experts}, or more experts"
        )


def _imbalance(shape: Shape) -> Fraction:
    """How many times the average the busiest rank's experts get. Raises UsageError where no token could be sent so."""
    value = _typed_imbalance(shape)
    here = (shape.experts or shape.ranks) // shape.ranks
    most = Fraction(shape.ranks * min(shape.top_k, here), shape.top_k)
    if value > most:
        raise UsageError(
            f"--imbalance {float(value):g} over {counted(shape.ranks, 'rank')} with {counted(here, 'expert')} each and top {shape.top_k}: "
            f"one rank's experts can get 1 to {float(most):g} times the average; choose from these, or more --experts"
        )
    return value


def _typed_imbalance(shape: Shape) -> Fraction:
    text = shape.options.get("imbalance") or "1"
    try:
        value = Fraction(text) if _NUMBER.fullmatch(text) else Fraction(0)
    except ZeroDivisionError:
        value = Fraction(0)
    if value < 1:
        raise UsageError(
            f"--imbalance '{printable(text)}' is no number from 1 on: 1 is even, 1.5 gives one rank's experts half as much again"
        )
    return value


def _check(shape: Shape) -> None:
    _seed(shape)
    _typed_imbalance(shape)


def _seed(shape: Shape) -> int:
    text = shape.options.get("seed") or "0"
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise UsageError(f"--seed '{printable(text)}' is no seed: give a whole number from 0 on")
    return int(text)


REGIME = Regime(
    name="expert-parallel",
    summary="tokens to their experts and back: alltoallv, four per layer",
    step=_step,
    options={"imbalance": "1", "seed": "0"},
    takes={"layers": "", "hidden": "", "sequence": "", "microbatch": "1", "microbatches": "1", "experts": "", "top_k": "2"},
    check=_check,
    help={
        "imbalance": "how many times the average the busiest rank's experts get",
        "seed": "which rank is the busiest",
    },
)
