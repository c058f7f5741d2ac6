"""Memory, streams, graphs and kernels on a GPU: on the test double (test_gpu.py starts pytest anew for this file), or on a real one.

`tools/gpu_check` runs this file on real GPUs. Where there is one only, both ranks of a test use it.
"""

import ctypes
import gc
import re

import numpy as np
import pytest
from msgspec.structs import replace

from collbench.backends.backend import Group
from collbench.backends.host import Buffers
from collbench.device import buffers as checker_room
from collbench.device.buffers import DeviceBuffers, checker_of, prove
from collbench.device.gpu import OpenGpu, driver_address, driver_error, gpu_count
from collbench.device.present import cupy_runtime
from collbench.errors import RunFailed, UsageError
from collbench.operations.builtin.allgather import ALLGATHER
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.builtin.alltoall import ALLTOALL
from collbench.operations.builtin.gather_scatter import SCATTER
from collbench.operations.builtin.p2p import P2P_BANDWIDTH
from collbench.operations.builtin.reducescatter import REDUCESCATTER
from collbench.operations.data import PERIOD, bytes_needed, poison
from collbench.operations.dtypes import DTYPES
from collbench.operations.operation import Operation
from tests.helpers import carried_out, make_case

PAIR = Group((0, 1), (0, 1))

FAKE = "FAKE GPU (test double)"


@pytest.fixture(scope="module")
def gpus():
    return [OpenGpu(0), OpenGpu(gpu_count() > 1)]


@pytest.fixture
def double(gpus):
    if (gpu_count(), gpus[0].name) != (2, FAKE):
        pytest.skip("asserts facts of the test double with two GPUs")


@pytest.fixture(scope="module")
def streams(gpus):
    return [gpu.stream() for gpu in gpus]


@pytest.fixture
def make(gpus, streams):
    def make(operation: Operation = ALLREDUCE, slots: int = 1, **case) -> DeviceBuffers:
        return DeviceBuffers(operation, make_case(device="cuda", **case), PAIR, slots, gpus, streams)

    return make


def test_a_gpu_reports_its_properties(gpus, double):
    assert gpu_count() == 2
    assert [gpu.name for gpu in gpus] == [FAKE] * 2
    assert gpus[0].bus_id != gpus[1].bus_id == gpus[1].bus_id.lower()
    assert (gpus[0].arch, gpus[0].compute_mode) == ("sm_90", "default")
    clock_khz, bus_bits = (cupy_runtime().deviceGetAttribute(attribute, 0) for attribute in (36, 37))
    assert gpus[0].memory_rate == 2 * 1000 * clock_khz * bus_bits / 8


def test_a_gpu_that_is_not_there_is_one_sentence():
    n = gpu_count()
    with pytest.raises(UsageError, match=rf"^GPU {n} .* {n}$"):
        OpenGpu(n)


def test_memory_is_the_drivers_and_goes_back_with_its_last_reference(gpus):
    before = gpus[0].free_bytes()
    held = gpus[0].allocate(64 << 20)
    assert (held.n_bytes, before - gpus[0].free_bytes()) == (64 << 20, 64 << 20)
    del held
    gc.collect()
    assert gpus[0].free_bytes() == before


def test_too_much_is_a_memory_error_that_shows_what_is_free(gpus):
    gpu = gpus[1]
    with pytest.raises(MemoryError, match=rf"^GPU {gpu.index} \({re.escape(gpu.name)}\) .*3 TiB.* is free$"):
        gpu.allocate(3 << 40)


def test_errors_of_the_driver_and_of_cuda_name_the_gpu(gpus):
    from cupy import RawModule

    failed = rf"^GPU 0 \({re.escape(gpus[0].name)}\) failed: "
    with pytest.raises(RunFailed, match=f"{failed}CUDA_ERROR_FILE_NOT_FOUND: "), gpus[0].use():
        RawModule(path="/nowhere.cubin")
    held = gpus[0].allocate(16)
    with pytest.raises(RunFailed, match=f"{failed}cudaErrorInvalidValue"), gpus[0].use():
        cupy_runtime().memset(held.address, 0, 1 << 42)


def test_arrays_go_there_and_back(gpus, streams):
    array = np.arange(100, dtype=np.float32)
    held = gpus[1].allocate(400)
    gpus[1].upload(held.address, array[::-1], streams[1])
    assert gpus[1].download(held.address, 400).view(np.float32).tolist() == array[::-1].tolist()


