"""A runtime of GPUs as one type, and CUDA: which GPUs there are, one of them, and the functions that the timed loop calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from collbench.device.present import Identity, cuda_versions, identities
from collbench.device.unavailable import Obstacle, gpu_obstacle

if TYPE_CHECKING:
    from collbench.device.gpu import OpenGpu


class GpuPlatform(msgspec.Struct, frozen=True):
    """A runtime of GPUs.

    name         "CUDA" or "HIP"
    obstacle     the environment -> why no GPU can be used in this process, or None. Never raises
    identities   returns the GPUs that the runtime shows this process, in its order
    versions     returns the versions of the runtime and the driver, by name
    open         the index of a GPU -> the GPU, claimed for this process. Raises UsageError
    address      the name of a function -> its address. Raises AttributeError
    error        an error code -> the text of the runtime
    record, query, elapsed, launch, wait   the names of the functions that record an event, query a stream, return the time between two
                 events, launch a graph, and let a stream wait for an event. Their arguments and error codes are the same on both
    """

    name: str
    obstacle: Callable[[Mapping[str, str]], Obstacle | None]
    identities: Callable[[], list[Identity]]
    versions: Callable[[], Mapping[str, str]]
    open: Callable[[int], OpenGpu]
    address: Callable[[str], int]
    error: Callable[[int], str]
    record: str
    query: str
    elapsed: str
    launch: str
    wait: str

    def addresses(self) -> dict[str, int]:
        """Return the addresses of the functions that the timed loop calls, by their names."""
        return {name: self.address(name) for name in (self.record, self.query, self.elapsed, self.launch, self.wait)}


def cuda() -> GpuPlatform:
    """Return the runtime of NVIDIA's GPUs. Does not import cupy."""
    from collbench.device.gpu import OpenGpu, driver_address, driver_error

    return GpuPlatform(
        "CUDA", gpu_obstacle, identities, cuda_versions, OpenGpu, driver_address, driver_error,
        record="cuEventRecord", query="cuStreamQuery", elapsed="cuEventElapsedTime", launch="cuGraphLaunch", wait="cuStreamWaitEvent",
    )  # fmt: skip
