"""Healthy machines get no finding, public captures get those that their notes expect, and every code has a page."""

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest
from msgspec.structs import replace

from collbench.machine.doctor.examine import JOB_RULES, RULES, examine, examined_parts, unexamined_parts
from collbench.machine.doctor.finding import Finding, pages, worst_first
from collbench.machine.model import Machine
from collbench.machine.sources import read_paths
from collbench.plugin import loaded, plugins
from collbench.units import listed
from tests.conftest import ROOT, needs_plugin
from tests.doctor.machines import codes, found
from tests.machine.machines import dgx, laptop, mesh
from tests.machines import captures

DOCTOR = Path(__file__).parents[2] / "collbench" / "machine" / "doctor"
UCC_CODES = {"CB2811", "CB2812"}  # of the plug-in with the backend ucc
LOG_RULES = loaded("collbench.plugins.joblogs.findings:RULES") if "joblogs" in plugins() else ()


@pytest.mark.parametrize(
    "machines", [[dgx()], [mesh()], [laptop()], [Machine()], []], ids=["dgx", "mesh", "laptop", "nothing known", "no machine"]
)
def test_healthy_machines_get_no_finding(machines: list[Machine]) -> None:
    assert examine(machines) == []


def test_worst_first_and_lists_of_names() -> None:
    severe, note = Finding("CB2202", "severe", "b", "", "", ""), Finding("CB2104", "note", "a", "", "", "")
    assert worst_first([note, severe]) == [severe, note]
    assert (listed(["a"]), listed(["a", "b", "c"]), listed([]), listed(list("abcd"), 2)) == ("a", "a, b and c", "", "a, b and 2 more")


def public(name: str) -> list[Machine]:
    """The machines of a capture, or of one file in it."""
    machine, _, file = name.partition("/")
    return read_paths(sorted(captures.folder(machine).glob(file or "*")))


@pytest.mark.parametrize(("name", "expected"), [
    ("gpud-xe9680-h100-lspci", []), ("ibv-devinfo-port-down", ["CB2202"]), ("gpud-h100-8ndr-sysfs", ["CB2222", "CB2204"]),
    ("rtx5090x2-p2p-gns", ["CB2303"]), ("hwloc-32em64t-2n8c-dax-nvme-mic-dimms", ["CB2205"]), ("iblinkinfo-edr-on-hdr-switch", []),
    ("a100-container-2of8-8nic", []), ("a100-pcie-bridge-pairs", []), ("a100x8-10nic-mangled-nps4", []),
    ("amd-mi100-4-intel", ["CB2205", "CB2403", "CB2403"]), ("amd-mi100-8-4nic", ["CB2504"]), ("amd-mi100-8-collnet-4nic", []),
    ("amd-mi250x-8mod-16gcd", []), ("amd-mi50-8-pcie-2nic", []), ("aws-p4d-24xl", ["CB2403"]), ("aws-p5-48xl-2023", ["CB2403"]),
    ("azure-nc96ads-a100-v4/nccl-topo.xml", ["CB2403"]), ("azure-nd40rs-v2-v100", ["CB2501", "CB2403", "CB2504"]),
    ("azure-nd96asr-v4-a100", ["CB2403"]), ("dgx-h100-12nic-tabs-mangled", ["CB2403"]), ("gpud-azure-a100-nvlink", []),
    ("h100-4nic-alternate-partial", ["CB2403", "CB2501"]), ("h200-baremetal-first-gpu", []), ("hwloc-dgx2-xml", ["CB2403"]),
    ("hwloc-fakepcilocalities", []), ("hwloc-power9-6gpu", []), ("oci-bm-gpu4-8-a100", ["CB2403"]), ("rtx-5gpu-mixed-2socket", []),
    ("v100x8-oneflow-1edr", ["CB2501", "CB2502"]), ("juwels-booster-4xa100", []), ("amd-mi300x-8-intel", []),
])  # fmt: skip
def test_public_captures(name: str, expected: list[str]) -> None:
    """Each finding was judged with the capture's notes; their faults are small, so only a port that is down is severe."""
    assert codes(*public(name)) == expected


def test_traps_of_public_captures() -> None:
    upstream = examine(public("oci-bm-gpu-h100-8"))
    assert {finding.severity for finding in upstream} == {"note"} and any("5 GT/s" in finding.what for finding in upstream)
    for name in ("azure-nd40rs-v2-v100", "v100x8-oneflow-1edr"):  # NICs at one socket alone
        assert found(public(name)[0], "CB2501").what.startswith("4 GPUs ")
    # every second GPU without a NIC goes over NVLink
    assert found(public("h100-4nic-alternate-partial")[0], "CB2501").severity == "note"
    assert "(veth)" in found(public("amd-mi100-4-intel")[0], "CB2205").what


@needs_plugin("joblogs")
def test_every_code_has_a_page_and_every_page_a_rule() -> None:
    of_logs = (ROOT / "collbench/machine/readers/log_messages.toml", ROOT / "collbench/plugins/joblogs/findings.py")
    files = [*DOCTOR.glob("*.py"), *of_logs]
    findings = ROOT / "collbench/plugins/libraries/ucc/findings.py"
    if "libraries" in plugins():
        assert _codes([findings]) == UCC_CODES
    assert _codes(files) | UCC_CODES == {code for code in pages() if code.startswith("CB2")}


def _codes(files: list[Path]) -> set[str]:
    return {code for file in files for code in re.findall(r'"(CB2\d{3})"', file.read_text(encoding="utf-8"))}


def test_every_page_has_text_and_its_place() -> None:
    for each in pages().values():
        assert all(len(text) > 10 for text in (each.title, each.means, each.check, each.remedy)), each.code
        assert each.sources
        assert all(url.startswith("https://") for url in each.sources), each.code


def test_every_rule_reports_which_code_it_is() -> None:
    for rule in (*RULES, *JOB_RULES, *LOG_RULES):
        assert re.match(r"CB2\d{3}", rule.__doc__ or ""), rule


def test_every_function_that_looks_like_a_rule_is_run() -> None:
    """A rule that was written and neither appended to its module's tuple nor called would never be heard of."""
    run = {*RULES, *JOB_RULES, *LOG_RULES}
    for module in map(import_module, {rule.__module__ for rule in run}):
        used = {node.id for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.Name)}
        rules = {
            name for name, each in vars(module).items() if re.match(r"CB2\d{3}", getattr(each, "__doc__", None) or "") and callable(each)
        }
        assert rules <= used, module


def test_what_was_looked_at() -> None:
    assert examined_parts([dgx()]) == "1 machine: 8 GPUs, 8 NICs, 40 PCI devices"
    assert examined_parts([]) == "nothing"
    missing = unexamined_parts([dgx(), laptop()])
    assert "the IOMMU (sysfs), on 1 of 2 machines" in missing
    assert not any(text.startswith("GPUs") for text in missing)  # the laptop has none, which is known
    hidden = replace(laptop(), unknown={"gpus": "the file names no GPU"})
    assert "GPUs (the file names no GPU), on 1 of 2 machines" in unexamined_parts([dgx(), hidden])
    assert "ACS (`lspci -vvv`, as root)" in unexamined_parts([Machine(gpus=dgx().gpus)])