def test_pinned_memory_is_an_array_of_bytes(gpus):
    pinned = gpus[0].pinned(4096)
    pinned[:] = 7
    assert (pinned.dtype, pinned.size, int(pinned.sum())) == (np.uint8, 4096, 7 * 4096)


def test_what_is_captured_runs_when_the_graph_is_launched(gpus, streams):
    checker, held = checker_of(gpus[0], streams[0]), gpus[0].allocate(16)
    table = np.full(16, 3, np.uint8)
    checker.fill(held.address, 16, table)
    with gpus[0].capture(streams[0]) as graph:
        checker.corrupt(held.address, 5, 0xFF)
    assert checker.verify(held.address, 16, table, 0) == (0, 2**64 - 1)
    launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64)(driver_address("cuGraphLaunch"))
    assert launch(graph.address, streams[0].address) == 0
    assert checker.verify(held.address, 16, table, 0) == (1, 5)


def test_a_broken_capture_leaves_the_stream_usable(gpus, streams):
    with pytest.raises(ZeroDivisionError), gpus[0].capture(streams[0]):
        _ = 1 // 0
    checker_of(gpus[0], streams[0]).settle()


def test_the_drivers_words_for_a_code():
    assert driver_error(600).startswith("CUDA error 600: ")
    assert driver_error(12345) == "CUDA error 12345"
    with pytest.raises(AttributeError):
        driver_address("cuFrobnicate")


def test_the_checker_proves_itself_for_every_width(gpus, streams, monkeypatch):
    looked, real = [], checker_room.Checker.verify

    def verify(self, address, n_bytes, table, tolerance):
        looked.append(table.itemsize)
        return real(self, address, n_bytes, table, tolerance)

    monkeypatch.setattr(checker_room.Checker, "verify", verify)
    prove(gpus[0], streams[0])
    assert looked == [width for width in (1, 2, 4, 8) for _ in range(3 * 4)]


@pytest.mark.parametrize("blind", ["sees nothing", "sees errors everywhere", "misplaces them"])
def test_a_blind_checker_is_caught(gpus, streams, monkeypatch, blind):
    real = checker_room.Checker.verify

    def verify(self, address, n_bytes, table, tolerance):
        wrong, first = real(self, address, n_bytes, table, tolerance)
        return {"sees nothing": (0, 2**64 - 1), "sees errors everywhere": (1, 0), "misplaces them": (wrong, first + (wrong > 0))}[blind]

    monkeypatch.setattr(checker_room.Checker, "verify", verify)
    with pytest.raises(RunFailed, match=r"GPU 0 .* a flipped bit at byte 0 of elements of 1 bytes"):
        prove(gpus[0], streams[0])


def downloaded(buffers, gpus, driven, slot, which):
    count = buffers.elements(driven)[which == "recv"]
    at = getattr(buffers, f"{which}_at")(driven, slot)
    return gpus[driven].download(at, count * buffers.case.dtype.size).view(buffers.case.dtype.numpy)


def on_the_host(buffers, slots=1):
    return Buffers(buffers.operation, replace(buffers.case, device="cpu"), PAIR, slots)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("redop", ["sum", None])
def test_inputs_are_those_of_the_host(make, gpus, dtype, redop):
    buffers = make(ALLREDUCE if redop else ALLGATHER, slots=2, dtype=dtype, redop=redop, count=1001)
    host = on_the_host(buffers, 2)
    for each in (buffers, host):
        each.fill(1, for_check=True)
    for driven in (0, 1):
        assert np.array_equal(downloaded(buffers, gpus, driven, 1, "send").view(np.uint8), host.send(driven, 1).view(np.uint8))
        assert set(downloaded(buffers, gpus, driven, 1, "recv").view(np.uint8).tolist()) == {0xA5}


@pytest.mark.parametrize(("redop", "value"), [("sum", 0), ("prod", 1)])
def test_timed_in_place_reductions_run_on_what_does_not_grow(make, gpus, redop, value):
    buffers = make(dtype="bfloat16", redop=redop, in_place=True, count=77)
    buffers.fill(0, for_check=False)
    assert set(downloaded(buffers, gpus, 1, 0, "send").astype(float).tolist()) == {value}


def test_timed_slots_share_their_digits_and_checked_ones_do_not(make, gpus):
    buffers = make(slots=3)
    for for_check, same in ((False, True), (True, False)):
        for slot in range(3):
            buffers.fill(slot, for_check)
        sends = [downloaded(buffers, gpus, 0, slot, "send").tolist() for slot in range(3)]
        assert (sends[0] == sends[1] == sends[2]) is same


