"""Why no GPU can be used in this process: one fact per kind, each with its cause and its remedy."""

# ruff: noqa: D102 - `render`, `cause` and `remedy` are described in the base classes
from __future__ import annotations

import ctypes
from collections.abc import Mapping
from importlib.util import find_spec
from typing import ClassVar

from collbench.device.present import COMPUTE_MODE, PROHIBITED, cupy_runtime, dotted_cuda
from collbench.device.present import VARIABLE as _VARIABLE
from collbench.launch.software import version_of
from collbench.reason import Fact, filled

_EXTRA = "pip install 'collbench[cuda13]' (or 'collbench[cuda12]' for drivers older than 580)"
PROHIBITED_REMEDY = "set the default compute mode with 'nvidia-smi -c DEFAULT'"


class Obstacle:
    """The base of facts about something unavailable: the templates of a cause and a remedy (see `reason`)."""

    __slots__ = ()
    CAUSE: ClassVar[str]
    REMEDY: ClassVar[str]

    def cause(self) -> str:
        """Return what is wrong, without the remedy."""
        return filled(self.CAUSE, self)

    def remedy(self) -> str:
        """Return what the user can do."""
        return filled(self.REMEDY, self)

    def render(self) -> str:
        """Return "CAUSE: REMEDY"."""
        return f"{self.cause()}: {self.remedy()}"


class NoDriver(Obstacle, Fact, frozen=True):
    """The NVIDIA driver library libcuda.so.1 is not on this host or in this container."""

    CAUSE = "no NVIDIA driver found (libcuda.so.1 does not load)"
    REMEDY = "install the driver, or start the container with GPU support"


class NoCupy(Obstacle, Fact, frozen=True):
    """cupy, which collbench needs for GPU memory and kernels, is not installed."""

    CAUSE = "cupy is not installed"
    REMEDY = _EXTRA


class SeveralCupys(Obstacle, Fact, frozen=True):
    """Packages of cupy for different CUDA versions are installed and overwrite each other's files."""

    CAUSE = "{packages:list} are both installed and overwrite each other"
    packages: tuple[str, ...]

    def remedy(self) -> str:
        return f"pip uninstall -y {' '.join(self.packages)}, then {_EXTRA}"


class GpusHidden(Obstacle, Fact, frozen=True):
    """CUDA_VISIBLE_DEVICES is empty, which hides all GPUs."""

    CAUSE = f"{_VARIABLE} is empty, which hides all GPUs"
    REMEDY = "unset it, or list the GPUs to use"


class NoGpuFromSlurm(Obstacle, Fact, frozen=True):
    """Slurm gave this task no GPU."""

    CAUSE = f"Slurm gave this task no GPU ({_VARIABLE}=NoDevFiles)"
    REMEDY = "request GPUs with --gpus-per-node or --gpus-per-task"


class DriverTooOld(Obstacle, Fact, frozen=True):
    """The driver supports an older CUDA version than the one that cupy was built for."""

    CAUSE = "the driver supports CUDA {driver_cuda}, but cupy is built for CUDA {cupy_cuda}"
    driver_cuda: str
    cupy_cuda: str

    def remedy(self) -> str:
        major = int(self.driver_cuda.partition(".")[0])
        if major >= 12:
            return f"install 'collbench[cuda{major}]' instead, or update the driver"
        return "update the driver (CUDA 12 is the oldest supported version)"


class FabricManagerNotRunning(Obstacle, Fact, frozen=True):
    """The GPUs of an NVSwitch machine are not initialised: the fabric manager does not run."""

    CAUSE = "the GPUs are not ready: machines with NVSwitch need the fabric manager"
    REMEDY = "systemctl start nvidia-fabricmanager"


class CudaFailed(Obstacle, Fact, frozen=True):
    """CUDA could not be initialised."""

    CAUSE = "CUDA initialisation failed ({error})"
    REMEDY = "run 'nvidia-smi' to check the driver"
    error: str


class NoGpu(Obstacle, Fact, frozen=True):
    """CUDA is initialised but shows no GPU."""

    CAUSE = "CUDA shows no GPU"
    REMEDY = f"list the GPUs with 'nvidia-smi', check {_VARIABLE}, and start containers with GPU support"


