"""TCP_INFO of connections, from recorded values and from a real one."""

import os
import socket
import struct
import sys
import time

import pytest

from collbench.addresses import listen_at
from collbench.control.path import ConnectionMonitor, PathReport, Probe, ProbeResult, TcpInfo, reports, tcp_info

# Offsets in bytes of struct tcp_info, include/uapi/linux/tcp.h.
OFFSETS = {
    "state": (0, "B"), "retransmits": (2, "B"), "snd_mss": (16, "I"), "unacked": (24, "I"),
    "last_received_ms": (52, "I"), "pmtu": (60, "I"), "retransmitted": (100, "I"), "acked_bytes": (120, "Q"), "sent": (156, "I"),
    "out_of_order": (224, "I"), "duplicates": (216, "I"),
}  # fmt: skip


def recorded(size=240, **values):
    data = bytearray(size)
    for name, value in values.items():
        offset, form = OFFSETS[name]
        struct.pack_into(f"={form}", data, offset, value)
    return bytes(data)


def test_every_field_is_read_from_its_place_and_an_older_kernel_returns_less():
    values = {name: number for number, name in enumerate(OFFSETS, 1)}
    assert TcpInfo.parse(recorded(**values)) == TcpInfo(**values)
    assert TcpInfo.parse(recorded(**{"state": 1, "unacked": 3})[:104]) == TcpInfo(state=1, unacked=3)


@pytest.mark.parametrize(("info", "stalled", "lossy"), [
    (TcpInfo(unacked=3, retransmits=4), True, False), (TcpInfo(unacked=3, retransmits=1), False, False),
    (TcpInfo(unacked=0, retransmits=4), False, False), (TcpInfo(unacked=90, sent=99), False, False),
    (TcpInfo(retransmitted=1), False, True), (TcpInfo(out_of_order=1), False, True),
])  # fmt: skip
def test_a_connection_is_stalled_by_repeated_timeouts_and_lossy_by_packets_sent_again_or_out_of_order(info, stalled, lossy):
    assert (info.stalled, info.lossy) == (stalled, lossy)


RECEIVE = """
import socket, sys
from collbench.control.path import tcp_info
server = socket.create_server(("", 29541))
print("ready", flush=True)
one, _ = server.accept()
while one.recv(65536):
    last = tcp_info(one.fileno()) or last
print(last.out_of_order)
"""


@pytest.mark.hosts
def test_the_receiver_counts_packets_that_came_while_one_was_missing(hosts):
    bed = hosts(2, "1gbit")
    receiver = bed.start(1, [sys.executable, "-P", "-c", RECEIVE])
    assert receiver.stdout and receiver.stdout.readline() == "ready\n"
    lose = "iptables -w -A INPUT -m statistic --mode nth --every 13 --packet 12 -j DROP"  # a random loss may spare all of some 40 packets
    bed.must("ip", "netns", "exec", bed.names[1], *lose.split())
    send = f"import socket; one = socket.create_connection(('{bed.addresses[1]}', 29541)); one.sendall(bytes(2 << 20)); one.close()"
    assert bed.run(0, [sys.executable, "-P", "-c", send], 60).returncode == 0
    assert int(receiver.communicate(timeout=60)[0]) > 0


ANSWER = "import socket; one, _ = socket.create_server(('', 29541)).accept(); print('ready', flush=True)\nwhile one.recv(64): pass"
SEND = """
import socket, sys, time
from collbench.control.path import tcp_info
for _ in range(100):
    try:
        one = socket.create_connection((sys.argv[1], 29541))
        break
    except OSError:
        time.sleep(0.1)
for _ in range(10):
    one.sendall(bytes(64))
    time.sleep(0.35)  # longer than a retransmission waits
time.sleep(1)
last = tcp_info(one.fileno())
print(last.retransmitted, last.duplicates)
"""


@pytest.mark.hosts
@pytest.mark.long
def test_lost_acknowledgements_are_not_taken_for_lost_packets(hosts):
    bed = hosts(2, "1gbit")
    receiver = bed.start(1, [sys.executable, "-P", "-c", ANSWER])
    sender = bed.start(0, [sys.executable, "-P", "-c", SEND, bed.addresses[1]])
    assert receiver.stdout and receiver.stdout.readline() == "ready\n"
    lose = "iptables -w -A OUTPUT -p tcp -m statistic --mode nth --every 2 --packet 1 -j DROP"
    bed.must("ip", "netns", "exec", bed.names[1], *lose.split())
    retransmitted, duplicates = map(int, sender.communicate(timeout=60)[0].split())
    assert retransmitted >= 3 and retransmitted - duplicates < 3
    receiver.kill()


def test_reports_sum_what_happened_since_by_address():
    before = {"socket:[1]": ("10.0.0.2", TcpInfo(retransmitted=5, sent=100)), "socket:[2]": ("10.0.0.2", TcpInfo(sent=7))}
    now = {
        "socket:[1]": ("10.0.0.2", TcpInfo(retransmitted=9, sent=120, unacked=2, retransmits=4, pmtu=1500, last_received_ms=900)),
        "socket:[2]": ("10.0.0.2", TcpInfo(sent=8, pmtu=1500, last_received_ms=30)),
        "socket:[3]": ("10.0.0.3", TcpInfo(retransmitted=4, duplicates=3, sent=4, pmtu=9000, last_received_ms=5)),
    }
    assert reports(now, before) == [PathReport("10.0.0.2", 1, 4, 1500, 4, 21, 30), PathReport("10.0.0.3", 0, 0, 9000, 1, 4, 5)]


def test_what_is_not_a_tcp_connection_has_no_facts_and_stays_open():
    one, other = socket.socketpair()
    read, write = os.pipe()
    with one, other:
        assert tcp_info(one.fileno()) is None and tcp_info(read) is None and tcp_info(-1) is None
        one.send(b"x")
        assert other.recv(1) == b"x"
    os.close(read)
    os.close(write)


def test_a_monitor_takes_the_reading_of_the_moment_when_nothing_moved_any_more():
    monitor = ConnectionMonitor()
    monitor.note(0.0, 10.0)
    monitor.note(1.5, 11.0)
    assert monitor.reports() == []  # connections within this host do not count


def result_of(probe):
    end = time.monotonic() + 10
    while (found := probe.step()) is None:
        assert time.monotonic() < end
        time.sleep(0.005)
    return found


def test_a_kernel_that_listens_acknowledges_probes_that_no_process_reads():
    with listen_at("127.0.0.1", backlog=64) as server:
        assert result_of(Probe("127.0.0.1", server.getsockname()[1])).limit is None
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    found = result_of(Probe("127.0.0.1", port))  # where no socket listens nothing is concluded
    assert not found.connected and found.limit is None


@pytest.mark.parametrize(("passed", "failed", "limit"), [
    ((576, 1000), (1200, 1500, 1500), 1000),
    ((576, 1000), (1500,), None),  # one may be lost by chance
    ((576, 1400), (1200, 1500), None),  # a larger one passes
    ((), (576, 1500), None), ((576, 1500), (), None),
])  # fmt: skip
def test_a_limit_needs_two_sizes_that_fail_above_all_that_pass(passed, failed, limit):
    assert ProbeResult(passed, failed).limit == limit
