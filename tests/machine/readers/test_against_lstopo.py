"""hwloc's lstopo agrees on NUMA nodes, processors, the PCI tree and NICs: of this machine, and of captured ones as it read their files."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from collbench.machine.files import Files, Folder
from collbench.machine.readers import linux, network
from tests.machines import captures
from tests.machines.lstopo import lstopo_facts

pytestmark = pytest.mark.contract

CAPTURED = [name for name in captures.NAMES if "lstopo" in captures.expected(name)]
LSTOPO = shutil.which("lstopo-no-graphics") or shutil.which("lstopo")
Both = tuple[Files, dict[str, Any]]


@pytest.fixture(scope="module", params=["this machine", *CAPTURED])
def both(request: pytest.FixtureRequest) -> Both:
    if request.param != "this machine":
        empty: dict[str, Any] = {"nodes": {}, "functions": {}, "nics": {}}
        return captures.tree(request.param), empty | captures.expected(request.param)["lstopo"]
    if not LSTOPO:
        pytest.skip("needs lstopo (hwloc-nox)")
    command = [LSTOPO, "--of", "xml", "--whole-io"]
    return Folder(Path("/")), lstopo_facts(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)


def test_numa_nodes_their_cpus_and_memory_sockets_cores_and_threads(both: Both) -> None:
    files, theirs = both
    machine = linux.read(files)
    nodes = {str(node.id): [sorted(linux.cpu_list(node.cpus)), node.memory_bytes] for node in machine.numa_nodes}
    assert nodes == theirs["nodes"]
    counts = {"Package": machine.system.sockets, "Core": machine.system.cores, "PU": machine.system.threads}
    assert counts == theirs["counts"]


def test_pci_functions_their_ids_the_bridges_above_them_and_the_numa_nodes_near_them(both: Both) -> None:
    files, theirs = both
    devices = linux.read(files).pci
    ours = {each.address: [(each.class_id or 0) >> 8, each.vendor_id or 0, each.device_id or 0, each.parent or ""] for each in devices}
    left_out = [each for each in devices if each.address not in theirs["functions"]]  # bridges to which the firmware gave no bus
    assert all(each.kind in ("bridge", "switch") and each.address not in {below.parent for below in devices} for each in left_out)
    listed = {address: facts for address, facts in ours.items() if address in theirs["functions"]}
    assert listed == {address: facts[:4] for address, facts in theirs["functions"].items()}
    placed = {each.address: each.numa for each in devices if each.address in listed and each.numa is not None}
    assert {address: numa for address, numa in placed.items() if theirs["functions"][address][4] != [numa]} == {}


def test_nics_and_the_functions_they_are_on(both: Both) -> None:
    files, theirs = both
    nics = [nic for machine in (network.read(files), network.read_ethernet(files)) for nic in machine.nics]
    ours = {name: nic.address for nic in nics for name in (nic.name, *nic.interfaces)}
    on_pci = {name: address for name, address in theirs["nics"].items() if address}
    assert {name: ours.get(name) for name in on_pci} == on_pci
