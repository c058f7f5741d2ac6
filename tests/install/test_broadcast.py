"""broadcast.sbatch on a real Slurm: each node runs what it was sent from a disk of its own, and nothing is left there."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.install.site import ROOT

SCRIPT = ROOT / "deploy/install/broadcast.sbatch"
# Replaces collbench: one line per rank, with its host.
_COMMAND = """\
import os, socket, sys
print(socket.gethostname(), sys.argv[0], *sys.argv[1:], flush=True)
sys.exit(int(os.environ["SLURM_PROCID"]) * 7 if "--fail" in sys.argv else 0)
"""


@pytest.fixture
def prefix(tmp_path):
    """Make a folder as install.sh does, with a command that prints its host."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "prefix/venv"], check=True, timeout=60)
    (tmp_path / "prefix/bin").mkdir()
    (tmp_path / "prefix/bin/collbench").write_bytes((ROOT / "deploy/install/collbench").read_bytes())
    (tmp_path / "prefix/bin/collbench").chmod(0o755)
    (tmp_path / "prefix/venv/bin/collbench").write_text(_COMMAND)
    return tmp_path / "prefix"


def disks(bed, folder):
    """Gives every node a disk of its own at the folder: the nodes of the bed share this machine's."""
    folder.mkdir()
    for node in bed.nodes:
        daemon = (bed.folder / f"slurmd-{node}.pid").read_text().strip()
        subprocess.run(["nsenter", "--target", daemon, "--mount", "mount", "-t", "tmpfs", node, folder], check=True, timeout=20)


def broadcast(bed, folder, *words):
    quoted = " ".join(f"'{word}'" for word in words)
    options = [f"--nodes={len(bed.nodes)}", "--ntasks-per-node=2", "--overcommit"]
    return bed.sbatch(f"#!/bin/bash\nexec bash {SCRIPT} {quoted}", options, env={"TMPDIR": str(folder)})


@pytest.mark.slurm
@pytest.mark.long
def test_every_rank_runs_from_its_node_s_disk_which_is_clean_afterwards(prefix, tmp_path, slurm_hosts):
    local = tmp_path / "local"
    disks(slurm_hosts, local)
    done = broadcast(slurm_hosts, local, str(prefix), "allreduce", "--sizes", "1K-1G")
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    assert sorted(host for host, _, _ in ranks) == sorted(slurm_hosts.nodes * 2)
    assert all(Path(program).resolve().is_relative_to(local) and words == "allreduce --sizes 1K-1G" for _, program, words in ranks)
    left = slurm_hosts.srun(["--nodes=2", "--ntasks=2"], ["ls", str(local)])
    assert (left.returncode, left.stdout) == (0, "")
    assert sorted(path.name for path in prefix.iterdir()) == ["bin", "venv"]


@pytest.mark.slurm
@pytest.mark.long
def test_the_job_has_the_exit_code_of_the_command_and_cleans_up(prefix, tmp_path, slurm_hosts):
    local = tmp_path / "local"
    disks(slurm_hosts, local)
    assert broadcast(slurm_hosts, local, str(prefix), "--fail").returncode != 0
    assert slurm_hosts.srun(["--nodes=2", "--ntasks=2"], ["ls", str(local)]).stdout == ""


@pytest.mark.parametrize("words", [[], ["/nowhere"], ["/nowhere", "allreduce"]])
def test_without_an_install_the_error_is_one_sentence(words):
    done = subprocess.run(["bash", SCRIPT, *words], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"'{''.join(words[:1])}'" in done.stderr and "broadcast.sbatch PREFIX COMMAND" in done.stderr
