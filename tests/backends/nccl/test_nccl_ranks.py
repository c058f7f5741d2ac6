"""NCCL over several processes, through the command line, on the test double: each process its GPU, or several."""

import json
import re
import subprocess
import sys

import pytest

from collbench.device.unavailable import NoDriver
from tests.fake_gpu import environment

pytestmark = pytest.mark.system

QUICK = ("--backend", "nccl", "--sizes", "1000", "--max-time", "0.02", "-n", "1", "-w", "1", "--format", "json", "--buffers", "fixed")


def collbench(folder, *words, gpus=2, more=None, **told):
    """Runs a command where the doubles are found; (exit code, rows, stderr)."""
    env = {**environment(gpus, **told), **(more or {})}
    line = ["timeout", "-k", "5", "60", sys.executable, "-m", "collbench", *words]
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False, cwd=folder)
    return done.returncode, [json.loads(row) for row in done.stdout.splitlines()], done.stderr


@pytest.mark.system
def test_processes_that_drive_several_gpus_each_come_to_the_right_result(tmp_path):
    words = ("--ranks", "2", "-g", "2", "-d", "float32,float8_e4m3fn", "--registration", "none,symmetric", "--algorithms", "tree")
    code, rows, stderr = collbench(tmp_path, "allreduce", *QUICK, *words, gpus=4)
    assert (code, [row["ranks"] for row in rows]) == (0, [4] * 8), stderr
    assert [(row["na"], row["wrong"], row["in_place"]) for row in rows] == [(None, 0, False)] * 8
    chosen = [[(each["collective"], each["bytes"], each["algorithm"]) for each in row["evidence"]["nccl"]["choices"]] for row in rows]
    assert chosen == [[("AllReduce", 1000, "TREE")]] * 8  # the case's own calls, not the ranks' meeting before them


@pytest.mark.long
@pytest.mark.parametrize("mode", ["pipelined", "graph"])
def test_pairs_across_processes_with_one_that_rests(tmp_path, mode):
    code, rows, stderr = collbench(tmp_path, "p2p", *QUICK, "--ranks", "3", "--window", "3", "--mode", mode, gpus=3)
    assert (code, {row["group"] for row in rows}) == (0, {"0-1"}), stderr
    assert [(row["na"], row["wrong"]) for row in rows] == [(None, 0)] * 3


@pytest.mark.long
def test_a_rank_whose_work_never_ends_is_given_up_within_the_deadline(tmp_path):
    code, rows, stderr = collbench(tmp_path, "allreduce", *QUICK, "--ranks", "2", "--timeout", "6", hang="1:3")
    assert (code, rows) == (4, [])
    assert re.search(r"ncclAllReduce .* 4\.5 s \(iteration 0\), .*rank [01] on GPU 0000:[0-9a-f]+:00\.0 of ", stderr), stderr


@pytest.mark.long
def test_a_rank_that_cannot_join_is_named_with_the_cause_and_not_with_its_echo(tmp_path):
    code, rows, stderr = collbench(tmp_path, "allreduce", *QUICK, "--ranks", "2", init_error="1:2")
    assert (code, rows) == (4, [])
    assert "collbench: rank 1 (" in stderr
    assert "ncclSystemError (2): " in stderr
    assert "ncclRemoteError" not in stderr


@pytest.mark.long
def test_one_gpu_carries_two_processes_where_the_user_allows_it(tmp_path):
    code, rows, stderr = collbench(tmp_path, "allreduce", *QUICK, "--ranks", "2", gpus=1, more={"NCCL_MULTI_RANK_GPU_ENABLE": "1"})
    assert (code, [(row["wrong"], "shared_gpu" in row["flags"]) for row in rows]) == (0, [(0, True)]), stderr


BAD = {
    "more ranks than GPUs: 3 ": {"words": ("--ranks", "3")},
    "more ranks than GPUs: 2 ": {"words": ("--ranks", "2"), "more": {"CUDA_VISIBLE_DEVICES": "0"}},
    "(libnccl.so.2: ": {"nccl": False},
    NoDriver().render(): {"driver": False},
    "'collbench[cuda13]'": {"cupy": False},
    "CUDA 11.8": {"driver_version": 11080},
    "CUDA_VISIBLE_DEVICES is empty": {"more": {"CUDA_VISIBLE_DEVICES": ""}},
    "GPU '7'": {"more": {"CUDA_VISIBLE_DEVICES": "7"}},
    "'prohibited'": {"compute_mode": "prohibited"},
    "GPU 1 (FAKE GPU (test double)) is busy": {"busy": "1", "words": ("--ranks", "2")},
    "exclusive mode": {
        "compute_mode": "exclusive", "gpus": 1, "words": ("--ranks", "2"), "more": {"NCCL_MULTI_RANK_GPU_ENABLE": "1"},
    },
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("sentence", BAD)
def test_what_cannot_be_measured_is_one_sentence(tmp_path, sentence):
    how = dict(BAD[sentence])
    code, rows, stderr = collbench(tmp_path, "allreduce", *QUICK, *how.pop("words", ("--ranks", "1")), **how)
    assert (code in (2, 4), rows) == (True, []), stderr
    assert sentence in stderr
    assert stderr.count("\n") == 1


@pytest.mark.long
def test_a_size_that_does_not_fit_is_reported_before_anything_is_allocated(tmp_path):
    code, rows, stderr = collbench(tmp_path, "allreduce", *QUICK, "--ranks", "2", "--sizes", "8,64M", memory=96 << 20)
    assert (code, rows) == (2, [])
    assert stderr.startswith("collbench: allreduce 64 MiB on nccl (float32, sum) needs ")
    assert " is free: " in stderr
