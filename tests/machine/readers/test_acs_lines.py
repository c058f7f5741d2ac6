"""`lspci -vvv | grep ACSCtl`: how many ports redirect; a whole lspci is still read as lspci."""

from __future__ import annotations

from collbench.machine.doctor.examine import unexamined_parts
from collbench.machine.model import Gpu, Machine
from collbench.machine.readers import lspci
from collbench.machine.readers import lspci as acs_lines
from tests.doctor.machines import codes, found, with_system

ON = "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-\n"
OFF = "\t\tACSCtl:\tSrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-\n"


def test_ports_are_counted() -> None:
    assert acs_lines.looks_like_acs_lines(ON * 3 + OFF, "x")
    system = acs_lines.read_acs_lines(ON * 3 + OFF, "acs.txt").system
    assert (system.acs_ports, system.acs_on) == (4, 3)


def test_access_control_that_is_on_is_a_note_and_off_none() -> None:
    machine = acs_lines.read_acs_lines(ON * 3 + OFF, "acs.txt")
    assert found(machine, "CB2108").severity == "note"
    assert "3 of 4 ports" in found(machine, "CB2108").what
    assert codes(acs_lines.read_acs_lines(OFF * 4, "acs.txt")) == []
    assert codes(with_system(machine, virtualization="kvm")) == []


def test_that_access_control_was_read_is_known() -> None:
    gpus = (Gpu("gpu0"), Gpu("gpu1"))
    read = with_system(Machine(gpus=gpus), acs_ports=4, acs_on=0)
    assert not any(text.startswith("ACS") for text in unexamined_parts([read]))
    assert any(text.startswith("ACS") for text in unexamined_parts([Machine(gpus=gpus)]))


def test_a_whole_lspci_is_read_as_lspci() -> None:
    whole = f"00:01.0 PCI bridge: Intel Corporation Device 1234\n{ON}"
    assert not acs_lines.looks_like_acs_lines(whole, "x")
    assert lspci.looks_like(whole, "x")
