"""A launch from request to run folder, on virtual ranks in this process: rows, flags, exit codes, and progress reports."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.backends.simulated import SimulatedBackend
from collbench.backends.slowing import parse_slowing
from collbench.errors import UsageError
from collbench.measuring import memory as checks
from collbench.measuring.open_backends import OpenBackend
from collbench.measuring.request import Budget, Request
from collbench.measuring.resume import request_difference
from collbench.measuring.tasks.cases import shuffled, task_of
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.builtin.broadcast import BROADCAST
from collbench.operations.builtin.p2p import P2P_BANDWIDTH, P2P_LATENCY
from collbench.operations.case import Case
from collbench.operations.dtypes import DTYPES
from collbench.operations.program import Program, PythonCall
from collbench.operations.sweep import BackendDefaults, Sweep
from collbench.operations.unsupported import CaseFailed, RedopUndefined, decode_reason
from collbench.results.reader import read_run
from tests.cli.command import one_sentence, run_here
from tests.helpers import OF_THE_MACHINE
from tests.measure.launches import RecordingListener, run_alone


@pytest.fixture
def start(tmp_path):
    """Run a sweep on 4 virtual ranks; returns (exit code, rows in planned order, reports, codes that `ended` received)."""

    def these(*operations, sizes=(1024,), dtypes=("float32",), backend="simulated", **more):
        of_request = ("ranks", "check", "ceiling", "budget", "out", "seed", "order_seed", "launch_index")
        chosen = {key: more.pop(key) for key in of_request if key in more}
        sweep = Sweep(operations, sizes and tuple(sizes), tuple(DTYPES[name] for name in dtypes), **more)
        request = Request(
            "allreduce", sweep, (backend,), frozenset([backend]),
            **{"ranks": 4, "budget": Budget(2, 20, 2), "out": tmp_path / "run", "timeout_s": 10.0, **chosen},
        )  # fmt: skip
        actual = RecordingListener()
        code = run_alone(task_of, request, actual)
        return SimpleNamespace(code=code, rows=actual.in_order, listener=actual, folder=tmp_path / "run")

    return these


def test_rows_are_stored_reported_and_equal(start):
    found = start(ALLREDUCE, sizes=(8, 1024, 2**20), order_seed=1)
    assert found.code == 0
    assert [row.size_bytes for row in found.rows] == [8, 1024, 2**20]
    assert [row for _, row in found.listener.records] == read_run(found.folder).rows
    planned = found.listener.plan_of_launch
    assert (len(planned.cases), planned.ranks, planned.nodes, len(planned.rank_map)) == (3, 4, 1, 1)
    assert [text.partition(" ")[0] for text in found.listener.statuses] == ["opening", "reading"]
    assert [done for _, done, total in found.listener.titles if total == 3] == [0, 1, 2]
    assert {title for title, _, _ in found.listener.titles} == {
        f"allreduce {size} on simulated (float32, sum)" for size in ("8 B", "1 KiB", "1 MiB")
    }


@given(st.integers(0, 60), st.integers(0, 2**32), st.integers(0, 50))
def test_the_order_is_shuffled_anew_by_each_launch_of_a_seed(cases, seed, launch):
    order = shuffled(cases, seed, launch)
    assert sorted(order) == list(range(cases))
    assert order == shuffled(cases, seed, launch)
    assert cases < 20 or order != shuffled(cases, seed, launch + 1) != shuffled(cases, seed + 1, launch + 1)


def test_the_order_is_kept_and_can_be_had_again(start, tmp_path):
    sizes = tuple(8 << i for i in range(12))
    first = start(ALLREDUCE, sizes=sizes)
    seed = json.loads((first.folder / "run.json").read_text())["order_seed"]
    again = start(ALLREDUCE, sizes=sizes, order_seed=seed, out=tmp_path / "again")
    other = start(ALLREDUCE, sizes=sizes, order_seed=seed, launch_index=1, out=tmp_path / "other")
    order, again, other = ([place for place, _ in found.listener.records] for found in (first, again, other))
    assert order == again != other


def test_a_row_has_every_figure_and_its_samples_are_stored(start):
    found = start(ALLREDUCE, sizes=(2**20,))
    (row,) = found.rows
    names = (row.operation, row.backend, row.api, row.dtype, row.redop, row.root)
    assert names == ("allreduce", "simulated", "simulated", "float32", "sum", None)
    assert (row.size_bytes, row.count, row.ranks, row.nodes, row.group, row.n) == (2**20, 2**18, 4, 1, "all", 20)
    assert row.time_s.min <= row.time_s.ci_low <= row.time_s.p50 <= row.time_s.ci_high <= row.time_s.max
    assert row.algbw_bytes_per_s == pytest.approx(2**20 / row.time_s.p50)
    assert row.busbw_bytes_per_s == pytest.approx(row.algbw_bytes_per_s * 1.5)
    assert row.percent_of_ceiling == pytest.approx(100 * row.busbw_bytes_per_s / 10e9)
    assert (row.checked, row.wrong) == (1, 0)
    assert set(row.flags) - OF_THE_MACHINE == {"simulated", "few_samples"}
    assert sum(times for _, times in row.slowest_ranks["worst"]) == 20
    assert row.time_rank_mean_s < row.time_s.p50
    assert row.evidence["warmups"] == 2
    stored = read_run(found.folder)
    (row,) = stored.rows
    assert stored.array(row, "all_s").shape == (4, 20)
    assert stored.array(row, "max_s").tolist() == stored.array(row, "all_s").max(axis=0).tolist()
    assert set(stored.array(row, "slowest_rank")) <= {0, 1, 2, 3}
    about = stored.info
    assert (about["launcher"], about["exit_code"]) == ("local", 0)
    assert about["backends"]["simulated"]["simulated"].endswith("all made up")
    assert json.loads((found.folder / "topology.json").read_text())["schema"] == 1


def test_pairs_run_at_once_and_only_their_first_rank_is_timed(start):
    found = start(P2P_LATENCY, P2P_BANDWIDTH, window=8)
    latency, bandwidth = found.rows
    assert (latency.group, bandwidth.group) == ("0-2,1-3", "0-2,1-3")
    assert "pairs_at_once" in latency.flags
    assert {rank for rank, _ in latency.slowest_ranks["worst"]} <= {0, 1}
    assert latency.time_s.p50 == pytest.approx(5e-6 + 1024 / 10e9, rel=0.05)  # half the round trip
    assert bandwidth.time_s.p50 == pytest.approx(5e-6 + 1024 / 10e9, rel=0.05)  # per message of the window


def test_some_cases_not_applicable_is_fine_and_all_is_2_and_a_folder_with_a_run_is_not_written_over(start, tmp_path):
    mixed = start(ALLREDUCE, dtypes=("float32", "int8"), redops=("band",))
    assert (mixed.code, [row.na is None for row in mixed.rows]) == (0, [False, True])
    assert mixed.rows[0].time_s is None
    with pytest.raises(UsageError):
        start(ALLREDUCE)
    found = start(ALLREDUCE, redops=("band",), out=tmp_path / "other")
    assert (found.code, found.rows[0].na) == (2, RedopUndefined("band", "float32").render())


def test_a_ceiling_that_is_given_goes_before_all_others(start):
    (row,) = start(ALLREDUCE, sizes=(2**20,), ceiling=5.0).rows
    assert (row.ceiling.kind, row.ceiling.bytes_per_s) == ("given", 5e9)
    assert row.percent_of_ceiling == pytest.approx(100 * row.busbw_bytes_per_s / 5e9)


PIPELINED = {"sizes": (2**20,), "mode": "pipelined", "buffers": "rotating", "budget": Budget(20.0, 3, 1)}


@pytest.mark.parametrize(("operation", "asked", "expected"), [
    (BROADCAST, {"roots": (0, 3)}, [{"root": 0, "wrong": 0}, {"root": 3, "wrong": 0}]),
    (ALLREDUCE, {"check": 0}, [{"checked": 0, "wrong": None}]), (ALLREDUCE, {"check": 3}, [{"checked": 3, "wrong": 0}]),
    (ALLREDUCE, PIPELINED, [{"mode": "pipelined", "buffers": "rotating", "wrong": 0}]),
    (P2P_LATENCY, {"ranks": 5}, [{"group": "0-2,1-3"}]),  # of an odd number the last rank rests
    (ALLREDUCE, {"ranks": 1}, [{"busbw_bytes_per_s": None}]),  # one rank moves nothing
], ids=["roots", "no check", "checks", "modes and buffers", "odd number", "one rank"])  # fmt: skip
def test_what_was_asked_for_is_on_the_row(start, operation, asked, expected):
    rows = start(operation, **asked).rows
    assert [{name: getattr(row, name) for name in of_row} for row, of_row in zip(rows, expected, strict=True)] == expected
    assert (rows[0].evidence["iterations_per_sample"] > 1) is (asked is PIPELINED)


@pytest.mark.parametrize(("ranks", "operation", "synchronised"), [(2, P2P_LATENCY, False), (2, ALLREDUCE, True), (4, P2P_LATENCY, True)])
def test_one_pairs_ping_pong_needs_no_barrier_since_its_partner_waits(start, ranks, operation, synchronised):
    (row,) = start(operation, ranks=ranks).rows
    assert row.evidence["synchronised"] is synchronised


@pytest.mark.parametrize(("operations", "asked", "free", "sentence"), [
    ((BROADCAST,), {"roots": (4,)}, None, "root 4 is out of range"),
    ((ALLREDUCE,), {"sizes": (8, 2**40)}, None, r"allreduce 1 TiB on simulated .* 8 TiB "),
    # 1 MiB: 4 MiB for a broadcast on 4 ranks, 8 MiB for an all-reduce. The recommended size fits for every operation.
    ((BROADCAST, ALLREDUCE), {"sizes": (8, 2**20)}, 6 << 20, r"allreduce 1 MiB on simulated .* 8 B$"),
], ids=["root", "memory", "memory of several operations"])  # fmt: skip
def test_what_cannot_be_measured_is_reported_before_the_first_case(start, tmp_path, monkeypatch, *, operations, asked, free, sentence):
    if free:
        monkeypatch.setattr(checks, "free_bytes", lambda: free)
    with pytest.raises(UsageError, match=sentence):
        start(*operations, **asked)
    assert not (tmp_path / "run").exists()


def test_virtual_ranks_need_no_memory_for_the_cases_of_other_backends(monkeypatch):
    monkeypatch.setattr(checks, "free_bytes", lambda: 6 << 20)
    virtual, real = (SimpleNamespace(name="x", ranks=8, virtual=each, free_bytes=lambda case: None) for each in (True, False))
    small, large = (Case("allreduce", "x", DTYPES["float32"], size, redop="sum", in_place=True) for size in (8, 1 << 20))
    work = [(ALLREDUCE, small, OpenBackend("x", virtual)), (ALLREDUCE, large, OpenBackend("x", real))]
    assert checks.too_large(work, "host", 4) is None  # 4 of the 8 ranks are on this host
    assert "for its 8 ranks" in checks.too_large([(ALLREDUCE, large, OpenBackend("x", virtual))], "host", 4)


def test_default_sizes_that_do_not_fit_are_left_out_with_a_note(start, monkeypatch):
    monkeypatch.setattr(checks, "free_bytes", lambda: 6 << 20)
    sweep = {"sparse": True, "defaults": lambda name: BackendDefaults("cpu", largest=8 << 20)}
    found = start(ALLREDUCE, sizes=None, budget=Budget(2, 20, 2, total_s=1.0), **sweep)
    assert [row.size_bytes for row in found.rows] == [8, 128, 1024, 8192, 65536]
    assert "sizes from 1 MiB on are left out, because they do not fit the free memory: use --sizes for others" in found.listener.notes
    assert read_run(found.folder).info["asked"]["options"]["--total-time"] == 1.0


def test_rounded_sizes_are_flagged_and_reported(start):
    found = start(ALLREDUCE, sizes=(1023,))
    assert found.rows[0].size_bytes == 1020
    assert "size_rounded" in found.rows[0].flags
    assert any("whole float32 elements" in note for note in found.listener.notes)


def test_a_backend_that_is_not_there_is_one_sentence(start, monkeypatch):
    monkeypatch.setattr("collbench.backends.torch_distributed.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"gloo .*torch .*pip install"):
        start(ALLREDUCE, backend="gloo")


def test_what_the_library_refuses_at_its_first_call_is_not_applicable(start, monkeypatch):
    def refuse():
        raise RuntimeError("MPI_ERR_OP: invalid reduce operation")

    refused = Program(((PythonCall("MPI_Allreduce", refuse),),))
    monkeypatch.setattr(SimulatedBackend, "bind", lambda self, operation, case, group, buffers: refused)
    found = start(ALLREDUCE)
    assert found.code == 2
    assert found.rows[0].na == "MPI_Allreduce failed in iteration 0: RuntimeError: MPI_ERR_OP: invalid reduce operation"


def test_memory_that_cannot_be_had_is_not_applicable(start, monkeypatch):
    def allocate(self, operation, case, group, slots):
        raise MemoryError("no memory for 4096 bytes")

    monkeypatch.setattr(SimulatedBackend, "allocate", allocate)
    (row,) = start(ALLREDUCE).rows
    assert decode_reason(row.na_fact) == CaseFailed("allocation", 0, "no memory for 4096 bytes")
    assert row.na == "no memory for 4096 bytes"


SIZES = (1024, 2**16)


@pytest.fixture
def measured(tmp_path):
    """Measures two sizes on 4 virtual ranks, some seed, slowed by these specs; returns the stored run."""

    def of(*specs, name="run"):
        request = Request(
            "allreduce", Sweep((ALLREDUCE,), SIZES, (DTYPES["float32"],)), ("simulated",), frozenset(["simulated"]), ranks=4,
            budget=Budget(2, 20, 2), out=tmp_path / name, timeout_s=10.0, order_seed=1, slowed=parse_slowing(specs),
        )  # fmt: skip
        assert run_alone(task_of, request) == 0
        return read_run(tmp_path / name)

    return of


def test_the_run_has_the_specs_and_is_not_gone_on_with_under_others(measured):
    info = measured("by=2%; by=10% sizes=64K").info
    assert info["slowed"] == ["by=2%", "by=10% sizes=64K"]
    assert "slowed" not in measured(name="plain").info
    request = Request("allreduce", Sweep((), None, ()), ("simulated",), budget=Budget(2, 20, 2))
    assert "--slowed was by=2%; by=10% sizes=64K" in request_difference(info, request)


def test_a_spec_without_a_case_or_a_rank_measures_nothing(measured, tmp_path):
    with pytest.raises(UsageError, match="--slowed 'by=10% sizes=1M'"):
        measured("by=10% sizes=1M")
    with pytest.raises(UsageError, match="rank 4"):
        measured("by=10% ranks=4")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", [["allreduce"], ["run", "quick"]])
def test_every_measuring_command_has_it_and_its_twin(tmp_path, command):
    said = "--slowed 'by=10': by=10 is not a valid slowdown: use by=10%, by=5-15% or by=10±3% (up to 1000 %)"
    asked = [*command, "--backend", "simulated"]
    assert one_sentence(run_here(tmp_path, *asked, "--slowed", "by=10")) == said
    assert one_sentence(run_here(tmp_path, *asked, env={"COLLBENCH_SLOWED": "by=10"})) == said
