"""Captured matrices: every expected fact, and every trap."""

import pytest

from collbench.machine.model import Machine
from collbench.machine.readers import smi
from tests.machines import captures

ALL = captures.having("nvidia-smi-topo-m.txt")


def captured(name: str) -> tuple[Machine, dict]:
    return smi.read(captures.text(name, "nvidia-smi-topo-m.txt"), name), captures.expected(name)


def pairs(machine: Machine) -> list[list[int]]:
    """Index pairs of GPUs with NVLinks between them."""
    index = {gpu.key: gpu.index for gpu in machine.gpus}
    return sorted([index[link.a], index[link.b]] for link in machine.gpu_links if link.count and link.a < (link.b or ""))


@pytest.mark.parametrize("name", ALL)
def test_captured_machines(name: str) -> None:
    machine, expected = captured(name)
    assert (len(machine.gpus), len(machine.nics)) == (expected["gpus"], expected["nics"])
    assert {machine.links_of(gpu.key) for gpu in machine.gpus} == {expected["nvlinks_per_gpu"]}
    assert expected.get("nvlink_GBps_dir_per_gpu", 0) == expected["nvlinks_per_gpu"] * 25  # generations 2 to 4
    if "numa_nodes_seen" in expected:
        assert sorted({gpu.numa for gpu in machine.gpus} - {None}) == expected["numa_nodes_seen"]
    assert bool(machine.doubts) is not expected.get("complete")


@pytest.mark.parametrize("name", ALL)
def test_captured_links_between_gpus(name: str) -> None:
    machine, expected = captured(name)
    if "nvlink_pairs" in expected:
        assert pairs(machine) == expected["nvlink_pairs"]
    if expected.get("full_mesh"):
        assert len(pairs(machine)) == expected["gpus"] * (expected["gpus"] - 1) // 2 and not machine.switched
        assert {link.count for link in machine.gpu_links} == {expected["nvlinks_per_pair"]}
        assert expected["nvlink_GBps_dir_per_pair"] == expected["nvlinks_per_pair"] * 25
    assert machine.switched is (name in {"a100x8-10nic-mangled-nps4", "dgx-h100-12nic-tabs-mangled", "h100-4nic-alternate-partial"})


@pytest.mark.parametrize("name", ALL)
def test_captured_paths_to_nics(name: str) -> None:
    machine, expected = captured(name)
    close = {
        gpu.key: [nic.name for nic in machine.nics if machine.paths.get((gpu.key, nic.name)) in ("PIX", "PXB")] for gpu in machine.gpus
    }
    if "affine_nics" in expected:
        assert set(map(tuple, close.values())) == {tuple(expected["affine_nics"])}
    if "affine_nic" in expected:
        assert {gpu.upper(): nics for gpu, nics in close.items()} == {gpu: [nic] for gpu, nic in expected["affine_nic"].items()}
    if "gpus_with_pix_nic" in expected:
        assert [gpu.index for gpu in machine.gpus if "PIX" in {machine.paths.get((gpu.key, nic.name)) for nic in machine.nics}] == [
            0,
            2,
            4,
            6,
        ]
    if "gdr_possible" in expected:
        assert not machine.nics


def test_captured_peer_access() -> None:
    machine, expected = captured("rtx5090x2-p2p-gns")
    assert machine.peer_access["gpu0", "gpu1"] == machine.peer_access["gpu1", "gpu0"] == expected["p2p"]["0-1"]
    assert ("OK" in machine.peer_access.values()) is expected["p2p_usable"]


def test_captured_glued_columns_and_legend() -> None:
    machine, expected = captured("a100x8-10nic-mangled-nps4")
    assert machine.paths["gpu6", "mlx5_7"] == "PXB" and machine.paths["gpu6", "mlx5_8"] == "SYS"
    assert machine.paths["mlx5_7", "mlx5_8"] == "SYS" and machine.paths["mlx5_9", "mlx5_8"] == "PIX"
    assert set(expected["nccl_used_ib"]) <= {nic.name for nic in machine.nics} and expected["nic_legend"]
    near = {tuple(nic.name for nic in machine.nics if machine.paths[gpu.key, nic.name] == "PXB") for gpu in machine.gpus}
    assert len(near) == expected["compute_rails"]


def test_captured_hybrid_mesh_has_row_sums_and_gpus_that_are_not_joined() -> None:
    machine, expected = captured("v100x8-oneflow-1edr")
    assert {machine.paths["gpu0", f"gpu{peer}"] for peer in (5, 6, 7)} == {"SYS"}
    assert [machine.paths[gpu.key, "mlx5_0"] for gpu in machine.gpus] == ["NODE"] * 2 + ["PIX"] * 2 + ["SYS"] * 4
    reasons = {machine.unknown[f"gpus/{gpu.key}/numa"] for gpu in machine.gpus}
    assert not expected["numa_affinity_column"] and len(reasons) == expected["cpu_sets"]
    assert any("12-23,36-47" in reason for reason in reasons)


def test_captured_partial_matrix_keeps_its_far_nics_far() -> None:
    machine, expected = captured("h100-4nic-alternate-partial")
    assert {machine.paths[gpu.key, nic] for gpu in machine.gpus[: expected["gpu_rows_present"]] for nic in ("NIC4", "NIC5")} == {"SYS"}
    assert machine.gpus[7].numa is None and machine.links_of("gpu7") == 18


def test_captured_container_leaves_nodes_unknown() -> None:
    machine, _ = captured("a100-container-2of8-8nic")
    assert {gpu.numa for gpu in machine.gpus} == {None} and "as in a container" in machine.unknown["gpus/gpu0/numa"]
