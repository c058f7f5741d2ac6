"""Checks of the double that run inside it: pytest is started anew for this file with the environment of four fake GPUs (test_double.py)."""

import contextlib
import ctypes
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import pytest

from tests.fake_gpu.ranks import DTYPES, NCCL, Ranks

N = 3
COUNT = 1001
REDOPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with contextlib.closing(Ranks(N)) as made:
        yield made


@pytest.fixture
def own() -> Iterator[Ranks]:
    """Ranks that a test may ruin."""
    with contextlib.closing(Ranks(N)) as made:
        yield made


def digits(rank: int, count: int = COUNT, dtype: Any = np.float32) -> np.ndarray:
    return ((np.arange(count) + rank) % 2 + 1).astype(dtype)


def stacked(count: int = COUNT, dtype: Any = np.float32) -> list[np.ndarray]:
    return [digits(rank, count, dtype) for rank in range(N)]


def eventually(true: Callable[[], bool]) -> bool:  # a stream's thread needs its time
    end = time.monotonic() + 20
    while not true() and time.monotonic() < end:
        time.sleep(0.001)
    return true()


@pytest.mark.parametrize("code", range(len(DTYPES)), ids=[str(np.dtype(one)) for one in DTYPES])
def test_every_datatype_reduces_exactly(ranks: Ranks, code: int) -> None:
    sent = stacked(dtype=DTYPES[code])
    plain = np.stack([one.astype(np.float64) for one in sent])
    wanted = {"sum": plain.sum(0), "prod": plain.prod(0), "max": plain.max(0), "min": plain.min(0)}
    for name, values in wanted.items():
        got = ranks.run("ncclAllReduce", sent, COUNT, (code, REDOPS[name]))
        assert all((one.astype(np.float64) == values).all() for one in got), name


def test_an_average_divides_by_the_ranks(ranks: Ranks) -> None:
    sent = [np.full(4, value, np.float32) for value in (1, 2, 6)]
    assert ranks.run("ncclAllReduce", sent, 4, (7, REDOPS["avg"]))[0].tolist() == [3, 3, 3, 3]
    sent = [np.full(4, value, np.int32) for value in (1, 2, 7)]
    assert ranks.run("ncclAllReduce", sent, 4, (2, REDOPS["avg"]))[0].tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize("root", range(N))
def test_each_collective_moves_its_blocks_and_knows_its_root(ranks: Ranks, root: int) -> None:
    sent, whole = stacked(), [digits(rank, N * COUNT) for rank in range(N)]
    gathered, blocks = np.concatenate(sent), [np.split(one, N) for one in whole]
    nothing = np.zeros(COUNT)
    wanted = {
        ("ncclReduceScatter", (7, 0)): np.split(np.sum(whole, 0), N),
        ("ncclAllGather", (7,)): [gathered] * N,
        ("ncclAlltoAll", (7,)): [np.concatenate([blocks[by][to] for by in range(N)]) for to in range(N)],
        ("ncclBroadcast", (7, root)): [sent[root]] * N,
        ("ncclReduce", (7, 0, root)): [np.sum(sent, 0) if rank == root else nothing for rank in range(N)],
        ("ncclScatter", (7, root)): np.split(whole[root], N),
    }
    for (name, words), parts in wanted.items():
        given = whole if name in ("ncclReduceScatter", "ncclAlltoAll", "ncclScatter") else sent
        got = ranks.run(name, given, COUNT, words, receive=len(parts[0]))
        assert [one.tolist() for one in got] == [part.tolist() for part in parts], name
    assert ranks.run("ncclGather", sent, COUNT, (7, root), receive=N * COUNT)[root].tolist() == gathered.tolist()


def test_a_reduction_in_place_of_several_pieces_and_an_allgather(ranks: Ranks) -> None:
    count = 2 * 65536 + 17  # 256 KiB are reduced at once
    data = stacked(count)
    wanted = np.sum(data, 0)
    ranks.call("ncclAllReduce", [(one.ctypes.data, one.ctypes.data, count, 7, 0) for one in data])
    ranks.wait()
    assert all((one == wanted).all() for one in data)
    data = [np.zeros(N * COUNT, np.float32) for _ in range(N)]
    for rank, one in enumerate(data):
        one[rank * COUNT : (rank + 1) * COUNT] = digits(rank)
    ranks.call("ncclAllGather", [(one.ctypes.data + 4 * rank * COUNT, one.ctypes.data, COUNT, 7) for rank, one in enumerate(data)])
    ranks.wait()
    assert all(one.tolist() == np.concatenate(stacked()).tolist() for one in data)


