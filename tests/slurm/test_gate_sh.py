"""gate.sh where things go wrong that a test cannot have of a real Slurm: commands are doubles here."""

import fcntl
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cli.command import environment
from tests.slurm.made_up import SLURM, doubles, said
from tests.testbeds.bed import Finished

pytestmark = pytest.mark.contract

# Exits with the code VERDICT; 3 means suspects. `calls` counts its calls.
COLLBENCH = """\
echo "$*" >>calls
while (($#)); do case $1 in --out) out=$2 ;; --confirm-suite) suite=$2 ;; esac; shift; done
[[ -n ${NO_VERDICT:-} ]] || echo '{}' >"$out"
[[ -z ${suite:-} || ${VERDICT:-0} != [13] ]] || echo 'schema = 1' >"$suite"
exit "${VERDICT:-0}"
"""
SBATCH = 'echo "$*" >>submitted; echo "$(wc -l <submitted);cluster"'
ENDED = 'echo "JobId=1 JobState={state} Reason=None ExitCode={code} NodeList=n$4"'


def gate(folder: Path, *more: str, scontrol: str = ENDED.format(state="COMPLETED", code="0:0"), env: Mapping[str, str] | None = None,
         sbatch: str = SBATCH) -> Finished:  # fmt: skip
    path = doubles(folder, collbench=COLLBENCH, sbatch=sbatch, scontrol=scontrol, scancel='echo "$*" >>cancelled', sleep="")
    (folder / "good").mkdir(exist_ok=True)
    line = ["timeout", "30", str(SLURM / "gate.sh"), "--baseline", "good", "--keep", "keep", *more]
    own = {**environment(), "PATH": path, **(env or {})}
    return subprocess.run(line, cwd=folder, env=own, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def submitted(folder: Path) -> list[str]:
    return (folder / "submitted").read_text().splitlines()


class TestOptions:
    @pytest.mark.parametrize(("more", "says"), [
        (["--launches", "0"], "--launches 0: not a valid number"), (["--wait", "1h"], "--wait 1h: not a valid number"),
        (["--junit", "f"], "unknown option --junit"), (["--suite"], "--suite: missing value"),
        (["--suite", "night"], "--suite night: not a file"), (["--baseline", "nowhere"], "--baseline nowhere: not a folder"),
        (["--keep", "/proc/nowhere"], "--keep /proc/nowhere: not writable"),
        (["--", "--exit-style", "nagios"], "--exit-style is not supported here"),
    ])  # fmt: skip
    def test_invalid_ones_are_one_sentence(self, more: list[str], says: str, tmp_path: Path) -> None:
        done = gate(tmp_path, *more)
        assert done.returncode == 2 and says in done.stderr and done.stdout == "", said(done)
        assert not (tmp_path / "submitted").exists()

    def test_help_and_a_missing_program(self, tmp_path: Path) -> None:
        done = gate(tmp_path, "--help")
        assert done.returncode == 0 and "--fresh-nodes" in done.stdout and done.stderr == ""
        done = gate(tmp_path, env={"COLLBENCH": "no-such-program"})
        assert done.returncode == 2 and "no-such-program not found" in done.stderr


class TestLoop:
    def test_three_strikes_and_no_more(self, tmp_path: Path) -> None:
        done = gate(tmp_path, "--expect", "changes.toml", "--fresh-nodes", "--", "--junit", "gate.xml", env={"VERDICT": "1"})
        assert done.returncode == 1, said(done)
        first, second, third = submitted(tmp_path)
        assert "gate.sbatch" in first and "--exclude" not in first
        assert "confirm.sbatch" in second and "--exclude=n1 " in second and "suspects-2.toml 5" in second
        assert "--exclude=n1,n2 " in third and "suspects-3.toml 5" in third
        calls = (tmp_path / "calls").read_text().splitlines()
        assert all("--expect changes.toml" in call for call in calls)
        assert ["--junit gate.xml" in call for call in calls] == [False, False, False, True]  # outputs are made once: some append
        assert "--confirm-suite" not in calls[2] and calls[2].split()[-3:] == calls[3].split()[-3:]

    def test_nodes_are_excluded_only_with_the_option(self, tmp_path: Path) -> None:
        assert gate(tmp_path, env={"VERDICT": "1"}).returncode == 1
        assert not any("--exclude" in line for line in submitted(tmp_path))

    @pytest.mark.parametrize("code", [0, 2, 4])
    def test_without_suspects_it_ends(self, code: int, tmp_path: Path) -> None:
        assert gate(tmp_path, env={"VERDICT": str(code)}).returncode == code
        assert len(submitted(tmp_path)) == 1

    def test_results_that_cannot_be_judged(self, tmp_path: Path) -> None:
        done = gate(tmp_path, env={"VERDICT": "2", "NO_VERDICT": "1"})
        assert done.returncode == 2 and "cannot judge" in done.stderr


class TestJobs:
    @pytest.mark.parametrize(("state", "code", "exits"), [
        ("FAILED", "1:0", 3), ("FAILED", "2:0", 2), ("FAILED", "4:0", 4), ("FAILED", "137:0", 3), ("TIMEOUT", "0:0", 3),
        ("CANCELLED", "0:15", 3), ("NODE_FAIL", "1:0", 3), ("OUT_OF_MEMORY", "0:125", 3),
    ])  # fmt: skip
    def test_a_failed_job_is_not_a_regression(self, state: str, code: str, exits: int, tmp_path: Path) -> None:
        done = gate(tmp_path, scontrol=ENDED.format(state=state, code=code))
        assert done.returncode == exits and f"job 1 ended as {state} (exit code {code}), see " in done.stderr, said(done)
        assert not (tmp_path / "keep" / "latest" / "verdict.json").exists()  # launches before the failure may look healthy

    def test_wrong_data_counts_for_any_end_of_the_job(self, tmp_path: Path) -> None:
        done = gate(tmp_path, "--", "--junit", "gate.xml", scontrol=ENDED.format(state="FAILED", code="143:0"), env={"VERDICT": "4"})
        assert done.returncode == 4 and "--junit gate.xml" in (tmp_path / "calls").read_text().splitlines()[1]

    def test_a_job_that_slurm_refuses_or_does_not_end_gives_no_verdict(self, tmp_path: Path) -> None:
        done = gate(tmp_path, sbatch="echo 'sbatch: error: no such partition' >&2; exit 1")
        assert done.returncode == 3 and "no verdict: sbatch failed" in done.stderr
        pending = "echo 'JobId=1 JobState=PENDING Reason=Resources ExitCode=0:0 NodeList='"
        done = gate(tmp_path, "--wait", "1", scontrol=pending)
        assert done.returncode == 3 and "1 s (PENDING, reason Resources)" in done.stderr
        assert (tmp_path / "cancelled").read_text() == "1\n"

    def test_the_controller_may_be_unreachable_for_some_time(self, tmp_path: Path) -> None:
        away = f'echo >>asked; (($(wc -l <asked) > 3)) || {{ echo "Unable to contact slurm controller" >&2; exit 1; }}; {ENDED}'
        assert gate(tmp_path, scontrol=away.replace("{state}", "COMPLETED").replace("{code}", "0:0")).returncode == 0

    def test_a_job_that_slurm_forgot_is_judged_by_its_files(self, tmp_path: Path) -> None:
        forgotten = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
        assert gate(tmp_path, scontrol=forgotten).returncode == 0
        assert len((tmp_path / "calls").read_text().splitlines()) == 2


def test_a_second_call_does_not_disturb_the_first(tmp_path: Path) -> None:
    (tmp_path / "keep").mkdir()
    with (tmp_path / "keep" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = gate(tmp_path)
    assert done.returncode == 3 and "another gate.sh" in done.stderr
    assert not (tmp_path / "submitted").exists()
