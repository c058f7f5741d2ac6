"""What `probe` prints in its three formats."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

from collbench.doctor.finding import Finding
from collbench.errors import UsageError
from collbench.report.probe import document, probe_text
from collbench.topology.model import GpuLink, Machine, Nic
from collbench.topology.snapshot import machines_of
from tests.topology.machines import MACHINES, dgx, laptop, mesh, pcie_box

SLOW = Finding("CB2101", "severe", "box", "GPU 3 has half its lanes", "Gen4 x8 of Gen4 x16", "reseat it")
OLD = Finding("CB2102", "note", "laptop", "an old kernel", "6.8", "update it")
BETWEEN = Finding("CB2103", "warning", None, "kernels differ", "6.8, 5.4", "make them equal")


def printed(*machines: Machine, format: str = "table", differences: tuple[str, ...] = (), color: str = "never", **more: object) -> str:
    stream = io.StringIO()
    findings = more.get("findings", [])
    assert isinstance(findings, list)
    probe_text(machines, differences, format, stream, color, findings=findings)
    return stream.getvalue()


def test_a_table_is_the_tree_and_how_many_findings_there_are() -> None:
    lines = printed(pcie_box(), findings=[SLOW, OLD, SLOW]).splitlines()
    assert lines[0] == "box · AMD EPYC 7402 24-Core Processor · 2 sockets, 48 cores, 96 threads, 512 GiB, kernel 5.4.0-150-generic"
    assert lines[-1] == "findings: 2 severe, 1 note; `collbench doctor` tells them"
    assert printed(laptop()).splitlines()[-1] == "findings: none"


def test_equal_machines_once() -> None:
    nodes = [replace(dgx(), hostname=f"dgx0{number}") for number in range(1, 4)]
    text = printed(*nodes, laptop(), differences=("laptop has no GPU, dgx01 has 8",))
    assert text.count("NVLink: 18") == 8
    assert "equal to it: dgx02, dgx03\n\nlaptop ·" in text
    assert "differences between nodes:\n  laptop has no GPU, dgx01 has 8\n" in text


def test_matrices_of_several_machines_have_their_names() -> None:
    lines = printed(mesh(), laptop(), format="matrix").splitlines()
    assert lines[:2] == ["jwb0001", "      GPU0  GPU1  GPU2  GPU3  NIC0  NIC1  NIC2  NIC3  CPU affinity  NUMA"]
    assert "laptop" in lines
    assert printed(mesh(), format="matrix").startswith("      GPU0")


@pytest.mark.parametrize("name", MACHINES)
def test_json_reads_back_as_the_same_machine(name: str) -> None:
    machine = MACHINES[name]()
    data = json.loads(printed(machine, format="json", findings=[SLOW]))
    assert list(data) == ["schema", "machines", "differences"]
    assert {"hostname", "cpus", "numa_nodes", "gpus", "nics", "links", "findings"} <= set(data["machines"][0])
    assert machines_of(data, "probe.json") == [machine]


def test_json_has_links_cpus_and_gpudirect() -> None:
    entry = document([pcie_box()], [], [])["machines"][0]
    assert entry["cpus"] == {
        "model": "AMD EPYC 7402 24-Core Processor", "vendor": "AMD", "architecture": "x86_64", "sockets": 2, "cores": 48, "threads": 96,
    }  # fmt: skip
    assert {"kind": "pcie", "from": "0000:82:00.0", "to": "0000:80:03.1", "speed_gt_per_s": 16.0, "width": 8, "max_speed_gt_per_s": 16.0,
            "max_width": 16} in entry["links"]  # fmt: skip
    assert {"kind": "gpudirect", "from": "0000:03:00.0", "to": "eno1", "path": "SYS", "state": "not capable",
            "why": "the NIC is no RDMA device"} in entry["links"]  # fmt: skip
    assert {"kind": "nvlink", "from": "0000:03:00.0", "to": "0000:43:00.0", "count": 4, "bytes_per_s": 25e9} in (
        document([mesh()], [], [])["machines"][0]["links"]
    )


def test_json_has_each_finding_once_with_its_machine() -> None:
    found = document([pcie_box(), laptop()], ["kernels differ"], [SLOW, OLD, BETWEEN])
    assert [[each["code"] for each in entry["findings"]] for entry in found["machines"]] == [["CB2101", "CB2103"], ["CB2102"]]
    assert found["differences"] == ["kernels differ"]


def test_json_has_no_infinities_and_no_control_characters() -> None:
    machine = Machine(hostname="a\x1b\x7f\x9b\u202e", gpu_links=(GpuLink("a", "b", 1, bytes_per_s=float("inf")),), nics=(Nic("n"),))
    text = printed(machine, format="json")
    assert text.replace("\n", "").isascii() and text.replace("\n", "").isprintable()
    assert json.loads(text)["machines"][0]["gpu_links"][0]["bytes_per_s"] is None


def test_colours_only_where_they_are_asked_for() -> None:
    assert "\x1b" not in printed(dgx())
    assert printed(dgx(), color="always").startswith("\x1b[1mdgx01")


def test_unknown_formats_and_colours() -> None:
    with pytest.raises(UsageError, match="--format 'xml' is unknown: choose from table, matrix, json"):
        printed(dgx(), format="xml")
    with pytest.raises(UsageError, match="--color 'pink' is unknown"):
        printed(dgx(), color="pink")
