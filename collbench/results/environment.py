"""The circumstances of a run: variables that steer libraries, the host, and the loaded libraries. Secrets are left out."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Families of variables that change the measurement, or name the job and its owner. All others are not recorded, like I_MPI_INFO_*, in which
# Intel MPI's mpiexec describes the processor.
_RECORDED = re.compile(
    r"SLURM_|SRUN_|OMPI_|PRTE_|PMI_|PMI2_|PMIX_|NCCL_|RCCL_|MSCCL_|UCX_|UCC_|GLOO_|MPICH_|MPIR_|HYDRA_|FI_|I_MPI_(?!INFO_)|MV2_|RDMAV_|MLX5_"
    r"|SHARP_"
    r"|OMP_|GOMP_|KMP_|TORCHELASTIC_|TORCH_NCCL_|COLLBENCH_"
    r"|(?:PBS_JOBID|LSB_JOBID|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|CUDA_DEVICE_MAX_CONNECTIONS|NVIDIA_VISIBLE_DEVICES"
    r"|HIP_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|GPU_MAX_HW_QUEUES|HSA_FORCE_FINE_GRAIN_PCIE|HSA_ENABLE_SDMA"
    r"|MASTER_ADDR|MASTER_PORT|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|NODE_RANK|LD_PRELOAD|LD_LIBRARY_PATH|MALLOC_ARENA_MAX)$"
)
# Those that steer libraries. The launchers' numbers change at each start, and the backend reports the interface: both are left out.
_STEERING = re.compile(
    r"NCCL_|RCCL_|MSCCL_|HIP_|ROCR_|HSA_|GPU_MAX_HW|UCX_|UCC_|GLOO_(?!SOCKET_IFNAME)|MPICH_|MPIR_|FI_"
    r"|I_MPI_(?!INFO_|HYDRA_|INTERNAL_|RETURN_|PIN_INFO|PIN_MAPPING)"
    r"|MV2_|RDMAV_|MLX5_|SHARP_|OMP_|GOMP_|KMP_|TORCH_NCCL_|PMIX_MCA_"
    r"|OMPI_MCA_(?!ess_|orte_|prte_|pmix_|initial_wdir|mpi_yield|precondition)|CUDA_|NVIDIA_VISIBLE|LD_PRELOAD$|LD_LIBRARY_PATH$|MALLOC_ARENA_MAX$"
    r"|SLURM_MPI_TYPE$|SLURM_CPU_BIND_TYPE$|SLURM_DISTRIBUTION$|SLURM_CPU_FREQ_REQ$"
)
# precondition_transports is the job's shared secret on Open MPI, despite its name.
_SECRET = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|JWT|COOKIE|KEY|MUNGE|PRIVATE|CERT|PRECONDITION_TRANSPORTS",
    re.IGNORECASE,
)
_USER_IN_URL = re.compile(r"://[^/@\s]+@")
_LIBRARY = re.compile(
    r"lib(?:\w*mpi\w*|\w*nccl\w*|rccl|cuda\w*|nvidia-ml|torch\w*|c10\w*|gloo\w*|uc[cpst]\w*|fabric|efa|psm2?|sharp\w*|ibverbs|rdmacm|mlx[45]"
    r"|pmi\w*|pmix|prrte|hwloc|numa|amdhip\w*|hsa-runtime\w*|gomp|iomp5|mpich\w*|MPI|open-(?:pal|rte))(?:[-.][\w.-]*)?\.so(?:\.[\w.]+)*$"
)


def recorded_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables to record, sorted by name, without those named like a secret, and without user and password in URLs."""
    source = os.environ if environ is None else environ
    names = sorted(name for name in source if _RECORDED.match(name) and not _SECRET.search(name))
    return {name: _USER_IN_URL.sub("://…@", source[name]) for name in names}


def steering(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded variables that steer libraries, and so change the measurement."""
    return {name: value for name, value in recorded.items() if _STEERING.match(name)}


def loaded_libraries(maps: Path = Path("/proc/self/maps")) -> list[str]:
    """Return the paths of the communication libraries loaded into this process, sorted; empty if there is no /proc."""
    try:
        lines = maps.read_text(errors="replace").splitlines()
    except OSError:
        return []
    paths = {fields[5] for fields in (line.split(maxsplit=5) for line in lines) if len(fields) == 6}
    return sorted(path for path in paths if _LIBRARY.match(path.rsplit("/", 1)[-1]))


def host_facts() -> dict[str, Any]:
    """Return facts of this host and interpreter: hostname, system, kernel, machine, C library, CPU model and count, Python."""
    return {
        "hostname": platform.node(),
        "system": _os_name(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()).strip(),
        "cpu_model": cpu_model(),
        "cpus_online": os.cpu_count(),
        "cpus_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
    }


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name from the kernel; the architecture where it has none (Arm)."""
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        match = None
    return match[1].strip() if match else platform.machine()


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()
