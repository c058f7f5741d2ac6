"""collbench backends: each backend with its version, or the reason why it is not available and how to install it."""

import json
import os
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from collbench.backends.registry import backend_names
from collbench.plugin import plugins
from tests.cli.command import ROOT, one_sentence, run

pytestmark = pytest.mark.contract

MADE_UP = ["simulated", "slowed"]  # listed apart, below the others
OWN = backend_names()


@pytest.fixture
def without(tmp_path: Path) -> dict[str, str]:
    """Variables under which neither torch nor mpi4py can be imported, as if they were not installed."""
    hiding = tmp_path / "hiding"
    hiding.mkdir()
    (hiding / "sitecustomize.py").write_text("import os, sys\nfor name in os.environ['HIDDEN'].split(): sys.modules[name] = None\n")
    return {"PYTHONPATH": os.pathsep.join((str(hiding), str(ROOT))), "HIDDEN": "torch mpi4py"}


def test_available_backends_have_their_version(tmp_path: Path) -> None:
    if find_spec("mpi4py") is None or find_spec("torch") is None:
        pytest.skip("mpi4py or torch is not installed")
    done = run(tmp_path, "backends")
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert (done.returncode, done.stderr) == (0, "")
    assert [name for name in lines if name in OWN] == [*(name for name in OWN if name not in MADE_UP), *MADE_UP]
    assert "available" in lines["mpi"] and "MPI" in lines["mpi"]
    assert "available" in lines["gloo"] and version("torch") in lines["gloo"]


def test_missing_backends_have_the_command_that_installs_them(tmp_path: Path, without: dict[str, str]) -> None:
    done = run(tmp_path, "backends", env=without)
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert (done.returncode, done.stderr) == (0, "")
    assert "n/a" in lines["mpi"] and "pip install 'collbench[mpich]'" in lines["mpi"]
    assert "n/a" in lines["gloo"] and "'collbench[torch]'" in lines["gloo"]
    assert "available" in lines["simulated"]


def test_json(tmp_path: Path, without: dict[str, str]) -> None:
    done = run(tmp_path, "backends", "--format", "json", env=without)
    found = {answer["backend"]: answer for answer in map(json.loads, done.stdout.splitlines())}
    assert list(found) == OWN
    for available, names in ((False, ("mpi", "gloo", "torch-nccl")), (True, ("simulated", "socket", "slowed"))):
        assert {found[name]["available"] for name in names} == {available}
    assert "mpi4py" in found["mpi"]["why"] and "collbench[mpich]" in found["mpi"]["remedy"]
    assert [name for name in OWN if found[name]["made_up"]] == MADE_UP
    assert {found[name]["default"] for name in MADE_UP} == {False}
    assert "libraries" not in plugins() or found["zmq"]["available"]  # without MPI and torch
    assert (found["simulated"]["devices"], found["nccl"]["devices"], found["torch-nccl"]["devices"]) == (["cpu"], ["cuda"], ["cuda"])


@pytest.mark.parametrize(("backend", "extra"), [("mpi", "collbench[mpich]"), ("gloo", "collbench[torch]")])
def test_a_requested_backend_that_is_missing_is_an_error(backend: str, extra: str, tmp_path: Path, without: dict[str, str]) -> None:
    said = one_sentence(run(tmp_path, "allreduce", "--backend", backend, "--sizes", "8", env=without))
    assert said.startswith(f"backend {backend} ") and extra in said
    assert not (tmp_path / "runs").exists()


def test_an_mpi4py_without_its_library_is_not_available(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    done = run(tmp_path, "backends", env={"MPI4PY_LIBMPI": "/nowhere/libmpi.so"})
    assert done.returncode == 0 and "mpi         n/a" in done.stdout
    assert "MPI4PY_LIBMPI=/nowhere/libmpi.so" in done.stdout


@pytest.mark.system
def test_without_a_backend_the_error_has_all_remedies(tmp_path: Path, without: dict[str, str]) -> None:
    said = one_sentence(run(tmp_path, "allreduce", "--sizes", "8", env=without))
    assert "collbench[mpich]" in said and "collbench[torch]" in said


@pytest.mark.system
def test_a_missing_default_backend_is_skipped_with_a_note(tmp_path: Path, without: dict[str, str]) -> None:
    pytest.importorskip("mpi4py")
    done = run(tmp_path, "allreduce", "--sizes", "8", "--format", "json", env={**without, "HIDDEN": "torch"})
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["backend"] for line in done.stdout.splitlines()] == ["mpi"]
    assert "gloo is skipped: " in done.stderr
