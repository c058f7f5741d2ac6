"""`collbench trace -- COMMAND`: real jobs of two ranks under torchrun, ending well, hanging, killed, and other commands."""

import json
import os
import pickle
import re
import shlex
import signal
import subprocess
import sys
from math import prod
from pathlib import Path

import pytest

from collbench.errors import FINE, USAGE
from collbench.plugins.traces.hook._collbench_recorder import _set_variables_for
from collbench.plugins.traces.model import Part
from collbench.plugins.traces.record import EXECUTION, FLIGHT, HANG, KINETO, RANKS, RecordRequest, environment, record
from tests.cli.command import BIN, one_sentence, run, run_here, start, until

pytestmark = pytest.mark.system

TORCHRUN, JOB = BIN / "torchrun", Path(__file__).with_name("ddp_job.py")
PARAMETERS = 2 * (48 * 48 + 48)
needs_torch = pytest.mark.skipif(not TORCHRUN.exists(), reason="no torch beside this Python")
long = pytest.mark.long


def job(*words):
    return ["--", str(TORCHRUN), "--nproc-per-node", "2", str(JOB), *words]


def dump_of(folder, rank):
    """The Flight Recorder dump of a rank; this test made it, so its pickle is trusted."""
    return pickle.loads((folder / FLIGHT / f"rank_{rank}").read_bytes())


def about(folder, rank):
    return json.loads((folder / RANKS / f"rank_{rank}.json").read_bytes())


def operations(dump):
    """The (operation, elements) of a dump in their order."""
    return [(entry["profiling_name"], sum(map(prod, entry["input_sizes"]))) for entry in dump["entries"]]


@needs_torch
@long
def test_a_job_leaves_a_dump_and_an_execution_trace_of_each_rank(tmp_path):
    done = run(tmp_path, "trace", "--out", "traces", "--steps", "2", "--kineto", *job(), timeout=110)
    assert done.returncode == FINE, done.stderr
    folder = tmp_path / "traces"
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    kinds = ((EXECUTION, ".json"), (FLIGHT, ""), (KINETO, ".json"), (RANKS, ".json"))
    assert names == [f"{kind}/rank_{rank}{end}" for kind, end in kinds for rank in (0, 1)]
    for rank in (0, 1):
        dump = dump_of(folder, rank)
        facts = about(folder, rank)
        assert (facts["rank"], facts["world"], facts["why"], len(facts["steps_ns"])) == (rank, 2, "steps recorded", 3)
        recorded = [e for e in dump["entries"] if facts["steps_ns"][0] < e["time_created_ns"] < facts["steps_ns"][-1]]
        assert operations({"entries": recorded}) == [("gloo:all_reduce", PARAMETERS)] * 2
        nodes = json.loads((folder / EXECUTION / f"rank_{rank}.json").read_text())["nodes"]
        assert [node["name"] for node in nodes].count("c10d::allreduce_") == 2
        events = json.loads((folder / KINETO / f"rank_{rank}.json").read_text())["traceEvents"]
        assert [event.get("name") for event in events].count("gloo:all_reduce") == 2
    assert about(folder, 0)["job"] == about(folder, 1)["job"]
    assert "collbench replay traces" in done.stderr and "collbench autopsy traces" in done.stderr


@needs_torch
@long
def test_the_printed_replay_works_for_a_job_with_groups_over_gloo(tmp_path):
    """Gloo's execution traces do not contain which group an operation uses; its dumps do, but lack the messages."""
    words = ["--", str(TORCHRUN), "--nproc-per-node", "4", str(JOB), "groups"]
    done = run(tmp_path, "trace", "--out", "traces", "--steps", "4", *words, timeout=110)
    assert done.returncode == FINE, done.stderr
    (command,) = re.findall(r"replay: +collbench (.*)", done.stderr)
    replayed = run_here(tmp_path, *shlex.split(command), "--dry-run", "--format", "json")
    assert replayed.returncode == FINE, replayed.stderr
    rows = [json.loads(line) for line in replayed.stdout.splitlines()]
    assert sorted((row["operation"], row["groups"], row["group_ranks"], row["size_bytes"]) for row in rows) == [
        ("allreduce", 1, 2, 120), ("allreduce", 1, 2, 124), ("allreduce", 1, 4, 4 * PARAMETERS),
    ]  # fmt: skip
    assert str(Part.MESSAGES) in replayed.stderr and f"traces/{EXECUTION}/rank_0.json" in replayed.stderr
    alone = run_here(tmp_path, "replay", f"traces/{EXECUTION}", "--dry-run")
    assert alone.returncode == USAGE and one_sentence(alone) and FLIGHT in alone.stderr


