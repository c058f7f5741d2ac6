"""perftest's ib_write_bw: the figures in its output, its complaints. tests/testbeds/test_rdma.py runs it on software RDMA."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import RunFailed
from collbench.plugins.channels import wire_tools
from collbench.plugins.channels.wire_tools import ToolServer, Writes, complaint, free_port, rate_in, why_not, write_to
from tests.cli.command import running, until

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


def test_its_own_words_are_reported() -> None:
    assert complaint("ib_write_bw: unrecognized option\n Parser function exited with Error\n----\n") == (
        "perftest: Parser function exited with Error"
    )
    assert complaint("\n---\n") == "perftest failed without a message"


def test_what_is_asked_of_it() -> None:
    words = " ".join(Writes("mlx5_0", 1, 3, 100).command(18600))
    assert words == "ib_write_bw -s 65536 -n 100 -F --report_gbits -p 18600 -d mlx5_0 -i 1 --use_cuda=3"
    assert Writes("mlx5_0", iterations=100).n_bytes == 6_553_600


def test_addresses_of_ipv6_are_passed_on_where_the_installed_one_knows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--ipv6-addr" in Writes("mlx5_0", ipv6=True).command(18600) and "--ipv6-addr" not in Writes("mlx5_0").command(18600)
    request = wire_tools.ToolRequest("p2p_bandwidth", 8)
    tool = wire_tools.WIRE_TOOLS["ib_write_bw"]
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


def test_a_server_starts_again_after_each_run_and_ends_with_its_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool, runs = tmp_path / "ib_write_bw", tmp_path / "runs"
    tool.write_text(f"#!/bin/sh\necho run >>{runs}\n[ $(wc -l <{runs}) -lt 3 ] || exec sleep 77\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    with ToolServer(Writes("mlx5_0"), 18600):
        until(lambda: runs.exists() and len(runs.read_text().split()) == 3, "the third run", 20)
    until(lambda: running(tmp_path) == [os.getpid()], "the end of the server", 5)
    assert len(runs.read_text().split()) == 3


@pytest.mark.skipif(shutil.which("ib_write_bw") is None, reason="perftest is not installed: apt-get install perftest")
def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_tools, "_PAUSE_S", 0.01)
    writes, port = Writes("none7"), free_port("127.0.0.1")
    with ToolServer(writes, port), pytest.raises(RunFailed, match=r"^perftest: .+"):
        write_to("127.0.0.1", writes, port, 0.1, 20)
