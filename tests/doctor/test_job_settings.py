"""CB2804 to CB2809: NCCL's environment and files, RoCE's GID, Slurm's topology, Intel MPI's variables; on folders like those of a host."""

import os
from pathlib import Path

import pytest

from collbench.machine.doctor import host as job_settings
from collbench.machine.doctor.finding import Finding

GIDS = {0: "IB/RoCE v1", 1: "RoCE v2", 2: "IB/RoCE v1", 3: "RoCE v2"}


def host(root: Path, *, conf: str | None = None, layer: str = "Ethernet", topology: str | None = None, state: str = "") -> Path:
    """A host with /etc/nccl.conf, an RDMA port with four GIDs, and a scontrol that prints this TopologyPlugin."""
    if conf is not None:
        (root / "etc").mkdir()
        (root / "etc/nccl.conf").write_text(conf)
    port = root / "sys/class/infiniband/mlx5_0/ports/1"
    (port / "gid_attrs/types").mkdir(parents=True)
    (port / "link_layer").write_text(f"{layer}\n")
    if state:
        (port / "state").write_text(f"{state}\n")
    for index, kind in GIDS.items():
        (port / f"gid_attrs/types/{index}").write_text(f"{kind}\n")
    (port / "gid_attrs/types/4").write_text("\n")
    if topology is not None:
        (root / "bin").mkdir()
        scontrol = root / "bin/scontrol"
        scontrol.write_text(f"#!/bin/sh\necho 'TopologyParam           = (null)'\necho 'TopologyPlugin          = {topology}'\n")
        scontrol.chmod(0o755)
    return root


def found(root: Path, **env: str) -> list[Finding]:
    return job_settings.examined("node1", {"PATH": f"{root}/bin", **env}, root)


@pytest.mark.contract
def test_a_host_without_settings_is_not_accused(tmp_path: Path) -> None:
    assert found(host(tmp_path, conf="# a comment\nNCCL_DEBUG=WARN\nNCCL_IB_HCA==mlx5_0\n", topology="topology/tree")) == []


def test_an_algorithm_that_is_forced(tmp_path: Path) -> None:
    (finding,) = found(host(tmp_path, conf="NCCL_MIN_NCHANNELS=32\nNCCL_ALGO=Tree\n"), NCCL_ALGO="Ring")
    assert (finding.code, finding.severity, finding.hostname) == ("CB2804", "warning", "node1")
    assert finding.evidence == "NCCL_ALGO=Ring in the environment and NCCL_MIN_NCHANNELS=32 in /etc/nccl.conf"


def test_an_interface_for_gloo_that_this_host_does_not_have(tmp_path: Path) -> None:
    (finding,) = found(host(tmp_path), GLOO_SOCKET_IFNAME="collbench-none")
    assert (finding.code, finding.severity, finding.hostname) == ("CB2813", "warning", "node1")
    assert finding.evidence == "GLOO_SOCKET_IFNAME=collbench-none in the environment"


def test_a_file_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.nccl.conf").write_text("NCCL_PROTO=LL\n")
    (finding,) = found(host(tmp_path), HOME=str(tmp_path / "home"))
    assert finding.evidence == f"NCCL_PROTO=LL in {tmp_path}/home/.nccl.conf"
    (tmp_path / "own.conf").write_text("NCCL_DEBUG=WARN\n")
    assert found(tmp_path, HOME=str(tmp_path / "home"), NCCL_CONF_FILE=str(tmp_path / "own.conf")) == []


@pytest.mark.parametrize(
    ("index", "layer", "kind"), [(0, "Ethernet", "IB/RoCE v1"), (9, "Ethernet", "empty"), (3, "Ethernet", None), (0, "InfiniBand", None)]
)
def test_a_gid_that_is_not_roce_v2(tmp_path: Path, index: int, layer: str, kind: str | None) -> None:
    findings = found(host(tmp_path, conf=f"NCCL_IB_GID_INDEX={index}\n", layer=layer))
    what = f"NCCL_IB_GID_INDEX={index} does not name a RoCE v2 address of mlx5_0"
    assert [(finding.code, finding.what) for finding in findings] == ([("CB2805", what)] if kind else [])
    assert all(finding.evidence.startswith(f"set in /etc/nccl.conf; index {index} is {kind} in ") for finding in findings)


