"""MPI on host memory, and on CUDA memory where the library says it takes it: its functions called by pointer. Never imports torch."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, SupportsInt

from collbench.backends.backend import Available, Settings, Unavailable
from collbench.backends.group import Group
from collbench.backends.memory import AnyBuffers
from collbench.backends.mpi_cuda import why_not_cuda
from collbench.backends.native_binding import Address, NativeBinding
from collbench.backends.on_gpu import HostOrGpuBackend
from collbench.errors import RunFailed
from collbench.launch.mpi_library import finalise, initialise
from collbench.launch.pairing import mpi_mismatch, size_disagrees
from collbench.operations.cell import Cell
from collbench.operations.groups import group_size
from collbench.operations.operation import Operation, Reason
from collbench.operations.program import NativeCall, Program

if TYPE_CHECKING:
    from collbench.world.world import World

_LARGE = 2**31
_MESSAGE, _SIGNAL = 1, 2  # tags
_STATUS_BYTES = 256  # MPI_Status of any library is smaller
_SAME_WIDTH = {1: "INT8_T", 2: "INT16_T", 4: "INT32_T", 8: "INT64_T"}
_REDUCED = {
    "float64": "DOUBLE", "float32": "FLOAT", "float16": "FLOAT16_T", "bfloat16": "BFLOAT16_T",
    "int8": "INT8_T", "int32": "INT32_T", "int64": "INT64_T", "uint8": "UINT8_T", "uint32": "UINT32_T", "uint64": "UINT64_T",
}  # fmt: skip
_REDOPS = {"sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX", "band": "BAND", "bor": "BOR", "bxor": "BXOR"}


def load_mpi() -> Any:
    """mpi4py's MPI module, not initialised, thread level single as in C benchmarks (multiple costs up to 6.4× at 8 B).

    Raises RunFailed naming the extra that brings it.
    """
    import mpi4py

    mpi4py.rc(initialize=False, finalize=False, thread_level="single")
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RunFailed(f"mpi4py finds no MPI library ({error}): pip install 'collbench[mpich]', or load your site's MPI module") from error
    return MPI


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


class MpiBackend(HostOrGpuBackend):
    """The MPI library of this process."""

    name, api = "mpi", "mpi"
    local_path = "memory"
    passes_messages = True

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Whether mpi4py and a library are there; loads the library, does not initialise it."""
        if find_spec("mpi4py") is None:
            return Unavailable(
                "mpi4py is not installed", "pip install 'collbench[mpich]' (brings its own MPI) or 'collbench[mpi]' (your site's)"
            )
        try:
            return Available(library_name(load_mpi()))
        except RunFailed as error:
            return Unavailable(str(error), "pip install 'collbench[mpich]'")

    def open(self, world: World, settings: Settings) -> None:
        """MPI_Init, but only where the launcher started a communicator of all ranks. Raises RunFailed with the remedy."""
        self._mpi = mpi = load_mpi()
        mismatch = mpi_mismatch(mpi.Get_library_version(), world.info, os.environ)
        if mismatch:
            raise RunFailed(mismatch)
        initialise(mpi)
        disagrees = size_disagrees(mpi.COMM_WORLD.Get_size(), world.info)
        if disagrees:
            raise RunFailed(disagrees)
        self._library = ctypes.CDLL(mpi.__file__)
        self.explain = mpi.Get_error_string
        self.rank, self.ranks = world.rank, world.size
        self.look_for_gpus(world, lambda: why_not_cuda(self._library, library_name(mpi)))

    def communicator(self, ranks: Sequence[int]) -> Any:
        """COMM_WORLD for all ranks, else a communicator that only its members make."""
        world = self._mpi.COMM_WORLD
        if len(ranks) == self.ranks or self.rank not in ranks:
            return world
        return world.Create_group(world.Get_group().Incl(list(ranks)))

    def binding(self, group: Group, buffers: AnyBuffers, slot: int) -> MpiBinding:
        """Addresses and handles."""
        return MpiBinding(self._mpi, self._library, buffers, group, slot)

    def supports(self, operation: Operation, cell: Cell) -> Reason | None:
        """No average, no reduction of types the library has no handle for, no counts past 2^31 without the _c functions."""
        if cell.redop and cell.redop not in _REDOPS:
            return f"MPI has no {cell.redop}"
        if operation.reduces and cell.dtype.name not in _REDUCED:
            return f"MPI has no type for {cell.dtype.name}"
        if getattr(self._mpi, _type_name(operation, cell), self._mpi.DATATYPE_NULL) == self._mpi.DATATYPE_NULL:
            return f"{library_name(self._mpi)} cannot reduce {cell.dtype.name}"
        if _largest_argument(operation, cell, max(self.ranks, 1)) >= _LARGE and not _has_large(self._library):
            return f"{library_name(self._mpi)} lacks the large-count functions that 2^31 elements and more need"
        return None

    def sync(self, group: Group) -> Program | None:
        """MPI_Barrier on the group."""
        pointer = ctypes.cast(self._library.MPI_Barrier, ctypes.c_void_p).value or 0
        call = NativeCall("MPI_Barrier", pointer, (self._mpi._handleof(group.handle),))
        return Program(((call,),), explain=self._mpi.Get_error_string)

    def abort(self, why: str) -> None:
        """MPI_Abort, so that the launcher ends every rank."""
        if self._mpi.Is_initialized() and not self._mpi.Is_finalized():
            self._mpi.COMM_WORLD.Abort(4)

    def versions(self) -> Mapping[str, str]:
        """The library, the thread level it gave, mpi4py."""
        import mpi4py

        names = ("single", "funneled", "serialized", "multiple")
        levels = {getattr(self._mpi, f"THREAD_{name.upper()}"): name for name in names}
        about = {"mpi": library_name(self._mpi), "mpi4py": mpi4py.__version__}
        return about | {"mpi_thread_level": levels.get(self._mpi.Query_thread(), "unknown")}

    def close(self) -> None:
        """MPI_Finalize."""
        finalise(self._mpi)


def _has_large(library: ctypes.CDLL) -> bool:
    """Whether this is MPI 4, whose functions have twins for large counts."""
    return hasattr(library, "MPI_Allreduce_c")


def _largest_argument(operation: Operation, cell: Cell, ranks: int) -> int:
    """The largest count or displacement that a function is called with: of messages and uneven parts that can be a whole buffer."""
    if operation.uneven or "mpi" not in operation.steps:
        return cell.size_bytes // cell.dtype.size
    return operation.count(cell, group_size(operation, cell, ranks))


def _type_name(operation: Operation, cell: Cell) -> str:
    """The MPI type: moving operations carry any type as whole numbers of its width."""
    return _REDUCED[cell.dtype.name] if operation.reduces else _SAME_WIDTH[cell.dtype.size]


def library_name(mpi: Any) -> str:
    """The library and its version on one line: "MPICH 5.0.2", "Open MPI 5.0.11"."""
    name, version = mpi.get_vendor()
    return f"{name} {'.'.join(map(str, version))}"
