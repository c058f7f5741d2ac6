"""The machine's picture: well-formed, small, readable without colours, and true; `probe --svg` writes one of each node that differs."""

import json
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from defusedxml.ElementTree import fromstring
from msgspec.structs import replace

from collbench.machine.model import Gpu, GpuLink, Machine, Nic, NumaNode, PcieLink, Port
from collbench.machine.snapshot import topology_json
from collbench.plugins.drawings.machine import MOST_PARTS, picture
from tests.cli.command import ROOT, run_here
from tests.cli.test_probe import cluster, node
from tests.machine.machines import MACHINES, bridge, dgx, ethernet, gpu_device, laptop, mesh, nic_device, pcie_box

__all__ = ["cluster"]  # a fixture
SVG = "{http://www.w3.org/2000/svg}"


def drawn(machine: Machine, *limiting: str) -> Element:
    root: Element = fromstring(picture(machine, frozenset(limiting)))
    return root


def texts(root: Element) -> list[str]:
    return [(each.findtext(f"{SVG}title") and each[0].tail) or each.text or "" for each in root.iter(f"{SVG}text")]


def with_class(root: Element, tag: str, word: str) -> list[Element]:
    return [each for each in root.iter(f"{SVG}{tag}") if word in (each.get("class") or "").split()]


def sides(box: Element) -> list[float]:
    return [float(box.get(side) or 0) for side in ("x", "y", "width", "height")]


@pytest.mark.system
def test_a_machine_has_the_same_picture_in_every_process() -> None:
    code = "from tests.machine.machines import mesh; from collbench.plugins.drawings.machine import picture; print(picture(mesh()))"
    drawings = set()
    for seed in ("2", "3"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        drawings.add(subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, check=True, stdout=subprocess.PIPE).stdout)
    assert len(drawings) == 1


@pytest.mark.parametrize("name", MACHINES)
def test_every_part_is_there_inside_the_page_and_no_card_covers_another(name: str) -> None:
    machine = MACHINES[name]()
    root = drawn(machine)
    words = texts(root)
    assert any(word.startswith("GPU ") for word in words) is bool(machine.gpus)
    assert {f"GPU {gpu.index}" for gpu in machine.gpus} <= set(words)
    assert {nic.name for nic in machine.nics if nic.virtual is None} <= set(words)
    page_width, page_height = float(root.get("width") or 0), float(root.get("height") or 0)
    for x, y, width, height in map(sides, root.iter(f"{SVG}rect")):
        assert 0 <= x <= x + width <= page_width
        assert 0 <= y <= y + height <= page_height
    cards = [sides(each) for kind in ("gpu", "nic", "switch") for each in with_class(root, "rect", kind)]
    for (x, y, width, height), (other_x, other_y, other_width, other_height) in combinations(cards, 2):
        assert x + width <= other_x or other_x + other_width <= x or y + height <= other_y or other_y + other_height <= y


def test_a_screen_reader_a_dark_page_and_a_report_can_have_the_picture() -> None:
    root = drawn(dgx())
    assert root.get("role") == "img"
    assert (root[0].tag, root[0].text) == (f"{SVG}title", "dgx01")
    assert root[1].tag == f"{SVG}desc"
    assert (root[1].text or "").startswith(
        "2 NUMA nodes, 8 GPUs, 8 NICs. GPU 0: H100 80GB HBM3. NVLink: 18 to a switch, each 26.6 GB/s. GPU 1: H100"
    )
    assert "@media (prefers-color-scheme:dark)" in picture(laptop())
    machine = dgx()
    more = tuple(Nic(f"eno{number}", f"0000:e{number}:00.0", numa=1, ports=(ethernet(100),)) for number in range(4))
    assert len(picture(replace(machine, nics=(*machine.nics, *more))).encode()) < 60 << 10


def test_wider_and_limiting_links() -> None:
    def width(link: PcieLink) -> float:
        machine = laptop()
        pci = tuple(replace(device, link=link) for device in machine.pci)
        return float(with_class(drawn(replace(machine, pci=pci)), "path", "wire")[0].get("stroke-width") or 0)

    links = [PcieLink(speed, lanes, speed, lanes) for speed, lanes in ((2.5, 1), (8.0, 4), (8.0, 16), (16.0, 16), (32.0, 16), (64.0, 16))]
    assert [width(link) for link in links] == sorted({width(link) for link in links})
    root = drawn(dgx(), "mlx5_0", "mlx5_7", "0000:18:00.0>switch")
    assert texts(root).count("limits") == 3
    assert len(with_class(root, "rect", "limit")) == 2


