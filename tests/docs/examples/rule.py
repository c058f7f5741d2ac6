"""A rule of the doctor: the kernel forces power saving on all PCIe links."""

from __future__ import annotations

from collections.abc import Iterator

from collbench.machine.doctor.finding import Finding, MachineView


def forced_power_saving(view: MachineView) -> Iterator[Finding]:
    """CB9901: the kernel forces ASPM on, also for devices that do not support it."""
    options = (view.machine.system.command_line or "").split()
    if "pcie_aspm=force" in options:
        yield view.finding(
            "CB9901",
            "warning",
            "the kernel forces ASPM on all PCIe links: links that sleep add latency to small messages",
            "kernel command line: pcie_aspm=force",
            "remove pcie_aspm=force from the kernel's command line, and reboot",
        )


RULES = (forced_power_saving,)