@pytest.mark.often
@needs_torch
@long
def test_a_hanging_job_leaves_dumps_of_all_ranks_while_it_hangs(tmp_path):
    process = start(tmp_path, "trace", "--out", "traces", "--hang", "5", *job("skip"))
    try:
        until(lambda: hung(tmp_path, 10), "the dumps of a hang", patience_s=80)
        dumps = [dump_of(tmp_path / "traces", rank) for rank in (0, 1)]
        assert process.poll() is None
        assert json.loads((tmp_path / "traces" / HANG).read_text())["rank"] == 0
        last = dumps[0]["entries"][-1]
        assert (last["profiling_name"], last["input_sizes"], last["retired"]) == ("gloo:all_reduce", [[10]], False)
        assert any(frame["filename"] == str(JOB) for frame in last["frames"])
        assert len(dumps[1]["entries"]) == len(dumps[0]["entries"]) - 1
    finally:
        process.send_signal(signal.SIGTERM)  # to `timeout`, which passes it on
        process.wait(60)
    assert "autopsy" in (tmp_path / "stderr").read_text()


def hung(folder, elements):
    """Return whether both ranks have written dumps of a hang, in which rank 0 waits for an operation with so many elements."""
    traces = folder / "traces"
    if len(list((traces / RANKS).glob("rank_?.json"))) < 2 or any(about(traces, rank)["why"] != "hang" for rank in (0, 1)):
        return False
    return operations(dump_of(traces, 0))[-1] == ("gloo:all_reduce", elements)


def complete_again(traces):
    return "operations complete again" in {about(traces, rank)["why"] for rank in (0, 1)}


@needs_torch
@long
def test_a_pause_is_taken_back_and_the_hang_after_it_is_recorded(tmp_path):
    process = start(tmp_path, "trace", "--out", "traces", "--hang", "4", *job("pause"))
    traces = tmp_path / "traces"
    try:
        until(lambda: hung(tmp_path, 20), "the dumps of the pause", patience_s=80)
        until(lambda: complete_again(traces) or hung(tmp_path, 10), "the end of the pause", patience_s=80)
        until(lambda: hung(tmp_path, 10), "the dumps of the hang", patience_s=80)
        assert json.loads((traces / HANG).read_text())["rank"] == 0
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@needs_torch
@long
def test_a_terminated_job_leaves_dumps_and_ends_by_the_signal(tmp_path):
    process = start(tmp_path, "trace", "--out", "traces", "--hang", "0", *job("skip"))
    until(lambda: len(list((tmp_path / "traces" / RANKS).glob("rank_?.json"))) == 2, "the recorded steps", patience_s=80)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) != 0
    assert [about(tmp_path / "traces", rank)["why"] for rank in (0, 1)] == ["SIGTERM", "SIGTERM"]
    assert len(dump_of(tmp_path / "traces", 0)["entries"]) >= 4


@needs_torch
@long
def test_the_hosts_of_a_job_record_into_one_folder(tmp_path):
    torchrun = [str(TORCHRUN), "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-endpoint", "127.0.0.1:29577", str(JOB)]
    hosts = []
    for node in range(2):
        (tmp_path / str(node)).mkdir()
        command = [torchrun[0], f"--node-rank={node}", *torchrun[1:]]
        hosts.append(start(tmp_path / str(node), "trace", "--out", str(tmp_path / "traces"), "--", *command))
    assert [host.wait(90) for host in hosts] == [0, 0], [(tmp_path / str(node) / "stderr").read_text() for node in range(2)]
    first, second = (about(tmp_path / "traces", rank) for rank in (0, 1))
    assert first["job"] == second["job"] and (first["rank"], second["rank"]) == (0, 1)


@needs_torch
@long
def test_an_exception_is_in_the_dump_of_its_rank(tmp_path):
    done = run(tmp_path, "trace", "--out", "traces", *job("raise"), timeout=110)
    assert done.returncode == 1 and "made up" in done.stderr
    assert about(tmp_path / "traces", 1)["why"] == "ValueError"


def test_a_job_without_torch_distributed_is_one_sentence(tmp_path):
    done = run_here(tmp_path, "trace", "--out", "traces", "--", sys.executable, "-c", "pass")
    assert done.returncode == USAGE
    one_sentence(done)
    assert not (tmp_path / "traces").exists()