def test_slow_idle_and_downed_links_and_ports() -> None:
    root = drawn(pcie_box())
    slow = with_class(root, "path", "slow")
    assert [each.findtext(f"{SVG}title") for each in slow] == ["PCIe Gen4 x8 of Gen4 x16 (downtrained)"]
    assert {"Gen4 x8", "of Gen4 x16"} <= set(texts(root))
    machine = dgx()
    pci = tuple(replace(device, link=PcieLink(2.5, 16, 32.0, 16)) if device.kind == "gpu" else device for device in machine.pci)
    root = drawn(replace(machine, pci=pci))
    assert with_class(root, "path", "slow") == []
    assert texts(root).count("idle") == 8
    root = drawn(pcie_box())
    assert len(with_class(root, "rect", "hatch")) == len(with_class(root, "rect", "down")) == 1
    assert "down" in texts(root)


def test_unknown_links_are_dotted_or_have_their_maximum() -> None:
    root = drawn(Machine(numa_nodes=(NumaNode(0),), nics=(Nic("eth0"),)))
    assert [each.findtext(f"{SVG}title") for each in with_class(root, "path", "dim")] == ["PCIe unknown"]
    assert {"?", "ports unknown"} <= set(texts(root))
    assert "limits" not in texts(root)
    machine = laptop()
    pci = tuple(replace(device, link=PcieLink(None, None, 32.0, 16)) for device in machine.pci)
    assert "≤Gen5 x16" in texts(drawn(replace(machine, pci=pci)))


def test_nvlinks_of_switches_meshes_and_unknown_ends() -> None:
    machine = dgx()
    assert "NVSwitch: 18 NVLinks per GPU, each 26.6 GB/s" in texts(drawn(machine))
    assert texts(drawn(machine)).count("×18") == 8
    fewer = replace(machine, gpu_links=(*machine.gpu_links[:7], replace(machine.gpu_links[7], count=16)))
    assert "16 of 18" in texts(drawn(fewer))
    assert len(with_class(drawn(fewer), "path", "slow")) == 1
    root = drawn(mesh())
    assert len(with_class(root, "path", "nv")) == 6
    assert "4 NVLinks per pair, each 25 GB/s" in texts(root)
    assert "Without GPU or NIC: NUMA nodes 0, 2, 4, 6." in texts(root)
    machine = mesh()
    a, b, c, _ = (gpu.key for gpu in machine.gpus)
    root = drawn(replace(machine, gpu_links=(GpuLink(a, b, 2), GpuLink(b, c, 1), GpuLink(c, c, 1))))
    assert "NVLinks: counts on the lines" in texts(root)
    assert len(with_class(root, "path", "nv")) == 2
    assert {"1", "2"} <= set(texts(root))
    root = drawn(replace(machine, gpu_links=tuple(GpuLink(gpu.key, None, 12) for gpu in machine.gpus)))
    assert "12 NVLinks per GPU, far ends unknown" in texts(root)
    assert with_class(root, "path", "nv") == []


@pytest.mark.parametrize(("machine", "limiting"), [
    (dgx(), "mlx5_3"), (pcie_box(), "0000:82:00.0"), (dgx(), "0000:16:00.0"), (dgx(), "0000:18:00.0>switch"),
    (mesh(), "0000:83:00.0>0000:03:00.0"),
])  # fmt: skip
def test_what_limits_is_marked_in_words(machine: Machine, limiting: str) -> None:
    root = drawn(machine, limiting)
    assert texts(root).count("limits") == 1
    assert len(with_class(root, "path", "halo")) + len(with_class(root, "rect", "limit")) == 1
    assert "limits" not in texts(drawn(machine))


