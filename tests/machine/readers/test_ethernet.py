"""Network interfaces out of /sys/class/net: what is a port of the machine, how fast, and what only looks like one."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.machine.files import Folder
from collbench.machine.model import Machine
from collbench.machine.readers import network
from tests.machine.trees import Tree

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
def test_no_files_make_it_raise_or_invent_a_rate(facts, numa):
    for nic in Net().real("eth0", numa=numa, **facts).read().nics:
        rate = nic.ports[0].rate_bits_per_s
        assert rate is None or 1e6 <= rate <= 1e13