class GpuListedTwice(Obstacle, Fact, frozen=True):
    """CUDA_VISIBLE_DEVICES lists a GPU twice, so CUDA shows no GPU at all."""

    CAUSE = f"{_VARIABLE}={{variable}} lists a GPU twice, so CUDA shows none"
    REMEDY = "list each GPU once"
    variable: str


class UnknownGpu(Obstacle, Fact, frozen=True):
    """CUDA_VISIBLE_DEVICES lists a GPU that does not exist."""

    CAUSE = f"{_VARIABLE}={{variable}}: GPU '{{entry}}' does not exist"
    REMEDY = "list the existing GPUs with 'nvidia-smi -L'"
    variable: str
    entry: str


class GpusProhibited(Obstacle, Fact, frozen=True):
    """All visible GPUs are in compute mode "prohibited"."""

    CAUSE = "all visible GPUs are in compute mode 'prohibited'"
    REMEDY = PROHIBITED_REMEDY


# Which of these facts holds here. The cheapest checks come first.

_TOO_OLD, _NO_DEVICE, _NOT_READY = 35, 100, 802  # cudaErrorInsufficientDriver, cudaErrorNoDevice, cudaErrorSystemNotReady


def gpu_obstacle(env: Mapping[str, str]) -> Obstacle | None:
    """Return why no GPU can be used in this process, or None if one can. Never raises; imports cupy only where there is a driver."""
    try:
        return _missing_part(env) or _failed_start(env)
    except Exception as error:
        return CudaFailed(f"{type(error).__name__}: {error}")


def _missing_part(env: Mapping[str, str]) -> Obstacle | None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return NoDriver()
    if find_spec("cupy") is None:
        return NoCupy()
    packages = tuple(name for name in ("cupy-cuda12x", "cupy-cuda13x") if version_of(name))
    if len(packages) > 1:
        return SeveralCupys(packages)
    entries = _entries(env)
    if entries == []:
        return GpusHidden()
    return NoGpuFromSlurm() if entries == ["NoDevFiles"] else None


def _entries(env: Mapping[str, str]) -> list[str] | None:
    """Return the entries of CUDA_VISIBLE_DEVICES up to the first negative one, at which CUDA stops; None when it is not set."""
    if _VARIABLE not in env:
        return None
    entries = [entry.strip() for entry in env[_VARIABLE].split(",")] if env[_VARIABLE].strip() else []
    negative = next((i for i, entry in enumerate(entries) if entry.startswith("-")), len(entries))
    return entries[:negative]


def _failed_start(env: Mapping[str, str]) -> Obstacle | None:
    runtime = cupy_runtime()
    driver = int(runtime.driverGetVersion())
    needed = int(runtime.runtimeGetVersion())
    if driver and driver // 1000 < needed // 1000:
        return DriverTooOld(dotted_cuda(driver), dotted_cuda(needed))
    try:
        count = int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as error:
        if error.status == _NO_DEVICE:
            return _missing_gpu(env, 0)
        if error.status == _TOO_OLD:
            return DriverTooOld(dotted_cuda(driver), dotted_cuda(needed))
        return FabricManagerNotRunning() if error.status == _NOT_READY else CudaFailed(str(error))
    usable = any(runtime.deviceGetAttribute(COMPUTE_MODE, index) != PROHIBITED for index in range(count))  # each rank checks its own
    return _missing_gpu(env, count) or (None if usable else GpusProhibited())


def _missing_gpu(env: Mapping[str, str], count: int) -> Obstacle | None:
    """Return the error if CUDA shows fewer GPUs (`count`) than CUDA_VISIBLE_DEVICES lists, or none."""
    entries = _entries(env)
    if not entries or entries[0].startswith("MIG-"):
        return None if count else NoGpu()
    if len(set(entries)) < len(entries):
        return GpuListedTwice(env[_VARIABLE])
    return UnknownGpu(env[_VARIABLE], entries[count]) if count < len(entries) else None
