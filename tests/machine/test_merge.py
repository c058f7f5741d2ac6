"""Several sources of one machine: the first with a fact wins; that source and the sources that contradict it are stored."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from collbench.machine.merge import merge, origin
from collbench.machine.model import SWITCH, Disagreement, Gpu, GpuLink, Machine, Nic, NumaNode, PciDevice, PcieLink, Port, System
from tests.machine.any_machine import MACHINES
from tests.machine.machines import has_doubt

A, B = "0000:19:00.0", "0000:3b:00.0"
SYSFS = Machine(
    hostname="node1", sources=("sysfs",), system=System(architecture="x86_64", threads=96),
    pci=(PciDevice(A, "gpu", "0000:18:00.0", numa=0), PciDevice(B, "gpu", "0000:3a:00.0", numa=1)),
    gpus=(Gpu(A, None, A, "nvidia"), Gpu(B, None, B, "nvidia", numa=1)),
    nics=(Nic("mlx5_0", "0000:1a:00.0", rdma=True, interfaces=("ib0",), ports=(Port(rate_bits_per_s=200e9, state="active"),)),),
)  # fmt: skip
MATRIX = Machine(
    sources=("nvidia-smi topo -m",),
    gpus=(Gpu("gpu0", 0, vendor="nvidia", numa=0), Gpu("gpu1", 1, vendor="nvidia", numa=0)),
    gpu_links=(GpuLink("gpu0", "gpu1", 12), GpuLink("gpu1", "gpu0", 12)), nics=(Nic("mlx5_0"),),
    paths={("gpu0", "gpu1"): "NV12", ("gpu0", "mlx5_0"): "PIX", ("mlx5_0", "gpu1"): "SYS"},
    peer_access={("gpu0", "gpu1"): "OK"},
    unknown={"gpus/gpu0/memory_bytes": "the matrix does not print it", "gpus/gpu1/numa": "empty"},
)  # fmt: skip


COUNTED = Machine(
    sources=("nvidia-smi nvlink -s",), gpus=MATRIX.gpus, gpu_links=(GpuLink("gpu0", None, 12, bytes_per_s=25e9), GpuLink("gpu1", None, 10))
)
TOOL = Machine(sources=("lspci",), system=System(architecture="aarch64", kernel="6.1"), numa_nodes=(NumaNode(0, "0-47"),))
QUIET = Machine(sources=("first",), nics=(Nic("mlx5_0"),), pci=(PciDevice(A),))
LOUD = Machine(sources=("second",), nics=(Nic("mlx5_0", rdma=True, gdr=False),), pci=(PciDevice(A, "gpu", virtual=True),))
ONE = Machine(sources=("one",), pci=(PciDevice(A, link=PcieLink(2.5, 16)),), nics=(Nic("mlx5_0", ports=(Port(2, lid=7), Port(1))),))
TWO = Machine(sources=("two",), pci=(PciDevice(A, link=PcieLink(2.5, 16, 16.0, 16)),), nics=(Nic("mlx5_0", ports=(Port(2, sm_lid=1),)),))
TURNED = replace(SYSFS, gpus=(Gpu(A, 1, A, "nvidia"), Gpu(B, 0, B, "nvidia")))
NUMBERED = replace(SYSFS, gpus=(Gpu(A, 0, A, uuid="GPU-a"), Gpu(B, 1, B, uuid="GPU-b")))
SERIAL = Machine(sources=("nvlink",), gpus=(Gpu("gpu0", 0, uuid="GPU-b"),), gpu_links=(GpuLink("gpu0", None, 18),))
CONTAINER = replace(MATRIX, gpus=MATRIX.gpus[:1])
INDEXED = Machine(sources=("nvlink",), gpus=(Gpu("gpu1", 1, model="A100"),))
ASPEED = replace(SYSFS, gpus=(Gpu("0000:03:00.0", None, "0000:03:00.0", "amd"), *SYSFS.gpus))
SWITCHED = replace(MATRIX, gpu_links=(GpuLink("gpu0", SWITCH, 18), GpuLink("gpu1", SWITCH, 18)))
ETHERNET = Machine(sources=("net",), nics=(Nic("ib0", "0000:1a:00.0", ports=(Port(mtu_bytes=2044),)), Nic("eth0", "0000:e1:00.0")))
LSPCI = Machine(sources=("lspci",), nics=(Nic("0000:1a:00.0", "0000:1a:00.0", model="MT28908"),))
PAIR = Machine(sources=("nccl",), nics=(Nic("mlx5_1", "0000:1a:00.0"), Nic("mlx5_2", "0000:1a:00.0")))
BARE = replace(MATRIX, nics=(Nic("NIC0"), Nic("NIC1")), paths={("gpu0", "NIC1"): "PIX", ("gpu0", "gpu1"): "NV12"})
SILENT = Machine(unknown={"gpus": "no driver", "nics/mlx5_0/ports/1/rate_bits_per_s": "not printed", "pci/0000:00:00.0/parent": "root"})
REASONS = [Machine(unknown={"gpus": why, "system/kernel": why, "nics/mlx5_0/ports/1/lid": why}) for why in ("first", "second")]
MODELS = [Machine(sources=(name,), gpus=(Gpu(A, address=A, model=name),)) for name in ("NVIDIA H100 80GB HBM3", "GH100 [H100 SXM5]")]
ROUND = [Machine(sources=("one",), pci=(PciDevice(A, parent=B),)), Machine(sources=("two",), pci=(PciDevice(B, parent=A),))]


def others(machine: Machine) -> list[tuple[str, str, str]]:
    """What contradicts the facts that are taken."""
    return [(each.path, each.taken, each.other) for each in machine.disagreements]


def device_names(machine: Machine) -> list[str]:
    return [nic.name for nic in machine.nics]


CASES: dict[str, tuple[list[Machine], Callable[[Machine], Any], Any]] = {
    "nothing gives an empty machine": ([], lambda m: m, Machine()),
    "the first that reports a fact wins": ([SYSFS, TOOL], lambda m: (m.system, m.numa_nodes, m.sources),
        (System(architecture="x86_64", threads=96, kernel="6.1"), (NumaNode(0, "0-47"),), ("sysfs", "lspci"))),
    "the source of each fact": ([SYSFS, TOOL], lambda m: [origin(m, f"system/{name}") for name in ("architecture", "kernel")],
        ["sysfs", "lspci"]),
    "a source that contradicts": ([SYSFS, TOOL], lambda m: m.disagreements,
        (Disagreement("system/architecture", "x86_64", "sysfs", "aarch64", "lspci"),)),
    "a default reports nothing": ([QUIET, LOUD],
        lambda m: (m.nics[0].rdma, m.nics[0].gdr, m.pci[0].kind, m.pci[0].virtual, m.disagreements), (True, False, "gpu", True, ())),
    "links and ports are merged field by field": ([ONE, TWO], lambda m: (m.pci[0].link, m.nics[0].ports),
        (PcieLink(2.5, 16, 16.0, 16), (Port(1), Port(2, lid=7, sm_lid=1)))),
    "the sources of fields of links and ports": ([ONE, TWO],
        lambda m: (m.origins[f"pci/{A}/link/max_width"], m.origins["nics/mlx5_0/ports/2/lid"]), ("two", "one")),
    "names are each source's own words": (MODELS, lambda m: m.disagreements, ()),
    "host names short and long are one": ([Machine(hostname=name, sources=(name,)) for name in ("node1", "node1.cluster", "node2")],
        lambda m: [each.other for each in m.disagreements], ["node2"]),
    "numbers are the PCI order of the GPUs": ([SYSFS, MATRIX],
        lambda m: ([(gpu.key, gpu.index, gpu.numa) for gpu in m.gpus], [(link.a, link.b) for link in m.gpu_links], others(m)),
        ([(A, 0, 0), (B, 1, 1)], [(A, B), (B, A)], [(f"gpus/{B}/numa", "1", "0")])),
    "paths and peer access by keys": ([SYSFS, MATRIX], lambda m: (m.paths, m.peer_access),
        ({(A, B): "NV12", (A, "mlx5_0"): "PIX", ("mlx5_0", B): "SYS"}, {(A, B): "OK"})),
    "an index that a source gives wins over the order": ([TURNED, MATRIX], lambda m: m.paths[B, "mlx5_0"], "PIX"),
    "a serial number wins over both": ([NUMBERED, SERIAL], lambda m: m.links_of(B), 18),
    "unequal numbers are not matched but reported": ([SYSFS, CONTAINER],
        lambda m: ([gpu.key for gpu in m.gpus], m.paths, m.gpu_links, has_doubt(m, "1 GPUs where 2 have PCI addresses")),
        ([A, B], {}, (), True)),
    "without addresses anywhere the index is the key": ([MATRIX, INDEXED], lambda m: [(gpu.key, gpu.model) for gpu in m.gpus],
        [("gpu0", None), ("gpu1", "A100")]),
    "other vendors do not count for nvidia-smi": ([ASPEED, MATRIX], lambda m: m.paths[A, B], "NV12"),
    "far ends are worth more than counts": ([COUNTED, MATRIX], lambda m: (m.gpu_links, m.origins["gpu_links"]),
        ((GpuLink("gpu0", "gpu1", 12, bytes_per_s=25e9), GpuLink("gpu1", "gpu0", 12)), "nvidia-smi topo -m")),
    "counts per GPU are compared": ([MATRIX, COUNTED], lambda m: (others(m), m.disagreements[0].other_from),
        ([("gpu_links/gpu1", "12 links", "10 links")], "nvidia-smi nvlink -s")),
    "a switch stays a switch": ([SYSFS, SWITCHED], lambda m: m.switched, True),
    "an interface is its RDMA device": ([SYSFS, ETHERNET], lambda m: (device_names(m), m.nics[0].ports[0].mtu_bytes),
        (["mlx5_0", "eth0"], 2044)),
    "an address is enough": ([SYSFS, LSPCI], lambda m: [(nic.name, nic.model, nic.rdma) for nic in m.nics], [("mlx5_0", "MT28908", True)]),
    "an address is enough, the name last": ([LSPCI, SYSFS], lambda m: [(nic.name, nic.model, nic.rdma) for nic in m.nics],
        [("mlx5_0", "MT28908", True)]),
    "two devices of one address stay two": ([SYSFS, PAIR], device_names, ["mlx5_0", "mlx5_1", "mlx5_2"]),
    "numbers without a legend are left out": ([SYSFS, BARE], lambda m: (device_names(m), list(m.paths), has_doubt(m, "NIC0…NIC1")),
        (["mlx5_0"], [(A, B)], True)),
    "numbers without a legend alone": ([BARE], device_names, ["NIC0", "NIC1"]),
    "a reason is kept only while the fact is unknown": ([SYSFS, MATRIX],
        lambda m: [(path, "the matrix" in why) for path, why in m.unknown.items()], [(f"gpus/{A}/memory_bytes", True)]),
    "the first reason is kept": ([*REASONS, Machine(nics=(Nic("mlx5_0", ports=(Port(),)),))], lambda m: set(m.unknown.values()), {"first"}),
    "lists and ports that came need no reason": ([SILENT, SYSFS], lambda m: m.unknown, {"pci/0000:00:00.0/parent": "root"}),
    "doubts are joined": ([Machine(doubts=("a", "b")), Machine(doubts=("b", "c"))], lambda m: m.doubts, ("a", "b", "c")),
    "parents that go round between sources end the tree": (ROUND,
        lambda m: ([device.parent for device in m.pci], has_doubt(m, f"PCI device {A} is above itself")), ([None, A], True)),
}  # fmt: skip


@pytest.mark.parametrize(("machines", "facts", "expected"), CASES.values(), ids=CASES)
def test_sources_together(machines: list[Machine], facts: Callable[[Machine], Any], expected: Any) -> None:
    assert facts(merge(machines)) == expected


@pytest.mark.parametrize(("first", "second", "expected"), [
    (200e9, 180e9, ("200 Gb/s", "180 Gb/s")),  # lowered by hand in a vendor's file
    (100e9, 103.125e9, None),  # data and wire of EDR
    (32e9, 40e9, ("32 Gb/s", "40 Gb/s")),  # QDR before and after line coding
])  # fmt: skip
def test_rates_agree_within_line_coding(first: float, second: float, expected: tuple[str, str] | None) -> None:
    readings = [Machine(sources=(f"{rate:g}",), nics=(Nic("mlx5_0", ports=(Port(rate_bits_per_s=rate),)),)) for rate in (first, second)]
    merged = merge(readings)
    assert merged.nics[0].ports[0].rate_bits_per_s == first
    assert others(merged) == ([("nics/mlx5_0/ports/1/rate_bits_per_s", *expected)] if expected else [])


def test_one_source_stays_as_it_is_and_merging_again_changes_nothing_and_keeps_the_sources() -> None:
    alone = merge([SYSFS])
    assert replace(alone, origins={}) == SYSFS
    assert origin(alone, f"gpus/{A}/numa") == "sysfs" and origin(alone, "system/threads") == "sysfs"
    merged = merge([SYSFS, MATRIX])
    again = merge([merged])
    assert replace(again, origins={}) == replace(merged, origins={})
    assert origin(again, f"gpus/{B}/index") == "nvidia-smi topo -m" and origin(again, f"gpus/{B}/numa") == "sysfs"


@settings(max_examples=40)
@given(st.lists(MACHINES, max_size=3))
def test_any_machines_merge_without_doubling_a_part(machines: list[Machine]) -> None:
    merged = merge(machines)
    ports, merged_ports = ({port.number for m in of for nic in m.nics for port in nic.ports} for of in (machines, [merged]))
    assert merged_ports <= ports
    assert len({gpu.key for gpu in merged.gpus}) == len(merged.gpus)
    assert len({nic.name for nic in merged.nics}) == len(merged.nics)
