"""Bad input ends with one sentence, exit code 2, and nothing written; test_cli_sentences.py has the lines."""

import errno
import os
import shlex
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.cli.command import PROGRAM, one_sentence, run, run_here
from tests.cli.test_cli_sentences import FILES, USAGE_ERRORS, usage_lines
from tests.conftest import line_of_command

pytestmark = pytest.mark.contract

CHOICES = [  # worded by argparse, differently in each version of Python
    "allreduce --format yaml", "allreduce --evidence maybe", "probe --format yaml", "workload fsdp --format nccl-tests",
    "doctor --launch --format matrix",
]  # fmt: skip
BEFORE_START = [*(line for path in USAGE_ERRORS for line in usage_lines(path) if "--exit-style" not in line), *CHOICES]
STARTED = [  # errors that only ranks of a launch can detect
    ("pairs --backend simulated --ranks 2 --tools iperf3", "--backend"), ("allreduce --backend socket", "does not support allreduce"),
    ("allreduce --backend gloo --redop band,bor", "the first of 2 reasons"), ("allreduce --backend gloo --device cuda", "cuda"),
    ("p2p --backend socket --ranks 1", "2 ranks"), ("p2p --backend socket --slowed 'by=10% ranks=9'", "rank 9"),
    ("hunt --backend socket --ranks 4 --method groups", "allreduce"),
]  # fmt: skip
# Errors that this process finds before it starts ranks, each with a part of its sentence. "file" is a file, "run" has a run of `SHORT`.
EARLY = [
    ("allreduce --backend simulated --out file", "run folder file "),
    ("allreduce --backend simulated --out file/run", os.strerror(errno.ENOTDIR)),
    ("allreduce --backend simulated --out /proc/run", "/proc/run"),
    ("allreduce --backend simulated --out run", "--out run already holds a run (run.json): go on with it by `collbench --resume run` "
        "(in a job that may be requeued: --out run --resume-if-exists)"),
    ("allreduce --backend simulated --out run --quiet", "already holds a run"),
    ("allreduce --backend simulated --launches 2 --out file", "file/"),
    ("allreduce --backend simulated --launches 2 --out run", "--out run already holds a run (run.json): use a new folder"),
    ("allreduce --backend simulated --trace nowhere/trace.json", "--trace nowhere/trace.json"),
    ("allreduce --backend simulated --resume nowhere --sizes 8", "nowhere cannot be resumed: run.json is missing"),
    ("allreduce --backend simulated --resume file --sizes 8", "file"),
    ("allreduce --backend simulated --resume run --sizes 8 --max-time 1", "--max-time was 0.01 and is 1"),
    ("allreduce --backend simulated --resume run --sizes 8 --max-time 1", "`collbench --resume run`"),
    ("allreduce --backend simulated --resume run --sizes 8 --max-time 1 --dry-run", "--max-time was 0.01 and is 1"),
    ("p2p --resume run", "`collbench allreduce`"),
    ("allreduce --backend simulated --out run --resume run --resume-if-exists", "--resume and --out "),
    ("allreduce --backend simulated --sizes 1T", "1 TiB"), ("allreduce --backend simulated --sizes 64,1T", "is 64 B"),
    ("allreduce --backend simulated --mode graph", "GPUs only"), ("allreduce --backend simulated --mode graph --dry-run", "GPUs only"),
    ("allreduce --backend simulated --device cuda", "not on cuda"),
    ("allreduce --backend simulated --redop band,bor", "the first of 2 reasons"),
    ("allreduce --backend simulated --slowed 'by=10% ranks=9'", "rank 9"),
    ("allreduce --backend simulated --slowed 'by=10% sizes=3K'", "no case"), ("p2p --backend simulated --ranks 1", "2 ranks"),
    ("p2p --backend simulated --in-place", "no case can be measured: p2p_latency has no in-place form"),
    ("run quick --backend simulated --out file", "run folder file "), ("check --ranks 1", "--ranks 2"),
    ("check --html nowhere/page.html", "nowhere"), ("check --out file", "run folder file "), ("check --backend nix", "backend 'nix'"),
    ("pairs --backend simulated --ranks 1", "two ranks"), ("pairs --backend simulated --ranks 3 --sample 3", "1 to 2"),
    ("pairs --backend simulated --ranks 3 --one-to-all 3", "0 to 2"), ("pairs --backend simulated --ranks 2 --by node", "--by node "),
    ("pairs --backend simulated --ranks 2 --device cuda", "cuda"), ("pairs --backend simulated --ranks 2 --size 1T", "1 TiB"),
    ("pairs --backend simulated --ranks 2 --out file", "run folder file "), ("hunt --backend simulated --ranks 1", "two ranks"),
    ("hunt --backend simulated --ranks 4 --out file", "run folder file "),
    ("hunt --backend simulated --ranks 4 --cover-links nowhere", "nowhere"),
    ("hunt --backend simulated --ranks 4 --resume nowhere", "nowhere"), ("kv --method writev --block-bytes 1G --blocks 100000", "blocks"),
    ("kv --method writev --ranks 2 --out file", "run folder file "),
    ("workload fsdp --backend simulated --ranks 2 --out file", "run folder file "),
    ("workload data-parallel --backend simulated --model 1T", "--bucket"),
]  # fmt: skip
SHORT = "allreduce --backend simulated --sizes 8 --max-time 0.01"


