"""collbench peak: hardware from options and files, text and JSON, and bad input as one sentence."""

import json
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.operations.registry import commands as operation_commands
from tests.peak.made import call_peak

FOUR = ("--nodes", "4", "--gpus-per-node", "8", "--nic", "4x100Gb", "--nvlink", "150")
TWO = ("--nodes", "2", "--gpus-per-node", "8", "--nic")
XML = """<system version="1"><cpu numaid="0" affinity="f" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
{gpus}<nic><net name="mlx5_0" dev="0" speed="100000" port="1" guid="0x1" maxconn="131072" gdr="1"/></nic></cpu></system>
"""
GPU = """<pci busid="0000:{bus}:00.0" class="0x030200" vendor="0x10de" device="0x20b2" link_speed="16.0 GT/s PCIe" link_width="16">
<gpu dev="{index}" sm="80" rank="{index}" gdr="1"><nvlink target="ffff:ff:ff.f" count="12" tclass="0x068000"/></gpu></pci>
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "nccl-topo.xml"
    path.write_text(XML.format(gpus="".join(GPU.format(bus=bus, index=i) for i, bus in enumerate(("10", "11")))))
    return path


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert call_peak("allreduce", *FOUR, "--measured", "42", "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["expected"]["bytes_per_s"], found["expected"]["limited_by"]) == (48e9, "NIC 4×100 Gb/s")
    assert (found["expected"]["model"], found["expected"]["constants"], found["ring"]) == ("ring", "NCCL's constants", found["expected"])
    assert found["expected"]["efficiency"] == pytest.approx(0.96)
    assert (found["ranks"], found["percent_of_ceiling"], found["doubtful_input"]) == (32, 87.5, None)
    assert "non-blocking" in found["assumed"][0]
    assert (found["percent_of_ring"], round(found["percent_of_bound"])) == (87.5, 65)


def test_json_above_the_ring_has_what_was_published(capsys: pytest.CaptureFixture[str]) -> None:
    call_peak("allreduce", "--gpus-per-node", "8", "--nvlink", "450", "--nvls", "--measured", "482.3", "--format", "json")
    found = json.loads(capsys.readouterr().out)
    assert (found["expected"]["model"], found["ring"]["model"]) == ("nvls", "ring")
    assert [round(found[f"percent_of_{name}"]) for name in ("ceiling", "ring", "bound")] == [93, 130, 69]
    first = found["published"][0]
    assert (first["busbw_bytes_per_s"], first["machine"], first["nvls"]) == ([475e9, 482.26e9], "H200", True)
    assert all(source.startswith("https://") for source in first["sources"])


def test_an_nvlink_domain_of_18_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    rack = ("--gpus-per-node", "4", "--nvlink", "900", "--nvlink-domain", "72")
    call_peak("allreduce", "--nodes", "18", *rack, "--measured", "840")
    one = capsys.readouterr().out.splitlines()
    assert one[0].startswith("840 of 988 GB/s: 85 % ")
    assert any(line.startswith("assumed: ") and "18 nodes" in line for line in one)
    assert [line.split(" (")[0] for line in one if line.startswith("published")][:1] == ["published: 835–847 GB/s on 18×4 GB200 NVL72"]
    call_peak("allreduce", "--nodes", "36", *rack, "--nic", "4x400Gb", "--format", "json")
    two = json.loads(capsys.readouterr().out)
    assert (two["nodes"], two["ranks"], two["nvlink_domains"], two["expected"]["model"]) == (36, 144, 2, "nvls_tree")


@pytest.mark.parametrize("operation", [name for name in operation_commands() if name != "pairs"])
def test_every_operation_that_can_be_measured_has_a_line(operation: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call_peak(operation, *FOUR) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("no ceiling: ") if operation in ("barrier", "init") else " GB/s " in first


def test_a_rate_above_the_hard_limit_has_the_doubtful_input_and_no_percentage(capsys: pytest.CaptureFixture[str]) -> None:
    call_peak("allreduce", *FOUR, "--measured", "70")
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert "%" not in first and "64.6 GB/s" in first
    assert "NIC 4×100 Gb/s" in second and "--nic" in second
    call_peak("allreduce", *FOUR, "--measured", "70", "--format", "json")
    found = json.loads(capsys.readouterr().out)
    assert (found["percent_of_ceiling"], found["percent_of_ring"], found["percent_of_bound"]) == (None, None, None)
    assert "--nic" in found["doubtful_input"]


@pytest.mark.parametrize(("argv", "figures"), [
    (("allreduce", *FOUR, "--oversubscription", "2"), ("24.0 GB/s expected (ring), 32.3 GB/s hard limit\n",)),
    (("allreduce", *FOUR, "--sharp"), ("48.0 GB/s expected (ring), 96.9 GB/s hard limit\n",)),
    (("allreduce", *FOUR, "--ceiling", "84", "--measured", "42"), ("42.0 of 84.0 GB/s: 50 %",)),
    (("allreduce", "--gpus-per-node", "8", "--nvlink", "450", "--nvls", "--measured", "482.3"), ("482 of 517 GB/s: 93 % ", "(700 GB/s)")),
    (("allreduce", "--gpus-per-node", "3", "--pcie", "gen4x16", "--measured", "20"), ("20.0 of 24.0 GB/s: 83 % ",)),
    (("p2p", *TWO, "4x100Gb", "--pairs", "4"), ("12.5 GB/s ",)),
    (("multipair", *TWO, "4x100Gb"), ("50.0 GB/s ", "shared by 8 pairs", "8 pairs: rank i and rank i + 8")),
    (("multipair", *TWO, "4x100Gb", "--pcie", "gen4x16", "--pairs", "1"), ("31.5 GB/s ", "PCIe Gen4 x16")),
    (("multipair", "--gpus-per-node", "8", "--nvlink", "150", "--measured", "300"),
        ("300 of 480 GB/s: 62 % ", "4 pairs: rank i and rank i + 4")),
    # No longer than for few nodes
    (("allreduce", "--nodes", "1000000", "--gpus-per-node", "8", "--nic", "4x100Gb", "--nvlink", "150"),
        ("48.0 GB/s expected (ring), 50.0 GB/s hard limit\n",)),
])  # fmt: skip
def test_figures_of_a_line(argv: tuple[str, ...], figures: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert call_peak(*argv) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(figures[0])
    assert all(figure in printed for figure in figures)


def test_more_gpus_than_the_file_has(file: Path) -> None:
    with pytest.raises(UsageError, match=r"2 GPUs, .* 8 "):
        call_peak("allreduce", "--from", str(file), "--gpus-per-node", "8")
