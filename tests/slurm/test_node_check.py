"""node_check.sh: what it finds drains a node of a real Slurm; what fails in it drains nothing."""

import fcntl
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.command import BIN, until
from tests.conftest import enter
from tests.slurm.hooks import SCONTROL, copies, node
from tests.slurm.made_up import ANNOUNCED, SLURM, baseline, doubles, said, settings, suite
from tests.testbeds import SlurmBed
from tests.testbeds.bed import Finished

pytestmark = pytest.mark.contract

SLOW = "export COLLBENCH_SLOWED=by=30%"
# `run` makes a launch and exits with RUN; `gate` writes a verdict from VERDICT (its exit code in style prolog) and SUSPECTED.
COLLBENCH = """\
echo "$*" >>calls
verb=$1
while (($#)); do case $1 in --out) out=$2 ;; --confirm-suite) suite=$2 ;; --verdict) verdict=$2 ;; esac; shift; done
if [[ $verb == run ]]; then [[ -n ${NO_RUN:-} ]] || mkdir -p "$out/launch-1"; exit "${RUN:-0}"; fi
if [[ -n ${verdict:-} ]]; then [[ -z ${suite:-} ]] && echo "COLLBENCH CRITICAL - wrong data in allreduce | x=1"; exit "${SHOWN:-0}"; fi
[[ -n ${NO_VERDICT:-} ]] || echo '{"result": "wrong data"}' >"$out"
[[ -z ${SUSPECTED:-} ]] || echo 'schema = 1' >"$suite"
exit "${VERDICT:-0}"
"""


class Checked(SlurmBed):
    """Slurm that checks its idle nodes every few seconds, and each node before a job; the check is a copy in the bed's folder."""

    def _configure(self) -> None:
        super()._configure()
        for name, which in (("health", self.nodes[0]), ("prolog", self.nodes[1])):
            script = self.folder / name
            own = f"{self.folder}/check/node_check.sh >>{self.folder}/check/talk 2>&1"
            script.write_text(f"#!/bin/bash\n[[ $SLURMD_NODENAME != {which} || ! -e {self.folder}/check/begin ]] || {own}\n")
            script.chmod(0o755)
        conf = self.folder / "slurm.conf"
        checks = f"HealthCheckProgram={self.folder}/health\nHealthCheckInterval=3\nHealthCheckNodeState=IDLE,CYCLE\n"
        conf.write_text(f"{conf.read_text()}{checks}Prolog={self.folder}/prolog\nPrologFlags=Alloc\n")

    @property
    def talk(self) -> str:
        path = self.folder / "check" / "talk"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def checked() -> Iterator[Checked]:
    with ExitStack() as stack:
        bed = enter(stack, Checked(nodes=2))
        yield bed
        (bed.folder / "check" / "begin").unlink(missing_ok=True)
        until(lambda: all(map(_free, bed.folder.glob("check/keep-*/.lock"))), "the last check, which has no mark of the bed", 60)


def _free(lock: Path) -> bool:
    with lock.open() as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def install(folder: Path) -> Path:
    """The script in a folder, set up for the simulated link and with a baseline that it learned there."""
    copies(folder, "node_check.sh")
    (folder / "changes.toml").write_text(ANNOUNCED)
    own = [f"{name}={folder}/{each}" for name, each in (("BASELINE", "learned"), ("KEEP", "keep"), ("SUITE", "small.toml"))]
    lines = [f"COLLBENCH={BIN}/collbench", *own, f"JUDGING=(--expect {folder}/changes.toml)", "export COLLBENCH_ITERATIONS=200"]
    (folder / "node_check.conf").write_text("\n".join([*lines, ""]))
    suite(folder, "launches = 1\nranks = 2")
    learned = subprocess.run([str(folder / "node_check.sh"), "--learn"], env=settings(), capture_output=True, text=True, check=False)
    assert learned.returncode == 0 and learned.stdout.startswith(str(folder / "learned")), said(learned)
    shutil.rmtree(folder / "learned")
    baseline(folder / "learned", next((folder / "keep").glob("*Z")))
    return folder


def slowed(folder: Path, on: bool) -> None:
    conf = folder / "node_check.conf"
    actual = [line for line in conf.read_text().splitlines() if "SLOWED" not in line]
    conf.write_text("\n".join([*actual, *[SLOW] * on, ""]))


