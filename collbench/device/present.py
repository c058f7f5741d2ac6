"""Which GPUs this host and this process have.

Creates no CUDA context on any GPU, since that would take memory and time there. The cheapest checks come first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

# The GPUs that a CUDA program started here would see, from files and the environment only. Every command needs their number at its start,
# so this part imports nothing else.

VARIABLE = "CUDA_VISIBLE_DEVICES"
_NODE = re.compile(r"nvidia(\d+)")


class Selection(msgspec.Struct, frozen=True):
    """The GPUs that CUDA_VISIBLE_DEVICES selects.

    gpus   indices of GPUs, or the name of a MIG instance, in CUDA's order
    wrong  the invalid entry at which CUDA stops reading; it and all after it are hidden. None: all entries are valid
    """

    gpus: tuple[int | str, ...]
    wrong: str | None = None


def visible_gpus(env: Mapping[str, str], root: Path = Path("/")) -> int:
    """Return how many GPUs CUDA would show: those with a device node that CUDA_VISIBLE_DEVICES selects. 0 without a driver."""
    return len(select_gpus(env.get(VARIABLE), present_gpus(root)).gpus)


def present_gpus(root: Path = Path("/")) -> list[str]:
    """Return the UUID of each GPU with a device node in /dev, in the driver's order; "" where the driver does not show it."""
    nodes = (_NODE.fullmatch(path.name) for path in _children(root / "dev"))
    minors = sorted(int(node[1]) for node in nodes if node)
    uuids = dict(_facts(folder / "information") for folder in _children(root / "proc/driver/nvidia/gpus"))
    return [uuids.get(minor, "") for minor in minors]


def _children(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _facts(information: Path) -> tuple[int, str]:
    """Return (minor number of the device node, UUID) from the driver's information file of a GPU; (-1, "") where it cannot be read."""
    try:
        text = information.read_text(errors="replace")
    except OSError:
        return -1, ""
    minor = re.search(r"^Device Minor:\s*(\d+)", text, re.MULTILINE)
    uuid = re.search(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]+)\s*$", text, re.MULTILINE)
    return int(minor[1]) if minor else -1, uuid[1] if uuid else ""


def select_gpus(variable: str | None, uuids: Sequence[str]) -> Selection:
    """Return what CUDA_VISIBLE_DEVICES selects of the GPUs with these UUIDs (CUDA programming guide, "CUDA environment variables").

    An entry is an index, a prefix of the UUID of one GPU, or the name of a MIG instance, of which CUDA shows one only. CUDA stops at
    the first invalid entry, and shows no GPU where one is listed twice.
    """
    if variable is None:
        return Selection(tuple(range(len(uuids))))
    selected: list[int | str] = []
    for entry in variable.split(",") if variable.strip() else []:
        gpu = _gpu_of(entry.strip(), uuids)
        if gpu is None:
            return Selection(tuple(selected), entry.strip())
        if gpu in selected:
            return Selection((), entry.strip())
        selected.append(gpu)
        if isinstance(gpu, str):
            break
    return Selection(tuple(selected))


def _gpu_of(entry: str, uuids: Sequence[str]) -> int | str | None:
    """Return the index of a GPU, the name of a MIG instance, or None for an invalid entry."""
    if entry.startswith("MIG-"):
        return entry if uuids else None
    if entry.startswith("GPU-"):
        fitting = [place for place, uuid in enumerate(uuids) if uuid.lower().startswith(entry.lower())]
        return fitting[0] if len(fitting) == 1 else None
    index = re.match(r"\+?(\d+)", entry, re.ASCII)  # CUDA reads only the leading digits of an entry, as strtoul does
    return int(index[1]) if index and int(index[1]) < len(uuids) else None


UNAVAILABLE = 46  # cudaErrorDevicesUnavailable
COMPUTE_MODE, PROHIBITED, EXCLUSIVE = 20, 2, 3  # cudaDevAttrComputeMode, cudaComputeModeProhibited and …ExclusiveProcess


def cupy_runtime() -> Any:
    """Return cupy's module of the CUDA runtime."""
    from cupy.cuda import runtime

    return runtime


def cuda_errors() -> tuple[type[Exception], type[Exception]]:
    """Return the exceptions of cupy for errors of the CUDA runtime, and of the driver (modules, kernels). Their `status` is CUDA's code."""
    from cupy.cuda import driver, runtime

    return runtime.CUDARuntimeError, driver.CUDADriverError


class Identity(msgspec.Struct, frozen=True):
    """A GPU's PCI address ("0000:1b:00.0"), and whether only one process can use it (compute mode "exclusive process")."""

    bus_id: str
    exclusive: bool


def identities() -> list[Identity]:
    """Return the GPUs that CUDA shows this process, in its order. Raises cupy's CUDARuntimeError if CUDA cannot be initialized."""
    runtime = cupy_runtime()
    return [
        Identity(str(runtime.deviceGetPCIBusId(index)).lower(), runtime.deviceGetAttribute(COMPUTE_MODE, index) == EXCLUSIVE)
        for index in range(runtime.getDeviceCount())
    ]


def cuda_versions() -> Mapping[str, str]:
    """Return the versions of cupy, of the CUDA that it was built for, and of the newest CUDA that the driver supports."""
    import cupy

    runtime = cupy_runtime()
    return {
        "cupy": str(cupy.__version__),
        "cuda_runtime": dotted_cuda(runtime.runtimeGetVersion()),
        "cuda_driver": dotted_cuda(runtime.driverGetVersion()),
    }


def dotted_cuda(number: int) -> str:
    """Return CUDA's version number as text: 13020 is CUDA 13.2."""
    return f"{number // 1000}.{number % 1000 // 10}"
