"""RDMA devices and network interfaces from sysfs: what is a port of the machine, how fast, and what only looks like one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.machine.files import Folder
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


@pytest.mark.parametrize(
    ("kind", "model"), [("MT41692", "BlueField-3"), ("MT4099", "ConnectX-3"), ("MT25208", "MT25208"), ("MTx", "MTx"), ("", None)]
)
def test_its_model_has_the_name_that_other_sources_give_it(kind, model):
    assert only(tree(device={"hca_type": kind}))[1].model == model


def test_no_devices_is_an_empty_machine():
    assert network.read(Tree({"/sys/class/net/lo/mtu": "65536"})) == Machine()


@pytest.mark.parametrize(("state", "phys_state"), [("1: DOWN", "3: Disabled"), ("1: DOWN", "2: Polling"), ("", "3: Disabled")])
def test_a_port_that_is_down_has_no_rate_in_any_output(state, phys_state):
    machine, nic = only(tree(port={**PORT, "state": state, "phys_state": phys_state}))
    assert (nic.ports[0].rate_bits_per_s, nic.ports[0].rate_text) == (None, "400 Gb/sec (4X NDR)")
    assert "the port is down" in machine.unknown["nics/mlx5_0/ports/1/rate_bits_per_s"]


def test_a_port_without_subnet_manager_keeps_its_rate_and_shows_it():
    machine, nic = only(tree(port={**PORT, "state": "2: INIT", "sm_lid": "0x0", "lid": "0xffff"}))
    (port,) = nic.ports
    assert (port.state, port.rate_bits_per_s, port.sm_lid, port.lid) == ("init", 400e9, 0, None)
    assert "a LID" in machine.unknown["nics/mlx5_0/ports/1/lid"]


def test_roces_mtu_of_a_port_that_is_down_is_not_in_use():
    port = only(tree(port={**ROCE, "state": "1: DOWN"}, interfaces={"eth2": {"mtu": "9000"}}))[1].ports[0]
    assert (port.mtu_bytes, port.rate_bits_per_s) == (None, None)


def test_two_ports_in_the_order_of_their_numbers():
    assert [port.number for port in only(tree(ports=(2, 10, 1)))[1].ports] == [1, 2, 10]


def test_sdr_of_an_adapter_that_does_not_run_at_it_is_not_believed():
    machine, nic = only(tree(port={**PORT, "rate": "10 Gb/sec (4X SDR)"}, device={"hca_type": "MT4131"}))
    assert nic.ports[0].rate_bits_per_s is None
    assert "MT4131 " in machine.unknown["nics/mlx5_0/ports/1/rate_bits_per_s"]


def test_sdr_of_an_old_adapter_is_believed_with_a_doubt():
    machine, nic = only(tree(name="mthca0", port={**PORT, "rate": "10 Gb/sec (4X SDR)"}, device={"hca_type": "MT25208"}))
    assert nic.ports[0].rate_bits_per_s == 8e9
    assert len(machine.doubts) == 1 and "mthca0 port 1 is read at SDR" in machine.doubts[0]


@pytest.mark.parametrize("rate", ["", "fast", "-400 Gb/sec (4X NDR)", "1000000000000000000 Gb/sec (4X NDR)", "\x1b[31m400 Gb/sec (4X NDR)"])
def test_a_rate_that_is_none_is_unknown_and_gives_the_reason(rate):
    machine, nic = only(tree(port={**PORT, "rate": rate}))
    assert nic.ports[0].rate_bits_per_s is None
    assert "\x1b" not in (nic.ports[0].rate_text or "")
    assert machine.unknown["nics/mlx5_0/ports/1/rate_bits_per_s"]


ROCE = {**PORT, "link_layer": "Ethernet", "rate": "100 Gb/sec (4X EDR)", "lid": "0x0", "sm_lid": "0x0"}


@pytest.mark.parametrize(("mtu", "payload"), [("1500", 1024), ("9000", 4096), ("4200", 4096), ("2200", 2048), ("600", 256), ("-1", None)])
def test_roce_takes_the_largest_mtu_that_fits_into_the_interfaces(mtu, payload):
    port = only(tree(port=ROCE, interfaces={"eth2": {"mtu": mtu, "dev_port": "0"}}))[1].ports[0]
    assert (port.mtu_bytes, port.rate_bits_per_s, port.link_layer) == (payload, 100e9, "ethernet")


def test_roce_has_neither_lids_nor_a_subnet_manager():
    port = only(tree(port=ROCE))[1].ports[0]
    assert (port.lid, port.sm_lid) == (None, None)


@pytest.mark.parametrize(("rate", "bits"), [("10 Gb/sec (1X QDR)", 10e9), ("40 Gb/sec (4X QDR)", 40e9), ("200 Gb/sec (2X NDR)", 200e9)])
def test_ethernet_has_no_line_coding_to_take_off(rate, bits):
    assert only(tree(port={**ROCE, "rate": rate}))[1].ports[0].rate_bits_per_s == bits


def test_one_gigabit_ethernet_is_printed_as_sdr_and_read_from_its_interface():
    slow = {**ROCE, "rate": "2.5 Gb/sec (1X SDR)"}
    assert only(tree(port=slow, interfaces={"eth2": {"speed": "1000"}}))[1].ports[0].rate_bits_per_s == 1e9
    machine, nic = only(tree(port=slow, interfaces={"eth2": {"speed": "-1"}}))
    assert nic.ports[0].rate_bits_per_s is None
    assert "unknown speeds" in machine.unknown["nics/mlx5_0/ports/1/rate_bits_per_s"]


def test_each_port_of_a_two_port_device_has_its_own_interface():
    interfaces = {"eth2": {"mtu": "1500", "dev_port": "0"}, "eth3": {"mtu": "9000", "dev_port": "1"}}
    nic = only(tree(port=ROCE, ports=(1, 2), interfaces=interfaces))[1]
    assert [port.mtu_bytes for port in nic.ports] == [1024, 4096]
    assert nic.interfaces == ("eth2", "eth3")


def test_a_bond_shows_in_the_table_of_addresses_only():
    bond = {"/sys/class/net/bond0/mtu": "9000"}
    files = tree(name="mlx5_bond_0", port={**ROCE, "gid_attrs/ndevs/0": "bond0", "gid_attrs/ndevs/1": "bond0"}, more=bond)
    nic = only(files)[1]
    assert (nic.virtual, nic.interfaces, nic.ports[0].mtu_bytes) == (None, ("bond0",), 4096)


def test_software_rdma_is_virtual_even_below_a_pci_device():
    machine, nic = only(tree(name="rxe0", port=ROCE, device={"parent": "eth0\n"}))
    assert (nic.virtual, nic.address, nic.interfaces, nic.numa) == ("software RDMA (rxe) over eth0", None, ("eth0",), None)
    assert "nics/rxe0/address" not in machine.unknown
    assert only(tree(name="siw0", device={}))[1].virtual == "software RDMA (siw)"
    assert only(tree(name="other0", function=None, device={}))[1].virtual == "no hardware behind it"


def test_the_link_of_a_xeon_phi_is_no_network_port():
    files = Tree({}, {"/sys/class/infiniband/scif0": "../../devices/scif_dma_0/infiniband/scif0"})
    nic = only(files)[1]
    assert (nic.name, nic.virtual, nic.ports) == ("scif0", "scif", ())


def test_counters_are_the_errors_and_congestion_the_kernel_shows():
    counters = {"counters/symbol_error": "3", "counters/port_xmit_wait": "2489603687", "counters/link_downed": "N/A (no PMA)"}
    hardware = {"hw_counters/out_of_sequence": "7", "hw_counters/lifespan": "12", "counters/port_xmit_data": "9"}
    port = only(tree(port={**PORT, **counters, **hardware}))[1].ports[0]
    assert port.counters == {"symbol_error": 3, "port_xmit_wait": 2489603687, "out_of_sequence": 7}


def test_a_missing_device_link_is_reported():
    files = Tree({"/sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)"})
    machine, nic = only(files)
    assert nic.address is None
    assert "PCI device" in machine.unknown["nics/mlx5_0/address"]


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from([*PORT, "counters/symbol_error", "gid_attrs/ndevs/0"]), st.text(max_size=30)), st.text(max_size=20))
def test_no_files_make_it_raise_or_invent_a_rate(port, model):
    files = tree(port={**PORT, **port}, device={"hca_type": model, "node_guid": model, "parent": model})
    for found in only(files)[1].ports:
        assert found.rate_bits_per_s is None or 2e9 <= found.rate_bits_per_s <= 12 * 200e9


UP = {"speed": "100000\n", "mtu": "9000\n", "operstate": "up\n", "carrier": "1\n", "type": "1\n"}


class Net:
    """Builds /sys/class/net."""

    def __init__(self):
        self.files, self.links = {}, {}

    def real(self, name, *, function="0000:19:00.0", driver="ixgbe", numa="1", below="", **facts):
        pci = f"/sys/devices/pci0000:16/0000:16:01.0/{function}"
        self._add(name, f"{pci}{below}/net/{name}", facts)
        self.files[f"{pci}/numa_node"] = numa
        self.links[f"/sys/class/net/{name}/device"] = f"{pci}{below}"
        self.links[f"{pci}{below}/net/{name}/device"] = "../.."
        self.links[f"{pci}{below}/driver"] = f"/sys/bus/drivers/{driver}"
        self.files[f"/sys/bus/drivers/{driver}/bind"] = ""
        return self

    def made(self, name, **facts):
        self._add(name, f"/sys/devices/virtual/net/{name}", facts)
        return self

    def _add(self, name, folder, facts):
        self.files |= {f"{folder}/{file}": text for file, text in {**UP, **facts}.items()}
        self.links[f"/sys/class/net/{name}"] = f"../../..{folder}"

    def read(self) -> Machine:
        return network.read_ethernet(Tree(self.files, self.links))


def test_a_real_interface():
    machine = Net().real("eth0").made("lo", type="772").read()
    (nic,) = machine.nics
    assert (nic.name, nic.address, nic.numa, nic.rdma, nic.virtual, nic.interfaces) == ("eth0", "0000:19:00.0", 1, False, None, ("eth0",))
    (port,) = nic.ports
    assert (port.rate_bits_per_s, port.rate_text, port.mtu_bytes) == (100e9, "100000 Mb/s", 9000)
    assert (port.state, port.phys_state, port.link_layer, port.shaped_bits_per_s) == ("active", "linkup", "ethernet", None)
    assert (machine.sources, machine.unknown) == (("network sysfs",), {})


def test_without_interfaces_the_machine_is_empty():
    assert Net().made("lo", type="772").read() == Machine()


@pytest.mark.parametrize("speed", ["-1", "0", "4294967295", "1000000000000000000", "", "fast"])
def test_a_speed_that_is_none_is_unknown_and_gives_the_reason(speed):
    machine = Net().real("eth0", speed=speed).read()
    assert machine.nics[0].ports[0].rate_bits_per_s is None
    assert (
        list(machine.unknown) == ["nics/eth0/ports/1/rate_bits_per_s"]
        and "no speed" in machine.unknown["nics/eth0/ports/1/rate_bits_per_s"]
    )


def test_one_that_is_down_has_no_rate():
    machine = Net().real("eth0", operstate="down", carrier="0").read()
    assert (machine.nics[0].ports[0].state, machine.nics[0].ports[0].rate_bits_per_s) == ("down", None)
    assert machine.unknown == {"nics/eth0/ports/1/rate_bits_per_s": "the interface is down"}


@pytest.mark.parametrize(("carrier", "state"), [("1", "active"), ("0", "down"), ("", None)])
def test_a_driver_without_link_detection_shows_by_its_carrier(carrier, state):
    assert Net().real("eth0", operstate="unknown", carrier=carrier).read().nics[0].ports[0].state == state


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({}, "veth or the like"),  # a veth claims 10 Gb/s for every carrier
        ({"tun_flags": "0x1002"}, "tap"),
        ({"bridge/bridge_id": "8000"}, "bridge"),
        ({"type": "768"}, "veth or the like"),
    ],
)
def test_what_has_no_device_behind_it_is_virtual(facts, why):
    machine = Net().made("x0", speed="10000", **facts).read()
    assert (machine.nics[0].virtual, machine.nics[0].ports[0].rate_bits_per_s, machine.nics[0].address) == (why, None, None)
    assert f"virtual ({why})" in machine.unknown["nics/x0/ports/1/rate_bits_per_s"]


def test_virtio_is_virtual_and_keeps_its_place():
    nic = Net().real("eth0", function="0000:00:03.0", driver="virtio_net", below="/virtio2", numa="-1").read().nics[0]
    assert (nic.virtual, nic.address, nic.numa, nic.ports[0].rate_bits_per_s) == ("virtio", "0000:00:03.0", None, None)


def test_an_adapter_on_usb_is_not_on_its_controllers_function():
    assert Net().real("enx0", below="/usb1/1-1", speed="1000").read().nics[0].address is None


@pytest.mark.parametrize(("facts", "why"), [({"bonding/mode": "802.3ad 4"}, "bond"), ({"uevent": "DEVTYPE=vlan\nINTERFACE=x0"}, "VLAN")])
def test_what_is_made_of_real_ones_has_a_rate_and_is_no_port(facts, why):
    machine = Net().made("x0", speed="200000", **facts).read()
    assert (machine.nics[0].virtual, machine.nics[0].ports[0].rate_bits_per_s) == (why, 200e9)


def rdma(net, name="mlx5_0", function="0000:19:00.0", **files):
    folder = f"/sys/devices/pci0000:16/0000:16:01.0/{function}/infiniband/{name}"
    net.files |= {f"{folder}/node_type": "1: CA", **{f"{folder}/{file.replace('__', '/')}": text for file, text in files.items()}}
    net.links[f"/sys/class/infiniband/{name}"] = f"../../..{folder}"
    return net


def test_an_rdma_devices_interface_is_not_counted_twice():
    net = rdma(Net().real("ib0", type="32").real("eth0", function="0000:1a:00.0"))
    assert [nic.name for nic in net.read().nics] == ["eth0"]


def test_the_ports_of_a_bond_belong_to_the_rdma_device_of_the_bond():
    net = Net().real("eth2").real("eth3", function="0000:19:00.1").made("bond0", **{"bonding/mode": "802.3ad 4"})
    net.links |= {f"/sys/devices/pci0000:16/0000:16:01.0/0000:19:00.{n}/net/eth{n + 2}/master": "/sys/class/net/bond0" for n in (0, 1)}
    assert rdma(net, "mlx5_bond_0", ports__1__gid_attrs__ndevs__0="bond0").read() == Machine()


def test_software_rdma_owns_nothing():
    assert [nic.name for nic in rdma(Net().real("eth0"), "rxe0", parent="eth0").read().nics] == ["eth0"]


def test_a_file_among_the_interfaces_is_none():
    net = Net().real("eth0")
    net.files["/sys/class/net/bonding_masters"] = "bond0"
    assert [nic.name for nic in net.read().nics] == ["eth0"]


def test_names_are_shown_without_control_characters():
    assert Net().made("e\x1b[31m").read().nics[0].name == "e?[31m"


@pytest.mark.contract
def test_a_shape_is_read_of_the_live_machine_alone(monkeypatch, tmp_path):
    tc = tmp_path / "tc"
    tc.write_text(f"""#!/bin/sh\necho "$@" >> {tmp_path}/called\necho '[{{"kind":"tbf","dev":"%s","options":{{"rate":125000000}}}}]'\n""")
    tc.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: str(tc) if name == "tc" else None)
    name = next((name for name in sorted(path.name for path in Path("/sys/class/net").iterdir()) if name != "lo"), None)
    tc.write_text(tc.read_text().replace("%s", name or ""))
    Net().real("eth0").read()
    assert not (tmp_path / "called").exists()
    live = {nic.name: nic.ports[0].shaped_bits_per_s for nic in network.read_ethernet(Folder(Path("/"))).nics}
    if name in live:
        assert live[name] == 1e9
        assert (tmp_path / "called").read_text() == "-j qdisc show\n"  # once, however many interfaces


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from([*UP, "uevent", "dev_port"]), st.text(max_size=20)), st.text(max_size=10))
def test_no_files_of_an_interface_make_it_raise_or_invent_a_rate(facts, numa):
    for nic in Net().real("eth0", numa=numa, **facts).read().nics:
        rate = nic.ports[0].rate_bits_per_s
        assert rate is None or 1e6 <= rate <= 1e13
