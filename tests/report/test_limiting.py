"""What a ceiling's words mean on a machine: the parts that its picture marks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collbench.machine.model import Machine
from collbench.machine.peak.collective import ceilings
from collbench.machine.peak.links import limiting_parts
from collbench.machine.peak.node import Job, node_of
from tests.machine.machines import dgx, laptop, mesh, pcie_box

ALL_NICS = {f"mlx5_{number}" for number in range(8)}
SLOTS = {nic.address for nic in dgx().nics}


@pytest.mark.parametrize(
    ("machine", "words", "parts"),
    [
        (dgx(), "NIC 8×400 Gb/s", ALL_NICS),
        (dgx(), "NIC 8×400 Gb/s, fabric 2:1", ALL_NICS),
        (dgx(), "NVLink 18×25 GB/s with NVLink SHARP", {f"{gpu.key}>switch" for gpu in dgx().gpus}),
        (dgx(), "NVLink 18×250 GB/s", set()),
        (dgx(), "NIC 4×200 Gb/s", set()),
        (dgx(), "PCIe Gen5 x16 of 8 GPUs", {gpu.address for gpu in dgx().gpus}),
        (mesh(), "NVLink 12×25 GB/s", {f"0000:03:00.0>0000:{bus}:00.0" for bus in ("43", "83", "c3")}),
        (mesh(), "NVLink 4×25 GB/s of a pair", {"0000:03:00.0>0000:43:00.0"}),
        (pcie_box(), "PCIe Gen4 x8", {"0000:82:00.0"}),
        (pcie_box(), "the PCIe link above 0000:01:00.0", {"0000:01:00.0"}),
        (pcie_box(), "the PCIe link above 0000:ff:00.0", set()),
        (laptop(), "NIC enp2s0 1 Gb/s, TCP", {"enp2s0"}),
        (laptop(), "NIC docker0 1 Gb/s, TCP", set()),
        (laptop(), "memory copy and sum", set()),
        (Machine(), "NIC 4×100 Gb/s", set()),
        (Machine(), "NVLink 18×25 GB/s", set()),
    ],
)  # fmt: skip
def test_words_and_parts(machine: Machine, words: str, parts: set[str]) -> None:
    assert limiting_parts(machine, words) == parts


def test_slots_that_hold_their_nics_back() -> None:
    machine = dgx()
    narrow = tuple(replace(device, link=replace(device.link, width=4)) if device.address in SLOTS else device for device in machine.pci)
    assert limiting_parts(replace(machine, pci=narrow), "NIC 8×400 Gb/s in slots of PCIe Gen5 x4") == ALL_NICS | SLOTS
    assert limiting_parts(machine, "NIC 8×400 Gb/s in slots of PCIe Gen5 x4") == set()


@pytest.mark.parametrize("operation", ["allreduce", "alltoall", "sendrecv", "p2p"])
@pytest.mark.parametrize(("machine", "nodes"), [(dgx(), 1), (dgx(), 2), (mesh(), 1), (mesh(), 2), (pcie_box(), 1), (pcie_box(), 2)])
def test_whatever_the_model_names_is_found(machine: Machine, nodes: int, operation: str) -> None:
    found = ceilings(operation, Job((node_of(machine),) * nodes))
    assert found.bound is not None
    assert all(limiting_parts(machine, ceiling.limited_by) for ceiling in (found.ring, found.bound) if ceiling is not None)
