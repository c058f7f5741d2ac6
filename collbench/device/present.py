"""What CUDA is and shows here, or in one clear sentence why it cannot be used: asked without claiming a GPU, cheapest questions first.

A context on each GPU would take memory there, and time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# How many GPUs a CUDA program started here would see, told from files and the environment alone: the command line asks at every start.

VARIABLE = "CUDA_VISIBLE_DEVICES"
_NODE = re.compile(r"nvidia(\d+)")


@dataclass(frozen=True)
class Chosen:
    """What CUDA_VISIBLE_DEVICES leaves of the GPUs that are there.

    gpus   the GPUs' places, or the name of a MIG instance, in CUDA's order
    wrong  the entry at which CUDA stops reading, and which hides everything after it; None: it reads to the end
    """

    gpus: tuple[int | str, ...]
    wrong: str | None = None


def visible_gpus(env: Mapping[str, str], root: Path = Path("/")) -> int:
    """How many GPUs CUDA would show: those with a device node, as CUDA_VISIBLE_DEVICES leaves them. 0 without a driver."""
    identifiers = present_gpus(root)
    return len(chosen(env.get(VARIABLE), identifiers).gpus)


def present_gpus(root: Path = Path("/")) -> list[str]:
    """The UUID of each GPU with a device node in /dev, in the driver's order; "" where the driver does not tell it."""
    minors = sorted(int(node[1]) for path in _children(root / "dev") if (node := _NODE.fullmatch(path.name)))
    uuids = dict(_facts(folder / "information") for folder in _children(root / "proc/driver/nvidia/gpus"))
    return [uuids.get(minor, "") for minor in minors]


def _children(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _facts(information: Path) -> tuple[int, str]:
    """(minor number of the device node, UUID) from the driver's page about a GPU; (-1, "") where it cannot be read."""
    try:
        text = information.read_text(errors="replace")
    except OSError:
        return -1, ""
    minor = re.search(r"^Device Minor:\s*(\d+)", text, re.MULTILINE)
    uuid = re.search(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]+)\s*$", text, re.MULTILINE)
    return int(minor[1]) if minor else -1, uuid[1] if uuid else ""


def chosen(variable: str | None, uuids: Sequence[str]) -> Chosen:
    """Reads CUDA_VISIBLE_DEVICES as CUDA does (CUDA programming guide, "CUDA environment variables"), over GPUs with these UUIDs.

    Entries are indices, beginnings of UUIDs that fit one GPU, or names of MIG instances, of which CUDA shows a single one. It stops
    at the first entry that is none of these, and shows nothing at all where a GPU is named twice.
    """
    if variable is None:
        return Chosen(tuple(range(len(uuids))))
    found: list[int | str] = []
    for entry in variable.split(",") if variable.strip() else []:
        gpu = _gpu_of(entry.strip(), uuids)
        if gpu is None:
            return Chosen(tuple(found), entry.strip())
        if gpu in found:
            return Chosen((), entry.strip())
        found.append(gpu)
        if isinstance(gpu, str):
            break
    return Chosen(tuple(found))


def _gpu_of(entry: str, uuids: Sequence[str]) -> int | str | None:
    """A GPU's place, a MIG instance's name, or None for what CUDA stops at."""
    if entry.startswith("MIG-"):
        return entry if uuids else None
    if entry.startswith("GPU-"):
        fitting = [place for place, uuid in enumerate(uuids) if uuid.lower().startswith(entry.lower())]
        return fitting[0] if len(fitting) == 1 else None
    index = re.match(r"\+?(\d+)", entry, re.ASCII)  # CUDA reads the digits that an entry begins with, as strtoul does
    return int(index[1]) if index and int(index[1]) < len(uuids) else None


UNAVAILABLE = 46  # cudaErrorDevicesUnavailable
COMPUTE_MODE, PROHIBITED, EXCLUSIVE = 20, 2, 3  # cudaDevAttrComputeMode, cudaComputeModeProhibited and …ExclusiveProcess
PROHIBITED_REMEDY = "'nvidia-smi -c DEFAULT' lets programs use it again"
_TOO_OLD, _NO_DEVICE, _NOT_READY = 35, 100, 802  # cudaErrorInsufficientDriver, cudaErrorNoDevice, cudaErrorSystemNotReady
_EXTRA = "pip install 'collbench[cuda13]' (or 'collbench[cuda12]' for drivers before 580)"
Why = tuple[str, str]


def cupy_runtime() -> Any:
    """cupy's CUDA runtime."""
    from cupy.cuda import runtime

    return runtime


def cuda_errors() -> tuple[type[Exception], type[Exception]]:
    """What cupy raises for CUDA's errors: the runtime's, and for modules and kernels the driver's. Both have the number as `status`."""
    from cupy.cuda import driver, runtime

    return runtime.CUDARuntimeError, driver.CUDADriverError