@pytest.mark.parametrize("count", [1, 200_000])
def test_a_group_of_sends_and_receives_in_any_order(ranks: Ranks, count: int) -> None:
    sent = [np.full(count, rank, np.float32) for rank in range(N)]
    got = [np.zeros((N, count), np.float32) for _ in range(N)]
    with ranks.group():
        for rank in range(N):
            for peer in reversed(range(N)):
                ranks.one("ncclRecv", rank, got[rank][peer].ctypes.data, count, 7, peer)
            for peer in range(N):
                ranks.one("ncclSend", rank, sent[rank].ctypes.data, count, 7, peer)
    ranks.wait()
    assert all((got[rank] == np.arange(N)[:, None]).all() for rank in range(N))


def test_the_first_collective_call_itself_waits_for_the_others_which_connects_them(own: Ranks) -> None:
    data = stacked()
    places = [one.ctypes.data for one in data]
    first = threading.Thread(target=own.one, args=("ncclAllReduce", 0, places[0], places[0], COUNT, 7, 0))
    first.start()
    with own.group():
        assert first.is_alive()
        for rank in range(1, N):
            own.one("ncclAllReduce", rank, places[rank], places[rank], COUNT, 7, 0)
    first.join(20)
    assert not first.is_alive()
    own.wait()
    assert data[0].tolist() == np.sum(stacked(), 0).tolist()


def test_a_stream_is_not_done_until_the_others_come(own: Ranks) -> None:
    own.run("ncclAllReduce", stacked(), COUNT, (7, 0))
    data = stacked()
    own.one("ncclAllReduce", 0, data[0].ctypes.data, data[0].ctypes.data, COUNT, 7, 0)
    assert own.query(0) == 600
    for rank in range(1, N):
        own.one("ncclAllReduce", rank, data[rank].ctypes.data, data[rank].ctypes.data, COUNT, 7, 0)
    own.wait()
    assert own.query(0) == 0
    assert data[0].tolist() == np.sum(stacked(), 0).tolist()


def test_a_graph_does_nothing_until_launched_and_then_again_and_again(ranks: Ranks) -> None:
    data = [np.ones(4, np.int32) for _ in range(N)]
    for stream in ranks.streams:
        stream.begin_capture()
    ranks.call("ncclAllReduce", [(one.ctypes.data, one.ctypes.data, 4, 2, 0) for one in data])
    graphs = [stream.end_capture() for stream in ranks.streams]
    ranks.wait()
    assert data[0].tolist() == [1] * 4
    for _ in range(2):
        for graph, stream in zip(graphs, ranks.streams, strict=True):
            graph.launch(stream)
    ranks.wait()
    assert [one.tolist() for one in data] == [[9] * 4] * N


def test_events_show_the_time_between_them(ranks: Ranks) -> None:
    first, last = cupy.cuda.Event(), cupy.cuda.Event()
    first.record(ranks.streams[0])
    last.record(ranks.streams[0])
    last.synchronize()
    assert 0 <= cupy.cuda.get_elapsed_time(first, last) < 1000
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="cudaErrorInvalidResourceHandle"):
        cupy.cuda.get_elapsed_time(first, cupy.cuda.Event())


def test_a_capturing_stream_may_not_be_waited_for(ranks: Ranks) -> None:
    stream = ranks.streams[0]
    stream.begin_capture()
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="StreamCaptureUnsupported"):
        stream.synchronize()
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="StreamCaptureInvalidated"):
        stream.end_capture()


def test_memory_is_counted_and_its_ends_are_guarded() -> None:
    runtime = cupy.cuda.runtime
    before = runtime.memGetInfo()
    held = runtime.malloc(1 << 20)
    assert runtime.memGetInfo() == (before[0] - (1 << 20), before[1])
    with pytest.raises(runtime.CUDARuntimeError, match="invalid argument"):
        runtime.memset(held, 0, (1 << 20) + 1)
    with pytest.raises(runtime.CUDARuntimeError, match="cudaErrorMemoryAllocation: out of memory"):
        runtime.malloc(1 << 40)
    runtime.free(held)
    assert runtime.memGetInfo() == before


