"""node_sweep.sh: idle nodes are checked, each in a job of its own, and users go first; a thousand nodes cost a handful of processes."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.command import until
from tests.conftest import enter
from tests.slurm.hooks import Hook, Hooked, copies, node
from tests.slurm.made_up import doubles, said
from tests.slurm.test_node_check import install
from tests.testbeds.bed import Finished

pytestmark = pytest.mark.contract

# Slurm for the sweep: `nodes` are idle, and each task ends as in `ends` ("STATE CODE", by default the first entry).
SBATCH = 'echo "sbatch $*" >>calls; cat >>scripts; echo "$(grep -c ^sbatch calls)00;cluster"'
SCONTROL = """\
echo "scontrol $*" >>calls
if (($# == 0)); then cat >>bound
elif [[ $* == *"show job"* ]]; then
  while read -r _ id where; do
    [[ $id != JobId=${*: -1}_* ]] || echo "$id JobState=${STATE:-COMPLETED} ExitCode=${CODE:-0:0} $where x=y"
  done <bound
elif [[ $* == *"show node"* ]]; then echo "NodeName=${*: -1} State=IDLE+DRAIN Reason=[collbench] CB6201 slow [root@2026-01-01T00:00:00]"
fi
"""


@pytest.fixture
def sweep(tmp_path: Path) -> Hook:
    copies(tmp_path, "node_sweep.sh")

    def call(*more: str, idle: str = "", count: int = 0, **commands: str) -> Finished:
        (tmp_path / "idle").write_text(idle or "".join(f"node{number:04d} idle main*\n" for number in range(count)))
        own = {"sinfo": 'echo "sinfo $*" >>calls; cat idle', "sbatch": SBATCH, "scontrol": SCONTROL, "scancel": 'echo "scancel $*" >>calls'}
        env: dict[str, str] = {name: commands.pop(name) for name in ("STATE", "CODE") if name in commands}
        own.update(sleep="", **commands)
        env["PATH"] = doubles(tmp_path, **own)
        line = ["/usr/bin/timeout", "30", str(tmp_path / "node_sweep.sh"), *more]
        return subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    return call


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


@pytest.mark.slurm
@pytest.mark.long
class TestOnSlurm:
    @pytest.fixture
    def bed(self) -> Iterator[Hooked]:
        with ExitStack() as stack:
            yield enter(stack, Hooked(nodes=4))

    def test_idle_nodes_are_checked_and_users_are_left_alone(self, bed: Hooked, tmp_path: Path) -> None:
        well, slow, busy, promised = bed.nodes
        folder = copies(install(tmp_path / "check"), "node_sweep.sh")
        with (folder / "node_check.conf").open("a") as conf:  # here the nodes are one machine
            conf.write(f"export SLURM_CONF={bed.folder}/slurm.conf\nKEEP={folder}/keep-$node\n")
            conf.write(f"[[ $node != {slow} ]] || export COLLBENCH_SLOWED=by=30%\n")
        (kept := tmp_path / "kept").mkdir()
        users = ["sbatch", "--parsable", "--exclusive", "--output=/dev/null"]
        running = bed.must(*users, "-w", busy, "--time=1", "--wrap=sleep 50").strip()
        until(lambda: "RUNNING" in bed.call(["squeue", "--noheader", "--format=%T"]).stdout, "the user's job")
        waiting = bed.must(*users, "--nodes=2", "-w", f"{busy},{promised}", "--time=5", "--wrap=sleep 1").strip()
        done = bed.call([str(folder / "node_sweep.sh"), "--start", "12", "--keep", str(kept)], timeout=100)
        actual = dict(line.split(" ", 1) for line in done.stdout.splitlines())
        assert actual.pop(well) == "healthy", said(done)
        assert actual.pop(slow).startswith("suspicious: ")
        assert actual.pop(promised, "no verdict: ").startswith("no verdict: ")  # or it was not idle for Slurm
        assert (actual, done.returncode) == ({}, 0)
        left = bed.call(["squeue", "--noheader", "--format=%i"]).stdout.split()
        assert sorted(left) == sorted([waiting, running])
        assert [f"node_check.sh: {slow}: suspicious check 1 of 3" in file.read_text() for file in kept.iterdir()].count(True) == 1
        assert [node(bed, each)[1] for each in (well, slow)] == ["", ""]


def test_512_idle_nodes_cost_one_array_and_a_handful_of_processes(sweep: Hook, tmp_path: Path) -> None:
    done = sweep("--partition", "gpu", "--", "--account=ops", count=512)
    assert done.returncode == 0, said(done)
    assert done.stdout.splitlines() == [f"node{number:04d} healthy" for number in range(512)]
    assert [call.split()[0] for call in calls(tmp_path)].count("sbatch") == 1
    assert len(calls(tmp_path)) < 10
    (submitted,) = (call for call in calls(tmp_path) if call.startswith("sbatch"))
    assert "--array=0-511 " in submitted
    assert "node0" not in submitted  # no list of nodes on a command line
    assert {"--hold", "--exclusive", "--time=2", "--nice=2147483645", "--partition=gpu", "--account=ops"} <= set(submitted.split())
    bound = (tmp_path / "bound").read_text().splitlines()
    assert bound == [f"update JobId=100_{number} ReqNodeList=node{number:04d}" for number in range(512)]
    assert calls(tmp_path).index("scontrol release 100") > calls(tmp_path).index("scontrol ")


def test_more_nodes_than_an_array_holds(sweep: Hook, tmp_path: Path) -> None:
    assert len(sweep(count=1001).stdout.splitlines()) == 1001
    assert re.findall(r"--array=(\S+)", (tmp_path / "calls").read_text()) == ["0-999", "0-0"]
    assert (tmp_path / "bound").read_text().splitlines()[-1] == "update JobId=200_0 ReqNodeList=node1000"


@pytest.mark.parametrize(("partition", "nodes"), [([], ["a1"]), (["--partition", "gpu"], ["a1", "b2"])])
def test_the_nodes_of_the_sweep(partition: list[str], nodes: list[str], sweep: Hook) -> None:
    idle = "a1 idle main*\nb2 idle gpu\nc3 idle* main*\nd4 idle~ main*\ne5 plnd main*\nf6 resv main*\n$(touch) idle main*\n"
    assert [line.split()[0] for line in sweep(*partition, idle=idle).stdout.splitlines()] == nodes


def test_the_job_stops_on_a_node_that_it_was_not_bound_to(sweep: Hook, tmp_path: Path) -> None:
    sweep(count=2)
    (tmp_path / "node_check.sh").write_text('#!/bin/bash\necho "checks with $*"\nexit 4\n')
    (tmp_path / "node_check.sh").chmod(0o755)

    def job(name: str) -> tuple[int, str]:
        env = {"PATH": "/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "1", "SLURMD_NODENAME": name}
        done = subprocess.run(["bash", str(tmp_path / "scripts")], env=env, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    assert (job("node0001"), job("node0000")) == ((4, "checks with --sweep\n"), (3, ""))
    (tmp_path / "node_common.sh").unlink()
    assert job("node0001") == (3, "")  # without its other half a check would end with 0, which is "healthy"


@pytest.mark.parametrize(("state", "code", "says", "exit_code"), [
    ("COMPLETED", "0:0", "healthy", 0), ("FAILED", "1:0", "drained: [collbench] CB6201 slow", 1),
    ("FAILED", "3:0", "no verdict: the check failed on the node", 0),
    ("FAILED", "4:0", "suspicious: slower than its baseline, not confirmed yet", 0),
    ("CANCELLED", "0:0", "no verdict: preempted, or not started in time", 0),
    ("PREEMPTED", "0:15", "no verdict: preempted, or not started in time", 0),
    ("TIMEOUT", "0:15", "no verdict: the job ended as TIMEOUT 0:15", 0),
    ("NODE_FAIL", "0:0", "no verdict: the job ended as NODE_FAIL 0:0", 0),
])  # fmt: skip
def test_the_verdict_of_a_node(state: str, code: str, says: str, exit_code: int, sweep: Hook) -> None:
    done = sweep(count=1, STATE=state, CODE=code)
    assert (done.stdout, done.returncode) == (f"node0000 {says}\n", exit_code), said(done)


def test_without_an_idle_node_nothing_starts(sweep: Hook, tmp_path: Path) -> None:
    done = sweep(idle="a1 alloc main*\n")
    assert (done.returncode, done.stdout) == (0, "") and done.stderr.startswith("node_sweep.sh: no node ")
    assert len(calls(tmp_path)) == 1


@pytest.mark.parametrize(("how", "says"), [
    ({"sinfo": "exit 1"}, "sinfo failed"), ({"sbatch": "exit 1"}, "sbatch failed for the job array"),
    ({"sbatch": "cat >/dev/null; echo hello"}, "sbatch returned no job number"),
    ({"scontrol": "(($# > 0)) && exit 1; exit 0"}, "scontrol could not release job 100"),
])  # fmt: skip
def test_a_failure_of_the_sweep_leaves_no_job(how: dict[str, str], says: str, sweep: Hook, tmp_path: Path) -> None:
    done = sweep(count=3, **how)
    assert (done.returncode, done.stdout) == (3, ""), said(done)
    assert says in done.stderr
    assert ("scancel 100" in calls(tmp_path)) == ("release" in says) if (tmp_path / "calls").exists() else "sinfo" in says


@pytest.mark.parametrize(("more", "says"), [
    (["--start", "0"], "--start 0: not a valid number: use 1 to 9999"),
    (["--start"], "--start: missing value, or unknown option: see node_sweep.sh --help"),
    (["--nodes", "a"], "unknown option --nodes: see node_sweep.sh --help; write options of sbatch after --"),
    (["--keep", "/nowhere"], "--keep /nowhere: not a writable folder"),
])  # fmt: skip
def test_bad_options_are_a_sentence(more: list[str], says: str, sweep: Hook, tmp_path: Path) -> None:
    done = sweep(*more, count=1)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"node_sweep.sh: {says}\n")
    assert not (tmp_path / "calls").exists()


def test_a_signal_cancels_its_jobs(sweep: Hook, tmp_path: Path) -> None:
    sweep(count=1)
    line = [str(tmp_path / "node_sweep.sh")]
    env = {"PATH": f"{tmp_path}/commands:{os.environ['PATH']}", "STATE": "RUNNING"}
    doubles(tmp_path, sleep="exec /bin/sleep 0.1")
    (tmp_path / "calls").unlink()
    with subprocess.Popen(line, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL) as begun:
        until(lambda: (tmp_path / "calls").exists() and "show job" in (tmp_path / "calls").read_text(), "its first question")
        begun.send_signal(signal.SIGTERM)
        assert begun.wait(20) == 143
    assert calls(tmp_path)[-1] == "scancel 100"
