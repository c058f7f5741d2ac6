"""The identity of a node of a launch, for hosts with equal names."""

from __future__ import annotations

import pytest

from collbench.launch import detect, slurm
from collbench.launch import detect as mpi

STEP = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "MASTER_ADDR": "127.0.0.1",
}  # fmt: skip
BY_HAND = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}


def test_slurm_counts_its_nodes() -> None:
    info = slurm.detect(STEP)
    assert info and info.node == "1"


@pytest.mark.parametrize(("more", "node"), [({"GROUP_RANK": "3"}, "3"), ({}, "")])
def test_torchrun_counts_its_agents(more: dict[str, str], node: str) -> None:
    info = detect.detect_torchrun({**BY_HAND, **more})
    assert info and info.node == node


@pytest.mark.parametrize(
    ("family", "node"),
    [
        ([(41, "python", "900"), (40, "bash", "800"), (39, "hydra_pmi_proxy", "700")], "39@700"),
        ([(41, "prted", "900")], "41@900"),
        ([(41, "bash", "900"), (1, "systemd", "1")], ""),  # a shell for each rank does not identify the node
        ([], ""),
    ],
)
def test_mpiexec_has_one_daemon_on_each_node(family: list[tuple[int, str, str]], node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi, "ancestors", lambda: family)
    info = mpi.detect_mpirun(HYDRA)
    assert info and info.node == node


@pytest.mark.parametrize(
    ("more", "manager"),
    [
        ({}, None),
        ({"PMIX_NAMESPACE": "slurm.pmix.7.0", "PMIX_RANK": "2"}, "pmix"),
        ({"PMIX_NAMESPACE": "slurm.pmix.7.1", "PMIX_RANK": "2"}, None),  # an outer step's
        ({"PMI_SIZE": "4", "PMI_JOBID": "7.0"}, "pmi"),
        ({"PMI_SIZE": "4", "PMI_JOBID": "6.0"}, None),
        ({"PMI_CONTROL_PORT": "1"}, "pmi"),
    ],
)
def test_the_process_manager_of_another_step_does_not_count(more: dict[str, str], manager: str | None) -> None:
    info = slurm.detect({**STEP, **more})
    assert info and info.mpi == manager


@pytest.mark.parametrize(("more", "ends"), [({}, True), ({"SLURM_KILL_BAD_EXIT": "1"}, False), ({"SLURM_KILL_BAD_EXIT": "0"}, True)])
def test_a_step_that_slurm_ends_itself_is_not_cancelled(more: dict[str, str], ends: bool) -> None:
    info = slurm.detect({**STEP, **more})
    assert info and (slurm.end_of_step(info, {**STEP, **more}) is not None) is ends
