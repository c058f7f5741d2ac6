"""Bad input: one sentence that names what, where and the remedy, exit code 2, nothing written."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from collbench.results.reader import read_run
from tests.cli.command import PROGRAM, one_sentence, run, run_here
from tests.conftest import sample

TYPED = [
    ("", "no command: use `collbench allreduce`"),
    ("allredcue", "command 'allredcue' is unknown: did you mean allreduce? (see `collbench --help`)"),
    ("allreduce --size 8", "allreduce has no option --size: did you mean --sizes? (see `collbench allreduce --help`)"),
    ("allreduce --backend nccl2", "backend 'nccl2' is unknown: choose from mpi, gloo, nccl, torch-nccl, simulated, socket"),
    ("allreduce --backend ,", "an empty list: name at least one"),
    ("allreduce --dtype float12", "dtype 'float12' is unknown: choose from float64, float32, float16, bfloat16, "),
    ("allreduce --redop mean", "redop 'mean' is unknown: choose from sum, prod, min, max, avg, band, bor, bxor"),
    ("allreduce --format yaml", "invalid choice: 'yaml' (choose from 'table', 'nccl-tests', 'csv', 'json')"),
    ("allreduce --sizes 1K-", "size range '1K-' in '1K-' lacks an end: use e.g. 1K-1G"),
    ("allreduce --sizes -5", "size range '-5' in '-5' lacks an end"),
    ("allreduce --sizes=-5", "size range '-5' in '-5' lacks an end"),
    ("allreduce --sizes 0", "size '0' is not a whole, positive number of bytes"),
    ("allreduce --sizes 1Q", "size '1Q' is not a valid number of bytes: use e.g. 8, 1K, 64M or 1G"),
    ("allreduce --sizes 1G-1K", "size range '1G-1K' is reversed: write the smaller size first, 1K-1G"),
    ("allreduce --sizes 1K:x1", "size '1K:x1' is not a valid number of bytes"),
    ("allreduce --sizes 1K-1M:x1", "size step 'x1' is not a valid step: use a factor above 1 such as x2, or an increment such as +1K"),
    ("allreduce --sizes ''", "size '' is not a valid number of bytes"),
    ("allreduce -b ''", "size '' is not a valid number of bytes"),
    ("allreduce -b 2K -e 1K", "-b 2K is larger than -e 1K: swap them"),
    ("allreduce -b 8 --sizes 8", "--sizes and -b/-e/-f/-i both set sizes: use one of them"),
    ("allreduce -f 2 -i 8", "-i: not allowed with argument -f"),
    ("broadcast --root 2 --ranks 2", "root 2 is out of range (2 ranks): choose 0 to 1, or start more ranks"),
    ("broadcast --root -1", "root '-1' is not a valid rank"),
    ("broadcast --root 1 --backend simulated --ranks 1", "root 1 is out of range (1 rank)"),
    ("allreduce --ranks 0", "argument --ranks: '0' is not a whole number from 1 on"),
    ("allreduce --max-time 0", "argument --max-time: '0' is not a number above 0"),
    ("allreduce --max-time inf", "argument --max-time: 'inf' is not a number above 0"),
    ("allreduce --timeout -1", "argument --timeout: '-1' is not a number above 0"),
    ("allreduce --precision x", "argument --precision: 'x' is not a number above 0"),
    ("allreduce -n 0", "argument -n/--iterations: '0' is not a whole number from 1 on"),
    ("p2p --window 0", "argument --window: '0' is not a whole number from 1 on"),
    ("report", "the following arguments are required: RUN"),
    ("report nowhere", "nowhere is not a run folder"),
    ("report . --format yaml", "unknown --format 'yaml': choose from table, nccl-tests, csv, json"),
    ("allreduce -f 1", "size step 'x1' is not a valid step"),
    ("allreduce --algorithms rong", "algorithm 'rong' is unknown: choose from ring, tree, collnetdirect, collnetchain, nvls,"),
    ("allreduce --protocols ll256", "protocol 'll256' is unknown: choose from simple, ll, ll128"),
    ("allreduce --registration yes", "registration 'yes' is unknown: choose from none, registered, symmetric"),
    ("allreduce --backend mpi --algorithms ring", "--algorithms concerns nccl, which is not among the backends (mpi): add --backend nccl"),
    ("p2p --backend simulated --registration none", "--registration concerns nccl, which is not among the backends (simulated)"),
    ("allreduce --backend mpi,gloo -g 2", "-g concerns nccl, which is not among the backends (mpi, gloo)"),
    ("allreduce --backend gloo --gdr-check", "--gdr-check concerns nccl, which is not among the backends (gloo)"),
    ("allreduce -g 0", "argument -g/--gpus-per-process: '0' is not a whole number from 1 on"),
    ("allreduce --telemetry 50", "argument --telemetry: '50' would disturb the measurement: use 1 to 5 (times a second)"),
    ("allreduce --evidence maybe", "argument --evidence: invalid choice: 'maybe' (choose from 'on', 'off', 'tuning')"),
    ("zzzz", "command 'zzzz' is unknown: choose from accumulate, allgather, allreduce, alltoall, "),
    ("hunts", "command 'hunts' is unknown: did you mean hunt? "),
    ("--ranks 2 allreduce", "'--ranks' comes before the command: write the command first, e.g. `collbench allreduce --ranks` …"),
    ("barrier --sizes 8", "barrier has no option --sizes: it moves no data, "),
    ("allreduce --root 1", "allreduce has no option --root: broadcast, gather, reduce, run and scatter have it (see "),
    ("allreduce --dry-run", "allreduce has no option --dry-run: run and workload have it (see "),
    ("p2p --split 'MOD 2'", "p2p has no option --split: allgather, allreduce, alltoall, alltoallv, barrier, broadcast and others have it"),
    ("allreduce --iter 3", "allreduce has no option --iter: did you mean --iterations?"),
    ("allreduce --frob", "allreduce has no option --frob (see `collbench allreduce --help`)"),
    ("run quick full", "'full' is an unexpected argument (see `collbench run --help`)"),
    ("run quik", "suite quik cannot be read (No such file or directory): name a file, or one of quick, full, gate"),
    ("run quick --dry-run --format nccl-tests", "--dry-run prints a plan, which --format nccl-tests does not support"),
    ("run quick --skew 2", "--skew is for alltoallv, but suite quick has none"),
    ("allreduce --split 'XOR 2'", "--split 'XOR 2' is not a valid split: use AND, OR, MOD or DIV and a number"),
    ("allreduce --split 'MOD 0'", "--split 'MOD 0' asks for 0 groups"),
    ("allreduce --ranks 4 --split 'DIV 3'", "--split 'DIV 3' of 4 ranks makes groups of 1 to 3 ranks, which cannot be compared"),
    ("alltoallv --traffic nowhere", "traffic file 'nowhere' cannot be read (No such file or directory): name a file of numbers"),
    ("p2p --streams 65", "argument --streams: '65' is too large: use 1 to 64"),
    ("p2p --backend simulated --streams 2", "--streams concerns socket, which is not among the backends (simulated): add --backend socket"),
    ("pairs --size 1K,2K", "size '1K,2K' is not a valid number of bytes"),
    ("pairs --backend mpi,gloo", "pairs measures one backend, but --backend has mpi and gloo: use one"),
]  # fmt: skip
STARTED = [  # what only ranks that have met can tell
    ("allreduce --backend simulated --sizes 1T", "allreduce 1 TiB on simulated"),
    ("pairs --backend simulated --ranks 1", "pairs needs two ranks, but this launch has one"),
    ("pairs --backend simulated --ranks 3 --sample 3", "--sample 3 exceeds the partners of each of 3 ranks: use 1 to 2"),
    ("pairs --backend simulated --ranks 3 --one-to-all 3", "not a valid rank of 3: use 0 to 2"),
    ("pairs --backend simulated --ranks 2 --by node", "--by node needs two nodes, but all ranks are on "),
]  # fmt: skip


@pytest.mark.parametrize(("line", "sentence"), TYPED, ids=lambda text: text[:40])
def test_what_was_typed(line: str, sentence: str, tmp_path: Path) -> None:
    assert sentence in one_sentence(run_here(tmp_path, *shlex.split(line)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("line", "sentence"), sample(STARTED, 2), ids=lambda text: text[:40])
def test_what_ranks_find_to_be_wrong(line: str, sentence: str, tmp_path: Path) -> None:
    assert sentence in one_sentence(run(tmp_path, *shlex.split(line)))
    assert not list(tmp_path.iterdir())


def test_too_little_memory_is_told_before_the_first_case(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    said = one_sentence(run(tmp_path, "allreduce", "--backend", "mpi", "--sizes", "8,1T"))
    assert "allreduce 1 TiB on mpi" in said and " is free: " in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("backend", ["simulated", "mpi"])
class TestOut:
    def refused(self, folder: Path, backend: str, out: str) -> str:
        if backend == "mpi":
            pytest.importorskip("mpi4py")
        return one_sentence(run(folder, "allreduce", "--sizes", "8", "--backend", backend, "--out", out))

    def test_a_file_is_in_the_way(self, backend: str, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("mine")
        said = self.refused(tmp_path, backend, "file/run")
        assert said == "run folder file/run cannot be written (Not a directory): choose another folder with --out DIR"
        assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "mine"

    def test_it_holds_a_run_already(self, backend: str, tmp_path: Path) -> None:
        assert run(tmp_path, "allreduce", "--sizes", "8", "--backend", "simulated", "--out", "run").returncode == 0
        before = (tmp_path / "run" / "cells.jsonl").read_bytes()
        assert "--out run already holds a run" in self.refused(tmp_path, backend, "run")
        assert (tmp_path / "run" / "cells.jsonl").read_bytes() == before


def test_a_folder_that_takes_no_files(tmp_path: Path) -> None:
    said = one_sentence(run(tmp_path, "allreduce", "--sizes", "8", "--backend", "simulated", "--out", "/proc/run"))
    assert said.startswith("run folder /proc/run cannot be written")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk with little more room than a run must find."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1280k", "none", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    (small_disk / "big").write_bytes(bytes(3 << 18))
    said = one_sentence(run(tmp_path, "allreduce", "--sizes", "8", "--backend", "simulated", "--out", "disk/run"))
    assert said.startswith("run folder disk/run cannot be written: its disk has 512 KiB left") and said.endswith("--out DIR")
    assert [path.name for path in small_disk.iterdir()] == ["big"]


@pytest.mark.in_turn
def test_a_disk_that_fills_up_keeps_the_finished_cases(small_disk: Path, tmp_path: Path) -> None:
    done = run(tmp_path, "allreduce", "--sizes", "8-1M", "-n", "8000", "--backend", "simulated", "--out", "disk/run")
    rows = read_run(small_disk / "run").rows
    assert done.returncode == 4 and 0 < len(rows) < 18
    last = done.stderr.splitlines()[-1]
    assert f"results can no longer be written to disk/run (No space left on device): {len(rows)} finished cases are safe in it" in last
    assert "Traceback" not in done.stderr


def test_the_port_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        fixed = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        said = one_sentence(run(tmp_path, "allreduce", "--sizes", "8", "--timeout", "5", env=fixed))
    assert said.startswith(f"rank 0 cannot listen for the other ranks: port {port} is in use") and "MASTER_PORT" in said


@pytest.mark.parametrize("line", ["backends", "probe", "explain", "peak allreduce --nvlink 450 --gpus-per-node 8"])
def test_no_room_for_the_output_is_one_sentence(line: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*PROGRAM, *shlex.split(line)], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 4
    assert done.stderr == ("collbench: the output cannot be written (No space left on device): free some space there, or redirect it\n")
