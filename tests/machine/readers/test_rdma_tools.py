"""ibv_devinfo, ibstat, ibstatus, rdma link, ibportstate and iblinkinfo: hand-written outputs that show one fact each."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from collbench.machine.merge import merge
from collbench.machine.model import FabricLink, Machine, Nic, Port
from collbench.machine.readers import rdma_tools
from collbench.machine.readers.rdma import LANES, WIDTHS, fabric_rate, falls_back, lane_name, port_rate
from collbench.machine.readers.rdma_tools import looks_like_ibv_devinfo, read_ibstat, read_ibv_devinfo
from tests.doctor.machines import codes, found

DEVINFO_DEVICE = """hca_id:\tmlx5_0
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t28.39.1002
\tnode_guid:\t\t\t58a2:e103:0000:0001
\tsys_image_guid:\t\t\t58a2:e103:0000:0001
\tvendor_id:\t\t\t0x02c9
\tvendor_part_id:\t\t\t4129
\thw_ver:\t\t\t\t0x0
\tphys_port_cnt:\t\t\t1
"""
DEVINFO_PORT = """\t\tport:\t1
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
DEVINFO = DEVINFO_DEVICE + DEVINFO_PORT + VERBOSE
IBSTAT_PORT = """\tPort 1:
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
IBSTAT = f"""CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.39.1002
\tHardware version: 0
\tNode GUID: 0x58a2e10300000001
\tSystem image GUID: 0x58a2e10300000001
{IBSTAT_PORT}"""
STATUS = """Infiniband device 'mlx5_0' port 1 status:
\tdefault gid:\t fe80:0000:0000:0000:58a2:e103:0000:0001
\tbase lid:\t 0x2f
\tsm lid:\t\t 0x1
\tstate:\t\t 4: ACTIVE
\tphys state:\t 5: LinkUp
\trate:\t\t 200 Gb/sec (2X NDR)
\tlink_layer:\t InfiniBand

