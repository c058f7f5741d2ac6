"""This machine, live, compared with what Python and the kernel report about it by other ways."""

import os
import platform
import re
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from collbench.machine import here
from collbench.machine.here import this_machine

pytestmark = pytest.mark.contract

MEASURED = """
import re, sys
from collbench.machine.here import this_machine
this_machine()
peak = re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]  # getrusage counts what forked it, too
print(peak, sorted({"torch", "mpi4py", "numpy"} & set(sys.modules)))
"""


def test_it_is_this_machine() -> None:
    machine = this_machine()
    system = machine.system
    assert machine.hostname == socket.gethostname()
    assert (system.kernel, system.architecture) == (platform.release(), platform.machine())
    assert system.threads == psutil.cpu_count() and system.memory_bytes == pytest.approx(psutil.virtual_memory().total, rel=0.1)
    assert sum(node.memory_bytes or 0 for node in machine.numa_nodes) > 0
    assert set(psutil.net_if_addrs()) - {"lo"} <= {name for nic in machine.nics for name in (nic.name, *nic.interfaces)}


def test_shared_memory_is_measured_where_it_is(tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    assert here.read_system_calls(tmp_path).system.shm_bytes == status.f_blocks * status.f_frsize
    nowhere = here.read_system_calls(tmp_path / "nowhere")
    assert nowhere.system.shm_bytes is None and nowhere.unknown["system/shm_bytes"].endswith("No such file or directory")


def test_a_probe_is_small() -> None:
    """60 MB without torch; numpy alone would be half of it."""
    done = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, timeout=60, check=True)
    kilobytes, modules = re.match(r"(\d+) (.*)", done.stdout).groups()  # type: ignore[union-attr]
    assert int(kilobytes) < 60_000 and modules == "[]"
