"""The barrier in shared memory: no rank overtakes in over a thousand rounds; a leader that fails ends all ranks."""

import ctypes
import errno
import os
import socket
import struct
import threading
from types import SimpleNamespace

import pytest

from collbench.addresses import is_own, listen_at
from collbench.control.world import World
from collbench.measuring.sync import host_sync
from collbench.native.library import SHARED_BYTES, BarrierStruct, library
from tests.control.together import Meeting, together

pytestmark = pytest.mark.skipif(library() is None, reason="the native loop was not built")

# Every rank writes how many barriers it has passed into a page of its own; after each barrier the others are at most one apart.
BARRIERS = """
import ctypes, mmap
from pathlib import Path
from collbench.backends.clock import MonotonicClock
from collbench.operations.program import Program, PythonCall
from collbench.measuring.loop import Loop, Timed
from collbench.measuring.sync import host_sync

def main(world):
    shared = world.broadcast("{folder}/counters", "sharing")
    if world.rank == 0:
        Path(shared).write_bytes(bytes(8 * world.size))
    world.allgather(None, "sharing")
    with open(shared, "r+b") as file:
        passed = np.frombuffer(mmap.mmap(file.fileno(), 8 * world.size), np.int64)
    sync = host_sync(world)
    apart = []
    def arrive():
        passed[world.rank] += 1
    def look():
        apart.extend(passed - passed[world.rank])
    barrier = sync.program().slots[0][0]
    loop = Loop(Timed(Program(((PythonCall("arrive", arrive), barrier, PythonCall("look", look), barrier),)), None, MonotonicClock(),
                      ctypes.c_int64()))
    loop.run(ROUNDS)
    native = Loop(Timed(Program(((barrier,),)), None, MonotonicClock(), ctypes.c_int64()))
    native.run(1000)
    sync.close()
    return [int(passed[world.rank]), int(min(apart)), int(max(apart)), native.native]
"""


@pytest.mark.system
@pytest.mark.parametrize(("n", "rounds"), [(2, 1000), (3, 300)])
def test_no_rank_passes_before_all_have_come(tmp_path, n, rounds):
    body = BARRIERS.replace("{folder}", str(tmp_path)).replace("ROUNDS", str(rounds))
    found = together(body, n, Meeting("ipc", tmp_path), timeout_s=40)
    assert [one.code for one in found] == [0] * n, found
    assert [one.said for one in found] == [[rounds, 0, 0, True]] * n


def test_without_a_native_loop_at_some_rank_there_is_no_barrier(tmp_path):
    body = """
from collbench.measuring import sync
def main(world):
    if world.rank == 1:
        sync.library = lambda: None
    return sync.host_sync(world) is None
"""
    found = together(body, 2, Meeting("ipc", tmp_path))
    assert [one.said for one in found] == [True, True], found


def test_the_shared_page_is_gone_from_the_folder_once_all_have_it(tmp_path):
    body = """
from pathlib import Path
from collbench.measuring import sync
sync._FOLDER = Path("{folder}")
def main(world):
    made = sync.host_sync(world)
    world.allgather(None, "looking")
    return sorted(file.name for file in Path("{folder}").glob("collbench-*"))
"""
    found = together(body.replace("{folder}", str(tmp_path)), 2, Meeting("ipc", tmp_path))
    assert [one.said for one in found] == [[], []], found


NOT_SHARED = """
from pathlib import Path
from collbench.errors import RunFailed
from collbench.measuring import sync
def main(world):
    sync._FOLDER = Path("{folder}")
    sync.shortage = lambda: ""
    if world.rank == 1:
        sync._mapped = lambda name, size_bytes: open("{folder}/of another container")
    try:
        sync.shared_page(world, 64)
    except RunFailed as error:
        return str(error)
"""


@pytest.mark.parametrize("folder", [".", "missing"])
def test_hosts_that_share_no_memory_end_all_ranks_with_the_reason(tmp_path, folder):
    ended = together(NOT_SHARED.replace("{folder}", str(tmp_path / folder)), 2, Meeting("ipc", tmp_path))
    reasons = [rank.said for rank in ended]
    assert "No such file or directory" in reasons[0] and reasons[0] == reasons[1]
    assert list((tmp_path / folder).glob("collbench-*")) == []  # once both have ended: rank 0 removes its file


