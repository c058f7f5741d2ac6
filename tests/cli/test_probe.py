"""collbench probe: this machine, machines from files, one sentence for an unreadable file."""

import json
import re
import socket
from pathlib import Path

import pytest

from collbench.machine.model import Gpu, GpuLink, Machine, System
from collbench.machine.snapshot import topology_json
from tests.cli.command import run, run_here
from tests.cli.test_help import imported

pytestmark = pytest.mark.contract

ALONE = {"SLURM_JOB_ID": ""}
GPUS = tuple(Gpu(f"gpu{n}", n, vendor="nvidia", model="H100") for n in range(8))
LINKS = tuple(GpuLink(gpu.key, "switch", 18) for gpu in GPUS)


def node(name: str, gpus: int = 8) -> Machine:
    return Machine(name, ("sysfs",), System(kernel="6.8.0"), gpus=GPUS[:gpus], gpu_links=LINKS[:gpus])


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    """A file with four nodes, of which node3 has lost a GPU."""
    (tmp_path / "cluster.json").write_text(json.dumps(topology_json([node("node1"), node("node2"), node("node3", 7), node("node4")])))
    return "cluster.json"


def test_this_machine_without_importing_torch_or_mpi(tmp_path: Path) -> None:
    done = run(tmp_path, "probe", env={**ALONE, "PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0 and [line for line in done.stderr.splitlines() if not line.startswith("import time:")] == []
    assert "collbench" in imported(done.stderr) and not imported(done.stderr) & {"torch", "mpi4py", "numpy", "pandas", "rich"}
    assert done.stdout.startswith(socket.gethostname()) and "NUMA node 0" in done.stdout and "findings: " in done.stdout


def test_a_cluster_from_a_file_that_an_option_or_a_variable_names(tmp_path: Path, cluster: str) -> None:
    done = run_here(tmp_path, "probe", "--from", cluster)
    assert done.returncode == 0 and done.stdout.startswith("4 nodes: ")
    assert "\nnode[1-2,4]: 8 × H100, NICs unknown\n" in done.stdout and "\nnode3: 7 × H100, NICs unknown\n" in done.stdout
    document = json.loads(run_here(tmp_path, "probe", env={"COLLBENCH_FROM": cluster, "COLLBENCH_FORMAT": "json"}).stdout)
    (difference,) = document["differences"]
    assert difference.startswith("node3 ") and "7 GPUs" in difference and "8 GPUs" in difference and difference in done.stdout
    assert [machine["hostname"] for machine in document["machines"]] == ["node1", "node2", "node4", "node3"]


def test_a_skipped_file_is_reported_on_stderr_only(tmp_path: Path, cluster: str) -> None:
    (tmp_path / "sent").mkdir()
    (tmp_path / cluster).rename(tmp_path / "sent" / cluster)
    (tmp_path / "sent" / "notes.txt").write_text("remember the milk")
    done = run_here(tmp_path, "probe", "--from", "sent")
    assert done.stderr.endswith("notes.txt\n") and done.stderr.count("\n") == 1 and "notes.txt" not in done.stdout


def test_gathered_files_read_back(tmp_path: Path) -> None:
    done = run(tmp_path, "probe", "--gather", "machine.tar.gz", env=ALONE)
    assert done.returncode == 0 and done.stdout == "" and "wrote machine.tar.gz" in done.stderr
    live = json.loads(run_here(tmp_path, "probe", "--format", "json", env=ALONE).stdout)["machines"][0]
    sent = json.loads(run_here(tmp_path, "probe", "--from", "machine.tar.gz", "--format", "json").stdout)["machines"][0]
    assert sent["hostname"] != live["hostname"]
    assert [device["address"] for device in sent["pci"]] == [device["address"] for device in live["pci"]]
    names = [[nic["name"] for nic in machine["nics"] if not re.match(r"cb\d+(br|h)", nic["name"])] for machine in (sent, live)]
    assert names[0] == names[1]  # without the interfaces of test beds, which may start or end meanwhile


def test_an_allocation_without_srun_is_one_node(tmp_path: Path) -> None:
    done = run_here(tmp_path, "probe", "--format", "json", env={"SLURM_JOB_ID": "8", "SLURM_JOB_NODELIST": "n[1-2]"})
    assert done.returncode == 0 and len(json.loads(done.stdout)["machines"]) == 1
