"""Two builds of collbench in one launch, through real Slurm: the launch ends at once, with one sentence that names both."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

import collbench
from collbench.launch.software import difference, digest_of, own
from collbench.results.reader import read_run
from tests.cli.command import PROGRAM
from tests.conftest import sample

pytestmark = [pytest.mark.hosts, pytest.mark.slurm]
PACKAGE = Path(collbench.__file__).parent
# What a copy changes: nothing that is sent; the keys of the control plane; the form of its messages.
CHANGES = {
    "a comment": ("units.py", "from __future__", "# changed\nfrom __future__"),
    "the keys": ("control/security.py", 'derived("listener")', 'derived("another listener")'),
    "the messages": ("control/wire.py", '_PLAIN = b"m"', '_PLAIN = b"n"'),
}


def copy(folder, change):
    """The folder of a copy of the package with one change."""
    name, before, after = CHANGES[change]
    shutil.copytree(PACKAGE, folder / "collbench", ignore=shutil.ignore_patterns("__pycache__"))
    text = (folder / "collbench" / name).read_text()
    assert before in text
    (folder / "collbench" / name).write_text(text.replace(before, after))
    return folder


@pytest.mark.parametrize(("change", "rank"), sample([(change, rank) for change in CHANGES for rank in (0, 1)], 3))
def test_two_builds_end_the_launch_at_once(change, rank, slurm_hosts, tmp_path):
    changed = copy(tmp_path / "another", change)
    line = [*PROGRAM, "allreduce", "--backend", "gloo", "--sizes", "1K", "--timeout", "40", "--out", str(tmp_path / "run")]
    script = f"cd /; [ $SLURM_PROCID = {rank} ] && export PYTHONPATH={changed}; exec {shlex.join(line)}"
    done = slurm_hosts.srun(["-N2", "--mpi=none"], ["sh", "-c", script], timeout=30)  # before --timeout
    builds = [str(own())] * 2
    builds[rank] = f"{own().version}+{digest_of(changed / 'collbench')}"
    n1, n2 = slurm_hosts.nodes
    said = f"collbench: rank 1 ({n2}) runs collbench {builds[1]}, rank 0 ({n1}) {builds[0]}: install the same build on all nodes"
    assert done.returncode == 2, done.stderr
    assert [text for text in done.stderr.splitlines() if text.startswith("collbench:")] == [said]
    assert not (tmp_path / "run").exists()


def test_other_versions_of_torch_are_recorded_and_noted(slurm_hosts, tmp_path):
    about = tmp_path / "other" / "torch-9.9.dist-info" / "METADATA"
    about.parent.mkdir(parents=True)
    about.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9\n")
    line = [*PROGRAM, "p2p", "--backend", "socket", "--sizes", "1K", "-n", "5", "--out", str(tmp_path / "run")]
    script = f"cd /; [ $SLURM_PROCID = 1 ] && export PYTHONPATH={tmp_path / 'other'}:$PYTHONPATH; exec {shlex.join(line)}"
    done = slurm_hosts.srun(["-N2", "--mpi=none"], ["sh", "-c", script])
    found = read_run(tmp_path / "run").info["software"]
    n1, n2 = slurm_hosts.nodes
    assert done.returncode == 0, done.stderr
    assert [(one["hosts"], one.get("torch")) for one in found] == [([n1], found[0].get("torch")), ([n2], "9.9")]
    assert {one["collbench"] for one in found} == {str(own())} and all(one["python"] for one in found)
    assert difference("torch", {found[0].get("torch", "missing"): [n1], "9.9": [n2]}) in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_the_launch_doctor_reports_differences_before_a_launch_fails(rank, slurm_hosts, tmp_path):
    changed = copy(tmp_path / "another", "the keys")
    about = changed / "torch-9.9.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9\n")
    script = f"cd /; [ $SLURM_PROCID = {rank} ] && export PYTHONPATH={changed}; exec {shlex.join([*PROGRAM, 'doctor', '--launch'])}"
    done = slurm_hosts.srun(["-N2", "--mpi=none"], ["sh", "-c", script])
    builds, (n1, n2) = [str(own())] * 2, slurm_hosts.nodes
    builds[rank] = f"{own().version}+{digest_of(changed / 'collbench')}"
    assert done.returncode == 1, done.stderr
    assert f"severe: {difference('collbench', {builds[0]: [n1], builds[1]: [n2]})}" in done.stdout
    assert re.search(rf"^warning: torch .*9\.9 on {[n1, n2][rank]}", done.stdout, re.MULTILINE)
    assert re.search(rf"^software    {n1}: collbench {re.escape(builds[0])}, Python ", done.stdout, re.MULTILINE)
