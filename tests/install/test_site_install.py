"""install.sh next to a site's torch and MPI: both are measured, neither is touched, and a user gets one command and a module."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import cannot
from tests.install.site import ROOT, VERSION, Finished, Site, at_the_site, offline

pytestmark = pytest.mark.timeout(240)  # the first of them builds the wheels and the site, too
LMOD = Path("/usr/share/lmod/lmod/init/bash")


class Installed(NamedTuple):
    """A site before and after; `module` is what its MPI's module is called."""

    site: Site
    prefix: Path
    before: set[str]
    done: Finished
    module: str


@pytest.fixture(scope="module")
def installed(tmp_path_factory, wheels):
    folder = tmp_path_factory.mktemp("site")
    site, prefix = Site(folder), folder / "apps/collbench"
    before = site.frozen()
    done = site.install(prefix, "--module", "sites-mpi/5", env=offline(wheels))
    assert done.returncode == 0, done.stderr
    return Installed(site, prefix, before, done, "sites-mpi/5")


def ask(installed, *words, program=None, env=None):
    line = ["timeout", "60", str(program or installed.prefix / "bin/collbench"), *words]
    return subprocess.run(line, cwd=installed.site.folder, env=at_the_site(env), capture_output=True, text=True, check=False)


@pytest.mark.long
def test_what_the_site_had_is_there_and_nothing_of_it_is_new(installed):
    seen = installed.site.frozen(installed.prefix / "venv/bin/python")
    assert {"torch==2.13.0+site", "mpi4py==4.1.2+site"} < installed.before
    assert installed.site.frozen() == installed.before
    assert installed.before < seen
    assert {line.partition("==")[0] for line in seen - installed.before} >= {"rich", "pyzmq", "psutil", "shtab"}


@pytest.mark.long
def test_torch_and_mpi4py_are_imported_from_the_site(installed):
    look = "import mpi4py, torch, collbench; print(mpi4py.__file__, torch.__file__, collbench.__file__)"
    done = ask(installed, "-c", look, program=installed.prefix / "venv/bin/python")
    mpi4py, torch, collbench = (Path(word) for word in done.stdout.split())
    assert mpi4py.is_relative_to(installed.site.packages) and torch.is_relative_to(installed.site.packages)
    assert collbench.is_relative_to(installed.prefix / "venv")


@pytest.mark.long
def test_the_site_s_mpi_and_gloo_are_available_and_measured(installed, tmp_path):
    listed = dict(line.split(maxsplit=1) for line in ask(installed, "backends").stdout.splitlines())
    assert re.match("available(, default)?  MPICH", listed["mpi"]) and "torch 2.13.0+site" in listed["gloo"]
    assert re.search("^mpi +available", installed.done.stdout, re.MULTILINE)
    words = ("allreduce", "--sizes", "8", "--backend", "mpi,gloo", "-n", "3", "--ranks", "2", "--out", str(tmp_path), "--format", "json")
    done = ask(installed, *words, env={"PATH": f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}"})  # where the site's mpiexec is
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["backend"]: row["wrong"] for row in rows} == {"mpi": 0, "gloo": 0}
    assert ["python_loop" in row["flags"] for row in rows if row["backend"] == "mpi"] == [not shutil.which("gcc")]


@pytest.mark.long
def test_the_packages_of_the_site_are_listed_and_no_compiler_is_missing(installed):
    (said,) = installed.done.stderr.splitlines()
    assert said.endswith(" mpi4py==4.1.2+site numpy==2.4.6 torch==2.13.0+site")


@pytest.mark.long
def test_a_torch_in_the_home_of_the_user_is_not_used(installed, tmp_path):
    own = tmp_path / f".local/lib/{installed.site.packages.parent.name}/site-packages/torch"
    own.mkdir(parents=True)
    (own / "__init__.py").write_text("raise SystemExit('the torch in the home')")
    done = ask(installed, "backends", env={"HOME": str(tmp_path)})
    assert "torch 2.13.0+site" in done.stdout, done.stderr


@pytest.mark.long
def test_the_folder_runs_after_a_copy(installed, tmp_path):
    for name in ("bin", "venv"):
        shutil.copytree(installed.prefix / name, tmp_path / name, symlinks=True)
    look = "import collbench; print(collbench.__file__)"
    assert str(tmp_path) in ask(installed, "-c", look, program=tmp_path / "venv/bin/python").stdout
    assert ask(installed, "--version", program=tmp_path / "bin/collbench").stdout == f"collbench {VERSION}\n"
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    assert f"commit       {commit}\n" in ask(installed, "--version", "-v", program=tmp_path / "bin/collbench").stdout


