"""How the operations' "mpi" steps bind to an MPI library: addresses, handles, types, and large counts where they are needed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, SupportsInt

from collbench.backends.group import Group
from collbench.backends.memory import AnyBuffers
from collbench.backends.native_binding import Address, NativeBinding
from collbench.operations.cell import Cell
from collbench.operations.groups import group_size
from collbench.operations.operation import Operation, Reason
from collbench.operations.program import NativeCall

_LARGE = 2**31
_MESSAGE, _SIGNAL = 1, 2  # tags
_STATUS_BYTES = 256  # MPI_Status of any library is smaller
_SAME_WIDTH = {1: "INT8_T", 2: "INT16_T", 4: "INT32_T", 8: "INT64_T"}
_REDUCED = {
    "float64": "DOUBLE", "float32": "FLOAT", "float16": "FLOAT16_T", "bfloat16": "BFLOAT16_T",
    "int8": "INT8_T", "int32": "INT32_T", "int64": "INT64_T", "uint8": "UINT8_T", "uint32": "UINT32_T", "uint64": "UINT64_T",
}  # fmt: skip
_REDOPS = {"sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX", "band": "BAND", "bor": "BOR", "bxor": "BXOR"}


class MpiBinding(NativeBinding):
    """x as the operations' "mpi" steps see it."""

    def __init__(self, mpi: Any, library: ctypes.CDLL, buffers: AnyBuffers, group: Group, slot: int) -> None:
        place, cell, operation = buffers.places[0], buffers.cell, buffers.operation
        super().__init__(library, cell, place.rank, group.n, place.count)
        self._mpi, self._posted, width = mpi, 0, cell.dtype.size
        self._large = max(operation.sends(place), operation.receives(place)) >= _LARGE and _has_large(library)
        self.integer = ctypes.c_int64 if self._large else ctypes.c_int  # MPI_Count and MPI_Aint have 64 bits
        self.send, self.recv = Address(buffers.send_at(0, slot), width), Address(buffers.recv_at(0, slot), width)
        self.comm = mpi._handleof(group.handle)
        self.type = mpi._handleof(getattr(mpi, _type_name(operation, cell)))
        self.byte = mpi._handleof(mpi.BYTE)
        self.redop = mpi._handleof(getattr(mpi, _REDOPS[cell.redop])) if cell.redop else 0
        window = 2 * max(cell.window or 1, group.n)
        self._group = group
        self.scratch, self.status = Address(self.room(8), 1), self.room(_STATUS_BYTES)
        self._request_bytes = mpi._sizeof(mpi.Request)
        self.requests, self.statuses = self.room(window * 8), self.room(window * _STATUS_BYTES)

    def call(self, name: str, *words: SupportsInt) -> NativeCall:
        """The function, or its large-count twin where the buffers are so large that a count or a place in them may need it."""
        return super().call(f"{name}_c" if self._large and self.has(f"{name}_c") else name, *words)

    def post(self, name: str, *words: SupportsInt) -> NativeCall:
        """A non-blocking call; its request takes the next place of the array that `waitall` waits for."""
        request = self.requests + self._posted * self._request_bytes
        self._posted += 1
        return self.call(name, *words, request)

    def waitall(self) -> NativeCall:
        """MPI_Waitall for everything posted."""
        posted, self._posted = self._posted, 0
        return NativeCall("MPI_Waitall", self.pointer("MPI_Waitall"), (posted, self.requests, self.statuses))

    def peer(self, rank: int) -> int:
        """MPI names ranks by their rank within the communicator."""
        return self._group.name(rank)

    def send_to(self, rank: int, part: SupportsInt, count: int) -> NativeCall:
        """MPI_Send."""
        return self.call("MPI_Send", part, count, self.type, self.peer(rank), _MESSAGE, self.comm)

    def receive_from(self, rank: int, part: SupportsInt, count: int) -> NativeCall:
        """MPI_Recv."""
        return self.call("MPI_Recv", part, count, self.type, self.peer(rank), _MESSAGE, self.comm, self.status)

    def together(self) -> Iterator[NativeCall]:
        """Requests need no beginning."""
        return iter(())

    def post_send(self, rank: int, part: SupportsInt, count: int) -> NativeCall:
        """MPI_Isend."""
        return self.post("MPI_Isend", part, count, self.type, self.peer(rank), _MESSAGE, self.comm)

    def post_receive(self, rank: int, part: SupportsInt, count: int) -> NativeCall:
        """MPI_Irecv."""
        return self.post("MPI_Irecv", part, count, self.type, self.peer(rank), _MESSAGE, self.comm)

    def signal_to(self, rank: int) -> NativeCall:
        """MPI_Send of a byte."""
        return self.call("MPI_Send", self.scratch, 1, self.byte, self.peer(rank), _SIGNAL, self.comm)

    def signal_from(self, rank: int) -> NativeCall:
        """MPI_Recv of a byte."""
        return self.call("MPI_Recv", self.scratch, 1, self.byte, self.peer(rank), _SIGNAL, self.comm, self.status)

    def unless_in_place(self, address: Address) -> SupportsInt:
        """`address`, or MPI_IN_PLACE as this library defines it."""
        return int(self._mpi.IN_PLACE) if self.cell.in_place else address


def _has_large(library: ctypes.CDLL) -> bool:
    """Whether this is MPI 4, whose functions have twins for large counts."""
    return hasattr(library, "MPI_Allreduce_c")


def _largest_argument(operation: Operation, cell: Cell, ranks: int) -> int:
    """The largest count or displacement that a function is called with: of messages and uneven parts that can be a whole buffer."""
    if operation.uneven or "mpi" not in operation.steps:
        return cell.size_bytes // cell.dtype.size
    return operation.count(cell, group_size(operation, cell, ranks))


def misfit(mpi: Any, library: ctypes.CDLL, operation: Operation, cell: Cell, ranks: int) -> Reason | None:
    """No average, no reduction of types the library has no handle for, no counts past 2^31 without the _c functions."""
    if cell.redop and cell.redop not in _REDOPS:
        return f"MPI has no {cell.redop}"
    if operation.reduces and cell.dtype.name not in _REDUCED:
        return f"MPI has no type for {cell.dtype.name}"
    if getattr(mpi, _type_name(operation, cell), mpi.DATATYPE_NULL) == mpi.DATATYPE_NULL:
        return f"{library_name(mpi)} cannot reduce {cell.dtype.name}"
    if _largest_argument(operation, cell, ranks) >= _LARGE and not _has_large(library):
        return f"{library_name(mpi)} lacks the large-count functions that 2^31 elements and more need"
    return None


def _type_name(operation: Operation, cell: Cell) -> str:
    """The MPI type: moving operations carry any type as whole numbers of its width."""
    return _REDUCED[cell.dtype.name] if operation.reduces else _SAME_WIDTH[cell.dtype.size]


def library_name(mpi: Any) -> str:
    """The library and its version on one line: "MPICH 5.0.2", "Open MPI 5.0.11"."""
    name, version = mpi.get_vendor()
    return f"{name} {'.'.join(map(str, version))}"
