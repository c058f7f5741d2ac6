"""Which devices and links of a machine a ceiling's parts name, so that its picture marks them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collbench.machine.model import Machine
from collbench.machine.peak.ceiling import Ceiling
from collbench.machine.peak.collective import ceilings
from collbench.machine.peak.limits import BridgeLimit, GpuLinkLimit, LimitPart, NicLimit, PcieLimit
from collbench.machine.peak.links import limiting_parts
from collbench.machine.peak.node import Job, node_of
from collbench.results.reader import row_from_json
from tests.machine.machines import dgx, laptop, mesh, pcie_box
from tests.results.rows import make_row

ALL_NICS = {f"mlx5_{number}" for number in range(8)}
SLOTS = {nic.address for nic in dgx().nics}
EIGHT = NicLimit(ports=((8, 400e9),))
FOUR = NicLimit(ports=((4, 200e9),))


def nvlink(count: int, gigabytes: float = 25, **more: object) -> GpuLinkLimit:
    """NVLinks of a GPU."""
    return GpuLinkLimit(link="NVLink", count=count, bytes_per_s=gigabytes * 1e9, **more)  # type: ignore[arg-type]


def tcp(interface: str) -> NicLimit:
    """One interface of 1 Gb/s."""
    return NicLimit(ports=((1, 1e9),), interface=interface)


@pytest.mark.parametrize(("machine", "part", "parts"), [
    (dgx(), EIGHT, ALL_NICS), (dgx(), EIGHT.of(fabric=2.0), ALL_NICS), (dgx(), EIGHT.of(shared_by=3, host="node7"), ALL_NICS),
    (dgx(), nvlink(18, nvls=True), {f"{gpu.key}>switch" for gpu in dgx().gpus}),
    (dgx(), nvlink(18, 250), set()),
    (dgx(), FOUR, set()),
    (dgx(), PcieLimit(generation=5, lanes=16, gpus=8), {gpu.address for gpu in dgx().gpus}),
    (mesh(), nvlink(12), {f"0000:03:00.0>0000:{bus}:00.0" for bus in ("43", "83", "c3")}),
    (mesh(), nvlink(4, way="pair"), {"0000:03:00.0>0000:43:00.0"}),
    (pcie_box(), PcieLimit(generation=4, lanes=8), {"0000:82:00.0"}),
    (pcie_box(), BridgeLimit(address="0000:01:00.0"), {"0000:01:00.0"}),
    (pcie_box(), BridgeLimit(address="0000:ff:00.0"), set()), (laptop(), tcp("enp2s0"), {"enp2s0"}),
    (laptop(), tcp("docker0"), {"docker0"}), (Machine(), FOUR, set()), (Machine(), nvlink(18), set()),
])  # fmt: skip
def test_parts_of_a_ceiling_and_devices(machine: Machine, part: LimitPart, parts: set[str]) -> None:
    assert limiting_parts(machine, [part]) == parts


def test_slots_that_hold_their_nics_back() -> None:
    machine = dgx()
    narrow = tuple(replace(device, link=replace(device.link, width=4)) if device.address in SLOTS else device for device in machine.pci)
    part = EIGHT.of(slots=(PcieLimit(generation=5, lanes=4),))
    assert limiting_parts(replace(machine, pci=narrow), [part]) == ALL_NICS | SLOTS
    assert limiting_parts(machine, [part]) == set()


def read_back(values: dict[str, object]) -> Ceiling:
    """The ceiling of a row that stores these values."""
    found = row_from_json({**make_row().as_json(), "ceiling": values}).ceiling
    assert found is not None
    return found


@pytest.mark.parametrize(
    "values", [{"limited_by": "NIC 4×100 Gb/s"}, {"limited_by_parts": [{"kind": "light_beam"}]}, {"limited_by_parts": 7}]
)
def test_a_row_of_another_version_has_no_parts(values: dict[str, object]) -> None:
    """Only the text is known; nothing is marked."""
    assert read_back({"kind": "topology", "bytes_per_s": 50e9, "limited_by": "", **values}).limited_by_parts == ()


@pytest.mark.parametrize("operation", ["allreduce", "alltoall", "sendrecv", "p2p"])
@pytest.mark.parametrize(("machine", "nodes"), [(dgx(), 1), (dgx(), 2), (mesh(), 1), (mesh(), 2), (pcie_box(), 1), (pcie_box(), 2)])
def test_every_model_is_found(machine: Machine, nodes: int, operation: str) -> None:
    found = ceilings(operation, Job((node_of(machine),) * nodes))
    assert found.bound is not None
    for ceiling in (found.ring, found.bound):
        assert ceiling is None or limiting_parts(machine, ceiling.limited_by_parts)
        assert ceiling is None or read_back(ceiling.as_json()) == ceiling
