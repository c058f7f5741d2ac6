"""Findings of `collbench doctor`, pages of `collbench explain`, and errors of files that describe a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from collbench.machine.doctor.compare import examined
from collbench.machine.doctor.examine import examine
from collbench.machine.doctor.finding import Finding
from collbench.machine.model import Machine, PcieLink
from collbench.machine.snapshot import machines_of, to_json
from collbench.report.doctor import table_lines
from tests.doctor.machines import changed, with_link, with_port, with_system
from tests.machine.machines import dgx, laptop, mesh, pcie_box
from tests.messages import Message


def _without(document: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != key}


def _findings(*machines: Machine) -> str:
    return _shown(examine(machines), machines)


def _since(now: Machine, good: Machine) -> str:
    return _shown(examined([now], [good]), [now])


def _shown(findings: Sequence[Finding], machines: Sequence[Machine]) -> str:
    return "\n".join(line.text for line in table_lines(findings, machines, ()))


def _slow_slot() -> Machine:
    machine = dgx()
    address = machine.nics[0].address or ""
    return with_link(machine, address, PcieLink(32.0, 4, 32.0, 16))


MESSAGES: Mapping[str, Message] = {
    "a healthy machine": lambda: _findings(dgx()),
    "a laptop": lambda: _findings(laptop()),
    "GPUs on PCIe": lambda: _findings(pcie_box()),
    "a NIC on few lanes": lambda: _findings(_slow_slot()),
    "a port that is down": lambda: _findings(with_port(dgx(), "mlx5_3", state="down", phys_state="disabled", rate_bits_per_s=None)),
    "a translating IOMMU": lambda: _findings(with_system(dgx(), iommu="translating", virtualization="")),
    "nodes that differ": lambda: _findings(*(replace(dgx(), hostname=f"node{n}") for n in (1, 2, 3)), replace(mesh(), hostname="node4")),
    "fewer GPUs than in the snapshot": lambda: _since(replace(dgx(), gpus=dgx().gpus[:7]), dgx()),
    "a GPU without its memory size": lambda: _findings(changed(dgx(), "gpus", dgx().gpus[0].key, memory_bytes=None)),
    "not a machine": lambda: machines_of({"schema": 1, "machines": [_without(to_json(Machine()), "disagreements")]}, "x.json"),
}
