"""The wire tools: their command lines, what they really printed read, and any other text refused in a sentence.

`printed/` holds what iperf3 3.12, fi_pingpong of libfabric 1.17 and ucx_perftest of UCX 1.13 printed between two processes of one host
(its name and kernel replaced), and ib_write_bw of perftest 6.06 in the virtual machine with software RDMA.
"""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import RunFailed, UsageError
from collbench.measuring.probing import together_or_alone
from collbench.plugins.channels import wire_tools
from collbench.plugins.channels.wire_tools import BANDWIDTH, LATENCY, WIRE_TOOLS, ToolRequest, between_devices, why_not

PRINTED = Path(__file__).parent / "printed"
MIB = 1 << 20
REAL = [
    ("iperf3", "iperf3.json", ToolRequest(BANDWIDTH, MIB), MIB * 1.000821 / 2903244800, "mean over 1.00 s of what arrived (sum_received)"),
    ("fi_pingpong", "fi_pingpong.txt", ToolRequest(LATENCY, 8), 11.61e-6, "mean of half the round trip over 2000 (usec/xfer)"),
    ("fi_pingpong", "fi_pingpong-1m.txt", ToolRequest(LATENCY, MIB), 11356e-6, "mean of half the round trip over 16 (usec/xfer)"),
    ("ucx_perftest", "ucx_perftest-latency.txt", ToolRequest(LATENCY, 8), 0.61e-6, "median of half the round trip over 2000 (50.0 %ile)"),
    ("ucx_perftest", "ucx_perftest-bandwidth.txt", ToolRequest(BANDWIDTH, MIB), 834.969e-6, "mean over 256 messages (overall), after 25"),
    ("ib_write_bw", "ib_write_bw.txt", ToolRequest(BANDWIDTH, 4096), 4096 * 8 / 0.30e9, "mean over 5000 writes (BW average)"),
]
EVERY = [(name, operation) for name, tool in WIRE_TOOLS.items() for operation in tool.operations]


def printed(name: str) -> str:
    return (PRINTED / name).read_text()


@pytest.mark.parametrize(("name", "file", "ask", "seconds", "statistic"), REAL, ids=[each[1] for each in REAL])
def test_what_they_really_printed(name: str, file: str, ask: ToolRequest, seconds: float, statistic: str) -> None:
    found = WIRE_TOOLS[name].parse(ask, printed(file))
    assert found.time_s == pytest.approx(seconds) and found.statistic.startswith(statistic)
    assert found.sent_bytes >= ask.size_bytes


def test_what_iperf3_and_perftest_report_besides_and_output_with_too_much_is_refused() -> None:
    found = WIRE_TOOLS["iperf3"].parse(ToolRequest(BANDWIDTH, MIB), printed("iperf3.json"))
    assert (found.facts, found.n, found.sent_bytes) == ({"retransmits": 13}, 0, 2903244800)
    assert WIRE_TOOLS["ib_write_bw"].parse(ToolRequest(BANDWIDTH, 4096), printed("ib_write_bw.txt")).facts == {"device": "rxe0"}
    with pytest.raises(RunFailed, match=r"^iperf3 .*JSON: \[+$"):
        WIRE_TOOLS["iperf3"].parse(ToolRequest(BANDWIDTH, 8), "[" * 100_000)
    second_line = "8       2k      =2k      31k         0.05s      0.69      99.00       0.09"
    with pytest.raises(RunFailed, match="fi_pingpong"):
        WIRE_TOOLS["fi_pingpong"].parse(ToolRequest(LATENCY, 8), printed("fi_pingpong.txt") + second_line)


@pytest.mark.parametrize(("name", "file", "why"), [
    ("iperf3", "iperf3-refused.json", "iperf3 printed no figure: unable to connect to server: Connection refused"),
    ("fi_pingpong", "fi_pingpong-refused.txt",
     "fi_pingpong printed no figure: [error] util/pingpong.c:408 : failed to connect: Connection refused"),
    ("ucx_perftest", "ucx_perftest-refused.txt",
     "ucx_perftest printed no figure: [1795328917.980145] [node1:29840:0]        perftest.c:405  UCX  ERROR client failed. connect() "
     "failed: Connection refused"),
], ids=["iperf3", "fi_pingpong", "ucx_perftest"])  # fmt: skip
def test_why_they_failed_in_their_own_words(name: str, file: str, why: str) -> None:
    with pytest.raises(RunFailed) as failed:
        WIRE_TOOLS[name].parse(ToolRequest(WIRE_TOOLS[name].operations[0], 8), printed(file))
    assert str(failed.value) == why


