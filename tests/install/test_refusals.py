"""What install.sh and wheelhouse.sh refuse: one sentence each, and nothing is left behind."""

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


def refused(*words, program=INSTALL, env=None):
    """The one sentence of a script that ends with 2 and prints nothing."""
    line = ["timeout", "30", str(program), *words]
    done = subprocess.run(line, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.startswith("collbench: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr.removeprefix("collbench: ").strip()


def python_double(folder, version="(3, 11)", ensurepip=0):
    file = folder / "python3"
    file.write_text(_PYTHON.format(python=sys.executable, version=version, ensurepip=ensurepip))
    file.chmod(0o755)
    return str(file)


@pytest.mark.parametrize(("words", "value"), [
    ([], "PREFIX is missing: install.sh PREFIX"),
    (["apps"], "PREFIX 'apps' is not an absolute path"),
    (["/apps/a b"], "PREFIX '/apps/a b' has characters that are unsafe in modulefiles"),
    (['/apps/"$HOME"'], "PREFIX '/apps/\"$HOME\"' has characters"),
    (["/apps/a", "/apps/b"], "unexpected argument '/apps/b'"),
    (["/apps/a", "--pyton", "x"], "unknown option --pyton"),
    (["/apps/a", "--python"], "--python needs a value"),
    (["/apps/a", "--extras", "mpi,mpich"], "--extras mpich"),
    (["/apps/a", "--extras", "torch"], "--extras torch"),
    (["/apps/a", "--module", 'a"); os.exit('], '--module a"); os.exit(: '),
    (["/apps/a", "--python", "/nowhere/python3"], "/nowhere/python3 "),
])  # fmt: skip
def test_invalid_arguments_are_rejected(words, value):
    assert value in refused(*words)
    assert not Path("/apps/a").exists()


@pytest.mark.parametrize(("double", "words"), [
    ({"version": "(3, 9)"}, ["(3, 9)", "3.11"]), ({"ensurepip": 1}, ["ensurepip", "python3-venv"]),
], ids=["too old", "no environments"])  # fmt: skip
def test_a_python_that_is_too_old_or_cannot_make_environments(double, words, tmp_path):
    said = refused(str(tmp_path / "prefix"), "--python", python_double(tmp_path, **double))
    assert all(word in said for word in words)
    assert not (tmp_path / "prefix").exists()


@pytest.mark.parametrize("script", ["install.sh", "wheelhouse.sh"])
def test_a_folder_that_cannot_be_written(script):
    said = refused("/proc/collbench", program=ROOT / "deploy/install" / script, env={"PYTHON": sys.executable})
    assert said.startswith("/proc/collbench ")


def test_a_wheelhouse_is_made_in_an_empty_folder(tmp_path):
    (tmp_path / "older.whl").touch()
    program = ROOT / "deploy/install/wheelhouse.sh"
    assert str(tmp_path) in refused(str(tmp_path), program=program)
    assert "wheelhouse.sh DIR [EXTRAS]" in refused(program=program)
    assert [file.name for file in tmp_path.iterdir()] == ["older.whl"]


@pytest.mark.parametrize("script", ["install.sh", "wheelhouse.sh", "collbench", "broadcast.sbatch"])
def test_the_scripts_are_sound(script):
    program = Path(sys.prefix) / "bin/shellcheck"
    done = subprocess.run([program, ROOT / "deploy/install" / script], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "")
