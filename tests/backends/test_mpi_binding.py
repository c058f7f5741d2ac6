"""What the steps for MPI see: large counts, arrays of counts in their width, and the in-place token."""

import ctypes
from types import SimpleNamespace

import pytest

from collbench.backends.backend import Group
from collbench.backends.mpi import MpiBackend, MpiBinding, load_mpi
from collbench.backends.persistent import NoPersistentCall, PersistentBinding
from collbench.errors import RunFailed
from collbench.operations.operation import Place
from collbench.operations.registry import operations
from collbench.operations.unsupported import LimitExceeded
from tests.helpers import make_case

ALL = operations()
LARGE = 2**31


@pytest.fixture(scope="module")
def mpi():
    """The library, loaded and never started; handles and addresses are known all the same."""
    pytest.importorskip("mpi4py")
    try:
        return load_mpi()
    except RunFailed as why:
        pytest.skip(str(why))


def bound(mpi, name, count, **case):
    """x for rank 1 of 4, with addresses that are never read."""
    operation = ALL[name]
    parts = count * operation.parts(4)
    place = Place(1, 4, count, make_case("int8", parts, **{"redop": "sum" if operation.reduces else None, "root": 1, **case}))
    buffers = SimpleNamespace(
        places=[place], case=place.case, operation=operation, send_at=lambda driven, slot: 4096, recv_at=lambda driven, slot: 8192
    )
    return MpiBinding(mpi, ctypes.CDLL(mpi.__file__), buffers, Group((0, 1, 2, 3), (1,), mpi.COMM_WORLD), 0)


def called(mpi, name, count, **case):
    """The calls that an operation's steps make."""
    return list(ALL[name].steps_of("mpi", messages=True)(bound(mpi, name, count, **case)))


@pytest.mark.parametrize(("name", "count", "functions"), [
    ("reduce", LARGE - 1, ["MPI_Reduce"]),
    ("reduce", LARGE, ["MPI_Reduce_c"]),
    ("allgather", LARGE // 4 - 1, ["MPI_Allgather"]),
    ("allgather", LARGE // 4, ["MPI_Allgather_c"]),  # a place in the buffer is past 2^31, though no count is
    ("hypercube", LARGE // 4, ["MPI_Irecv_c", "MPI_Isend_c", "MPI_Waitall"] * 2),
    ("sendrecv", LARGE, ["MPI_Sendrecv_c"]),
])  # fmt: skip
def test_large_buffers_get_the_large_counts_functions(mpi, name, count, functions):
    assert [call.name for call in called(mpi, name, count)] == functions


@pytest.mark.parametrize(("count", "kind"), [(LARGE // 4 - 1, ctypes.c_int), (LARGE // 4, ctypes.c_int64)])
def test_arrays_have_the_width_that_the_function_takes(mpi, count, kind):
    x = bound(mpi, "alltoall", count)
    at = x.array([3, count])
    assert list((kind * 2).from_address(int(at))) == [3, count]
    assert int(at[1:]) - int(at) == ctypes.sizeof(kind)


@pytest.mark.parametrize(
    ("name", "word", "at_the_root"), [("reduce", 0, True), ("gather", 0, True), ("scatter", 3, True), ("allgather", 0, False)]
)
def test_the_in_place_token_is_where_mpi_defines_it(mpi, name, word, at_the_root):
    token = int(mpi.IN_PLACE) % 2**64
    (mine,), (elsewhere,) = called(mpi, name, 5, in_place=True), called(mpi, name, 5, in_place=True, root=0)
    assert mine.args[word] % 2**64 == token
    assert (elsewhere.args[word] % 2**64 == token) == (not at_the_root)
    assert all(call.args[word] % 2**64 != token for call in called(mpi, name, 5, in_place=False))


def test_a_ring_in_place_is_a_function_of_its_own(mpi):
    (call,) = called(mpi, "sendrecv", 5, in_place=True)
    assert (call.name, call.args[3], call.args[5]) == ("MPI_Sendrecv_replace", 2, 0)  # to the next rank, from the one before


@pytest.mark.parametrize(
    ("name", "count", "refused"), [("allgather", LARGE - 1, False), ("allgather", LARGE, True), ("hypercube", LARGE // 2, True)]
)
def test_an_mpi_3_is_asked_for_no_count_that_it_cannot_take(mpi, name, count, refused):
    backend = MpiBackend()
    backend.ranks, backend._mpi, backend._library = 4, mpi, SimpleNamespace()
    reason = backend.supports(ALL[name], make_case("int8", count * ALL[name].parts(4), redop=None))
    assert (isinstance(reason, LimitExceeded) and reason.most == 2**31 - 1) == refused


@pytest.mark.parametrize(("known", "function"), [
    ({"MPI_Allreduce_init", "MPIX_Allreduce_init"}, "MPI_Allreduce_init"), ({"MPIX_Allreduce_init"}, "MPIX_Allreduce_init"),
])  # fmt: skip
def test_a_library_before_mpi_4_makes_persistent_collectives_with_its_own_prefix(known, function, monkeypatch):
    """The lookup of symbols is a double: neither MPI of the tests has MPIX_Allreduce_init alone, as Open MPI 4 has."""
    monkeypatch.setattr(PersistentBinding, "has", lambda self, name: name in known)
    binding = object.__new__(PersistentBinding)
    assert binding._collective("MPI_Allreduce") == function
    with pytest.raises(NoPersistentCall, match="MPI_Bcast_init"):
        binding._collective("MPI_Bcast")