@pytest.mark.long
@pytest.mark.parametrize("kind", ["lua", "tcl"])
def test_the_module_adds_the_command_and_the_modules_of_the_install_but_no_python(installed, kind, tmp_path):
    if not LMOD.exists():
        cannot("no module command here: apt-get install lmod")
    shutil.copytree(installed.prefix / "modulefiles", tmp_path / "modulefiles")
    if kind == "tcl":
        (tmp_path / f"modulefiles/collbench/{VERSION}.lua").unlink()
    mpi = tmp_path / "modulefiles" / installed.module
    mpi.parent.mkdir()
    mpi.write_text("#%Module1.0\nsetenv SITES_MPI loaded\n")
    script = f"source {LMOD}; module use {tmp_path}/modulefiles; module load collbench; module -t list; " + (
        'echo "$SITES_MPI ${PATH%%:*} $(command -v python3)"; module unload collbench; echo "${PATH%%:*}"'
    )
    line = ["timeout", "60", "bash", "--norc", "-c", script]
    done = subprocess.run(line, env=at_the_site({"PATH": "/usr/bin:/bin"}), capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        f"loaded {installed.prefix}/bin {shutil.which('python3', path='/usr/bin:/bin') or ''}".rstrip(),
        "/usr/bin",
    ], done
    assert {f"collbench/{VERSION}", installed.module} <= set(done.stderr.split())


@pytest.mark.long
def test_the_completion_that_is_installed_completes(installed):
    file = installed.prefix / "share/bash-completion/completions/collbench"
    press = f"source {file}; COMP_WORDS=(collbench allr); COMP_CWORD=1; _collbench_or_inner; echo ${{COMPREPLY[*]}}"
    assert subprocess.run(["bash", "--norc", "-c", press], capture_output=True, text=True, check=True).stdout == "allreduce\n"
    assert (installed.prefix / "share/zsh/site-functions/_collbench").read_text().startswith("#compdef collbench\n")
    assert "complete -c collbench " in (installed.prefix / "share/fish/vendor_completions.d/collbench.fish").read_text()
    assert (installed.prefix / "share/man/man1/collbench.1").read_text().startswith(".TH COLLBENCH 1 ")


@pytest.mark.long
def test_a_folder_that_is_not_empty_is_rejected(installed):
    done = installed.site.install(installed.prefix)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{installed.prefix} is not empty" in done.stderr and done.stderr.count("\n") == 1
    assert ask(installed, "--version").returncode == 0


@pytest.mark.long
def test_an_mpi4py_that_is_too_old_is_rejected_and_not_replaced(tmp_path, wheels):
    site, prefix = Site(tmp_path / "site", ("mpi4py",)[:1], marked=()), tmp_path / "prefix"
    site.is_of_version("mpi4py", "3.1.6")
    done = site.install(prefix, env=offline(wheels))
    assert done.returncode == 2 and not prefix.exists()
    assert "(mpi4py==3.1.6)" in done.stderr.splitlines()[-1]
    assert site.frozen() == {"mpi4py==3.1.6"}


@pytest.mark.long
def test_plain_pip_would_have_replaced_it(tmp_path, wheels):
    """What install.sh is for: with pip alone the same site gets an mpi4py of the index in front of its own."""
    site = Site(tmp_path / "site", ("mpi4py",), marked=())
    site.is_of_version("mpi4py", "3.1.6")
    subprocess.run([site.python, "-m", "ensurepip"], check=True, timeout=60, capture_output=True)
    shutil.copytree(
        ROOT, tmp_path / "source", ignore=lambda folder, names: set(names) - _SOURCE if Path(folder) == ROOT else {"__pycache__"}
    )
    line = [site.python, "-m", "pip", "install", "--dry-run", f"{tmp_path}/source[mpi]"]
    done = subprocess.run(line, env=at_the_site(offline(wheels)), capture_output=True, text=True, timeout=110, check=False)
    assert " mpi4py-4.1.2 " in done.stdout.splitlines()[-1], done.stderr


_SOURCE = {"pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "collbench", "cuda_kernels"}
