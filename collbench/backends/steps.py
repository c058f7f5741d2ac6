"""Each operation as jax has it: one function over the mesh of a group's ranks, compiled before anything is timed.

The figures' source is jax.lax: psum, pmax, pmin, pmean, all_gather, psum_scatter, all_to_all, ppermute; each makes a new array.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from collbench.backends.arrays import AXIS, JaxBuffers
from collbench.backends.group import Group
from collbench.operations.operation import Reason, Steps, out_of_place_only
from collbench.operations.program import PythonCall

REDUCTIONS = {"sum": "psum", "max": "pmax", "min": "pmin", "avg": "pmean"}
_COLLECTIVE = re.compile(r"= \(?([a-z0-9]+)\[[^=]*? (?:all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")


class JaxBinding:
    """x as the steps below see it, for one slot."""

    def __init__(self, jax: Any, group: Group, buffers: JaxBuffers, slot: int) -> None:
        self._jax, self._group, self._buffers, self._slot = jax, group, buffers, slot
        self.cell, self.n, self.lax = buffers.cell, group.n, jax.lax

    def call(self, name: str, function: Callable[[Any], Any]) -> PythonCall:
        """`function` of a rank's elements, compiled for these shapes; a call ends when its new array is there."""
        run, inputs, results, slot = self._compiled(function), self._buffers.inputs, self._buffers.results, self._slot

        def one() -> None:
            result = run(inputs[slot])
            result.block_until_ready()
            results[slot] = result

        return PythonCall(name, one)

    def _compiled(self, function: Callable[[Any], Any]) -> Any:
        """Compiled once for all slots, whose arrays are alike."""
        buffers = self._buffers
        if buffers.compiled is None:
            spec = self._jax.sharding.PartitionSpec(AXIS)
            whole = self._jax.shard_map(function, mesh=self._group.handle, in_specs=spec, out_specs=spec, check_vma=False)
            buffers.compiled = self._jax.jit(whole).lower(buffers.inputs[self._slot]).compile()
            buffers.wire = _carried_as(buffers.compiled.as_text())
        return buffers.compiled


def _carried_as(compiled: str) -> str:
    """The type of the elements that a compiled program's collective carries, in XLA's words; "" where it holds none (one rank)."""
    found = _COLLECTIVE.search(compiled)
    return found[1] if found else ""


def _allreduce(x: JaxBinding) -> Iterator[PythonCall]:
    name = REDUCTIONS[x.cell.redop or "sum"]
    function = getattr(x.lax, name)
    yield x.call(name, lambda mine: function(mine, AXIS))


def _allgather(x: JaxBinding) -> Iterator[PythonCall]:
    yield x.call("all_gather", lambda mine: x.lax.all_gather(mine, AXIS, tiled=True))


def _reducescatter(x: JaxBinding) -> Iterator[PythonCall]:
    yield x.call("psum_scatter", lambda mine: x.lax.psum_scatter(mine, AXIS, tiled=True))


def _alltoall(x: JaxBinding) -> Iterator[PythonCall]:
    yield x.call("all_to_all", lambda mine: x.lax.all_to_all(mine, AXIS, 0, 0, tiled=True))


def _sendrecv(x: JaxBinding) -> Iterator[PythonCall]:
    ring = [(rank, (rank + 1) % x.n) for rank in range(x.n)]
    yield x.call("ppermute", lambda mine: x.lax.ppermute(mine, AXIS, ring))


def _refused(x: JaxBinding) -> Iterator[PythonCall]:
    raise AssertionError(f"jax has no {x.cell.operation}: `why_not` says so before")
    yield


_LIKE = {
    "broadcast": "lax.pbroadcast is for GPUs, and multihost_utils.broadcast_one_to_all is an all-reduce of zeros",
    "barrier": "multihost_utils.sync_global_devices is an all-reduce and a comparison",
}
STEPS: Mapping[str, Steps] = {
    "allreduce": out_of_place_only(_allreduce),
    "allgather": out_of_place_only(_allgather),
    "reducescatter": out_of_place_only(_reducescatter),
    "alltoall": out_of_place_only(_alltoall),
    "sendrecv": out_of_place_only(_sendrecv),
    **dict.fromkeys(_LIKE, _refused),
}


def why_not(operation: str, redop: str | None) -> Reason | None:
    """Why jax has no such operation on CPUs, or no such reduction of it; None where it has both."""
    if operation in _LIKE:
        return f"jax has no {operation} on CPUs: {_LIKE[operation]}"
    known = {"reducescatter": ("sum",)}.get(operation, tuple(REDUCTIONS))
    return f"jax has no {redop} in {operation}: {', '.join(known)} only" if redop and redop not in known else None
