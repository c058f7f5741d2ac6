"""Why no GPU can be used in this process: one fact per kind, each with its cause and its remedy."""

# ruff: noqa: D102 - `render`, `cause` and `remedy` are described in the base classes
from __future__ import annotations

from typing import ClassVar

from collbench.reason import Fact

_EXTRA = "pip install 'collbench[cuda13]' (or 'collbench[cuda12]' for drivers older than 580)"
_VARIABLE = "CUDA_VISIBLE_DEVICES"
PROHIBITED_REMEDY = "set the default compute mode with 'nvidia-smi -c DEFAULT'"


class Obstacle:
    """The base of facts about something unavailable: a cause and a remedy, which are constants unless they depend on fields."""

    __slots__ = ()
    CAUSE: ClassVar[str]
    REMEDY: ClassVar[str]

    def cause(self) -> str:
        """Return what is wrong, without the remedy."""
        return self.CAUSE

    def remedy(self) -> str:
        """Return what the user can do."""
        return self.REMEDY

    def render(self) -> str:
        """Return "CAUSE: REMEDY"."""
        return f"{self.cause()}: {self.remedy()}"


class NoDriver(Obstacle, Fact, frozen=True):
    """The NVIDIA driver library libcuda.so.1 is not on this host or in this container."""

    CAUSE: ClassVar[str] = "no NVIDIA driver found (libcuda.so.1 does not load)"
    REMEDY: ClassVar[str] = "install the driver, or start the container with GPU support"


class NoCupy(Obstacle, Fact, frozen=True):
    """cupy, which collbench needs for GPU memory and kernels, is not installed."""

    CAUSE: ClassVar[str] = "cupy is not installed"
    REMEDY: ClassVar[str] = _EXTRA


class SeveralCupys(Obstacle, Fact, frozen=True):
    """Packages of cupy for different CUDA versions are installed and overwrite each other's files."""

    packages: tuple[str, ...]

    def cause(self) -> str:
        return f"{' and '.join(self.packages)} are both installed and overwrite each other"

    def remedy(self) -> str:
        return f"pip uninstall -y {' '.join(self.packages)}, then {_EXTRA}"


class GpusHidden(Obstacle, Fact, frozen=True):
    """CUDA_VISIBLE_DEVICES is empty, which hides all GPUs."""

    CAUSE: ClassVar[str] = f"{_VARIABLE} is empty, which hides all GPUs"
    REMEDY: ClassVar[str] = "unset it, or list the GPUs to use"


class NoGpuFromSlurm(Obstacle, Fact, frozen=True):
    """Slurm gave this task no GPU."""

    CAUSE: ClassVar[str] = f"Slurm gave this task no GPU ({_VARIABLE}=NoDevFiles)"
    REMEDY: ClassVar[str] = "request GPUs with --gpus-per-node or --gpus-per-task"


class DriverTooOld(Obstacle, Fact, frozen=True):
    """The driver supports an older CUDA version than the one that cupy was built for."""

    driver_cuda: str
    cupy_cuda: str

    def cause(self) -> str:
        return f"the driver supports CUDA {self.driver_cuda}, but cupy is built for CUDA {self.cupy_cuda}"

    def remedy(self) -> str:
        major = int(self.driver_cuda.partition(".")[0])
        if major >= 12:
            return f"install 'collbench[cuda{major}]' instead, or update the driver"
        return "update the driver (CUDA 12 is the oldest supported version)"


class FabricManagerNotRunning(Obstacle, Fact, frozen=True):
    """The GPUs of an NVSwitch machine are not initialised: the fabric manager does not run."""

    CAUSE: ClassVar[str] = "the GPUs are not ready: machines with NVSwitch need the fabric manager"
    REMEDY: ClassVar[str] = "systemctl start nvidia-fabricmanager"


class CudaFailed(Obstacle, Fact, frozen=True):
    """CUDA could not be initialised."""

    error: str

    def cause(self) -> str:
        return f"CUDA initialisation failed ({self.error})"

    REMEDY: ClassVar[str] = "run 'nvidia-smi' to check the driver"


class NoGpu(Obstacle, Fact, frozen=True):
    """CUDA is initialised but shows no GPU."""

    CAUSE: ClassVar[str] = "CUDA shows no GPU"
    REMEDY: ClassVar[str] = f"list the GPUs with 'nvidia-smi', check {_VARIABLE}, and start containers with GPU support"


class GpuListedTwice(Obstacle, Fact, frozen=True):
    """CUDA_VISIBLE_DEVICES lists a GPU twice, so CUDA shows no GPU at all."""

    variable: str

    def cause(self) -> str:
        return f"{_VARIABLE}={self.variable} lists a GPU twice, so CUDA shows none"

    REMEDY: ClassVar[str] = "list each GPU once"


class UnknownGpu(Obstacle, Fact, frozen=True):
    """CUDA_VISIBLE_DEVICES lists a GPU that does not exist."""

    variable: str
    entry: str

    def cause(self) -> str:
        return f"{_VARIABLE}={self.variable}: GPU '{self.entry}' does not exist"

    REMEDY: ClassVar[str] = "list the existing GPUs with 'nvidia-smi -L'"


class GpusProhibited(Obstacle, Fact, frozen=True):
    """All visible GPUs are in compute mode "prohibited"."""

    CAUSE: ClassVar[str] = "all visible GPUs are in compute mode 'prohibited'"
    REMEDY: ClassVar[str] = PROHIBITED_REMEDY
