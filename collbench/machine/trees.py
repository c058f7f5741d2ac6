"""A Linux machine out of its own files, live or copied: one reading per reader, and the network cards that no device stands for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from collbench.machine.files import Files
from collbench.machine.lists import with_reasons
from collbench.machine.model import Machine, Nic, PciDevice
from collbench.machine.readers import ethernet, infiniband, linux, pci_parts

_FILES = "sysfs"
_NO_CLASS = "/sys/class/net and /sys/class/infiniband are missing or were not copied"
_NO_DEVICE = "the kernel has no RDMA device for it"


def readings(files: Files) -> list[Machine]:
    """Return what each reader of the kernel's files finds. Lists that the files do not tell of have their reasons."""
    tree, rdma, plain = linux.read(files), infiniband.read(files), ethernet.read(files)
    classes = bool(files.names(ethernet.CLASS) or files.names(infiniband.CLASS))
    cards = _cards(tree.pci, (*rdma.nics, *plain.nics), classes)
    if not classes and not cards.nics:
        tree = replace(tree, unknown={"nics": _NO_CLASS, **tree.unknown})
    counted = tree.gpus and all(gpu.vendor == "amd" for gpu in tree.gpus)  # the kernel lists xGMI, and no NVLinks
    listed = {"pci", "gpus", "nics", *(("gpu_links",) if counted else ())}
    network = [with_reasons(each, _FILES, {"nics"}) for each in (rdma, plain, cards) if each.sources]
    return [with_reasons(tree, _FILES, listed), *network]


def _cards(pci: tuple[PciDevice, ...], nics: tuple[Nic, ...], classes: bool) -> Machine:
    """The network functions that no device stands for: of RDMA cards, and, where no device can be seen at all, of all cards."""
    if any(nic.rdma and nic.virtual is None and nic.address is None for nic in nics):
        return Machine()  # which card this device is on is unknown
    owned = {nic.address for nic in nics if nic.rdma}
    free = [each for each in pci if each.kind == "nic" and not each.virtual and each.address not in owned]
    found = list(_without_device(free, nics) if classes else (pci_parts.nic(each, frozenset()) for each in free))
    why = _NO_DEVICE if classes else _NO_CLASS
    unknown = {f"nics/{nic.name}/ports": why for nic in found if nic.name == nic.address}
    return Machine(sources=(linux.KIND,), nics=tuple(found), unknown=unknown) if found else Machine()


def _without_device(free: list[PciDevice], nics: tuple[Nic, ...]) -> Iterator[Nic]:
    """RDMA cards whose driver made no RDMA device, under the name of their interface where they have one. Not those given to guests."""
    names = {nic.address: nic.name for nic in nics if nic.address}
    for device in free:
        if pci_parts.is_rdma_card(device) and not (device.driver or "").startswith("vfio"):
            bare = replace(pci_parts.nic(device, frozenset()), rdma=False, rdma_missing=True)
            yield replace(bare, name=names.get(device.address, bare.name))
