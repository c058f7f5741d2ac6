"""Healthy machines get no finding, and every code has a page and a test."""

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest
from msgspec.structs import replace

from collbench.machine.doctor.compare import SINCE_RULES
from collbench.machine.doctor.examine import JOB_RULES, RULES, examine, examined_parts, unexamined_parts
from collbench.machine.doctor.finding import Finding, pages, worst_first
from collbench.machine.model import Machine
from collbench.plugin import loaded, plugins
from collbench.units import listed
from tests.conftest import ROOT, needs_plugin
from tests.doctor import test_compare, test_gpus, test_host_and_paths, test_nics, test_pcie
from tests.machine.machines import dgx, laptop, mesh

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


def test_every_code_has_a_fault() -> None:
    modules = (test_pcie, test_nics, test_gpus, test_host_and_paths)
    tested = {fault.code for module in modules for fault in module.FAULTS}
    tested |= {code for code, *_ in (*test_compare.FAULTS, *test_compare.LOST)}
    assert tested == {code for code in pages() if re.match("CB2[123467]|CB250", code)}


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


def test_every_rule_reports_which_code_it_is_and_every_function_that_looks_like_one_is_run() -> None:
    """A rule that was written and neither appended to its module's tuple nor called would never be heard of."""
    run = {*RULES, *JOB_RULES, *SINCE_RULES, *LOG_RULES}
    for rule in run:
        assert re.match(r"CB2\d{3}", rule.__doc__ or ""), rule
    for module in map(import_module, {rule.__module__ for rule in run}):
        used = {node.id for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.Name)}
        functions = {name: each for name, each in vars(module).items() if callable(each)}
        assert {name for name, each in functions.items() if re.match(r"CB2\d{3}", each.__doc__ or "")} <= used, module


def test_what_was_looked_at() -> None:
    assert examined_parts([dgx()]) == "1 machine: 8 GPUs, 8 NICs, 40 PCI devices"
    assert examined_parts([]) == "nothing"
    missing = unexamined_parts([dgx(), laptop()])
    assert "the IOMMU (sysfs), on 1 of 2 machines" in missing
    assert not any(text.startswith("GPUs") for text in missing)  # the laptop has none, which is known
    hidden = replace(laptop(), unknown={"gpus": "the file names no GPU"})
    assert "GPUs (the file names no GPU), on 1 of 2 machines" in unexamined_parts([dgx(), hidden])
    assert "ACS (`lspci -vvv`, as root)" in unexamined_parts([Machine(gpus=dgx().gpus)])
