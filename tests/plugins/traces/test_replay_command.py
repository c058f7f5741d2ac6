"""`collbench replay` as users start it: the plan, measured replays on backends, the gate, other numbers of ranks, and a shaped link."""

import csv
import io
import json

import pytest

import collbench
from collbench.results.reader import read_run
from tests.cli.command import BIN, PROGRAM, environment, run, run_here
from tests.plugins.traces.recorded import Op, write_dumps
from tests.plugins.training.reading import BACKENDS, MISSING, read_workload

GROUPS = {"world": range(4), "a": (0, 1), "b": (2, 3)}
RATE = 1e9 / 8 * 1448 / 1514  # payload bytes per second of TCP over a link of 1 Gb/s


def step(rank, begin_ms):
    """Yield a step: stages send to the next one, a pair's all-reduce overlaps with one of all ranks."""
    message = Op("send", sent=4096, root=rank + 2) if rank < 2 else Op("recv", sent=4096, root=rank - 2)
    group = "a" if rank < 2 else "b"
    for op, start, end in ((message, 0, 1), (Op("allreduce", group, 8192), 2, 5), (Op("allreduce", "world", 1024), 3, 6)):
        yield Op(op.kind, op.group, op.sent, start_ms=begin_ms + start, end_ms=begin_ms + end, root=op.root)


@pytest.fixture
def dumps(tmp_path):
    ranks = {rank: [op for begin in (0.0, 8.0, 16.0) for op in step(rank, begin)] for rank in range(4)}
    return write_dumps(tmp_path / "dumps", GROUPS, ranks)


def stored(folder, name="run"):
    about, (row,), warnings = read_workload(folder / name)
    assert about and not warnings
    return row


