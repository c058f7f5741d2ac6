"""Several sources of one machine: the first with a fact wins; that source and the sources that contradict it are stored."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.machine.merge import merge, origin
from collbench.machine.model import SWITCH, Gpu, GpuLink, Machine, Nic, NumaNode, PciDevice, PcieLink, Port, System

A, B = "0000:19:00.0", "0000:3b:00.0"
SYSFS = Machine(
    hostname="node1",
    sources=("sysfs",),
    system=System(architecture="x86_64", threads=96),
    pci=(PciDevice(A, "gpu", "0000:18:00.0", numa=0), PciDevice(B, "gpu", "0000:3a:00.0", numa=1)),
    gpus=(Gpu(A, None, A, "nvidia"), Gpu(B, None, B, "nvidia", numa=1)),
    nics=(Nic("mlx5_0", "0000:1a:00.0", rdma=True, interfaces=("ib0",), ports=(Port(rate_bits_per_s=200e9, state="active"),)),),
)
MATRIX = Machine(
    sources=("nvidia-smi topo -m",),
    gpus=(Gpu("gpu0", 0, vendor="nvidia", numa=0), Gpu("gpu1", 1, vendor="nvidia", numa=0)),
    gpu_links=(GpuLink("gpu0", "gpu1", 12), GpuLink("gpu1", "gpu0", 12)),
    nics=(Nic("mlx5_0"),),
    paths={("gpu0", "gpu1"): "NV12", ("gpu0", "mlx5_0"): "PIX", ("mlx5_0", "gpu1"): "SYS"},
    peer_access={("gpu0", "gpu1"): "OK"},
    unknown={"gpus/gpu0/memory_bytes": "the matrix does not print it", "gpus/gpu1/numa": "empty"},
)


def test_nothing_gives_an_empty_machine() -> None:
    assert merge([]) == Machine()


def test_one_source_alone_stays_as_it_is() -> None:
    merged = merge([SYSFS])
    assert replace(merged, origins={}) == SYSFS
    assert origin(merged, f"gpus/{A}/numa") == "sysfs" and origin(merged, "system/threads") == "sysfs"


class TestFacts:
    def test_the_first_that_reports_it_wins(self) -> None:
        tool = Machine(sources=("lspci",), system=System(architecture="aarch64", kernel="6.1"), numa_nodes=(NumaNode(0, "0-47"),))
        merged = merge([SYSFS, tool])
        assert merged.system == System(architecture="x86_64", threads=96, kernel="6.1")
        assert merged.numa_nodes == (NumaNode(0, "0-47"),)
        assert merged.sources == ("sysfs", "lspci")
        assert [origin(merged, f"system/{name}") for name in ("architecture", "kernel")] == ["sysfs", "lspci"]
        (other,) = merged.disagreements
        assert (other.path, other.taken, other.taken_from) == ("system/architecture", "x86_64", "sysfs")
        assert (other.other, other.other_from) == ("aarch64", "lspci")

    def test_a_default_reports_nothing(self) -> None:
        quiet = Machine(sources=("first",), nics=(Nic("mlx5_0"),), pci=(PciDevice(A),))
        loud = Machine(sources=("second",), nics=(Nic("mlx5_0", rdma=True, gdr=False),), pci=(PciDevice(A, "gpu", virtual=True),))
        merged = merge([quiet, loud])
        assert (merged.nics[0].rdma, merged.nics[0].gdr) == (True, False)
        assert (merged.pci[0].kind, merged.pci[0].virtual) == ("gpu", True)
        assert merged.disagreements == ()

    def test_links_and_ports_are_merged_field_by_field(self) -> None:
        one = Machine(sources=("one",), pci=(PciDevice(A, link=PcieLink(2.5, 16)),), nics=(Nic("mlx5_0", ports=(Port(2, lid=7), Port(1))),))
        two = Machine(
            sources=("two",), pci=(PciDevice(A, link=PcieLink(2.5, 16, 16.0, 16)),), nics=(Nic("mlx5_0", ports=(Port(2, sm_lid=1),)),)
        )
        merged = merge([one, two])
        assert merged.pci[0].link == PcieLink(2.5, 16, 16.0, 16)
        assert merged.nics[0].ports == (Port(1), Port(2, lid=7, sm_lid=1))
        assert merged.origins[f"pci/{A}/link/max_width"] == "two" and merged.origins["nics/mlx5_0/ports/2/lid"] == "one"

    @pytest.mark.parametrize(
        ("first", "second", "expected"),
        [
            (200e9, 180e9, ("200 Gb/s", "180 Gb/s")),  # lowered by hand in a vendor's file
            (100e9, 103.125e9, None),  # data and wire of EDR
            (32e9, 40e9, ("32 Gb/s", "40 Gb/s")),  # QDR before and after line coding
        ],
    )
    def test_rates_agree_within_line_coding(self, first: float, second: float, expected: tuple[str, str] | None) -> None:
        readings = [Machine(sources=(f"{rate:g}",), nics=(Nic("mlx5_0", ports=(Port(rate_bits_per_s=rate),)),)) for rate in (first, second)]
        merged = merge(readings)
        assert merged.nics[0].ports[0].rate_bits_per_s == first
        assert [(one.taken, one.other) for one in merged.disagreements] == ([expected] if expected else [])
        assert all(one.path == "nics/mlx5_0/ports/1/rate_bits_per_s" for one in merged.disagreements)

    def test_names_are_each_sources_own_words(self) -> None:
        readings = [
            Machine(sources=(name,), gpus=(Gpu(A, address=A, model=name),)) for name in ("NVIDIA H100 80GB HBM3", "GH100 [H100 SXM5]")
        ]
        assert merge(readings).disagreements == ()

    def test_host_names_short_and_long_are_one(self) -> None:
        readings = [Machine(hostname=name, sources=(name,)) for name in ("node1", "node1.cluster", "node2")]
        assert [one.other for one in merge(readings).disagreements] == ["node2"]


class TestGpus:
    def test_numbers_are_the_pci_order_of_the_gpus(self) -> None:
        merged = merge([SYSFS, MATRIX])
        assert [(gpu.key, gpu.index, gpu.numa) for gpu in merged.gpus] == [(A, 0, 0), (B, 1, 1)]
        assert [(link.a, link.b) for link in merged.gpu_links] == [(A, B), (B, A)]
        assert merged.paths == {(A, B): "NV12", (A, "mlx5_0"): "PIX", ("mlx5_0", B): "SYS"}
        assert merged.peer_access == {(A, B): "OK"}
        assert [(one.path, one.taken, one.other) for one in merged.disagreements] == [(f"gpus/{B}/numa", "1", "0")]

    def test_an_index_that_a_source_gives_wins_over_the_order(self) -> None:
        turned = replace(SYSFS, gpus=(Gpu(A, 1, A, "nvidia"), Gpu(B, 0, B, "nvidia")))
        assert merge([turned, MATRIX]).paths[B, "mlx5_0"] == "PIX"

    def test_a_serial_number_wins_over_both(self) -> None:
        numbered = replace(SYSFS, gpus=(Gpu(A, 0, A, uuid="GPU-a"), Gpu(B, 1, B, uuid="GPU-b")))
        links = Machine(sources=("nvlink",), gpus=(Gpu("gpu0", 0, uuid="GPU-b"),), gpu_links=(GpuLink("gpu0", None, 18),))
        assert merge([numbered, links]).links_of(B) == 18

    def test_unequal_numbers_are_not_matched_but_reported(self) -> None:
        container = replace(MATRIX, gpus=MATRIX.gpus[:1])
        merged = merge([SYSFS, container])
        assert [gpu.key for gpu in merged.gpus] == [A, B] and merged.paths == {} and merged.gpu_links == ()
        assert len(merged.doubts) == 1 and "1 GPUs where 2 have PCI addresses" in merged.doubts[0]

    def test_without_addresses_anywhere_the_index_is_the_key(self) -> None:
        links = Machine(sources=("nvlink",), gpus=(Gpu("gpu1", 1, model="A100"),))
        assert [(gpu.key, gpu.model) for gpu in merge([MATRIX, links]).gpus] == [("gpu0", None), ("gpu1", "A100")]

    def test_other_vendors_do_not_count_for_nvidia_smi(self) -> None:
        aspeed = replace(SYSFS, gpus=(Gpu("0000:03:00.0", None, "0000:03:00.0", "amd"), *SYSFS.gpus))
        assert merge([aspeed, MATRIX]).paths[A, B] == "NV12"


class TestLinks:
    COUNTED = Machine(
        sources=("nvidia-smi nvlink -s",),
        gpus=MATRIX.gpus,
        gpu_links=(GpuLink("gpu0", None, 12, bytes_per_s=25e9), GpuLink("gpu1", None, 10)),
    )

    def test_far_ends_are_worth_more_than_counts(self) -> None:
        merged = merge([self.COUNTED, MATRIX])
        assert merged.gpu_links == (GpuLink("gpu0", "gpu1", 12, bytes_per_s=25e9), GpuLink("gpu1", "gpu0", 12))
        assert merged.origins["gpu_links"] == "nvidia-smi topo -m"

    def test_counts_per_gpu_are_compared(self) -> None:
        (other,) = merge([MATRIX, self.COUNTED]).disagreements
        assert (other.path, other.taken, other.other, other.other_from) == (
            "gpu_links/gpu1",
            "12 links",
            "10 links",
            "nvidia-smi nvlink -s",
        )

    def test_a_switch_stays_a_switch(self) -> None:
        switched = replace(MATRIX, gpu_links=(GpuLink("gpu0", SWITCH, 18), GpuLink("gpu1", SWITCH, 18)))
        assert merge([SYSFS, switched]).switched


class TestNics:
    def test_an_interface_is_its_rdma_device(self) -> None:
        ethernet = Machine(sources=("net",), nics=(Nic("ib0", "0000:1a:00.0", ports=(Port(mtu_bytes=2044),)), Nic("eth0", "0000:e1:00.0")))
        merged = merge([SYSFS, ethernet])
        assert [nic.name for nic in merged.nics] == ["mlx5_0", "eth0"]
        assert merged.nics[0].ports[0].mtu_bytes == 2044

    def test_an_address_is_enough(self) -> None:
        lspci = Machine(sources=("lspci",), nics=(Nic("0000:1a:00.0", "0000:1a:00.0", model="MT28908"),))
        for order in ([SYSFS, lspci], [lspci, SYSFS]):
            (nic,) = merge(order).nics
            assert (nic.name, nic.model, nic.rdma) == ("mlx5_0", "MT28908", True)

    def test_two_devices_of_one_address_stay_two(self) -> None:
        pair = Machine(sources=("nccl",), nics=(Nic("mlx5_1", "0000:1a:00.0"), Nic("mlx5_2", "0000:1a:00.0")))
        assert [nic.name for nic in merge([SYSFS, pair]).nics] == ["mlx5_0", "mlx5_1", "mlx5_2"]

    def test_numbers_without_a_legend_are_left_out(self) -> None:
        bare = replace(MATRIX, nics=(Nic("NIC0"), Nic("NIC1")), paths={("gpu0", "NIC1"): "PIX", ("gpu0", "gpu1"): "NV12"})
        merged = merge([SYSFS, bare])
        assert [nic.name for nic in merged.nics] == ["mlx5_0"] and list(merged.paths) == [(A, B)]
        assert len(merged.doubts) == 1 and "NIC0…NIC1" in merged.doubts[0]
        assert [nic.name for nic in merge([bare]).nics] == ["NIC0", "NIC1"]


class TestReasons:
    def test_a_reason_is_kept_only_while_the_fact_is_unknown(self) -> None:
        merged = merge([SYSFS, MATRIX])
        assert list(merged.unknown) == [f"gpus/{A}/memory_bytes"] and "the matrix" in merged.unknown[f"gpus/{A}/memory_bytes"]

    def test_the_first_reason_is_kept(self) -> None:
        readings = [Machine(unknown={"gpus": why, "system/kernel": why, "nics/mlx5_0/ports/1/lid": why}) for why in ("first", "second")]
        assert set(merge([*readings, Machine(nics=(Nic("mlx5_0", ports=(Port(),)),))]).unknown.values()) == {"first"}

    def test_lists_and_ports_that_came_need_none(self) -> None:
        silent = Machine(
            unknown={"gpus": "no driver", "nics/mlx5_0/ports/1/rate_bits_per_s": "not printed", "pci/0000:00:00.0/parent": "root"}
        )
        assert merge([silent, SYSFS]).unknown == {"pci/0000:00:00.0/parent": "root"}

    def test_doubts_are_joined(self) -> None:
        assert merge([Machine(doubts=("a", "b")), Machine(doubts=("b", "c"))]).doubts == ("a", "b", "c")


def test_parents_that_go_round_between_sources_end_the_tree() -> None:
    one = Machine(sources=("one",), pci=(PciDevice(A, parent=B),))
    two = Machine(sources=("two",), pci=(PciDevice(B, parent=A),))
    merged = merge([one, two])
    assert [device.parent for device in merged.pci] == [None, A]
    assert len(merged.doubts) == 1 and f"PCI device {A} is above itself" in merged.doubts[0]


def test_merging_again_changes_nothing_and_keeps_its_source() -> None:
    merged = merge([SYSFS, MATRIX])
    again = merge([merged])
    assert replace(again, origins={}) == replace(merged, origins={})
    assert origin(again, f"gpus/{B}/index") == "nvidia-smi topo -m" and origin(again, f"gpus/{B}/numa") == "sysfs"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.from_type(Machine), max_size=3))
def test_any_machines_merge_without_doubling_a_part(machines: list[Machine]) -> None:
    merged = merge(machines)
    assert {port.number for nic in merged.nics for port in nic.ports} <= {
        port.number for m in machines for nic in m.nics for port in nic.ports
    }
    assert len({gpu.key for gpu in merged.gpus}) == len(merged.gpus)
    assert len({nic.name for nic in merged.nics}) == len(merged.nics)
