"""Findings, their order and pages, and `MachineView`, the indexed machine that the rules examine."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, cached_property
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from collbench.machine.distance import Distances, closeness
from collbench.machine.model import BRIDGES, Gpu, Machine, Nic, PciDevice, Port
from collbench.machine.pcie_links import PcieLinks, bus_of
from collbench.machine.peak.rates import pcie
from collbench.machine.ports import SharedPort, nvlink_management, shared_ports

# The page of each code (pages.toml): its meaning, how to check it by hand, what to do, and its sources.

_FILE = Path(__file__).with_name("pages.toml")


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """The explanation of a code in pages.toml: meaning, manual check, remedy, and sources (URLs)."""

    code: str
    title: str
    means: str
    check: str
    remedy: str
    sources: list[str]


@cache
def pages() -> dict[str, Page]:
    """Return all pages by code, in order of the codes."""
    import tomllib

    table = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return {code: Page(code=code, **facts) for code, facts in sorted(table.items())}


Severity = Literal["severe", "warning", "note"]
SEVERITIES: Final[tuple[Severity, ...]] = ("severe", "warning", "note")


class Finding(msgspec.Struct, frozen=True):
    """A problem of a machine.

    code        such as "CB2101"; `pages` has a page for each
    severity    "severe": bandwidth is lost or the job fails; "warning": slower than possible; "note": worth a check
    hostname    None when the machine's name is unknown, or when the problem is between machines
    what        one sentence; evidence: what was read and where; remedy: what to do
    """

    code: str
    severity: Severity
    hostname: str | None
    what: str
    evidence: str
    remedy: str


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings with the most severe first, then by code and host."""
    return sorted(findings, key=lambda finding: (SEVERITIES.index(finding.severity), finding.code, finding.hostname or "", finding.what))


# A machine as the rules examine it, indexed once.

_LEAST_BYTES_PER_S = 2e9  # gigabit ports of a board have slower slots; they carry no collectives
_KINDS = {"gpu": "GPU", "nic": "NIC", "other": "device", "bridge": "PCI bridge", "root": "root port", "switch": "PCIe switch port"}


class NearestNics(NamedTuple):
    """The shortest known path from a GPU to usable RDMA devices, and the devices at that distance; "" and none if no path is known."""

    path: str
    nics: tuple[Nic, ...]


