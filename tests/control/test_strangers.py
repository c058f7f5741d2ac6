"""Foreign connections are limited, rejected and reported, and the launch continues with its own ranks."""

import os
import random
import socket
import threading
import time
from contextlib import suppress
from itertools import count, takewhile
from pathlib import Path

import pytest
import zmq

from collbench.control.members import Member
from collbench.control.security import ConnectionsRefused, Keys, Secret, UnknownConnections, closing, is_remote
from collbench.control.tree import restarted
from collbench.control.wire import PIECE_BYTES, Hello, frames
from collbench.errors import PeerFailed, UsageError, WaitExpired
from tests.cli.command import until
from tests.control.ends_here import about, collected, launch
from tests.control.proxy import Proxy

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"CURVE".ljust(20, b"\0") + b"\0" + bytes(31)  # rfc.zeromq.org/spec/37


@pytest.fixture
def here():
    with launch() as found:
        yield found


def knock(here, *said, stay=False, patience_s=5):
    """Send data to rank 0's port, as any program can; returns the answer until it closes (or, unless `stay`, until this end closes)."""
    with socket.create_connection(("127.0.0.1", here.port), timeout=patience_s) as stranger:
        answer = b""
        with suppress(OSError):  # closed in the middle of it
            for one in said:
                stranger.sendall(one)
            if not stay:
                stranger.shutdown(socket.SHUT_WR)
            while piece := stranger.recv(65536):
                answer += piece
        return answer


def without_curve(here):
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.linger = 0
    monitor = stranger.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    stranger.connect(f"tcp://127.0.0.1:{here.port}")
    stranger.send_multipart(frames(Hello(about(1))))
    assert monitor.poll(5000)
    context.destroy(linger=0)


def another_secret(here):
    stranger = here.spoke(1, Secret(b"x" * 32, "/x/secret"))
    with pytest.raises(WaitExpired, match=r"was refused .*/x/secret"):
        stranger.join(about(1), 0.5)


def another_key(here):
    """A client that knows the coordinator's public key and does not belong to the launch."""
    context, ours = zmq.Context(), Keys.of(here.secret)
    stranger = context.socket(zmq.DEALER)
    Keys(ours.listener, Keys.of(Secret(b"y" * 32, "")).caller).secure_caller(stranger)
    monitor = stranger.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_DISCONNECTED)
    stranger.connect(f"tcp://127.0.0.1:{here.port}")
    assert monitor.poll(5000)
    context.destroy(linger=0)


STRANGERS = {
    "a browser": lambda here: knock(here, b"GET / HTTP/1.1\r\nHost: rank0\r\n\r\n"),
    "a flood of garbage": lambda here: [knock(here, random.Random(seed).randbytes(200_000)) for seed in range(20)],
    "a greeting that stops": lambda here: knock(here, GREETING[:11]),
    "a greeting of another mechanism": lambda here: knock(here, GREETING.replace(b"CURVE", b"PLAIN")),
    "a handshake that is garbage": lambda here: knock(here, GREETING, b"\x04\xff" + random.Random(1).randbytes(255)),
    "ZeroMQ without a key": without_curve, "another secret": another_secret, "another key": another_key,
}  # fmt: skip


@pytest.mark.parametrize("stranger", STRANGERS.values(), ids=STRANGERS)
def test_a_foreign_connection_is_refused_and_reported(stranger, here):
    hub = here.hub()
    stranger(here)
    until(hub.remarks, "a remark about the foreign connection")
    assert here.join(hub, here.spoke(1)) == {1: about(1)}
    (actual,) = hub.remarks()
    assert isinstance(actual, ConnectionsRefused)
    assert hub.coordinator.down.unknown.count >= 1
    assert set(hub.coordinator.down.unknown.addresses) <= {"127.0.0.1"}


def test_the_address_of_a_client_that_knows_the_protocol_is_reported(here):
    hub = here.hub()
    with socket.create_connection(("127.0.0.1", here.port), timeout=5) as stranger:  # open: the kernel lists it until both ends are closed
        for one in (GREETING, b"\x04\x06\x05HELLO"):
            stranger.sendall(one)
            stranger.recv(65536)
        until(hub.remarks, "a remark about the foreign connection")
    (refused,) = hub.remarks()
    assert isinstance(refused, ConnectionsRefused) and refused.addresses == ("127.0.0.1",)


def test_a_frame_longer_than_any_of_ours_closes_the_connection_before_it_is_kept(here):
    here.hub()
    actual = (PIECE_BYTES * 2).to_bytes(8, "big")
    assert len(knock(here, GREETING, b"\x06" + actual, b"\x05HELLO", stay=True)) <= len(GREETING)  # its greeting at most, then it closes


