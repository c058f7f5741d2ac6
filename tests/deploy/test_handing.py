"""Output of an emitted file: to the disk, without replacing a file, or to the command that submits it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from collbench.deploy import job as handing
from collbench.deploy.job import LauncherKind
from collbench.errors import UsageError

TAKEN = LauncherKind("some", "a kind", ".x", (), lambda job: "", submit=("take", "-"), start="take FILE")
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
def test_only_a_script_is_executable(text: str, mode: int, tmp_path: Path) -> None:
    handing.write(tmp_path / "file", text)
    assert (tmp_path / "file").read_text(encoding="utf-8") == text
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


def test_no_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link", ""):
        with pytest.raises(UsageError, match=f"^--write {tmp_path / name}: "):
            handing.write(tmp_path / name, "new")
    assert (tmp_path / "file").read_text() == "mine" and not (tmp_path / "nowhere").exists()


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=os.strerror(errno.ENOENT)):
        handing.write(tmp_path / "a/b", "new")


def test_the_command_reads_the_file_and_its_output_is_returned(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    env = command(tmp_path, 'cat >"$0.got"; echo "job 7 $1 $OWN"; echo "warning: late" >&2')
    assert handing.submit(TAKEN, "text 計算\n", env) == "job 7 - kept"
    assert (tmp_path / "take.got").read_text(encoding="utf-8") == "text 計算\n"
    assert capfd.readouterr().err == "warning: late\n"


def test_the_error_has_the_output_of_the_command(tmp_path: Path) -> None:
    assert refusal(TAKEN, command(tmp_path, "printf 'error: no\\n partition\\n' >&2; exit 1")).endswith(": error: no partition")
    assert refusal(TAKEN, command(tmp_path, "echo full; exit 3")).endswith(": full")
    assert refusal(TAKEN, command(tmp_path, "exit 3")).endswith(" 3")
    assert refusal(TAKEN, command(tmp_path, "printf '\\377' >&2; exit 1")).endswith(": \ufffd")
    assert refusal(TAKEN, command(tmp_path, "exit 1"), "x" * 1_000_000).endswith(" 1")  # it does not read its input


def test_no_such_command(tmp_path: Path) -> None:
    for env in ({"PATH": str(tmp_path)}, {}):
        assert "--submit" in refusal(TAKEN, env) and refusal(TAKEN, env).endswith("take FILE")
    assert "--submit" in refusal(RUN_BY_HAND, {}) and refusal(RUN_BY_HAND, {}).endswith("play FILE")
    broken = refusal(TAKEN, command(tmp_path, "", "#!/nowhere"))
    assert broken.startswith(f"{tmp_path}/take ") and broken.endswith("take FILE")


def test_a_command_that_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handing, "_TIMEOUT_S", 0.2)
    assert refusal(TAKEN, command(tmp_path, "exec sleep 5")).startswith("take did not end within 0.2 s")
