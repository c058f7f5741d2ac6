"""hwloc's lstopo agrees on NUMA nodes, processors, the PCI tree and NICs: of this machine, and of captured ones read as its own root."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree.ElementTree import Element, fromstring

import pytest

from collbench.machine.files import Folder
from collbench.machine.model import Machine, Nic, PciDevice
from collbench.machine.readers import linux, network
from collbench.machine.readers import linux as processors
from tests.helpers import CAPTURED_MACHINES

MACHINES = CAPTURED_MACHINES
CAPTURED = (
    "hwloc-power9-6gpu",
    pytest.param("hwloc-fakepcilocalities", marks=pytest.mark.long),  # thousands of files to unpack
    pytest.param("hwloc-32em64t-2n8c-dax-nvme-mic-dimms", marks=pytest.mark.long),
)
LSTOPO = shutil.which("lstopo-no-graphics") or shutil.which("lstopo")
NETWORK, VERBS = "2", "3"  # hwloc's osdev_type


@dataclass
class LstopoFacts:
    """Return the facts in lstopo's XML."""

    nodes: dict[int, tuple[frozenset[int], int]] = field(default_factory=dict)  # CPUs, bytes
    counts: dict[str, int] = field(default_factory=dict)
    parents: dict[str, str | None] = field(default_factory=dict)
    ids: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # class, vendor, device
    near: dict[str, frozenset[int]] = field(default_factory=dict)  # NUMA nodes of the part that it hangs from
    nics: dict[str, str | None] = field(default_factory=dict)  # name -> address


@pytest.fixture(scope="module", params=["this machine", *CAPTURED])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LstopoFacts]:
    if not LSTOPO:
        pytest.skip("needs lstopo (hwloc-nox)")
    if request.param == "this machine":
        return Path("/"), seen([])
    tarball = MACHINES / request.param / "fsroot.tar.bz2"
    if not tarball.exists():
        pytest.skip("the captured machines are not here: ../shared/machines")
    folder = tmp_path_factory.mktemp("root")
    with tarfile.open(tarball) as archive:
        members = [each for each in archive if "/memory" not in each.name]  # thousands of memory blocks, which this test does not read
        archive.extractall(folder, members, filter="data")
    (root,) = folder.iterdir()
    return root, seen(["--input", str(root)])


def seen(source: list[str]) -> LstopoFacts:
    command = [str(LSTOPO), "--of", "xml", "--whole-io", *source]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found = LstopoFacts()
    top = fromstring(done.stdout)
    for element in top.findall("object"):
        walk(element, None, frozenset(), found)
    return found


def walk(element: Element, address: str | None, near: frozenset[int], found: LstopoFacts) -> None:
    kind, here = element.get("type", ""), element.get("pci_busid")
    found.counts[kind] = found.counts.get(kind, 0) + 1
    near = bits(element.get("nodeset", "")) or near
    if kind == "NUMANode":
        found.nodes[int(element.get("os_index", ""))] = bits(element.get("cpuset", "")), int(element.get("local_memory", "0"))
    if here:
        class_id, ids = element.get("pci_type", "").split(" ")[:2]
        vendor, device = ids.strip("[]").split(":")
        found.parents[here], found.near[here] = address, near
        found.ids[here] = int(class_id, 16), int(vendor, 16), int(device, 16)
    if element.get("osdev_type") in (NETWORK, VERBS):
        found.nics[element.get("name", "")] = address
    for child in element.findall("object"):
        walk(child, here or address, near, found)


def bits(text: str) -> frozenset[int]:
    """CPUs or nodes of hwloc's "0x000000ff,,0x0", an empty word being all zeros."""
    return processors.cpu_mask(",".join(word.removeprefix("0x") or "0" for word in text.split(",")))


def test_numa_nodes_their_cpus_and_memory(both: tuple[Path, LstopoFacts]) -> None:
    root, theirs = both
    ours = {node.id: (processors.cpu_list(node.cpus), node.memory_bytes) for node in linux.read(Folder(root)).numa_nodes}
    assert ours == theirs.nodes


def test_sockets_cores_and_threads(both: tuple[Path, LstopoFacts]) -> None:
    root, theirs = both
    ours = linux.read(Folder(root)).system
    assert (ours.sockets, ours.cores, ours.threads) == tuple(theirs.counts[kind] for kind in ("Package", "Core", "PU"))


def test_pci_functions_their_ids_and_the_bridges_above_them(both: tuple[Path, LstopoFacts]) -> None:
    root, theirs = both
    ours = [device for device in linux.read(Folder(root)).pci if not without_bus(root, device)]
    assert {device.address: device.parent for device in ours} == theirs.parents
    assert {each.address: ((each.class_id or 0) >> 8, each.vendor_id or 0, each.device_id or 0) for each in ours} == theirs.ids


def test_pci_functions_are_near_the_same_numa_node(both: tuple[Path, LstopoFacts]) -> None:
    root, theirs = both
    placed = {
        device.address: device.numa for device in linux.read(Folder(root)).pci if device.address in theirs.near and device.numa is not None
    }
    assert {address: numa for address, numa in placed.items() if theirs.near[address] != {numa}} == {}


def test_nics_and_the_functions_they_are_on(both: tuple[Path, LstopoFacts]) -> None:
    root, theirs = both
    ours = {name: nic.address for nic in nics(Folder(root)) for name in (nic.name, *nic.interfaces)}
    on_pci = {name: address for name, address in theirs.nics.items() if address}
    assert {name: ours.get(name) for name in on_pci} == on_pci


def without_bus(root: Path, device: PciDevice) -> bool:
    """A bridge to which the firmware gave no bus (primary, secondary and last are 0 in its config space): lstopo leaves it out."""
    config = root / "sys/bus/pci/devices" / device.address / "config"
    return device.kind in ("bridge", "switch") and config.read_bytes()[0x18:0x1B] == b"\0\0\0"


def nics(files: Folder) -> Iterator[Nic]:
    readings: list[Machine] = [network.read(files), network.read_ethernet(files)]
    return (nic for machine in readings for nic in machine.nics)
