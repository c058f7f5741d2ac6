"""Data-parallel training: every rank has the whole model, and all of them sum their gradients, bucket after bucket."""

from __future__ import annotations

from collbench.workloads.buckets import buckets
from collbench.workloads.exchange import Exchange, Regime, Shape, Step
from collbench.workloads.laying import everybody, need_ranks
from collbench.workloads.shaping import BUCKET


def _step(shape: Shape) -> Step:
    need_ranks(shape, 2, REGIME.name)
    exchanges = tuple(
        Exchange("allreduce", everybody(shape), one.size_bytes, f"gradients, {one.which}", one.times, shape.dtype, "sum")
        for one in buckets(shape)
    )
    return Step(exchanges, shape.gradient_bytes, "buckets one after the other, none hidden behind the computation")


REGIME = Regime(
    name="data-parallel",
    summary="all ranks sum their gradients: all-reduce in buckets",
    step=_step,
    takes={"bucket": BUCKET},
)
