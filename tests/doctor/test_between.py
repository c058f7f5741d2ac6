"""CB26xx: nodes of one job against one another."""

import pytest
from msgspec.structs import replace

from collbench.machine.model import Machine
from tests.doctor.machines import changed, codes, found, with_port, with_system
from tests.machine.machines import dgx

SECOND = replace(dgx(), hostname="dgx02")
THIRD = replace(dgx(), hostname="dgx03")
SHORT = replace(THIRD, gpus=THIRD.gpus[:7], gpu_links=THIRD.gpu_links[:7])
SOFTWARE = with_system(SECOND, driver="550.54.15", kernel="6.8.0")
OLD = changed(SECOND, "nics", "mlx5_7", firmware="28.35.0")
SMALL = replace(SECOND, nics=tuple(replace(nic, ports=(replace(nic.ports[0], mtu_bytes=2048),)) for nic in SECOND.nics))
A100 = replace(SECOND, gpus=tuple(replace(gpu, model="A100-SXM4-80GB") for gpu in SECOND.gpus))
FAULTS = [
    ("CB2601", "severe", [SECOND, SHORT], "dgx03: 7 GPUs; dgx01 and dgx02: 8 GPUs"),
    ("CB2602", "severe", [SECOND, with_port(THIRD, "mlx5_4", state="down")], "dgx03: 7 RDMA ports up; dgx01 and dgx02: 8 RDMA ports up"),
    ("CB2603", "warning", [SOFTWARE], "dgx02: 550.54.15; dgx01: 535.129.03"), ("CB2604", "note", [SOFTWARE], "dgx02: 6.8.0; dgx01: "),
    ("CB2605", "warning", [OLD], "; 28.35.0 on dgx02 mlx5_7"), ("CB2606", "warning", [SMALL], "dgx02: MTU 2048; dgx01: MTU 4096"),
    ("CB2607", "warning", [A100], "dgx02: A100-SXM4-80GB; dgx01: "),
]  # fmt: skip
HEALTHY = {
    "equal nodes": [SECOND, THIRD],
    "the driver and lspci name a model differently": [replace(SECOND,
        gpus=tuple(replace(gpu, model=f"NVIDIA {gpu.model}") for gpu in SECOND.gpus))],
    "nodes that do not show it": [Machine("dgx02"), with_system(THIRD, driver=None, kernel=None)],
}  # fmt: skip


@pytest.mark.parametrize(("code", "severity", "others", "evidence"), FAULTS, ids=[code for code, *_ in FAULTS])
def test_a_difference_is_found(code: str, severity: str, others: list[Machine], evidence: str) -> None:
    finding = found(dgx(), code, *others)
    assert (finding.severity, finding.hostname) == (severity, None)
    assert evidence in finding.evidence and finding.what and finding.remedy


def test_the_minority_differs_and_firmware_also_within_a_node() -> None:
    assert "dgx03 differs" in found(dgx(), "CB2601", SECOND, SHORT).what
    assert codes(dgx(), SOFTWARE) == ["CB2603", "CB2604"]
    assert codes(dgx(), A100) == ["CB2607"]
    assert found(dgx(), "CB2605", OLD).what == "ConnectX-7 runs with 2 versions of firmware"
    assert found(OLD, "CB2605").hostname == "dgx02"


@pytest.mark.parametrize("others", HEALTHY.values(), ids=HEALTHY)
def test_what_is_no_difference(others: list[Machine]) -> None:
    assert not codes(dgx(), *others)
