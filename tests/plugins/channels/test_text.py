"""What probe --measure prints: "x of y (z %)" or n/a and why, one row a channel, and the same as JSON."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.plugins.channels.records import Channel, channels_text, frame, interval, name, rate
from collbench.report.frame import table_lines
from collbench.results.flags import explain

NIC = Channel("tcp_1", "node1", "node2", 1.1e9, 1.09e9, 1.12e9, 1.177e9, "NIC eth0 10 Gb/s, TCP (sysfs)")
GPU = Channel("h2d", "node1/numa0", "node1/gpu3", 25.2e9, 25.1e9, 25.4e9, 31.5e9, "PCIe Gen4 x16 (sysfs)")
MEMORY = Channel("host_memory", "node1/numa1", "node1/numa1", 88e9, limited_by="memory copy by 32 CPUs", flags=("no_interval",))
NONE = Channel("gpu_peer", "node1", "node1", na="CUDA shows one GPU here")
WRONG = Channel("tcp_8", "node1", "node2", na="WRONG: byte 7 of a TCP stream is not the one that was sent", flags=("wrong_data",))


def printed(*channels: Channel, format: str = "table") -> str:
    stream = io.StringIO()
    channels_text(channels, format, stream)
    return stream.getvalue()


def test_pages_of_one_and_of_several_hosts() -> None:
    assert printed(MEMORY, GPU, NONE).splitlines() == [
        "channel            from   to                    GB/s  95 % interval  limited by",
        "host memory, copy  numa1  numa1                 88.0              –  memory copy by 32 CPUs · no interval",
        "host to GPU        numa0  gpu3   25.2 of 31.5 (80 %)      25.1–25.4  PCIe Gen4 x16 (sysfs)",
        "GPU to GPU         node1  node1  n/a (CUDA shows one GPU here)",
        "GB/s: 1e9 bytes per second in one direction; medians of one launch, and intervals of the median",
        *explain(["no_interval"]),
    ]
    lines = [line.text for line in table_lines(frame([GPU, NIC]))]
    assert lines[1].startswith("host to GPU    node1 numa0  node1 gpu3  ")
    assert lines[2].startswith("TCP, 1 stream  node1        node2       1.10 of 1.18 (93 %)      1.09–1.12  NIC eth0")


def test_wrong_and_doubtful_figures_are_marked() -> None:
    line = list(table_lines(frame([WRONG])))[1]
    assert line.style == "wrong" and "  WRONG: byte 7 " in line.text
    above = NIC.replace(bytes_per_s=1.5e9, flags=("above_bound",))
    assert (rate(above), above.percent) == ("1.50 of 1.18", None)
    assert list(table_lines(frame([above])))[1].style == "doubtful"
    assert interval(NIC.replace(flags=("drift",))) == "? 1.09–1.12"
    assert interval(NONE) == "–"
    assert [name(NIC.replace(channel=word)) for word in ("tcp_8", "h2d_d2h", "nic_gpu_memory_gdr_off")] == [
        "TCP, 8 streams", "host and GPU, both ways", "NIC from GPU memory, GPUDirect RDMA off",
    ]  # fmt: skip
    assert "\x1b" not in printed(NONE.replace(na="\x1b[2J"))


def test_json_and_tables_of_external_tools_have_the_documented_shape() -> None:
    document = json.loads(printed(NIC, NONE, format="json"))
    assert document["schema"] == 1
    measured, none = document["channels"]
    assert measured == {
        "channel": "tcp_1", "from": "node1", "to": "node2", "bytes_per_s": 1.1e9, "ci_low": 1.09e9, "ci_high": 1.12e9,
        "of_bytes_per_s": 1.177e9, "percent": pytest.approx(93.46, abs=0.01), "limited_by": "NIC eth0 10 Gb/s, TCP (sysfs)", "na": None,
        "flags": [],
    }  # fmt: skip
    assert none["na"] == "CUDA shows one GPU here"
    assert {none[key] for key in ("bytes_per_s", "ci_low", "ci_high", "of_bytes_per_s", "percent", "limited_by")} == {None}
    assert json.loads(printed(NIC.replace(of_bytes_per_s=float("inf")), format="json"))["channels"][0]["of_bytes_per_s"] is None
    with pytest.raises(UsageError, match=r"--format 'csv': .*table, json"):
        printed(NIC, format="csv")
    theirs = NIC.replace(
        channel="iperf3", ci_low=None, ci_high=None, flags=("their_tool",), tool={"size_bytes": 8, "tool": {"version": "3.12"}}
    )
    assert json.loads(printed(theirs, format="json"))["channels"][0]["tool"] == {"size_bytes": 8, "tool": {"version": "3.12"}}
    assert printed(theirs).splitlines()[1].startswith("TCP, 1 stream (iperf3)  node1  node2  1.10 of 1.18 (93 %)              –  NIC eth0")


@given(st.integers(40, 200))
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(len(line.text) for line in table_lines(frame([MEMORY, GPU, NIC, NONE, WRONG]), width)) <= width
