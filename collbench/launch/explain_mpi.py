"""The MPI library that mpi4py would load, asked in a process of its own: a library that does not fit may take its process along."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

from collbench.launch.pairing import managers, mpi_name
from collbench.launch.variables import without_manager

_TIMEOUT_S = 30.0
# The name of the file is the kernel's word: mpi4py itself tries several.
_ASK = """
import json, re
import mpi4py
mpi4py.rc(initialize=False, finalize=False)
from mpi4py import MPI
mapped = [line.split(None, 5)[-1].strip() for line in open("/proc/self/maps", errors="replace") if "/" in line]
files = [file for file in mapped if re.search(r"/libmpi[\\w-]*\\.so[^/]*$", file)]
print(json.dumps([MPI.Get_library_version(), files[0] if files else ""]))
"""


@dataclass(frozen=True)
class Library:
    """What mpi4py loads.

    said        MPI.Get_library_version(), or "" where nothing is loaded
    path        the library's file, or "" where that is not known
    mpi4py      its version, or "" where it is not installed
    problem     why there is no library, or ""
    """

    said: str = ""
    path: str = ""
    mpi4py: str = ""
    problem: str = ""

    @property
    def name(self) -> str:
        """Like "MPICH 5.0.2"; "" without a library."""
        return mpi_name(self.said) if self.said else ""

    @property
    def managers(self) -> frozenset[str]:
        """The process managers that can start it: "pmi", "pmix"; none without a library."""
        return managers(self.said) if self.said else frozenset()


def library(env: Mapping[str, str]) -> Library:
    """The library of this Python's mpi4py in that environment."""
    try:
        version = metadata.version("mpi4py")
    except metadata.PackageNotFoundError:
        return Library(problem="mpi4py is not installed: pip install 'collbench[mpi]' takes the site's MPI, 'collbench[mpich]' brings one")
    try:
        line = [sys.executable, "-P", "-c", _ASK]
        done = subprocess.run(line, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, env=without_manager(env))
        said, path = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Library(mpi4py=version, problem=f"mpi4py {version} cannot be asked for its MPI library: {error}")
    except ValueError:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Library(mpi4py=version, problem=f"mpi4py {version} finds no MPI library ({last}): load the site's MPI module")
    return Library(said, path, version)