def test_switches_below_switches() -> None:
    ports = [bridge(f"0000:12:0{port}.0", "0000:11:00.0", 0) for port in range(3)]
    inner = [each for top, port in ((0x20, 0), (0x30, 1)) for each in (
        bridge(f"0000:{top:x}:00.0", f"0000:12:0{port}.0", 0),
        *(bridge(f"0000:{top + 1:x}:0{slot}.0", f"0000:{top:x}:00.0", 0) for slot in range(2)),
        *(gpu_device(f"0000:{top + 2 + slot:x}:00.0", f"0000:{top + 1:x}:0{slot}.0", 0) for slot in range(2)),
    )]  # fmt: skip
    pci = (bridge("0000:10:00.0", None, 0, "bridge"), bridge("0000:11:00.0", "0000:10:00.0", 0), *ports, *inner)
    gpus = tuple(Gpu(device.address, index, device.address) for index, device in enumerate(each for each in pci if each.kind == "gpu"))
    machine = Machine(
        numa_nodes=(NumaNode(0),), pci=(*pci, nic_device("0000:40:00.0", "0000:12:02.0", 0)), gpus=gpus,
        nics=(Nic("mlx5_0", "0000:40:00.0"),),
    )  # fmt: skip
    root = drawn(machine)
    assert len(with_class(root, "rect", "switch")) == 3
    assert {"PCIe switch 0000:11:00.0", "PCIe switch 0000:20:00.0", "PCIe switch 0000:30:00.0"} <= set(texts(root))


def test_names_that_would_be_markup() -> None:
    evil = '"><script>alert(1)</script>&\x1b[31m\x00\u202e\ufffe'
    machine = dgx()
    machine = replace(
        machine, hostname=evil, pci=tuple(replace(device, name=evil) for device in machine.pci),
        gpus=tuple(replace(gpu, model=evil) for gpu in machine.gpus),
        nics=(Nic(evil, model=evil, ports=(Port(state=evil, rate_text=evil), Port(2))),),
    )  # fmt: skip
    root = drawn(machine, evil)
    assert list(root.iter(f"{SVG}script")) == []
    assert root[0].text == '"><script>alert(1)</script>&?[31m???'
    assert "<script" not in picture(machine)


def test_what_has_no_room_no_card_or_no_parts_is_named() -> None:
    name = "a_name_that_is_longer_than_any_card_is_wide"
    root = drawn(Machine(nics=(Nic(name),)))
    text = next(each for each in root.iter(f"{SVG}text") if each.findtext(f"{SVG}title") == name)
    assert (text[0].tail or "").endswith("…")
    machine = Machine(
        gpus=tuple(Gpu(f"gpu{index}", index) for index in range(MOST_PARTS)), nics=(Nic("a"), Nic("b"), Nic("c", virtual="veth"))
    )
    assert "2 more GPUs and NICs are not drawn." in texts(drawn(machine))
    assert "Virtual interfaces are not drawn: docker0." in texts(drawn(laptop()))
    virtual = Nic("eth0", virtual="veth")
    assert "no GPU, no physical NIC" in texts(drawn(Machine(numa_nodes=(NumaNode(0, "0-1"),), nics=(virtual,))))
    assert "no GPU, no NIC" in texts(drawn(Machine(numa_nodes=(NumaNode(0, "0-1"),))))
    assert "machine without a name" in texts(drawn(Machine()))


def test_pictures_of_nodes_are_written_where_they_can_be(tmp_path: Path, cluster: str) -> None:
    done = run_here(tmp_path, "probe", "--from", cluster, "--svg", "nodes.svg")
    assert done.returncode == 0 and [line.split()[-1] for line in done.stderr.splitlines()] == ["nodes-node1.svg", "nodes-node3.svg"]
    for name in ("nodes-node1.svg", "nodes-node3.svg"):
        assert ElementTree.parse(tmp_path / name).getroot().tag.endswith("svg")
    done = run_here(tmp_path, "probe", "--from", cluster, "--svg", "nowhere/x.svg")
    assert done.returncode == 2 and "nowhere/x-node1.svg" in done.stderr and done.stderr.count("\n") == 1


def test_a_host_name_cannot_move_a_picture_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "evil.json").write_text(json.dumps(topology_json([node("../../up"), node("b", 3)])))
    done = run_here(tmp_path, "probe", "--from", "evil.json", "--svg", "out.svg")
    assert done.returncode == 0 and (tmp_path / "out-.._.._up.svg").exists()
