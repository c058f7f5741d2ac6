"""RDMA devices from /sys/class/infiniband: the rate of a port, its PCI device, and ports that do not belong to the machine."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.machine.model import Machine
from collbench.machine.readers import network
from tests.machine.trees import Tree

BRIDGE = "/sys/devices/pci0000:16/0000:16:01.0"
PORT = {
    "rate": "400 Gb/sec (4X NDR)\n",
    "state": "4: ACTIVE\n",
    "phys_state": "5: LinkUp\n",
    "link_layer": "InfiniBand\n",
    "lid": "0x3a4\n",
    "sm_lid": "0x1\n",
}


def tree(*, name="mlx5_0", function="0000:19:00.0", port=PORT, ports=(1,), device=None, interfaces=None, more=None, links=None):
    """One RDMA device on a PCI function, with the interfaces {name: {file: text}} beside it."""
    pci = f"{BRIDGE}/{function}" if function else "/sys/devices/virtual"
    folder = f"{pci}/infiniband/{name}"
    facts = {"hca_type": "MT4129", "fw_ver": "28.41.1000", "node_guid": "b8ce:f603:00a1:2b3c"} if device is None else device
    files = {f"{folder}/{file}": text for file, text in facts.items()}
    files |= {f"{folder}/ports/{number}/{file}": text for number in ports for file, text in port.items()}
    files |= {f"{pci}/net/{net}/{file}": text for net, holds in (interfaces or {}).items() for file, text in {"type": "1", **holds}.items()}
    files |= {f"{pci}/numa_node": "1\n"} if function else {}
    nets = {f"/sys/class/net/{net}": f"../../..{pci}/net/{net}" for net in interfaces or {}}
    return Tree(files | (more or {}), {f"/sys/class/infiniband/{name}": f"../../..{folder}", **nets, **(links or {})})


def only(files) -> tuple[Machine, object]:
    machine = network.read(files)
    assert len(machine.nics) == 1
    return machine, machine.nics[0]


def test_an_infiniband_device():
    machine, nic = only(tree(interfaces={"ibs1": {}}))
    assert machine.sources == ("InfiniBand sysfs",)
    assert (nic.name, nic.address, nic.model, nic.firmware) == ("mlx5_0", "0000:19:00.0", "ConnectX-7", "28.41.1000")
    assert (nic.rdma, nic.virtual, nic.numa, nic.guid, nic.interfaces) == (True, None, 1, "b8ce:f603:00a1:2b3c", ("ibs1",))
    (port,) = nic.ports
    assert (port.number, port.rate_bits_per_s, port.rate_text) == (1, 400e9, "400 Gb/sec (4X NDR)")
    assert (port.state, port.phys_state, port.link_layer, port.lid, port.sm_lid) == ("active", "linkup", "infiniband", 0x3A4, 1)
    assert port.mtu_bytes is None
    assert list(machine.unknown) == ["nics/mlx5_0/ports/1/mtu_bytes"] and "ibv_devinfo" in machine.unknown["nics/mlx5_0/ports/1/mtu_bytes"]
    assert machine.doubts == ()


ROCE = {**PORT, "link_layer": "Ethernet", "rate": "100 Gb/sec (4X EDR)", "lid": "0x0", "sm_lid": "0x0"}
SLOW = {**ROCE, "rate": "2.5 Gb/sec (1X SDR)"}  # how 1 Gb/s of Ethernet is printed
RATE = "rate_bits_per_s"
DOWN = {"rate_bits_per_s": None, "rate_text": "400 Gb/sec (4X NDR)"}
COUNTERS = {"counters/symbol_error": "3", "counters/port_xmit_wait": "2489603687", "counters/link_downed": "N/A (no PMA)"}
HARDWARE = {"hw_counters/out_of_sequence": "7", "hw_counters/lifespan": "12", "counters/port_xmit_data": "9"}
# The files, facts of the port, the fact of it that is unknown, and a part of the reason.
PORTS: dict[str, tuple[Tree, dict[str, Any], str, str]] = {
    **{
        f"a port that is down has no rate: {state}, {phys_state}": (
            tree(port={**PORT, "state": state, "phys_state": phys_state}), DOWN, RATE, "the port is down",
        )
        for state, phys_state in (("1: DOWN", "3: Disabled"), ("1: DOWN", "2: Polling"), ("", "3: Disabled"))
    },
    "no subnet manager": (
        tree(port={**PORT, "state": "2: INIT", "sm_lid": "0x0", "lid": "0xffff"}),
        {"state": "init", RATE: 400e9, "sm_lid": 0, "lid": None}, "lid", "a LID",
    ),
    "SDR of an adapter that does not run at it": (
        tree(port={**PORT, "rate": "10 Gb/sec (4X SDR)"}, device={"hca_type": "MT4131"}), {RATE: None}, RATE, "MT4131 ",
    ),
    **{
        f"a rate of {rate!r}": (tree(port={**PORT, "rate": rate}), {RATE: None}, RATE, "")
        for rate in ("", "fast", "-400 Gb/sec (4X NDR)", "1000000000000000000 Gb/sec (4X NDR)", "\x1b[31m400 Gb/sec (4X NDR)")
    },
    **{
        f"the largest MTU of RoCE that fits into {mtu}": (
            tree(port=ROCE, interfaces={"eth2": {"mtu": mtu, "dev_port": "0"}}),
            {"mtu_bytes": payload, RATE: 100e9, "link_layer": "ethernet", "lid": None, "sm_lid": None}, "", "",
        )
        for mtu, payload in (("1500", 1024), ("9000", 4096), ("4200", 4096), ("2200", 2048), ("600", 256), ("-1", None))
    },
    "an MTU of RoCE that is down is not in use": (
        tree(port={**ROCE, "state": "1: DOWN"}, interfaces={"eth2": {"mtu": "9000"}}), {"mtu_bytes": None, RATE: None}, "", "",
    ),
    **{
        f"Ethernet has no line coding: {rate}": (tree(port={**ROCE, "rate": rate}), {RATE: bits}, "", "")
        for rate, bits in (("10 Gb/sec (1X QDR)", 10e9), ("40 Gb/sec (4X QDR)", 40e9), ("200 Gb/sec (2X NDR)", 200e9))
    },
    "1 Gb/s is read from the interface": (tree(port=SLOW, interfaces={"eth2": {"speed": "1000"}}), {RATE: 1e9}, "", ""),
    "an interface without a speed": (tree(port=SLOW, interfaces={"eth2": {"speed": "-1"}}), {RATE: None}, RATE, "unknown speeds"),
    "errors and congestion that the kernel shows": (
        tree(port={**PORT, **COUNTERS, **HARDWARE}),
        {"counters": {"symbol_error": 3, "port_xmit_wait": 2489603687, "out_of_sequence": 7}}, "", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PORTS)
def test_port(name: str) -> None:
    files, facts, unknown, why = PORTS[name]
    machine, nic = only(files)
    (port,) = nic.ports
    assert {fact: getattr(port, fact) for fact in facts} == facts
    assert "\x1b" not in (port.rate_text or "")
    if unknown:
        assert why in machine.unknown[f"nics/mlx5_0/ports/1/{unknown}"]


def test_sdr_of_an_old_adapter_is_believed_with_a_doubt() -> None:
    machine, nic = only(tree(name="mthca0", port={**PORT, "rate": "10 Gb/sec (4X SDR)"}, device={"hca_type": "MT25208"}))
    assert nic.ports[0].rate_bits_per_s == 8e9
    assert len(machine.doubts) == 1 and "mthca0 port 1 is read at SDR" in machine.doubts[0]


BOND_PORT = {**ROCE, "gid_attrs/ndevs/0": "bond0", "gid_attrs/ndevs/1": "bond0"}
RXE = "software RDMA (rxe) over eth0"
# The files, and facts of the device.
DEVICES: dict[str, tuple[Tree, dict[str, Any]]] = {
    **{
        f"type {kind!r} has the name that other sources give it": (tree(device={"hca_type": kind}), {"model": model})
        for kind, model in (
            ("MT41692", "BlueField-3"), ("MT4099", "ConnectX-3"), ("MT25208", "MT25208"), ("MTx", "MTx"), ("", None),
        )
    },
    "a bond shows in the table of addresses only": (
        tree(name="mlx5_bond_0", port=BOND_PORT, more={"/sys/class/net/bond0/mtu": "9000"}), {"virtual": None, "interfaces": ("bond0",)},
    ),
    "software RDMA is virtual even below a PCI device": (
        tree(name="rxe0", port=ROCE, device={"parent": "eth0\n"}),
        {"virtual": RXE, "address": None, "interfaces": ("eth0",), "numa": None},
    ),
    "software RDMA without a parent": (tree(name="siw0", device={}), {"virtual": "software RDMA (siw)"}),
    "no hardware": (tree(name="other0", function=None, device={}), {"virtual": "no hardware behind it"}),
    "the link of a Xeon Phi is no network port": (
        Tree({}, {"/sys/class/infiniband/scif0": "../../devices/scif_dma_0/infiniband/scif0"}),
        {"name": "scif0", "virtual": "scif", "ports": ()},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DEVICES)
def test_device(name: str) -> None:
    files, facts = DEVICES[name]
    machine, nic = only(files)
    assert {fact: getattr(nic, fact) for fact in facts} == facts
    assert nic.virtual is None or f"nics/{nic.name}/address" not in machine.unknown


def test_no_devices_is_an_empty_machine() -> None:
    assert network.read(Tree({"/sys/class/net/lo/mtu": "65536"})) == Machine()


def test_each_port_has_its_own_interface_and_they_are_in_the_order_of_their_numbers() -> None:
    assert [port.number for port in only(tree(ports=(2, 10, 1)))[1].ports] == [1, 2, 10]
    interfaces = {"eth2": {"mtu": "1500", "dev_port": "0"}, "eth3": {"mtu": "9000", "dev_port": "1"}}
    nic = only(tree(port=ROCE, ports=(1, 2), interfaces=interfaces))[1]
    assert [port.mtu_bytes for port in nic.ports] == [1024, 4096]
    assert nic.interfaces == ("eth2", "eth3")
    assert only(DEVICES["a bond shows in the table of addresses only"][0])[1].ports[0].mtu_bytes == 4096


def test_a_missing_device_link_is_reported() -> None:
    machine, nic = only(Tree({"/sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)"}))
    assert nic.address is None
    assert "PCI device" in machine.unknown["nics/mlx5_0/address"]


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from([*PORT, "counters/symbol_error", "gid_attrs/ndevs/0"]), st.text(max_size=30)), st.text(max_size=20))
def test_no_files_make_it_raise_or_invent_a_rate(port, model):
    files = tree(port={**PORT, **port}, device={"hca_type": model, "node_guid": model, "parent": model})
    for found in only(files)[1].ports:
        assert found.rate_bits_per_s is None or 2e9 <= found.rate_bits_per_s <= 12 * 200e9
