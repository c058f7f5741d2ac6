"""x as Horovod's steps see it: functions of horovod.torch on tensors over our buffers, each call under the same name at all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from collbench.backends.group import Group
from collbench.backends.memory import AnyBuffers
from collbench.backends.torch_binding import TorchBinding, torch_type
from collbench.operations.cell import Cell
from collbench.operations.operation import Operation, Reason, Steps, in_place_only, out_of_place_only
from collbench.operations.program import Call, PythonCall
from collbench.operations.traffic import elements

NEW = frozenset({"allgather", "alltoall", "alltoallv", "reducescatter"})  # what returns a new tensor
_REDOPS = {"sum": "Sum", "avg": "Average", "min": "Min", "max": "Max", "prod": "Product"}
_SCATTERED = ("sum", "avg")  # GlooReducescatter adds, whatever it is told (gloo_operations.cc, 0.28.1)
_COUNTED = 2**31  # elements of a tensor, in an int (the same)


class HorovodBinding(TorchBinding):
    """For calls that block; `comm` is a process set."""

    def __init__(self, torch: Any, hvd: Any, buffers: AnyBuffers, group: Group, slot: int) -> None:
        super().__init__(torch, buffers, group, slot)
        cell = self.cell
        self._hvd, self.redop = hvd, getattr(hvd, _REDOPS[cell.redop]) if cell.redop else None
        words = (buffers.operation.name, cell.dtype.name, cell.redop or "", self.count, self.root, *group.ranks)
        self._name = "collbench." + ".".join(map(str, words))  # one for all slots: a name's first call is slower

    def call(self, name: str, /, *words: Any, **named: Any) -> PythonCall:
        """A function of horovod.torch, on the group."""
        return PythonCall(name, partial(getattr(self._hvd, name), *words, process_set=self.comm, **named))

    @property
    def alike(self) -> dict[str, str]:
        """By what Horovod tells which calls of the ranks belong together."""
        return {"name": self._name}

    def copied(self, call: Call) -> PythonCall:
        """A call whose new tensor is copied to where the harness verifies."""
        assert isinstance(call, PythonCall)
        function: Callable[[], Any] = call.function

        def copy() -> None:
            new = function()
            self.recv.copy_(new[0] if isinstance(new, tuple) else new)

        return PythonCall(call.name, copy)

    def splits(self) -> Any:
        """How many elements go to each rank, as Horovod takes them."""
        return self._torch.tensor(elements(self.cell.traffic, self.n, self.count)[self.rank].tolist(), dtype=self._torch.int32)


def _allreduce(x: HorovodBinding) -> Iterator[Call]:
    yield x.call("allreduce_", x.recv, op=x.redop, **x.alike)


def _broadcast(x: HorovodBinding) -> Iterator[Call]:
    yield x.call("broadcast_", x.recv, root_rank=x.peer(x.root), **x.alike)


def _allgather(x: HorovodBinding) -> Iterator[Call]:
    yield x.call("allgather", x.send, **x.alike)


def _alltoall(x: HorovodBinding) -> Iterator[Call]:
    yield x.call("alltoall", x.send, **x.alike)


def _alltoallv(x: HorovodBinding) -> Iterator[Call]:
    yield x.call("alltoall", x.send, splits=x.splits(), **x.alike)


def _reducescatter(x: HorovodBinding) -> Iterator[Call]:
    yield x.call("reducescatter", x.send, op=x.redop, **x.alike)


def _barrier(x: HorovodBinding) -> Iterator[Call]:
    yield x.call("barrier")


STEPS: Mapping[str, Steps] = MappingProxyType(
    {"allreduce": in_place_only(_allreduce), "broadcast": in_place_only(_broadcast), "barrier": _barrier}
    | {"allgather": out_of_place_only(_allgather), "alltoall": out_of_place_only(_alltoall)}
    | {"reducescatter": out_of_place_only(_reducescatter), "alltoallv": _alltoallv}
)


def why_not(torch: Any, hvd: Any, operation: Operation, cell: Cell, n: int) -> Reason | None:
    """Why this build cannot do a cell over n ranks at most, or None; asks whether its library has a function for the type."""
    if cell.redop and cell.redop not in (_SCATTERED if operation.name == "reducescatter" else _REDOPS):
        return f"horovod has no {operation.name} with {cell.redop} over Gloo"
    if operation.name in NEW and cell.split and any(sorted(group) != list(group) for group in cell.split.groups(n)):
        return f"horovod orders the parts of {operation.name} by rank, and this group is in another order"
    if operation.meets:
        return None
    if cell.size_bytes // cell.dtype.size >= _COUNTED:
        return "horovod counts the elements of a tensor in 32 bits"
    tensor = torch.empty(0, dtype=getattr(torch, torch_type(cell.dtype.name, operation.reduces))).type().replace(".", "_")
    has = hasattr(hvd.mpi_ops.mpi_lib, f"horovod_torch_{operation.name.removesuffix('v')}_async_{tensor}")
    return None if has else f"horovod has no {operation.name} of {cell.dtype.name} tensors"
