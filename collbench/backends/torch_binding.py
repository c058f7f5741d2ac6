"""x as the operations' "torch" steps see it: tensors over our buffers, on host or GPU, and functions of torch.distributed by name."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from collbench.backends.group import Group
from collbench.backends.memory import AnyBuffers, Buffers
from collbench.backends.on_torch import TorchMemory
from collbench.operations.program import PythonCall

_MESSAGE, _SIGNAL = 1, 2  # tags
_REDOPS = {"prod": "PRODUCT"}  # the others have the names they have here
# torch.distributed knows neither these unsigned types nor those of 8 bits everywhere; what is only moved goes as what it knows.
_MOVED_AS = {"uint32": "int32", "uint64": "int64", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


class TorchBinding:
    """For libraries whose calls block, or follow torch's current stream; `posted` calls return a Work each."""

    def __init__(self, torch: Any, buffers: AnyBuffers, group: Group, slot: int) -> None:
        place, self.cell = buffers.places[0], buffers.cell
        self._torch, self._group = torch, group
        self.rank, self.n, self.count, self.root = place.rank, group.n, place.count, place.root
        self._type = getattr(torch, torch_type(self.cell.dtype.name, buffers.operation.reduces))
        self.send, self.recv = _send_and_receive(torch, buffers, slot)
        self.send, self.recv = self.send.view(self._type), self.recv.view(self._type)
        self.scratch = torch.zeros(1, dtype=torch.uint8, device=self.recv.device)
        self.type = self.byte = self.status = None
        self.redop = getattr(torch.distributed.ReduceOp, _REDOPS.get(self.cell.redop, self.cell.redop.upper())) if self.cell.redop else None
        self.comm = group.handle
        self._works: list[Any] = []

    def call(self, name: str, /, *words: Any, **named: Any) -> PythonCall:
        """A function of torch.distributed."""
        return PythonCall(name, partial(getattr(self._torch.distributed, name), *words, **named))

    def post(self, name: str, /, *words: Any, **named: Any) -> PythonCall:
        """A function that returns a Work; `waitall` waits for it."""
        function, works = partial(getattr(self._torch.distributed, name), *words, **named), self._works
        return PythonCall(name, lambda: works.append(function()))

    def waitall(self) -> PythonCall:
        """Waits for every Work posted."""
        works = self._works

        def wait() -> None:
            for work in works:
                work.wait()
            works.clear()

        return PythonCall("wait", wait)

    def peer(self, rank: int) -> int:
        """torch names ranks by their rank in the job."""
        return self._group.ranks[rank]

    def send_to(self, rank: int, part: Any, count: int) -> PythonCall:
        """torch.distributed.send."""
        return self.call("send", part[:count], dst=self.peer(rank), group=self.comm, tag=_MESSAGE)

    def receive_from(self, rank: int, part: Any, count: int) -> PythonCall:
        """torch.distributed.recv."""
        return self.call("recv", part[:count], src=self.peer(rank), group=self.comm, tag=_MESSAGE)

    def together(self) -> Iterator[PythonCall]:
        """Works need no beginning."""
        return iter(())

    def post_send(self, rank: int, part: Any, count: int) -> PythonCall:
        """torch.distributed.isend."""
        return self.post("isend", part[:count], dst=self.peer(rank), group=self.comm, tag=_MESSAGE)

    def post_receive(self, rank: int, part: Any, count: int) -> PythonCall:
        """torch.distributed.irecv."""
        return self.post("irecv", part[:count], src=self.peer(rank), group=self.comm, tag=_MESSAGE)

    def signal_to(self, rank: int) -> PythonCall:
        """A byte sent."""
        return self.call("send", self.scratch, dst=self.peer(rank), group=self.comm, tag=_SIGNAL)

    def signal_from(self, rank: int) -> PythonCall:
        """A byte received."""
        return self.call("recv", self.scratch, src=self.peer(rank), group=self.comm, tag=_SIGNAL)

    def unless_in_place(self, address: Any) -> Any:
        """torch has no in-place token."""
        return address

    def has(self, name: str) -> bool:
        """Whether torch.distributed has a function `name`."""
        return hasattr(self._torch.distributed, name)


def torch_type(name: str, reduces: bool) -> str:
    """The type of the tensors: that of the cell, or one of its width that is known everywhere where nothing is reduced."""
    return name if reduces else _MOVED_AS.get(name, name)


def _send_and_receive(torch: Any, buffers: AnyBuffers, slot: int) -> tuple[Any, Any]:
    """Tensors of bytes over a slot."""
    if isinstance(buffers, Buffers):
        send, recv = buffers.send(0, slot), buffers.recv(0, slot)
        return torch.from_numpy(send.view(np.uint8)), torch.from_numpy(recv.view(np.uint8))
    from collbench.device.buffers import DeviceBuffers

    assert isinstance(buffers, DeviceBuffers)
    (held,), width = buffers.memory, buffers.cell.dtype.size
    assert isinstance(held, TorchMemory)
    sent, received = buffers.elements(0)
    send_at, recv_at = buffers.send_at(0, slot) - held.address, buffers.recv_at(0, slot) - held.address
    return held.tensor[send_at : send_at + sent * width], held.tensor[recv_at : recv_at + received * width]
