"""What disturbed the network while a case was measured: counts by host, flags, and one sentence about stalls."""

from pathlib import Path
from typing import Any

import pytest

from collbench.measuring import counters
from collbench.measuring.disturbances import (
    CaseDisturbed,
    HostNetwork,
    LinkFlapped,
    NetworkCounts,
    PortErrors,
    ProcessPaused,
    SegmentsRetransmitted,
    Stall,
    case_disturbed,
    flags,
    of_host,
    stalls,
)  # fmt: skip
from collbench.measuring.instruments import moved, read
from tests.evidence.hosts import interface

SNMP = """\
Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm OutSegs RetransSegs InErrs
Tcp: 1 {sent} {again} 0
"""
CASE = "allreduce 256 KiB on gloo (float32, sum)"


def host(root: Path, sent: int, again: int, carrier: int, dropped: int) -> None:
    interface(root, tx_bytes=1000, tx_packets=10, rx_dropped=dropped)
    (root / "sys/class/net/eth0/carrier_changes").write_text(f"{carrier}\n")
    (root / "proc/net").mkdir(parents=True, exist_ok=True)
    (root / "proc/net/snmp").write_text(SNMP.format(sent=sent, again=again))


def change(tmp_path: Path, **after: int) -> dict[str, Any]:
    host(tmp_path, **{"sent": 1000, "again": 5, "carrier": 2, "dropped": 1})
    first = read(str(tmp_path))
    host(tmp_path, **{"sent": 1000, "again": 5, "carrier": 2, "dropped": 1, **after})
    return moved(first, read(str(tmp_path)))


def network(host: str = "n1", again: int = 0, sent: int = 0, duplicates: int = 0, recoveries: int = 0, **links: Any) -> HostNetwork:
    return HostNetwork(host, NetworkCounts(again, sent, duplicates, recoveries, **links))


def test_a_link_that_went_down_and_segments_sent_again_are_counted_by_host(tmp_path: Path) -> None:
    quiet = of_host("n1", change(tmp_path / "quiet", sent=9000, again=6))
    assert (quiet.counts.tcp_retransmitted, quiet.counts.tcp_sent, flags([quiet])) == (1, 8000, [])
    found = of_host("n4", change(tmp_path / "flapped", sent=5000, again=75, carrier=4, dropped=9))
    tcp = ("tcp_retransmitted", "tcp_sent", "tcp_duplicates", "tcp_recoveries")
    assert NetworkCounts.entry_of({one.host: one.counts for one in (network(), found)}) == {"network": {
        "n1": dict(zip(tcp, (0, 0, 0, 0), strict=True)),
        "n4": {
            **dict(zip(tcp, (70, 4000, 0, 0), strict=True)), "carrier_changes": {"eth0": 2}, "errors": {"eth0": {"rx_dropped": 8}},
        },
    }}  # fmt: skip
    assert flags([quiet, found]) == ["retransmits", "link_flapped"]
    # flagged from three segments and a thousandth on
    counts = ((2, 100), (3, 100), (3, 4000), (40, 4000))
    assert [network("n1", again, sent).counts.retransmits for again, sent in counts] == [False, True, False, True]


# Counts of one case on one host between two hosts, measured over shaped links: without loss, with queues that overflow, with 1 % of loss.
# Where hosts pass packets of up to 64 KiB to each other, as on one machine, a lost packet is no damage of a cable.
COUNTS = {
    "a host slow to acknowledge": (network("n1", 23, 9275, duplicates=23), []),
    "one large packet": (network("n1", 47, 103161, duplicates=3, recoveries=1), []),
    "a host that stood still": (network("n1", 135, 35240, duplicates=3, recoveries=2), ["retransmits"]),
    "a full queue of 5 ms": (network("n1", 501, 22200, duplicates=15, recoveries=29), ["retransmits"]),
    "a full queue of 5 ms for large packets": (network("n1", 592, 105682, recoveries=10), ["retransmits"]),
    "three hosts send to one": (network("n1", 646, 7489, duplicates=4, recoveries=21), ["retransmits"]),
    "1 % of frames": (network("n1", 132, 12061, duplicates=1, recoveries=96), ["retransmits", "lossy_path"]),
    "1 % of large packets": (network("n1", 1433, 129066, duplicates=1, recoveries=33), ["retransmits"]),
    "1 % of small messages": (network("n1", 13, 822, duplicates=2, recoveries=11), ["retransmits", "lossy_path"]),
}


@pytest.mark.parametrize("case", COUNTS)
def test_loss_is_told_from_full_queues(case: str) -> None:
    found, expected = COUNTS[case]
    assert flags([found]) == expected


