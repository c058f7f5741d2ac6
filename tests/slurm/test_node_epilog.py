"""node_epilog.sh: after a job that a signal ended it looks at the node, after others it does not; what fails in it drains nothing."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.command import until
from tests.conftest import enter
from tests.slurm.hooks import Hook, Hooked, asked, called, node, snapshot, with_doubles
from tests.slurm.made_up import said
from tests.testbeds.bed import Finished

pytestmark = pytest.mark.contract

CHECK = '#!/bin/bash\necho "$SLURMD_NODENAME $SLURM_JOB_ID" >>measured\nexit 1\n'
KILL = "kill -KILL $$"


@pytest.fixture
def hooked() -> Iterator[Hooked]:
    with ExitStack() as stack:
        yield enter(stack, Hooked(nodes=2))


@pytest.fixture
def epilog(tmp_path: Path) -> Hook:
    def call(
        code2: str,
        derived: str = "0",
        *,
        doctor: str = "echo no findings",
        state: str = "IDLE+COMPLETING",
        conf: str = "",
        scontrol: str = "",
    ) -> Finished:
        path = with_doubles(tmp_path, state, scontrol, collbench=f"echo looked >>looked\n{doctor}")
        (tmp_path / "node_check.sh").write_text(CHECK)
        (tmp_path / "node_check.sh").chmod(0o755)
        actual = {"SLURM_JOB_ID": "7", "SLURM_JOB_EXIT_CODE2": code2, "SLURM_JOB_DERIVED_EC": derived}
        settings = f'KEEP={tmp_path}/keep\nDRAIN_FOR=CB2702\nEPILOG_SIGNALS="9 11"\n{conf}'
        return called(tmp_path, "node_epilog.sh", conf=settings, path=path, env={name: text for name, text in actual.items() if text})

    return call


@pytest.mark.slurm
@pytest.mark.long
def test_slurm_calls_it_after_every_job_and_it_looks_after_a_signal(hooked: Hooked) -> None:
    name, sick = hooked.nodes

    def after(*command: str, on: str = name) -> str:
        before, ended = len(hooked.talk), len(hooked.seconds("epilog")) if (hooked.folder / "stamps").exists() else 0
        hooked.call([*command[:1], "-w", on, *command[1:]], timeout=30)
        until(lambda: len(hooked.seconds("epilog")) > ended, "the epilog", 30)
        return hooked.talk[before:]

    hooks = hooked.folder / "hooks"
    snapshot(hooks, name, with_lost_nic=False)
    lost = snapshot(hooks, "lost", with_lost_nic=True)
    assert "checking" not in after("srun", "true") + after("srun", "false")
    assert "signal 9: checking" in after("srun", "sh", "-c", KILL)
    script = hooked.folder / "steps"
    script.write_text(f"#!/bin/sh\nsrun sh -c '{KILL}'\nsleep 1\nexit 0\n")  # the script succeeds, a step of it does not
    assert "signal 9: checking" in after("sbatch", "--output=/dev/null", str(script))
    assert node(hooked, name)[1] == ""
    gone_meanwhile = f"cp {lost} {hooks}/{sick}.json; {KILL}"
    assert "signal 9" in after("srun", "sh", "-c", gone_meanwhile, on=sick)
    state, reason = node(hooked, sick)
    assert "DRAIN" in state, hooked.talk
    assert reason == "[collbench] CB2702 mlx5_9 (0000:7f:00.0) is gone"  # and not Slurm's own "Epilog error"
    assert max(hooked.seconds("epilog")) < 10


@pytest.mark.parametrize(("code2", "derived", "end"), [
    ("0:9", "0", "signal 9"), ("137:0", "35072", "signal 9"), ("0:0", "9", "signal 9"), ("0:0", "35584", "signal 11"),
    ("0:11", "", "signal 11"),
])  # fmt: skip
def test_signals_that_start_a_check(code2: str, derived: str, end: str, epilog: Hook, tmp_path: Path) -> None:
    done = epilog(code2, derived)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("node_epilog.sh: node1: job 7 ") and f" {end}: " in done.stderr and done.stderr.count("\n") == 1
    assert (tmp_path / "looked").exists()
    assert not (tmp_path / "measured").exists()


@pytest.mark.parametrize(("code2", "derived"), [
    ("0:0", "0"), ("3:0", "768"), ("1:0", ""), ("0:15", "15"), ("143:0", "36608"), ("0:125", "0"), ("", ""), ("x:9", "z"),
    ("255:0", "65280"),
])  # fmt: skip
def test_ends_of_a_job_that_start_no_check(code2: str, derived: str, epilog: Hook, tmp_path: Path) -> None:
    done = epilog(code2, derived)
    assert (done.returncode, done.stdout, done.stderr, asked(tmp_path)) == (0, "", "", "")
    assert not (tmp_path / "looked").exists()


def test_a_finding_drains_the_node_and_the_epilog_succeeds(epilog: Hook, tmp_path: Path) -> None:
    done = epilog("0:9", doctor="echo 'severe   CB2702  mlx5_3 is gone'; exit 1", conf="EPILOG_CHECK=yes")
    assert done.returncode == 0, said(done)
    assert "update NodeName=node1 State=DRAIN Reason=[collbench] CB2702 mlx5_3 is gone\n" in asked(tmp_path)
    assert not (tmp_path / "measured").exists()  # it is already drained


class TestMeasured:
    def test_if_the_settings_allow_it(self, epilog: Hook, tmp_path: Path) -> None:
        assert epilog("0:9", conf="EPILOG_CHECK=yes").returncode == 0  # though the check drained, and ended with 1
        assert (tmp_path / "measured").read_text() == "node1 7\n"

    def test_not_during_another_job(self, epilog: Hook, tmp_path: Path) -> None:
        done = epilog("0:9", conf="EPILOG_CHECK=yes", state="MIXED+COMPLETING")
        assert done.returncode == 0
        assert "no verdict: " in done.stderr and "(MIXED+COMPLETING)" in done.stderr
        assert not (tmp_path / "measured").exists()


class TestRequestsToTheController:
    FAILED = 'echo "$*" >>asked; echo " JobState=NODE_FAIL Reason=NodeDown ExitCode=0:15 State=IDLE "'

    def test_none_unless_allowed(self, epilog: Hook, tmp_path: Path) -> None:
        assert (epilog("0:0", scontrol=self.FAILED).stderr, asked(tmp_path)) == ("", "")

    def test_jobs_that_ended_with_their_node_were_cancelled_or_have_no_answer(self, epilog: Hook) -> None:
        assert "job 7 was ended by a node failure" in epilog("0:0", scontrol=self.FAILED, conf="EPILOG_ASKS=yes").stderr
        cancelled = "echo ' JobState=CANCELLED Reason=None ExitCode=0:15 '"
        assert epilog("0:0", scontrol=cancelled, conf="EPILOG_ASKS=yes").stderr == ""

    def test_no_answer(self, epilog: Hook) -> None:
        assert epilog("0:0", scontrol="exit 1", conf="EPILOG_ASKS=yes").stderr == ""


@pytest.mark.parametrize(("how", "says"), [
    ({"conf": "COLLBENCH=/nowhere/collbench"}, "no verdict: /nowhere/collbench "), ({"conf": "exit 7"}, ""),
    ({"doctor": "exit 2"}, "no verdict: the probe failed"), ({"doctor": "echo severe; exit 1"}, "no verdict: the probe failed"),
    ({"doctor": "echo 'severe CB2702 x'; exit 1", "scontrol": "exit 1"}, "reason: [collbench] CB2702 x"),
    ({"conf": "EPILOG_CHECK=yes", "scontrol": "exit 1"}, "no verdict: cannot get"),
])  # fmt: skip
def test_a_failure_of_the_epilog_does_not_drain(how: dict[str, str], says: str, epilog: Hook, tmp_path: Path) -> None:
    done = epilog("0:9", **how)
    assert (done.returncode, done.stdout) == (0, ""), said(done)
    assert says in done.stderr
    assert "State=DRAIN" not in asked(tmp_path)
    assert not (tmp_path / "measured").exists()
