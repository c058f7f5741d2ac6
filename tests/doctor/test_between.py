"""CB26xx: nodes of one job against one another."""

from __future__ import annotations

from dataclasses import replace

from collbench.machine.model import Machine
from tests.doctor.machines import changed, codes, found, with_port, with_system
from tests.machine.machines import dgx

SECOND = replace(dgx(), hostname="dgx02")
THIRD = replace(dgx(), hostname="dgx03")


def test_equal_nodes() -> None:
    assert not codes(dgx(), SECOND, THIRD)


def test_a_node_that_lost_a_gpu() -> None:
    short = replace(THIRD, gpus=THIRD.gpus[:7], gpu_links=THIRD.gpu_links[:7])
    finding = found(dgx(), "CB2601", SECOND, short)
    assert finding.severity == "severe" and "dgx03 differs" in finding.what
    assert finding.evidence == "dgx03: 7 GPUs; dgx01 and dgx02: 8 GPUs"


def test_a_node_with_a_port_down() -> None:
    finding = found(dgx(), "CB2602", SECOND, with_port(THIRD, "mlx5_4", state="down"))
    assert (finding.severity, finding.evidence) == ("severe", "dgx03: 7 RDMA ports up; dgx01 and dgx02: 8 RDMA ports up")


def test_software_that_differs() -> None:
    other = with_system(SECOND, driver="550.54.15", kernel="6.8.0")
    assert codes(dgx(), other) == ["CB2603", "CB2604"]
    assert found(dgx(), "CB2603", other).evidence == "dgx02: 550.54.15; dgx01: 535.129.03"


def test_firmware_within_a_node_and_between_nodes() -> None:
    old = changed(SECOND, "nics", "mlx5_7", firmware="28.35.0")
    finding = found(dgx(), "CB2605", old)
    assert (finding.hostname, finding.what) == (None, "ConnectX-7 runs with 2 versions of firmware")
    assert finding.evidence.endswith("; 28.35.0 on dgx02 mlx5_7")
    assert found(old, "CB2605").hostname == "dgx02"


def test_mtu_and_models_that_differ() -> None:
    small = replace(SECOND, nics=tuple(replace(nic, ports=(replace(nic.ports[0], mtu_bytes=2048),)) for nic in SECOND.nics))
    assert found(dgx(), "CB2606", small).evidence == "dgx02: MTU 2048; dgx01: MTU 4096"
    a100 = replace(SECOND, gpus=tuple(replace(gpu, model="A100-SXM4-80GB") for gpu in SECOND.gpus))
    assert codes(dgx(), a100) == ["CB2607"]


def test_the_driver_and_lspci_name_a_model_differently() -> None:
    assert not codes(dgx(), replace(SECOND, gpus=tuple(replace(gpu, model=f"NVIDIA {gpu.model}") for gpu in SECOND.gpus)))


def test_what_a_node_does_not_show_is_no_difference() -> None:
    assert not codes(dgx(), Machine("dgx02"), with_system(THIRD, driver=None, kernel=None))
