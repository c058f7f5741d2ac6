"""perftest's ib_write_bw: the figures in its output, its complaints. tests/testbeds/test_rdma.py runs it on software RDMA."""

import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.measuring.probing import together_or_alone
from collbench.plugins.channels import wire_tools
from collbench.plugins.channels.wire_tools import BANDWIDTH, ToolPair, ToolRequest, between_devices, rate_in, run_tool, why_not

# What 4.5 prints in the virtual machine, shortened.
PRINTED = """
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : rxe0
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      20               0.63               0.51   \t\t   0.000967
---------------------------------------------------------------------------------------
"""


def test_the_average_rate_is_read() -> None:
    assert rate_in(PRINTED) == pytest.approx(0.51e9 / 8)


@pytest.mark.parametrize("text", ["", "Couldn't connect to 10.5.0.1:18601\n", PRINTED.replace("0.51", "nan"), " 65536 20 0.63\n"])
def test_no_figure_is_none(text: str) -> None:
    assert rate_in(text) is None


@settings(max_examples=100)
@given(st.text(alphabet=st.sampled_from(" \n\t.-#0123456789eXnan"), max_size=200))
def test_any_text_gives_a_rate_or_none(text: str) -> None:
    rate = rate_in(text)
    assert rate is None or rate >= 0


def test_what_is_asked_of_it() -> None:
    tool, request = between_devices(["-d", "mlx5_0", "--use_cuda=3"], ["-d", "mlx5_1"]), ToolRequest(BANDWIDTH, 65536, count=100)
    words = "ib_write_bw -s 65536 -n 100 -F --report_gbits -p 18600 -d"
    assert " ".join(tool.client(request, "10.0.0.2", 18600)) == f"{words} mlx5_0 --use_cuda=3 10.0.0.2"
    assert " ".join(tool.server(request, "10.0.0.2", 18600)) == f"{words} mlx5_1"
    assert tool.parse(request, PRINTED).sent_bytes == 6_553_600


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


def test_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert why_not() == "perftest (ib_write_bw) is not installed: apt-get install perftest, or your distribution's"


@pytest.mark.system
@pytest.mark.skipif(shutil.which("ib_write_bw") is None, reason="perftest is not installed: apt-get install perftest")
def test_a_device_that_is_not_there() -> None:
    tool = between_devices(["-d", "none7"], ["-d", "none7"])
    with together_or_alone({}, 20) as world:
        (ran,) = run_tool(world, tool, ToolRequest(BANDWIDTH, 65536), [ToolPair(world.me, world.me)], [""])
    assert ran.figure is None and "ib_write_bw ended before it listened: " in (ran.why or "")