class MachineView:
    """A machine as the rules examine it: its devices by address, its distances, and facts that several rules need."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.pcie_links = PcieLinks(machine)
        self.pci = self.pcie_links.devices
        self.distances = Distances(machine)
        self._nearest: dict[str, NearestNics] = {}

    def finding(self, code: str, severity: Severity, what: str, evidence: str, remedy: str) -> Finding:
        """Return a finding of this machine."""
        return Finding(code, severity, self.machine.hostname, what, evidence, remedy)

    @cached_property
    def virtual_machine(self) -> bool | None:
        """Whether a hypervisor emulates the devices; None when unknown."""
        if self.machine.system.virtualization is not None:
            return self.machine.system.virtualization != ""
        return True if any(device.virtual and device.kind in BRIDGES for device in self.machine.pci) else None

    @cached_property
    def gpu_names(self) -> dict[str, str]:
        """The names of the GPUs for users, by key."""
        return {gpu.key: gpu_name(gpu) for gpu in self.machine.gpus}

    @cached_property
    def rdma(self) -> tuple[Nic, ...]:
        """The physical RDMA devices."""
        return tuple(nic for nic in self.real_nics if nic.rdma)

    @cached_property
    def real_nics(self) -> tuple[Nic, ...]:
        """The NICs without software interfaces, and without virtual functions of a card that is itself listed."""
        hardware = [nic for nic in self.machine.nics if nic.virtual is None]
        functions = [nic for nic in hardware if nic.address in self.pci and self.pci[nic.address or ""].virtual]
        buses_of_cards = {bus_of(nic.address) for nic in hardware if nic.address and nic not in functions}
        return tuple(nic for nic in hardware if nic not in functions or bus_of(nic.address or "") not in buses_of_cards)

    @cached_property
    def network(self) -> tuple[Nic, ...]:
        """The physical RDMA devices without those that lead to NVLink switches."""
        management = nvlink_management(self.machine)
        return tuple(nic for nic in self.rdma if nic.name not in management)

    @cached_property
    def usable(self) -> tuple[Nic, ...]:
        """The RDMA devices of the network except those that a source reports as down."""
        return tuple(nic for nic in self.network if not nic.ports or any(not is_down(port) for port in nic.ports))

    @cached_property
    def shared_ports(self) -> tuple[SharedPort, ...]:
        """Devices that are, or may be, functions of one port."""
        return shared_ports(self.machine)

    @cached_property
    def endpoints(self) -> tuple[PciDevice, ...]:
        """The PCI functions that collectives use: GPUs, and NICs faster than a board's gigabit ports."""
        devices = [device for device in self.machine.pci if device.kind in ("gpu", "nic") and not device.virtual]
        max_rates = [bytes_per_s(device.link.max_speed_gt_per_s, device.link.max_width) for device in devices]
        return tuple(device for device, rate in zip(devices, max_rates, strict=True) if rate is None or rate >= _LEAST_BYTES_PER_S)

    def path_to(self, address: str) -> tuple[PciDevice, ...]:
        """Return a device and the bridges above it, nearest first."""
        return (self.pci[address], *self.distances.bridges(address))

    def nearest(self, gpu: Gpu) -> NearestNics:
        """Return the usable RDMA devices at the shortest known path from a GPU."""
        if gpu.key not in self._nearest:
            paths = [(self.distances.path(gpu.key, nic.key), nic) for nic in self.usable]
            shortest = min((path for path, _ in paths if path), key=closeness, default="")
            self._nearest[gpu.key] = NearestNics(shortest, tuple(nic for path, nic in paths if path and path == shortest))
        return self._nearest[gpu.key]

    def name(self, address: str) -> str:
        """Return the name of a PCI device for users: "GPU 0 (0000:19:00.0)", "mlx5_0 (0000:1a:00.0)", "switch 0000:16:00.0"."""
        for gpu in self.machine.gpus:
            if gpu.address == address:
                return gpu_name(gpu)
        nics = [nic.name for nic in self.machine.nics if nic.address == address and nic.name != address]
        kind = self.pci[address].kind if address in self.pci else "device"
        return f"{', '.join(nics)} ({address})" if nics else f"{_KINDS.get(kind, kind)} {address}"


def gpu_name(gpu: Gpu) -> str:
    """Return the name of a GPU for users: "GPU 0 (0000:19:00.0)", or the known part of it."""
    if gpu.index is None:
        return f"GPU {gpu.key.removeprefix('gpu')}"
    return f"GPU {gpu.index} ({gpu.address})" if gpu.address else f"GPU {gpu.index}"


def same_host(host: str, hostname: str | None) -> bool:
    """Return whether a log's host and a machine's name match, with or without the domain. True where either is unknown."""
    return not host or hostname is None or host.partition(".")[0].lower() == hostname.partition(".")[0].lower()


def is_down(port: Port) -> bool:
    """Return whether a source reports that the port carries no data. "init" and "armed" wait for a subnet manager and count as down."""
    return port.state in {"down", "init", "armed"} or (port.state is None and port.phys_state in {"disabled", "polling", "sleep"})


def bytes_per_s(speed: float | None, width: int | None) -> float | None:
    """Return the rate of a PCIe link in one direction after line coding; None when its speed (GT/s) or width (lanes) is unknown."""
    row = pcie(speed)
    return row.bytes_per_s(width) if row and width else None


def gigabytes(bytes_per_second: float) -> str:
    """Return a rate as text: "31.5 GB/s"."""
    return f"{bytes_per_second / 1e9:.3g} GB/s"
