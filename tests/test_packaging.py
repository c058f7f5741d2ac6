"""What a fresh machine gets: pins, the optional native loop, and environments that are made, kept and repaired."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import LONG, sample

pytestmark = pytest.mark.system

ROOT = Path(__file__).parent.parent

# Replaces python3: records its calls, makes fake environments, installs nothing.
STAND_IN = """\
#!/bin/sh
echo "$*" >>"{log}"
case "$*" in
"-P -m venv --clear "*) mkdir -p "$5/bin" && cp "$0" "$5/bin/python" ;;
*"-m pip --version"*) ;;
*"-m pip config"*) [ ! -e "{folder}/more" ] || echo "global.find-links='/there'" ;;
*"version(\"torch\")"* | *"m.version("*) exit 0 ;;
*"-m pip install"*) exit "$(cat "{folder}/pip_exit")" ;;
*"import ensurepip"*) [ -e "{folder}/ensurepip" ] ;;
*version_info*) exec "{python}" -c "import sys; sys.version_info = {version}; $2" ;;
*) exec "{python}" "$@" ;;
esac
"""


COPIED = ("pyproject.toml", "constraints.txt", "setup.py", "collbench/__init__.py")


class Machine:
    """A copy of the project's build files, with replacements of python3 and apt-get."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        self.tree = folder / "tree"
        (self.tree / "tools").mkdir(parents=True)
        (self.tree / "collbench/native").mkdir(parents=True)
        (self.tree / "deploy").mkdir()
        for name in (
            "pyproject.toml",
            "constraints.txt",
            "setup.py",
            "collbench/__init__.py",
            "tools/environment",
            "tools/locked",
            "deploy/requirements.lock",
        ):
            shutil.copy(ROOT / name, self.tree / name)
        (folder / "ensurepip").touch()
        self.python_is((3, 11))
        self.pip_exits(0)

    def python_is(self, version: tuple[int, int]) -> None:
        python = self.folder / "bin/python3"
        python.parent.mkdir(exist_ok=True)
        python.write_text(STAND_IN.format(log=self.log, folder=self.folder, python=sys.executable, version=version))
        python.chmod(0o755)

    def pip_exits(self, code: int) -> None:
        (self.folder / "pip_exit").write_text(str(code))

    def apt(self, effect: str) -> None:
        apt = self.folder / "bin/apt-get"
        apt.write_text(f'#!/bin/sh\necho "apt-get $*" >>"{self.log}"\n{effect}\n')
        apt.chmod(0o755)

    def environment(self, *extras: str, before: tuple[str, ...] = (), path: str | None = None) -> tuple[int, str, list[str]]:
        """Run tools/environment; return its exit code, its output, and the calls of the replacements that change something."""
        self.log.unlink(missing_ok=True)
        variables = {"PATH": path or f"{self.folder}/bin:{os.environ['PATH']}", "PYTHON": str(self.folder / "bin/python3")}
        command = [*before, str(self.tree / "tools/environment"), ".venv", *extras]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
        asked = self.log.read_text().splitlines() if self.log.exists() else []
        return done.returncode, done.stderr, [line for line in asked if re.match("apt-get|-P -m venv|-P -m pip install", line)]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_every_direct_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(word for extra in project["optional-dependencies"].values() for word in extra)]
    pinned = re.findall(r"^(\S+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    missing = {re.split("[<>=;\\[ ]", word)[0] for word in wanted} - {*pinned}
    assert not missing, f"pin in constraints.txt: {missing}"


def installed(asked: list[str]) -> list[str]:
    """Return the arguments of each call of pip after those that all have."""
    return [line.partition("version-check ")[2] for line in asked]


def test_an_environment_is_made_once(machine: Machine) -> None:
    code, said, asked = machine.environment("torch", "mpich")
    assert code == 0, said
    assert asked[0] == "-P -m venv --clear .venv"
    first, *installs = installed(asked[1:])
    assert first == "--require-hashes --only-binary :all: -r .venv/build.lock"
    assert sorted(installs) == [
        "--no-deps --no-build-isolation -e .",
        "--require-hashes --no-build-isolation -r .venv/base+torch+mpich.lock",
    ]
    assert machine.environment("torch", "mpich") == (0, "", [])


def test_where_pip_has_another_source_torch_alone_is_not_checked_by_its_hash(machine: Machine) -> None:
    (machine.folder / "more").touch()
    _, _, asked = machine.environment("torch")
    installs = installed(asked[2:])
    assert sorted(installs) == [
        "--no-deps --no-build-isolation -e .",
        "--no-deps -c constraints.txt torch",
        "--require-hashes --no-build-isolation -r .venv/base+torch-cpu.lock",
    ]
    assert installs.index("--no-deps -c constraints.txt torch") < installs.index("--no-deps --no-build-isolation -e .")


def locked(*extras: str) -> dict[str, list[str]]:
    """The part of the lock for these extras: `name==version` of each package, and its hashes."""
    done = subprocess.run([ROOT / "tools/locked", *extras], capture_output=True, text=True, check=True)
    blocks = re.split(r"^(?=[a-z])", done.stdout, flags=re.MULTILINE)[1:]
    return {re.split(r"[ \\]", block)[0]: re.findall(r"--hash=sha256:[0-9a-f]{64}\b", block) for block in blocks}


LOCK = (ROOT / "deploy/requirements.lock").read_text()
PARTS = sorted({name for line in re.findall(r"^#: (.*)", LOCK, re.MULTILINE) for name in line.split()})


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_the_lock_pins_every_package_with_hashes_and_agrees_with_the_constraints(name: str) -> None:
    found = locked(name)
    assert found and all(found.values())
    pinned = {plain(line.partition("==")[0]): line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    assert not {one for one in found if one.partition("==")[0] in pinned and one != plain(pinned[one.partition("==")[0]])}


def test_the_lock_names_no_index_and_no_folder_and_each_package_belongs_to_an_extra() -> None:
    assert not re.search(r"https?:|--(extra-)?index-url|/opt/", LOCK)
    assert len(re.findall(r"^#: \S+(?: \S+)*\n[a-z]", LOCK, re.MULTILINE)) == len(re.findall(r"^[a-z]", LOCK, re.MULTILINE))


def test_an_extra_that_the_lock_lacks_is_one_sentence() -> None:
    done = subprocess.run([ROOT / "tools/locked", "base", "mpi.h"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "collbench: mpi.h is not in deploy/requirements.lock: tools/lock writes it\n"


def plain(name: str) -> str:
    """A name as the index spells it, with what follows it."""
    head, sign, version = name.partition("==")
    return re.sub(r"[-_.]+", "-", head).lower() + sign + version


def test_every_extra_has_a_part_with_all_that_it_asks_for_directly() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra, wanted in project["optional-dependencies"].items():
        names = {one.partition("==")[0] for one in locked("base", extra)}
        assert {plain(re.split(r"[<>=;\[ ]", word)[0]) for word in [*project["dependencies"], *wanted]} <= names, f"run tools/lock: {extra}"
    assert {"base", "build", "nixl", "torch-cpu", *project["optional-dependencies"]} == set(PARTS)  # nixl: for tools/nixl
    cuda = {one for one in locked("torch") if re.match("torch=|triton|cuda-|nvidia-(?!ml-py)", one)}
    assert set(locked("torch-cpu")) == set(locked("torch")) - cuda


def test_missing_packages_of_an_environment_are_added(machine: Machine) -> None:
    machine.environment("torch", "mpich")
    _, _, asked = machine.environment("torch", "mpich", "test")
    assert not asked[0].startswith("-P -m venv")
    assert "--require-hashes --no-build-isolation -r .venv/base+torch+mpich+test.lock" in installed(asked)
    assert machine.environment("mpich") == (0, "", [])


@pytest.mark.parametrize("name", ["constraints.txt", "pyproject.toml", "setup.py", "collbench/native/loop.c"])
def test_a_changed_file_installs_again(machine: Machine, name: str) -> None:
    machine.environment("mpich")
    with (machine.tree / name).open("a") as file:
        file.write("\n")
    _, _, asked = machine.environment("mpich")
    assert [line.split()[2] for line in asked] == ["pip"] * 3


def test_a_half_finished_environment_is_made_anew(machine: Machine) -> None:
    machine.pip_exits(1)
    code, said, _ = machine.environment("mpich")
    assert code == 2
    assert "make again" in said
    machine.pip_exits(0)
    code, _, asked = machine.environment("mpich")
    assert (code, len(asked)) == (0, 4)


def test_an_environment_without_its_python_is_made_again(machine: Machine) -> None:
    machine.environment("mpich")
    (machine.tree / ".venv/bin/python").unlink()
    _, _, asked = machine.environment("mpich")
    assert len(asked) == 4


def test_an_old_python_is_reported_in_one_sentence(machine: Machine) -> None:
    machine.python_is((3, 10))
    code, said, asked = machine.environment("mpich")
    assert (code, said.count("\n"), asked) == (2, 1, [])
    assert "3.11 or newer" in said


def test_root_gets_python3_venv_installed(machine: Machine) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root installs packages")
    (machine.folder / "ensurepip").unlink()
    machine.apt(f"touch {machine.folder}/ensurepip")
    code, said, asked = machine.environment("mpich")
    assert code == 0, said
    assert [line.split()[:2] for line in asked[:2]] == [["apt-get", "update"], ["apt-get", "install"]]
    assert "python3-venv" in asked[1]
    assert "python3-venv" in said


def test_other_users_get_the_command(machine: Machine) -> None:
    (machine.folder / "ensurepip").unlink()
    machine.apt("")
    id_of_a_user = machine.folder / "bin/id"
    id_of_a_user.write_text("#!/bin/sh\necho 1000\n")
    id_of_a_user.chmod(0o755)
    code, said, asked = machine.environment("mpich")
    assert (code, said.count("\n"), asked) == (2, 1, [])
    assert said.rstrip().endswith("apt-get update && apt-get install -y python3-venv")


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Return a copy of what setup.py reads."""
    (tmp_path / "collbench/native").mkdir(parents=True)
    for path in [ROOT / "setup.py", ROOT / "collbench/__init__.py", *ROOT.glob("collbench/native/*.c")]:
        shutil.copy(path, tmp_path / path.relative_to(ROOT))
    return tmp_path


def build(sources: Path, compiler: str) -> list[str]:
    """Build in place and return the names of the shared objects."""
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=sources, env={**os.environ, "CC": compiler}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return [path.name for path in (sources / "collbench/native").glob("*.so")]


def test_the_loop_is_built_under_one_name(sources: Path) -> None:
    if not shutil.which("gcc"):
        pytest.skip("no gcc: apt-get install gcc libc6-dev")
    assert build(sources, "gcc") == ["_loop.so"]


def test_without_a_compiler_there_is_no_loop_and_no_error(sources: Path) -> None:
    (sources / "collbench/native/_loop.so").write_text("an older build")
    assert build(sources, "false") == []


def test_a_wheel_and_a_source_archive_have_the_cuda_kernels_and_all_data_files(sources: Path) -> None:
    shutil.copytree(ROOT / "cuda_kernels", sources / "cuda_kernels")
    kinds = (".toml", ".json", ".c", ".typed", ".css", ".js", ".j2", ".LICENSE")
    data = [path.relative_to(ROOT) for path in ROOT.glob("collbench/**/*.*") if path.suffix in kinds]
    assert {"quick.toml", "suite.schema.json", "sockets.c", "uPlot.js", "uPlot.LICENSE"} < {path.name for path in data}
    packages = {package for place in data if (ROOT / (package := place.parent / "__init__.py")).exists()}  # some folders hold data alone
    for path in (*data, *packages):
        (sources / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, sources / path)
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    (sources / "tools").mkdir()
    shutil.copy(ROOT / "tools/man_page", sources / "tools")
    command = [sys.executable, "setup.py", "-q", "bdist_wheel", "sdist", "--formats", "zip"]
    environment = {**os.environ, "CC": "false"}
    done = subprocess.run(command, cwd=sources, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    wanted = {path.name for path in (ROOT / "cuda_kernels").iterdir()}
    for file, inside in (("*.whl", "collbench/cuda_kernels"), ("*.zip", "cuda_kernels")):
        names = [Path(name) for name in zipfile.ZipFile(next((sources / "dist").glob(file))).namelist()]
        assert {name.name for name in names if str(name.parent).endswith(inside) and name.suffix} == wanted, file
        assert [path for path in data if not any(str(name).endswith(str(path)) for name in names)] == [], file


def test_a_sample_is_reproducible_ordered_and_complete_with_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LONG, raising=False)
    drawn = sample(range(1000), 10)
    assert drawn == sorted(sample(range(1000), 10))
    assert len(drawn) == 10
    monkeypatch.setenv(LONG, "1")
    assert sample(range(1000), 10) == list(range(1000))


@pytest.mark.openmpi
def test_the_second_environment_has_open_mpi_and_borrows_torch(openmpi_python: str) -> None:
    look = "import importlib.util, collbench; from mpi4py import MPI; print(MPI.get_vendor()[0], bool(importlib.util.find_spec('torch')))"
    done = subprocess.run([openmpi_python, "-c", look], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "Open MPI True\n", done.stderr


MARKED = """import pytest

def test_quick(): pass

@pytest.mark.long
def test_seldom(): pass

@pytest.mark.long
@pytest.mark.often
def test_often(): pass

@pytest.mark.long
@pytest.mark.often("mpi")
@pytest.mark.parametrize("backend", ["mpi", "gloo"])
def test_cases(backend): pass
"""
USUAL = ["test_quick", "test_often", "test_cases[mpi]"]


@pytest.mark.long  # starts pytest
@pytest.mark.parametrize(
    ("words", "collected"), [((), USUAL), (("--long",), ["test_quick", "test_seldom", "test_often", "test_cases[mpi]", "test_cases[gloo]"])]
)
def test_long_tests_run_when_asked_for_but_for_the_cases_that_run_often(tmp_path: Path, words: Sequence[str], collected: list[str]) -> None:
    (tmp_path / "test_some.py").write_text(MARKED)
    pytest_words = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "--collect-only", "-c", str(ROOT / "pyproject.toml")]
    environment = {name: value for name, value in os.environ.items() if name != LONG}
    done = subprocess.run([*pytest_words, *words, str(tmp_path)], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert re.findall(r"::(\S+)", done.stdout) == collected
