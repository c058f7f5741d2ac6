"""torch: how it is loaded, where its store listens, and its NCCL without a GPU: events, batches of messages, limits."""

import gc
import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from collbench.addresses import is_own
from collbench.backends import torch_distributed
from collbench.backends.backend import Available, Backend, Group, Unavailable, unsupported_reason
from collbench.backends.clock import EventClock
from collbench.backends.host import Buffers
from collbench.backends.nonblocking import divided
from collbench.backends.torch_distributed import BatchedBinding, TorchNcclBackend, load_torch, no_cuda_build, store_of, torch_type
from collbench.backends.unavailable import NotInstalled, WrongBuild
from collbench.device.unavailable import NoDriver
from collbench.errors import RunFailed
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.builtin.p2p import P2P_BIDIRECTIONAL, P2P_MESSAGE
from collbench.operations.dtypes import DTYPES
from collbench.operations.unsupported import (
    AverageNotRepresentable,
    DeviceUnsupported,
    DtypeUnsupported,
    OperationUnsupported,
    OptionUnsupported,
)
from tests.helpers import make_case

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("looked", [True, False])
def test_the_collector_is_as_it_was_and_looks_at_torch_no_more(monkeypatch, looked):
    torch, calls = ModuleType("torch"), []
    monkeypatch.setitem(sys.modules, "torch", torch)
    for name in ("enable", "disable", "freeze"):
        monkeypatch.setattr(gc, name, lambda name=name: calls.append(name))
    monkeypatch.setattr(gc, "isenabled", lambda: looked)
    assert load_torch() is torch
    assert calls == ["disable", *(["enable"] if looked else []), "freeze"]


def test_where_it_does_not_load_the_collector_looks_again(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError):
        load_torch()
    assert gc.isenabled()


# A process of its own: torch must not be loaded into that of the tests.
STORE = """
import json, sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
import torch.distributed as dist
from collbench.backends.torch_distributed import store_of

address = sys.argv[1]
world = SimpleNamespace(rank=0, size=2, members=[SimpleNamespace(address=address)], broadcast=lambda value, what: value)
store = store_of("gloo", world, timedelta(seconds=10))
other = dist.TCPStore(address, store.port, None, is_master=False, timeout=timedelta(seconds=10))
other.set("key", "value")
lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]]
listening = [fields[1] for fields in lines if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == store.port]  # TCP_LISTEN
print(json.dumps([store.get("key").decode(), [each.partition(":")[0] for each in listening]]))
"""


@pytest.mark.system
@pytest.mark.skipif(find_spec("torch") is None, reason="no torch beside this Python")
@pytest.mark.parametrize(("address", "raw"), [("127.0.0.1", "0100007F"), ("::1", "00000000000000000000000001000000")])
def test_the_store_listens_at_one_address(address, raw):
    if not is_own(address):
        pytest.skip(f"{address} is not an address of this machine")
    done = subprocess.run([sys.executable, "-c", STORE, address], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    assert json.loads(done.stdout) == ["value", [raw]]


@pytest.mark.contract
@pytest.mark.parametrize(("takes", "how"), [("libuv", {}), ("sockets", {"use_libuv": False}), ("none", None)])
def test_a_torch_that_takes_no_listening_socket_opens_its_store_itself(monkeypatch, takes, how):
    made = []

    class Store:
        def __init__(self, host, port, ranks, master_listen_fd=None, **options):
            given = master_listen_fd is not None
            if given and (takes == "none" or (takes == "sockets" and "use_libuv" not in options)):
                with suppress(OSError):
                    os.close(master_listen_fd)
                raise RuntimeError("not supported")
            self.port = port
            made.append((given, options.get("use_libuv", True)))

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=SimpleNamespace(TCPStore=Store)))
    monkeypatch.setattr(torch_distributed, "listen_at", lambda address, backlog: socket.create_server((address, 0)))
    world = SimpleNamespace(rank=0, size=2, members=[SimpleNamespace(address="127.0.0.1")], broadcast=lambda value, what: value)
    store = store_of("gloo", world, timedelta(seconds=1))
    assert made == [(how is not None, (how or {}).get("use_libuv", True))]
    assert (store.port > 0) == (how is not None)