@pytest.mark.contract
@pytest.mark.parametrize("plugin", ["topology/default", "topology/flat"])
def test_slurm_without_a_topology_is_a_note(tmp_path: Path, plugin: str) -> None:
    (finding,) = found(host(tmp_path, topology=plugin))
    assert (finding.code, finding.severity, finding.evidence) == ("CB2806", "note", f"scontrol show config: TopologyPlugin = {plugin}")
    for text in ("exit 1", "echo slurm_load_ctl_conf error: Unable to contact slurm controller"):  # it does not answer
        (tmp_path / "bin/scontrol").write_text(f"#!/bin/sh\n{text}\n")
        assert found(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_cannot_be_read_sets_nothing(tmp_path: Path) -> None:
    host(tmp_path, conf="NCCL_ALGO=Ring\n")
    (tmp_path / "etc/nccl.conf").chmod(0)
    assert found(tmp_path) == []


@pytest.mark.parametrize("variable", ["FI_PROVIDER", "I_MPI_OFI_PROVIDER"])
@pytest.mark.parametrize("value", ["tcp", "sockets", "tcp;ofi_rxm", "TCP,sockets", "verbs", "verbs;ofi_rxm", "mlx"])
def test_tcp_beside_an_active_rdma_port_and_an_rdma_provider_without_a_device(tmp_path: Path, variable: str, value: str) -> None:
    is_tcp = value.lower().startswith(("tcp", "sockets"))
    if is_tcp:
        host(tmp_path, state="4: ACTIVE")
    else:
        (tmp_path / "sys/class/net").mkdir(parents=True)
    (finding,) = found(tmp_path, **{variable: value})
    assert (finding.code, finding.severity) == ("CB2807", "warning")
    assert finding.what.startswith(f"{variable}={value.lower()}: ")
    assert ("mlx5_0 is active" if is_tcp else "no RDMA device") in finding.what


@pytest.mark.parametrize("value", ["", "^tcp", "verbs", "verbs,tcp", "tcp,verbs", "psm3", "nonsense"])
def test_a_provider_that_may_fit_is_no_finding(tmp_path: Path, value: str) -> None:
    assert found(host(tmp_path, state="4: ACTIVE"), FI_PROVIDER=value) == []


def test_tcp_without_an_active_port_is_no_finding(tmp_path: Path) -> None:
    assert found(host(tmp_path, state="1: DOWN"), FI_PROVIDER="tcp", I_MPI_OFI_PROVIDER="tcp") == []
    (tmp_path / "other").mkdir()
    assert found(tmp_path / "other", FI_PROVIDER="tcp", I_MPI_OFI_PROVIDER="verbs") == []  # without /sys nothing is known


@pytest.mark.parametrize(("value", "codes"), [("ofi", ["CB2808"]), ("OFI ", ["CB2808"]), ("shm:ofi", []), ("shm", []), ("", [])])
def test_intel_mpi_without_shared_memory(tmp_path: Path, value: str, codes: list[str]) -> None:
    assert [finding.code for finding in found(host(tmp_path), I_MPI_FABRICS=value)] == codes


def test_a_missing_pmi_library(tmp_path: Path) -> None:
    path = tmp_path / "libpmi2.so"
    (finding,) = found(host(tmp_path), I_MPI_PMI_LIBRARY=str(path))
    assert (finding.code, finding.severity) == ("CB2809", "warning") and str(path) in finding.what
    path.touch()
    assert found(tmp_path, I_MPI_PMI_LIBRARY=str(path)) == []
