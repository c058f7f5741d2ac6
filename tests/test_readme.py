"""README.md and docs/: every command runs, every generated output is that of its command, and every link leads somewhere.

COLLBENCH_GOLDEN=1 .venv/bin/python -m pytest tests/test_readme.py -k output    writes all generated outputs anew
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import compress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from collbench import errors
from collbench.backends.backend import steps_of
from collbench.backends.registry import backend_class, backend_names
from collbench.backends.socket import LinkedBackend
from collbench.machine.sources import read_paths
from collbench.operations.registry import commands
from collbench.plugin import BUILTIN, plugins
from tests.conftest import cannot, enter, needs_command, needs_plugin
from tests.fake_gpu import environment
from tests.pages import (
    BIN,
    PAGES,
    README,
    ROOT,
    Command,
    Output,
    anchors,
    blocks,
    links,
    name_of,
    outputs,
    print_output,
    text_of,
    write_output,
)
from tests.stored import stored_reports
from tests.testbeds import Hosts, SlurmBed
from tools.benchmarks.trials.gallery import links_table, table

# The commands unchanged, with short measurements: these variables of the options have lower precedence than the command line.
BRIEF = {"COLLBENCH_SIZES": "8,1K", "COLLBENCH_MAX_TIME": "0.05", "COLLBENCH_ITERATIONS": "3", "COLLBENCH_WARMUP": "1"}
WITHOUT_GPU = {"emit", "peak", "report", "compare", "import", "explain", "doctor"}  # commands that do not open the backends they name
_FOLDERS = (".github", "cuda_kernels", "deploy", "reports", "slurm", "tools")
OTHER_PAGES = [
    *(path for path in sorted(ROOT.glob("*.md")) if path != README),
    *sorted((ROOT / "tests").glob("*.md")),
    *(path for folder in _FOLDERS for path in sorted((ROOT / folder).rglob("*.md"))),
]

BLOCKS = {tuple(command.line for command in block): (page, block) for page in reversed(PAGES) for block in blocks(page)}
COMMANDS = {command.line: command for _, block in BLOCKS.values() for command in block}


def kind_of(command: Command) -> str:
    """Return how the command is run here; "" if it is not."""
    program, words = command.words[0], re.split(r"[\s,=]+", command.line)
    if program in {"collbench", "mpirun", "torchrun"}:
        gpus = ("nccl" in words or "kernels" in words) and not WITHOUT_GPU.intersection(command.words[1:2])
        return "gpu" if gpus else "local"
    if program.startswith("tools/"):
        return "script"
    return {"srun": "slurm", "make": "make", "pip": "install", "pipx": "install"}.get(program, "")


def test_a_block_of_commands_is_read_as_it_is_typed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "1. First:\n\n   ```sh\n   # a comment\n   A=1 collbench runs   # exit code 0 or 2: none yet\n\n"
        "   collbench check 'a #b' \\\n     --quiet\n   ```\n\n```console\n$ sbatch job\n```\n"
    )
    ((runs, check),) = blocks(page)
    assert (runs.line, runs.words, runs.allowed) == ("A=1 collbench runs", ["collbench", "runs"], (0, 2))
    assert (check.words, check.allowed) == (["collbench", "check", "a #b", "--quiet"], None)


def nodes_of(command: Command) -> int:
    """Return the number of nodes that a command for Slurm needs; 0 for other commands."""
    found = re.search(r"\s(?:-N|--nodes[= ])\s*(\d+)", command.line)
    return int(found[1]) if kind_of(command) == "slurm" and found else 0


def may_end_with(command: Command) -> Sequence[int]:
    """Return the allowed exit codes: this machine may have faults, be too busy for a verdict, and have no earlier runs."""
    if command.allowed is not None:
        return command.allowed
    words = command.words[command.words.index("collbench") :] if "collbench" in command.words else command.words
    if words[:4] == ["collbench", "hunt", "--backend", "simulated"]:
        return (1,)  # one of its ranks is slowed on purpose
    usual = {"doctor": (0, 1), "check": (0, 1, 3), "pairs": (0, 3), "hunt": (0, 3), "runs": (0, 2)}
    return usual.get(words[1], (0,)) if words[0] == "collbench" and "--log" not in words else (0,)


def test_every_command_is_of_a_kind_that_is_run_here() -> None:
    assert [line for line, command in COMMANDS.items() if not kind_of(command)] == []
    assert {nodes_of(command) for command in COMMANDS.values()} <= {0, 2, 4}
    assert {"make run", "make test"} <= {command.line for block in blocks(README) for command in block}


# Stored runs that pages show and that a plug-in prints.
RUNS_OF_PLUGINS = {"reports/hunt-host": "hunt", "reports/pairs-trials/host-0": "hunt", "reports/training": "training"}


def _needs(line: str) -> list[pytest.MarkDecorator]:
    """Return the marks of a line of bash with commands of plug-ins."""
    marks = [mark for command in re.findall(r"collbench ([a-z]+)", line) for mark in needs_command(command)]
    return marks + [needs_plugin(plugin) for run, plugin in RUNS_OF_PLUGINS.items() if f"report {run}" in line]


def _block(item: tuple[Path, tuple[Command, ...]]) -> Any:
    """1 to 10 s for each command, in turn."""
    page, block = item
    marks = [pytest.mark.long, pytest.mark.timeout(30 + 110 * len(block))]
    if any(nodes_of(command) for command in block):
        marks.append(pytest.mark.slurm)
    marks += [mark for command in block for mark in _needs(command.line)]
    return pytest.param(block, marks=marks, id=f"{name_of(page)}: {block[0].line}")


@pytest.mark.system
@pytest.mark.often("README.md: srun")
@pytest.mark.parametrize("block", [_block(item) for item in BLOCKS.values()])
def test_the_commands_of_a_block_run_one_after_the_other(block: tuple[Command, ...], tmp_path: Path, request: Any) -> None:
    (tmp_path / "reports").symlink_to(ROOT / "reports")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COLLBENCH_", "SLURM_", "PMI_"))}
    env = {**kept, **BRIEF, "PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    for number, command in enumerate(block):
        if nodes := nodes_of(command):
            bed = request.getfixturevalue("four_nodes" if nodes == 4 else "slurm_hosts")
            done = _under_slurm(command, tmp_path, {**env, "COLLBENCH_OUT": str(tmp_path / f"run-{number}")}, bed)
        else:
            done = RUN[kind_of(command)](command, tmp_path, env)
        assert done.returncode in may_end_with(command), f"{command.line}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr


Done = subprocess.CompletedProcess[str]


def _run(words: Sequence[str], folder: Path, env: dict[str, str]) -> Done:
    return subprocess.run(["timeout", "105", *words], cwd=folder, env=env, capture_output=True, text=True, check=False)


def _local(command: Command, folder: Path, env: dict[str, str]) -> Done:
    named = [name for names in re.findall(r"--tools (\S+)", command.line) for name in names.split(",")]
    if missing := [name for name in named if shutil.which(name) is None]:
        cannot(f"no {' and '.join(missing)} here")
    return _run(["bash", "-c", command.line], folder, env)


def _on_the_double(command: Command, folder: Path, env: dict[str, str]) -> Done:
    """Run a command for GPUs on the double of tests/fake_gpu; every pair of GPUs is measured, so kernels get two."""
    gpus = 2 if "kernels" in command.words else 4
    short = {"COLLBENCH_RANKS": "2", "COLLBENCH_SIZE": "1M", "COLLBENCH_BUFFERS": "fixed"}
    return _local(command, folder, environment(gpus, inherit=env) | short)


def _under_slurm(command: Command, folder: Path, env: dict[str, str], bed: SlurmBed) -> Any:
    """Run a command through real Slurm over shaped links. 1 GiB over 1 Gbit/s takes a quarter of an hour: the sizes are smaller."""
    options, _, ours = command.line.removeprefix("srun ").partition("collbench ")
    words = [sys.executable, "-P", "-m", "collbench", *shlex.split(ours.replace("--sizes 1K-1G", "--sizes 1K-64K"))]
    done = bed.srun([*shlex.split(options), f"--chdir={folder}"], words, timeout=105, env={**env, "PYTHONPATH": str(ROOT)})
    if done.returncode == 3 and ours.startswith(("pairs", "hunt")):  # with so few samples
        done.returncode = 0
    if ours.startswith("pairs") and "--one-to-all" not in ours:
        assert all(node in done.stdout for node in bed.nodes), done.stdout
    return done


def _installs(command: Command, folder: Path, env: dict[str, str]) -> Done:
    """Resolve what `pip install` or `pipx install` would install into an environment."""
    assert command.words[1] == "install", command.line
    words = [sys.executable, "-m", "pip", "install", "--dry-run", *command.words[2:]]
    done = _run(words, ROOT, {**env, "PIP_RETRIES": "10"})
    assert "collbench" in done.stdout, done.stderr
    return done


def _target(command: Command, folder: Path, env: dict[str, str]) -> Done:
    """Check that the target exists; test_make_run_measures_on_every_cpu_backend runs one."""
    return _run(
        ["make", "-n", *command.words[1:]], ROOT, {name: value for name, value in env.items() if not name.startswith(("MAKE", "MFLAGS"))}
    )


def _script(command: Command, folder: Path, env: dict[str, str]) -> Done:
    """Check that the script exists; its own tests run it (tests/gpu_path)."""
    return _run(["test", "-x", command.words[0]], ROOT, env)


RUN = {"local": _local, "gpu": _on_the_double, "install": _installs, "make": _target, "script": _script}


@pytest.fixture(scope="module")
def four_nodes() -> Iterator[SlurmBed]:
    with ExitStack() as stack:
        yield enter(stack, SlurmBed(enter(stack, Hosts(4, "1gbit"))))


@pytest.mark.system
def test_make_run_measures_on_every_cpu_backend(tmp_path: Path) -> None:
    if not (ROOT / ".venv").exists() or shutil.which("make") is None:
        pytest.skip("the tests run in another environment than make's own")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("COLLBENCH_", "MAKE", "MFLAGS"))}
    env |= {"COLLBENCH_OUT": str(tmp_path / "run"), "COLLBENCH_ITERATIONS": "3"}
    done = _run(["make", "run", "SIZES=64"], ROOT, env)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^allreduce over mpi .* at 64 B", done.stdout, re.MULTILINE)
    assert re.search(r"^allreduce over gloo .* at 64 B", done.stdout, re.MULTILINE)
    assert str(tmp_path / "run") in done.stderr


OUTPUTS = [output for page in PAGES for output in outputs(page)]


def _output(shown: Output) -> Any:
    return pytest.param(shown, marks=_needs(shown.command), id=f"{name_of(shown.page)}: {shown.command}")


@pytest.mark.system
@pytest.mark.parametrize("shown", [_output(shown) for shown in OUTPUTS])
def test_the_shown_output_is_that_of_the_command(shown: Any) -> None:
    now = print_output(shown.command)
    if os.environ.get("COLLBENCH_GOLDEN"):
        write_output(shown.page, shown.command, now)
    else:
        assert shown.text == now


def test_every_marker_of_an_output_is_followed_by_its_block() -> None:
    for page in PAGES:
        assert text_of(page).count("<!-- output of:") == len(list(outputs(page))), page


@pytest.mark.parametrize("page", [*PAGES, *OTHER_PAGES], ids=name_of)
def test_every_link_leads_to_a_file_and_a_heading_of_the_project(page: Path) -> None:
    assert [link for link in links(page) if not _leads_somewhere(page, link)] == []


def _leads_somewhere(page: Path, link: str) -> bool:
    """Return whether a link leads to a file of the checkout and, in a page, to a heading."""
    path, _, anchor = unquote(link).partition("#")
    target = (page.parent / path).resolve() if path else page
    has_heading = not anchor or target.suffix != ".md" or (target.is_file() and anchor in anchors(target))
    return target.is_relative_to(ROOT) and (_is_of_absent_plugin(target) or (target.exists() and has_heading))


def _is_of_absent_plugin(target: Path) -> bool:
    """Return whether a file belongs to a built-in plug-in that is absent."""
    parts = target.relative_to(ROOT).parts
    return len(parts) > 2 and parts[1] == "plugins" and parts[2] in set(BUILTIN) - set(plugins())


def test_the_readme_fits_into_200_lines_and_its_pictures_are_small() -> None:
    assert text_of(README).count("\n") <= 200
    pictures = [ROOT / link for link in links(README) if link.endswith((".svg", ".png"))]
    assert [name_of(each) for each in pictures] == [
        "reports/terminal/two-hosts.svg",
        "reports/gallery/before-and-after.svg",
        "reports/gallery/regression.png",
    ]
    assert all(each.stat().st_size <= 150_000 for each in pictures)


def test_the_table_of_operations_is_complete_and_right() -> None:
    page = ROOT / "docs/reference/operations-by-backend.md"
    (found,) = re.findall(r"^\| operation \|.*?\n\n", text_of(page), re.MULTILINE | re.DOTALL)
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in found.strip().splitlines())
    there = [set(name.split(", ")) <= set(backend_names()) for name in (cell.replace("`", "") for cell in header)]  # not of absent plug-ins
    columns = [cell.replace("`", "") for cell in compress(header, there)]
    assert columns == [cell.replace("`", "") for cell in header[1:]] or set(BUILTIN) - set(plugins())
    classes = {name: [backend_class(each) for each in name.split(", ")] for name in columns}
    shown: dict[str, list[str]] = {}
    for names, *cells in rows:
        marks = list(compress(cells, there[1:]))
        assert set(marks) <= {"yes", "–"}
        shown |= dict.fromkeys(re.findall(r"`([\w-]+)`", names), marks)

    def has(kind: Any, operation: Any) -> bool:
        return steps_of(kind, operation) is not None and (operation.pair or not issubclass(kind, LinkedBackend))

    for command, operations in commands().items():
        for kinds, mark in zip(classes.values(), shown.pop(command), strict=True):
            own = [each for each in operations if each.name not in ("init_nodes", "init_session")]  # n/a rows with the reason
            assert {has(kind, each) for kind in kinds for each in own} == {mark == "yes"}, (command, kinds)
    assert not shown


def test_the_tasks_are_some_of_those_of_the_docs() -> None:
    tasks, index = (re.findall(r"^\| (.*? \| .*?) \| \[(.*?)\]", text_of(page), re.MULTILINE) for page in (README, ROOT / "docs/index.md"))
    assert len(tasks) == 8 and set(tasks) <= set(index)


def test_one_command_and_its_output_come_before_status_and_install() -> None:
    text = text_of(README)
    assert text.index("```sh\nmake run") < text.index("```text") < text.index("## Install") < text.index("## Status")


@pytest.mark.system
def test_the_example_in_python_runs(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="no pandas here: pip install 'collbench[pandas]'")
    pytest.importorskip("torch", reason="no torch here: pip install 'collbench[torch]'")
    (example,) = re.findall(r"^```python\n(.*?)^```$", text_of(README), re.MULTILINE | re.DOTALL)
    env = {**os.environ, "COLLBENCH_MAX_TIME": "0.05", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split() == ["backend", "size_bytes", "time_p50_s", "busbw_bytes_per_s", "quality"]
    assert len(done.stdout.splitlines()) == 7  # 1 KiB to 1 MiB, by a factor of 4


def test_the_exit_codes_are_complete() -> None:
    rows = text_of(README).partition("\n| code | meaning |\n")[2].partition("\n\n")[0]
    shown = [int(code) for cell in re.findall(r"^\| ([\d, ]+) \|", rows, re.MULTILINE) for code in cell.split(",")]
    codes = [errors.FINE, errors.NEGATIVE, errors.USAGE, errors.NO_VERDICT, errors.FAILED, errors.INTERRUPTED, errors.TERMINATED]
    assert shown == codes


@needs_plugin("drawings")
def test_the_node_is_drawn_from_its_files() -> None:
    from collbench.plugins.drawings.machine import picture

    (machine,) = read_paths([ROOT / "reports" / "example-node"])
    assert (ROOT / "reports" / "example-node.svg").read_text(encoding="utf-8").strip() == picture(machine).strip()


def test_the_gallery_has_the_figures_of_its_runs() -> None:
    text = (ROOT / "reports" / "README.md").read_text(encoding="utf-8")
    assert "\n".join(table(stored_reports())) in text
    shares = [float(share) for share in re.findall(r"--mpi=\w+ \| gloo \| [\d.]+ MB/s \| ([\d.]+) \|", text)]
    assert len(shares) == 3 and all(0.92 <= share <= 0.97 for share in shares)


def test_over_links_of_known_rates_the_rate_is_read() -> None:
    text, lines = (ROOT / "reports" / "README.md").read_text(encoding="utf-8"), links_table(stored_reports())
    assert "\n".join(lines) in text
    shares = {line: float(line.split("|")[-2]) for line in lines[2:]}
    assert len(shares) == 18 and all(0.95 <= share <= 1.01 for share in shares.values())
    assert [line.split("|")[1:4] for line, share in shares.items() if share < 0.97] == [[" 2gbit ", " p2p_bidirectional ", " gloo "]]
