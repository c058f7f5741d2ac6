"""Commands and options of nccl-tests, OSU and mpirun are translated, or rejected with the equivalent."""

import argparse
import re
from pathlib import Path

import pytest

from collbench.cli import main
from collbench.cli.other_tools import OPTIONS, command_named
from collbench.errors import UsageError
from collbench.operations.dtypes import DTYPES
from collbench.operations.registry import commands
from tests.cli.command import run, run_here

# The options of nccl-tests 2.19.6, each with a valid value: https://github.com/NVIDIA/nccl-tests#arguments
NCCL_TESTS = {
    "t": "1", "g": "2", "b": "8", "e": "1M", "i": "1K", "f": "2", "o": "all", "d": "all", "n": "20", "w": "5", "m": "1", "N": "1", "a": "3",
    "I": "1", "K": "0", "p": "1", "c": "1", "z": "3", "y": "0", "G": "1", "C": "0", "R": "2", "D": "0", "S": "0", "T": "60", "M": "0",
    "u": "0",
}  # fmt: skip


def parsed(line: str) -> argparse.Namespace:
    return main.parsed(line.split())


@pytest.mark.parametrize("option", sorted(NCCL_TESTS))
def test_an_option_of_nccl_tests_is_accepted(option: str) -> None:
    for line in (f"all_reduce_perf -{option} {NCCL_TESTS[option]}", f"all_reduce_perf -{option}{NCCL_TESTS[option]}"):
        assert parsed(line).command == "allreduce"


def test_every_option_of_nccl_tests_is_covered() -> None:
    documented = set("tgbeifodrnwmNaIKpczGCRDVSJTMuyx")
    assert documented == {*NCCL_TESTS, *"xVJ", "r"}  # -x, -V and -J are rejected with any value
    assert {option.names[0][1:] for option in OPTIONS} < documented


def test_what_the_options_of_nccl_tests_mean() -> None:
    line = "all_reduce_perf --minbytes 8 --maxbytes=1M --stepfactor 4 --iters 7 --warmup_iters=2 --op max --datatype half --ngpus 2"
    found = parsed(line)
    assert (found.minimum, found.maximum, found.factor, found.iterations, found.warmup) == ("8", "1M", "4", 7, 2)
    assert (found.redop, found.dtype, found.gpus_per_process) == (["max"], ["half"], 2)
    assert [parsed(f"allreduce {words}").mode for words in ("", "-z 0", "-z 3", "-G 0", "-G 5")] == [None, None, "isolated", None, "graph"]
    assert [parsed(f"allreduce -R {number}").registration for number in "012"] == [["none"], ["registered"], ["symmetric"]]
    assert [parsed(f"allreduce {words}").timeout for words in ("", "-T 0", "-T 7", "-T 2m", "--timeout 3")] == [120, 120, 7, 120, 3]
    assert parsed("allreduce -np 4").ranks == 4 and parsed("allreduce -n 4").ranks is None


def test_all_types_and_all_reduction_ops() -> None:
    from collbench.cli.options import OperationOptions
    from collbench.cli.request import make_sweep

    sweep = make_sweep(OperationOptions.of(parsed("allreduce -d all -o all")), commands()["allreduce"])
    assert ([dtype.name for dtype in sweep.dtypes], sweep.redops) == (list(DTYPES), ("sum", "prod", "min", "max", "avg"))


@pytest.mark.parametrize(("words", "command"), [
    ("all_reduce_perf all_reduce_perf_mpi all-reduce all_reduce osu_allreduce AllReduce", "allreduce"),
    ("all_gather_perf osu_allgather all-gather", "allgather"), ("reduce_scatter_perf osu_reduce_scatter reduce-scatter", "reducescatter"),
    ("alltoall_perf osu_alltoall all-to-all", "alltoall"), ("alltoallv_perf osu_alltoallv", "alltoallv"),
    ("broadcast_perf osu_bcast bcast", "broadcast"), ("gather_perf osu_gather", "gather"), ("scatter_perf osu_scatter", "scatter"),
    ("sendrecv_perf send-recv", "sendrecv"), ("hypercube_perf", "hypercube"), ("reduce_perf osu_reduce", "reduce"),
    ("osu_barrier", "barrier"), ("osu_latency latency", "p2p --only latency"), ("osu_bw bandwidth bw", "p2p --only bandwidth"),
    ("osu_mbw_mr Uniband", "multipair --only bandwidth"), ("Biband", "multipair --only bidirectional"),
    ("osu_bibw", "p2p --only bidirectional"), ("osu_put_latency osu_put_bw", "put"), ("osu_get_latency osu_get_bw", "get"),
    ("osu_acc_latency", "accumulate"), ("neighbor_alltoall osu_neighbor_alltoall", "neighbor-alltoall"),
    ("osu_neighbor_allgather", "neighbor-allgather"), ("iallreduce osu_iallreduce Iallreduce", "allreduce --calls nonblocking"),
    ("ibcast osu_ibcast ibroadcast", "broadcast --calls nonblocking"), ("ibarrier", "barrier --calls nonblocking"),
    ("ireduce_scatter osu_ireduce_scatter", "reducescatter --calls nonblocking"),
    ("osu_ineighbor_alltoall", "neighbor-alltoall --calls nonblocking"),
    ("allreduce_persistent osu_allreduce_persistent", "allreduce --calls persistent"),
    ("osu_latency_persistent latency_persistent", "p2p --only latency --calls persistent"),
    ("report doctor import ireport idoctor report_persistent", ""),
])  # fmt: skip
def test_commands_of_other_tools(words: str, command: str) -> None:
    _, known = main.all_parsers()
    assert {" ".join(command_named(word, known)) for word in words.split()} == ({command} if command else set(words.split()))


def test_an_unknown_command_is_still_unknown() -> None:
    with pytest.raises(UsageError, match="'osu_foo'"):
        parsed("osu_foo")


@pytest.mark.contract
def test_a_command_line_of_nccl_tests_measures(tmp_path: Path) -> None:
    line = "all_reduce_perf -b 8 -e 64 -f 8 -n 3 -w 1 -np 2 -t 1 -p 1 -I 1 --backend simulated --format nccl-tests"
    done = run(tmp_path, *line.split())
    assert done.returncode == 0, done.stderr
    sizes = [int(found[1]) for found in re.finditer(r"^ +(\d+) +\d+ +float", done.stdout, re.MULTILINE)]
    assert sizes == [8, 64]


def test_hidden_options_have_no_variable(tmp_path: Path) -> None:
    assert run_here(tmp_path, "run", "quick", "--dry-run", env={"COLLBENCH_NTHREADS": "7", "COLLBENCH_HELP_ALL": "1"}).returncode == 0