@pytest.mark.slurm
@pytest.mark.long
def test_three_slow_checks_in_a_row_drain_the_node(bed: SlurmBed, tmp_path: Path) -> None:
    folder, name = install(tmp_path / "check"), bed.nodes[5]
    slowed(folder, True)

    def check() -> Finished:
        return bed.call([str(folder / "node_check.sh")], env={"SLURMD_NODENAME": name})

    try:
        actual = [check() for _ in range(2)]
        assert [each.returncode for each in actual] == [0, 0] and node(bed, name) == ("IDLE", ""), said(actual[1])
        for number, each in enumerate(actual, 1):
            assert f"suspicious check {number} of 3" in each.stderr, "".join(map(said, actual))
        last = check()
        state, reason = node(bed, name)
    finally:
        bed.call(["scontrol", "update", f"NodeName={name}", "State=RESUME"])
    assert last.returncode == 1 and state == "IDLE+DRAIN" and reason.startswith("[collbench] CB6201 regression: "), said(last)
    assert len(list((folder / "keep" / "drained").glob("*Z/run.json"))) == 3 and not (folder / "keep" / "waiting").exists()


@pytest.mark.slurm
@pytest.mark.long
def test_one_good_check_clears_those_before(bed: SlurmBed, tmp_path: Path) -> None:
    folder, name = install(tmp_path / "check"), bed.nodes[4]
    for slow, waiting in ((True, 1), (True, 2), (False, 0), (True, 1)):
        slowed(folder, slow)
        done = bed.call([str(folder / "node_check.sh")], env={"SLURMD_NODENAME": name})
        kept = folder / "keep" / "waiting"
        assert done.returncode == 0 and len(kept.read_text().splitlines() if kept.exists() else []) == waiting, said(done)
    assert node(bed, name) == ("IDLE", "")
    assert len(list((folder / "keep").glob("*Z"))) == 1  # those that are neither the last nor waiting are gone


@pytest.mark.slurm
@pytest.mark.long
def test_slurm_itself_calls_it(checked: Checked) -> None:
    """As the HealthCheckProgram of one node, and as the prolog of another."""
    folder = install(checked.folder / "check")
    slowed(folder, True)
    with (folder / "node_check.conf").open("a") as conf:
        conf.write(f"export SLURM_CONF={checked.folder}/slurm.conf\nKEEP={folder}/keep-$node\n")  # here the nodes are one machine
    idle, asked = checked.nodes
    (folder / "begin").touch()
    until(lambda: "DRAIN" in node(checked, idle)[0], "the health check", 60)
    assert node(checked, idle)[1].startswith("[collbench] CB6201 regression: ") and "suspicious check 2 of 3" in checked.talk, checked.talk
    for number in (1, 2):
        assert checked.call(["srun", "-w", asked, "true"], timeout=30).returncode == 0
        assert checked.talk.count(f"node_check.sh: {asked}: suspicious check {number} of 3") == 1, checked.talk
    refused = checked.call(["srun", "-w", asked, "true"], timeout=30)
    assert refused.returncode != 0 and "DRAIN" in node(checked, asked)[0], said(refused)
    assert node(checked, asked)[1].startswith("[collbench] CB6201 regression: ")  # and not Slurm's own "Prolog error"


