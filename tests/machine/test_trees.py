"""RDMA cards on the PCI bus that the kernel has no RDMA device for: shown, marked, and never confused with what was not looked at."""

from collbench.machine.doctor.examine import examine
from collbench.machine.doctor.finding import Finding
from collbench.machine.here import readings
from collbench.machine.merge import merge
from collbench.machine.model import Machine
from collbench.machine.peak.links import PcieTree, egress_of
from collbench.report.machine import tree_lines
from tests.machine.trees import Tree, pci, tree

ROOT = "pci0000:80/0000:80:01.0"
LAN = f"{ROOT}/0000:81:00.0"
CARD, SECOND = "pci0000:80/0000:80:02.0/0000:84:00.0", "pci0000:80/0000:80:03.0/0000:85:00.0"
LAN_PORT = (
    {f"/sys/devices/{LAN}/net/eno1/{name}": text
        for name, text in {"speed": "10000", "operstate": "up", "type": "1", "mtu": "1500"}.items()},
    {"/sys/class/net/eno1": f"../../devices/{LAN}/net/eno1", f"/sys/devices/{LAN}/net/eno1/device": f"/sys/devices/{LAN}"},
)  # fmt: skip


def card(path: str, class_id: str = "0x020700", device: str = "0x1021", driver: str = "mlx5_core"):  # type: ignore[no-untyped-def]
    return pci(path, **{"class": class_id}, vendor="0x15b3", device=device, uevent=f"DRIVER={driver}\nPCI_CLASS={class_id[2:]}\n")


def machine(*cards: object, lan: bool = True) -> Machine:
    parts = [pci(LAN, **{"class": "0x020000"}, vendor="0x8086", device="0x1563"), *([LAN_PORT] if lan else []), *cards]
    files: Tree = tree(*parts)  # type: ignore[arg-type]
    return merge(readings(files))


def findings(found: Machine) -> list[Finding]:
    return [each for each in examine([found]) if each.code == "CB2210"]


def test_cards_without_a_device_are_shown_and_are_a_finding() -> None:
    found = machine(card(CARD), card(SECOND))
    assert [(nic.name, nic.model, nic.rdma, nic.rdma_missing) for nic in found.nics if nic.name != "eno1"] == [
        ("0000:84:00.0", "ConnectX-7", False, True), ("0000:85:00.0", "ConnectX-7", False, True),
    ]  # fmt: skip
    (finding,) = findings(found)
    assert finding.severity == "warning"
    assert "ConnectX-7 0000:84:00.0 and ConnectX-7 0000:85:00.0" in finding.what
    assert "driver mlx5_core" in finding.evidence and "modprobe -a mlx5_ib ib_uverbs" in finding.remedy
    assert any("ConnectX-7, no RDMA device" in line.text for line in tree_lines(found))


def test_the_ceiling_of_the_other_ports_is_doubtful() -> None:
    found = machine(card(CARD))
    egress = egress_of(found, PcieTree(found))
    assert any(doubt.startswith("0000:84:00.0: RDMA cards") for doubt in egress.doubts)
    plain = machine()
    assert not egress_of(plain, PcieTree(plain)).doubts


def test_cards_that_are_not_accused() -> None:
    device = {"/sys/class/infiniband/mlx5_0": f"../../devices/{CARD}/infiniband/mlx5_0"}
    found = machine(card(CARD), ({f"/sys/devices/{CARD}/infiniband/mlx5_0/hca_type": "MT4129"}, device))
    assert not findings(found) and [nic.name for nic in found.nics] == ["mlx5_0", "eno1"]
    assert not findings(machine(card(CARD), {"/sys/class/infiniband/mlx5_0/hca_type": "MT4129"}))  # a device whose card is unknown
    assert not findings(machine(card(CARD, driver="vfio-pci"), card(SECOND, device="0x101e")))  # of a guest, and a virtual function


def test_the_second_function_of_a_bond_is_part_of_its_device() -> None:
    device = {"/sys/class/infiniband/mlx5_bond_0": f"../../devices/{CARD}/infiniband/mlx5_bond_0"}
    found = machine(card(CARD), card(CARD[:-1] + "1"), ({f"/sys/devices/{CARD}/infiniband/mlx5_bond_0/hca_type": "MT4129"}, device))
    assert not findings(found) and [nic.name for nic in found.nics] == ["mlx5_bond_0", "eno1"]


def test_a_card_that_works_as_ethernet_is_a_note() -> None:
    port = ({f"/sys/devices/{CARD}/net/ens1/type": "1"}, {
        "/sys/class/net/ens1": f"../../devices/{CARD}/net/ens1", f"/sys/devices/{CARD}/net/ens1/device": f"/sys/devices/{CARD}",
    })  # fmt: skip
    found = machine(card(CARD, class_id="0x020000"), port)
    (finding,) = findings(found)
    assert finding.severity == "note" and "ens1" in finding.what
    assert {nic.name for nic in found.nics} == {"ens1", "eno1"}


def test_without_the_classes_of_networks_the_cards_are_shown_and_none_is_accused() -> None:
    found = machine(card(CARD), lan=False)
    assert {nic.name for nic in found.nics} == {"0000:81:00.0", "0000:84:00.0"}
    assert not findings(found)
    assert found.unknown["nics/0000:84:00.0/ports"].startswith("/sys/class/net and /sys/class/infiniband ")
