"""What install.sh and wheelhouse.sh refuse: one sentence each, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.install.site import INSTALL, ROOT

# Replaces a python3 that is too old, or lacks ensurepip; everything else is that of the real one.
_PYTHON = """\
#!/bin/sh
case "$*" in
*version_info*) exec "{python}" -c "import sys; sys.version_info = {version}; $2" ;;
*"import ensurepip"*) exit {ensurepip} ;;
-V) echo 'Python {version}' ;;
*) exec "{python}" "$@" ;;
esac
"""


def refused(*words: str, program: Path = INSTALL, env: dict[str, str] | None = None) -> str:
    """The one sentence of a script that ends with 2 and prints nothing."""
    line = ["timeout", "30", str(program), *words]
    done = subprocess.run(line, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.startswith("collbench: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr.removeprefix("collbench: ").strip()


def stand_in(folder: Path, version: str = "(3, 11)", ensurepip: int = 0) -> str:
    file = folder / "python3"
    file.write_text(_PYTHON.format(python=sys.executable, version=version, ensurepip=ensurepip))
    file.chmod(0o755)
    return str(file)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "where to is not said: install.sh PREFIX"),
        (["apps"], "PREFIX 'apps' is no whole path"),
        (["/apps/a b"], "PREFIX '/apps/a b' has letters that modulefiles cannot quote alike"),
        (['/apps/"$HOME"'], "PREFIX '/apps/\"$HOME\"' has letters"),
        (["/apps/a", "/apps/b"], "'/apps/b' is one word too many"),
        (["/apps/a", "--pyton", "x"], "there is no option --pyton"),
        (["/apps/a", "--python"], "--python wants a word behind it"),
        (["/apps/a", "--extras", "mpi,mpich"], "--extras mpich: a site install takes mpi, report, cuda12 or cuda13"),
        (["/apps/a", "--extras", "torch"], "--extras torch: a site install takes"),
        (["/apps/a", "--module", 'a"); os.exit('], "--module a\"); os.exit(: a module's name has"),
        (["/apps/a", "--python", "/nowhere/python3"], "/nowhere/python3 is not there: load the site's Python module"),
    ],
)
def test_words_that_make_no_install(words: list[str], sentence: str) -> None:
    assert sentence in refused(*words)
    assert not Path("/apps/a").exists()


def test_a_python_that_is_too_old(tmp_path: Path) -> None:
    said = refused(str(tmp_path / "prefix"), "--python", stand_in(tmp_path, "(3, 9)"))
    assert "is Python (3, 9), and collbench needs 3.11 or newer: load a newer Python, or say --python" in said
    assert not (tmp_path / "prefix").exists()


def test_a_python_that_cannot_make_environments(tmp_path: Path) -> None:
    said = refused(str(tmp_path / "prefix"), "--python", stand_in(tmp_path, ensurepip=1))
    assert said.endswith("cannot make environments (no ensurepip): install the system's python3-venv, or say --python with another one")


@pytest.mark.parametrize("script", ["install.sh", "wheelhouse.sh"])
def test_a_place_that_cannot_be_written(script: str) -> None:
    said = refused("/proc/collbench", program=ROOT / "install" / script, env={"PYTHON": sys.executable})
    assert said.startswith("/proc/collbench cannot be written: choose a")


def test_a_wheelhouse_is_made_in_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "older.whl").touch()
    program = ROOT / "install/wheelhouse.sh"
    assert "is not empty, and what lies there could be installed instead" in refused(str(tmp_path), program=program)
    assert refused(program=program).startswith("where to is not said: wheelhouse.sh DIR [EXTRAS]")
    assert [file.name for file in tmp_path.iterdir()] == ["older.whl"]


@pytest.mark.parametrize("script", ["install.sh", "wheelhouse.sh", "collbench", "broadcast.sbatch"])
def test_the_scripts_are_sound(script: str) -> None:
    program = Path(sys.prefix) / "bin/shellcheck"
    done = subprocess.run([program, ROOT / "install" / script], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "")
