"""Host memory and C calls: buffers on pages, slots that never touch, inputs that do not grow, addresses that are sliced."""

import ctypes
import mmap
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from collbench.backends import host
from collbench.backends.backend import Group
from collbench.backends.host import Address, Buffers, NativeBinding
from collbench.operations.builtin.allgather import ALLGATHER
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.builtin.p2p import P2P_BANDWIDTH
from collbench.operations.builtin.reducescatter import REDUCESCATTER
from collbench.operations.data import ROTATION_BYTES, bytes_needed, bytes_on_host, slots_for, write_digits
from collbench.operations.registry import operations
from tests.helpers import make_case, make_place

PAIR = Group((0, 1), (0, 1))


def make(operation=ALLREDUCE, group=PAIR, slots=1, **case):
    return Buffers(operation, make_case(**case), group, slots)


def ends(array):
    return array.ctypes.data, array.ctypes.data + array.nbytes


@pytest.mark.parametrize("count", [1, 1000, 1024, 2**21])
@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16"])
def test_buffers_begin_on_a_page_and_never_overlap(count, dtype):
    buffers = make(dtype=dtype, count=count)
    places = [ends(part) for driven in (0, 1) for part in (buffers.send(driven, 0), buffers.recv(driven, 0))]
    assert all(start % 4096 == 0 for start, _ in places)
    places.sort()
    assert all(end <= following for (_, end), (following, _) in pairwise(places))
    assert buffers.send(0, 0).dtype == buffers.recv(0, 0).dtype == make_case(dtype).dtype.numpy
    assert len(buffers.send(0, 0)) == len(buffers.recv(1, 0)) == count


def test_in_place_send_and_receive_are_one_and_a_rank_that_only_sends_has_nothing_to_receive():
    buffers = make(in_place=True)
    assert ends(buffers.send(0, 0)) == ends(buffers.recv(0, 0))
    gathers = make(ALLGATHER, in_place=True, count=200)
    assert gathers.send(1, 0).ctypes.data == gathers.recv(1, 0).ctypes.data + 100 * 4
    scatters = make(REDUCESCATTER, in_place=True, count=200)
    assert scatters.recv(1, 0).ctypes.data == scatters.send(1, 0).ctypes.data + 100 * 4
    pair = make(P2P_BANDWIDTH, redop=None)
    assert [len(part(rank, 0)) for rank in (0, 1) for part in (pair.send, pair.recv)] == [100, 0, 0, 100]


def test_small_buffers_get_ordinary_pages_and_large_ones_what_the_kernel_has(monkeypatch, tmp_path):
    assert make(count=1000).page_bytes == mmap.PAGESIZE
    monkeypatch.setattr(host, "Path", lambda path: tmp_path / Path(path).name)
    (tmp_path / "hpage_pmd_size").write_text("4194304\n")
    for huge_kib, page_bytes in ((0, mmap.PAGESIZE), (2**20, 2**22)):
        (tmp_path / "smaps").write_text(f"0-1000 rw-p\nAnonHugePages: 7 kB\n1000-ffffffffffffffff rw-p\nAnonHugePages: {huge_kib} kB\n")
        assert make(count=2**21).page_bytes == page_bytes


def test_memory_is_touched_before_it_is_used():
    before = resident()
    buffers = make(count=2**22)
    assert resident() - before > 4 * 2**24 * 0.9
    assert not buffers.recv(0, 0).any()


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize(("device", "size_bytes", "buffers", "slots"), [
    ("cpu", 8, "fixed", 1), ("cpu", 8, "rotating", 1024), ("cpu", 2**20, "rotating", 64), ("cpu", 2**26, "rotating", 1),
    ("cpu", 2**27, "rotating", 1), ("cpu", 3 * 2**20, "rotating", 21),
    ("cuda", 8, "fixed", 1), ("cuda", 8, "rotating", 1024), ("cuda", 2**23, "rotating", 32),
])  # fmt: skip
def test_as_many_slots_as_fill_64_mib_or_on_a_gpu_several_times_its_l2(device, size_bytes, buffers, slots):
    case = make_case("int8", size_bytes, buffers=buffers, device=device)
    assert slots_for(case) == slots
    assert device == "cpu" or buffers == "fixed" or bytes_needed(ALLREDUCE, case, 2) >= 2**28


@pytest.mark.parametrize("count", [2, 5000, 2**18])
def test_rotating_slots_are_apart_stay_within_bounds_and_cover_the_caches(count):
    case = make_case(count=count, buffers="rotating")
    slots = slots_for(case)
    buffers = Buffers(ALLREDUCE, case, Group((0, 1), (0,)), slots)
    places = sorted(ends(part) for slot in range(slots) for part in (buffers.send(0, slot), buffers.recv(0, slot)))
    assert all(end <= following for (_, end), (following, _) in pairwise(places))
    assert places[-1][1] - places[0][0] <= bytes_needed(ALLREDUCE, case, 2)
    assert places[-1][1] - places[0][0] > 0.9 * ROTATION_BYTES["cpu"]
    assert buffers.send(0, slots).ctypes.data == buffers.send(0, 0).ctypes.data


