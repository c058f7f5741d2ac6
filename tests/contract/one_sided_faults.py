"""One-sided and neighbourhood operations that go wrong, found by an entry point: see test_one_sided_faults."""

from msgspec.structs import replace

from collbench.operations.builtin.neighbors import NEIGHBOR_ALLGATHER, NEIGHBOR_ALLTOALL
from collbench.operations.builtin.one_sided import ACCUMULATE, GET_LATENCY, PUT_LATENCY
from collbench.operations.operation import out_of_place_only


def _nothing(x):
    return iter(())


def _half(x):
    if x.rank == 0:
        yield x.call("MPI_Put", x.send, x.count // 2, x.type, 1, x.there, x.count // 2, x.type, x.window)
        yield x.call("MPI_Win_flush", 1, x.window)


def _shifted(x):
    if x.rank == 0:
        yield x.call("MPI_Put", x.send[1:], x.count - 1, x.type, 1, x.there, x.count - 1, x.type, x.window)
        yield x.call("MPI_Win_flush", 1, x.window)


def _twice(x):
    for _ in range(2):
        yield from ACCUMULATE.steps["mpi"](x)


def _as_a_gather(x):
    yield from NEIGHBOR_ALLGATHER.steps["mpi"](x)


def _faulty(operation, name, steps):
    return replace(operation, name=name, command="faulty", steps={"mpi": steps})


SILENT_PUT = _faulty(PUT_LATENCY, "silent_put", _nothing)
HALF_PUT = _faulty(PUT_LATENCY, "half_put", _half)
SHIFTED_PUT = _faulty(PUT_LATENCY, "shifted_put", _shifted)
SILENT_GET = _faulty(GET_LATENCY, "silent_get", _nothing)
SILENT_ACCUMULATE = _faulty(ACCUMULATE, "silent_accumulate", _nothing)
TWICE_ACCUMULATED = _faulty(ACCUMULATE, "twice_accumulated", _twice)
SILENT_NEIGHBORS = _faulty(NEIGHBOR_ALLGATHER, "silent_neighbors", out_of_place_only(_nothing))
TURNED_NEIGHBORS = _faulty(NEIGHBOR_ALLTOALL, "turned_neighbors", out_of_place_only(_as_a_gather))
