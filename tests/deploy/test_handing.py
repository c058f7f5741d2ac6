"""Where a file goes: onto the disk, never over another one; or to the command that takes it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from collbench.deploy import job as handing
from collbench.deploy.job import LauncherKind
from collbench.errors import UsageError

TAKEN = LauncherKind("some", "a kind", ".x", (), lambda job: "", submit=("take", "-"), start="take FILE")
THEN = "write the file with --write, then run: take FILE"
RUN_BY_HAND = LauncherKind("other", "a kind", ".x", (), lambda job: "", start="play FILE")


def command(folder: Path, lines: str, first: str = "#!/bin/sh") -> dict[str, str]:
    (folder / "take").write_text(f"{first}\n{lines}\n")
    (folder / "take").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "OWN": "kept"}


def refusal(kind: LauncherKind, env: dict[str, str], text: str = "job\n") -> str:
    with pytest.raises(UsageError) as refused:
        handing.submit(kind, text, env)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(("text", "mode"), [("#!/bin/bash\n", 0o755), ("a: 計算\n", 0o644)])
def test_a_script_may_be_run_and_other_files_may_not(text: str, mode: int, tmp_path: Path) -> None:
    handing.write(tmp_path / "file", text)
    assert (tmp_path / "file").read_text(encoding="utf-8") == text
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


def test_no_file_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link", ""):
        with pytest.raises(UsageError, match=f"^--write {tmp_path / name}: the file exists: choose another name$"):
            handing.write(tmp_path / name, "new")
    assert (tmp_path / "file").read_text() == "mine" and not (tmp_path / "nowhere").exists()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be written \(No such file or directory\): choose another folder$"):
        handing.write(tmp_path / "a/b", "new")


def test_the_command_reads_the_file_and_its_answer_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    env = command(tmp_path, 'cat >"$0.got"; echo "job 7 $1 $OWN"; echo "warning: late" >&2')
    assert handing.submit(TAKEN, "text 計算\n", env) == "job 7 - kept"
    assert (tmp_path / "take.got").read_text(encoding="utf-8") == "text 計算\n"
    assert capfd.readouterr().err == "warning: late\n"


def test_a_refusal_is_told_in_the_commands_own_words(tmp_path: Path) -> None:
    assert refusal(TAKEN, command(tmp_path, "printf 'error: no\\n partition\\n' >&2; exit 1")) == "take failed: error: no partition"
    assert refusal(TAKEN, command(tmp_path, "echo said; exit 3")) == "take failed: said"
    assert refusal(TAKEN, command(tmp_path, "exit 3")) == "take failed: exit code 3"
    assert refusal(TAKEN, command(tmp_path, "printf '\\377' >&2; exit 1")) == "take failed: \ufffd"
    assert refusal(TAKEN, command(tmp_path, "exit 1"), "x" * 1_000_000) == "take failed: exit code 1"  # it reads nothing


def test_no_such_command(tmp_path: Path) -> None:
    assert refusal(TAKEN, {"PATH": str(tmp_path)}) == "--submit: take not found: " + THEN
    assert refusal(TAKEN, {}) == "--submit: take not found: " + THEN
    assert refusal(RUN_BY_HAND, {}) == "--submit is not supported by emit other: write the file with --write, then run: play FILE"
    broken = command(tmp_path, "", "#!/nowhere")
    assert refusal(TAKEN, broken) == f"{tmp_path}/take cannot be started (No such file or directory): {THEN}"


def test_a_command_that_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handing, "_TIMEOUT_S", 0.2)
    assert refusal(TAKEN, command(tmp_path, "exec sleep 5")) == "take did not end within 0.2 s: check whether the job was submitted"