@pytest.mark.parametrize(
    ("name", "version"), [("iperf3", "3.12"), ("fi_pingpong", "1.17.0"), ("ucx_perftest", "1.13.1"), ("ib_write_bw", "6.06")]
)
def test_their_versions(name: str, version: str) -> None:
    assert WIRE_TOOLS[name].version(printed(f"{name}-version.txt")) == version
    assert WIRE_TOOLS[name].version("usage: none of that\n") is None


@pytest.mark.parametrize(("change", "why"), [
    (lambda said: said["end"].update(sum_received={"bytes": 0, "seconds": 1}), "iperf3 printed no figure: no message"),
    (lambda said: said["end"].update(sum_received={"bytes": float("nan"), "seconds": 1}), "iperf3 printed no figure: no message"),
    (lambda said: said["end"].update(sum_received={"bytes": True, "seconds": 1}), "iperf3 printed no figure: no message"),
    (lambda said: said["end"].update(sum_received={"bytes": 1e17, "seconds": 1e-9}), "iperf3 printed no figure: }"),
    (lambda said: said.update(end=[]), "iperf3 printed no figure: no message"),
    (lambda said: said.update(error="\x1b[31mred"), "iperf3 printed no figure: ?[31mred"),
], ids=["nothing arrived", "nan", "a word", "too fast", "a list", "an error beside figures"])  # fmt: skip
def test_no_figure_that_cannot_be_true(change, why: str) -> None:
    said = json.loads(printed("iperf3.json"))
    change(said)
    with pytest.raises(RunFailed) as failed:
        WIRE_TOOLS["iperf3"].parse(ToolRequest(BANDWIDTH, MIB), json.dumps(said, indent=1))
    assert str(failed.value).startswith(why)


@settings(max_examples=60, derandomize=True)
@given(
    st.sampled_from(EVERY),
    st.one_of(
        st.text(max_size=200),
        st.text(alphabet=" \n,.0123456789eEnaskm=-\"{}[]:", max_size=200),
        st.recursive(st.none() | st.floats() | st.integers() | st.text(max_size=4), lambda x: st.lists(x) | st.dictionaries(
            st.sampled_from(["end", "sum_received", "bytes", "seconds", "sum_sent", "retransmits"]), x)).map(json.dumps),
    ),
)  # fmt: skip
def test_any_text_is_a_figure_or_a_sentence(which: tuple[str, str], text: str) -> None:
    name, operation = which
    try:
        found = WIRE_TOOLS[name].parse(ToolRequest(operation, 4096), text)
    except RunFailed as error:
        assert str(error).startswith(name) and str(error).isprintable() and len(str(error)) < 240
    else:
        assert 1e-9 <= found.time_s <= 1e5


@settings(max_examples=60, derandomize=True)
@given(st.sampled_from(REAL), st.data())
def test_real_output_cut_or_bent_is_a_figure_or_a_sentence(real, data: st.DataObject) -> None:
    name, file, ask, *_ = real
    text = printed(file)
    at = data.draw(st.integers(0, len(text)))
    bent = text[:at] + data.draw(st.text(alphabet="0123456789.-e,\n }", max_size=5)) + text[at + data.draw(st.integers(0, 5)) :]
    try:
        assert 1e-9 <= WIRE_TOOLS[name].parse(ask, bent).time_s <= 1e5
    except RunFailed as error:
        assert str(error).startswith(name)


COMMANDS = {
    "iperf3": ("iperf3 --server --one-off --bind 10.0.0.2 --port 4000", "iperf3 --client 10.0.0.2 --port 4000 --time 2 --json"),
    "fi_pingpong": ("fi_pingpong -B 4000 -I 2000 -S 8 -e rdm", "fi_pingpong -P 4000 -I 2000 -S 8 -e rdm 10.0.0.2"),
    "ucx_perftest": ("ucx_perftest -p 4000", "ucx_perftest -p 4000 -t tag_lat -s 8 -n 2000 -w 200 -f -v 10.0.0.2"),
    "ib_write_bw": ("ib_write_bw -s 8 -n 5000 -F --report_gbits -p 4000", "ib_write_bw -s 8 -n 5000 -F --report_gbits -p 4000 10.0.0.2"),
}


@pytest.mark.parametrize("name", WIRE_TOOLS)
def test_what_is_asked_of_them(name: str) -> None:
    tool = WIRE_TOOLS[name]
    ask = ToolRequest(tool.operations[0], 8, 2.2)
    assert (" ".join(tool.server(ask, "10.0.0.2", 4000)), " ".join(tool.client(ask, "10.0.0.2", 4000))) == COMMANDS[name]


