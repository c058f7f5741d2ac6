"""Direct access of one GPU to another's memory: over NVLink or PCIe, where driver and machine allow it."""

from __future__ import annotations

from collbench.device.cuda import cupy_runtime
from collbench.device.gpu import Gpu

_ALREADY = 704  # cudaErrorPeerAccessAlreadyEnabled


def open_peer(gpu: Gpu, other: Gpu) -> bool:
    """Lets `gpu` reach the memory of `other`, from now on. False where they cannot: then copies go through host memory."""
    runtime = cupy_runtime()
    with gpu.use():
        if not runtime.deviceCanAccessPeer(gpu.index, other.index):
            return False
        try:
            runtime.deviceEnablePeerAccess(other.index)
        except runtime.CUDARuntimeError as error:
            if error.status != _ALREADY:
                raise
    return True
