"""Every captured machine, its whole folder read as a user would give it: its parts are counted, or it is refused in one sentence."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from collbench.machine.files import open_archive
from collbench.machine.merge import merge
from collbench.machine.readers import linux, network
from collbench.machine.readers.text import Unreadable
from collbench.machine.snapshot import from_json, to_json
from collbench.machine.sources import read_paths
from tests.machines import captures, reduce

NO_TOPOLOGY = {"nccl-debug-log", "nccl-tests-log"}
FRAGMENT = "lspci-downtrained"  # lines out of two listings, without the devices they belong to
OTHERS = [name for name in captures.NAMES if name == FRAGMENT or NO_TOPOLOGY & set(captures.expected(name)["kind"])]
READ = [name for name in captures.NAMES if name not in OTHERS]
GPUS = ("gpus", "gpus_in_file", "gpus_nvidia")
NICS = ("nics", "nics_in_file", "net_elements", "hcas")


@pytest.mark.parametrize("name", READ)
def test_its_parts_are_counted(name: str) -> None:
    (machine,) = read_paths([captures.folder(name)])
    expected = captures.expected(name)
    gpus = next((expected[key] for key in GPUS if key in expected), len(machine.gpus))
    real = [nic for nic in machine.nics if nic.virtual is None or "net_elements" in expected]  # NCCL's <net> elements, one of them a veth
    nics = next((expected[key] for key in NICS if key in expected), len(real))
    assert (len(machine.gpus), len(real)) == (gpus, nics)
    if "nvlinks_per_gpu" in expected:
        assert {machine.links_of(gpu.key) or 0 for gpu in machine.gpus} == {expected["nvlinks_per_gpu"]}


@pytest.mark.parametrize("name", READ)
def test_it_survives_json_and_merging(name: str) -> None:
    (machine,) = read_paths([captures.folder(name)])
    assert from_json(json.loads(json.dumps(to_json(machine)))) == machine
    again = merge([machine])
    assert (again.pci, again.gpus, again.nics, again.gpu_links) == (machine.pci, machine.gpus, machine.nics, machine.gpu_links)
    assert set(machine.origins.values()) <= {*machine.sources, ", ".join(machine.sources)}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_topology_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(Unreadable) as refused:
        read_paths([captures.folder(name)])
    assert "\n" not in str(refused.value)
    if captures.expected(name)["kind"] == ["nccl-debug-log"]:
        assert "is a log of NCCL" in str(refused.value)


def test_two_sources_of_one_machine_fit_together() -> None:
    """`nvidia-smi nvlink -s` counts GPUs, lspci has their addresses: both are in PCI order."""
    (machine,) = read_paths([captures.folder("gpud-azure-a100-nvlink")])
    assert all(gpu.address and gpu.index is not None for gpu in machine.gpus)
    assert {machine.links_of(gpu.key) for gpu in machine.gpus} == {12}
    assert {link.bytes_per_s for link in machine.gpu_links} == {25e9}
    assert machine.disagreements == ()


def test_a_reduced_capture_is_read_as_the_whole_one(tmp_path: Path) -> None:
    """The script that makes the captures keeps what the readers read, and drops and masks the rest."""
    capture = tmp_path / "mine"
    capture.mkdir()
    listing = captures.text("gpud-azure-a100-nvlink", "nvidia-smi-nvlink-s.txt")
    (capture / "nvidia-smi-nvlink-s.txt").write_text("a banner of myhost\n" + listing)
    (capture / "nccl-topo.xml").write_text(captures.text("azure-nc96ads-a100-v4", "nccl-topo.xml").replace("<system", '<system extra="1"'))
    (capture / "nccl.log").write_text("myhost:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\nnothing\n")
    (capture / "EXPECTED.json").write_text('{"gpus": 8, "nics": null, "by name": {"a": [1]}}')
    (capture / "SOURCE.txt").write_text("here\n")
    reduce.main([str(capture), "--rename", "myhost=node1", "--out", str(tmp_path)])
    made = tomllib.loads((tmp_path / "mine.toml").read_text())
    assert (made["source"], made["expected"]) == ("here", {"gpus": 8, "by name": {"a": [1]}})
    assert sorted(made["files"]) == ["nccl-topo.xml", "nccl.log", "nvidia-smi-nvlink-s.txt"]
    assert made["files"]["nccl.log"] == "node1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
    assert made["files"]["nccl-topo.xml"] == captures.text("azure-nc96ads-a100-v4", "nccl-topo.xml")
    assert "banner" not in made["files"]["nvidia-smi-nvlink-s.txt"]


def test_a_reduced_tree_is_read_as_the_whole_one(tmp_path: Path) -> None:
    name = "hwloc-power9-6gpu"
    (tmp_path / "again.tar.xz").write_bytes(reduce.packed(captures.tree(name)))
    again = open_archive(tmp_path / "again.tar.xz")
    assert linux.read(again).gpus == linux.read(captures.tree(name)).gpus
    assert network.read(again) == network.read(captures.tree(name))
