"""MPI on the double's GPU memory, which is the host's: pytest is started anew for this file (test_on_gpu.py)."""

import ctypes

import numpy as np
import pytest
from msgspec.structs import replace

from collbench.backends import mpi
from collbench.backends.backend import Settings, can_do
from collbench.backends.gpu_memory import OneGpu, no_gpu
from collbench.backends.mpi import MpiBackend
from collbench.backends.torch_distributed import TorchBinding, TorchMemory
from collbench.device.buffers import DeviceBuffers
from collbench.device.gpu import OpenGpu
from collbench.measuring.loop import Loop, Timed
from collbench.operations.builtin.allreduce import ALLREDUCE
from tests.backends.test_torch import FakeDist, FakeTensor, fake_torch
from tests.helpers import make_case


@pytest.fixture
def aware(world, monkeypatch):
    """An MPI that claims to support CUDA memory."""
    monkeypatch.setattr(mpi, "why_not_cuda", lambda library, name: None)
    backend = MpiBackend()
    backend.open(world, Settings())
    return backend


def on_gpu(**case):
    return make_case(device="cuda", **case)


def test_a_library_that_reports_no_support_has_none_and_reports_it(world):
    backend = MpiBackend()
    backend.open(world, Settings())
    assert (backend.devices, backend.gpus) == (frozenset({"cpu"}), ())
    assert can_do(backend, ALLREDUCE, on_gpu()).startswith("mpi has no GPU here: ")


def test_one_that_reports_support_has_a_gpu_per_rank(aware):
    assert aware.devices == {"cpu", "cuda"}
    assert aware.gpus == (OpenGpu(0).bus_id,)
    assert can_do(aware, ALLREDUCE, on_gpu()) is None
    assert aware.free_bytes(on_gpu()) == OpenGpu(0).free_bytes()
    assert aware.free_bytes(make_case()) is None


@pytest.mark.parametrize("dtype", ["float32", "uint64", "int8"])
def test_mpi_moves_the_gpus_bytes(aware, world, dtype):
    case = replace(on_gpu(dtype=dtype, count=1001), buffers="rotating")
    group = aware.group([0])
    buffers = aware.allocate(ALLREDUCE, case, group, 3)
    assert isinstance(buffers, DeviceBuffers)
    loop = Loop(Timed(aware.bind(ALLREDUCE, case, group, buffers), None, aware.clock(), ctypes.c_int64()))
    for slot in range(3):
        buffers.fill(slot, for_check=True)
        assert buffers.check(slot)[0].hint == "nothing arrived there"
        loop.run(1, slot=slot)
        assert buffers.check(slot) == [None]


def test_on_the_host_it_is_as_before(aware):
    buffers = aware.allocate(ALLREDUCE, make_case(), aware.group([0]), 1)
    assert buffers.page_bytes


def test_ranks_take_the_gpus_in_turn(world, monkeypatch):
    assert no_gpu() is None
    found = []
    for local_rank in range(4):
        monkeypatch.setattr(world, "info", replace(world.info, local_rank=local_rank, local_ranks=4))
        found.append(OneGpu(world).index)
    assert found == [0, 1, 2, 0]


def test_tensors_lie_where_the_buffers_are(world):
    def allocate(gpu, n_bytes):
        memory = TorchMemory.__new__(TorchMemory)
        memory.held = gpu.allocate(n_bytes)
        memory.address, memory.n_bytes = memory.held.address, n_bytes
        memory.tensor = FakeTensor(np.frombuffer((ctypes.c_uint8 * n_bytes).from_address(memory.address), np.uint8))
        return memory

    gpu, group = OneGpu(world), mpi.Group((0,), (0,))
    buffers = gpu.buffers(ALLREDUCE, on_gpu(count=1001), group, 2, allocate)
    x = TorchBinding(fake_torch(FakeDist()), buffers, group, 1)
    assert (x.send.array.dtype, x.send.array.size, x.recv.array.size) == (np.float32, 1001, 1001)
    assert [tensor.array.ctypes.data for tensor in (x.send, x.recv)] == [buffers.send_at(0, 1), buffers.recv_at(0, 1)]
    buffers.fill(1, for_check=True)
    x.recv.array[:] = x.send.array
    assert buffers.check(1) == [None]
