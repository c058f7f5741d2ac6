"""This machine, live: the driver of its GPUs, the kernel's files, and what only a running process can ask."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from collbench.topology.files import Files, Folder
from collbench.topology.merge import merge
from collbench.topology.model import Machine, System
from collbench.topology.readers import ethernet, infiniband, linux
from collbench.topology.text import printable

_SHARED_MEMORY = Path("/dev/shm")


def this_machine() -> Machine:
    """The machine that this process runs on, as it may see it. Never raises; what is unknown has its reason in `unknown`."""
    from collbench.topology.readers import nvml

    return merge([_asked(_SHARED_MEMORY), nvml.read(), *_read(Folder(Path("/")))])


def _read(files: Files) -> list[Machine]:
    return [linux.read(files), infiniband.read(files), ethernet.read(files)]


def _asked(shared_memory: Path) -> Machine:
    """Host name and size of the shared memory's file system, as system calls tell them."""
    hostname = printable(socket.gethostname()) or None
    try:
        status = os.statvfs(shared_memory)
    except OSError as why:
        return Machine(hostname, ("system calls",), unknown={"system/shm_bytes": f"{shared_memory}: {why.strerror}"})
    return Machine(hostname, ("system calls",), System(shm_bytes=status.f_blocks * status.f_frsize))
