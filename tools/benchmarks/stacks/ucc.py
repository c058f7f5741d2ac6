"""UCC's own: an all-reduce from a send into a receive buffer, called and waited for in C (ucc.c, with the installed UCC's header)."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path

from collbench.plugins.libraries.ucc.library import file_of, load_ucc
from tools.benchmarks.stacks.loop import Call, Opened, Place, main


def ready(place: Place) -> Call:
    """The all-reduce, on a team of its own; its ranks meet at rank 0's address."""
    file = file_of(load_ucc())
    assert file is not None
    host, _, port = place.addresses[0].rpartition(":")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "own.so")
        line = ["cc", "-O2", "-fPIC", "-shared", f"-I{file.parents[1] / 'include'}", str(Path(__file__).with_suffix(".c")), str(file)]
        subprocess.run([*line, "-o", str(library)], check=True)
        own = ctypes.CDLL(str(library))
    if code := own.own_open(host.encode(), int(port), place.ranks, place.rank, ctypes.c_size_t(place.count)):
        raise SystemExit(f"UCC does not open: error {code}")

    def call() -> None:
        if code := own.own_call():
            raise SystemExit(f"UCC's all-reduce fails: error {code}")

    return call


def open_stack(place: Place) -> Opened:
    """The library alone."""
    return ready(place), lambda: None


if __name__ == "__main__":
    main(open_stack)