def test_a_dropped_rank_is_missing_from_every_sum(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NCCL_DROP_RANK", "1")
    assert ranks.run("ncclAllReduce", stacked(), COUNT, (7, 0))[2].tolist() == (digits(0) + digits(2)).tolist()


@pytest.mark.parametrize(
    ("fault", "error"), [(("FAKE_NCCL_HANG", "1:2"), 0), (("FAKE_NCCL_ASYNC_ERROR", "2:2:6"), 6)], ids=["hang", "error"]
)
def test_a_hang_lasts_until_it_is_aborted_and_an_asynchronous_error_is_reported(own: Ranks, monkeypatch, fault, error) -> None:
    monkeypatch.setenv(*fault)
    own.run("ncclAllReduce", stacked(), COUNT, (7, 0))
    data = stacked()
    own.call("ncclAllReduce", [(one.ctypes.data, one.ctypes.data, COUNT, 7, 0) for one in data])
    assert eventually(lambda: own.async_error(2) == error)
    assert [own.query(rank) for rank in range(N)] == [600] * N
    assert [own.async_error(rank) for rank in range(N)] == [0, 0, error]
    assert not error or b"FAKE_NCCL_ASYNC_ERROR" in NCCL.ncclGetLastError(None)
    own.abort()
    own.wait()
    assert data[0].tolist() == digits(0).tolist()


def test_a_choice_that_leaves_no_algorithm_is_an_error_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    with contextlib.closing(Ranks(N)) as made:
        made.run("ncclAllReduce", stacked(), COUNT, (7, 0))
        with pytest.raises(RuntimeError, match="invalid usage"):
            made.run("ncclAllGather", stacked(), COUNT, (7,), receive=N * COUNT)


def test_an_older_version_has_no_fp8(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NCCL_VERSION", "22304")
    assert NCCL.ncclGetVersion(ctypes.byref(version := ctypes.c_int())) == 0
    assert version.value == 22304
    with pytest.raises(RuntimeError, match="invalid argument"):
        ranks.run("ncclAllReduce", stacked(dtype=np.uint8), COUNT, (10, 0))


def test_registration_wants_its_own_memory(ranks: Ranks) -> None:
    memory, handle, window = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    assert NCCL.ncclMemAlloc(ctypes.byref(memory), ctypes.c_size_t(8192)) == 0
    assert NCCL.ncclCommRegister(ranks.comms[0], memory, ctypes.c_size_t(8192), ctypes.byref(handle)) == 0
    assert NCCL.ncclCommDeregister(ranks.comms[0], handle) == 0
    assert NCCL.ncclCommDeregister(ranks.comms[0], handle) == 4
    assert NCCL.ncclCommWindowRegister(ranks.comms[0], memory, ctypes.c_size_t(8192), ctypes.byref(window), 1) == 0
    assert NCCL.ncclCommWindowDeregister(ranks.comms[0], window) == 0
    other = np.zeros(8192, np.uint8)
    assert (
        NCCL.ncclCommWindowRegister(ranks.comms[0], ctypes.c_void_p(other.ctypes.data), ctypes.c_size_t(64), ctypes.byref(window), 1) == 4
    )
    assert NCCL.ncclMemFree(memory) == 0


def ask_ras(*commands: str) -> str:
    host, port = os.environ["NCCL_RAS_ADDR"].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=5) as client, client.makefile("rw", newline="\n") as talk:
        talk.write("".join(f"{command}\n" for command in commands))
        talk.flush()
        return talk.read()


@pytest.mark.system  # it connects to RAS
def test_ras_names_the_rank_that_lags(own: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NCCL_HANG", "1:1")
    own.call("ncclAllReduce", [(one.ctypes.data, one.ctypes.data, COUNT, 7, 0) for one in stacked()])
    assert eventually(lambda: "2 ranks have launched up to operation 1\n" in ask_ras("VERBOSE STATUS"))
    text = ask_ras("CLIENT PROTOCOL 2", "TIMEOUT 3", "VERBOSE STATUS")
    document = json.loads(ask_ras("SET FORMAT json", "VERBOSE STATUS").partition("\n")[2])
    own.abort()
    assert text.startswith("SERVER PROTOCOL 2\nOK\nNCCL version 2.32.3+FAKE")
    assert f"Rank 1 has not launched any operations -- GPU 1 managed by process {os.getpid()} on node {socket.gethostname()}\n" in text
    launched = [[rank["collective_counts"]["AllReduce"] for rank in each["ranks"]] for each in document["communicators"]]
    assert [1, 0, 1] in launched


def test_the_log_has_lines_as_nccl_writes_them(ranks: Ranks) -> None:
    ranks.run("ncclAllReduce", stacked(), COUNT, (7, 0))
    (file,) = Path(os.environ["NCCL_DEBUG_FILE"]).parent.glob(f"*.{os.getpid()}")
    text = file.read_text()
    assert text.startswith("NCCL version 2.32.3+FAKE\n")
    assert " NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n" in text
    assert " NCCL INFO AllReduce: 4004 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}\n" in text
    assert " nranks 3 cudaDev 2 nvmlDev 2 busId 30000 commId 0x" in text
