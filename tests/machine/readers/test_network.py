"""RDMA devices and network interfaces from sysfs: what is a port of the machine, how fast, and what only looks like one."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.machine.files import Folder
from collbench.machine.model import Machine, Nic, Port
from collbench.machine.readers import network
from tests.machine.trees import Tree

BRIDGE = "/sys/devices/pci0000:16/0000:16:01.0"
PORT = {
    "rate": "400 Gb/sec (4X NDR)\n", "state": "4: ACTIVE\n", "phys_state": "5: LinkUp\n", "link_layer": "InfiniBand\n", "lid": "0x3a4\n",
    "sm_lid": "0x1\n",
}  # fmt: skip


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


def port(machine: Machine) -> Port:
    (nic,) = machine.nics
    return nic.ports[0]


def test_an_infiniband_device():
    machine = network.read(tree(interfaces={"ibs1": {}}))
    (nic,) = machine.nics
    assert (machine.sources, machine.doubts, list(machine.unknown)) == (("InfiniBand sysfs",), (), ["nics/mlx5_0/ports/1/mtu_bytes"])
    assert "ibv_devinfo" in machine.unknown["nics/mlx5_0/ports/1/mtu_bytes"]
    assert (nic.name, nic.address, nic.model, nic.firmware) == ("mlx5_0", "0000:19:00.0", "ConnectX-7", "28.41.1000")
    assert (nic.rdma, nic.virtual, nic.numa, nic.guid, nic.interfaces) == (True, None, 1, "b8ce:f603:00a1:2b3c", ("ibs1",))
    assert nic.ports == (Port(1, 400e9, "400 Gb/sec (4X NDR)", "active", "linkup", "infiniband", lid=0x3A4, sm_lid=1),)


ROCE = {**PORT, "link_layer": "Ethernet", "rate": "100 Gb/sec (4X EDR)", "lid": "0x0", "sm_lid": "0x0"}
GIGABIT = {**ROCE, "rate": "2.5 Gb/sec (1X SDR)"}
RATE = "nics/{}/ports/1/rate_bits_per_s".format
COUNTERS = {
    "counters/symbol_error": "3", "counters/port_xmit_wait": "2489603687", "counters/link_downed": "N/A (no PMA)",
    "hw_counters/out_of_sequence": "7", "hw_counters/lifespan": "12", "counters/port_xmit_data": "9",
}  # fmt: skip
DEVICES: dict[str, tuple[Tree, Callable[[Machine], Any], Any]] = {
    **{f"model {kind}": (tree(device={"hca_type": kind}), lambda m: m.nics[0].model, model)
        for kind, model in (("MT41692", "BlueField-3"), ("MT4099", "ConnectX-3"), ("MT25208", "MT25208"), ("MTx", "MTx"), ("", None))},
    "no devices": (Tree({"/sys/class/net/lo/mtu": "65536"}), lambda m: m, Machine()),
    **{f"down: {state}, {phys_state}": (tree(port={**PORT, "state": state, "phys_state": phys_state}),
        lambda m: (port(m).rate_bits_per_s, port(m).rate_text, "the port is down" in m.unknown[RATE("mlx5_0")]),
        (None, "400 Gb/sec (4X NDR)", True))
        for state, phys_state in (("1: DOWN", "3: Disabled"), ("1: DOWN", "2: Polling"), ("", "3: Disabled"))},
    "without a subnet manager": (tree(port={**PORT, "state": "2: INIT", "sm_lid": "0x0", "lid": "0xffff"}),
        lambda m: (port(m).state, port(m).rate_bits_per_s, port(m).sm_lid, port(m).lid, "a LID" in m.unknown["nics/mlx5_0/ports/1/lid"]),
        ("init", 400e9, 0, None, True)),
    "the MTU of a RoCE port that is down is not in use": (tree(port={**ROCE, "state": "1: DOWN"}, interfaces={"eth2": {"mtu": "9000"}}),
        lambda m: (port(m).mtu_bytes, port(m).rate_bits_per_s), (None, None)),
    "ports in the order of their numbers": (tree(ports=(2, 10, 1)), lambda m: [each.number for each in m.nics[0].ports], [1, 2, 10]),
    "SDR of an adapter that does not run at it": (tree(port={**PORT, "rate": "10 Gb/sec (4X SDR)"}, device={"hca_type": "MT4131"}),
        lambda m: (port(m).rate_bits_per_s, "MT4131 " in m.unknown[RATE("mlx5_0")]), (None, True)),
    "SDR of an old adapter": (tree(name="mthca0", port={**PORT, "rate": "10 Gb/sec (4X SDR)"}, device={"hca_type": "MT25208"}),
        lambda m: (port(m).rate_bits_per_s, ["mthca0 port 1 is read at SDR" in doubt for doubt in m.doubts]), (8e9, [True])),
    **{f"not a rate: {rate!r}": (tree(port={**PORT, "rate": rate}),
        lambda m: (port(m).rate_bits_per_s, "\x1b" in (port(m).rate_text or ""), bool(m.unknown[RATE("mlx5_0")])), (None, False, True))
        for rate in ("", "fast", "-400 Gb/sec (4X NDR)", "1000000000000000000 Gb/sec (4X NDR)", "\x1b[31m400 Gb/sec (4X NDR)")},
    **{f"RoCE takes the largest MTU that fits into the interface's {mtu}": (tree(port=ROCE,
        interfaces={"eth2": {"mtu": mtu, "dev_port": "0"}}), lambda m: (port(m).mtu_bytes, port(m).rate_bits_per_s, port(m).link_layer),
        (payload, 100e9, "ethernet"))
        for mtu, payload in (("1500", 1024), ("9000", 4096), ("4200", 4096), ("2200", 2048), ("600", 256), ("-1", None))},
    "RoCE has neither LIDs nor a subnet manager": (tree(port=ROCE), lambda m: (port(m).lid, port(m).sm_lid), (None, None)),
    **{f"Ethernet has no line coding: {rate}": (tree(port={**ROCE, "rate": rate}), lambda m: port(m).rate_bits_per_s, bits)
        for rate, bits in (("10 Gb/sec (1X QDR)", 10e9), ("40 Gb/sec (4X QDR)", 40e9), ("200 Gb/sec (2X NDR)", 200e9))},
    "a gigabit is printed as SDR and read from its interface": (tree(port=GIGABIT, interfaces={"eth2": {"speed": "1000"}}),
        lambda m: port(m).rate_bits_per_s, 1e9),
    "the kernel prints SDR also for unknown speeds": (tree(port=GIGABIT, interfaces={"eth2": {"speed": "-1"}}),
        lambda m: (port(m).rate_bits_per_s, "unknown speeds" in m.unknown[RATE("mlx5_0")]), (None, True)),
    "each port of a two-port device has its own interface": (tree(port=ROCE, ports=(1, 2),
        interfaces={"eth2": {"mtu": "1500", "dev_port": "0"}, "eth3": {"mtu": "9000", "dev_port": "1"}}),
        lambda m: ([each.mtu_bytes for each in m.nics[0].ports], m.nics[0].interfaces), ([1024, 4096], ("eth2", "eth3"))),
    "a bond shows in the table of addresses only": (tree(name="mlx5_bond_0",
        port={**ROCE, "gid_attrs/ndevs/0": "bond0", "gid_attrs/ndevs/1": "bond0"}, more={"/sys/class/net/bond0/mtu": "9000"}),
        lambda m: (m.nics[0].virtual, m.nics[0].interfaces, port(m).mtu_bytes), (None, ("bond0",), 4096)),
    **{f"of a bond the rate of one port is printed, its interface has that of all: {carrier}": (tree(name="mlx5_bond_0",
        port={**ROCE, "gid_attrs/ndevs/0": carrier}, links={"/sys/class/net/eth2/master": "../bond0"},
        more={"/sys/class/net/bond0/speed": "200000", "/sys/class/net/bond0/bonding/mode": "802.3ad 4",
        "/sys/class/net/eth2/speed": "100000"}), lambda m: (port(m).rate_bits_per_s, port(m).rate_text), (200e9, "100 Gb/sec (4X EDR)"))
        for carrier in ("bond0", "eth2")},
    "a bond without its interface, as in a container": (tree(name="mlx5_bond_0", port=ROCE),
        lambda m: (port(m).rate_bits_per_s, "one port of this bond" in m.unknown[RATE("mlx5_bond_0")]), (None, True)),
    **{f"Amazon's driver reaches GPUs by itself or not: {more}": (tree(name="efa_0", more={f"{BRIDGE}/0000:19:00.0/{name}": text
        for name, text in more.items()}), lambda m: m.nics[0].gdr, gdr)
        for more, gdr in (({"p2p": "NVIDIA\n"}, True), ({"p2p": "NVIDIA peermem"}, True), ({"gdr": "1\n"}, True), ({"gdr": "0"}, None),
        ({"p2p": "\n"}, None), ({"p2p": "NEURON"}, None))},
    "software RDMA is virtual even below a PCI device": (tree(name="rxe0", port=ROCE, device={"parent": "eth0\n"}),
        lambda m: (m.nics[0].virtual, m.nics[0].address, m.nics[0].interfaces, m.nics[0].numa, "nics/rxe0/address" in m.unknown),
        ("software RDMA (rxe) over eth0", None, ("eth0",), None, False)),
    "software RDMA over an unknown interface": (tree(name="siw0", device={}), lambda m: m.nics[0].virtual, "software RDMA (siw)"),
    "no hardware behind it": (tree(name="other0", function=None, device={}), lambda m: m.nics[0].virtual, "no hardware behind it"),
    "the link of a Xeon Phi": (Tree({}, {"/sys/class/infiniband/scif0": "../../devices/scif_dma_0/infiniband/scif0"}),
        lambda m: [(each.name, each.virtual, each.ports) for each in m.nics], [("scif0", "scif", ())]),
    "counters of errors and congestion": (tree(port={**PORT, **COUNTERS}), lambda m: port(m).counters,
        {"symbol_error": 3, "port_xmit_wait": 2489603687, "out_of_sequence": 7}),
    "a missing device link": (Tree({"/sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)"}),
        lambda m: (m.nics[0].address, "PCI device" in m.unknown["nics/mlx5_0/address"]), (None, True)),
}  # fmt: skip


@pytest.mark.parametrize(("files", "facts", "expected"), DEVICES.values(), ids=DEVICES)
def test_an_rdma_device(files, facts, expected):
    assert facts(network.read(files)) == expected


@given(st.dictionaries(st.sampled_from([*PORT, "counters/symbol_error", "gid_attrs/ndevs/0"]), st.text(max_size=30)), st.text(max_size=20))
def test_no_files_make_it_raise_or_invent_a_rate(port, model):
    files = tree(port={**PORT, **port}, device={"hca_type": model, "node_guid": model, "parent": model})
    for found in network.read(files).nics[0].ports:
        assert found.rate_bits_per_s is None or 2e9 <= found.rate_bits_per_s <= 12 * 200e9


UP = {"speed": "100000\n", "mtu": "9000\n", "operstate": "up\n", "carrier": "1\n", "type": "1\n"}


class Net:
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


def rdma(net, name="mlx5_0", function="0000:19:00.0", **files):
    folder = f"/sys/devices/pci0000:16/0000:16:01.0/{function}/infiniband/{name}"
    net.files |= {f"{folder}/node_type": "1: CA", **{f"{folder}/{file.replace('__', '/')}": text for file, text in files.items()}}
    net.links[f"/sys/class/infiniband/{name}"] = f"../../..{folder}"
    return net


BOND = {"bonding/mode": "802.3ad 4"}
VETH = "veth or the like"
VIRTUAL = (({}, VETH), ({"tun_flags": "0x1002"}, "tap"), ({"bridge/bridge_id": "8000"}, "bridge"), ({"type": "768"}, VETH))
ETH0 = Port(1, 100e9, "100000 Mb/s", "active", "linkup", "ethernet", mtu_bytes=9000)
INTERFACES: dict[str, tuple[Net, Callable[[Machine], Any], Any]] = {
    "a real one beside the loopback": (Net().real("eth0").made("lo", type="772"), lambda m: m, Machine(sources=("network sysfs",),
        nics=(Nic("eth0", "0000:19:00.0", rdma=False, numa=1, ports=(ETH0,), interfaces=("eth0",)),))),
    "none": (Net().made("lo", type="772"), lambda m: m, Machine()),
    **{f"not a speed: {speed!r}": (Net().real("eth0", speed=speed),
        lambda m: (port(m).rate_bits_per_s, [(path, "no speed" in why) for path, why in m.unknown.items()]), (None, [(RATE("eth0"), True)]))
        for speed in ("-1", "0", "4294967295", "1000000000000000000", "", "fast")},
    "down": (Net().real("eth0", operstate="down", carrier="0"), lambda m: (port(m).state, port(m).rate_bits_per_s, m.unknown),
        ("down", None, {RATE("eth0"): "the interface is down"})),
    **{f"a driver without link detection, carrier {carrier!r}": (Net().real("eth0", operstate="unknown", carrier=carrier),
        lambda m: port(m).state, state) for carrier, state in (("1", "active"), ("0", "down"), ("", None))},
    **{f"no device behind it: {facts}": (Net().made("x0", speed="10000", **facts),  # a veth claims 10 Gb/s for every carrier
        lambda m, why=why: (m.nics[0].virtual, port(m).rate_bits_per_s, m.nics[0].address, f"virtual ({why})" in m.unknown[RATE("x0")]),
        (why, None, None, True)) for facts, why in VIRTUAL},
    "virtio keeps its place": (Net().real("eth0", function="0000:00:03.0", driver="virtio_net", below="/virtio2", numa="-1"),
        lambda m: (m.nics[0].virtual, m.nics[0].address, m.nics[0].numa, port(m).rate_bits_per_s), ("virtio", "0000:00:03.0", None, None)),
    "an adapter on USB is not on its controller's function": (Net().real("enx0", below="/usb1/1-1", speed="1000"),
        lambda m: m.nics[0].address, None),
    **{f"a {why} has a rate and is no port": (Net().made("x0", speed="200000", **facts),
        lambda m: (m.nics[0].virtual, port(m).rate_bits_per_s), (why, 200e9))
        for facts, why in ((BOND, "bond"), ({"uevent": "DEVTYPE=vlan\nINTERFACE=x0"}, "VLAN"))},
    "an RDMA device's interface is not counted twice": (rdma(Net().real("ib0", type="32").real("eth0", function="0000:1a:00.0")),
        lambda m: [each.name for each in m.nics], ["eth0"]),
    "software RDMA owns nothing": (rdma(Net().real("eth0"), "rxe0", parent="eth0"), lambda m: [each.name for each in m.nics], ["eth0"]),
    "a name without control characters": (Net().made("e\x1b[31m"), lambda m: m.nics[0].name, "e?[31m"),
}  # fmt: skip


@pytest.mark.parametrize(("net", "facts", "expected"), INTERFACES.values(), ids=INTERFACES)
def test_an_interface(net, facts, expected):
    assert facts(net.read()) == expected


def test_the_ports_of_a_bond_belong_to_the_rdma_device_of_the_bond():
    net = Net().real("eth2").real("eth3", function="0000:19:00.1").made("bond0", **{"bonding/mode": "802.3ad 4"})
    net.links |= {f"/sys/devices/pci0000:16/0000:16:01.0/0000:19:00.{n}/net/eth{n + 2}/master": "/sys/class/net/bond0" for n in (0, 1)}
    assert rdma(net, "mlx5_bond_0", ports__1__gid_attrs__ndevs__0="bond0").read() == Machine()


def test_a_file_among_the_interfaces_is_none():
    net = Net().real("eth0")
    net.files["/sys/class/net/bonding_masters"] = "bond0"
    assert [nic.name for nic in net.read().nics] == ["eth0"]


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


@given(st.dictionaries(st.sampled_from([*UP, "uevent", "dev_port"]), st.text(max_size=20)), st.text(max_size=10))
def test_no_files_of_an_interface_make_it_raise_or_invent_a_rate(facts, numa):
    for nic in Net().real("eth0", numa=numa, **facts).read().nics:
        rate = nic.ports[0].rate_bits_per_s
        assert rate is None or 1e6 <= rate <= 1e13
