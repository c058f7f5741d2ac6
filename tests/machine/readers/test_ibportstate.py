"""ibportstate: one port of an adapter by its LID, with the lanes that it uses and may use."""

from __future__ import annotations

import pytest

from collbench.machine.merge import merge
from collbench.machine.model import Machine, Nic, Port
from collbench.machine.readers import rdma_tools
from tests.doctor.machines import codes, found

NDR = """\
CA/RT PortInfo:
# Port info: Lid 21 port 1
LinkState:.......................Active
PhysLinkState:...................LinkUp
Lid:.............................21
SMLid:...........................4
LMC:.............................0
LinkWidthSupported:..............1X or 4X
LinkWidthEnabled:................1X or 4X
LinkWidthActive:.................4X
LinkSpeedSupported:..............2.5 Gbps or 5.0 Gbps or 10.0 Gbps
LinkSpeedEnabled:................2.5 Gbps or 5.0 Gbps or 10.0 Gbps
LinkSpeedActive:.................Extended speed
LinkSpeedExtSupported:...........14.0625 Gbps or 25.78125 Gbps or 53.125 Gbps or 106.25 Gbps
LinkSpeedExtEnabled:.............106.25 Gbps
LinkSpeedExtActive:..............106.25 Gbps
Mkey:............................<not displayed>
# MLNX ext Port info: Lid 21 port 1
StateChangeEnable:...............0x00
LinkSpeedSupported:..............0x01
LinkSpeedEnabled:................0x01
LinkSpeedActive:.................0x00
"""
QDR = NDR.replace("LinkSpeedExtActive:..............106.25 Gbps", "LinkSpeedExtActive:..............No Extended Speed")
QDR = QDR.replace("LinkSpeedActive:.................Extended speed", "LinkSpeedActive:.................10.0 Gbps")
FDR10 = QDR.replace("Active:.................0x00", "Active:.................0x01")
NARROW = NDR.replace("LinkWidthActive:.................4X", "LinkWidthActive:.................1X")
LIMITED = NARROW.replace("LinkWidthEnabled:................1X or 4X", "LinkWidthEnabled:................1X")
DOWN = NDR.replace("Active\nPhysLinkState:...................LinkUp", "Down\nPhysLinkState:...................Polling")


def port(text: str) -> Port:
    """The port that is read."""
    assert rdma_tools.looks_like_ibportstate(text, "x")
    (nic,) = rdma_tools.read_ibportstate(text, "port.txt").nics
    return nic.ports[0]


@pytest.mark.parametrize(
    ("text", "rate", "lanes"),
    [(NDR, 400e9, 4), (QDR, 32e9, 4), (FDR10, 40e9, 4), (NARROW, 100e9, 1)],
    ids=["NDR", "QDR", "FDR10", "one lane of NDR"],
)  # fmt: skip
def test_rate_and_lanes(text: str, rate: float, lanes: int) -> None:
    seen = port(text)
    assert (seen.rate_bits_per_s, seen.lanes, seen.max_lanes, seen.lid, seen.sm_lid, seen.state) == (rate, lanes, 4, 21, 4, "active")


def test_a_port_that_is_down_has_no_rate() -> None:
    assert (port(DOWN).rate_bits_per_s, port(DOWN).lanes, port(DOWN).phys_state) == (None, None, "polling")


def test_after_a_change_the_port_is_as_it_is_now() -> None:
    changed = NARROW.replace("CA/RT", "Initial CA/RT") + "\nAfter PortInfo set:\n" + NDR.partition("\n")[2]
    assert port(changed).lanes == 4


def test_it_is_the_device_that_another_source_names() -> None:
    named = Machine(nics=(Nic("mlx5_3", rdma=True, ports=(Port(lid=21, state="active", link_layer="infiniband"),)),))
    merged = merge([named, rdma_tools.read_ibportstate(NARROW, "port.txt")])
    assert [(nic.name, nic.ports[0].lanes) for nic in merged.nics] == [("mlx5_3", 1)]


def test_lost_lanes_are_a_finding_and_a_limit_is_none() -> None:
    finding = found(rdma_tools.read_ibportstate(NARROW, "port.txt"), "CB2209")
    assert (finding.severity, finding.what) == ("warning", "LID 21 uses 1 lane of 4")
    assert codes(rdma_tools.read_ibportstate(NDR, "port.txt")) == codes(rdma_tools.read_ibportstate(LIMITED, "port.txt")) == []
