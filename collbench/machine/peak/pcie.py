"""PCIe of a machine: what each device's own link can carry, and the links above that devices share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from collbench.machine.merge import origin
from collbench.machine.model import Gpu, Machine, PciDevice
from collbench.machine.peak.link import Link, unknown
from collbench.machine.peak.rates import gpu_model, pcie
from collbench.machine.readers.part_names import is_with_cpu

_IDLE = 2.5  # GT/s that idle GPUs and emulated bridges show


@dataclass
class PcieTree:
    """The PCI devices of a machine by address. `doubts` grows by what was read and not believed."""

    machine: Machine
    doubts: list[str] = field(default_factory=list)
    devices: dict[str, PciDevice] = field(init=False)
    _fastest_below: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        self.devices = {device.address: device for device in self.machine.pci}
        self._fastest_below = {}
        for device in self.machine.pci:
            rate = _rate(device.link.max_speed_gt_per_s or device.link.speed_gt_per_s, _width(device))
            if device.parent and rate:
                self._fastest_below[device.parent] = max(rate, self._fastest_below.get(device.parent, 0.0))

    def above(self, address: str | None) -> list[str]:
        """The addresses of the bridges above a device, nearest first; ends where a parent is unknown or comes again."""
        found: list[str] = []
        device = self.devices.get(address or "")
        while device and device.parent in self.devices and device.parent not in found and device.parent != address:
            found.append(device.parent)
            device = self.devices[device.parent]
        return found

    def own(self, address: str | None) -> Link:
        """The link of a GPU or NIC up to the bridge above it, at the speed that both ends could do and the width that they have."""
        device = self.devices.get(address or "")
        if device is None:
            return unknown(f"the PCIe link{f' of {address} is' if address else 's are'} in none of the sources; give --pcie")
        speed, width = self._speed(device), _width(device)
        row = pcie(speed)
        if device.virtual or row is None or width is None:
            return unknown(f"the PCIe link of {device.address} shows no speed and width that mean anything; give --pcie")
        return _named(speed, width, source_of(self.machine, f"pci/{device.address}/link"))

    def of_gpu(self, gpu: Gpu) -> Link:
        """A GPU's own link; a file that claims more than the model can do is not believed."""
        link, model = self.own(gpu.address), gpu_model(gpu.model)
        if (model and model.c2c) or is_with_cpu(gpu.model) or gpu.c2c_links:
            return unknown(f"{gpu.model or 'the GPU'} reaches its CPU and the NICs over NVLink-C2C, not over its PCIe link")
        device = self.devices.get(gpu.address or "")
        row = pcie(self._speed(device)) if device else None
        if link.bytes_per_s is None or model is None or row is None or device is None:
            return link
        if row.generation > model.pcie_generation:
            self.doubts.append(f"{gpu.key}: PCIe Gen{row.generation} is said of a {gpu.model}, which has Gen{model.pcie_generation}")
            lower = next(speed for speed in (8.0, 16.0, 32.0, 64.0) if getattr(pcie(speed), "generation", 0) == model.pcie_generation)
            return _named(lower, _width(device) or 16, link.source)
        return link

    def shared(self, bridge: str) -> float:
        """Bytes per second of a bridge's link up; infinite when unknown, virtual, or slower than it can be."""
        device = self.devices[bridge]
        speed = device.link.max_speed_gt_per_s or device.link.speed_gt_per_s
        rate = _rate(speed, _width(device))
        if rate is None or device.virtual or (speed == _IDLE and device.link.max_speed_gt_per_s is None):
            return float("inf")
        below = self._fastest_below.get(bridge, 0.0)
        if rate < below and (device.link.max_speed_gt_per_s is None or speed == _IDLE):
            self.doubts.append(f"{bridge}: {speed:g} GT/s x{_width(device)} above faster devices is not taken literally")
            return float("inf")
        return rate

    def _speed(self, device: PciDevice) -> float | None:
        speed = device.link.max_speed_gt_per_s or device.link.speed_gt_per_s
        if speed == _IDLE and device.link.max_speed_gt_per_s is None:
            return None
        parent = self.devices.get(device.parent or "")
        ceiling = parent.link.max_speed_gt_per_s if parent and not parent.virtual else None
        return min(speed, ceiling) if speed and ceiling and ceiling > _IDLE else speed


def gen(generation: int, lanes: int, source: str) -> Link:
    """PCIe of this generation and width, as an option gives it."""
    speed = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}[generation]
    return _named(speed, lanes, source)


def narrowest(links: Iterable[Link]) -> Link:
    """The slowest of the known ones; when none is known, the first."""
    return min(links, key=lambda link: link.known)


def _named(speed: float | None, width: int, source: str) -> Link:
    row = pcie(speed)
    assert row is not None
    return Link(row.bytes_per_s(width), f"PCIe Gen{row.generation} x{width}", source, row.nccl_bytes_per_s(width))


def _width(device: PciDevice) -> int | None:
    return device.link.width or device.link.max_width


def _rate(speed: float | None, width: int | None) -> float | None:
    row = pcie(speed)
    return row.bytes_per_s(width) if row and width else None


def source_of(machine: Machine, path: str) -> str:
    """Which source a fact of the machine comes from, for people."""
    return origin(machine, path) or ", ".join(machine.sources) or "probed"
