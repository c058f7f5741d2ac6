"""Attacks 74, 93, 94: Python modules in the current directory. Every command starts there; none of them may run."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from collbench.cli.main import all_parsers
from collbench.plugin import plugins
from tests.cli.command import BIN, ROOT, Finished, environment
from tests.conftest import PLUGIN_OF, needs_command
from tests.slurm.hooks import copies
from tests.slurm.made_up import SLURM, doubles
from tests.stored import stored_reports
from tests.testbeds import SlurmBed
from tools.benchmarks import trace_files

pytestmark = pytest.mark.system

# What collbench, its libraries and Python itself import; each writes its name into a file next to it when it runs.
NAMES = (
    *("collbench", "numpy", "zmq", "psutil", "rich", "hostlist", "ml_dtypes", "defusedxml", "zstandard", "pynvml", "jsonschema", "jinja2"),
    *("shtab", "sqlalchemy", "torch", "mpi4py", "mpich", "jax", "tensorflow", "horovod", "cupy", "prometheus_client", "junitparser"),
    *("secrets", "queue", "json", "socket", "subprocess", "threading", "logging", "random", "hashlib", "hmac", "ssl", "tomllib", "typing"),
    *("dataclasses", "ctypes", "signal", "tempfile", "shutil", "inspect", "multiprocessing", "ensurepip", "venv", "pip", "setuptools"),
)
HOSTILE = 'import os\nwith open({marks!r}, "a") as marks:\n    marks.write(f"{{__name__}} ran as user {{os.geteuid()}}\\n")\n'
FIRST = str(ROOT / "reports/first-run")
SMALL = ("--sizes", "64", "-n", "3", "-w", "1", "--max-time", "1")
COLLECTIVES = (
    *("accumulate", "allgather", "allreduce", "alltoall", "alltoallv", "barrier", "broadcast", "gather", "get", "hypercube", "init"),
    *("allgatherv", "exscan", "gatherv", "reducescatterv", "scan", "scatterv"),
    *("multipair", "neighbor-allgather", "neighbor-alltoall", "p2p", "put", "reduce", "reducescatter", "scatter", "sendrecv"),
)
COMMANDS: dict[str, tuple[str, ...]] = {
    **{
        name: (name, *(("--backend", "socket") if name == "p2p" else ()), *(SMALL if name not in ("barrier", "init") else SMALL[2:]))
        for name in COLLECTIVES
    },
    "run": ("run", "small.toml"),
    "pairs": ("pairs", "--backend", "socket", "--max-time", "0.05", "-n", "3"),
    "hunt": ("hunt", "--backend", "socket", "--max-time", "0.02"),
    "workload": ("workload", "data-parallel", "--max-time", "1"),
    "backends": ("backends",),
    "plugins": ("plugins",),
    "probe": ("probe",),
    "peak": ("peak", "allreduce", "--nodes", "2", "--nic", "1x100Gb/s"),
    "doctor": ("doctor",),
    "explain": ("explain", "CB2101"),
    "emit": ("emit", "slurm", "--nodes", "2", "--", "allreduce"),
    "import": ("import", "theirs.txt", "--out", "imported"),
    "check": ("check", "--backend", "gloo", "--total-time", "1"),
    "runs": ("runs", str(Path(FIRST).parent)),
    "report": ("report", FIRST, "--html", "page.html"),
    "plot": ("plot", FIRST),
    "compare": ("compare", str(stored_reports() / "link-1gbit/allreduce"), str(stored_reports() / "link-2gbit/allreduce")),
    "tune": ("tune", str(ROOT / "reports/first-run")),
    "certify": ("certify", "--from", FIRST),
    "predict": ("predict", str(stored_reports() / "stacks"), "--nodes", "4"),
    "baseline": ("baseline", "add", "base", FIRST),
    "history": ("history", "base"),
    "gate": ("gate", "--self-test", "--trials", "2"),
    "kernels": ("kernels",),
    "store": ("store", "dashboards", "prometheus", "boards"),
    "completion": ("completion", "bash"),
    "replay": ("replay", "job", "--backend", "gloo", "--max-time", "0.1"),
    "load": ("load", "--dry-run", "--ranks", "2"),
    "kv": ("kv", "--dry-run", "--ranks", "2"),
    "autopsy": ("autopsy", str(ROOT / "reports/hang-dumps")),
    "trace": ("trace", "--", sys.executable, "-P", "-c", "pass"),
}
# Their exit code is a judgement, or they need more than this machine has.
JUDGING = frozenset({
    "compare", "predict", "doctor", "import", "kernels", "history", "hunt", "gate", "autopsy", "trace", "load", "certify", "check", "tune",
})  # fmt: skip
ALWAYS = ("p2p", "doctor")  # the ranks; the helpers: the other commands start the same processes


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Make an attacker's folder with modules under imported names, and two files that commands read."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(HOSTILE.format(marks=str(tmp_path / "marks")))
    (folder / "job").mkdir()
    trace_files.nccl_log(folder / "job", 5, 2)
    for name in ("foreign-1.0.dist-info",):  # a plug-in, found by its entry point
        (folder / name).mkdir()
        (folder / name / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1.0\n")
        (folder / name / "entry_points.txt").write_text("[collbench.backends]\nforeign = foreign:Backend\n")
    (folder / "foreign.py").write_text(HOSTILE.format(marks=str(tmp_path / "marks")))
    (folder / "small.toml").write_text('schema = 1\n[[sweeps]]\noperations = ["p2p"]\nbackends = ["socket"]\nsizes = ["64"]\n')
    (folder / "theirs.txt").write_text("no tool printed this\n")
    return folder


def marks(folder: Path) -> str:
    found = folder.parent / "marks"
    return found.read_text() if found.exists() else ""


def start(folder: Path, *line: str, env: Mapping[str, str] | None = None) -> Finished:
    """Run a command in the folder as a user does, with the installed package and without PYTHONPATH."""
    own = {name: value for name, value in environment(env).items() if name != "PYTHONPATH"}
    words = ["timeout", "--kill-after=5", "100", *line]
    return subprocess.run(words, cwd=folder, env=own, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def _sample(name: str) -> object:
    return name if name in ALWAYS else pytest.param(name, marks=[pytest.mark.long, *needs_command(" ".join(COMMANDS[name]))])


def test_the_table_has_every_command() -> None:
    absent = {command for command, plugin in PLUGIN_OF.items() if plugin not in plugins()}
    assert set(COMMANDS) - absent == set(all_parsers()[1])


def test_the_modules_would_run_if_python_searched_the_folder(hostile: Path) -> None:
    start(hostile, sys.executable, "-c", "import secrets, numpy")
    assert marks(hostile).splitlines() == [f"{name} ran as user {os.geteuid()}" for name in ("secrets", "numpy")]


@pytest.mark.often("run")
@pytest.mark.parametrize("name", [*map(_sample, COMMANDS)])
def test_no_module_of_the_current_folder_runs(name: str, hostile: Path) -> None:
    done = start(hostile, str(BIN / "collbench"), *COMMANDS[name])
    assert marks(hostile) == "", done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode in ((0, 1, 2, 3) if name in JUDGING else (0,)), done.stderr


@pytest.mark.parametrize("line", [
    pytest.param([str(BIN / "torchrun"), "--nproc-per-node", "2", "--no-python"], marks=pytest.mark.long, id="torchrun"),
    pytest.param([str(BIN / "mpiexec"), "-n", "2"], marks=pytest.mark.long, id="mpiexec"),
])  # fmt: skip
def test_none_runs_under_a_launcher(line: list[str], hostile: Path) -> None:
    done = start(hostile, *line, str(BIN / "collbench"), "allreduce", *SMALL)
    assert (done.returncode, marks(hostile)) == (0, ""), done.stderr


@pytest.mark.slurm
@pytest.mark.long
@pytest.mark.parametrize("more", [(), ("--ranks-per-node", "2")], ids=["a task for each rank", "a task for each node"])
def test_none_runs_under_srun(more: tuple[str, ...], hostile: Path, slurm_hosts: SlurmBed) -> None:
    env = {"COLLBENCH_OUT": str(hostile.parent / "run"), "HOME": str(hostile.parent)}
    line = ["bash", "-c", f'cd {hostile} && exec "$@"', "sh", str(BIN / "collbench"), "p2p", "--backend", "socket", *SMALL, *more]
    done = slurm_hosts.srun(["-N2"], line, timeout=60, env=env)
    assert (done.returncode, marks(hostile)) == (0, ""), done.stderr


@pytest.mark.long
def test_none_runs_in_a_hook_that_starts_there(hostile: Path, tmp_path: Path) -> None:
    hooks = copies(tmp_path / "hooks", "node_check.sh")
    shutil.copy(SLURM / "node.toml", hooks)
    (hooks / "small.toml").write_text(
        (hostile / "small.toml").read_text().replace("socket", "simulated").replace("p2p", "allreduce") + "\n[run]\nranks = 2\n"
    )
    (hooks / "node_check.conf").write_text(
        f"COLLBENCH={BIN}/collbench KEEP={tmp_path}/keep BASELINE={tmp_path}/base SUITE={hooks}/small.toml\nexport COLLBENCH_ITERATIONS=3\n"
    )
    done = start(hostile, str(hooks / "node_check.sh"), "--learn")
    assert (done.returncode, marks(hostile)) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize("words", [
    pytest.param(["deploy/install/install.sh", "PREFIX", "--python", sys.executable], id="install.sh", marks=pytest.mark.long),
    pytest.param(["deploy/install/wheelhouse.sh", "PREFIX"], id="wheelhouse.sh", marks=pytest.mark.long),
])  # fmt: skip
def test_none_runs_in_an_installer_that_starts_there(words: list[str], hostile: Path, tmp_path: Path) -> None:
    nowhere = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull, "PYTHON": sys.executable}
    program, *rest = [str(tmp_path / "prefix") if word == "PREFIX" else word for word in words]
    done = start(hostile, str(ROOT / program), *rest, env=nowhere)
    assert marks(hostile) == "", done.stderr
    assert done.returncode == 2 and "pip could not" in done.stderr  # the index is missing; everything before it has run


def test_printed_commands_are_quoted(hostile: Path) -> None:
    """`doctor --launch` shows lines to type; README and the templates use torchrun only with --no-python."""
    texts = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", *(ROOT / "collbench/plugins/deploy").rglob("*.j2")]
    lines = [line for path in texts for line in path.read_text().splitlines() if "collbench" in line]
    assert not [line for line in lines if " -m collbench" in line and " -P " not in line]
    shown = start(hostile, str(BIN / "collbench"), "doctor", "--launch", "--format", "json")
    assert marks(hostile) == "" and " -m collbench" not in shown.stdout.replace(" -P -m collbench", "")
    json.loads(shown.stdout)


def test_a_program_of_the_current_folder_is_not_found_by_a_hook(tmp_path: Path) -> None:
    """Attack 98: slurmd gives a hook no PATH, or an empty one; bash then searches the current directory."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    hooks = copies(tmp_path / "hooks", "node_probe.sh", "node_check.sh", "node_epilog.sh")
    (hooks / "node_check.conf").write_text(f"KEEP={tmp_path}/keep\n")
    doubles(
        tmp_path, **{name: f"echo {name} >>{tmp_path}/marks" for name in ("collbench", "dirname", "realpath", "stat", "timeout", "env")}
    )
    for program in (tmp_path / "commands").iterdir():
        shutil.copy(program, folder)
    for env in ({}, {"PATH": ""}, {"PATH": ".:/usr/bin:/bin"}, {"PATH": f":{os.defpath}"}):
        for script in ("node_probe.sh", "node_check.sh", "node_epilog.sh"):
            job = {"SLURM_JOB_ID": "7", "SLURM_JOB_EXIT_CODE2": "0:9", "COLLBENCH": "collbench"}
            line = ["/bin/bash", f"../hooks/{script}"]
            done = subprocess.run(line, cwd=folder, env={**env, **job}, capture_output=True, text=True, timeout=30, check=False)
            assert done.returncode == 0 and not (tmp_path / "marks").exists(), (script, env, done.stderr)
