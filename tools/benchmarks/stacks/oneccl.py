"""oneCCL's own: an all-reduce from a send into a receive buffer, called and waited for in C++ (oneccl.cpp), over libfabric's TCP."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.benchmarks.stacks.loop import Call, Opened, Place, main

_PREFIX = Path(sys.prefix)
_SETTINGS = {
    "CCL_ATL_TRANSPORT": "ofi",
    "CCL_PROCESS_LAUNCHER": "none",
    "CCL_KVS_IFACE": "lo",
    "FI_TCP_IFACE": "lo",
    "CCL_LOG_LEVEL": "error",
}


def ready(place: Place) -> Call:
    """The all-reduce, on a communicator of its own; its ranks meet at rank 0's address."""
    meeting = place.addresses[0].replace(":", "_").encode()
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "own.so")
        line = ["c++", "-std=c++17", "-O2", "-fPIC", "-shared", f"-I{_PREFIX / 'include'}", str(Path(__file__).with_suffix(".cpp"))]
        subprocess.run([*line, str(_PREFIX / "lib/libccl.so.1"), "-o", str(library)], check=True)
        own = ctypes.CDLL(str(library))
    if own.own_open(meeting, place.ranks, place.rank, ctypes.c_size_t(place.count)):
        raise SystemExit("oneCCL does not open: see its error above")
    return own.own_call


def open_stack(place: Place) -> Opened:
    """The library, with the settings that collbench makes too."""
    for name, value in {**_SETTINGS, "CCL_LOCAL_RANK": str(place.rank), "CCL_LOCAL_SIZE": str(place.ranks)}.items():
        os.environ.setdefault(name, value)
    ctypes.CDLL(str(_PREFIX / "lib/libccl.so.1"))
    return ready(place), lambda: None


if __name__ == "__main__":
    main(open_stack)
