"""iblinkinfo's text -> the hosts' cables: adapters and not what only answers as one, lanes as they signal."""

import pytest

from collbench.machine.model import FabricLink
from collbench.machine.readers import rdma_tools
from collbench.machine.readers.rdma import fabric_rate, lane_name

SWITCH = "MF0;leaf1:MQM9700/U1"
ADAPTERS = f"""\
CA: node1 mlx5_0:
      0x0c42a10300000001      6    1[  ] ==( 4X        106.25 Gbps Active/  LinkUp)==>       3    7[  ] "{SWITCH}" ( )
CA: node2 mlx5_0:
      0x0c42a10300000002      9    1[  ] ==( 4X      25.78125 Gbps Active/  LinkUp)==>       3    8[  ] "{SWITCH}" ( Could be 106.25 Gbps)
CA: node2 mlx5_1:
      0x0c42a10300000003      9    2[  ] ==(                Down/ Polling)==>             [  ] "" ( )
CA: Mellanox Technologies Aggregation Node:
      0x0c42a10300000004      4    1[  ] ==( 4X        106.25 Gbps Active/  LinkUp)==>       3   65[  ] "{SWITCH}" ( )
"""
SWITCHES = f"""\
Switch: 0x248a070300000001 {SWITCH}:
           3    7[  ] ==( 4X        106.25 Gbps Active/  LinkUp)==>       6    1[  ] "node1 mlx5_0" ( )
           3    9[  ] ==(                Down/ Polling)==>             [  ] "" ( )
           3   10[  ] ==( 4X        106.25 Gbps Active/  LinkUp)==>       5   11[  ] "MF0;spine1:MQM9700/U1" ( )
           3   65[  ] ==( 4X        106.25 Gbps Active/  LinkUp)==>       4    1[  ] "Mellanox Technologies Aggregation Node" ( )
Switch: 0x248a070300000002 MF0;spine1:MQM9700/U1:
           5   11[  ] ==( 4X        106.25 Gbps Active/  LinkUp)==>       3   10[  ] "{SWITCH}" ( )
"""
NODE1 = FabricLink("node1", "mlx5_0", 1, 4, 106.25e9, SWITCH, 7)


def test_every_adapters_cable():
    machine = rdma_tools.read_iblinkinfo(ADAPTERS, "links.txt")
    assert machine.sources == ("iblinkinfo links.txt",)
    assert machine.fabric == (
        NODE1,
        FabricLink("node2", "mlx5_0", 1, 4, 25.78125e9, SWITCH, 8),
        FabricLink("node2", "mlx5_1", 2, None, None, None, None),  # no cable
    )


def test_a_link_below_what_both_ends_could_is_reported():
    (doubt,) = rdma_tools.read_iblinkinfo(ADAPTERS, "links.txt").doubts
    assert "'Could be 106.25 Gbps'" in doubt


def test_cables_with_one_note_share_a_doubt() -> None:
    row = ADAPTERS.splitlines()[2:4]
    text = "\n".join(line.replace("node2", f"node{number}") for number in range(2, 102) for line in row)
    (doubt,) = rdma_tools.read_iblinkinfo(text, "x").doubts
    assert doubt.startswith("node2 mlx5_0 port 1, node3 mlx5_0 port 1, ")
    assert " and 96 more: " in doubt


def test_a_list_of_switches_alone_is_turned_round():
    assert rdma_tools.read_iblinkinfo(SWITCHES, "links.txt").fabric == (NODE1,)


def test_where_both_are_listed_each_cable_counts_once():
    assert rdma_tools.read_iblinkinfo(ADAPTERS + SWITCHES, "links.txt").fabric == rdma_tools.read_iblinkinfo(ADAPTERS, "links.txt").fabric


def test_an_adapter_without_its_hosts_name_goes_by_its_guid():
    text = ADAPTERS.replace("CA: node1 mlx5_0:", "CA: 0x0c42a10300000001 MT4129 ConnectX7   Mellanox Technologies:")
    assert rdma_tools.read_iblinkinfo(text, "x").fabric[0].host == "0x0c42a10300000001"


@pytest.mark.parametrize(
    ("lane", "name"), [(25.78125e9, "EDR"), (53.125e9, "HDR"), (106.25e9, "NDR"), (10.0e9, "QDR"), (26e9, None), (-1.0, None)]
)
def test_a_lanes_signalling_rate_names_it(lane, name):
    assert lane_name(lane) == name


@pytest.mark.parametrize(
    ("width", "lane", "bits"),
    [(4, 25.78125e9, 100e9), (4, 106.25e9, 400e9), (4, 10e9, 32e9), (4, 14.0625e9, 54.5e9), (None, 10e9, None), (4, None, None)],
)
def test_data_rate_of_a_cable(width, lane, bits):
    assert fabric_rate(width, lane) == bits


@pytest.mark.parametrize("speed", ["4X -25.78125 Gbps ", "4X 1000000000000000000 Gbps ", "3X 25.78125 Gbps ", "4X 17 Gbps "])
def test_a_rate_that_no_link_has_is_unknown_with_a_doubt(speed):
    machine = rdma_tools.read_iblinkinfo(ADAPTERS.replace("4X        106.25 Gbps ", speed, 1), "x")
    assert (machine.fabric[0].width, machine.fabric[0].lane_bits_per_s) == (None, None)
    assert "1 links " in machine.doubts[0]
