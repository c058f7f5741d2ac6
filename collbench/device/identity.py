"""Which GPUs CUDA shows, and its versions, asked without claiming a GPU: a context on each would take memory there, and time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from collbench.device.cuda import cupy_runtime

_COMPUTE_MODE, _EXCLUSIVE = 20, 3  # cudaDevAttrComputeMode, cudaComputeModeExclusiveProcess


@dataclass(frozen=True)
class Identity:
    """A GPU's PCI address ("0000:1b:00.0"), and whether it takes one process only."""

    bus_id: str
    exclusive: bool


def identities() -> list[Identity]:
    """The GPUs that CUDA shows this process, in its order. Raises cupy's CUDARuntimeError where CUDA does not start."""
    runtime = cupy_runtime()
    return [
        Identity(str(runtime.deviceGetPCIBusId(index)).lower(), runtime.deviceGetAttribute(_COMPUTE_MODE, index) == _EXCLUSIVE)
        for index in range(runtime.getDeviceCount())
    ]


def cuda_versions() -> Mapping[str, str]:
    """Of cupy, of the CUDA that it was made for, and of the newest CUDA that the driver knows."""
    import cupy

    runtime = cupy_runtime()
    return {
        "cupy": str(cupy.__version__),
        "cuda_runtime": _dotted(runtime.runtimeGetVersion()),
        "cuda_driver": _dotted(runtime.driverGetVersion()),
    }


def _dotted(number: int) -> str:
    """13020 is CUDA 13.2."""
    return f"{number // 1000}.{number % 1000 // 10}"
