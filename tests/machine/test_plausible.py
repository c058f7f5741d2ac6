"""Figures that no machine has are named; those of every hand-made machine are not."""

import pytest
from msgspec.structs import replace

from collbench.machine.model import Gpu, GpuLink, Machine, Nic, NumaNode, PciDevice, PcieLink, Port, System, impossible
from tests.machine.machines import MACHINES


@pytest.mark.parametrize("name", MACHINES)
def test_a_real_machine_is_not_accused_nor_one_with_zero_links(name: str) -> None:
    machine = MACHINES[name]()
    assert list(impossible(machine)) == list(impossible(replace(machine, gpu_links=(GpuLink("g", "switch", 0),)))) == []


@pytest.mark.parametrize(("machine", "expected"), [
    (Machine(nics=(Nic("n", ports=(Port(rate_bits_per_s=-1.0),)),)), "a speed of -1 at nics/n"),
    (Machine(nics=(Nic("n", ports=(Port(shaped_bits_per_s=1e18),)),)), "a speed of 1e+18 at nics/n"),
    (Machine(nics=(Nic("n", ports=(Port(mtu_bytes=-9000),)),)), "an MTU of -9000 at nics/n"),
    (Machine(pci=(PciDevice("a", link=PcieLink(speed_gt_per_s=1e18)),)), "a speed in GT/s of 1e+18 at pci/a"),
    (Machine(pci=(PciDevice("a", link=PcieLink(max_width=-16)),)), "a width of -16 at pci/a"),
    (Machine(gpus=(Gpu("g", memory_bytes=1 << 62),)), "memory of 4.61169e+18 at gpus/g"),
    (Machine(gpu_links=(GpuLink("g", "switch", -18),)), "a number of links of -18 at gpu_links/g>switch"),
    (Machine(gpu_links=(GpuLink("g", None, 1, bytes_per_s=1e18),)), "a speed of 1e+18 at gpu_links/g>?"),
    (Machine(system=System(threads=-2)), "a number of processors of -2 at system"),
    (Machine(numa_nodes=(NumaNode(0, memory_bytes=-1),)), "memory of -1 at system"),
    (Machine(nics=(Nic("\x1b[2J", ports=(Port(rate_bits_per_s=-1.0),)),)), "a speed of -1 at nics/?[2J"),
])  # fmt: skip
def test_each_is_named_with_its_place(machine: Machine, expected: str) -> None:
    assert list(impossible(machine)) == [expected]
