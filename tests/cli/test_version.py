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


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return the package of a checkout with one commit and a tag."""
    if not shutil.which("git"):
        pytest.skip("no git")
    package = tmp_path / "collbench"
    package.mkdir()
    (package / "__init__.py").write_text("1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "Add a file")
    git(tmp_path, "tag", "v1.0.0")
    return package


def test_a_checkout_has_its_commit_and_whether_it_is_modified(package: Path) -> None:
    head = git(package, "rev-parse", "HEAD")
    assert version.commit(package) == head
    (package / "__init__.py").write_text("2\n")
    assert version.commit(package) == f"{head}, modified"


def test_an_install_inside_another_checkout_has_the_commit_of_its_build(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = package / "venv/lib/site-packages/collbench"
    installed.mkdir(parents=True)
    monkeypatch.setattr(version, "COMMIT", "abc")
    assert version.commit(installed) == "abc"


def test_without_git_a_checkout_has_no_commit(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert version.commit(package) == ""
