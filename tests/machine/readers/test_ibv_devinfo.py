"""`ibv_devinfo`, plain and with -v: hand-written outputs that show one fact each, then the captured one."""

import pytest

from collbench.machine.model import Machine, Port
from collbench.machine.readers.rdma_tools import looks_like_ibv_devinfo, read_ibv_devinfo
from tests.machines import captures

DEVICE = """hca_id:\tmlx5_0
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t28.39.1002
\tnode_guid:\t\t\t58a2:e103:0000:0001
\tsys_image_guid:\t\t\t58a2:e103:0000:0001
\tvendor_id:\t\t\t0x02c9
\tvendor_part_id:\t\t\t4129
\thw_ver:\t\t\t\t0x0
\tphys_port_cnt:\t\t\t1
"""
PORT = """\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t4096 (5)
\t\t\tsm_lid:\t\t\t1
\t\t\tport_lid:\t\t47
\t\t\tport_lmc:\t\t0x00
\t\t\tlink_layer:\t\tInfiniBand
"""
VERBOSE = """\t\t\tmax_msg_sz:\t\t0x40000000
\t\t\tactive_width:\t\t4X (2)
\t\t\tactive_speed:\t\t100.0 Gbps (128)
\t\t\tphys_state:\t\tLINK_UP (5)
\t\t\tGID[  0]:\t\tfe80:0000:0000:0000:58a2:e103:0000:0001

"""
WHOLE = DEVICE + PORT + VERBOSE


def port(text):
    return read_ibv_devinfo(text, "ibv.txt").nics[0].ports[0]


def test_a_device_and_its_port():
    machine = read_ibv_devinfo(WHOLE, "ibv.txt")
    (nic,) = machine.nics
    assert machine.sources == ("ibv_devinfo ibv.txt",)
    assert (nic.name, nic.model, nic.rdma, nic.firmware, nic.guid) == ("mlx5_0", "ConnectX-7", True, "28.39.1002", "58a2:e103:0000:0001")
    assert nic.ports == (
        Port(
            number=1,
            rate_bits_per_s=400e9,
            rate_text="400 Gb/sec (4X NDR)",
            state="active",
            phys_state="linkup",
            link_layer="infiniband",
            mtu_bytes=4096,
            lid=47,
            sm_lid=1,
        ),
    )
    assert machine.unknown == {}


def test_without_v_the_rate_is_unknown():
    machine = read_ibv_devinfo(DEVICE + PORT, "ibv.txt")
    assert machine.nics[0].ports[0].rate_bits_per_s is None
    assert (
        list(machine.unknown) == ["nics/mlx5_0/ports/1/rate_bits_per_s"]
        and "only with -v" in machine.unknown["nics/mlx5_0/ports/1/rate_bits_per_s"]
    )


@pytest.mark.parametrize(
    ("width", "speed", "text", "data"),
    [
        ("4X (2)", "10.0 Gbps (4)", "40 Gb/sec (4X QDR)", 32e9),
        ("4X (2)", "10.0 Gbps (8)", "40 Gb/sec (4X FDR10)", 40e9),
        ("4X (2)", "14.0 Gbps (16)", "56 Gb/sec (4X FDR)", 54.5e9),
        ("2X (16)", "100.0 Gbps (128)", "200 Gb/sec (2X NDR)", 200e9),
        ("1X (1)", "2.5 Gbps (1)", "2.5 Gb/sec (1X SDR)", 2e9),
        ("4X (2)", "200.0 Gbps (256)", "800 Gb/sec (4X XDR)", 800e9),
    ],
)
def test_width_times_speed_is_the_printed_rate_and_coding_leaves_the_data_rate(width, speed, text, data):
    found = port(WHOLE.replace("4X (2)", width).replace("100.0 Gbps (128)", speed))
    assert (found.rate_text, found.rate_bits_per_s) == (text, data)


def test_ethernet_borrows_the_names_and_not_the_coding():
    found = port(WHOLE.replace("InfiniBand\n", "Ethernet\n").replace("100.0 Gbps (128)", "10.0 Gbps (4)"))
    assert (found.rate_bits_per_s, found.link_layer, found.lid, found.sm_lid) == (40e9, "ethernet", None, None)


