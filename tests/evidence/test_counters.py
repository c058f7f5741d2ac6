"""Counters of a host at two moments: what grew, what is unknown, and which ranks' bytes leave the host."""

import mmap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.measuring import counters
from collbench.measuring.instruments import Counters, grown, moved, read
from tests.evidence.hosts import interface, port

NOTHING = {"interfaces": {}, "ports": {}, "gpus": {}, "leaving": [], "tcp": {}, "came_or_went": [], "silent": [], "idle": [], "states": {},
           "pinned_bytes": None}  # fmt: skip


def between(tmp_path, before, after):
    before(tmp_path)
    first = read(str(tmp_path))
    after(tmp_path)
    return moved(first, read(str(tmp_path)))


def two_ports(root, sent):
    port(root, "mlx5_0/1", port_xmit_data=100, port_rcv_data=1)
    port(root, "mlx5_1/1", port_xmit_data=sent, port_rcv_data=1)


def down_and_silent(root):
    port(root, "mlx5_1/1", state="1: DOWN", port_xmit_data=1)
    port(root, "irdma0/1", hw={"rx_drops": 1})


# What writes the trees before and after, and what moved.
MOVED = {
    "an interface shows what grew and only that": (lambda root: interface(root, tx_bytes=1000, rx_bytes=500, tx_packets=10, rx_packets=5,
        tx_errors=3, rx_dropped=1),
        lambda root: interface(root, tx_bytes=9000, rx_bytes=500, tx_packets=14, rx_packets=5, tx_errors=3, rx_dropped=2),
        {**NOTHING, "interfaces": {"eth0": {"tx_bytes": 8000, "tx_packets": 4, "rx_dropped": 1}}, "leaving": ["eth0"]}),
    "a counter that went back is unknown": (lambda root: interface(root, tx_bytes=2**32 - 5), lambda root: interface(root, tx_bytes=100),
        {"interfaces": {"eth0": {"tx_bytes": None}}}),
    "an interface that comes meanwhile is reported and not counted": (lambda root: interface(root, tx_bytes=1),
        lambda root: interface(root, "eth1", tx_bytes=10**9), {"interfaces": {}, "came_or_went": ["eth1"], "leaving": ["eth0"]}),
    "InfiniBand counts in words of four bytes": (lambda root: port(root, port_xmit_data=100, port_rcv_data=0, port_xmit_packets=1,
        port_xmit_wait=5, symbol_error=0),
        lambda root: port(root, port_xmit_data=350, port_rcv_data=25, port_xmit_packets=3, port_xmit_wait=9, symbol_error=2,
        hw={"out_of_sequence": 0}),
        {"ports": {"mlx5_0/1": {"tx_bytes": 1000, "rx_bytes": 100, "tx_packets": 2, "port_xmit_wait": 4, "symbol_error": 2}}}),
    "rxe has packets of its own": (lambda root: port(root, "rxe0/1", hw={"sent_pkts": 7, "rcvd_pkts": 7, "link_speed": 3}),
        lambda root: port(root, "rxe0/1", hw={"sent_pkts": 263, "rcvd_pkts": 263, "link_speed": 3}),
        {"ports": {"rxe0/1": {"sent_pkts": 256, "rcvd_pkts": 256}}, "silent": [], "idle": []}),
    "a port that counts bytes and sent none is idle": (lambda root: two_ports(root, 100), lambda root: two_ports(root, 101),
        {"idle": ["mlx5_0/1"], "ports": {"mlx5_1/1": {"tx_bytes": 4}}}),
    "a counter of 32 bits at its maximum is unknown": (lambda root: port(root, port_xmit_data=2**32 - 9, port_rcv_data=1),
        lambda root: port(root, port_xmit_data=2**32 - 1), {"ports": {"mlx5_0/1": {"tx_bytes": None}}, "silent": ["mlx5_0/1"]}),
    "a port that is down is not read and one without bytes is silent": (down_and_silent, down_and_silent,
        {"ports": {}, "silent": ["irdma0/1"]}),
    "a network without counters here is silent": (lambda root: (root / "sys/class/cxi/cxi0").mkdir(parents=True), lambda root: None,
        {"silent": ["cxi0"]}),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "expected"), MOVED.values(), ids=MOVED)
def test_what_moved(tmp_path, before, after, expected):
    found = between(tmp_path, before, after)
    assert {name: found[name] for name in expected} == expected


def test_pages_that_the_kernel_pinned_are_bytes(tmp_path):
    """It pins another process's pages while it copies from them."""
    file = tmp_path / "proc/vmstat"
    file.parent.mkdir()

    def pinned(count):
        return lambda root: file.write_text(f"nr_free_pages 5\nnr_foll_pin_acquired {count}\nnr_foll_pin_released {count}\n")

    assert between(tmp_path, pinned(100), pinned(4196))["pinned_bytes"] == 4096 * mmap.PAGESIZE
    assert between(tmp_path, pinned(100), lambda root: file.write_text("nr_free_pages 5\n"))["pinned_bytes"] is None


