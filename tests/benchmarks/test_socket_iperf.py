"""That the benchmark against iperf3 runs at both places and prints what it must."""

from __future__ import annotations

import pytest

from benchmarks import socket_iperf
from benchmarks.launches import Missing
from tests.benchmarks.test_benchmarks import lines
from tests.conftest import cannot


@pytest.mark.long
@pytest.mark.hosts
def test_both_read_the_same_link() -> None:
    try:
        shown = lines(socket_iperf.measure(1))
    except Missing as why:
        cannot(why)
    assert [name.partition(":")[0] for name in shown] == ["loopback"] * 3 + ["1 Gbit/s"] * 3
    assert all(0.1 < float(shown[f"1 Gbit/s: {who}"].removesuffix(" GB/s")) < 0.13 for who in ("socket", "iperf3"))
