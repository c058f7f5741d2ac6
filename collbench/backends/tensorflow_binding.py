"""x as this backend's steps see it, and the steps: one raw collective operation each, whose result is copied to the receive memory."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collbench.backends.group import Group
from collbench.backends.memory import Buffers
from collbench.errors import RunFailed
from collbench.operations.cell import Cell
from collbench.operations.groups import group_size
from collbench.operations.operation import Operation, Steps, out_of_place_only
from collbench.operations.program import Call, PythonCall

HINT = "ring"
# (merge_op, final_op)
REDOPS = {"sum": ("Add", "Id"), "prod": ("Mul", "Id"), "min": ("Min", "Id"), "max": ("Max", "Id"), "avg": ("Add", "Div")}
_MOVED_AS = {2: "float16", 4: "int32", 8: "int64"}  # what is only moved goes as what every collective takes
_ALIGN = 64  # bytes: TensorFlow ends the process where a tensor's memory lies otherwise


@dataclass(frozen=True)
class Handle:
    """A group: the module, and what TensorFlow knows the group by."""

    tf: Any = field(repr=False)
    key: int
    n: int


class TensorFlowBinding:
    """A tensor that reads the send memory whenever it is used, and the receive memory as an array."""

    def __init__(self, buffers: Buffers, group: Group, slot: int) -> None:
        place, cell, operation = buffers.places[0], buffers.cell, buffers.operation
        self._handle: Handle = group.handle
        self.tf = self._handle.tf
        self.n, self.rank, self.root, self.count = group.n, place.rank, place.root, place.count
        self._reduced = cell.dtype.name if operation.reduces else None
        moved = self._reduced or _MOVED_AS[cell.dtype.size]
        self.type = getattr(self.tf, moved)
        self._carried = np.dtype("uint16" if moved == "bfloat16" else moved)  # numpy hands on no bfloat16
        self.recv = buffers.recv(0, slot).view(self._carried)
        self.send = self._over(buffers.send(0, slot).view(self._carried))
        self.redop = REDOPS[cell.redop] if cell.redop else ("", "")
        self._instance = _instance(operation, cell, self.count)

    def _over(self, memory: Any) -> Any:
        """A tensor over memory: no copy, then or later."""
        if memory.ctypes.data % _ALIGN:
            raise RunFailed(f"tensorflow takes memory at multiples of {_ALIGN} bytes alone, and this buffer is at {memory.ctypes.data:#x}")
        if not len(memory):
            return None
        tensor = self.tf.experimental.dlpack.from_dlpack(memory.__dlpack__())
        return self.tf.bitcast(tensor, self.tf.bfloat16) if self._reduced == "bfloat16" else tensor

    def call(self, name: str, **words: Any) -> Call:
        """A raw operation over the group, to its result in the receive memory."""
        operation: Callable[..., Any] = getattr(self.tf.raw_ops, name)
        words |= {"group_size": self.n, "group_key": self._handle.key, "instance_key": self._instance, "communication_hint": HINT}
        bitcast = (lambda tensor: self.tf.bitcast(tensor, self.tf.uint16)) if self._reduced == "bfloat16" else None
        recv, failed = self.recv, self.tf.errors.OpError

        def collective() -> None:
            try:
                result = operation(**words)
                np.copyto(recv, np.asarray(memoryview(bitcast(result) if bitcast else result)).reshape(-1))
            except failed as error:
                raise type(error)(error.node_def, error.op, _one_line(error)) from None

        return PythonCall(name, collective)


def _one_line(error: Any) -> str:
    """What TensorFlow says, without the names of its nodes."""
    lines = str(error.message).splitlines() or [""]
    return lines[0].rpartition("}} ")[2]


def _instance(operation: Operation, cell: Cell, count: int) -> int:
    """The same number at all ranks for the same collective, another one for another shape; TensorFlow refuses a mixture aloud."""
    words = (operation.name, cell.dtype.name, cell.redop, cell.root, count)
    return zlib.crc32(repr(words).encode()) & 0x7FFFFFFF


def _allreduce(x: TensorFlowBinding) -> Iterator[Call]:
    merge, final = x.redop
    yield x.call("CollectiveReduceV2", input=x.send, ordering_token=[], merge_op=merge, final_op=final)


def _allgather(x: TensorFlowBinding) -> Iterator[Call]:
    yield x.call("CollectiveGatherV2", input=x.send, ordering_token=[])


def _alltoall(x: TensorFlowBinding) -> Iterator[Call]:
    yield x.call("CollectiveAllToAllV2", input=x.tf.reshape(x.send, [x.n, x.count]), ordering_token=[])


def _broadcast(x: TensorFlowBinding) -> Iterator[Call]:
    if x.rank == x.root:
        yield x.call("CollectiveBcastSendV2", input=x.send)
    else:
        yield x.call("CollectiveBcastRecvV2", T=x.type, shape=[x.count])


def _never(x: TensorFlowBinding) -> Iterator[Call]:
    raise AssertionError("refused before: it would end this process")


STEPS: Mapping[str, Steps] = {
    name: out_of_place_only(steps)
    for name, steps in (("allreduce", _allreduce), ("allgather", _allgather), ("alltoall", _alltoall), ("broadcast", _broadcast))
} | {"reducescatter": _never}


def largest_message(operation: Operation, cell: Cell, ranks: int) -> int:
    """Bytes of the largest message between two ranks: the whole of a broadcast, else one of n parts."""
    return cell.size_bytes if operation.name == "broadcast" else -(-cell.size_bytes // group_size(operation, cell, ranks))
