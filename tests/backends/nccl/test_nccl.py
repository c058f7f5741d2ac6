"""NCCL on the test double: one process that drives several GPUs, and several processes."""

import json
import re
import subprocess
import sys
from itertools import product

import pytest

from collbench.device.unavailable import NoDriver
from collbench.operations.dtypes import BITWISE
from collbench.operations.unsupported import (
    OptionUnsupported,
    RedopUnsupported,
    VersionNeeded,
    decode_reason,
)
from collbench.results.reader import read_run
from tests.backends.nccl import nccl_alone
from tests.fake_gpu import environment
from tests.helpers import FITTING

pytestmark = pytest.mark.system

EVERY = {"operations": ["allreduce"], "sizes": [1003], "dtypes": ["float32"], "buffers": "fixed"}
TYPES = list(dict.fromkeys(dtype for dtype, _ in FITTING))
REDOPS = list(dict.fromkeys(redop for _, redop in FITTING))
MOVED = {**EVERY, "operations": ["broadcast"], "roots": [0, 2], "dtypes": ["bfloat16"]}
P2P = {
    "operations": ["p2p_latency", "p2p_bandwidth", "p2p_bidirectional"],
    "sizes": [1003], "dtypes": ["float8_e5m2"], "window": 3, "buffers": "fixed",
}  # fmt: skip
KINDS = ["none", "registered", "symmetric"]
MOVING = ["allgather", "alltoall", "gather", "scatter", "sendrecv", "hypercube"]
COLLECTIVES = {**EVERY, "operations": [*MOVING, "reduce", "reducescatter"], "roots": [1]}
MEASURED = {
    "collectives": (4, [{**COLLECTIVES, "mode": mode} for mode in ("pipelined", "graph")]),
    "known buffers": (2, [{**COLLECTIVES, "registrations": KINDS[1:]}]),
    "tuned collectives": (2, [{**COLLECTIVES, "algorithms": ["ring"]}]),
    "reductions": (3, [{**EVERY, "dtypes": TYPES, "redops": REDOPS}]),
    "modes": (2, [{**EVERY, "mode": mode, "in_place": place} for mode in ("isolated", "batched", "graph") for place in (False, True)]),
    "rotation": (1, [{**EVERY, "mode": mode, "buffers": "rotating"} for mode in ("graph", "pipelined")]),
    "registrations": (2, [{**EVERY, "registrations": KINDS, "mode": mode} for mode in ("pipelined", "graph")]),
    "moves": (3, [{**MOVED, "in_place": place} for place in (False, True)]),
    "pairs": (4, [P2P, {**P2P, "mode": "graph"}, {**P2P, "mode": "isolated"}]),
    "tunings": (2, [{**EVERY, "algorithms": ["ring", "tree", "nvls"], "protocols": ["simple", "ll"]}, {**P2P, "algorithms": ["ring"]}]),
}  # by case how many GPUs, and what is measured there
CASES = {
    "hang": {"do": "measure", "k": 2, "sweeps": [EVERY], "timeout": 3, "env": {"FAKE_NCCL_HANG": "1:3"}},
    "hang in a graph": {"do": "measure", "k": 2, "sweeps": [{**EVERY, "mode": "graph"}], "timeout": 3, "env": {"FAKE_NCCL_HANG": "1:3"}},
    "hang beside pairs": {"do": "measure", "k": 4, "sweeps": [P2P, EVERY], "timeout": 3, "env": {"FAKE_NCCL_HANG": "3:3"}},
    "async": {"do": "measure", "k": 2, "sweeps": [EVERY], "env": {"FAKE_NCCL_ASYNC_ERROR": "1:3:6"}},
    **{name: {"do": "measure", "k": k, "sweeps": sweeps} for name, (k, sweeps) in MEASURED.items()},
    "dropped": {"do": "measure", "k": 3, "sweeps": [EVERY, {**EVERY, "mode": "graph"}], "env": {"FAKE_NCCL_DROP_RANK": "1"}},
    "old": {"do": "measure", "k": 2, "sweeps": [{**EVERY, "dtypes": ["float32", "float8_e4m3fn"], "registrations": ["none", "symmetric"]}],
            "env": {"FAKE_NCCL_VERSION": "22304"}},
    "captured": {"do": "capture"}, "open": {"do": "open", "k": 3, "proves": True},
    "tuned": {"do": "open", "k": 2, "tuning": ["tree", "ll"]}, "refused": {"do": "open", "k": 2, "tuning": ["triangle", None]},
    "shared": {"do": "open", "k": 2, "env": {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "CUDA_VISIBLE_DEVICES": "2"}},
    "too many": {"do": "open", "k": 5},
    "init": {"do": "open", "k": 2, "env": {"FAKE_NCCL_INIT_ERROR": "1:2"}},
    "load": {"do": "load"}, "too old": {"do": "load", "env": {"FAKE_NCCL_VERSION": "2604"}},
    "wrong path": {"do": "load", "env": {"COLLBENCH_NCCL": "/nowhere/libnccl.so.2"}},
    "no nccl": {"do": "load", "env": {"COLLBENCH_NCCL": "libm.so.6"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """By case what came of it, and the rows that it measured."""
    folder = tmp_path_factory.mktemp("alone")
    program = ["timeout", "-k", "5", "100", sys.executable, "-m", nccl_alone.__name__, str(folder)]
    done = subprocess.run(program, env=environment(4), input=json.dumps(CASES), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    return lambda name: (answers[name], read_run(folder / name / "run").rows if (folder / name / "run").exists() else [])


def measured(run, name):
    """The rows of a case in which everything went well, but for what is n/a."""
    answer, rows = run(name)
    assert answer == {"code": 0}
    assert [row for row in rows if row.na is None and (row.wrong or not row.checked)] == []
    return rows


def test_results_of_every_type_and_reduction(run):
    rows = {(row.dtype, row.redop): row.na for row in measured(run, "reductions")}
    assert {pair for pair, na in rows.items() if na is None} == {(dtype, redop) for dtype, redop in FITTING if redop not in BITWISE}
    bitwise = {na for (dtype, redop), na in rows.items() if (dtype, redop) in FITTING and redop in BITWISE}
    assert bitwise == {RedopUnsupported("NCCL", redop).render() for redop in BITWISE}


# By case the columns of its rows, and the values that these must have; none is n/a.
RIGHT = {
    "modes": ("mode in_place", [*product(("batched", "graph", "isolated"), (False, True))]),
    "rotation": ("mode buffers", [*product(("graph", "pipelined"), ["rotating"])]),
    "registrations": ("mode registration", [*product(("graph", "pipelined"), KINDS)]),
    "moves": ("in_place root", [*product((False, True), (0, 2))]),
    "collectives": ("operation mode", [*product(sorted(COLLECTIVES["operations"]), ("graph", "pipelined"))]),
    "pairs": ("operation mode", [*product(sorted(P2P["operations"]), ("graph", "isolated", "pipelined"))]),
}


@pytest.mark.parametrize("case", RIGHT)
def test_results_in_every_mode_placement_registration_and_root(run, case):
    columns, values = RIGHT[case]
    rows = measured(run, case)
    assert [row.na for row in rows] == [None] * len(values)
    assert sorted(tuple(getattr(row, column) for column in columns.split()) for row in rows) == values
    assert case != "pairs" or {row.group for row in rows} == {"0-2,1-3"}


def test_only_verified_slots_have_a_separate_graph(run):
    answer, _ = run("captured")
    assert (answer["slots"], answer["timed"]) == (1024, 52)
    assert answer["launched"] == sorted({0, *answer["checked"]})
    assert len(answer["checked"]) == 16


def test_symmetric_memory_is_for_nccls_own_collectives(run):
    reasons = {(row.operation, row.registration): decode_reason(row.na_fact) for row in measured(run, "known buffers")}
    refused = {pair for pair, na in reasons.items() if isinstance(na, OptionUnsupported)}
    assert refused == {("sendrecv", "symmetric"), ("hypercube", "symmetric")}
    assert {na for pair, na in reasons.items() if pair not in refused} == {None}


def test_operations_made_of_messages_take_no_algorithm(run):
    reasons = {row.operation: decode_reason(row.na_fact) for row in measured(run, "tuned collectives") if row.algorithm}
    assert {name for name, na in reasons.items() if na is None} == {"allgather", "reduce", "reducescatter"}
    assert {na.options for na in reasons.values() if na} == {("--algorithms",)}


def test_an_unsupported_choice_is_a_row_with_the_reason(run):
    rows = measured(run, "tunings")
    reasons = {(row.algorithm, row.protocol): row.na for row in rows if row.operation == "allreduce"}
    assert {na for (algorithm, _), na in reasons.items() if algorithm != "nvls"} == {None}
    assert "No algorithm/protocol available for function AllReduce" in reasons["nvls", "ll"]
    others = [decode_reason(row.na_fact) for row in rows if row.operation != "allreduce" and row.algorithm]
    assert others and all(isinstance(reason, OptionUnsupported) for reason in others)


def test_a_dropped_rank_is_detected_and_named(run):
    answer, rows = run("dropped")
    assert answer == {"code": 4}
    assert [row.wrong for row in rows] == [rows[0].count * 3] * 2
    assert all(row.wrong_detail.startswith("rank 0: 250 wrong elements") for row in rows)
    assert all(row.wrong_detail.count("(rank 1's share ") == 3 for row in rows)


@pytest.mark.parametrize(("case", "pattern"), [
    ("hang", r"allreduce 1000 B on nccl \(float32, sum\): ncclAllReduce .* 2\.25 s \(iteration .*"
        r"rank 0 on GPU 0000:10:00\.0, rank 1 on GPU 0000:20:00\.0 of "),
    ("hang in a graph", r".*cuGraphLaunch .* 2\.25 s \(iteration "),  # although NCCL waits for graphs
    ("hang beside pairs", r".* 2\.25 s \(iteration "),  # although other communicators have work on the same GPUs
    ("async", r".*: ncclRemoteError \(6\): "),
])  # fmt: skip
def test_hangs_and_asynchronous_errors_are_reported(run, case, pattern):
    answer, rows = run(case)
    assert answer["code"] == 4 and re.match(pattern, answer["error"], re.DOTALL), answer
    assert case == "hang beside pairs" or rows == []


def test_features_an_older_nccl_lacks_are_rows_with_the_reason(run):
    reasons = {(row.dtype, row.registration): decode_reason(row.na_fact) for row in measured(run, "old")}
    assert reasons == {
        ("float32", "none"): None,
        ("float32", "symmetric"): VersionNeeded("NCCL", "symmetric memory (ncclCommWindowRegister)", "2.27", "2.23.4"),
        ("float8_e4m3fn", "none"): VersionNeeded("NCCL", "float8_e4m3fn", "2.24", "2.23.4"),
        ("float8_e4m3fn", "symmetric"): VersionNeeded("NCCL", "float8_e4m3fn", "2.24", "2.23.4"),
    }


def test_a_process_drives_several_ranks(run):
    answer, _ = run("open")
    assert (answer["ranks"], answer["driven"], answer["flags"]) == (3, [0, 1, 2], [])
    assert answer["gpus"] == [f"0000:{bus}:00.0" for bus in ("10", "20", "30")]
    assert answer["versions"]["nccl"] == "2.32.3"
    assert answer["versions"]["nccl_path"].endswith("libnccl.so.2")
    assert answer["versions"]["gpus"] == "FAKE GPU (test double)"
    assert (answer["comms"], answer["comms after"]) == ([6, 3], 0)


def test_a_tuning_lasts_for_one_communicator(run):
    assert run("tuned")[0]["tuning left"] == []
    answer, _ = run("refused")
    assert answer["error"].startswith("rank 0 (")
    assert "ncclInvalidUsage (5)" in answer["error"]


def test_ranks_share_a_gpu_only_if_allowed(run):
    answer, _ = run("shared")
    assert (answer["flags"], answer["gpus"]) == (["shared_gpu"], ["0000:30:00.0"] * 2)
    assert run("too many")[0]["error"].startswith("more ranks than GPUs: 5 ")
    assert run("too many")[0]["code"] == 2


def test_a_failed_communicator_is_reported_with_the_remedy(run):
    error = run("init")[0]["error"]
    assert error.startswith("rank 0 (")
    assert "NCCL_DEBUG=INFO" in error and "collbench doctor" in error


def test_the_library_is_reported_with_its_path_version_and_errors_and_an_unusable_one_is_one_sentence(run):
    answer, _ = run("load")
    assert answer["path"].endswith("/nccl/libnccl.so.2")
    assert answer["version"] == [2, 32, 3]
    assert answer["explained"].startswith("ncclInvalidUsage (5): invalid usage")
    assert answer["unknown"].partition(": ")[0].endswith("(77)")
    assert "2.7 and newer" in run("too old")[0]["error"]
    assert run("wrong path")[0]["error"].startswith("COLLBENCH_NCCL=/nowhere/libnccl.so.2 ")
    assert "libm.so.6" in run("no nccl")[0]["error"]


QUICK = ("--backend", "nccl", "--sizes", "1000", "--max-time", "0.02", "-n", "1", "-w", "1", "--format", "json", "--buffers", "fixed")


def collbench(folder, *words, gpus=2, more=None, **variables):
    """Runs a command where the doubles are found; (exit code, rows, stderr)."""
    env = {**environment(gpus, **variables), **(more or {})}
    line = ["timeout", "-k", "5", "60", sys.executable, "-m", "collbench", *words]
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False, cwd=folder)
    return done.returncode, [json.loads(row) for row in done.stdout.splitlines()], done.stderr


def test_results_of_processes_with_several_gpus(tmp_path):
    words = ("--ranks", "2", "-g", "2", "-d", "float32,float8_e4m3fn", "--registration", "none,symmetric", "--algorithms", "tree")
    code, rows, stderr = collbench(tmp_path, "allreduce", *QUICK, *words, gpus=4)
    assert (code, [row["ranks"] for row in rows]) == (0, [4] * 8), stderr
    assert [(row["na"], row["wrong"], row["in_place"]) for row in rows] == [(None, 0, False)] * 8
    chosen = [[(each["collective"], each["bytes"], each["algorithm"]) for each in row["evidence"]["nccl"]["choices"]] for row in rows]
    assert chosen == [[("AllReduce", 1000, "TREE")]] * 8  # the case's own calls, not the ranks' meeting before them


@pytest.mark.long
@pytest.mark.parametrize("mode", ["pipelined", "graph"])
def test_pairs_across_processes_with_an_idle_one(tmp_path, mode):
    code, rows, stderr = collbench(tmp_path, "p2p", *QUICK, "--ranks", "3", "--window", "3", "--mode", mode, gpus=3)
    assert (code, {row["group"] for row in rows}) == (0, {"0-1"}), stderr
    assert [(row["na"], row["wrong"]) for row in rows] == [(None, 0)] * 3


@pytest.mark.long
def test_a_rank_that_cannot_join_is_named_with_the_cause(tmp_path):
    code, rows, stderr = collbench(tmp_path, "allreduce", *QUICK, "--ranks", "2", init_error="1:2")
    assert (code, rows) == (4, [])
    assert "collbench: rank 1 (" in stderr
    assert "ncclSystemError (2): " in stderr
    assert "ncclRemoteError" not in stderr


BAD = {
    "more ranks than GPUs: 3 ": {"words": ("--ranks", "3")},
    "more ranks than GPUs: 2 ": {"words": ("--ranks", "2"), "more": {"CUDA_VISIBLE_DEVICES": "0"}},
    "(libnccl.so.2: ": {"nccl": False}, NoDriver().render(): {"driver": False}, "'collbench[cuda13]'": {"cupy": False},
    "CUDA 11.8": {"driver_version": 11080},
    "CUDA_VISIBLE_DEVICES is empty": {"more": {"CUDA_VISIBLE_DEVICES": ""}},
    "GPU '7'": {"more": {"CUDA_VISIBLE_DEVICES": "7"}}, "'prohibited'": {"compute_mode": "prohibited"},
    "GPU 1 (FAKE GPU (test double)) is busy": {"busy": "1", "words": ("--ranks", "2")},
    "exclusive mode": {
        "compute_mode": "exclusive", "gpus": 1, "words": ("--ranks", "2"), "more": {"NCCL_MULTI_RANK_GPU_ENABLE": "1"},
    },
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("sentence", BAD)
def test_bad_requests_are_one_sentence(tmp_path, sentence):
    how = dict(BAD[sentence])
    code, rows, stderr = collbench(tmp_path, "allreduce", *QUICK, *how.pop("words", ("--ranks", "1")), **how)
    assert (code in (2, 4), rows) == (True, []), stderr
    assert sentence in stderr
    assert stderr.count("\n") == 1


@pytest.mark.long
def test_a_size_above_the_memory_is_rejected_before_allocation(tmp_path):
    code, rows, stderr = collbench(tmp_path, "allreduce", *QUICK, "--ranks", "2", "--sizes", "8,64M", memory=96 << 20)
    assert (code, rows) == (2, [])
    assert stderr.startswith("collbench: allreduce 64 MiB on nccl (float32, sum) needs ")
    assert " is free: " in stderr
