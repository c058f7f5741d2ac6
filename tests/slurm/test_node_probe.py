"""node_probe.sh: a severe finding drains a node of a real Slurm before the job begins; what fails in it drains nothing."""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from collbench.machine.doctor.finding import pages
from tests.cli.command import BIN, environment
from tests.conftest import enter
from tests.slurm.hooks import Hook, Hooked, asked, called, node, snapshot, with_doubles
from tests.slurm.made_up import SLURM, said
from tests.testbeds.bed import Finished

pytestmark = pytest.mark.contract

FOUND = """\
severe   CB2702  mlx5_3 (0000:1d:00.0) is gone; "$(touch x)"
  evidence: 7 NICs now, 8 then
severe   CB2704  mlx5_4 has a lower rate than it had
warning  CB2707  less memory than the node had
3 findings: 2 severe, 1 warning; `collbench explain CB2702` explains the first
"""
CONF = 'KEEP={0}/keep\nDRAIN_FOR="CB2701 CB2702"'


@pytest.fixture
def hooked() -> Iterator[Hooked]:
    with ExitStack() as stack:
        yield enter(stack, Hooked(nodes=2))


@pytest.fixture
def probe(tmp_path: Path) -> Hook:
    (tmp_path / "found").write_text(FOUND)

    def call(
        *more: str, doctor: str = "cat found; exit 1", state: str = "IDLE", scontrol: str = "", conf: str = "", **commands: str
    ) -> Finished:
        path = with_doubles(tmp_path, state, scontrol, collbench=f'echo "$*" >>calls\n{doctor}', **commands)
        return called(tmp_path, "node_probe.sh", *more, conf=f"{CONF.format(tmp_path)}\n{conf}", path=path, env={"SLURM_JOB_ID": "7"})

    return call


@pytest.mark.slurm
@pytest.mark.long
def test_the_prolog_accepts_a_healthy_node_and_drains_one_without_a_nic(hooked: Hooked) -> None:
    good, sick = hooked.nodes
    for name in hooked.nodes:
        snapshot(hooked.folder / "hooks", name, with_lost_nic=name == sick)
    done = hooked.call(["srun", "-w", good, "true"], timeout=30)
    assert (done.returncode, node(hooked, good)[1], hooked.talk) == (0, "", ""), said(done)
    refused = hooked.call(["srun", "-w", sick, "true"], timeout=30)
    state, reason = node(hooked, sick)
    assert refused.returncode != 0
    assert "DRAIN" in state
    assert reason == "[collbench] CB2702 mlx5_9 (0000:7f:00.0) is gone"  # and not Slurm's own "Prolog error"
    assert max(hooked.seconds("prolog")) < 10
    assert "DRAIN" not in node(hooked, good)[0]


def test_only_the_worst_finding_of_the_settings_drains(probe: Hook, tmp_path: Path) -> None:
    done = probe()
    assert done.returncode == 1, said(done)
    assert "update NodeName=node1 State=DRAIN Reason=[collbench] CB2702 mlx5_3 (0000:1d:00.0) is gone; $(touch x)\n" in asked(tmp_path)
    assert "[collbench] CB2702" in done.stderr
    assert (tmp_path / "keep" / "probe.txt").read_text().startswith("severe   CB2702")
    drained = asked(tmp_path)
    assert probe(conf='DRAIN_FOR="CB2101 CB2704x"').returncode == 0
    assert probe(conf="DRAIN_FOR=").returncode == 0
    assert asked(tmp_path) == drained
    assert probe(conf="DRAIN_FOR=CB2704").returncode == 1
    assert "Reason=[collbench] CB2704 mlx5_4 has a lower rate" in asked(tmp_path)


def test_a_reason_is_one_printable_line(probe: Hook, tmp_path: Path) -> None:
    actual = probe(
        "--no-drain", doctor=r"""printf 'severe   CB2702  \033[31m"é"\t`x` %s\n' "$(printf 'word %.0s' {1..99})"; exit 1"""
    ).stdout
    assert actual.startswith("[collbench] CB2702 [31m`x` word word ")
    assert actual.endswith(" word ...\n")
    assert len(actual) < 230
    assert actual.strip().isascii()
    assert actual.strip().isprintable()


def test_a_healthy_node_sends_no_request_to_the_controller(probe: Hook, tmp_path: Path) -> None:
    done = probe(doctor="echo no findings")
    assert (done.returncode, done.stdout, done.stderr, asked(tmp_path)) == (0, "", "", "")


def test_an_existing_drain_reason_is_kept(probe: Hook, tmp_path: Path) -> None:
    done = probe(state="ALLOCATED+DRAIN")
    assert done.returncode == 1
    assert "already drained" in done.stderr
    assert "update" not in asked(tmp_path)