@pytest.mark.parametrize(
    ("width", "speed"), [("4X (2)", "invalid speed (0)"), ("invalid width (99)", "100.0 Gbps (128)"), ("3X (2)", "100.0 Gbps (128)")]
)
def test_a_speed_that_no_port_has_is_unknown(width, speed):
    machine = read_ibv_devinfo(WHOLE.replace("4X (2)", width).replace("100.0 Gbps (128)", speed), "ibv.txt")
    assert machine.nics[0].ports[0].rate_bits_per_s is None
    assert f"'{width}' at '{speed}'" in machine.unknown["nics/mlx5_0/ports/1/rate_bits_per_s"]


def test_a_port_that_is_down_has_no_rate_and_no_mtu():
    machine = read_ibv_devinfo(WHOLE.replace("PORT_ACTIVE (4)", "PORT_DOWN (1)").replace("LINK_UP (5)", "POLLING (2)"), "ibv.txt")
    (found,) = machine.nics[0].ports
    assert (found.state, found.phys_state, found.rate_bits_per_s, found.mtu_bytes) == ("down", "polling", None, None)
    assert found.rate_text == "400 Gb/sec (4X NDR)"
    assert all(reason.startswith("the port is down") for reason in machine.unknown.values())


def test_a_port_without_a_subnet_manager():
    machine = read_ibv_devinfo(
        WHOLE.replace("PORT_ACTIVE (4)", "PORT_INIT (2)").replace("\t1\n\t\t\tport_lid:\t\t47", "\t0\n\t\t\tport_lid:\t\t65535"), "ibv.txt"
    )
    (found,) = machine.nics[0].ports
    assert (found.state, found.sm_lid, found.lid, found.rate_bits_per_s) == ("init", 0, None, 400e9)
    assert "a LID" in machine.unknown["nics/mlx5_0/ports/1/lid"]


def test_several_devices_and_ports():
    second = WHOLE.replace("mlx5_0", "mlx5_1").replace("4129", "4123") + PORT.replace("port:\t1", "port:\t2")
    machine = read_ibv_devinfo(WHOLE + second, "ibv.txt")
    assert [(nic.name, nic.model, [port.number for port in nic.ports]) for nic in machine.nics] == [
        ("mlx5_0", "ConnectX-7", [1]),
        ("mlx5_1", "ConnectX-6", [1, 2]),
    ]


def test_a_device_listed_twice_counts_once_with_a_doubt():
    machine = read_ibv_devinfo(WHOLE + WHOLE, "ibv.txt")
    assert len(machine.nics) == 1
    assert len(machine.doubts) == 1 and "mlx5_0 is listed twice in ibv.txt" in machine.doubts[0]


def test_amazons_adapter_has_no_link_layer():
    text = WHOLE.replace("0x02c9", "0x1d0f").replace("4129", "61344").replace("InfiniBand\n", "Unspecified\n")
    nic = read_ibv_devinfo(text, "ibv.txt").nics[0]
    assert (nic.model, nic.ports[0].link_layer) == ("Elastic Fabric Adapter", None)


def test_software_rdma_is_virtual():
    assert read_ibv_devinfo(WHOLE.replace("mlx5_0", "rxe0"), "ibv.txt").nics[0].virtual == "software RDMA (rxe)"


def test_a_machine_without_devices_reports_it():
    assert looks_like_ibv_devinfo("No IB devices found\n", "ibv.txt")
    assert read_ibv_devinfo("No IB devices found\n", "ibv.txt") == Machine(
        sources=("ibv_devinfo ibv.txt",), unknown={"nics": "ibv_devinfo found no RDMA device: a container, or no driver"}
    )


def test_a_device_without_ports_reports_it():
    machine = read_ibv_devinfo(DEVICE, "ibv.txt")
    assert machine.nics[0].ports == ()
    assert list(machine.unknown) == ["nics/mlx5_0/ports"] and "no port" in machine.unknown["nics/mlx5_0/ports"]


def test_the_captured_port_is_down_without_a_subnet_manager():
    expected = captures.expected("ibv-devinfo-port-down")
    machine = read_ibv_devinfo(captures.text("ibv-devinfo-port-down", "ibv_devinfo.txt"), "ibv_devinfo.txt")
    (nic,) = machine.nics
    (found,) = nic.ports
    assert (nic.name, nic.firmware, nic.model) == (expected["device"], expected["fw"], expected["model"])
    assert found.state == expected["state"].removeprefix("PORT_").lower()
    assert (found.rate_bits_per_s, found.mtu_bytes, found.lid, found.sm_lid) == (None, None, None, 0)
    assert "the port is down" in machine.unknown["nics/mlx5_0/ports/1/mtu_bytes"]
