"""NCCL's paths in a row: bytes on its RDMA ports, and the algorithm choices for its own calls."""

import pytest

from collbench.measuring.crossing import MovedByHost
from collbench.measuring.nccl_paths import rdma_bytes


@pytest.mark.parametrize(("host", "sent"), [
    (MovedByHost(ports={"mlx5_0/1": {"tx_bytes": 4096, "rx_bytes": 8}}), 4096),
    (MovedByHost(ports={"efa_0/1": {"rdma_write_bytes": 4096}}), 4096),
    (MovedByHost(idle_ports=["mlx5_0/1"]), 0),  # ports that counted nothing are not in "ports"
    (MovedByHost(ports={"mlx5_0/1": {"port_xmit_wait": 3}}, idle_ports=["mlx5_0/1"]), 0),
    (MovedByHost(ports={"mlx5_0/1": {"tx_bytes": None}}, idle_ports=["mlx5_1/1"]), None),  # it lost count
    (MovedByHost(ports={"rxe0/1": {"sent_pkts": 7}}), None),  # it counts packets alone
    (MovedByHost(), None),
])  # fmt: skip
def test_bytes_that_rdma_ports_sent(host, sent):
    assert rdma_bytes([host, MovedByHost()]) == sent