@dataclass(frozen=True)
class Identity:
    """A GPU's PCI address ("0000:1b:00.0"), and whether it takes one process only."""

    bus_id: str
    exclusive: bool


def identities() -> list[Identity]:
    """The GPUs that CUDA shows this process, in its order. Raises cupy's CUDARuntimeError where CUDA does not start."""
    runtime = cupy_runtime()
    return [
        Identity(str(runtime.deviceGetPCIBusId(index)).lower(), runtime.deviceGetAttribute(COMPUTE_MODE, index) == EXCLUSIVE)
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


def why_unavailable(env: Mapping[str, str]) -> Why | None:
    """(why no GPU can be used in this process, the remedy), or None where one can. Never raises; cupy is imported only with a driver."""
    try:
        return _no_driver() or _no_cupy() or _hidden(env) or _not_started(env)
    except Exception as error:
        return f"CUDA does not start ({type(error).__name__}: {error})", "'nvidia-smi' tells whether the driver works"


def _no_driver() -> Why | None:
    import ctypes

    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver here (libcuda.so.1 does not load)", "install it, or start the container with its GPUs"
    return None


def _no_cupy() -> Why | None:
    if find_spec("cupy") is None:
        return "cupy is not installed", _EXTRA
    both = [name for name in ("cupy-cuda12x", "cupy-cuda13x") if _installed(name)]
    if len(both) > 1:
        return (
            f"{' and '.join(both)} are both installed and overwrite each other",
            f"pip uninstall -y {' '.join(both)}, then {_EXTRA}",
        )
    return None


def _installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def _hidden(env: Mapping[str, str]) -> Why | None:
    entries = _entries(env)
    if entries == []:
        return f"{VARIABLE} is empty, which hides every GPU", "unset it, or name the GPUs to use in it"
    if entries == ["NoDevFiles"]:
        return f"Slurm gave this task no GPU ({VARIABLE} is NoDevFiles)", "ask for some: --gpus-per-node or --gpus-per-task"
    return None


def _entries(env: Mapping[str, str]) -> list[str] | None:
    """The entries of CUDA_VISIBLE_DEVICES up to a negative one, which is the usual way to end it; None when it is not set."""
    if VARIABLE not in env:
        return None
    entries = [entry.strip() for entry in env[VARIABLE].split(",")] if env[VARIABLE].strip() else []
    negative = next((i for i, entry in enumerate(entries) if entry.startswith("-")), len(entries))
    return entries[:negative]


def _not_started(env: Mapping[str, str]) -> Why | None:
    runtime = cupy_runtime()
    driver, needed = int(runtime.driverGetVersion()), int(runtime.runtimeGetVersion())
    if driver and driver // 1000 < needed // 1000:
        return _too_old(driver, needed)
    try:
        count = int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as error:
        return _refused(error, driver, needed) if error.status != _NO_DEVICE else _none_there(env, 0)
    return _none_there(env, count) or _prohibited(runtime, count)


def _too_old(driver: int, needed: int) -> Why:
    return (
        f"the driver knows CUDA {_dotted(driver)} and cupy is made for {_dotted(needed)}",
        f"pip install 'collbench[cuda{driver // 1000}]' in its place, or bring the driver up to date" if driver >= 12000
        else "bring the driver up to date: CUDA 12 is the oldest that is supported",
    )  # fmt: skip


def _dotted(number: int) -> str:
    """13020 is CUDA 13.2."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _refused(error: Any, driver: int, needed: int) -> Why:
    if error.status == _TOO_OLD:
        return _too_old(driver, needed)
    if error.status == _NOT_READY:
        return "the GPUs are not ready: NVSwitch machines need the fabric manager", "systemctl start nvidia-fabricmanager"
    return f"CUDA does not start ({error})", "'nvidia-smi' tells whether the driver works"


def _none_there(env: Mapping[str, str], count: int) -> Why | None:
    """Of what CUDA_VISIBLE_DEVICES names, CUDA shows the first `count`: it stops at what is not there, and shows none named twice."""
    entries = _entries(env)
    if not entries or entries[0].startswith("MIG-"):
        return None if count else ("CUDA shows no GPU here", f"'nvidia-smi' lists them; in a container, start it with them; see {VARIABLE}")
    if len(set(entries)) < len(entries):
        return f"{VARIABLE}={env[VARIABLE]} names a GPU twice, so CUDA shows none", "name each GPU once"
    if count < len(entries):
        return f"{VARIABLE}={env[VARIABLE]} names '{entries[count]}', and there is no such GPU", "'nvidia-smi -L' lists those that are"
    return None


def _prohibited(runtime: Any, count: int) -> Why | None:
    """Where some GPU may be used, each rank finds out about its own."""
    if any(runtime.deviceGetAttribute(COMPUTE_MODE, index) != PROHIBITED for index in range(count)):
        return None
    return "every GPU that CUDA shows is in prohibited mode", PROHIBITED_REMEDY
