"""The one table of PCI functions: what each is by class and vendor, and what is made up. Every reader that lists functions asks it."""

from collections.abc import Callable

import pytest

from collbench.machine.model import Gpu, Machine, PciDevice, PcieLink
from collbench.machine.readers import hwloc, lspci, nccl_xml, pci_sysfs
from collbench.machine.readers import pci as table
from tests.machine.readers import nccl_files
from tests.machine.trees import pci, tree

NVIDIA, AMD, INTEL, MELLANOX, QEMU, TEXAS, VMWARE = 0x10DE, 0x1002, 0x8086, 0x15B3, 0x1B36, 0x104C, 0x15AD
ASPEED, MATROX, AMAZON, PLX = 0x1A03, 0x102B, 0x1D0F, 0x1000
A = "0000:01:00.0"

KINDS = [
    (0x030000, NVIDIA, "gpu"), (0x030200, NVIDIA, "gpu"), (0x030000, AMD, "gpu"), (0x038000, AMD, "gpu"), (0x120000, AMD, "gpu"),
    (0x030000, INTEL, "gpu"), (0x038000, INTEL, "gpu"), (0x120000, INTEL, "other"), (0x120000, NVIDIA, "other"),
    (0x030000, ASPEED, "other"), (0x030000, MATROX, "other"), (0x030000, QEMU, "other"), (0x040300, NVIDIA, "other"),
    (0x068000, NVIDIA, "nvswitch"), (0x068000, INTEL, "other"), (0x068000, AMD, "other"), (0x020000, MELLANOX, "nic"),
    (0x020700, MELLANOX, "nic"), (0x020800, INTEL, "nic"), (0x028000, AMAZON, "nic"), (0x020000, PLX, "nic"), (0x060400, PLX, "bridge"),
    (0x060400, NVIDIA, "bridge"), (0x060000, INTEL, "other"), (0x010802, 0x144D, "other"), (0xFFFFFF, INTEL, "other"), (0, NVIDIA, "other"),
]  # fmt: skip


@pytest.mark.parametrize(("class_id", "vendor", "kind"), KINDS)
def test_a_kind_is_of_class_and_vendor(class_id: int, vendor: int, kind: str) -> None:
    assert table.kind_of(A, vendor, class_id) == kind
    assert table.kind_of(A, vendor, class_id, table.MAKERS_OR_UNNAMED) == kind


@pytest.mark.parametrize(("address", "kind"), [("0000:00:02.0", "other"), ("0001:00:02.0", "other"), ("0000:00:03.0", "gpu")])
def test_graphics_inside_an_intel_processor_are_no_gpu(address: str, kind: str) -> None:
    assert [table.kind_of(address, INTEL, class_id) for class_id in (0x030000, 0x038000)] == [kind, kind]
    assert table.kind_of("0000:00:02.0", NVIDIA, 0x030200) == "gpu"


@pytest.mark.parametrize(("vendor", "device", "class_id", "virtual"), [
    (QEMU, 0x000C, 0x060400, True), (QEMU, 0x000C, None, True), (QEMU, None, 0x060400, True), (QEMU, 0x0010, 0x010802, False),
    (TEXAS, 0x8232, 0x060400, True), (TEXAS, 0x8233, 0x060400, True), (TEXAS, 0x8240, 0x060400, False), (VMWARE, 0x07A0, 0x060400, True),
    (VMWARE, 0x07B0, 0x020000, False), (PLX, 0xC030, 0x060400, False), (None, None, None, False), (MELLANOX, 0x101E, 0x020000, True),
    (MELLANOX, 0x1012, 0x020700, True), (MELLANOX, 0x101D, 0x020000, False), (AMAZON, 0x101E, 0x020000, False),
])  # fmt: skip
def test_what_a_hypervisor_made_up_is_virtual(vendor: int | None, device: int | None, class_id: int | None, virtual: bool) -> None:
    assert table.is_virtual(A, vendor, device, class_id) is virtual


@pytest.mark.parametrize("class_id", [0x030000, 0x030200, 0x038000, 0x120000, 0x068000])
def test_a_function_without_a_vendor_is_a_gpu_or_a_switch_only_where_the_source_leaves_vendors_out(class_id: int) -> None:
    assert table.kind_of(A, None, class_id) == table.kind_of(A, NVIDIA, None) == "other"  # without a class nothing is known
    assert table.kind_of(A, None, class_id, table.MAKERS_OR_UNNAMED) == ("nvswitch" if class_id == 0x068000 else "gpu")


def test_switches_that_a_file_alone_names_and_functions_called_virtual_are_virtual() -> None:
    assert table.is_virtual("ffff:ff:01.0", None, None, 0x060400)
    assert table.is_virtual(A, INTEL, None, 0x020000, "Intel Corporation Ethernet Virtual Function 700 Series")


def _of_sysfs(vendor: int, device: int, class_id: int) -> Machine:
    facts = {"class": f"{class_id:#08x}", "vendor": f"{vendor:#06x}", "device": f"{device:#06x}"}
    return Machine(pci=pci_sysfs.read(tree(pci(f"pci0000:00/{A}", **facts))).pci)


