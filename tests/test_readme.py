"""Every command of the README runs, its outputs are those of stored runs, and its list of flags is complete."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from collbench.machine.sources import read_paths
from collbench.report.machine_picture import picture
from collbench.results.flags import FLAGS
from tests.conftest import enter
from tests.fake_gpu import environment
from tests.testbeds import Hosts, SlurmBed
from tests.testbeds.sweep import links_table, table

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent
# The commands unchanged, with short measurements: these variables of the options have lower precedence than the command line.
BRIEF = {"COLLBENCH_SIZES": "8,1K", "COLLBENCH_MAX_TIME": "0.05", "COLLBENCH_ITERATIONS": "3", "COLLBENCH_WARMUP": "1"}


VERDICT = "reports/gate-trials/link-0/verdict.json"


def _commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return list(dict.fromkeys(line for line in lines if line))


COMMANDS = _commands()
LOCAL = [c for c in COMMANDS if c.startswith(("collbench ", "mpirun ", "torchrun "))]
GPU = [c for c in LOCAL if "nccl" in c.split() or c.startswith("collbench kernels")]  # they run on the double of tests/fake_gpu
SLURM = [c for c in COMMANDS if c.startswith("srun ")]
MADE = [c for c in COMMANDS if c.startswith("make ")]
INSTALLED = [c for c in COMMANDS if c.startswith("pip ")]
CHECKED = [c for c in COMMANDS if c.startswith("scripts/gpu_check ")]  # tests/gpu_path runs them


def test_every_command_is_of_a_kind_that_is_run_here() -> None:
    assert sorted(LOCAL + SLURM + MADE + INSTALLED + CHECKED) == sorted(COMMANDS)


def _environment(folder: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("COLLBENCH_", "SLURM_", "PMI_"))}
    (folder / "reports").symlink_to(ROOT / "reports")
    return {**kept, **BRIEF, "PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


def _run(command: list[str], folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["timeout", "110", *command], cwd=folder, env=env, capture_output=True, text=True, check=False)


def _in_turn(command: str) -> object:
    """1 to 10 s each, in turn."""
    tools = [name for named in re.findall(r"--tools (\S+)", command) for name in named.split(",")]
    missing = [name for name in tools if shutil.which(name) is None]
    return pytest.param(command, marks=[pytest.mark.in_turn, pytest.mark.skipif(bool(missing), reason=f"no {' and '.join(missing)} here")])


def _may_end_with(command: str) -> tuple[int, ...]:
    """Return the allowed exit codes: this machine may have faults, the stored verdict is a regression, and a hunt confirms a rank."""
    if command.startswith("collbench hunt --backend simulated"):
        return (1,)  # one of them is slowed on purpose
    if command.startswith(("collbench pairs", "collbench hunt")):
        return (0, 3)  # on a busy machine a latency may be inconclusive
    return {
        "collbench doctor": (0, 1),
        "collbench check": (0, 1, 3),
        "collbench runs": (0, 2),
        f"collbench gate --verdict {VERDICT}": (1,),
    }.get(command, (0,))


@pytest.mark.parametrize("command", [_in_turn(command) for command in LOCAL if command not in GPU])
def test_a_local_command_runs(command: str, tmp_path: Path) -> None:
    done = subprocess.run(
        shlex.split(command), cwd=tmp_path, env=_environment(tmp_path), capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode in _may_end_with(command), done.stderr
    assert done.stdout.strip() or "--csv" in command or "--gather" in command or "--write" in command
    assert "Traceback" not in done.stderr


@pytest.mark.in_turn
@pytest.mark.parametrize("command", GPU)
def test_a_command_for_gpus_runs_on_the_double(command: str, tmp_path: Path) -> None:
    gpus = 2 if "kernels" in command else 4  # every pair is measured
    env = environment(gpus, inherit=_environment(tmp_path)) | {"COLLBENCH_RANKS": "2", "COLLBENCH_SIZE": "1M", "COLLBENCH_BUFFERS": "fixed"}
    done = _run(shlex.split(command), tmp_path, env)
    assert done.returncode == 0, done.stderr
    assert ("FAKE GPU" if "kernels" in command else "nccl") in done.stdout


@pytest.mark.slurm
@pytest.mark.parametrize("command", [_in_turn(c) for c in SLURM if "-N4" in c])
def test_a_command_on_four_nodes_names_each_of_them(command: str, tmp_path: Path, four_nodes: SlurmBed) -> None:
    options, _, ours = command.removeprefix("srun ").partition("collbench ")
    words = [sys.executable, "-m", "collbench", *shlex.split(ours), "--out", str(tmp_path / "run")]
    done = four_nodes.srun(shlex.split(options), words, timeout=100, env=_environment(tmp_path))
    assert done.returncode in (0, 3), done.stdout + done.stderr  # all are healthy: inconclusive at worst, with so few samples
    if ours.startswith("hunt "):
        assert done.stdout.startswith("hunt among 4 nodes, over socket, ")
        return
    assert all(node in done.stdout for node in four_nodes.nodes)


@pytest.fixture(scope="module")
def four_nodes() -> Iterator[SlurmBed]:
    with ExitStack() as stack:
        yield enter(stack, SlurmBed(enter(stack, Hosts(4, "1gbit"))))


@pytest.mark.slurm
@pytest.mark.parametrize("command", [_in_turn(c) for c in SLURM if "-N4" not in c])
def test_a_slurm_command_runs(command: str, tmp_path: Path, slurm_hosts: SlurmBed) -> None:
    options, _, ours = command.removeprefix("srun ").partition("collbench ")
    # 1 GiB over the bed's 1 Gbit/s takes a quarter of an hour; the size range is the only thing changed.
    words = [sys.executable, "-m", "collbench", *shlex.split(ours.replace("--sizes 1K-1G", "--sizes 1K-64K"))]
    kept = _environment(tmp_path)
    done = slurm_hosts.srun(shlex.split(options), words, timeout=100, env={**kept, "COLLBENCH_OUT": str(tmp_path / "run")})
    if "--mpi=pmi2" in command:
        assert "mpi" in done.stdout
    assert done.returncode == 0, done.stderr
    shown = {"allreduce": "allreduce", "workload": "data-parallel · resnet50 · 2 ranks · 2 nodes", "hunt": "hunt among"}
    assert next((text for word, text in shown.items() if f" {word}" in command), '"machines"') in done.stdout


@pytest.mark.parametrize("command", [_in_turn(command) for command in INSTALLED])
def test_an_install_command_resolves(command: str) -> None:
    words = shlex.split(command.replace("pip install", "pip install --dry-run", 1))
    done = _run([sys.executable, "-m", *words], ROOT, {**os.environ, "PIP_RETRIES": "10"})
    assert done.returncode == 0, done.stderr
    assert "collbench" in done.stdout


def test_make_run_measures_on_every_cpu_backend(tmp_path: Path) -> None:
    assert "make run" in MADE and "make test" in MADE
    if not (ROOT / ".venv").exists() or shutil.which("make") is None:
        pytest.skip("the tests run in another environment than make's own")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("COLLBENCH_", "MAKE", "MFLAGS"))}
    environment |= {"COLLBENCH_OUT": str(tmp_path / "run"), "COLLBENCH_ITERATIONS": "3"}
    done = _run(["make", "run", "SIZES=64"], ROOT, environment)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^allreduce over mpi .* at 64 B", done.stdout, re.MULTILINE)
    assert re.search(r"^allreduce over gloo .* at 64 B", done.stdout, re.MULTILINE)
    assert str(tmp_path / "run") in done.stderr


@pytest.mark.parametrize(("command", "output"), re.findall(r"<!-- output of: collbench (.*?) -->\n```\n(.*?)```", README, re.DOTALL))
def test_the_shown_output_is_that_of_the_command(command: str, output: str) -> None:
    words = [sys.executable, "-m", "collbench", *shlex.split(command)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode in _may_end_with(f"collbench {command}"), done.stderr
    assert output.rstrip() == done.stdout.rstrip()


def test_the_pictures_exist_and_the_node_is_drawn_from_its_files() -> None:
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+\.svg)\)", README)
    assert pictures == ["reports/terminal/first-run-100.svg", "reports/example-node.svg"]
    (machine,) = read_paths([ROOT / "reports" / "example-node"])
    assert (ROOT / "reports" / "example-node.svg").read_text(encoding="utf-8").strip() == picture(machine).strip()


def test_every_flag_is_explained_and_no_other() -> None:
    (table,) = re.findall(r"^\| flag in stored rows \(name in tables\) \|.*?\n\n", README, re.MULTILINE | re.DOTALL)
    cases = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    shown = re.findall(r"`(\w+)`(?: \((.*?)\))?", " ".join(cases))
    assert sorted((code, name or code) for code, name in shown) == sorted((code, flag.name) for code, flag in FLAGS.items())


def test_the_gallery_has_the_figures_of_its_runs() -> None:
    text = (ROOT / "reports" / "README.md").read_text(encoding="utf-8")
    assert "\n".join(table(ROOT / "reports")) in text
    shares = [float(share) for share in re.findall(r"--mpi=\w+ \| gloo \| [\d.]+ MB/s \| ([\d.]+) \|", text)]
    assert len(shares) == 3 and all(0.92 <= share <= 0.97 for share in shares)


def test_over_links_of_known_rates_the_rate_is_read() -> None:
    text, lines = (ROOT / "reports" / "README.md").read_text(encoding="utf-8"), links_table(ROOT / "reports")
    assert "\n".join(lines) in text
    shares = {line: float(line.split("|")[-2]) for line in lines[2:]}
    assert len(shares) == 18 and all(0.95 <= share <= 1.01 for share in shares.values())
    assert [line.split("|")[1:4] for line, share in shares.items() if share < 0.97] == [[" 2gbit ", " p2p_bidirectional ", " gloo "]]
