"""The commit in `--version -v`: of a checkout as it is now, of an install as it was built."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from collbench.cli import version

pytestmark = pytest.mark.contract


def git(folder: Path, *words: str) -> str:
    line = ["git", "-c", "user.name=n", "-c", "user.email=e@localhost", *words]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


@pytest.mark.skipif(not shutil.which("git"), reason="no git")
def test_a_checkout_has_its_commit_and_an_install_inside_it_that_of_its_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "collbench"
    package.mkdir()
    (package / "__init__.py").write_text("1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "Add a file")
    git(tmp_path, "tag", "v1.0.0")
    head = git(package, "rev-parse", "HEAD")
    assert version.commit(package) == head
    (package / "__init__.py").write_text("2\n")
    assert version.commit(package) == f"{head}, modified"
    installed = package / "venv/lib/site-packages/collbench"
    installed.mkdir(parents=True)
    monkeypatch.setattr(version, "COMMIT", "abc")
    assert version.commit(installed) == "abc"
    monkeypatch.setenv("PATH", "")  # without git
    assert version.commit(package) == ""
