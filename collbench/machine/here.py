"""This machine, live: the driver of its GPUs, the kernel's files, and what only a running process can ask."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

from collbench.machine.files import Folder
from collbench.machine.lists import with_reasons
from collbench.machine.merge import merge
from collbench.machine.model import Machine, System
from collbench.machine.readers.text import printable
from collbench.machine.trees import readings

_SHARED_MEMORY = Path("/dev/shm")
_CALLS = "system calls"


def this_machine() -> Machine:
    """The machine that this process runs on, as it may see it. Never raises; what is unknown has its reason in `unknown`."""
    from collbench.machine.readers import nvml

    driver = nvml.read()
    if driver.sources:
        driver = with_reasons(driver, nvml.KIND, {"gpus", "gpu_links", "peer_access"})
    return merge([driver, *readings(Folder(Path("/"))), _asked(_SHARED_MEMORY)])


def _asked(shared_memory: Path) -> Machine:
    """Host name and size of the shared memory's file system, as system calls tell them."""
    machine = with_reasons(Machine(printable(socket.gethostname()) or None, (_CALLS,)), _CALLS)
    try:
        status = os.statvfs(shared_memory)
    except OSError as why:
        return replace(machine, unknown={**machine.unknown, "system/shm_bytes": f"{shared_memory}: {why.strerror}"})
    return replace(machine, system=System(shm_bytes=status.f_blocks * status.f_frsize))
