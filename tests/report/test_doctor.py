"""Findings as text and as JSON."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

from collbench.errors import UsageError
from collbench.machine.doctor.finding import Finding, pages
from collbench.machine.model import Machine
from collbench.report.doctor import print_findings
from tests.machine.machines import dgx

SEVERE = Finding("CB2101", "severe", "dgx01", "GPU 0 runs on 8 of 16 lanes", "LnkSta x8", "reseat the card")
NOTE = Finding("CB2104", "note", "dgx01", "1 link at 2.5 GT/s", "LnkSta 2.5 GT/s", "read it again")


def doctor_output(
    *findings: Finding, machines: tuple[Machine, ...] = (dgx(),), format: str = "table", color: str = "never"
) -> tuple[str, int]:
    """What is printed, and the exit code."""
    stream = io.StringIO()
    code = print_findings(findings, machines, (), format, stream, color=color)
    return stream.getvalue(), code


def test_a_finding_has_its_evidence_and_remedy() -> None:
    text, code = doctor_output(SEVERE, NOTE)
    assert text.splitlines()[:-2] == [
        "severe   CB2101  GPU 0 runs on 8 of 16 lanes", "  evidence: LnkSta x8", "  remedy:   reseat the card",
        "note     CB2104  1 link at 2.5 GT/s", "  evidence: LnkSta 2.5 GT/s", "  remedy:   read it again",
        "2 findings: 1 severe, 1 note; `collbench explain CB2101` explains the first",
    ]  # fmt: skip
    assert code == 1


def test_verbose_adds_the_meaning_the_check_by_hand_and_all_hosts() -> None:
    stream = io.StringIO()
    hosts = [f"node{number}" for number in range(9)]
    machines = [replace(dgx(), hostname=host) for host in hosts]
    print_findings([replace(NOTE, hostname=host) for host in hosts], machines, (), "table", stream, color="never", verbose=True)
    first, _, _, means, check, *commands = stream.getvalue().splitlines()
    assert all(host in first for host in hosts)
    page = pages()["CB2104"]
    assert (means, check) == (f"  means:    {' '.join(page.means.split())}", "  check:")
    assert commands[: len(page.check.strip().splitlines())] == [f"    {line}" for line in page.check.strip().splitlines()]


def test_the_exit_code_the_colour_and_the_format_and_no_control_characters() -> None:
    assert doctor_output(NOTE)[1] == 0
    assert doctor_output(SEVERE, color="always")[0].startswith("\x1b[1;31msevere")
    assert "\x1b" not in doctor_output(SEVERE, color="auto")[0]
    assert "\x1b" not in doctor_output(replace(SEVERE, what="\x1b[2J"))[0]
    with pytest.raises(UsageError, match=r"--format 'xml': .*table, json"):
        doctor_output(SEVERE, format="xml")


def test_no_findings_shows_what_was_looked_at_and_what_not() -> None:
    text, code = doctor_output()
    first, state, second = text.splitlines()
    assert (first, code) == ("no findings", 0)
    assert state.startswith("GPUDirect RDMA capable; use not checked: 8 of 8 GPUs (")
    assert second.startswith("examined 1 machine: 8 GPUs, 8 NICs, 40 PCI devices; ") and "; not examined: peer access" in second


def test_the_same_finding_on_several_nodes_is_reported_once() -> None:
    machines = tuple(replace(dgx(), hostname=f"dgx0{number}") for number in (1, 2, 3))
    text, _ = doctor_output(SEVERE, replace(SEVERE, hostname="dgx03"), machines=machines)
    assert text.splitlines()[0] == "severe   CB2101  dgx01 and dgx03: GPU 0 runs on 8 of 16 lanes"
    assert "2 findings: 2 severe" in text


def test_json_is_one_object() -> None:
    text, code = doctor_output(SEVERE, format="json")
    document = json.loads(text)
    assert (document["schema"], document["hostnames"], code) == (1, ["dgx01"], 1)
    assert document["findings"] == [
        {
            "code": "CB2101", "severity": "severe", "hostname": "dgx01", "what": SEVERE.what, "evidence": SEVERE.evidence,
            "remedy": SEVERE.remedy,
        }
    ]  # fmt: skip
    assert document["looked_at"] == "1 machine: 8 GPUs, 8 NICs, 40 PCI devices"
    assert any("--log" in part for part in document["not_looked_at"])
    assert [state.partition(":")[0] for state in document["gpudirect"]] == ["GPUDirect RDMA capable; use not checked"]