def test_the_plan_has_one_step_for_the_recorded_ranks(dumps, tmp_path):
    done = run_here(tmp_path, "replay", "dumps", "--dry-run", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert [(one["operation"], one["groups"], one["size_bytes"]) for one in map(json.loads, done.stdout.splitlines())] == [
        ("p2p_message", 2, 16384), ("allreduce", 2, 32768), ("allreduce", 1, 4096),
    ]  # fmt: skip
    assert "reduction op not recorded in 3 exchanges: sum is used" in done.stderr and "does not contain" in done.stderr


@pytest.mark.parametrize(("argv", "problem"), [
    (["missing"], "missing"), (["dumps", "--step", "7"], "0 to 2"), (["dumps", "--step", "last"], "not a valid step"),
    (["dumps", "--compute", "scale=-1"], "not a number above 0"), (["dumps", "--compute", "some"], "use none, gaps or scale=X"),
    (["dumps", "--ranks", "3"], "does not divide"), (["dumps", "--ranks", "2"], "would have 1 rank"),
    (["dumps/dump_rank_0.json", "dumps/other/dump_rank_0.json"], "dump_rank_0"),
])  # fmt: skip
def test_bad_input_is_one_sentence(argv, problem, dumps, tmp_path):
    (dumps / "other").mkdir()
    (dumps / "other" / "dump_rank_0.json").write_bytes((dumps / "dump_rank_0.json").read_bytes()[:-99])
    if "--ranks" in argv or "--step" in argv:
        (dumps / "other" / "dump_rank_0.json").unlink()
    done = run_here(tmp_path, "replay", *argv, "--dry-run")
    assert (done.returncode, done.stdout) == (2, "") and problem in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.system
@pytest.mark.often("gloo")
@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_is_replayed_as_recorded_with_right_data(backend, dumps, tmp_path):
    done = run(tmp_path, "replay", "dumps", "--backend", backend, "--compute", "gaps", "--out", "run", "--format", "json")
    assert done.returncode == 0, done.stderr
    (printed,), row = map(json.loads, done.stdout.splitlines()), stored(tmp_path)
    assert (row.regime, row.ranks, row.na, row.wrong, row.checked) == ("replay", 4, None, 0, 1)
    assert row.replay and row.replay.compute_s == pytest.approx(0.003) and row.replay.step_time_s == pytest.approx(0.008)
    assert [(part.operation, part.times) for part in row.parts] == [("p2p_message", 1), ("allreduce", 1), ("allreduce", 1)]
    assert row.replay.parts_time_s == pytest.approx((0.001, 0.003, 0.003)) and "no_overlap" not in row.flags
    assert row.time_s and row.time_s.p50 > row.replay.compute_s
    assert printed["replay"]["form"] == "flight-recorder" and printed["parts"] == json.loads(json.dumps(row.as_json()["parts"]))
    shown = run_here(tmp_path, "report", "run", "--format", "csv")
    (line,) = csv.DictReader(io.StringIO(shown.stdout))
    assert float(line["exposed_s"]) == pytest.approx(row.time_s.p50 - 0.003) and line["trace_format"] == "flight-recorder"


@pytest.mark.long
def test_compare_and_the_gate_hold_a_replay(tmp_path):
    operations = [Op("allreduce", sent=1 << 18, start_ms=0, end_ms=1), Op("allreduce", sent=1 << 16, start_ms=1, end_ms=2)]
    write_dumps(tmp_path / "dumps", {"world": (0, 1)}, {0: operations, 1: operations})
    for name in "abcd":
        slower = ["--slowed", "by=80%"] if name == "d" else []
        done = run(tmp_path, "replay", "dumps", "--backend", "simulated", "-n", "60", "--out", name, "--allocation", name, *slower)
        assert done.returncode == 0, done.stderr
    (row,) = read_run(tmp_path / "a").rows
    assert (row.operation, row.size_bytes, row.n) == ("replay", (1 << 20) + (1 << 18), 60) and row.traffic
    (case,) = collbench.compare(tmp_path / "a", tmp_path / "d").cases
    assert case.time and case.time.value > 1.3
    for name in "ab":
        assert run_here(tmp_path, "baseline", "add", "baseline", name).returncode == 0
    judged = {name: run_here(tmp_path, "gate", "--baseline", "baseline", name, "--format", "json") for name in "cd"}
    assert judged["c"].returncode in (0, 3), judged["c"].stderr
    assert judged["d"].returncode in (1, 3) and "replay" in judged["d"].stdout


@pytest.mark.long
@pytest.mark.skipif(MISSING["gloo"], reason="no torch")
def test_another_number_of_ranks_is_refused_with_the_remedy(dumps, tmp_path):
    line = ["--nproc-per-node", "2", *PROGRAM[1:], "replay", "dumps", "--backend", "gloo"]
    done = run(tmp_path, *line, program=[str(BIN / "torchrun")])
    assert "the replay is of 4 ranks, and 2 are there: start 4" in done.stderr and not (tmp_path / "runs").exists()


@pytest.mark.long
@pytest.mark.skipif(MISSING["gloo"], reason="no torch")
def test_under_a_launcher_with_fewer_ranks_the_job_shrinks(tmp_path):
    operations = [Op("allreduce", sent=4096, start_ms=0, end_ms=1)]
    write_dumps(tmp_path / "dumps", {"world": range(4)}, dict.fromkeys(range(4), operations))
    line = ["--nproc-per-node", "2", *PROGRAM[1:], "replay", "dumps", "--backend", "gloo", "--ranks", "2", "--out", "run"]
    done = run(tmp_path, *line, program=[str(BIN / "torchrun")])
    row = stored(tmp_path)
    assert row.ranks == 2 and row.wrong == 0 and row.replay and row.replay.ranks == 4, done.stderr


@pytest.mark.hosts
@pytest.mark.long
@pytest.mark.timeout(150)
@pytest.mark.skipif(MISSING["gloo"], reason="no torch")
def test_over_a_shaped_link_a_step_takes_its_bytes_at_the_rate_and_its_computing(hosts, tmp_path):
    bed = hosts(2, "1gbit")
    operations = [
        Op("allreduce", sent=4 << 20, start_ms=0, end_ms=100), Op("broadcast", sent=2 << 20, root=0, start_ms=150, end_ms=200),
    ]  # fmt: skip
    write_dumps(tmp_path / "dumps", {"world": (0, 1)}, {0: operations, 1: operations})
    typed = f"replay {tmp_path / 'dumps'} --backend gloo --compute gaps -n 10 --out {tmp_path / 'run'}".split()
    place = f"--nnodes 2 --nproc-per-node 1 --rdzv-backend static --master-addr {bed.addresses[0]} --master-port 29533".split()
    torchrun = ["timeout", "90", str(BIN / "torchrun"), *place]
    ranks = [bed.start(host, [*torchrun, "--node-rank", str(host), *PROGRAM[1:], *typed], environment()) for host in range(2)]
    said = [rank.communicate(timeout=100) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    row = stored(tmp_path)
    expected = ((16 << 20) + (8 << 20)) / RATE + 0.05
    assert row.time_s and row.time_s.p50 == pytest.approx(expected, rel=0.05)
