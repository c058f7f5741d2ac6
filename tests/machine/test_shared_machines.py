"""Every captured machine of topology kinds, its whole folder read as a user would give it: no traceback, and its parts counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from collbench.machine.merge import merge
from collbench.machine.readers.text import Unreadable
from collbench.machine.snapshot import from_json, to_json
from collbench.machine.sources import read_paths
from tests.helpers import CAPTURED_MACHINES

FOLDER = CAPTURED_MACHINES
KINDS = {"nccl-topo-xml", "hwloc-xml", "nvidia-smi-topo-m", "nvidia-smi-nvlink-s", "lspci-nn", "lspci-vvv", "sysfs-infiniband", "sysfs-tar"}
KINDS |= {"ibv_devinfo", "iblinkinfo"}
FRAGMENT = "lspci-downtrained"  # lines out of two listings, without the devices they belong to
GPUS = ("gpus", "gpus_in_file", "gpus_nvidia")
NICS = ("nics", "nics_in_file", "net_elements", "hcas")


def _expected(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "EXPECTED.json").read_text())
    return found


ALL = sorted(path for path in FOLDER.glob("*/") if (path / "EXPECTED.json").exists()) if FOLDER.is_dir() else []
READ = [path for path in ALL if KINDS & set(_expected(path)["kind"]) and path.name != FRAGMENT]
OTHERS = [path for path in ALL if path not in READ]

pytestmark = pytest.mark.skipif(not ALL, reason="the captured machines are not beside this checkout (../shared/machines)")


@pytest.mark.parametrize("folder", READ, ids=lambda path: path.name)
def test_its_parts_are_counted(folder: Path) -> None:
    (machine,) = read_paths([folder])
    expected = _expected(folder)
    gpus = next((expected[key] for key in GPUS if expected.get(key) is not None), None)
    nics = next((expected[key] for key in NICS if expected.get(key) is not None), None)
    virtual_too = "net_elements" in expected  # NCCL's <net> elements, one of them a veth
    assert gpus in (None, len(machine.gpus))
    assert nics in (None, len([nic for nic in machine.nics if nic.virtual is None or virtual_too]))
    if "nvlinks_per_gpu" in expected:
        assert {machine.links_of(gpu.key) or 0 for gpu in machine.gpus} == {expected["nvlinks_per_gpu"]}


@pytest.mark.parametrize("folder", READ, ids=lambda path: path.name)
def test_it_survives_json_and_merging(folder: Path) -> None:
    (machine,) = read_paths([folder])
    assert from_json(json.loads(json.dumps(to_json(machine)))) == machine
    again = merge([machine])
    assert (again.pci, again.gpus, again.nics, again.gpu_links) == (machine.pci, machine.gpus, machine.nics, machine.gpu_links)
    assert set(machine.origins.values()) <= {*machine.sources, ", ".join(machine.sources)}


@pytest.mark.parametrize("folder", OTHERS, ids=lambda path: path.name)
def test_what_is_no_topology_is_refused_in_one_sentence(folder: Path) -> None:
    with pytest.raises(Unreadable) as refused:
        read_paths([folder])
    assert "\n" not in str(refused.value)
    if _expected(folder)["kind"] == ["nccl-debug-log"]:
        assert "is a log of NCCL" in str(refused.value)


def test_two_sources_of_one_machine_fit_together() -> None:
    """`nvidia-smi nvlink -s` counts GPUs, lspci has their addresses: both are in PCI order."""
    (machine,) = read_paths([FOLDER / "gpud-azure-a100-nvlink"])
    assert all(gpu.address and gpu.index is not None for gpu in machine.gpus)
    assert {machine.links_of(gpu.key) for gpu in machine.gpus} == {12}
    assert {link.bytes_per_s for link in machine.gpu_links} == {25e9}
    assert machine.disagreements == ()