@pytest.fixture(scope="module")
def stored_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of `SHORT`, which tests copy."""
    folder = tmp_path_factory.mktemp("stored")
    assert run(folder, *shlex.split(SHORT), "--out", "run").returncode == 0
    return folder / "run"


@pytest.mark.parametrize("line", BEFORE_START, ids=lambda line: line[:60])
def test_an_invalid_command_line_is_rejected_before_the_start(line: str, tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    before = set(tmp_path.rglob("*"))
    assert one_sentence(run_here(tmp_path, *shlex.split(line)))
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("line", "value"), [line_of_command(*early) for early in EARLY], ids=lambda text: text[:60])
def test_what_one_process_can_check_is_rejected_before_ranks_start(
    line: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    def started(*_arguments: object, **_settings: object) -> int:
        raise AssertionError(f"ranks were started: {line}")

    (tmp_path / "file").write_text("mine")
    if " run" in line:
        shutil.copytree(request.getfixturevalue("stored_run"), tmp_path / "run")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr("collbench.launch.spawn.start_local", started)
    assert value in one_sentence(run_here(tmp_path, *shlex.split(line)))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert {path.name for path in tmp_path.iterdir()} <= {"file", "run"}


@pytest.mark.parametrize(
    "line", ["allreduce --out ''", "allreduce --resume ''", "allreduce --trace ''", "report --html '' run", "check --html ''"]
)
def test_an_empty_name_of_a_file_is_rejected(line: str, tmp_path: Path) -> None:
    assert "''" in one_sentence(run_here(tmp_path, *shlex.split(line)))


def test_a_name_with_a_zero_byte_in_the_configuration_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('out = "a\\u0000b"\n')
    assert "config.toml, line 1, out: " in one_sentence(run_here(tmp_path, "allreduce", env={"COLLBENCH_CONFIG": "config.toml"}))


@pytest.mark.parametrize(("line", "value"), [line_of_command(*started) for started in STARTED], ids=lambda text: text[:40])
def test_an_error_that_ranks_detect_is_reported_once(line: str, value: str, tmp_path: Path) -> None:
    assert value in one_sentence(run(tmp_path, *shlex.split(line)))
    assert not list(tmp_path.iterdir())


def test_too_little_memory_is_reported_before_the_first_case(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    said = one_sentence(run(tmp_path, "allreduce", "--backend", "mpi", "--sizes", "8,1T"))
    assert "1 TiB on mpi" in said
    assert not list(tmp_path.iterdir())


def test_a_run_folder_is_checked_over_mpi_too(stored_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    (tmp_path / "file").write_text("mine")
    shutil.copytree(stored_run, tmp_path / "run")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    line = ("allreduce", "--sizes", "8", "--backend", "mpi", "--out")
    below_a_file, used = (one_sentence(run(tmp_path, *line, out)) for out in ("file/run", "run"))
    assert "file/run" in below_a_file and os.strerror(errno.ENOTDIR) in below_a_file and "--out" in below_a_file
    assert "--out run" in used
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        fixed = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        said = one_sentence(run(tmp_path, "allreduce", "--sizes", "8", "--timeout", "5", env=fixed))
    assert f"port {port}" in said and "MASTER_PORT" in said


@pytest.mark.parametrize("line", ["backends", "probe", "explain", "peak allreduce --nvlink 450 --gpus-per-node 8"])
def test_a_full_disk_below_stdout_is_one_sentence(line: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*PROGRAM, *shlex.split(line)], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 4
    assert os.strerror(errno.ENOSPC) in done.stderr and done.stderr.count("\n") == 1
