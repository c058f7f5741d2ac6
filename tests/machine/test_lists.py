"""What a source leaves out of a machine is unknown, in text and JSON alike; an empty list without a reason means that there are none."""

from pathlib import Path

import pytest

from collbench.machine.here import readings
from collbench.machine.merge import merge
from collbench.machine.model import LISTS, Gpu, Machine, Nic, PciDevice, known_none, with_reasons
from collbench.machine.sources import read_paths
from collbench.report.machine import document, title
from tests.machine.trees import pci, tree

MATRIX = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tNV18\t0-31\t0\tN/A\nGPU1\tNV18\t X \t0-31\t0\tN/A\n"
LSPCI = "00:01.0 PCI bridge: Intel Corporation Device 1234\n"
TEMPLATE = '<system version="1"><cpu numaid="0"><pci busid="0000:10:00.0"/><pci busid="0000:20:00.0"/></cpu></system>'
IBLINKINFO = 'CA: node1 mlx5_0:\n   0x1 3 1[  ] ==( 4X 53.125 Gbps Active/  LinkUp)==> 0x2 9 7[  ] "leaf1" ( )\n'


def read(text: str, folder: Path) -> Machine:
    file = folder / "file.txt"
    file.write_text(text)
    (machine,) = read_paths([file])
    return machine


@pytest.mark.parametrize("text", [MATRIX, LSPCI, TEMPLATE, IBLINKINFO], ids=["matrix", "lspci", "template", "iblinkinfo"])
def test_each_list_that_a_file_leaves_out_has_its_reason_in_json(text: str, tmp_path: Path) -> None:
    machine = read(text, tmp_path)
    entry = document([machine], [], [])["machines"][0]
    missing = [name for name in LISTS if not entry[name] and name not in entry["unknown"]]
    assert all(known_none(machine, name) for name in missing)
    assert not set(missing) - {"gpus", "nics", "gpu_links", "peer_access"}


def test_what_a_file_does_not_list_is_not_reported_as_none(tmp_path: Path) -> None:
    matrix = read(MATRIX, tmp_path)
    assert "no columns of NICs" in matrix.unknown["nics"]
    assert title(matrix).endswith("NICs unknown (the matrix has no columns of NICs: nvidia-smi shows only RDMA devices that it can see)")
    template = title(read(TEMPLATE, tmp_path))
    assert "no GPU" not in template and "no NIC" not in template
    assert template.count("unknown (2 PCI functions have no class in the file: each may be a GPU or a NIC)") == 2
    whole = read(LSPCI, tmp_path)  # it lists all functions, so none means none
    assert known_none(whole, "gpus") and known_none(whole, "nics")
    assert "host name unknown" in title(whole)
    assert "gpu_links" not in whole.unknown  # without GPUs there is nothing to join


def test_what_one_source_leaves_out_another_knows() -> None:
    silent = with_reasons(Machine(sources=("a",), gpus=(Gpu("gpu0"),)), "a", {"gpus"})
    complete = with_reasons(Machine(sources=("b",), pci=(PciDevice("0000:00:01.0"),)), "b", {"pci", "nics"})
    assert silent.unknown["nics"] == "a does not list NICs"
    assert "nics" not in merge([silent, complete]).unknown and "nics" not in merge([complete, silent]).unknown
    named = with_reasons(Machine(sources=("c",), nics=(Nic("mlx5_0"),)), "c")
    assert "nics" not in merge([silent, named]).unknown
    assert merge([silent, Machine(doubts=("a note",))]).unknown["nics"] == "a does not list NICs"


def test_a_tree_without_the_classes_of_networks_does_not_report_that_there_are_none() -> None:
    gpu = pci("pci0000:00/0000:00:02.0", **{"class": "0x030200"}, vendor="0x10de", device="0x2330")
    machine = merge(readings(tree(gpu)))
    assert "/sys/class/net and /sys/class/infiniband " in machine.unknown["nics"]
    assert "links between GPUs" in machine.unknown["gpu_links"]
    loopback = merge(readings(tree(gpu, {"/sys/class/net/lo/mtu": "65536"})))
    assert known_none(loopback, "nics")