def test_no_drain_leaves_it_to_the_caller(probe: Hook, tmp_path: Path) -> None:
    done = probe("--no-drain")
    assert (done.returncode, done.stdout.startswith("[collbench] CB2702 mlx5_3"), asked(tmp_path)) == (1, True, "")


@pytest.mark.parametrize(("how", "words"), [
    ({"conf": "COLLBENCH=/nowhere/collbench"}, "no verdict: /nowhere/collbench "),
    ({"conf": "KEEP=/proc/nowhere"}, "no verdict: /proc/nowhere: "), ({"conf": "if"}, "node_check.conf: "), ({"conf": "exit 7"}, ""),
    ({"conf": ": $no_such_name"}, "no_such_name"), ({"doctor": "exit 2"}, "(exit code 2)"),
    ({"doctor": "echo severe CB2702 x; exit 70"}, "(exit code 70)"), ({"doctor": "echo Traceback >&2; exit 1"}, "(exit code 3)"),
    ({"doctor": "head -c 5000 /dev/urandom; exit 1"}, "(exit code 3)"),
    ({"timeout": '[[ $* != *doctor* ]] || exit 124; shift 2; exec "$@"'}, "(exit code 124)"),
    ({"scontrol": "exit 127"}, "not drained; reason: [collbench] CB2702"),
    ({"scontrol": "[[ $* == *show* ]] && echo ' State=IDLE '"}, "no verdict: scontrol could not drain"),
])  # fmt: skip
def test_a_failure_of_the_probe_does_not_drain(how: dict[str, str], words: str, probe: Hook, tmp_path: Path) -> None:
    done = probe(**how)
    assert (done.returncode, done.stdout) == (0, ""), said(done)
    assert words in done.stderr
    assert "State=DRAIN" not in asked(tmp_path)


@pytest.mark.long
def test_a_probe_that_hangs_is_ended_within_its_slot(probe: Hook, tmp_path: Path) -> None:
    began = time.monotonic()
    done = probe(doctor="echo 'severe CB2702 x'; trap '' TERM; sleep 30")
    assert (done.returncode, asked(tmp_path)) == (0, ""), said(done)
    assert time.monotonic() - began < 10
    assert "longer than 8 s" in done.stderr


@pytest.mark.parametrize("script", ["node_probe.sh", "node_check.sh", "node_epilog.sh"])
@pytest.mark.parametrize("lost", ["node_check.conf", "node_common.sh"])
def test_an_incomplete_installation_drains_no_node(script: str, lost: str, tmp_path: Path) -> None:
    path = with_doubles(tmp_path, collbench="echo 'severe CB2702 x'; exit 1")
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_EXIT_CODE2": "0:9"}
    assert called(tmp_path, script, conf=f"{CONF.format(tmp_path)}\nEPILOG_SIGNALS=9", path=path, env=env).returncode in (0, 1)
    (tmp_path / lost).unlink()
    before = asked(tmp_path)
    done = subprocess.run([str(tmp_path / script)], cwd=tmp_path, env={"PATH": path, **env}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, asked(tmp_path)) == (0, "", before), said(done)
    assert lost in done.stderr


def test_without_a_snapshot_the_other_checks_run(probe: Hook, tmp_path: Path) -> None:
    done = probe(conf=f"GOOD={tmp_path}/%n.json")
    assert done.returncode == 1
    assert f"{tmp_path}/node1.json: " in done.stderr
    assert (tmp_path / "calls").read_text() == "doctor --color never\n"


def test_learn_writes_the_snapshot_for_later_comparisons(tmp_path: Path) -> None:
    conf = f"COLLBENCH={BIN}/collbench\nKEEP={tmp_path}/keep\nGOOD={tmp_path}/good/%n.json\nDRAIN_FOR=CB2702"
    path = environment()["PATH"]
    learned = called(tmp_path, "node_probe.sh", "--learn", conf=conf, path=path)
    assert learned.returncode == 0, said(learned)
    assert json.loads((tmp_path / "good" / "node1.json").read_text())["machines"]
    done = called(tmp_path, "node_probe.sh", "--no-drain", conf=conf, path=path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    snapshot(tmp_path / "good", "node1", with_lost_nic=True)
    done = called(tmp_path, "node_probe.sh", "--no-drain", conf=conf, path=path)
    assert (done.returncode, done.stdout) == (1, "[collbench] CB2702 mlx5_9 (0000:7f:00.0) is gone\n"), said(done)


def test_every_code_that_may_drain_has_a_page() -> None:
    texts = "".join((SLURM / name).read_text() for name in ("node_check.conf", "node_check.sh"))
    codes = set(re.findall(r"CB\d{4}", texts))
    assert {"CB2702", "CB6201", "CB6202"} <= codes <= set(pages())
