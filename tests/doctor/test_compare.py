"""CB26xx: nodes of one job against one another. CB27xx: what a node had when it was good, and lacks now."""

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.machine.doctor.examine import examine
from collbench.machine.model import Machine, Nic, PcieLink
from collbench.machine.snapshot import topology_json
from tests.cli.command import run_here
from tests.doctor.machines import changed, codes, found, with_link, with_port, with_system
from tests.machine.machines import dgx, laptop

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


GPU, NIC = dgx().gpus[1].key, dgx().nics[3].address or ""
OFF = replace(dgx(), gpus=dgx().gpus[:7], pci=tuple(each for each in dgx().pci if each.address != dgx().gpus[7].key))
WITHOUT_NIC = replace(dgx(), nics=dgx().nics[:-1], pci=tuple(each for each in dgx().pci if each.address != dgx().nics[-1].address))
FEWER_LINKS = replace(dgx(), gpu_links=tuple(replace(link, count=2) if link.a == GPU else link for link in dgx().gpu_links))
LOST = [
    ("CB2701", "severe", OFF, "7 GPUs now, 8 then"),
    ("CB2701", "severe", replace(dgx(), gpus=dgx().gpus[:7]), "the driver counts 7 GPUs now, 8 then"),
    ("CB2701", "warning", replace(dgx(), gpus=()), "nothing that counts GPUs answered; 8 GPUs then"),
    ("CB2702", "severe", WITHOUT_NIC, f"{len(dgx().nics) - 1} NICs now, {len(dgx().nics)} then"),
    ("CB2703", "severe", with_port(dgx(), "mlx5_3", state="down", phys_state="polling"), "port 1: down, polling now, active then"),
    ("CB2704", "severe", with_port(dgx(), "mlx5_3", rate_bits_per_s=200e9), "port 1: 200 Gb/s now, 400 Gb/s then"),
    ("CB2705", "severe", with_link(dgx(), GPU, PcieLink(32.0, 8, 32.0, 16)), "x8 now, x16 then"),
    ("CB2705", "severe", with_link(dgx(), NIC, PcieLink(16.0, 16, 32.0, 16)), "16 GT/s now, 32 GT/s then"),
    ("CB2706", "severe", FEWER_LINKS, "2 up now, 18 then"),
    ("CB2707", "warning", with_system(dgx(), memory_bytes=1 << 40), "1024 GiB now, 2048 GiB then"),
]
THEN = with_system(dgx(), memory_bytes=2 << 40)


@pytest.mark.parametrize(("code", "severity", "now", "evidence"), LOST, ids=[f"{code} {evidence}" for code, _, _, evidence in LOST])
def test_what_was_lost(code: str, severity: str, now: Machine, evidence: str) -> None:
    (finding,) = [each for each in examine([now], good=[THEN]) if each.code.startswith("CB27")]
    assert (finding.code, finding.severity, finding.evidence, finding.hostname) == (code, severity, evidence, "dgx01")
    assert finding.what
    assert finding.remedy
    assert not [each for each in examine([now]) if each.code.startswith("CB27")]


NO_LOSS = {
    "the same": THEN, "a little memory": with_system(THEN, memory_bytes=int(1.97 * 2**40)), "nothing read": Machine("dgx01"),
    "an idle GPU": with_link(THEN, GPU, PcieLink(2.5, 16, 32.0, 16)),
    "a NIC more": replace(THEN, nics=(*THEN.nics, Nic("mlx5_99", "0000:f1:00.0", rdma=True))),
    "names of devices": replace(THEN, nics=tuple(replace(nic, name=f"roce_{nic.name}") for nic in THEN.nics)),
    "a port unread": with_port(THEN, "mlx5_3", state=None, rate_bits_per_s=None),
    "another card in the slot": changed(with_link(THEN, NIC, PcieLink(8.0, 8, 8.0, 8)), "pci", NIC, device_id=1),
}  # fmt: skip


@pytest.mark.parametrize("now", NO_LOSS.values(), ids=NO_LOSS)
def test_what_is_no_loss(now: Machine) -> None:
    assert {each.code for each in examine([now], good=[THEN]) if each.severity == "severe" and each.code.startswith("CB27")} == set()


def test_one_snapshot_is_that_of_all_and_of_several_each_has_its_own() -> None:
    second = replace(OFF, hostname="dgx02")
    assert [each.hostname for each in examine([THEN, second], good=[THEN]) if each.code == "CB2701"] == ["dgx02"]
    small = replace(laptop(), hostname="edge.example.org")
    assert not [each for each in examine([replace(small, hostname="EDGE")], good=[THEN, small]) if each.code.startswith("CB27")]
    with pytest.raises(UsageError, match=r"^--since .*dgx09: .*`collbench probe --format json`$"):
        examine([replace(THEN, hostname="dgx09")], good=[THEN, laptop()])


def test_from_the_command(tmp_path: Path) -> None:
    for name, machine in (("then", THEN), ("now", OFF)):
        (tmp_path / f"{name}.json").write_text(json.dumps(topology_json([machine])))
    done = run_here(tmp_path, "doctor", "--from", "now.json", "--since", "then.json")
    assert done.returncode == 1
    assert re.search(r"^severe   CB2701  GPU 7 \(.*\) gone from the bus$", done.stdout, re.MULTILINE), done.stdout
    assert run_here(tmp_path, "doctor", "--from", "then.json", "--since", "then.json").returncode == 0
    damaged = tmp_path / "then.json"
    damaged.write_text("{}")
    refused = run_here(tmp_path, "doctor", "--from", "now.json", "--since", "then.json")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "then.json" in refused.stderr