def test_requests_are_named_short_and_fewer_for_large_messages() -> None:
    words = WIRE_TOOLS["ucx_perftest"].client(ToolRequest(BANDWIDTH, MIB), "fd00::2", 4000)
    assert " ".join(words) == "ucx_perftest -p 4000 -t tag_bw -s 1048576 -n 256 -w 25 -f -v -6 fd00::2"
    assert [ToolRequest(BANDWIDTH, size).messages for size in (1, 1 << 20, 1 << 30)] == [5000, 256, 20]
    assert [tool.name for tool in wire_tools.tools_named(["ucx_perftest", "iperf3", "iperf3"])] == ["ucx_perftest", "iperf3"]
    with pytest.raises(UsageError, match=r"^--tools 'iperf' .* iperf3, fi_pingpong, ucx_perftest, ib_write_bw$"):
        wire_tools.tools_named(["iperf3", "iperf"])
    assert wire_tools.last_line("first\n\n --- \n\x1b[0mend\r\n+---+\n") == "?[0mend"
    assert (wire_tools.last_line(""), len(wire_tools.last_line("x" * 9999))) == ("no message", 160)


def test_what_is_not_installed_has_no_version_and_perftest_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert [wire_tools.version_here(tool) for tool in WIRE_TOOLS.values()] == [None] * 4
    assert why_not() == "perftest (ib_write_bw) is not installed: apt-get install perftest, or your distribution's"


@pytest.mark.parametrize(("word", "value"), [("1.5", 1.5), ("7", 7.0), ("-1", None), ("nan", None), ("1e3", None), ("²", None), ("", None)])
def test_plain_numbers(word: str, value: float | None) -> None:
    assert wire_tools.number(word) == value


# What 4.5 prints in the virtual machine, shortened.
IB_WRITE_BW = """
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : rxe0
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      20               0.63               0.51   \t\t   0.000967
---------------------------------------------------------------------------------------
"""


def test_the_average_rate_is_read_and_asked_for_by_device() -> None:
    assert wire_tools.rate_in(IB_WRITE_BW) == pytest.approx(0.51e9 / 8)
    tool, request = between_devices(["-d", "mlx5_0", "--use_cuda=3"], ["-d", "mlx5_1"]), ToolRequest(BANDWIDTH, 65536, count=100)
    words = "ib_write_bw -s 65536 -n 100 -F --report_gbits -p 18600 -d"
    assert " ".join(tool.client(request, "10.0.0.2", 18600)) == f"{words} mlx5_0 --use_cuda=3 10.0.0.2"
    assert " ".join(tool.server(request, "10.0.0.2", 18600)) == f"{words} mlx5_1"
    assert tool.parse(request, IB_WRITE_BW).sent_bytes == 6_553_600


@pytest.mark.parametrize("text", ["", "Couldn't connect to 10.5.0.1:18601\n", IB_WRITE_BW.replace("0.51", "nan"), " 65536 20 0.63\n"])
def test_no_figure_is_none(text: str) -> None:
    assert wire_tools.rate_in(text) is None


def test_addresses_of_ipv6_are_passed_on_where_the_installed_one_knows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    request = ToolRequest(BANDWIDTH, 8)
    tool = between_devices(["-d", "mlx5_0"], ["-d", "mlx5_0"])
    for of in (tool.server, tool.client):
        assert "--ipv6-addr" in of(request, "fd77::1", 4000) and "--ipv6-addr" not in of(request, "10.0.0.2", 4000)
    monkeypatch.setattr(wire_tools.shutil, "which", lambda name: f"/usr/bin/{name}")
    for printed, known in (("  --ipv6  Use IPv6 GID", False), ("  --ipv6-addr  Use IPv6 address for parameters negotiation", True)):
        monkeypatch.setattr(wire_tools, "_help", lambda printed=printed: printed)
        assert (why_not(ipv6=True) is None) is known
        assert why_not() is None


@pytest.mark.system
@pytest.mark.skipif(shutil.which("ib_write_bw") is None, reason="perftest is not installed: apt-get install perftest")
def test_a_device_that_is_not_there() -> None:
    tool = between_devices(["-d", "none7"], ["-d", "none7"])
    with together_or_alone({}, 20) as world:
        (ran,) = wire_tools.run_tool(world, tool, ToolRequest(BANDWIDTH, 65536), [wire_tools.ToolPair(world.me, world.me)], [""])
    assert ran.figure is None and "ib_write_bw ended before it listened: " in (ran.why or "")