def _of_lspci(vendor: int, device: int, class_id: int) -> Machine:
    return lspci.read(f"01:00.0 Thing [{class_id >> 8:04x}]: A part [{vendor:04x}:{device:04x}]\n", "m")


def _of_hwloc(vendor: int, device: int, class_id: int) -> Machine:
    kind = f"{class_id >> 8:04x} [{vendor:04x}:{device:04x}] [0000:0000] 00 00"
    return hwloc.read(
        f'<topology><object type="Machine"><object type="PCIDev" pci_busid="{A}" pci_type="{kind}"/></object></topology>', "m"
    )


def _of_nccl(vendor: int, device: int, class_id: int) -> Machine:
    ids = f'vendor="{vendor:#06x}" device="{device:#06x}"'
    return nccl_xml.read(nccl_files.system(nccl_files.pci(A, "", f"{class_id:#08x}", ids)), "m")


@pytest.mark.parametrize("read", [_of_sysfs, _of_lspci, _of_hwloc, _of_nccl])
@pytest.mark.parametrize(("ids", "kind", "virtual"), [
    ((NVIDIA, 0x2330, 0x030200), "gpu", False), ((ASPEED, 0x2000, 0x030000), "other", False), ((INTEL, 0x0BD5, 0x038000), "gpu", False),
    ((NVIDIA, 0x22A3, 0x068000), "nvswitch", False), ((INTEL, 0x24F0, 0x020800), "nic", False), ((MELLANOX, 0x101E, 0x020000), "nic", True),
    ((VMWARE, 0x07A0, 0x060400), "bridge", True), ((TEXAS, 0x8232, 0x060400), "bridge", True), ((PLX, 0xC030, 0x060400), "bridge", False),
])  # fmt: skip
def test_every_reader_reports_the_same(read: Callable[..., Machine], ids: tuple[int, int, int], kind: str, virtual: bool) -> None:
    (found,) = read(*ids).pci
    assert (found.kind, found.virtual, (found.vendor_id, found.device_id, found.class_id)) == (kind, virtual, ids)


@pytest.mark.parametrize(("link", "doubt"), [
    (PcieLink(32.0, 16, 32.0, 16), None), (PcieLink(2.5, 8, 32.0, 16), None), (PcieLink(), None), (PcieLink(32.0, 16), None),
    (PcieLink(32.0, 16, 32.0, 8), f"{A}: its link runs on 16 lanes, more than its maximum of 8"),
    (PcieLink(32.0, 16, 16.0, 16), f"{A}: its link runs at 32 GT/s, more than its maximum of 16"),
])  # fmt: skip
def test_a_link_that_does_more_than_it_can_is_doubted(link: PcieLink, doubt: str | None) -> None:
    assert table.link_doubt(PciDevice(A, link=link)) == doubt


def test_a_model_is_of_the_ids_and_else_of_the_brackets() -> None:
    assert table.model_of(PciDevice(A, vendor_id=MELLANOX, device_id=0x1021, name="Mellanox MT2910 Family [ConnectX-7]")) == "ConnectX-7"
    assert table.model_of(PciDevice(A, vendor_id=NVIDIA, device_id=1, name="NVIDIA Corporation GB999 [B999]")) == "B999"
    assert table.model_of(PciDevice(A, name="NVIDIA Corporation Device 9999")) is None


def test_ports_of_a_switch_are_distinguished_from_root_ports() -> None:
    chain = ("0000:00:01.0", "0000:01:00.0", "0000:02:00.0", "0000:02:01.0", "0000:00:02.0", "0000:05:00.0")
    above = (None, chain[0], chain[1], chain[1], None, chain[4])
    devices = [PciDevice(address, "bridge", parent) for address, parent in zip(chain, above, strict=True)]
    assert [device.kind for device in table.with_switches(devices)] == ["bridge", "switch", "switch", "switch", "bridge", "bridge"]


@pytest.mark.parametrize(("vendor", "device", "name", "built_in", "with_cpu"), [
    (AMD, 0x74A0, "MI300A", True, False), (AMD, 0x74B5, "MI300X VF", True, False), (AMD, 0x75A0, "MI350X", True, False),
    (AMD, 0x75A3, "MI355X", True, False), (AMD, 0x75A8, "MI350P", False, False), (AMD, 0x740F, "MI210", False, False),
    (NVIDIA, 0x2901, "B200", True, False), (NVIDIA, 0x3182, "B300", True, False), (NVIDIA, 0x2941, "GB200", True, True),
    (NVIDIA, 0x31C2, "GB300", True, True), (NVIDIA, 0x2342, "GH200 480GB", True, True), (NVIDIA, 0x2E12, "GB10", False, True),
    (NVIDIA, 0x233B, "H200 NVL", False, False), (NVIDIA, 0x2331, "H100 PCIe", False, False),
    (NVIDIA, 0x2330, "H100 SXM5 80GB", True, False),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_names_of_gpus_and_what_they_imply(vendor: int, device: int, name: str, built_in: bool, with_cpu: bool) -> None:
    assert table.part_name(vendor, device) == name
    assert table.has_built_in_links(Gpu("gpu0", model=name), 1) is built_in
    assert table.is_with_cpu(name) is with_cpu
