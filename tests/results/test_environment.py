"""What is recorded of the environment, and what never is."""

import subprocess
import sys
from pathlib import Path

import pytest

from collbench.results.environment import cpu_model, host_facts, loaded_libraries, recorded_environment, steering

RECORDED = [
    "SLURM_JOB_ID", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_RANK", "NCCL_DEBUG", "UCX_TLS", "GLOO_SOCKET_IFNAME", "MPICH_CVAR_X",
    "FI_PROVIDER", "I_MPI_FABRICS", "MV2_X", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "COLLBENCH_OUT", "MASTER_ADDR", "MASTER_PORT",
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID", "LD_PRELOAD", "PBS_JOBID", "LSB_JOBID",
]  # fmt: skip
SECRET = [
    "SLURM_JWT", "COLLBENCH_TOKEN", "NCCL_SECRET", "OMPI_PASSWORD", "UCX_API_KEY", "PMIX_CREDENTIAL", "SLURM_MUNGE_SOCKET",
    "TORCHELASTIC_AUTH", "FI_COOKIE", "NCCL_tls_key", "OMPI_MCA_orte_precondition_transports", "HOME", "AWS_SECRET_ACCESS_KEY",
    "GITHUB_TOKEN", "RANKING", "MY_RANK", "PATH", "MASTER_ADDRESS_BOOK", "SSH_AUTH_SOCK",
]  # fmt: skip


def test_what_steers_libraries_is_recorded() -> None:
    assert recorded_environment(dict.fromkeys(RECORDED, "x")) == dict.fromkeys(RECORDED, "x")


@pytest.mark.parametrize("name", SECRET)
def test_secrets_and_unknown_variables_are_not(name: str) -> None:
    assert recorded_environment({name: "x"}) == {}


def test_users_and_passwords_inside_urls_are_cut_out_and_what_a_launcher_numbers_is_no_difference() -> None:
    assert recorded_environment({"COLLBENCH_URL": "http://me:pw@host/x"}) == {"COLLBENCH_URL": "http://…@host/x"}
    ours = {"I_MPI_FABRICS": "shm", "FI_PROVIDER": "tcp"}
    of_launch = {"I_MPI_INFO_SERIAL": "7", "I_MPI_HYDRA_UUID": "a55b", "I_MPI_PIN_MAPPING": "2:0 0,1 1"}
    found = recorded_environment({**of_launch, **ours})
    assert "I_MPI_INFO_SERIAL" not in found and "I_MPI_HYDRA_UUID" in found
    assert set(steering(found)) == set(ours)


def test_only_libraries_of_interest_are_listed_once(tmp_path: Path) -> None:
    paths = [
        "/usr/lib/libmpi.so.40.40.7", "/usr/lib/libmpi.so.40.40.7", "/opt/x/libmpi.so.12", "/v/site-packages/torch/lib/libtorch_cpu.so",
        "/v/libnccl.so.2", "/usr/lib/libc.so.6", "/v/libc10.so", "/usr/lib/libucp.so.0.0.0", "/usr/lib/libfabric.so.1", "/a b/libgloo.so",
        "/usr/lib/libcudart.so.12", "/v/numpy.libs/libgfortran.so.5", "[heap]", "/usr/lib/libcuda.so.550.54", "/v/mpi4py/MPI.cpython.so",
    ]  # fmt: skip
    maps = tmp_path / "maps"
    maps.write_text("".join(f"7f00-7f01 r-xp 00000000 08:01 1234    {path}\n" for path in paths) + "7f02-7f03 rw-p 0 00:00 0\n")
    assert loaded_libraries(maps) == [
        "/a b/libgloo.so", "/opt/x/libmpi.so.12", "/usr/lib/libcuda.so.550.54", "/usr/lib/libcudart.so.12", "/usr/lib/libfabric.so.1",
        "/usr/lib/libmpi.so.40.40.7", "/usr/lib/libucp.so.0.0.0", "/v/libc10.so", "/v/libnccl.so.2",
        "/v/site-packages/torch/lib/libtorch_cpu.so",
    ]  # fmt: skip
    assert loaded_libraries(tmp_path / "missing") == []


def test_the_host_is_described(tmp_path: Path) -> None:
    facts = host_facts()
    assert all(facts[name] for name in ("hostname", "system", "kernel", "machine", "cpu_model", "cpus_online", "cpus_usable", "python"))
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Fast CPU 9000\nmodel name\t: other\n")
    assert cpu_model(tmp_path / "cpuinfo") == "Fast CPU 9000"


@pytest.mark.contract
def test_storing_and_showing_progress_import_nothing_heavy() -> None:
    modules = "collbench.results.folder, collbench.results.environment, collbench.report.progress"
    script = f"import sys, {modules}; print([m for m in ('numpy', 'rich', 'torch', 'mpi4py') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"