@pytest.mark.parametrize(("name", "beside", "kind", "leaves"), [
    ("eth0", ("device",), "1", True), ("eth0", (), "1", True),  # a card; a container's end of a veth
    ("lo", (), "772", False), ("bond0", ("lower_eth0",), "1", False), ("docker0", ("lower_veth1",), "1", False),
    ("veth1", ("master",), "1", False),  # the host's end of a container's link
    ("eth0", ("device", "master"), "1", True),  # a card in a bond: its bytes leave, the bond repeats them
    ("ib0", ("device",), "32", False),  # IP over InfiniBand: the port counts it
])  # fmt: skip
def test_bytes_that_leave_the_host_are_counted_once(tmp_path, name, beside, kind, leaves):
    interface(tmp_path, name, *beside, type=kind, tx_bytes=1)
    found = read(str(tmp_path))
    assert list(found.interfaces) == [name]
    assert found.leaving == (frozenset({name}) if leaves else frozenset())


def test_a_host_without_these_files_reports_nothing_and_this_one_a_loopback(tmp_path):
    assert read(str(tmp_path)) == Counters() and moved(Counters(), Counters()) == NOTHING
    assert {"tx_bytes", "rx_bytes", "tx_packets", "rx_packets"} <= set(read().interfaces["lo"])
    for name, counted in counters.read()[0].items():  # the same is read here either way
        assert set(counted) - {"carrier_changes"} == set(counters.NAMES), name


@pytest.mark.parametrize(("counts", "payload"), [
    ({"tx_bytes": 83972520, "tx_packets": 1298}, 83972520 - 66 * 1298), ({}, 0), ({"tx_bytes": 60, "tx_packets": 1}, 0),
    ({"tx_bytes": None, "tx_packets": 1}, None), ({"tx_bytes": 100, "tx_packets": None}, None), ({"rx_bytes": 100}, 0),
])  # fmt: skip
def test_payload_is_what_the_headers_leave(counts, payload):
    assert counters.payload(counts, "tx") == payload


COUNTS = st.dictionaries(st.sampled_from(["tx_bytes", "rx_bytes", "tx_packets"]), st.integers(0, 2**64), max_size=3)
PLACES = st.dictionaries(st.sampled_from(["eth0", "eth1", "lo"]), COUNTS, max_size=3)


@settings(max_examples=100, deadline=None)
@given(PLACES, PLACES)
def test_a_change_is_never_negative_and_never_made_up(before, after):
    for place, changes in grown(before, after).items():
        for name, change in changes.items():
            then, now = before[place][name], after[place].get(name)
            assert change == (now - then if now is not None and now > then else None)
            assert change != 0


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=80))
def test_no_content_of_a_file_is_an_error(tmp_path_factory, content):
    root = tmp_path_factory.mktemp("sys")
    interface(root, tx_bytes=1)
    (root / "sys/class/net/eth0/statistics/rx_bytes").write_bytes(content)
    counts = read(str(root)).interfaces["eth0"]
    assert counts["tx_bytes"] == 1 and counts.get("rx_bytes", 0) >= 0


HEAD = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
"""
ROWS = "  eth0: 1000  10    1    2    0     0          0         0 2000      20    3    4    0     0       0          0\n"
KNOWN = {
    "rx_bytes": 1000, "rx_packets": 10, "rx_errors": 1, "rx_dropped": 2,
    "tx_bytes": 2000, "tx_packets": 20, "tx_errors": 3, "tx_dropped": 4,
}  # fmt: skip


def machine(root: Path, table: str | bytes | None, *names: str) -> str:
    """Return a copied /sys with these interfaces, each with 7 bytes sent, and a table."""
    for name in names:
        interface(root, name, tx_bytes=7)
    if table is not None:
        (root / "proc/net").mkdir(parents=True)
        (root / "proc/net/dev").write_bytes(table if isinstance(table, bytes) else table.encode())
    return str(root)


def test_the_columns_have_their_names(tmp_path: Path) -> None:
    assert counters.read(machine(tmp_path, HEAD + ROWS, "eth0")) == ({"eth0": KNOWN}, frozenset({"eth0"}))


@pytest.mark.parametrize("table", [
    None, HEAD, HEAD + "eth0: 1 2 3\n", HEAD + "eth0: a b c d e f g h i j k l m n o p\n", HEAD + "eth0:1: " + "1 " * 16,
    HEAD + "eth0: " + "1" * 5000 + " 1" * 15,
])  # fmt: skip
def test_an_interface_that_the_table_lacks_is_read_from_its_own_files(tmp_path: Path, table: str | None) -> None:
    assert counters.read(machine(tmp_path, table, "eth0"))[0] == {"eth0": {"tx_bytes": 7}}


@given(st.binary(max_size=400))
def test_no_content_of_the_table_is_an_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    root = machine(tmp_path_factory.mktemp("machine"), content, "eth0")
    assert set(counters.read(root)[0]) == {"eth0"}


def test_a_job_inside_a_host_reads_what_concerns_it_and_not_the_network(tmp_path: Path) -> None:
    root = machine(tmp_path, HEAD + ROWS, "eth0")
    (tmp_path / "sys/class/net/eth0/carrier_changes").write_text("3\n")
    (tmp_path / "proc/net/snmp").write_text("Tcp: OutSegs RetransSegs\nTcp: 5 1\n")
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 1\nnr_foll_pin_acquired 2\nnr_foll_pin_released 1\n")
    across, inside = (read(root, inside=is_inside) for is_inside in (False, True))
    assert across.leaving == {"eth0"} and across.tcp == {"sent": 5, "retransmitted": 1}
    assert (inside.leaving, inside.tcp, inside.pinned_bytes) == (set(), {}, 2 * mmap.PAGESIZE)
    assert (inside.interfaces, across.interfaces) == ({"eth0": KNOWN}, {"eth0": {**KNOWN, "carrier_changes": 3}})