def test_a_recorded_conversation_is_refused_when_it_comes_again(here):
    hub = here.hub()
    with Proxy(here.port) as proxy:
        spoke = here.spoke(1, port=proxy.port)
        here.join(hub, spoke)
        spoke.send(1, "asking", "the message")
        assert collected(hub, 1) == {1: ("the message", [])}
        recorded = proxy.recorded
        assert not hub.remarks()
        knock(here, recorded)
        until(hub.remarks, "a sentence about the replay")
        assert hub.coordinator.inbox.empty()
        assert hub.coordinator.still_there() == [1]  # and no second rank has joined
    for secret in (here.secret.key, *(key for pair in (Keys.of(here.secret).listener, Keys.of(here.secret).caller) for key in pair)):
        assert secret not in recorded
    assert b"the message" not in recorded and b"node1" not in recorded


def test_a_second_launch_at_the_same_port_is_refused_on_both_sides(here):
    hub = here.hub()
    with launch() as second:
        second.port = here.port
        with pytest.raises(UsageError, match=rf"port {here.port} is in use .*set MASTER_PORT"):
            second.hub()
        with pytest.raises(WaitExpired, match=r"rank 1 was refused .*MASTER_PORT"):
            second.spoke(1).join(about(1), 0.5)
    until(hub.remarks, "a sentence about the second launch")
    assert isinstance(hub.remarks()[0], ConnectionsRefused)
    assert here.join(hub, here.spoke(1)) == {1: about(1)}


def test_a_process_that_claims_the_rank_of_another_is_rejected_and_ends_alone(here):
    hub, spoke = here.hub(), here.spoke(1)
    here.join(hub, spoke)
    again = here.spoke(1, end_process=lambda *_: None)
    with pytest.raises(PeerFailed, match=r"rank 1 was started again \(node9, pid 9\)"):
        again.join(Member(1, "node9", 0, 9, ()), 5)
    assert hub.remarks() == [restarted(Member(1, "node9", 0, 9, ()))]
    spoke.send(1, "asking", "still here")
    assert collected(hub, 1) == {1: ("still here", [])}


def test_a_place_that_is_taken_on_this_host_reports_it():
    with launch(n=2, each=2) as here:
        here.hub()
        with pytest.raises(UsageError, match="MASTER_PORT"):
            here.hub()


def test_a_flood_makes_the_port_deaf_once_all_ranks_have_joined(here, monkeypatch):
    monkeypatch.setattr("collbench.control.security._FLOOD", 3)
    hub, spoke = here.hub(), here.spoke(1)
    for _ in range(6):
        knock(here, b"noise")
    here.join(hub, spoke)  # a flood does not keep the launch's own ranks out
    with pytest.raises(TimeoutError):
        for _ in range(100):
            socket.create_connection(("127.0.0.1", here.port), timeout=0.5).close()
            time.sleep(0.01)
    (refused,) = hub.remarks()
    assert isinstance(refused, ConnectionsRefused) and refused.closed
    spoke.send(1, "asking", "still here")
    assert collected(hub, 1) == {1: ("still here", [])}


def test_many_foreign_connections_are_counted_and_few_addresses_kept():
    rejected = UnknownConnections()
    assert rejected.fact() is None
    for number in range(1000):
        rejected.note(f"10.0.{number // 250}.{number % 250}")
    assert (rejected.count, len(rejected.addresses)) == (1000, 64)
    found = rejected.fact()
    assert found and (found.count, found.addresses[:2], len(found.addresses)) == (1000, ("10.0.0.0", "10.0.0.1"), 64)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_whose_connection_was_just_closed_is_seen_in_the_kernels_table(family):
    address, caller = ("127.0.0.1", f"127.0.7.{random.randint(1, 254)}") if family == socket.AF_INET else ("::1", "::1")
    with socket.create_server((address, 0), family=family) as listening:
        port = listening.getsockname()[1]
        assert caller not in closing(port)
        with socket.create_connection((address, port), source_address=(caller, 0)):
            listening.accept()[0].close()  # it closes first, as a rejecting server does
            until(lambda: caller in closing(port), "the connection's end", 10)


@pytest.mark.often
@pytest.mark.long
def test_a_flood_does_not_take_memory_and_rank_0_works_meanwhile(here):
    hub, spoke = here.hub(), here.spoke(1)
    here.join(hub, spoke)
    before, end = resident(), time.monotonic() + 1.0

    def flood():
        for _ in takewhile(lambda turn: turn < 2 or time.monotonic() < end, count()):
            with suppress(OSError):
                knock(here, GREETING, b"\x06" + PIECE_BYTES.to_bytes(8, "big"), os.urandom(PIECE_BYTES - 1), patience_s=1)

    threads = [threading.Thread(target=flood) for _ in range(8)]
    for thread in threads:
        thread.start()
    for step in range(1, 20):
        spoke.send(step, "asking", step)
        hub.collect(step, "asking", 10, lambda rank, value, _: None)
    for thread in threads:
        thread.join()
    assert hub.coordinator.down.unknown.count > 8
    assert resident() - before < 64 << 20


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.parametrize(("address", "remote"), [("10.0.0.1", True), ("fe80::1%eth0", True), (None, False), ("", False), ("socket", False)])
def test_an_ip_address_is_remote(address, remote):
    assert is_remote(address) is remote
