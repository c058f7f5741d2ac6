"""The text of --help, byte for byte (COLLBENCH_GOLDEN=1 writes it), and the imports of a start."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from collbench import __version__
from collbench.cli import main
from tests.cli.command import BIN, ROOT, run

GOLDEN = ROOT / "tests" / "golden" / "help"
COMMANDS = (
    "",
    "allreduce",
    "broadcast",
    "reduce",
    "allgather",
    "reducescatter",
    "alltoall",
    "alltoallv",
    "gather",
    "scatter",
    "sendrecv",
    "hypercube",
    "barrier",
    "p2p",
    "put",
    "get",
    "accumulate",
    "neighbor-allgather",
    "neighbor-alltoall",
    "pairs",
    "hunt",
    "workload",
    "run",
    "check",
    "backends",
    "kernels",
    "probe",
    "peak",
    "doctor",
    "explain",
    "emit",
    "import",
    "gate",
    "baseline",
    "history",
    "report",
    "runs",
    "compare",
    "completion",
)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="argparse of Python 3.13 writes options in another way")
@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as ended:
        main.run([*command.split(), "--help"])
    said = capsys.readouterr()
    golden = GOLDEN / f"{command or 'collbench'}.txt"
    if os.environ.get("COLLBENCH_GOLDEN") == "1":
        golden.write_text(said.out)
    assert (ended.value.code, said.out, said.err) == (0, golden.read_text(), "")


@pytest.mark.parametrize("program", [(sys.executable, "-m", "collbench"), (str(BIN / "collbench"),)], ids=["python -m", "script"])
def test_version(program: tuple[str, ...], tmp_path: Path) -> None:
    done = run(tmp_path, "--version", program=program)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"collbench {__version__}\n", "")


def imported(stderr: str) -> set[str]:
    """The packages in the output of PYTHONPROFILEIMPORTTIME, of all processes together."""
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in stderr.splitlines() if line.startswith("import time:")}


@pytest.mark.parametrize("words", ["--help", "allreduce --help", "--version"])
def test_a_start_imports_nothing_heavy(words: str, tmp_path: Path) -> None:
    found = imported(run(tmp_path, *words.split(), env={"PYTHONPROFILEIMPORTTIME": "1"}).stderr)
    assert {"collbench", "argparse"} <= found
    assert not found & {"numpy", "torch", "rich", "mpi4py", "zmq", "psutil", "jsonschema", "pandas", "matplotlib"}


@pytest.mark.parametrize(
    ("command", "without"),
    [
        ("allreduce --sizes 8 --backend mpi", {"torch", "pandas", "matplotlib", "rich", "jsonschema"}),
        ("backends", {"torch", "pandas", "rich"}),
    ],
)
def test_the_mpi_path_imports_no_torch(command: str, without: set[str], tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    done = run(tmp_path, *command.split(), env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0 and re.search(r"\bmpi\b", done.stdout)
    assert "mpi4py" in imported(done.stderr)
    assert not imported(done.stderr) & without