@pytest.mark.parametrize(("no_gpu", "torch", "fact", "remedy"), [
    (Unavailable.because(NoDriver()), "2.13.0+cu130", NoDriver, "driver"),
    (None, None, NotInstalled, "CUDA build of torch"), (None, "2.13.0+cpu", WrongBuild, "CUDA build of torch"),
])  # fmt: skip
def test_whether_it_is_at_hand(no_gpu, torch, fact, remedy, monkeypatch):
    monkeypatch.setattr(torch_distributed, "no_gpu", lambda: no_gpu)
    monkeypatch.setattr(torch_distributed, "find_spec", lambda name: torch)
    monkeypatch.setattr(torch_distributed, "version", lambda name: torch)
    found = TorchNcclBackend.probe()
    assert isinstance(found.fact, fact) and remedy in found.remedy
    monkeypatch.setattr(torch_distributed, "no_gpu", lambda: None)
    monkeypatch.setattr(torch_distributed, "find_spec", lambda name: name)
    monkeypatch.setattr(torch_distributed, "version", lambda name: "2.13.0+cu130")
    assert TorchNcclBackend.probe() == Available("NCCL of torch 2.13.0+cu130, as training sees it")


def test_a_torch_without_cuda_reports_its_version():
    cpu = SimpleNamespace(version=SimpleNamespace(cuda=None), __version__="2.13.0+cpu")
    assert "torch 2.13.0+cpu " in no_cuda_build(cpu)
    blind = SimpleNamespace(version=SimpleNamespace(cuda="13.0"), __version__="2.13.0", cuda=SimpleNamespace(is_available=lambda: False))
    assert no_cuda_build(blind).startswith("torch 2.13.0 finds no GPU")
    blind.cuda.is_available = lambda: True
    assert no_cuda_build(blind) is None


@pytest.mark.parametrize(("ranks", "case", "reason"), [
    (4, {}, None), (4, {"dtype": "float8_e5m2"}, None),
    (4, {"dtype": "uint32"}, DtypeUnsupported("NCCL of torch", "uint32")),
    (4, {"mode": "graph"}, OptionUnsupported(("--mode graph",), "torch-nccl", "nccl")),
    (4, {"device": "cpu"}, DeviceUnsupported("torch-nccl", "cpu", ("cuda",))),
    (4, {"algorithm": "ring"}, OptionUnsupported(("--algorithms",), "torch-nccl", "nccl")),
    (4, {"in_place": False}, OperationUnsupported("torch-nccl", "allreduce", "in place")),
    (1024, {"dtype": "float8_e4m3fn", "redop": "avg"}, AverageNotRepresentable("float8_e4m3fn", 1024, 512)),  # it has no share for it
])  # fmt: skip
def test_what_it_cannot_do(ranks, case, reason):
    backend = TorchNcclBackend()
    backend.ranks = ranks
    assert isinstance(backend, Backend)
    assert unsupported_reason(backend, ALLREDUCE, make_case(**{"device": "cuda", "in_place": True, **case})) == reason


def test_what_is_only_moved_goes_as_a_type_that_is_known_everywhere():
    assert {name: torch_type(name, reduces=False) for name in ("uint64", "uint32", "float8_e5m2", "bfloat16")} == {
        "uint64": "int64", "uint32": "int32", "float8_e5m2": "uint8", "bfloat16": "bfloat16",
    }  # fmt: skip
    assert all(torch_type(name, reduces=True) == name for name in DTYPES)


class FakeEvent:
    """An event of a stream that comes to rest after some looks."""

    looks = 0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at_ms = 2.5 * len(recorded)
        recorded.append(self)

    def query(self):
        FakeEvent.looks -= 1
        return FakeEvent.looks < 0

    def elapsed_time(self, other):
        return other.at_ms - self.at_ms


recorded = []
FAKE_TORCH = SimpleNamespace(cuda=SimpleNamespace(Event=FakeEvent))


def test_samples_are_the_time_between_events():
    clock, FakeEvent.looks = EventClock(FAKE_TORCH, 1, lambda: None), 3
    stamps = [clock.stamp() for _ in range(4)]
    assert clock.elapsed(stamps[::2], stamps[1::2]) == pytest.approx(np.array([[0.0025, 0.0025]]))
    assert clock.elapsed([], []).shape == (1, 0)
    assert not clock.native


