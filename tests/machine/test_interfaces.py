"""Network interfaces from a hand-made /sys/class/net and a fake `tc`: the real speed, or why there is none."""

import json
import shutil
from pathlib import Path

import pytest

from collbench.machine.interfaces import Interface, interface_with, read_interface

pytestmark = pytest.mark.contract


@pytest.fixture
def sysfs(tmp_path):
    """Makes interfaces: `sysfs(name, driver, speed=…, mtu=…, more=("bridge",))`; driver None: no device behind it."""

    def make(name, driver=None, *, speed=None, mtu="1500\n", more=()):
        folder = tmp_path / "net" / name
        folder.mkdir(parents=True)
        for file, text in (("speed", speed), ("mtu", mtu)):
            if text is not None:
                (folder / file).write_text(text)
        for entry in more:
            (folder / entry).mkdir()
        if driver is not None:
            (folder / "device").mkdir()
        if driver:
            (tmp_path / driver).mkdir()
            (folder / "device/driver").symlink_to(tmp_path / driver)
        return read_interface(name, tmp_path / "net")

    return make


@pytest.fixture
def tc(tmp_path, monkeypatch):
    """Install a fake `tc` that prints the given text and records its arguments."""

    def make(answer, code=0):
        folder = tmp_path / "bin"
        folder.mkdir()
        script = folder / "tc"
        script.write_text(f"#!/bin/sh\necho \"$@\" > {folder}/called\ncat <<'END'\n{answer}\nEND\nexit {code}\n")
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        return folder / "called"

    return make


@pytest.fixture(autouse=True)
def no_tc(monkeypatch):
    """Without the fixture `tc` there is none."""
    real = shutil.which
    monkeypatch.setattr("shutil.which", lambda name, path=None: None if name == "tc" and path else real(name, path=path))


INTERFACES = {
    "a real NIC": (("eth0", "mlx5_core"), {"speed": "100000\n", "mtu": "9000\n"}, Interface("eth0", 9000, 100e9, None, None)),
    "no driver": (("eth0", ""), {"speed": "1000\n"}, Interface("eth0", 1500, 1e9, None, None)),
    "a bond": (("bond0",), {"speed": "200000\n", "more": ("bonding",)}, Interface("bond0", 1500, 200e9, None, None)),
    "loopback": (("lo",), {"mtu": "65536\n"}, Interface("lo", 65536, None, "loopback", None)),
    "a real NIC that does not show its speed": (("eth0", "ixgbe"), {}, Interface("eth0", 1500, None, None, None)),
    **{f"of a virtual machine: {driver}": (("eth0", driver), {"speed": "10000\n"}, Interface("eth0", 1500, None, why, None))
        for driver, why in (("virtio_net", "virtio"), ("vmxnet3", "a virtual machine's"), ("hv_netvsc", "a virtual machine's"))},
    "virtual": (("x0",), {"speed": "10000\n"}, Interface("x0", 1500, None, "veth or the like", None)),  # it claims 10 Gb/s
}  # fmt: skip


@pytest.mark.parametrize(("names", "files", "expected"), INTERFACES.values(), ids=INTERFACES)
def test_an_interface(sysfs, names, files, expected):
    assert sysfs(*names, **files) == expected


def test_what_cannot_be_read_is_unknown_and_nothing_raises(tmp_path):
    assert read_interface("gone0", tmp_path) == Interface("gone0", 1500, None, "veth or the like", None)
    folder = tmp_path / "eth0"
    (folder / "speed").mkdir(parents=True)  # a folder where a file is expected
    (folder / "device").mkdir()
    assert read_interface("eth0", tmp_path).speed_bits_per_s is None


TBF = {"kind": "tbf", "handle": "8001:", "root": True, "options": {"rate": 125000000, "burst": 5000, "lat": 50000}}
NETEM = {"kind": "netem", "options": {"limit": 1000, "rate": {"rate": 12500000, "packetoverhead": 0}}}
PLAIN = {"kind": "noqueue", "root": True, "options": {}}


@pytest.mark.parametrize(("answer", "code", "bits"), [
    (json.dumps([TBF]), 0, 1e9), (json.dumps([PLAIN, TBF]), 0, 1e9), (json.dumps([TBF, NETEM]), 0, 1e8), (json.dumps([PLAIN]), 0, None),
    ("[]", 0, None), ('[{"kind": "fq"}]', 0, None),
    # a tc that answers something else
    ("[]", 1, None), ("no json", 0, None), ("", 0, None), ('{"a": 1}', 0, None), ('[{"options": {"rate": "1Gbit"}}]', 0, None),
    ("[3]", 0, None),
])  # fmt: skip
def test_a_shape_on_a_virtual_interface(sysfs, tc, answer, code, bits):
    called = tc(answer, code)
    assert sysfs("veth0", speed="10000\n").shaped_bits_per_s == bits
    assert called.read_text() == "-j qdisc show dev veth0\n"


def test_without_tc_there_is_no_shape(sysfs, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sysfs("veth0").shaped_bits_per_s is None


def test_a_real_interface_can_be_shaped_too_and_loopback_is_not_asked(sysfs, tc):
    called = tc(json.dumps([TBF]))
    sysfs("lo")
    assert not called.exists()
    found = sysfs("eth0", "mlx5_core", speed="100000\n")
    assert (found.speed_bits_per_s, found.shaped_bits_per_s) == (100e9, TBF["options"]["rate"] * 8)


def test_this_machines_interfaces_can_all_be_read_and_one_has_an_address():
    for folder in Path("/sys/class/net").iterdir():
        assert read_interface(folder.name).name == folder.name
    assert interface_with("127.0.0.1") == "lo"
    assert interface_with("203.0.113.77") == "lo"  # no interface has this address