@pytest.fixture
def mapped(monkeypatch):
    """The bytes of each memory mapping that buffers take; none is larger to align its pages."""
    taken, take = [], mmap.mmap

    def record(descriptor, n_bytes, **options):
        taken.append(n_bytes)
        return take(descriptor, n_bytes, **options)

    monkeypatch.setattr(mmap, "mmap", record)
    monkeypatch.setattr(host, "_HUGE_FROM", 2**40)
    return taken


@pytest.mark.parametrize("operation", [ALLREDUCE, ALLGATHER, REDUCESCATTER], ids=lambda o: o.name)
@pytest.mark.parametrize("in_place", [True, False])
def test_bytes_needed_is_what_is_taken(operation, in_place, mapped):
    case = make_case(count=30_000, in_place=in_place)
    Buffers(operation, case, Group((0, 1, 2), (0, 1, 2)), 1)
    assert max(mapped) == bytes_needed(operation, case, 3)


@pytest.mark.system
@pytest.mark.parametrize("name", ["allreduce", "reduce", "broadcast", "gather", "scatter"])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(("root", "buffers"), [(0, "fixed"), (3, "rotating")])
def test_of_a_hosts_ranks_only_the_root_is_counted_as_one(name, in_place, root, buffers, mapped):
    operation = operations()[name]
    case = make_case(count=400_000, in_place=in_place, buffers=buffers, root=root if operation.rooted else None)
    Buffers(operation, case, Group((0, 1, 2, 3), (0, 1, 2, 3)), slots_for(case))
    assert bytes_on_host(operation, case, 4, 4, 1) == sum(mapped)


@pytest.mark.parametrize("count", [2**45, 2**60])
def test_absurd_sizes_are_a_memory_error(count):
    with pytest.raises(MemoryError, match="no memory for"):
        make(count=count)


@pytest.mark.parametrize(("redop", "value"), [("sum", 0), ("avg", 0), ("bxor", 0), ("prod", 1)])
def test_timed_in_place_reductions_that_would_grow_run_on_what_does_not(redop, value):
    buffers = make(dtype="int8" if redop == "bxor" else "float16", redop=redop, in_place=True)
    buffers.fill(0, for_check=False)
    assert set(buffers.send(0, 0).tolist()) == {value}


@pytest.mark.parametrize(("redop", "in_place"), [("sum", False), ("prod", False), ("max", True), ("min", True), (None, True)])
def test_everything_else_is_timed_on_real_digits(redop, in_place):
    buffers = make(redop=redop, in_place=in_place)
    buffers.fill(0, for_check=False)
    wanted = np.zeros(100, np.float32)
    write_digits(wanted, make_place(1, redop=redop))
    assert np.array_equal(buffers.send(1, 0), wanted)


def test_a_check_poisons_what_has_not_arrived_and_sends_digits_also_in_place():
    buffers = make(in_place=True)
    buffers.fill(0, for_check=True)
    assert buffers.send(0, 0).min() >= 1
    apart = make()
    apart.fill(0, for_check=True)
    assert set(apart.recv(0, 0).view(np.uint8).tolist()) == {0xA5}


def test_each_slot_has_digits_of_its_own():
    buffers = make(slots=3)
    for slot in range(3):
        buffers.fill(slot, for_check=True)
    assert not np.array_equal(buffers.send(0, 0), buffers.send(0, 1))
    buffers.recv(0, 1)[:] = buffers.send(0, 1) + buffers.send(1, 1)
    buffers.recv(1, 1)[:] = buffers.send(0, 0) + buffers.send(1, 0)
    assert [found is None for found in buffers.check(1)] == [True, False]


LIBC = ctypes.CDLL(None)


def binding():
    return NativeBinding(LIBC, make_case(root=3), 1, 4, 100)


def test_addresses_are_sliced_in_elements_and_a_call_has_the_functions_address_and_plain_words():
    address = Address(1000, 8)
    assert [int(part) for part in (address, address[3:], address[3:][2:], address[:])] == [1000, 1024, 1040, 1000]
    x = binding()
    assert (x.rank, x.n, x.count, x.root, x.case.dtype.name) == (1, 4, 100, 3, "float32")
    call = x.call("getpid", Address(7, 1), 5, True)
    assert (call.name, call.args) == ("getpid", (7, 5, 1))
    assert call.pointer == ctypes.cast(LIBC.getpid, ctypes.c_void_p).value
    assert x.has("getpid") and not x.has("MPI_Frobnicate")
    with pytest.raises(AttributeError):
        x.call("MPI_Frobnicate")


def test_arrays_and_rooms_stay_where_they_are():
    x = binding()
    counts = x.array([1, 2, 3])
    x.integer = ctypes.c_int64
    wide = x.array([2**40])
    room = x.room(256)
    assert list((ctypes.c_int * 3).from_address(int(counts))) == [1, 2, 3]
    assert int(counts[2:]) == int(counts) + 8
    assert ctypes.c_int64.from_address(int(wide)).value == 2**40
    assert bytes((ctypes.c_char * 256).from_address(room)) == bytes(256)
    assert len(x.keep) == 3
