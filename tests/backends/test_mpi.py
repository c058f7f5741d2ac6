"""What the steps for MPI see: counts, arrays, the in-place token, and windows of one-sided calls."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from collbench.backends import mpi as mpi_window
from collbench.backends.backend import Group
from collbench.backends.mpi import MpiBackend, MpiBinding, Window, WindowBinding, WindowBuffers, load_mpi, misfit, no_window
from collbench.backends.persistent import NoPersistentCall, PersistentBinding
from collbench.errors import RunFailed
from collbench.operations.case import parse_split
from collbench.operations.operation import Place
from collbench.operations.registry import operations
from collbench.operations.unsupported import DeviceUnsupported, LimitExceeded, SharedMemoryTooSmall
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


def bound(mpi, name, count, kind=MpiBinding, library=None, **case):
    """x for rank 1 of 4, with addresses that are never read."""
    operation = ALL[name]
    parts = count * operation.parts(4)
    place = Place(1, 4, count, make_case("int8", parts, **{"redop": "sum" if operation.reduces else None, "root": 1, **case}))
    buffers = SimpleNamespace(
        places=[place], case=place.case, operation=operation, send_at=lambda driven, slot: 4096, recv_at=lambda driven, slot: 8192
    )
    return kind(mpi, library or ctypes.CDLL(mpi.__file__), buffers, Group((0, 1, 2, 3), (1,), mpi.COMM_WORLD), 0)


def called(mpi, name, count, **case):
    return list(ALL[name].steps_of("mpi", messages=True)(bound(mpi, name, count, **case)))


@pytest.mark.parametrize(("name", "count", "functions"), [
    ("reduce", LARGE - 1, ["MPI_Reduce"]), ("reduce", LARGE, ["MPI_Reduce_c"]), ("allgather", LARGE // 4 - 1, ["MPI_Allgather"]),
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
def test_the_in_place_token_is_where_mpi_defines_it_and_a_ring_in_place_is_a_function_of_its_own(mpi, name, word, at_the_root):
    token = int(mpi.IN_PLACE) % 2**64
    (mine,), (elsewhere,) = called(mpi, name, 5, in_place=True), called(mpi, name, 5, in_place=True, root=0)
    assert mine.args[word] % 2**64 == token
    assert (elsewhere.args[word] % 2**64 == token) == (not at_the_root)
    assert all(call.args[word] % 2**64 != token for call in called(mpi, name, 5, in_place=False))
    (call,) = called(mpi, "sendrecv", 5, in_place=True)
    assert (call.name, call.args[3], call.args[5]) == ("MPI_Sendrecv_replace", 2, 0)  # to the next rank, from the one before


@pytest.mark.parametrize(
    ("name", "count", "refused"), [("allgather", LARGE - 1, False), ("allgather", LARGE, True), ("hypercube", LARGE // 2, True)]
)
def test_an_mpi_3_is_asked_for_no_count_that_it_cannot_take(mpi, name, count, refused):
    case = make_case("int8", count * ALL[name].parts(4), redop=None)
    reason = misfit(mpi, SimpleNamespace(), ALL[name], case, 4)
    assert (isinstance(reason, LimitExceeded) and reason.most == 2**31 - 1) == refused


@pytest.mark.parametrize("functions", [["MPI_Allreduce_init", "MPIX_Allreduce_init"], ["MPIX_Allreduce_init"]])
def test_a_library_before_mpi_4_makes_persistent_collectives_with_its_own_prefix(mpi, functions):
    """The library is a double: neither MPI of the tests has MPIX_Allreduce_init alone, as Open MPI 4 has."""
    made = []
    kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * 3)
    callbacks = {name: kind(lambda *words, name=name: made.append(name) or 0) for name in (*functions, "MPI_Start", "MPI_Wait")}
    x = bound(mpi, "allreduce", 5, PersistentBinding, SimpleNamespace(**callbacks))
    x.call("MPI_Allreduce", 1)
    assert made == functions[:1]
    with pytest.raises(NoPersistentCall, match="MPI_Bcast_init"):
        x.call("MPI_Bcast", 1)


class Memory(Window):
    synced = 0

    def show(self, n_bytes):
        self.memory = np.zeros(n_bytes, np.uint8)

    def sync(self):
        self.synced += 1


def buffers_of(name, rank, slots=1, shown=None, **case):
    """The buffers of one rank of a pair, 100 elements."""
    made = make_case(operation=name, **{"redop": "sum" if ALL[name].reduces else None, **case})
    return WindowBuffers(ALL[name], made, Group((0, 1), (rank,), shown or Memory(None, None)), slots)


def called_on_window(mpi, name, rank, slot=0, **case):
    buffers = buffers_of(name, rank, 2, **case)
    group = Group((0, 1), (rank,), SimpleNamespace(comm=mpi.COMM_SELF, handle=mpi.WIN_NULL))
    x = WindowBinding(mpi, ctypes.CDLL(mpi.__file__), buffers, group, slot)
    return x, list(ALL[name].steps["mpi"](x))


@pytest.mark.parametrize(("name", "window", "calls"), [
    ("put_latency", None, ["MPI_Put", "MPI_Win_flush"]),
    ("put_bandwidth", 3, ["MPI_Put", "MPI_Put", "MPI_Put", "MPI_Win_flush"]),
    ("get_bandwidth", 2, ["MPI_Get", "MPI_Get", "MPI_Win_flush"]), ("accumulate", None, ["MPI_Accumulate", "MPI_Win_flush"]),
])  # fmt: skip
def test_rank_0_calls_and_flushes_once_and_rank_1_calls_nothing(mpi, name, window, calls):
    assert [call.name for call in called_on_window(mpi, name, 0, window=window)[1]] == calls
    assert called_on_window(mpi, name, 1, window=window)[1] == []


def test_the_words_of_a_put_a_get_and_an_accumulate(mpi):
    x, (put, flush) = called_on_window(mpi, "put_latency", 0, slot=1)
    there = buffers_of("put_latency", 1, 2).there(1)
    handle = mpi._handleof(mpi.WIN_NULL)
    assert put.args == (int(x.send), 100, int(x.type), 1, there, 100, int(x.type), handle)
    assert flush.args == (1, handle)
    x, (get, _) = called_on_window(mpi, "get_latency", 0)
    assert get.args[:5] == (int(x.recv), 100, int(x.type), 1, x.there)
    _, (accumulate, _) = called_on_window(mpi, "accumulate", 0, redop="max")
    assert accumulate.args[7] == mpi._handleof(mpi.MAX)


@pytest.mark.parametrize("name", ["put_latency", "get_latency", "accumulate"])
@pytest.mark.parametrize("slot", [0, 1, 4])
def test_both_ranks_mean_the_same_place(name, slot):
    """What rank 0 reckons from its own side is where rank 1's elements are."""
    windows = [Memory(None, None), Memory(None, None)]
    origin, target = (buffers_of(name, rank, 5, windows[rank]) for rank in (0, 1))
    elements = target.recv(0, slot) if len(target.recv(0, slot)) else target.send(0, slot)
    assert origin.there(slot) == elements.ctypes.data - windows[1].memory.ctypes.data
    assert len(elements) == 100 and len(windows[0].memory) == 0  # rank 0's lie in ordinary memory