"""
PORT, RATE = "nics/mlx5_0/ports/1", "nics/mlx5_0/ports/1/rate_bits_per_s"
UP = Port(1, 400e9, state="active", phys_state="linkup", link_layer="infiniband", lid=47, sm_lid=1)
Changes = tuple[tuple[str, str], ...]


def changed(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def ibv(*changes: tuple[str, str]) -> Machine:
    return read_ibv_devinfo(changed(DEVINFO, *changes), "ibv.txt")


def ibstat(*changes: tuple[str, str]) -> Machine:
    return read_ibstat(changed(IBSTAT, *changes), "ibstat.txt")


def ports(machine: Machine) -> list[tuple[str, str | None, list[int]]]:
    return [(nic.name, nic.model, [port.number for port in nic.ports]) for nic in machine.nics]


def test_a_device_and_its_port() -> None:
    guids = dict.fromkeys(("guid", "card_guid"), "58a2:e103:0000:0001")
    facts = {"rdma": True, "model": "ConnectX-7", "firmware": "28.39.1002", **guids}
    port = replace(UP, rate_text="400 Gb/sec (4X NDR)", mtu_bytes=4096)
    assert ibv() == Machine(sources=("ibv_devinfo ibv.txt",), nics=(Nic("mlx5_0", **facts, ports=(port,)),))
    port = replace(UP, rate_text="400", guid="58a2:e103:0000:0001")
    unknown = {f"{PORT}/mtu_bytes": "ibstat prints no MTU"}
    assert ibstat() == Machine(sources=("ibstat ibstat.txt",), nics=(Nic("mlx5_0", **facts, ports=(port,)),), unknown=unknown)


# What is changed in the text, the facts of its port, and the fact that is unknown with its reason.
DOWN, NO_MANAGER = {"state": "down", "rate_bits_per_s": None}, {"state": "init", "sm_lid": 0, "lid": None, "rate_bits_per_s": 400e9}
PORTS: dict[str, tuple[Callable[..., Machine], Changes, dict[str, Any], tuple[str, str] | None]] = {
    "rate only with -v": (ibv, ((VERBOSE, ""),), {"rate_bits_per_s": None}, (RATE, "only with -v")),
    "Ethernet borrows the names and not the coding": (ibv, (("InfiniBand\n", "Ethernet\n"), ("100.0 Gbps (128)", "10.0 Gbps (4)")),
        {"rate_bits_per_s": 40e9, "link_layer": "ethernet", "lid": None, "sm_lid": None}, None),
    "down": (ibv, (("PORT_ACTIVE (4)", "PORT_DOWN (1)"), ("LINK_UP (5)", "POLLING (2)")),
        {**DOWN, "phys_state": "polling", "mtu_bytes": None, "rate_text": "400 Gb/sec (4X NDR)"}, (RATE, "the port is down")),
    "disabled, ibstat": (ibstat, (("Active", "Down"), ("LinkUp", "Disabled")), {**DOWN, "phys_state": "disabled", "rate_text": "400"},
        (RATE, "the port is down")),
    "polling, ibstat": (ibstat, (("Active", "Down"), ("LinkUp", "Polling")), {**DOWN, "phys_state": "polling"}, (RATE, "the port is down")),
    "no subnet manager": (ibv, (("PORT_ACTIVE (4)", "PORT_INIT (2)"), ("\t1\n\t\t\tport_lid:\t\t47", "\t0\n\t\t\tport_lid:\t\t65535")),
        NO_MANAGER, (f"{PORT}/lid", "a LID")),
    "no subnet manager, ibstat": (ibstat, (("Active", "Initializing"), ("Base lid: 47", "Base lid: 65535"), ("SM lid: 1", "SM lid: 0")),
        NO_MANAGER, (f"{PORT}/lid", "a LID")),
    "Amazon's adapter has no link layer": (ibv, (("0x02c9", "0x1d0f"), ("4129", "61344"), ("InfiniBand\n", "Unspecified\n")),
        {"link_layer": None}, None),
}  # fmt: skip


@pytest.mark.parametrize(("read", "changes", "facts", "unknown"), PORTS.values(), ids=PORTS)
def test_a_port(read: Callable[..., Machine], changes: Changes, facts: dict[str, Any], unknown: tuple[str, str] | None) -> None:
    machine = read(*changes)
    ((port,),) = (nic.ports for nic in machine.nics)
    assert {name: getattr(port, name) for name in facts} == facts
    if unknown:
        assert unknown[1] in machine.unknown[unknown[0]]


@pytest.mark.parametrize(("width", "speed", "text", "data"), [
    ("4X (2)", "10.0 Gbps (4)", "40 Gb/sec (4X QDR)", 32e9), ("4X (2)", "10.0 Gbps (8)", "40 Gb/sec (4X FDR10)", 40e9),
    ("4X (2)", "14.0 Gbps (16)", "56 Gb/sec (4X FDR)", 54.5e9), ("2X (16)", "100.0 Gbps (128)", "200 Gb/sec (2X NDR)", 200e9),
    ("1X (1)", "2.5 Gbps (1)", "2.5 Gb/sec (1X SDR)", 2e9), ("4X (2)", "200.0 Gbps (256)", "800 Gb/sec (4X XDR)", 800e9),
    ("4X (2)", "invalid speed (0)", None, None), ("invalid width (99)", "100.0 Gbps (128)", None, None),
    ("3X (2)", "100.0 Gbps (128)", None, None),
])  # fmt: skip
def test_width_times_speed_is_the_printed_rate_and_coding_leaves_the_data_rate(width, speed, text, data) -> None:
    machine = ibv(("4X (2)", width), ("100.0 Gbps (128)", speed))
    port = machine.nics[0].ports[0]
    assert port.rate_bits_per_s == data
    if text:
        assert port.rate_text == text
    else:
        assert f"'{width}' at '{speed}'" in machine.unknown[RATE]


@pytest.mark.parametrize(("printed", "data", "why"), [
    ("14", 13.625e9, None), ("20", 16e9, None), ("25", 25e9, None), ("56", 54.5e9, None), ("100", 100e9, None), ("800", 800e9, None),
    ("10", None, "10 is SDR, 8 Gb/s of data, or what is printed for a speed that the kernel does not know"),
    ("40", None, "40 is QDR, 32 Gb/s of data, or FDR10, 40: /sys/class/infiniband shows which"),
    ("-1", None, "'-1' is not a valid port rate"),
    ("1000000000000000000", None, "'1000000000000000000' is not a valid port rate"),
])  # fmt: skip
def test_ibstats_rate_is_what_line_coding_leaves_and_unknown_with_two_meanings(printed: str, data: float | None, why: str | None) -> None:
    machine = ibstat(("Rate: 400", f"Rate: {printed}"))
    assert (machine.nics[0].ports[0].rate_bits_per_s, machine.nics[0].ports[0].rate_text) == (data, printed)
    assert machine.unknown.get(RATE) == why


@pytest.mark.parametrize("printed", ["1", "10", "25", "40", "100", "400"])
def test_ethernets_rate_is_what_is_printed(printed: str) -> None:
    machine = ibstat(("InfiniBand", "Ethernet"), ("Rate: 400", f"Rate: {printed}"))
    port = machine.nics[0].ports[0]
    assert (port.rate_bits_per_s, port.link_layer, port.lid, port.sm_lid) == (int(printed) * 1e9, "ethernet", None, None)
    assert bool(machine.doubts) == (printed == "10")


def test_the_rate_of_a_bond_is_not_that_of_the_port_that_is_printed() -> None:
    machine = ibstat(("InfiniBand", "Ethernet"), ("'mlx5_0'", "'mlx5_bond_0'"))
    assert (machine.nics[0].ports[0].rate_bits_per_s, machine.nics[0].ports[0].rate_text) == (None, "400")
    assert "one port of this bond" in machine.unknown["nics/mlx5_bond_0/ports/1/rate_bits_per_s"]


ONE_PORT = "CA: 'mlx5_2'\nPort 1:\nState: Active\nPhysical state: LinkUp\nRate: 200\nBase lid: 3\nSM lid: 1\nLink layer: InfiniBand\n"
NO_DEVICE = {"nics": "ibv_devinfo found no RDMA device: a container, or no driver"}
TWO = DEVINFO + changed(DEVINFO, ("mlx5_0", "mlx5_1"), ("4129", "4123")) + DEVINFO_PORT.replace("port:\t1", "port:\t2")
IBSTAT_OF_TWO = IBSTAT + IBSTAT_PORT.replace("Port 1", "Port 2") + changed(IBSTAT, ("mlx5_0", "mlx4_0"), ("MT4129", "MT4099"))
STATUS_OF_TWO = STATUS + STATUS.replace("port 1", "port 2") + STATUS.replace("mlx5_0", "mlx5_1")
DEVICES: dict[str, tuple[Callable[[str, str], Machine], str, Callable[[Machine], Any], Any]] = {
    "several devices and ports": (read_ibv_devinfo, TWO, ports, [("mlx5_0", "ConnectX-7", [1]), ("mlx5_1", "ConnectX-6", [1, 2])]),
    "several, ibstat": (read_ibstat, IBSTAT_OF_TWO, ports, [("mlx5_0", "ConnectX-7", [1, 2]), ("mlx4_0", "ConnectX-3", [1])]),
    "several, ibstatus": (read_ibstat, STATUS_OF_TWO, ports, [("mlx5_0", None, [1, 2]), ("mlx5_1", None, [1])]),
    "a device listed twice counts once": (read_ibv_devinfo, DEVINFO + DEVINFO,
        lambda m: (len(m.nics), ["mlx5_0 is listed twice in x" in doubt for doubt in m.doubts]), (1, [True])),
    "another maker's": (read_ibv_devinfo, changed(DEVINFO, ("0x02c9", "0x1d0f"), ("4129", "61344")), lambda m: m.nics[0].model,
        "Elastic Fabric Adapter"),
    "software RDMA": (read_ibv_devinfo, changed(DEVINFO, ("mlx5_0", "rxe0")), lambda m: m.nics[0].virtual, "software RDMA (rxe)"),
    "software RDMA, ibstat": (read_ibstat, changed(IBSTAT, ("mlx5_0", "siw0")), lambda m: m.nics[0].virtual, "software RDMA (siw)"),
    "a name with control characters": (read_ibstat, changed(IBSTAT, ("mlx5_0", "mlx\x1b[0m")), lambda m: m.nics[0].name, "mlx?[0m"),
    "no devices": (read_ibv_devinfo, "No IB devices found\n", lambda m: m, Machine(sources=("ibv_devinfo x",), unknown=NO_DEVICE)),
    "a device without ports": (read_ibv_devinfo, DEVINFO_DEVICE,
        lambda m: (m.nics[0].ports, [(path, "no port" in why) for path, why in m.unknown.items()]), ((), [("nics/mlx5_0/ports", True)])),
    "a port asked for by number is printed without indentation": (read_ibstat, ONE_PORT,
        lambda m: [(nic.name, nic.ports[0].rate_bits_per_s, nic.ports[0].lid) for nic in m.nics], [("mlx5_2", 200e9, 3)]),
    "ibstatus names the rate": (read_ibstat, STATUS, lambda m: [(nic.name, nic.ports) for nic in m.nics],
        [("mlx5_0", (replace(UP, rate_bits_per_s=200e9, rate_text="200 Gb/sec (2X NDR)"),))]),
    "ibstatus prints the rate before line coding": (read_ibstat, changed(STATUS, ("200 Gb/sec (2X NDR)", "40 Gb/sec (4X QDR)")),
        lambda m: m.nics[0].ports[0].rate_bits_per_s, 32e9),
}  # fmt: skip


@pytest.mark.parametrize(("read", "text", "facts", "expected"), DEVICES.values(), ids=DEVICES)
def test_a_device(read: Callable[[str, str], Machine], text: str, facts: Callable[[Machine], Any], expected: Any) -> None:
    assert read != read_ibv_devinfo or looks_like_ibv_devinfo(text)
    assert facts(read(text, "x")) == expected


CODED = {
    "10 Gb/sec (4X SDR)": 8e9, "2.5 Gb/sec (1X SDR)": 2e9, "20 Gb/sec (4X DDR)": 16e9, "40 Gb/sec (4X QDR)": 32e9, "2.5 Gb/sec (1X)": 2e9,
    "40 Gb/sec (4X FDR10)": 40e9, "56 Gb/sec (4X FDR)": 54.5e9, "100 Gb/sec (4X EDR)": 100e9, "25 Gb/sec (1X EDR)": 25e9,
    "200 Gb/sec (4X HDR)": 200e9, "100 Gb/sec (2X HDR)": 100e9, "400 Gb/sec (4X NDR)": 400e9, "200 Gb/sec (2X NDR)": 200e9,
    "800 Gb/sec (4X XDR)": 800e9, "120 Gb/sec (12X QDR)": 96e9, " 400 Gb/sec (4X NDR)\n": 400e9,
}  # fmt: skip
ETHERNET = {"10 Gb/sec (1X QDR)": 10e9, "40 Gb/sec (4X QDR)": 40e9, "56 Gb/sec (4X FDR)": 56e9, "25 Gb/sec (1X EDR)": 25e9}
# A rate that contradicts itself, one that is not in the kernel yet, and texts of others
NO_RATE = [
    "400 Gb/sec (4X HDR)", "1600 Gb/sec (4X GDR)", "", "400", "Gb/sec (4X NDR)", "-400 Gb/sec (4X NDR)",
    "1000000000000000000 Gb/sec (4X NDR)", "0 Gb/sec (0X NDR)", "300 Gb/sec (3X NDR)", "400 Gb/sec (4X NDR) and more",
    "٤٠٠ Gb/sec (4X NDR)", "nan Gb/sec (4X NDR)", "400 Gb/sec\x00(4X NDR)",
]  # fmt: skip


@pytest.mark.parametrize(("function", "arguments", "expected"), [
    *((port_rate, (text,), bits) for text, bits in CODED.items()), *((port_rate, (text,), None) for text in NO_RATE),
    *((port_rate, (text, "ethernet"), bits) for text, bits in ETHERNET.items()),  # borrows the names and not the coding
    # SDR may be what an old kernel prints for a speed that it does not know
    (falls_back, ("10 Gb/sec (4X SDR)",), True), (falls_back, ("10 Gb/sec (4X)",), True), (falls_back, ("40 Gb/sec (4X QDR)",), False),
    (falls_back, ("",), False),
    # the signalling rate of a lane names it
    (lane_name, (25.78125e9,), "EDR"), (lane_name, (53.125e9,), "HDR"), (lane_name, (106.25e9,), "NDR"), (lane_name, (10.0e9,), "QDR"),
    (lane_name, (26e9,), None), (lane_name, (-1.0,), None),
    # the data rate of a cable by its lanes and their signalling rate
    (fabric_rate, (4, 25.78125e9), 100e9), (fabric_rate, (4, 106.25e9), 400e9), (fabric_rate, (4, 10e9), 32e9),
    (fabric_rate, (4, 14.0625e9), 54.5e9), (fabric_rate, (None, 10e9), None), (fabric_rate, (4, None), None),
])  # fmt: skip
def test_a_rate_is_the_data_rate_after_line_coding_or_unknown(function, arguments, expected) -> None:
    assert function(*arguments) == expected


@settings(max_examples=200)
@given(st.text(max_size=60) | st.from_regex(r"\d{1,4}(\.5)? Gb/sec \(\d{1,2}X ([A-Z]DR|FDR10)\)", fullmatch=True))
def test_no_text_gives_a_rate_that_no_port_has(text: str) -> None:
    assert port_rate(text) in {None, *(lane.data * width for lane in LANES.values() for width in WIDTHS)}


NDR = """\
CA/RT PortInfo:
# Port info: Lid 21 port 1
LinkState:.......................Active
PhysLinkState:...................LinkUp
Lid:.............................21
SMLid:...........................4
LMC:.............................0
LinkWidthSupported:..............1X or 4X
LinkWidthEnabled:................1X or 4X
LinkWidthActive:.................4X
LinkSpeedSupported:..............2.5 Gbps or 5.0 Gbps or 10.0 Gbps
LinkSpeedEnabled:................2.5 Gbps or 5.0 Gbps or 10.0 Gbps
LinkSpeedActive:.................Extended speed
LinkSpeedExtSupported:...........14.0625 Gbps or 25.78125 Gbps or 53.125 Gbps or 106.25 Gbps
LinkSpeedExtEnabled:.............106.25 Gbps
LinkSpeedExtActive:..............106.25 Gbps
Mkey:............................<not displayed>
# MLNX ext Port info: Lid 21 port 1
StateChangeEnable:...............0x00
LinkSpeedSupported:..............0x01
LinkSpeedEnabled:................0x01
LinkSpeedActive:.................0x00
"""
QDR = NDR.replace("LinkSpeedExtActive:..............106.25 Gbps", "LinkSpeedExtActive:..............No Extended Speed")
QDR = QDR.replace("LinkSpeedActive:.................Extended speed", "LinkSpeedActive:.................10.0 Gbps")
FDR10 = QDR.replace("Active:.................0x00", "Active:.................0x01")
NARROW = NDR.replace("LinkWidthActive:.................4X", "LinkWidthActive:.................1X")
LIMITED = NARROW.replace("LinkWidthEnabled:................1X or 4X", "LinkWidthEnabled:................1X")
PORT_DOWN = NDR.replace("Active\nPhysLinkState:...................LinkUp", "Down\nPhysLinkState:...................Polling")


SET = NARROW.replace("CA/RT", "Initial CA/RT") + "\nAfter PortInfo set:\n" + NDR.partition("\n")[2]
TITLED = re.sub(r"^Lid:.*\n", "", NDR, flags=re.MULTILINE).replace("Lid 21 port 1", "Lid 22 port 2")
STATES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "NDR": (NDR, (1, "active", 400e9, 4, 21)), "QDR": (QDR, (1, "active", 32e9, 4, 21)), "FDR10": (FDR10, (1, "active", 40e9, 4, 21)),
    "one lane of NDR": (NARROW, (1, "active", 100e9, 1, 21)), "down": (PORT_DOWN, (1, "down", None, None, 21)),
    "after a change the port is as it is now": (SET, (1, "active", 400e9, 4, 21)),
    "old versions have the LID in the title": (TITLED, (2, "active", 400e9, 4, 22)),
}  # fmt: skip


@pytest.mark.parametrize(("text", "facts"), STATES.values(), ids=STATES)
def test_the_state_of_a_port(text: str, facts: tuple[Any, ...]) -> None:
    assert rdma_tools.looks_like_ibportstate(text)
    ((seen,),) = (nic.ports for nic in rdma_tools.read_ibportstate(text, "port.txt").nics)
    assert (seen.number, seen.state, seen.rate_bits_per_s, seen.lanes, seen.lid) == facts
    assert (seen.max_lanes, seen.sm_lid, seen.phys_state) == (4, 4, "polling" if text == PORT_DOWN else "linkup")


def test_it_is_the_device_that_another_source_names() -> None:
    named = Machine(nics=(Nic("mlx5_3", rdma=True, ports=(Port(lid=21, state="active", link_layer="infiniband"),)),))
    merged = merge([named, rdma_tools.read_ibportstate(NARROW, "port.txt")])
    assert [(nic.name, nic.ports[0].lanes) for nic in merged.nics] == [("mlx5_3", 1)]


def test_lost_lanes_are_a_finding_and_a_limit_is_none() -> None:
    finding = found(rdma_tools.read_ibportstate(NARROW, "port.txt"), "CB2209")
    assert (finding.severity, finding.what) == ("warning", "LID 21 uses 1 lane of 4")
    assert codes(rdma_tools.read_ibportstate(NDR, "port.txt")) == codes(rdma_tools.read_ibportstate(LIMITED, "port.txt")) == []


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

CABLES = NODE1, FabricLink("node2", "mlx5_0", 1, 4, 25.78125e9, SWITCH, 8), FabricLink("node2", "mlx5_1", 2, None, None, None, None)
UNNAMED = ADAPTERS.replace("CA: node1 mlx5_0:", "CA: 0x0c42a10300000001 MT4129 ConnectX7   Mellanox Technologies:")
MANY = "\n".join(line.replace("node2", f"node{number}") for number in range(2, 102) for line in ADAPTERS.splitlines()[2:4])
FABRICS: dict[str, tuple[str, Callable[[Machine], Any], Any]] = {
    "every adapter's cable, one without": (ADAPTERS, lambda m: (m.sources, m.fabric), (("iblinkinfo x",), CABLES)),
    "a link below what both ends could": (ADAPTERS, lambda m: ["'Could be 106.25 Gbps'" in doubt for doubt in m.doubts], [True]),
    "cables with one note share a doubt": (MANY,
        lambda m: [doubt.startswith("node2 mlx5_0 port 1, node3 mlx5_0 port 1, ") and " and 96 more: " in doubt for doubt in m.doubts],
        [True]),
    "a list of switches alone is turned round": (SWITCHES, lambda m: m.fabric, (NODE1,)),
    "where both are listed each cable counts once": (ADAPTERS + SWITCHES, lambda m: m.fabric, CABLES),
    "an adapter without its host's name": (UNNAMED, lambda m: m.fabric[0].host, "0x0c42a10300000001"),
    **{f"a rate that no link has: {speed}": (ADAPTERS.replace("4X        106.25 Gbps ", speed, 1),
        lambda m: (m.fabric[0].width, m.fabric[0].lane_bits_per_s, "1 links " in m.doubts[0]), (None, None, True))
        for speed in ("4X -25.78125 Gbps ", "4X 1000000000000000000 Gbps ", "3X 25.78125 Gbps ", "4X 17 Gbps ")},
}  # fmt: skip


@pytest.mark.parametrize(("text", "facts", "expected"), FABRICS.values(), ids=FABRICS)
def test_a_fabric(text: str, facts: Callable[[Machine], Any], expected: Any) -> None:
    assert facts(rdma_tools.read_iblinkinfo(text, "x")) == expected


LINKS = """\
$ rdma link show
link mlx5_0/1 subnet_prefix fe80:0000:0000:0000 lid 13399 sm_lid 49151 lmc 0 state ACTIVE physical_state LINK_UP
link mlx5_1/1 state ACTIVE physical_state LINK_UP netdev ens2f0np0
link rxe0/1 state DOWN physical_state DISABLED netdev eth0
"""
OLD_LINKS = """\
0/1: mlx5_0/1: subnet_prefix fe80:0000:0000:0000 lid 13399 sm_lid 49151 lmc 0 state ACTIVE physical_state LINK_UP
1/1: mlx5_1/1: state ACTIVE physical_state LINK_UP netdev ens2f0np0
2/1: rxe0/1: state DOWN physical_state DISABLED netdev eth0
"""
LINKS_JSON = """\
[{"ifindex":0,"ifname":"mlx5_0","port":1,"subnet_prefix":"fe80:0000:0000:0000","lid":13399,"sm_lid":49151,"lmc":0,"state":"ACTIVE",
"physical_state":"LINK_UP"},{"ifindex":1,"ifname":"mlx5_1","port":1,"state":"ACTIVE","physical_state":"LINK_UP","netdev":"ens2f0np0"},
{"ifindex":2,"ifname":"rxe0","port":1,"state":"DOWN","physical_state":"DISABLED","netdev":"eth0"}]
"""


@pytest.mark.parametrize("text", [LINKS, OLD_LINKS, LINKS_JSON], ids=["text", "old text", "JSON"])
def test_rdma_link_lists_ports_without_rates(text: str) -> None:
    machine = rdma_tools.read_rdma_link(text, "link.txt")
    infiniband, roce, software = machine.nics
    assert [(nic.name, nic.interfaces) for nic in machine.nics] == [("mlx5_0", ()), ("mlx5_1", ("ens2f0np0",)), ("rxe0", ("eth0",))]
    assert (infiniband.ports[0].link_layer, infiniband.ports[0].lid, infiniband.ports[0].sm_lid) == ("infiniband", 13399, 49151)
    assert (roce.ports[0].link_layer, roce.ports[0].lid) == ("ethernet", None)
    assert (roce.ports[0].state, roce.ports[0].phys_state) == ("active", "linkup")
    assert (software.ports[0].state, software.virtual is None) == ("down", False)
    assert [nic.ports[0].rate_bits_per_s for nic in machine.nics] == [None] * 3
    assert "prints no rate" in machine.unknown["nics/mlx5_0/ports/1/rate_bits_per_s"]
