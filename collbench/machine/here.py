"""This machine, read live: the kernel's files and system calls; and any Linux machine from a copy of its files."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from msgspec.structs import replace

from collbench.machine.files import Files, Folder
from collbench.machine.merge import merge
from collbench.machine.model import Machine, Nic, PciDevice, System, with_reasons
from collbench.machine.readers import linux, network, pci
from collbench.machine.readers.rdma import is_bond
from collbench.machine.readers.text import printable

# A Linux machine from its files, live or copied: one reading per reader, and network cards without a device.

_FILES = "sysfs"
_NO_CLASS = "/sys/class/net and /sys/class/infiniband are missing or were not copied"
_NO_DEVICE = "the kernel has no RDMA device for it"


def readings(files: Files) -> list[Machine]:
    """Return the result of each reader of the kernel's files. Lists that the files do not cover have reasons in `unknown`."""
    tree = linux.read(files)
    rdma = network.read(files)
    ethernet = network.read_ethernet(files)
    has_classes = bool(files.names(network.ETHERNET_CLASS) or files.names(network.CLASS))
    cards = _cards(tree.pci, (*rdma.nics, *ethernet.nics), has_classes)
    if not has_classes and not cards.nics:
        tree = replace(tree, unknown={"nics": _NO_CLASS, **tree.unknown})
    listed = {"pci", "gpus", "nics"}
    if tree.gpus and all(gpu.vendor == "amd" for gpu in tree.gpus):  # the kernel lists xGMI, but not NVLinks
        listed.add("gpu_links")
    nics = [with_reasons(machine, _FILES, {"nics"}) for machine in (rdma, ethernet, cards) if machine.sources]
    return [with_reasons(tree, _FILES, listed), *nics]


def _cards(devices: tuple[PciDevice, ...], nics: tuple[Nic, ...], has_classes: bool) -> Machine:
    """Return the network cards without a device, by their interface if they have one: RDMA cards, and all where no device is visible."""
    if any(nic.rdma and nic.virtual is None and nic.address is None for nic in nics):
        return Machine()  # the card of this device is unknown
    with_device = {nic.address for nic in nics if nic.rdma}
    names = {nic.address: nic.name for nic in nics if nic.address}
    bonded = {
        pci.card_of(nic.address) for nic in nics if nic.rdma and nic.address and is_bond(nic.name)
    }  # one device for all its functions
    cards = []
    for device in devices:
        if device.kind != "nic" or device.virtual or device.address in with_device or pci.card_of(device.address) in bonded:
            continue
        card = pci.nic(device, frozenset())
        if not has_classes:
            cards.append(card)
        elif pci.is_rdma_card(device) and not (device.driver or "").startswith("vfio"):  # else passed to a guest
            cards.append(replace(card, rdma=False, rdma_missing=True, name=names.get(device.address, card.name)))
    why = _NO_DEVICE if has_classes else _NO_CLASS
    unknown = {f"nics/{card.name}/ports": why for card in cards if card.name == card.address}
    return Machine(sources=(linux.KIND,), nics=tuple(cards), unknown=unknown) if cards else Machine()


# This machine, live: the GPU driver, the kernel's files, and system calls.

_CALLS = "system calls"


def this_machine() -> Machine:
    """Return the machine that this process runs on, as far as it is visible. Never raises; unknown facts have reasons in `unknown`."""
    from collbench.machine.readers import nvml

    driver = nvml.read()
    if driver.sources:
        driver = with_reasons(driver, nvml.KIND, {"gpus", "gpu_links", "peer_access"})
    return merge([driver, *readings(Folder(Path("/"))), read_system_calls(Path("/dev/shm"))])


def read_system_calls(shared_memory: Path) -> Machine:
    """Return the host name and the size of the shared-memory file system, from system calls."""
    machine = with_reasons(Machine(printable(socket.gethostname()) or None, (_CALLS,)), _CALLS)
    try:
        status = os.statvfs(shared_memory)
    except OSError as why:
        return replace(machine, unknown={**machine.unknown, "system/shm_bytes": f"{shared_memory}: {why.strerror}"})
    return replace(machine, system=System(shm_bytes=status.f_blocks * status.f_frsize))