def barrier(shared, leader, ranks=2, to=(), from_=()):
    """One rank's barrier over memory of this process, in thread."""
    sockets = [(ctypes.c_int32 * len(some))(*some) for some in (to, from_)]
    made = BarrierStruct(ctypes.addressof(shared), ranks, leader, True, len(to), *sockets)
    made.keep = sockets
    return made


def wait_for_both(leader, other):
    codes = {}

    def wait(name, one):
        codes[name] = library().collbench_sync(ctypes.byref(one))

    threads = [threading.Thread(target=wait, args=pair) for pair in (("leader", leader), ("other", other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return codes["leader"], codes["other"]


def test_threads_meet_again_and_leaders_exchange_a_byte_each_round():
    shared = ctypes.create_string_buffer(SHARED_BYTES)
    pair = barrier(shared, True), barrier(shared, False)
    assert [wait_for_both(*pair) for _ in range(20)] == [(0, 0)] * 20
    mine, theirs = socket.socketpair()
    shared = ctypes.create_string_buffer(SHARED_BYTES)
    theirs.send(b"\1\1")
    assert library().collbench_sync(ctypes.byref(barrier(shared, True, 1, [mine.fileno()] * 2, [mine.fileno()] * 2))) == 0
    assert theirs.recv(10) == b"\1\1"


def test_a_leader_whose_other_host_is_gone_ends_all_ranks_of_its_host():
    mine, theirs = socket.socketpair()
    shared = ctypes.create_string_buffer(SHARED_BYTES)
    theirs.close()
    leader, other = wait_for_both(barrier(shared, True, 2, [mine.fileno()], [mine.fileno()]), barrier(shared, False))
    assert leader in (errno.EPIPE, errno.ECONNRESET)
    assert other == errno.ECONNRESET
    assert library().collbench_sync(ctypes.byref(barrier(shared, False))) == errno.ECONNRESET  # and every later one


def test_its_errors_are_reported_in_the_systems_words():
    from collbench.launch.info import LaunchInfo

    world = World(LaunchInfo("local", 0, 1, 0, 1, "ipc://", "alone"), 5.0)
    sync = host_sync(world)
    assert sync.program().explain(errno.ECONNRESET) == os.strerror(errno.ECONNRESET) == "Connection reset by peer"
    sync.close()
    world.close()


def is_closed(connection):
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_host_connects_to_one_that_is_twice_as_far_each_round_and_accepts_one_with_its_key_for_each(address):
    """Five hosts with two ranks each, so three rounds. Here is host 3, which connects to the hosts 4, 0 and 2."""
    if not is_own(address):
        pytest.skip(f"{address} is not an address of this machine")
    greeting = struct.Struct("!16sI")  # key, round
    listeners = [listen_at(address) for _ in range(5)]
    connections = []

    def exchange(mine, what):
        if what == "sharing memory":
            return [mine]
        *place, key = mine
        socket.create_connection(place, 5).close()
        own = bytes.fromhex(key)
        for sent, number in ((bytes(16), 0), (own, 7), (own, 0), (own, 0), (own, 2), (own, 1)):
            connections.append(socket.create_connection(place, 5))
            connections[-1].sendall(greeting.pack(sent, number))
        return [None if rank % 2 else (*listeners[rank // 2].getsockname()[:2], f"{rank:032x}") for rank in range(10)]

    members = [SimpleNamespace(rank=rank, host=rank // 2, address=address) for rank in range(10)]
    world = SimpleNamespace(
        rank=6, me=members[6], hosts=tuple(range(5)), timeout_s=5.0, allgather=exchange, first_error=lambda mine, what: mine,
        on_host=lambda host=3: members[2 * host : 2 * host + 2], cores_on=lambda: 2,
    )  # fmt: skip
    sync = host_sync(world)
    for number, host in enumerate((4, 0, 2)):
        with listeners[host].accept()[0] as outgoing:
            assert outgoing.recv(100) == greeting.pack((2 * host).to_bytes(16), number)
    assert [is_closed(each) for each in connections] == [True, True, False, True, False, False]
    sync.close()
    for each in (*connections, *listeners):
        each.close()
