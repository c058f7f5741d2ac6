"""`ibstat` and `ibstatus`: hand-written outputs that show one fact each."""

import pytest

from collbench.machine.model import Port
from collbench.machine.readers.rdma_tools import read_ibstat

DEVICE = """CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.39.1002
\tHardware version: 0
\tNode GUID: 0x58a2e10300000001
\tSystem image GUID: 0x58a2e10300000001
"""
PORT = """\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tBase lid: 47
\t\tLMC: 0
\t\tSM lid: 1
\t\tCapability mask: 0xa751e848
\t\tPort GUID: 0x58a2e10300000001
\t\tLink layer: InfiniBand
"""
WHOLE = DEVICE + PORT
STATUS = """Infiniband device 'mlx5_0' port 1 status:
\tdefault gid:\t fe80:0000:0000:0000:58a2:e103:0000:0001
\tbase lid:\t 0x2f
\tsm lid:\t\t 0x1
\tstate:\t\t 4: ACTIVE
\tphys state:\t 5: LinkUp
\trate:\t\t 200 Gb/sec (2X NDR)
\tlink_layer:\t InfiniBand

"""


def only(text):
    machine = read_ibstat(text, "ibstat.txt")
    return machine, machine.nics[0].ports[0]


def test_a_device_and_its_port():
    machine, port = only(WHOLE)
    (nic,) = machine.nics
    assert machine.sources == ("ibstat ibstat.txt",)
    assert (nic.name, nic.model, nic.rdma, nic.firmware, nic.guid) == ("mlx5_0", "ConnectX-7", True, "28.39.1002", "58a2:e103:0000:0001")
    assert port == Port(
        number=1,
        rate_bits_per_s=400e9,
        rate_text="400",
        state="active",
        phys_state="linkup",
        link_layer="infiniband",
        lid=47,
        sm_lid=1,
    )
    assert machine.unknown == {"nics/mlx5_0/ports/1/mtu_bytes": "ibstat prints no MTU"}


@pytest.mark.parametrize(
    ("printed", "data"), [("14", 13.625e9), ("20", 16e9), ("25", 25e9), ("56", 54.5e9), ("100", 100e9), ("800", 800e9)]
)
def test_infinibands_rate_is_what_line_coding_leaves(printed, data):
    assert only(WHOLE.replace("Rate: 400", f"Rate: {printed}"))[1].rate_bits_per_s == data


@pytest.mark.parametrize(
    ("printed", "why"),
    [
        ("10", "10 is SDR, 8 Gb/s of data, or what is printed for a speed that the kernel does not know"),
        ("40", "40 is QDR, 32 Gb/s of data, or FDR10, 40: /sys/class/infiniband shows which"),
        ("-1", "'-1' is not a valid port rate"),
        ("1000000000000000000", "'1000000000000000000' is not a valid port rate"),
    ],
)
def test_a_rate_with_two_meanings_or_none_is_unknown(printed, why):
    machine, port = only(WHOLE.replace("Rate: 400", f"Rate: {printed}"))
    assert (port.rate_bits_per_s, port.rate_text) == (None, printed)
    assert machine.unknown["nics/mlx5_0/ports/1/rate_bits_per_s"] == why


@pytest.mark.parametrize("printed", ["1", "10", "25", "40", "100", "400"])
def test_ethernets_rate_is_what_is_printed(printed):
    machine, port = only(WHOLE.replace("InfiniBand", "Ethernet").replace("Rate: 400", f"Rate: {printed}"))
    assert (port.rate_bits_per_s, port.link_layer, port.lid, port.sm_lid) == (int(printed) * 1e9, "ethernet", None, None)
    assert bool(machine.doubts) == (printed == "10")


@pytest.mark.parametrize("physical", ["Disabled", "Polling"])
def test_a_port_that_is_down_has_no_rate(physical):
    machine, port = only(WHOLE.replace("Active", "Down").replace("LinkUp", physical))
    assert (port.state, port.phys_state, port.rate_bits_per_s, port.rate_text) == ("down", physical.lower(), None, "400")
    assert "the port is down" in machine.unknown["nics/mlx5_0/ports/1/rate_bits_per_s"]


def test_a_port_without_a_subnet_manager():
    machine, port = only(
        WHOLE.replace("Active", "Initializing").replace("Base lid: 47", "Base lid: 65535").replace("SM lid: 1", "SM lid: 0")
    )
    assert (port.state, port.sm_lid, port.lid, port.rate_bits_per_s) == ("init", 0, None, 400e9)
    assert "a LID" in machine.unknown["nics/mlx5_0/ports/1/lid"]


def test_several_devices_and_ports():
    text = WHOLE + PORT.replace("Port 1", "Port 2") + WHOLE.replace("mlx5_0", "mlx4_0").replace("MT4129", "MT4099")
    assert [(nic.name, nic.model, [port.number for port in nic.ports]) for nic in read_ibstat(text, "x").nics] == [
        ("mlx5_0", "ConnectX-7", [1, 2]),
        ("mlx4_0", "ConnectX-3", [1]),
    ]


def test_one_port_asked_for_by_number_is_printed_without_indentation():
    text = "CA: 'mlx5_2'\nPort 1:\nState: Active\nPhysical state: LinkUp\nRate: 200\nBase lid: 3\nSM lid: 1\nLink layer: InfiniBand\n"
    machine, port = only(text)
    assert (machine.nics[0].name, port.rate_bits_per_s, port.lid) == ("mlx5_2", 200e9, 3)


def test_ibstatus_names_the_rate():
    machine, port = only(STATUS)
    assert (machine.nics[0].name, port.state, port.phys_state, port.lid, port.sm_lid) == ("mlx5_0", "active", "linkup", 47, 1)
    assert (port.rate_bits_per_s, port.rate_text) == (200e9, "200 Gb/sec (2X NDR)")
    assert only(STATUS.replace("200 Gb/sec (2X NDR)", "40 Gb/sec (4X QDR)"))[1].rate_bits_per_s == 32e9


def test_ibstatus_lists_each_port_by_itself():
    nics = read_ibstat(STATUS + STATUS.replace("port 1", "port 2") + STATUS.replace("mlx5_0", "mlx5_1"), "x").nics
    assert [(nic.name, [port.number for port in nic.ports]) for nic in nics] == [("mlx5_0", [1, 2]), ("mlx5_1", [1])]


def test_software_rdma_and_names_with_control_characters():
    assert read_ibstat(WHOLE.replace("mlx5_0", "siw0"), "x").nics[0].virtual == "software RDMA (siw)"
    assert read_ibstat(WHOLE.replace("mlx5_0", "mlx\x1b[0m"), "x").nics[0].name == "mlx?[0m"