def test_rank_1s_elements_are_there_before_others_are_added():
    """Verified: its digits. Timed: 0, so that no sum grows, and 1 for products."""
    target = buffers_of("accumulate", 1)
    target.fill(0, for_check=True)
    assert np.array_equal(target.recv(0, 0), target.send(0, 0)) and target.recv(0, 0).min() >= 1
    for redop, neutral in (("sum", 0), ("prod", 1)):
        both = [buffers_of("accumulate", rank, redop=redop) for rank in (0, 1)]
        for each in both:
            each.fill(0, for_check=False)
        assert set(both[0].send(0, 0)) == set(both[1].recv(0, 0)) == {neutral}


def test_what_a_rank_reads_and_writes_is_put_in_order_and_memory_is_let_go_with_its_window():
    window = Memory(None, None)
    target = buffers_of("put_latency", 1, shown=window)
    assert window.synced == 0
    target.fill(0, for_check=True)
    assert window.synced == 1
    (wrong,) = target.check(0)
    assert window.synced == 2 and (wrong.wrong, wrong.hint) == (100, "nothing arrived there")
    window = Memory(None, SimpleNamespace(Free=lambda: None))
    window.show(4096)
    window.free()
    assert len(window.memory) == 0


@pytest.mark.parametrize(("hosts", "rank", "free", "says"), [
    ("aa", 0, 2**20, None),
    ("aa", 0, 2**20 - 1, SharedMemoryTooSmall("/dev/shm", 1, 2**20, 2**20 - 1)),
    ("aaaa", 3, 2**20, SharedMemoryTooSmall("/dev/shm", 2, 2**21, 2**20)),
    ("ab", 0, 0, None),  # no memory is shared
    ("aaab", 1, 2**20, None),  # of the pairs 0-2 and 1-3 one is inside a host
    ("aa", 0, None, None),  # what cannot be asked is not refused
])  # fmt: skip
def test_a_window_that_the_hosts_shared_memory_cannot_hold_is_refused(monkeypatch, hosts, rank, free, says):
    def usage(path):
        if free is None:
            raise FileNotFoundError(path)
        return SimpleNamespace(free=free)

    monkeypatch.setattr(mpi_window.shutil, "disk_usage", usage)
    case = make_case(count=2**18, operation="put_latency", redop=None)
    assert no_window(ALL["put_latency"], case, list(hosts), rank) == says
    on_gpu = make_case(operation="put_latency", redop=None, device="cuda")
    assert isinstance(no_window(ALL["put_latency"], on_gpu, ["a", "a"], 0), DeviceUnsupported)


def test_neighbours_have_a_ring_of_their_own(mpi):
    """Made once for each group of ranks; the calls are given its communicator."""
    made = []
    handle = SimpleNamespace(Create_cart=lambda dims, periods, reorder: made.append((dims, periods, reorder)) or mpi.COMM_SELF)
    backend = MpiBackend()
    backend._mpi, backend._library, backend._rings = mpi, ctypes.CDLL(mpi.__file__), {}
    group = Group((2, 5, 7), (1,), handle)
    case = make_case(operation="neighbor_alltoall", redop=None, split=parse_split("MOD 2"))
    for _ in range(2):
        buffers = backend.allocate(ALL["neighbor_alltoall"], case, group, 1)
    x = backend.binding(group, buffers, 0)
    assert made == [([3], [True], False)]
    assert isinstance(x, MpiBinding) and x.comm == mpi._handleof(mpi.COMM_SELF)
    (call,) = ALL["neighbor_alltoall"].steps["mpi"](x)
    assert (call.name, call.args[1], call.args[4]) == ("MPI_Neighbor_alltoall", 50, 50)
