"""x as torchcomms' steps see it: methods of a TorchComm on tensors over our buffers; ranks are those within the TorchComm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from collbench.backends.group import Group
from collbench.backends.memory import AnyBuffers
from collbench.backends.torch_binding import TorchBinding
from collbench.operations.operation import Steps, in_place_only, out_of_place_only
from collbench.operations.program import Call, PythonCall
from collbench.operations.traffic import elements

_REDOPS = {"prod": "PRODUCT"}  # the others have the names they have here


class TorchCommsBinding(TorchBinding):
    """For calls that block (async_op=False: on the caller's own thread), and for messages that do not."""

    def __init__(self, torch: Any, comms: Any, buffers: AnyBuffers, group: Group, slot: int) -> None:
        super().__init__(torch, buffers, group, slot)
        redop = self.cell.redop
        self.redop = getattr(comms.ReduceOp, _REDOPS.get(redop, redop.upper())) if redop else None

    def call(self, name: str, /, *words: Any, **named: Any) -> PythonCall:
        """A method that returns when it is done."""
        return PythonCall(name, partial(getattr(self.comm, name), *words, async_op=False, **named))

    def post(self, name: str, /, *words: Any, **named: Any) -> PythonCall:
        """A method that returns a TorchWork; `waitall` waits for it."""
        function, works = partial(getattr(self.comm, name), *words, async_op=True, **named), self._works
        return PythonCall(name, lambda: works.append(function()))

    def peer(self, rank: int) -> int:
        """A TorchComm names ranks by their place in it."""
        return self._group.name(rank)

    def send_to(self, rank: int, part: Any, count: int) -> PythonCall:
        """TorchComm.send."""
        return self.call("send", part[:count], dst=self.peer(rank))

    def receive_from(self, rank: int, part: Any, count: int) -> PythonCall:
        """TorchComm.recv."""
        return self.call("recv", part[:count], src=self.peer(rank))

    def post_send(self, rank: int, part: Any, count: int) -> PythonCall:
        """TorchComm.send, without waiting."""
        return self.post("send", part[:count], dst=self.peer(rank))

    def post_receive(self, rank: int, part: Any, count: int) -> PythonCall:
        """TorchComm.recv, without waiting."""
        return self.post("recv", part[:count], src=self.peer(rank))

    def signal_to(self, rank: int) -> PythonCall:
        """A byte sent."""
        return self.call("send", self.scratch, dst=self.peer(rank))

    def signal_from(self, rank: int) -> PythonCall:
        """A byte received."""
        return self.call("recv", self.scratch, src=self.peer(rank))

    def has(self, name: str) -> bool:
        """Whether a TorchComm has a method `name`."""
        return hasattr(self.comm, name)


def _allreduce(x: TorchCommsBinding) -> Iterator[Call]:
    yield x.call("all_reduce", x.recv, op=x.redop)


def _broadcast(x: TorchCommsBinding) -> Iterator[Call]:
    yield x.call("broadcast", x.recv, root=x.root)


def _reduce(x: TorchCommsBinding) -> Iterator[Call]:
    yield x.call("reduce", x.send, root=x.root, op=x.redop)


def _allgather(x: TorchCommsBinding) -> Iterator[Call]:
    yield x.call("all_gather_single", x.recv, x.send)


def _reducescatter(x: TorchCommsBinding) -> Iterator[Call]:
    yield x.call("reduce_scatter_single", x.recv, x.send, op=x.redop)


def _alltoall(x: TorchCommsBinding) -> Iterator[Call]:
    yield x.call("all_to_all_single", x.recv, x.send)


def _alltoallv(x: TorchCommsBinding) -> Iterator[Call]:
    of_all = elements(x.cell.traffic, x.n, x.count)  # from row to column
    yield x.call("all_to_all_v_single", x.recv, x.send, of_all[:, x.rank].tolist(), of_all[x.rank].tolist())


def _gather(x: TorchCommsBinding) -> Iterator[Call]:
    yield x.call("gather", list(x.recv.chunk(x.n)) if x.rank == x.root else [], x.send, root=x.root)


def _scatter(x: TorchCommsBinding) -> Iterator[Call]:
    yield x.call("scatter", x.recv, list(x.send.chunk(x.n)) if x.rank == x.root else [], root=x.root)


def _barrier(x: TorchCommsBinding) -> Iterator[Call]:
    yield x.call("barrier")


STEPS: Mapping[str, Steps] = MappingProxyType(
    {"allreduce": in_place_only(_allreduce), "broadcast": in_place_only(_broadcast), "reduce": in_place_only(_reduce)}
    | {
        "allgather": _allgather,
        "alltoall": out_of_place_only(_alltoall),
        "alltoallv": _alltoallv,
        "reducescatter": in_place_only(_reducescatter),
    }
    | {"gather": _gather, "scatter": _scatter, "barrier": _barrier}
)