@pytest.mark.parametrize(("counters_of_port", "expected"), [
    ({"rx_errors": 3}, ["port_errors"]), ({"rx_dropped": 900}, []), ({"symbol_error": 7}, ["port_errors"]),
])  # fmt: skip
def test_errors_of_a_port_are_flagged_and_drops_are_not(counters_of_port: dict[str, int], expected: list[str]) -> None:
    assert flags([network("n1", errors={"eth0": counters_of_port})]) == expected


def two_rails(root: Path, *, packets: tuple[int, int], errors: tuple[int, int]) -> None:
    """A host with eth0 and eth1, which have sent and received this many packets and counted this many receive errors."""
    for name, sent, damaged in zip(("eth0", "eth1"), packets, errors, strict=True):
        interface(root, name, tx_packets=sent, rx_packets=sent, tx_bytes=1000 * sent, rx_bytes=1000 * sent, rx_errors=damaged)


@pytest.mark.parametrize(("packets", "errors", "ports", "flagged"), [
    ((9000, 4), (0, 12), [PortErrors("n1", "eth1", "rx_errors", 12, used=False)], []),
    ((4, 9000), (12, 0), [PortErrors("n1", "eth0", "rx_errors", 12, used=False)], []),
    ((9000, 9000), (0, 12), [PortErrors("n1", "eth1", "rx_errors", 12, used=True)], ["port_errors"]),
    ((9000, 4), (12, 2), [PortErrors("n1", "eth0", "rx_errors", 12, used=True)], ["port_errors"]), ((9000, 4), (2, 2), [], []),
])  # fmt: skip
def test_errors_of_a_rail_that_the_case_did_not_use_are_named_and_flag_no_row(
    tmp_path: Path, packets: tuple[int, int], errors: tuple[int, int], ports: list[PortErrors], flagged: list[str]
) -> None:
    two_rails(tmp_path, packets=(0, 0), errors=(0, 0))
    before = read(str(tmp_path))
    two_rails(tmp_path, packets=packets, errors=errors)
    found = of_host("n1", moved(before, read(str(tmp_path))))
    assert found.port_errors == ports
    assert flags([found]) == flagged


@pytest.mark.parametrize("text", ["", "Tcp: OutSegs\n", "Tcp: OutSegs RetransSegs\nTcp: 1\n", "Tcp: OutSegs\nTcp: many\n"])
def test_a_kernel_that_does_not_count_gives_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/snmp").write_text(text)
    assert counters.read_tcp(str(tmp_path)) == {}
    assert set(counters.read_tcp()) == {"sent", "retransmitted", "duplicates", "recoveries"}  # the running kernel


def test_a_stall_is_far_longer_than_the_median_also_in_warm_up() -> None:
    samples = [("warm-up", 3.02), ("timed", 0.014), ("timed", 0.25), ("timed", 0.21), ("timed", 0.4)]
    found = stalls(samples, 0.014)
    assert found == [Stall("warm-up", 3.02, 0.014), Stall("timed", 0.4, 0.014)]
    assert Stall.entry_of(found[:1]) == {"stalls": [{"phase": "warm-up", "seconds": 3.02, "median_s": 0.014}]}
    assert Stall.entry_of([]) == {}
    assert [one.seconds for one in stalls(samples, 0.001)] == [3.02, 0.4, 0.25, 0.21]
    assert stalls(samples, 1.0) == []


@pytest.mark.parametrize(("found", "hosts", "paused", "expected"), [
    ([Stall("warm-up", 3.02, 0.014), Stall("timed", 0.4, 0.014)], [network("n1"), network("n4", 7, 900, carrier_changes={"eth0": 2})],
        {"n3": 1.5}, CaseDisturbed(CASE, (LinkFlapped("n4", "eth0", 2), SegmentsRetransmitted("n4", 7, 900), ProcessPaused("n3", 1.5)),
        2, "warm-up", 3.02, 0.014)),
    ([Stall("timed", 0.5, 0.01)], [network("n1")], {}, CaseDisturbed(CASE, (), 1, "timed", 0.5, 0.01)),
    ([], [network("n1", 40, 900)], {}, None),
    ([], [network("n1", 40, 900, carrier_changes={"eth0": 1})], {}, CaseDisturbed(CASE, (LinkFlapped("n1", "eth0", 1),))),
], ids=["with causes", "without a cause", "retransmits alone", "a link alone"])  # fmt: skip
def test_a_stall_is_reported_with_host_and_duration(
    found: list[Stall], hosts: list[HostNetwork], paused: dict[str, float], expected: CaseDisturbed | None
) -> None:
    assert case_disturbed(CASE, found, hosts, paused) == expected
