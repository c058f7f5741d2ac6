"""CB28xx, of this Python and this shell: packages that break one another, and an mpiexec that starts another MPI.

What may be broken is imported by a process of its own, with a deadline: the check before a job has some seconds for everything.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import distributions
from typing import Final

from collbench.launch.explain import mixed_mpi
from collbench.machine.doctor.finding import Finding, listed

_PATIENCE_S: Final = 6.0
# What cupy's own check takes for itself (cupy/_environment.py, 14.2); each of them holds a package `cupy`.
_CUPY: Final = (
    *("cupy", "cupy-cuda102", "cupy-cuda110", "cupy-cuda111", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x"),
    *("cupy-rocm-4-3", "cupy-rocm-5-0", "cupy-rocm-7-0", "cupy-rocm-7-1", "cupy-rocm-7-14"),
)
_ALONE = "-m venv ENVIRONMENT"


def examined(hostname: str | None, env: Mapping[str, str], path: Sequence[str] | None = None) -> list[Finding]:
    """What is wrong with the packages on `path` (default: those of this Python) and with what a shell with `env` would start."""
    places = list(sys.path if path is None else path)
    return [*broken_torchcomms(hostname, env, places), *mixed_mpiexec(hostname, env), *clashing_cupy(hostname, places)]


def broken_torchcomms(hostname: str | None, env: Mapping[str, str], path: Sequence[str]) -> Iterator[Finding]:
    """CB2801: `import torch` fails within an installed torchcomms. One that does not answer in time is accused of nothing."""
    found, torch = _version("torchcomms", path), _version("torch", path)
    if found is None or torch is None:
        return
    said = _failure("import torch.distributed", env)
    if said is not None and "torchcomms" in said:
        last = (said.strip().splitlines() or [""])[-1].strip()
        yield Finding(
            "CB2801", "severe", hostname, f"`import torch` fails, since the installed torchcomms {found} is broken",
            f"{sys.executable} -P -c 'import torch.distributed' ends with: {last[:200]}",
            f"pip uninstall torchcomms; build one for torch {torch} into an environment of its own (python {_ALONE})",
        )  # fmt: skip


def mixed_mpiexec(hostname: str | None, env: Mapping[str, str]) -> Iterator[Finding]:
    """CB2802: the mpirun or mpiexec that a shell would take is of another MPI than mpi4py's. A warning: it counts where it is typed."""
    mixed = mixed_mpi(env)
    if mixed:
        what, _, remedy = mixed.what.rpartition("; ")
        evidence = "what each says of itself (--version), and MPI.Get_library_version(); `collbench doctor --launch` tells more"
        yield Finding("CB2802", "warning", hostname, what, evidence, remedy)


def clashing_cupy(hostname: str | None, path: Sequence[str]) -> Iterator[Finding]:
    """CB2803: several wheels of cupy, which hold files of the same names: the one unpacked last has overwritten the others'."""
    found = {name: version for name in _CUPY if (version := _version(name, path))}
    if len(found) > 1:
        names = listed(list(found))
        yield Finding(
            "CB2803", "warning", hostname, f"{names} are installed together and have overwritten each other's files",
            f"pip's records: {listed([f'{name} {version}' for name, version in found.items()])}",
            f"pip uninstall -y {' '.join(found)}; then install the one for the driver here: pip install 'collbench[cuda13]' or [cuda12]",
        )  # fmt: skip


def _version(package: str, path: Sequence[str]) -> str | None:
    """The version on the path, as pip's records have it: nothing is imported."""
    found = next(iter(distributions(name=package, path=list(path))), None)
    return found.version if found else None


def _failure(program: str, env: Mapping[str, str]) -> str | None:
    """What this Python says on stderr where the program fails; None where it does not, or has not ended in time."""
    try:
        line = [sys.executable, "-P", "-c", program]
        done = subprocess.run(line, capture_output=True, text=True, errors="replace", timeout=_PATIENCE_S, check=False, env=dict(env))
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stderr if done.returncode else None
