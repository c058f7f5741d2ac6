"""The step of real jobs of torch.distributed: a replay has the operations that they called, with equal bytes, in their order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from collbench.operations.dtypes import dtype_named
from collbench.operations.traffic import elements
from collbench.plugins.traces.replay_task import recording_of
from collbench.plugins.traces.step import ReplayOptions
from collbench.plugins.training.workloads.step import Exchange
from tests.plugins.traces.test_torch_traces import record

pytestmark = pytest.mark.long
_WHOLE = {"allgather": 3, "reducescatter": 2, "alltoall": 2}  # the place of the whole buffer's elements in a call


def bytes_of(call: list[Any]) -> int:
    """Return the bytes of the whole buffer of a call that the job logged."""
    kind, dtype, sent, received, ranks, *_ = call
    parts = {"gather": sent, "scatter": received}
    number = len(ranks) * parts[kind] if kind in parts else call[_WHOLE[kind]] if kind in _WHOLE else max(sent, received)
    return int(number * dtype_named(dtype or "float32").size)


def checked(exchange: Exchange, call: list[Any], rank: int) -> None:
    kind, dtype, _, _, ranks, root, to, _ = call
    assert any(rank in group for group in exchange.groups)
    if kind in ("send", "recv"):
        assert (exchange.operation, exchange.groups) == ("p2p_message", (((rank, root) if kind == "send" else (root, rank)),))
    else:
        assert exchange.operation == kind and tuple(ranks) in exchange.groups
    if kind == "alltoallv":
        width = dtype_named(exchange.dtype).size
        assert elements(exchange.traffic, len(ranks), exchange.size_bytes // width)[rank].tolist() == to
    elif kind != "barrier":
        assert exchange.size_bytes == bytes_of(call)
    assert dtype in ("", exchange.dtype) and (root < 0 or exchange.root in (None, ranks.index(root)))


# Kineto's events have no names and ranks of the groups of a device mesh; such a trace is refused.
@pytest.mark.parametrize(
    ("job", "world", "form"), [(job, 2, form) for job in ("plain", "ddp", "fsdp") for form in ("et", "kineto")] + [("tensor", 4, "et")]
)
def test_the_bytes_and_the_order_are_those_of_the_job(job: str, world: int, form: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    record(tmp_path, job, world)
    found = recording_of([tmp_path / f"{form}_{rank}.json" for rank in range(world)], ReplayOptions("all"))
    for rank in range(world):
        called = json.loads((tmp_path / f"calls_{rank}.json").read_text())
        own = [each for each in found.step.exchanges if any(rank in group for group in each.groups)]
        assert len(own) == len(called)
        for exchange, call in zip(own, called, strict=True):
            # a type that the trace lacks is float32 in the replay
            checked(exchange, [call[0], call[1] if call[0] not in ("scatter",) else "", *call[2:]], rank)
