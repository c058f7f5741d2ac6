"""Attacks 95 to 99: what another user prepares in folders that Slurm's scripts use."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import ROOT, Finished
from tests.slurm.hooks import called, with_doubles
from tests.slurm.made_up import doubles
from tests.slurm.test_node_check import COLLBENCH

pytestmark = pytest.mark.contract

STRANGER = 12345
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")

# Doubles: one node, this machine. ATTACK runs as another user between the steps, at the best moment for the attack.
SRUN = """\
while [[ $1 == --* ]]; do shift; done
setpriv --reuid 12345 --regid 12345 --clear-groups bash -c "$ATTACK" >/dev/null 2>&1
exec "$@"
"""
SBCAST = 'while [[ $1 == --* ]]; do shift; done\n[[ ! -e $2 ]] || exit 1\nexec cp "$1" "$2"\n'


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    folder = tmp_path / "prefix"
    for name in ("bin", "venv"):
        (folder / name).mkdir(parents=True)
    program = folder / "bin/collbench"
    program.write_text('#!/bin/sh\necho "genuine $0 $*"\n')
    program.chmod(0o755)
    return folder


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder as /tmp is: all users may write, and none may remove what belongs to another."""
    folder = Path("/tmp", f"collbench-tests-{os.getpid()}")
    folder.mkdir(mode=0o1777)
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def broadcast(folder: Path, prefix: Path, tmp: Path, attack: str) -> Finished:
    path = doubles(folder, srun=SRUN, sbcast=SBCAST)
    env = {"PATH": path, "TMPDIR": str(tmp), "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "ATTACK": attack}
    line = ["bash", str(ROOT / "deploy/install/broadcast.sbatch"), str(prefix), "allreduce"]
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=30, check=False)


HIJACK = "mkdir -p X/bin; chmod 777 X X/bin; printf '#!/bin/sh\\necho HIJACKED\\n' >X/bin/collbench; chmod 777 X/bin/collbench"
SWAP = f"for each in {{tmp}}/collbench-7*; do mv $each $each.gone; {HIJACK.replace('X', '$each')}; done"


@root_only
@pytest.mark.parametrize(("before", "during"), [
    pytest.param(HIJACK, SWAP, id="95 a foreign folder that is swapped"),
    pytest.param("ln -s {victim} X.tar; ln -s {victim} X.sent", "true", id="96 symbolic links where the archive goes"),
    pytest.param("mkdir -p X/bin; chmod 700 X", "true", id="97 a folder made in advance"),
])  # fmt: skip
def test_the_job_runs_its_own_program_in_any_folder(before: str, during: str, prefix: Path, shared: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    as_stranger = ["setpriv", "--reuid", str(STRANGER), "--regid", str(STRANGER), "--clear-groups", "bash", "-c"]
    prepared = before.replace("X", f"{shared}/collbench-7")
    subprocess.run([*as_stranger, prepared.replace("{victim}", str(victim))], check=True, timeout=20)
    done = broadcast(tmp_path, prefix, shared, during.replace("{tmp}", str(shared)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "HIJACKED" not in done.stdout
    assert done.stdout.startswith(f"genuine {shared}/collbench-7-") and done.stdout.endswith("/bin/collbench allreduce\n")
    assert victim.read_text() == "precious"
    assert [path.name for path in shared.iterdir() if path.stat(follow_symlinks=False).st_uid == 0] == []  # it cleaned up after itself


@root_only
@pytest.mark.parametrize(("mode", "owner"), [(0o777, 0), (0o755, STRANGER)])
def test_a_folder_that_others_can_change_is_not_used(mode: int, owner: int, prefix: Path, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.mkdir()
    local.chmod(mode)
    os.chown(local, owner, -1)
    done = broadcast(tmp_path, prefix, local, "true")
    assert done.returncode != 0 and "genuine" not in done.stdout
    assert f"{local}: " in done.stderr and "set TMPDIR" in done.stderr and list(local.iterdir()) == []


def check(folder: Path, *, conf: str = "", **env: str) -> Finished:
    """node_check.sh with doubles of collbench and scontrol, KEEP and BASELINE in the folder."""
    path = with_doubles(folder, collbench=COLLBENCH)
    (folder / "good").mkdir(exist_ok=True)
    (folder / "node.toml").touch()
    lines = [f"BASELINE={folder}/good KEEP={folder}/keep", conf, *(f"export {name}={value}" for name, value in env.items())]
    return called(folder, "node_check.sh", conf="\n".join(lines), path=path)


@root_only
@pytest.mark.parametrize("which", ["keep", "good", "node_check.conf", "node.toml"])
@pytest.mark.parametrize(("owner", "mode"), [(STRANGER, 0o700), (0, 0o777), (0, 0o770)])
def test_a_hook_of_root_rejects_files_that_another_user_can_change(which: str, owner: int, mode: int, tmp_path: Path) -> None:
    """Attack 99 and similar ones."""
    path = tmp_path / which
    if which in ("keep", "good"):
        path.mkdir()
    else:
        path.touch()
    os.chown(path, owner, -1)
    path.chmod(mode)
    done = check(tmp_path, VERDICT="1")
    assert done.returncode == 0 and f"{path} (owner: user {owner}, mode {mode:o})" in done.stderr, done.stderr
    assert not (tmp_path / "calls").exists() and not (tmp_path / "asked").exists()


@root_only
def test_a_folder_above_keep_that_another_user_can_change_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "open/keep").mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    assert f" {tmp_path}/open (" in check(tmp_path, conf=f"KEEP={tmp_path}/open/keep").stderr
    (tmp_path / "open").chmod(0o1777)  # as /tmp: others can add names there, not replace KEEP
    done = check(tmp_path, conf=f"KEEP={tmp_path}/open/keep")
    assert (done.returncode, done.stderr) == (0, "")


def test_foreign_lines_in_the_list_are_neither_moved_nor_counted(tmp_path: Path) -> None:
    precious = tmp_path / "etc"
    precious.mkdir()
    (precious / "shadow").write_text("precious")
    keep = tmp_path / "keep"
    keep.mkdir()
    foreign = [precious, keep / ".." / "etc", keep / "20260101T000000Z" / "..", keep / "link", keep / "20260102T000000Z"]
    (keep / "20260102T000000Z").symlink_to(precious)
    (keep / "waiting").write_text("".join(f"{line}\n" for line in [*foreign, f"{precious}/shadow"]))
    done = check(tmp_path, SUSPECTED="1")
    assert done.returncode == 0 and "suspicious check 1 of 3" in done.stderr, done.stderr
    assert (precious / "shadow").read_text() == "precious" and not (keep / "drained").exists()


def test_the_lock_is_neither_followed_nor_emptied(tmp_path: Path) -> None:
    (tmp_path / "keep").mkdir()
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "keep/.lock").symlink_to(tmp_path / "precious")
    done = check(tmp_path)
    assert done.returncode == 0 and ".lock is a symbolic link" in done.stderr
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_path_with_a_line_break_is_not_evaluated(tmp_path: Path) -> None:
    odd = tmp_path / "x\n0 a[$(touch evaluated)] y"
    odd.mkdir()
    (tmp_path / "base").symlink_to(odd)
    assert check(tmp_path, conf=f"BASELINE={tmp_path}/base").returncode == 0
    assert not (tmp_path / "evaluated").exists()