class TestDoubles:
    """Its own failures: commands are doubles here."""

    @pytest.fixture
    def check(self, tmp_path: Path) -> Callable[..., Finished]:
        def call(*more: str, state: str = "IDLE", conf: str = "", **env: str) -> Finished:
            path = doubles(tmp_path, collbench=COLLBENCH, scontrol=SCONTROL.format(state=state), sleep="")
            copies(tmp_path, "node_check.sh")
            (tmp_path / "good").mkdir(exist_ok=True)
            job = {name: env.pop(name) for name in ("SLURM_JOB_ID",) if name in env}
            place = [f"export PATH='{path}'", f"cd '{tmp_path}'"]  # a hook sets both for itself: the doubles need others
            exports = (f"export {name}={value}" for name, value in env.items())
            actual = [*place, f"BASELINE={tmp_path}/good KEEP={tmp_path}/keep", conf, *exports]
            (tmp_path / "node_check.conf").write_text("\n".join([*actual, ""]))
            own = {"SLURMD_NODENAME": "node1", **job}
            line = ["timeout", "30", str(tmp_path / "node_check.sh"), *more]
            return subprocess.run(line, cwd=tmp_path, env=own, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)

        return call

    def test_checks_within_one_second_have_folders_of_their_own(self, check: Callable[..., Finished], tmp_path: Path) -> None:
        stamps = tmp_path / "stamps"
        doubles(tmp_path, date=f"echo >>{stamps}; echo 20261122T05180$(($(wc -l <{stamps}) / 4))Z")
        actual = [check(SUSPECTED="1").stderr for _ in range(2)]
        assert ["suspicious check 1 of 3" in actual[0], "suspicious check 2 of 3" in actual[1]] == [True, True], actual
        assert sorted(each.name for each in (tmp_path / "keep").glob("*Z")) == ["20261122T051800Z", "20261122T051801Z"]

    @pytest.mark.parametrize(("env", "says"), [
        ({"conf": "COLLBENCH=/nowhere/collbench"}, "no verdict: /nowhere/collbench not found: set COLLBENCH in "),
        ({"conf": "BASELINE=/nowhere"}, "no verdict: /nowhere: "), ({"conf": "KEEP=/proc/nowhere"}, "no verdict: /proc/nowhere: "),
        ({"RUN": "4", "NO_RUN": "1"}, "no verdict: the measurement "), ({"RUN": "124"}, "no verdict: the measurement "),
        ({"VERDICT": "0", "NO_VERDICT": "1"}, "no verdict: cannot judge"),
        ({"VERDICT": "1", "NO_VERDICT": "1"}, "no verdict: cannot judge"),  # 1 of a Python that broke
        ({"SHOWN": "3"}, "no verdict: see "), ({"state": "ALLOCATED"}, "no verdict: a job runs on this node (ALLOCATED)"),
        ({"state": "MIXED+DRAIN"}, "no verdict: a job runs on this node (MIXED+DRAIN)"), ({"state": ""}, "no verdict: cannot get"),
        ({"SUSPECTED": "1"}, "suspicious check 1 of 3"),
    ])  # fmt: skip
    def test_a_failure_of_the_check_does_not_drain(self, env, says, check, tmp_path):
        done = check(**env)
        assert done.returncode == 0 and f"node_check.sh: node1: {says}" in done.stderr and done.stdout == "", said(done)
        assert not (tmp_path / "asked").exists() or "State=DRAIN" not in (tmp_path / "asked").read_text()

    def test_a_healthy_node_and_the_node_of_a_prologs_job_print_nothing(self, check: Callable[..., Finished]) -> None:
        done = check()
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert check(state="ALLOCATED", SLURM_JOB_ID="7").stderr == ""

    @pytest.mark.parametrize("code", ["0", "4"])
    def test_wrong_data_drain_at_once(self, code: str, check: Callable[..., Finished], tmp_path: Path) -> None:
        assert check(VERDICT="1", RUN=code).returncode == 1
        assert "update NodeName=node1 State=DRAIN Reason=[collbench] CB6202 wrong data in allreduce\n" in (tmp_path / "asked").read_text()

    def test_an_existing_drain_reason_is_kept(self, check: Callable[..., Finished], tmp_path: Path) -> None:
        done = check(VERDICT="1", state="IDLE+DRAIN")
        assert done.returncode == 1 and "already drained" in done.stderr
        assert "update" not in (tmp_path / "asked").read_text()

    def test_no_drain_and_an_own_baseline_are_the_callers_choice(self, check: Callable[..., Finished], tmp_path: Path) -> None:
        own = tmp_path / "own" / "node1"
        own.mkdir(parents=True)
        assert check(conf=f"BASELINE={tmp_path}/own JUDGING=(--min-percent ring:60@1M-)").returncode == 0
        assert (
            f"gate --baseline {own} " in (tmp_path / "calls").read_text()
            and "--min-percent ring:60@1M-" in (tmp_path / "calls").read_text()
        )
        done = check("--no-drain", VERDICT="1")
        assert (done.returncode, done.stdout) == (1, "[collbench] CB6202 wrong data in allreduce\n")
        assert "update" not in (tmp_path / "asked").read_text()


@pytest.mark.parametrize(("lines", "died"), [
    ("echo '[collbench] slower'; exit 1", "died 1 check_collbench:  [collbench] slower\n"), ("exit 1", ""), ("echo x; exit 0", ""),
    ("exit 127", ""),
])  # fmt: skip
def test_nhc_fails_only_with_a_confirmed_reason(lines: str, died: str, tmp_path: Path) -> None:
    doubles(tmp_path, check=f"[[ $1 == --no-drain ]] || exit 5\n{lines}")
    nhc = f'die() {{ echo "died $*"; }}; source {SLURM}/collbench.nhc; check_collbench {tmp_path}/commands/check; echo "code $?"'
    done = subprocess.run(["bash", "-c", nhc], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"{died}code {int(bool(died))}\n", "")