def carry_out(buffers, gpus, streams, slot=0):
    """Everything arrives as promised."""
    sends = [downloaded(buffers, gpus, driven, slot, "send").copy() for driven in (0, 1)]
    for driven, place in enumerate(buffers.places):
        got = carried_out(buffers.operation, place, sends)
        if got.size:
            gpus[driven].upload(buffers.recv_at(driven, slot), got, streams[driven])
    return sends


@pytest.mark.parametrize("operation", [ALLREDUCE, ALLGATHER, ALLTOALL, REDUCESCATTER, SCATTER, P2P_BANDWIDTH], ids=lambda one: one.name)
@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16", "float8_e5m2", "uint64"])
def test_right_data_is_found_right_and_one_flip_at_its_index(make, gpus, streams, operation, dtype):
    buffers = make(operation, dtype=dtype, count=2 * 1001, redop="sum" if operation.reduces else None, root=0)
    buffers.fill(0, for_check=True)
    carry_out(buffers, gpus, streams)
    assert buffers.check(0) == [None, None]
    width, received = buffers.case.dtype.size, buffers.elements(1)[1]
    checker_of(gpus[1], streams[1]).corrupt(buffers.recv_at(1, 0), (received - 1) * width, 0x01)
    found = buffers.check(0)
    assert (found[0], found[1].rank, found[1].wrong, found[1].index) == (None, 1, 1, received - 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_is_reported_in_the_words_of_the_host(make, gpus, streams, dtype):
    """A dropped rank, an element here and there, what never arrived: the sentence is the same."""
    buffers = make(dtype=dtype, count=3001)
    host = on_the_host(buffers)
    for spoil in (lambda got, sends: got - sends[1], lambda got, sends: np.roll(got, 1), lambda got, sends: poison(got[2000:]) or got):
        for each in (buffers, host):
            each.fill(0, for_check=True)
        sends = carry_out(buffers, gpus, streams)
        spoilt = spoil(downloaded(buffers, gpus, 0, 0, "recv"), sends).astype(buffers.case.dtype.numpy)
        gpus[0].upload(buffers.recv_at(0, 0), spoilt, streams[0])
        host.recv(0, 0)[:] = spoilt
        found = buffers.check(0)[0]
        assert found == host.check(0)[0]
        assert found.wrong > 0


@pytest.mark.parametrize("dtype", [name for name, kind in DTYPES.items() if kind.kind == "float"])
def test_an_average_may_be_as_far_off_as_on_the_host(gpus, streams, dtype):
    three = Group((0, 1, 2), (0, 1))
    buffers = DeviceBuffers(ALLREDUCE, make_case(dtype, 500, device="cuda", redop="avg"), three, 1, gpus, streams)
    host = Buffers(ALLREDUCE, replace(buffers.case, device="cpu"), Group((0, 1, 2), (0, 1, 2)), 1)
    host.fill(0, for_check=True)
    right = carried_out(ALLREDUCE, host.places[0], [host.send(rank, 0) for rank in range(3)])
    for units in (0, 1, 2, 3, 4, 5, 6, 7):
        got = right.copy()
        got.view(f"u{got.itemsize}")[7] += units
        gpus[0].upload(buffers.recv_at(0, 0), got, streams[0])
        host.recv(0, 0)[:] = got
        assert buffers.check(0)[0] == host.check(0)[0]


def test_long_buffers_are_compared_to_their_last_element(make, gpus, streams):
    count = 3 * PERIOD + 5
    buffers = make(P2P_BANDWIDTH, dtype="int8", count=count, redop=None)
    buffers.fill(0, for_check=True)
    carry_out(buffers, gpus, streams)
    assert buffers.check(0) == [None, None]
    checker_of(gpus[1], streams[1]).corrupt(buffers.recv_at(1, 0), count - 1, 0x80)
    assert buffers.check(0)[1].index == count - 1


def test_every_rank_has_the_bytes_that_were_announced(make):
    buffers = make(SCATTER, redop=None, root=0, count=1000)
    assert [memory.n_bytes for memory in buffers.memory] == [bytes_needed(SCATTER, buffers.case, 2)] * 2
    assert buffers.page_bytes is None


def test_memory_of_another_allocator_is_used_as_it_is(gpus, streams):
    taken = []

    def allocate(gpu, n_bytes):
        taken.append(gpu.allocate(n_bytes))
        return taken[-1]

    buffers = DeviceBuffers(ALLREDUCE, make_case(device="cuda"), PAIR, 1, gpus, streams, allocate)
    assert [buffers.recv_at(driven, 0) for driven in (0, 1)] == [held.address for held in taken]