@pytest.mark.parametrize(("expected", "tail"), [(None, ""), ("rank 3 lags", "; rank 3 lags")])
def test_what_does_not_end_names_the_rank_that_lags(expected, tail):
    clock, FakeEvent.looks = EventClock(FAKE_TORCH, 0.01, lambda: expected), 10**9
    stamp = clock.stamp()
    with pytest.raises(RunFailed) as error:
        clock.elapsed([stamp], [stamp])
    assert str(error.value).endswith(f" 0.01 s{tail}")


class FakeDist:
    """torch.distributed as far as it is asked for messages."""

    ReduceOp = SimpleNamespace(SUM="sum")

    def __init__(self):
        self.batches = []

    isend, irecv = "isend", "irecv"

    @staticmethod
    def P2POp(op, tensor, peer, group):  # noqa: N802
        return (op, tensor.numel(), peer, group)

    def send(self, tensor, **named):
        self.batches.append(("send", tensor.numel()))

    recv = send

    def batch_isend_irecv(self, messages):
        self.batches.append(list(messages))
        return [SimpleNamespace(wait=lambda: self.batches.append("waited"))]


class FakeTensor:
    """Bytes seen as elements of a width."""

    device = "cpu"

    def __init__(self, array):
        self.array = array

    def __getitem__(self, part):
        return FakeTensor(self.array[part])

    def view(self, kind):
        return FakeTensor(self.array.view(kind))

    def numel(self):
        return self.array.size


def fake_torch(dist):
    """torch with tensors of bytes on the host, and this torch.distributed."""
    zeros = lambda n, dtype=np.uint8, **_: FakeTensor(np.zeros(n, dtype))  # noqa: E731
    return SimpleNamespace(from_numpy=FakeTensor, zeros=zeros, uint8=np.uint8, float32=np.float32, distributed=dist)


def test_messages_go_out_as_one_batch():
    """Both directions of a window at once: one after the other they would wait for each other."""
    dist, group = FakeDist(), Group((4, 7), (0,), "the group")
    buffers = Buffers(P2P_BIDIRECTIONAL, make_case(redop=None, window=2, count=10), group, 1)
    calls = list(P2P_BIDIRECTIONAL.by_messages(BatchedBinding(fake_torch(dist), buffers, group, 0)))
    for _ in range(2):
        for call in calls:
            call.function()
    assert [call.name for call in calls] == ["irecv", "isend", "irecv", "isend", "batch_isend_irecv", "recv"]
    assert dist.batches == [[("irecv", 10, 7, "the group"), ("isend", 10, 7, "the group")] * 2, "waited", ("send", 1)] * 2


def test_a_started_batch_is_sent_at_once_and_waited_for_later():
    dist, group = FakeDist(), Group((4, 7), (0,), "the group")
    buffers = Buffers(P2P_MESSAGE, make_case(redop=None, count=10), group, 1)
    start, wait = divided(P2P_MESSAGE.by_messages, BatchedBinding(fake_torch(dist), buffers, group, 0))
    for _ in range(2):
        for call in start:
            call.function()
        assert dist.batches.pop() == [("isend", 10, 7, "the group")]
        for call in wait:
            call.function()
        assert dist.batches.pop() == "waited" and not dist.batches


def test_a_started_collective_is_asynchronous_and_no_batch():
    works, waited = [], []

    def all_reduce(tensor, **named):
        works.append((tensor.numel(), named))
        return SimpleNamespace(wait=lambda: waited.append(len(works)))

    dist = SimpleNamespace(all_reduce=all_reduce, ReduceOp=SimpleNamespace(SUM="sum"))
    group = Group((0, 1), (0,), "the group")
    buffers = Buffers(ALLREDUCE, make_case(count=10, in_place=True), group, 1)
    start, wait = divided(ALLREDUCE.steps["torch"], BatchedBinding(fake_torch(dist), buffers, group, 0))
    assert [call.name for call in start] == ["all_reduce"]
    start[0].function()
    assert works == [(10, {"op": "sum", "group": "the group", "async_op": True})] and not waited
    wait[0].function()
    assert waited == [1]
