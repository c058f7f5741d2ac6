"""A Linux machine out of its own files, sysfs and procfs, live or copied: system, NUMA nodes, PCI tree, GPUs.

NICs have their own readers, `infiniband` and `ethernet`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from collbench.machine.files import Files
from collbench.machine.model import Gpu, Machine, NumaNode, PciDevice
from collbench.machine.readers import linux_gpus, linux_iommu, linux_system, pci_sysfs, processors

KIND = "Linux sysfs and procfs"


def read(files: Files) -> Machine:
    """What the files tell; never raises. What they do not tell is None, with the reason in `unknown`."""
    compute = processors.read(files)
    bus = pci_sysfs.read(files)
    gpus = linux_gpus.read(files, bus.devices)
    devices = _near(files, gpus.devices, compute.numa_nodes)
    numa = {device.address: device.numa for device in devices}
    found = tuple(replace(gpu, numa=numa.get(gpu.key)) for gpu in gpus.gpus)
    system, reasons = linux_system.read(files, compute)
    ours = [device for device in devices if device.kind in ("gpu", "nic")]
    iommu, why = linux_iommu.state(files, frozenset(device.address for device in ours), system)
    unknown = {**compute.unknown, **reasons, **bus.unknown, **gpus.unknown, **_placeless(ours, found)}
    return Machine(
        linux_system.hostname(files), (KIND,), replace(system, iommu=iommu), compute.numa_nodes, devices, found, gpus.links,
        unknown={**unknown, "system/iommu": why} if why else unknown, doubts=bus.doubts + gpus.doubts,
    )  # fmt: skip


def _near(files: Files, devices: Sequence[PciDevice], nodes: Sequence[NumaNode]) -> tuple[PciDevice, ...]:
    """GPUs and NICs without a node get that of their local CPUs, where these are one node's: older kernels say no more."""
    return tuple(
        replace(device, numa=processors.node_of(files, f"{pci_sysfs.DEVICES}/{device.address}", nodes))
        if device.numa is None and device.kind in ("gpu", "nic")
        else device
        for device in devices
    )


def _placeless(devices: Sequence[PciDevice], gpus: Sequence[Gpu]) -> dict[str, str]:
    """Why the node of a GPU or NIC is unknown; that of virtual functions is nobody's question."""
    paths = [f"pci/{device.address}/numa" for device in devices if device.numa is None and not device.virtual]
    paths += [f"gpus/{gpu.key}/numa" for gpu in gpus if gpu.numa is None]
    return dict.fromkeys(paths, "the firmware does not say (numa_node is -1 or absent)")