@pytest.mark.parametrize(("code", "expected"), [("raise SystemExit(5)", 5), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_the_exit_code_is_that_of_the_job(code, expected, tmp_path):
    assert run_here(tmp_path, "trace", "--", sys.executable, "-c", code).returncode == expected


@pytest.mark.parametrize("words", [[], ["--"], ["--", "no-such-program"], ["--out", "full", "--", "true"], ["--steps", "0", "--", "true"]])
def test_bad_input_is_one_sentence(words, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    done = run_here(tmp_path, "trace", *words)
    assert done.returncode == USAGE
    one_sentence(done)
    assert not (tmp_path / "traces").exists() or not any((tmp_path / "traces").iterdir())


def test_one_rank_of_a_launch_does_not_record(tmp_path):
    env = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    assert run_here(tmp_path, "trace", "--", "true", env=env | {"TORCHELASTIC_RUN_ID": "none"}).returncode == USAGE


def hooked(tmp_path, code, *options, env=None):
    """Run Python code with the hook on PYTHONPATH, after the folders that PYTHONPATH already had."""
    hook = Path(sys.modules[RecordRequest.__module__].__file__ or "").with_name("hook")
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(hook), *((env or {}).values())])}
    return subprocess.run([sys.executable, *options, "-c", code], env=variables, capture_output=True, text=True, check=False, cwd=tmp_path)


def test_other_processes_load_nothing_of_the_hook_which_runs_the_sitecustomize_that_it_hides(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/sitecustomize.py").write_text("import sys; sys.made_up = __name__")
    done = hooked(tmp_path, "import sys, sitecustomize; print(sys.made_up, sitecustomize.__file__)", env={"": str(tmp_path / "own")})
    assert done.stdout.split() == ["sitecustomize", str(tmp_path / "own/sitecustomize.py")], done.stderr
    code = "import sys; print([name for name in (*sys.modules, *sys.path) if any(w in name for w in ('collbench_rec', 'torch', 'hook'))])"
    assert hooked(tmp_path, code).stdout.strip() == "[]"


def test_an_environment_keeps_what_the_user_has_set(tmp_path):
    made = environment(RecordRequest(("true",), tmp_path), "job1", {"PYTHONPATH": "/lib", "TORCH_NCCL_TRACE_BUFFER_SIZE": "77"})
    assert set(made) == {"PYTHONPATH", "TORCH_NCCL_TRACE_BUFFER_SIZE", "COLLBENCH_RECORDING"}
    assert made["PYTHONPATH"].split(os.pathsep)[1:] == ["/lib"]


@pytest.mark.parametrize(("version", "size"), [
    ("2.13.0+cpu", "TORCH_FR_BUFFER_SIZE"), ("2.10.1", "TORCH_FR_BUFFER_SIZE"), ("2.9.0", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
])  # fmt: skip
@pytest.mark.parametrize("own", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", None])
def test_the_hook_names_the_variables_of_the_installed_torch(version, size, own, tmp_path, monkeypatch):
    variables = json.loads(environment(RecordRequest(("true",), tmp_path), "job1", {})["COLLBENCH_RECORDING"])["torch"]
    with monkeypatch.context() as context:
        for name in [name for name in os.environ if name.startswith("TORCH_")]:
            context.delenv(name)
        if own:
            context.setenv(own, "77")
        context.setattr(os, "environ", dict(os.environ))
        _set_variables_for(version, variables)
        found = {name: value for name, value in os.environ.items() if name.startswith("TORCH_")}
    assert found.pop(size) == ("77" if own else "20000")
    assert {value for name, value in found.items() if name != own} == {str(tmp_path / FLIGHT / "rank_"), "1"}


def test_a_rank_without_a_trace_is_known(tmp_path):
    (tmp_path / "about.json").write_text('{"rank": 1, "world": 3}')
    write = "import os, shutil, json; f = json.loads(os.environ['COLLBENCH_RECORDING'])['folder']; os.makedirs(f + '/ranks')"
    copy = f"; shutil.copy({str(tmp_path / 'about.json')!r}, f + '/ranks/rank_1.json'); open(f + '/flight_recorder/rank_1', 'w').close()"
    found = record(RecordRequest((sys.executable, "-S", "-c", write + copy), tmp_path / "traces"))
    assert (found.world, found.ranks, found.absent) == (3, (1,), (0, 2))
