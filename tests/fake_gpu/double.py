"""The environment with which a subprocess finds the doubles."""

import os
from collections.abc import Mapping, Sequence
from uuid import uuid4

from tests.fake_gpu.build import BUILD, PYTHON, amd_libraries, libraries, nccl_without

# Settings of the double, and their variables; the C++ and the fake cupy document each.
VARIABLES = {
    "memory": "FAKE_GPU_MEMORY", "compute_mode": "FAKE_GPU_COMPUTE_MODE", "busy": "FAKE_GPU_BUSY", "arch": "FAKE_GPU_ARCH",
    "peer": "FAKE_GPU_PEER", "driver_version": "FAKE_CUDA_DRIVER_VERSION", "runtime_version": "FAKE_CUDA_RUNTIME_VERSION",
    "nccl_version": "FAKE_NCCL_VERSION", "drop_rank": "FAKE_NCCL_DROP_RANK", "hang": "FAKE_NCCL_HANG",
    "async_error": "FAKE_NCCL_ASYNC_ERROR", "init_error": "FAKE_NCCL_INIT_ERROR", "no_windows": "FAKE_NCCL_NO_WINDOWS",
    "cufile_open_error": "FAKE_CUFILE_OPEN_ERROR", "cufile_wrong": "FAKE_CUFILE_WRONG",
}  # fmt: skip
_SET_BY_USERS = ("CUDA_", "HIP_", "ROCR_", "NCCL_", "FAKE_", "TORCH_NCCL_", "COLLBENCH_NCCL")


def environment(
    gpus: int = 2,
    *,
    lacks: Sequence[str] = (),
    driver: bool = True,
    nccl: bool = True,
    cupy: bool = True,
    cufile: bool = False,
    inherit: Mapping[str, str] | None = None,
    **settings: object,
) -> dict[str, str]:
    """The whole environment of a subprocess on a host with fake GPUs: `subprocess.run(…, env=environment(4, hang="1:3"))`.

    lacks                 functions that this libnccl.so.2 does not have ("ncclAlltoAll")
    driver, nccl, cupy, cufile    False: the machine is without it
    inherit               in place of os.environ; what a user set for CUDA and NCCL is left out
    settings              entries of VARIABLES: memory=64 << 20 bytes, compute_mode="exclusive" or "prohibited", busy="0,1", arch=80,
                          peer=0, driver_version=12080, runtime_version=13020, nccl_version=21805, drop_rank=1, hang="rank:call",
                          async_error="rank:call:code", init_error="rank:code", no_windows=1, cufile_open_error=5002,
                          cufile_wrong=1; calls count from 1
    """
    base = {key: value for key, value in (os.environ if inherit is None else inherit).items() if not key.startswith(_SET_BY_USERS)}
    folders = ((driver, libraries() / "cuda"), (nccl, nccl_without(tuple(sorted(lacks)))), (cufile, libraries() / "cufile"))
    found = [str(folder) for wanted, folder in folders if wanted]
    before = {"LD_LIBRARY_PATH": found, "PYTHONPATH": [str(PYTHON)] if cupy else []}
    for name, paths in before.items():
        base[name] = os.pathsep.join([*paths, *filter(None, [base.get(name)])])
    own = {
        "FAKE_GPU_COUNT": str(gpus),
        "FAKE_GPU_MACHINE": uuid4().hex,  # the holder of a GPU in exclusive mode is per launch
        "COLLBENCH_CACHE": str(BUILD / "kernels"),  # never beside what a real NVRTC compiled
    }
    return base | own | {VARIABLES[word]: str(value) for word, value in settings.items()}


def amd_environment(gpus: int = 2, *, rccl: bool = True, hip: bool = True, **settings: object) -> dict[str, str]:
    """The same on a host with fake AMD GPUs: HIP's runtime and RCCL, without CUDA, NCCL and cupy. rccl, hip: False: without it."""
    env = environment(gpus, driver=False, nccl=False, cupy=False, **settings)
    found = [str(amd_libraries() / kind) for kind, wanted in (("hip", hip), ("rccl", rccl)) if wanted]
    return env | {"LD_LIBRARY_PATH": os.pathsep.join([*found, *filter(None, [env.get("LD_LIBRARY_PATH")])])}
