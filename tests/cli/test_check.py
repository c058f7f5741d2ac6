"""`collbench check` in real runs: each outcome with its exit code, for runs that succeed, fail or hang."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from collbench.analysis.health import CheckOutcome
from collbench.report.health import read_check
from collbench.results.reader import read_run
from tests.cli.command import ROOT, run

pytestmark = pytest.mark.system

SHORT = ("check", "--total-time", "1", "--out", "run", "--format", "json")
UNSET = dict.fromkeys(("COLLBENCH_ITERATIONS", "COLLBENCH_WARMUP"), "")
FAULTY = "".join(f"{name} = tests.cli.faulty_backends:{name.capitalize()}Backend\n" for name in ("corrupting", "killed", "hanging"))


def check(folder: Path, *options: str, **variables: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the object that is printed."""
    done = run(folder, *SHORT, *options, env={**UNSET, **variables})
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert found["exit_code"] == done.returncode == CheckOutcome(found["verdict"]).exit_code
    assert found["next"][0] == "collbench" and found["text"].startswith(f"{found['verdict']}: ")
    return done.returncode, found


@pytest.fixture
def faulty(tmp_path: Path) -> dict[str, str]:
    """The variables under which the faulty backends are installed."""
    about = tmp_path / "plugin" / "faulty-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[collbench.backends]\n{FAULTY}")
    return {"PYTHONPATH": os.pathsep.join([str(about.parent), str(ROOT)])}


def test_a_fast_network_is_ok(tmp_path: Path) -> None:
    code, found = check(tmp_path, "--backend", "simulated", "--total-time", "4", "--html", "page.html")
    verdict = read_check(tmp_path / "run")
    assert verdict is not None and verdict.outcome.value == found["verdict"]
    assert f'">{found["verdict"]}</p>' in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert code in (0, 3)  # where the machine is busy, too few samples
    assert {each["operation"] for each in found["evidence"] if each["kind"] == "series_check"} == {
        "allreduce", "p2p_latency", "p2p_bandwidth",
    }  # fmt: skip
    assert found["evidence"][-1]["kind"] == "doctor_summary" and found["run"] == "run"
    assert {row.wrong for row in read_run(tmp_path / "run").rows} == {0}


def test_a_slowed_network_is_never_ok(tmp_path: Path) -> None:
    code, found = check(tmp_path, "--backend", "simulated", "--slowed", "by=900%", "--total-time", "4")
    assert code in (1, 3)
    slow = [each for each in found["causes"] if each["kind"] == "misses_expected"]
    assert bool(slow) == (code == 1)
    assert all(each["best"]["high"] < 50 for each in slow)


@pytest.mark.long
def test_this_host_is_not_broken(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    code, found = check(tmp_path, "--backend", "mpi")
    assert code in (0, 1, 3)
    assert {(row.backend, row.ranks, row.wrong) for row in read_run(tmp_path / "run").rows} == {("mpi", 2, 0)}
    assert all(each["checked"] for each in found["evidence"] if each["kind"] == "series_check")


@pytest.mark.often
@pytest.mark.long
def test_wrong_data_is_broken(tmp_path: Path, faulty: dict[str, str]) -> None:
    code, found = check(tmp_path, "--backend", "corrupting", **faulty)
    assert code == 4 and found["causes"][0]["kind"] == "wrong_data_received"
    assert "rank 0" in found["causes"][0]["detail"]


@pytest.mark.long
@pytest.mark.parametrize("backend", ["killed", "hanging"])
def test_a_run_that_fails_is_broken(tmp_path: Path, faulty: dict[str, str], backend: str) -> None:
    code, found = check(tmp_path, "--backend", backend, "--timeout", "3", **faulty)
    assert code == 4 and found["causes"][0]["kind"] == "run_failed_early"


def without(tmp_path: Path, *names: str) -> str:
    """A PYTHONPATH with which these modules are not found."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name, *more: None if name in {names} else find(name, *more)\n"
    )
    return os.pathsep.join([str(tmp_path / "site"), str(ROOT)])


def test_a_bare_install_checks_plain_tcp(tmp_path: Path) -> None:
    code, found = check(tmp_path, PYTHONPATH=without(tmp_path, "mpi4py", "torch", "cupy"))
    measured = {each["operation"] for each in found["evidence"] if each.get("backend") == "socket" and each.get("busbw")}
    assert code in (0, 1, 3) and "p2p_bandwidth" in measured


def test_without_any_backend_the_check_is_inconclusive(tmp_path: Path) -> None:
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("raise ImportError('mpi4py is broken')\n")
    path = os.pathsep.join([str(tmp_path), without(tmp_path, "torch")])
    code, found = check(tmp_path, PYTHONPATH=path)
    (cause,) = found["causes"]
    assert (code, cause["kind"], found["run"]) == (3, "nothing_measured", None)
    assert "mpi4py" in cause["detail"] and not (tmp_path / "run").exists()


SRUN = """\
#!/bin/sh
case "$1" in
  --version) echo "slurm 24.05" ;;
  --mpi=list) echo "MPI plugin types are... none pmi2 pmix" ;;
  *) echo "$@" >fake-srun.txt; exit 3 ;;
esac
"""


def test_in_an_allocation_of_several_nodes_srun_starts_one_task_on_each(tmp_path: Path) -> None:
    fake = tmp_path / "fake" / "srun"
    fake.parent.mkdir()
    fake.write_text(SRUN)
    fake.chmod(0o755)
    allocation = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]", "PATH": f"{fake.parent}:{os.environ['PATH']}"}
    assert run(tmp_path, "check", "--quiet", env=allocation).returncode == 3
    words = (tmp_path / "fake-srun.txt").read_text().split()
    assert {"--ntasks-per-node=1", "--kill-on-bad-exit=1"} < set(words) and words[-2:] == ["check", "--quiet"]


def test_in_an_allocation_of_one_node_the_ranks_are_started_here(tmp_path: Path) -> None:
    code, found = check(tmp_path, "--backend", "simulated", SLURM_JOB_ID="7", SLURM_JOB_NODELIST="node1")
    assert code in (0, 3) and found["nodes"] == 1 and read_run(tmp_path / "run").info["launcher"] == "local"


def test_people_get_the_verdict_first_and_the_next_command_last(tmp_path: Path) -> None:
    done = run(tmp_path, "check", "--backend", "simulated", "--total-time", "1", env=UNSET)
    first, *evidence, last = done.stdout.splitlines()
    assert first.split(":")[0] == {0: "OK", 3: "INCONCLUSIVE"}[done.returncode]
    assert len(evidence) == 4 and last.startswith(f"exit code {done.returncode}; run folder: runs/") and "next: collbench " in last


def test_quiet_leaves_the_verdict_and_its_evidence(tmp_path: Path) -> None:
    done = run(tmp_path, "check", "--backend", "simulated", "--total-time", "1", "--quiet", env=UNSET)
    assert done.stderr == ""
    first, *evidence = done.stdout.splitlines()
    assert first.split(":")[0] == {0: "OK", 3: "INCONCLUSIVE"}[done.returncode]
    assert len(evidence) == 4 and all(line.startswith("  ") for line in evidence)
