"""A workload launch from request to folder: a step as one iteration, its parts, its bytes by hand, its data verified."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from collbench.backends.simulated import ALPHA_S, BETA_BYTES_PER_S, SimulatedBackend
from collbench.errors import CollbenchError, UsageError
from collbench.measuring import monitored
from collbench.measuring.crossing import OtherPath
from collbench.measuring.request import Budget
from collbench.operations.case import Case
from collbench.operations.dtypes import DTYPES
from collbench.operations.program import Program, PythonCall
from collbench.operations.registry import operations
from collbench.operations.unsupported import ServersUnsupported, decode_reason
from collbench.plugins.training import step_task as step_module
from collbench.plugins.training import task as training
from collbench.plugins.training.servers import roles_of
from collbench.plugins.training.step_task import StepPart, StepPlan, _program, library_too_large, must_cross, path_s, time_parts
from collbench.plugins.training.task import WorkloadTask
from collbench.plugins.training.workloads.step import Exchange, Step
from tests.measure.launches import RecordingListener, run_alone
from tests.plugins.training.measure.workload_rank import request_of
from tests.plugins.training.reading import read_workload

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered")  # what is spoilt in place grows from call to call

ALL = [[0, 1, 2, 3]]
BUCKETS = [
    {"operation": "allreduce", "groups": ALL, "size_bytes": size, "what": f"bucket {number} of 3"}
    for number, size in enumerate((4096, 4096, 1024), start=1)
]
PUSH = [[0, 0, 0, 0], [4096, 0, 0, 0], [4096, 0, 0, 0], [4096, 0, 0, 0]]
SERVER = [
    {"operation": "alltoallv", "groups": ALL, "size_bytes": 3 * 4096, "what": "push", "matrix": PUSH, "adds": True, "times": 2},
    {"operation": "alltoallv", "groups": ALL, "size_bytes": 3 * 4096, "what": "pull", "matrix": np.array(PUSH).T.tolist(), "times": 2},
]


@pytest.fixture
def train(tmp_path):
    """Measure hand-made steps on virtual ranks; returns exit code, rows as stored, and reports."""

    def these(*trainings, ranks=4, slowed=(), **asked):
        folder = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        asked = {"backends": ["simulated"], "ranks": ranks, "out": str(folder), "iterations": 12, "warmup": 1} | asked
        each = [one if isinstance(one, dict) else {"exchanges": one} for one in trainings]
        actual = RecordingListener()
        code = run_alone(WorkloadTask, request_of({**asked, "trainings": each}, list(slowed)), actual)
        about, rows, warnings = read_workload(folder)
        assert actual.ended and not warnings
        assert json.dumps([row.as_json() for row in actual.in_order]) == json.dumps([row.as_json() for row in rows])
        return SimpleNamespace(code=code, rows=rows, about=about, listener=actual, folder=folder)

    return these


def lasts(size_bytes, factor=1.5):
    return ALPHA_S + size_bytes * factor / BETA_BYTES_PER_S


def test_a_step_is_one_iteration_of_all_its_exchanges_and_alike_ones_are_one_part_looked_at_alone(train):
    found = train(BUCKETS)
    (row,) = found.rows
    assert (found.code, row.n, row.checked, row.wrong, row.na) == (0, 12, 1, 0, None)
    assert row.moved_bytes == 1.5 * (4096 + 4096 + 1024)  # 2 · 3/4 of each bucket, by every rank
    whole = 2 * lasts(4096) + lasts(1024)
    assert row.time_s.p50 == pytest.approx(whole, rel=0.06)
    assert row.busbw_bytes_per_s == pytest.approx(row.moved_bytes / row.time_s.p50)
    assert row.ceiling_time_s == pytest.approx(row.moved_bytes / BETA_BYTES_PER_S)
    assert row.percent_of_ceiling == pytest.approx(100 * row.ceiling_time_s / row.time_s.p50)
    assert (row.ceiling.kind, row.ceiling.bytes_per_s) == ("simulated", pytest.approx(BETA_BYTES_PER_S))
    assert row.time_s.ci_low < row.time_s.p50 < row.time_s.ci_high and {"simulated", "few_samples"} <= set(row.flags)
    large, small = row.parts
    assert [getattr(large, key) for key in ("what", "operation", "groups", "group_ranks", "size_bytes", "times", "moved_bytes")] == [
        "bucket 1 of 3 … bucket 2 of 3", "allreduce", 1, 4, 4096, 2, 1.5 * 8192,
    ]  # fmt: skip
    assert (small.what, small.times, small.moved_bytes) == ("bucket 3 of 3", 1, 1.5 * 1024)
    assert large.time_s.p50 == pytest.approx(lasts(4096), rel=0.06)
    assert large.busbw_bytes_per_s == pytest.approx(1.5 * 4096 / large.time_s.p50)
    assert large.percent_of_ceiling == pytest.approx(100 * large.busbw_bytes_per_s / BETA_BYTES_PER_S)
    assert row.parts_time_s == pytest.approx(2 * large.time_s.p50 + small.time_s.p50)
    assert (row.evidence["buffers"], row.evidence["exchanges"]) == ([2, 1], 3)  # alike ones take turns
    (row,) = train(BUCKETS, parts=False).rows
    assert [part.time_s for part in row.parts] == [None, None] and row.parts_time_s is None and row.percent_of_ceiling


def test_groups_at_the_same_time_take_the_time_of_one_and_ranks_that_share_nothing_do_not_wait(train):
    pairs = [
        {"operation": "p2p_bandwidth", "groups": [[0, 1], [2, 3]], "size_bytes": 1 << 20},
        {"operation": "p2p_bandwidth", "groups": [[1, 2]], "size_bytes": 1 << 20, "what": "across"},
        {"operation": "allreduce", "groups": [[3, 1], [0, 2]], "size_bytes": 1 << 20, "what": "columns"},
    ]
    (row,) = train(pairs).rows
    assert row.moved_bytes == 3 << 20  # ranks 1 and 2: two messages, and 2 · 1/2 of the all-reduce
    assert row.ceiling_time_s == pytest.approx((3 << 20) / BETA_BYTES_PER_S)
    assert row.time_s.p50 == pytest.approx(3 * lasts(1 << 20, 1), rel=0.06) and row.wrong == 0
    apart = [{"operation": "allreduce", "groups": [group], "size_bytes": 1 << 20} for group in ([0, 1], [2, 3])]
    (row,) = train(apart).rows
    assert row.ceiling_time_s == pytest.approx((1 << 20) / BETA_BYTES_PER_S)
    assert len(row.parts) == 2


def test_a_server_adds_up_what_workers_push_and_the_ceiling_is_of_what_it_moves_or_the_given_one(train):
    (row,) = train(SERVER).rows
    assert (row.wrong, row.checked, row.evidence["loop"]) == (0, 1, "python")
    assert row.moved_bytes == 4 * 3 * 4096  # the server gets 3 gradients twice, and sends 3 models twice
    for part in row.parts:
        assert part.moved_bytes == 2 * 3 * 4096
        assert part.busbw_bytes_per_s == pytest.approx(3 * 4096 / part.time_s.p50)
        # A simulated link has the time of nccl-tests' 3/4; of one message, the server's share is all.
        assert part.ceiling.bytes_per_s == pytest.approx(BETA_BYTES_PER_S * 4 / 3)
    assert row.ceiling.bytes_per_s == pytest.approx(BETA_BYTES_PER_S * 4 / 3)
    (row,) = train(SERVER, ceiling=2.0).rows
    assert row.ceiling.bytes_per_s == pytest.approx(2e9) and row.ceiling_time_s == pytest.approx(row.moved_bytes / 2e9)
    assert [part.ceiling.bytes_per_s for part in row.parts] == [pytest.approx(2e9)] * 2


def test_shares_that_differ_and_a_server_s_own_are_added_up_too(train):
    uneven = [[400, 0, 0, 800], [396, 0, 0, 800], [404, 0, 0, 0], [0, 0, 0, 4]]
    push = {"operation": "alltoallv", "groups": ALL, "size_bytes": 1604, "matrix": uneven, "adds": True, "what": "push"}
    (row,) = train([push]).rows
    assert (row.checked, row.wrong, row.moved_bytes) == (1, 0, 1600)


class Careless(SimulatedBackend):
    """Drops the share of rank 2 in one element of what rank 1 receives, of all-reduces of 1,024 bytes."""

    def bind(self, operation, case, group, buffers):
        program = super().bind(operation, case, group, buffers)
        if case.size_bytes != 1024:
            return program
        (call,) = program.slots[0]

        def spoil():
            call.function()
            buffers.recv(1, 0)[5] -= 1

        return replace(program, slots=((replace(call, function=spoil),),))


def test_wrong_data_ends_with_4_names_exchange_rank_and_element_and_may_stop_the_run(train, backend):
    backend(Careless)
    found = train(BUCKETS)
    (row,) = found.rows
    assert (found.code, row.wrong) == (4, 1)
    assert row.wrong_detail.startswith("bucket 3 of 3: rank 1: 1 wrong element, first at 5: ")
    assert row.evidence["wrong_data"]["first"][0]["what"] == "bucket 3 of 3"
    assert any(row.wrong_detail in note for note in found.listener.notes)
    assert json.loads((found.folder / "run.json").read_text())["exit_code"] == 4
    (row,) = train(BUCKETS, check=0).rows
    assert (row.checked, row.wrong) == (0, None), "unchecked is not right"
    stopped = train(BUCKETS, SERVER, stop_on_wrong=True)
    assert (stopped.code, len(stopped.rows)) == (4, 1) and any("--stop-on-wrong" in note for note in stopped.listener.notes)


def test_a_sum_that_is_wrong_is_the_server_s(train, monkeypatch):
    monkeypatch.setattr("collbench.plugins.training.step_task._Server.add", lambda server, slot: server.totals[slot].fill(0))
    found = train(SERVER)
    assert found.code == 4 and "push: rank 0: 1024 wrong elements" in found.rows[0].wrong_detail
    assert "the server added up" in found.rows[0].wrong_detail


class Fussy(SimulatedBackend):
    """Carries no all-gather."""

    def bind(self, operation, case, group, buffers):
        if operation.name == "allgather":
            raise CollbenchError("no allgather today")
        return super().bind(operation, case, group, buffers)


def test_what_a_backend_refuses_is_na_and_the_rest_is_measured_unless_there_is_none(train, backend):
    backend(Fussy)
    gather = [*BUCKETS, {"operation": "allgather", "groups": ALL, "size_bytes": 4096, "what": "parameters"}]
    found = train(gather, BUCKETS)
    assert [row.na for row in found.rows] == ["parameters: no allgather today", None] and found.code == 0
    assert found.rows[0].na_fact == {
        "kind": "part_not_prepared", "part": "parameters",
        "reason": {"kind": "case_failed", "stage": "binding", "rank": 0, "reason": "no allgather today"},
    }  # fmt: skip
    assert found.rows[0].moved_bytes > 0 and found.rows[0].time_s is None
    assert train([{"operation": "allgather", "groups": ALL, "size_bytes": 4096}]).code == 2


def test_what_cannot_be_laid_out_and_is_optional_and_asynchronous_training_of_virtual_ranks_are_left_out(train):
    found = train({"exchanges": [], "optional": True}, BUCKETS)
    assert found.code == 0 and "no exchanges" in found.rows[0].na and found.rows[1].na is None
    messages = [{"operation": "p2p_bandwidth", "groups": [pair], "size_bytes": 4096} for pair in ([1, 0], [0, 1])]
    found = train({"exchanges": messages, "asynchronous": True}, BUCKETS)
    assert decode_reason(found.rows[0].na_fact) == ServersUnsupported("simulated", "simulated", ("mpi", "gloo"))
    assert found.rows[1].na is None


def test_slowed_steps_report_it(train):
    (row,) = train(BUCKETS, slowed=["by=50% sizes=4096"]).rows
    plain = 2 * lasts(4096) + lasts(1024)
    assert "slowed" in row.flags and row.time_s.p50 == pytest.approx(plain + lasts(4096), rel=0.06)


def test_the_folder_shows_what_was_measured(train):
    found = train(BUCKETS, SERVER)
    about = json.loads((found.folder / "run.json").read_text())
    assert (about["operation"], about["exit_code"], about["rows"]) == ("workload", 0, 2)
    assert about["workload"] == found.about == found.listener.plan_of_launch.facts["workload"]
    assert found.listener.folder == str(found.folder)
    assert (found.about["ranks"], found.about["backends"], len(found.about["trainings"])) == (4, ["simulated"], 2)
    assert found.about["trainings"][0]["parameters"] == 1024 and found.listener.titles == [("by-hand on simulated", i, 2) for i in (0, 1)]
    assert json.loads((found.folder / "topology.json").read_text())["schema"] == 1


@pytest.mark.parametrize(("exchanges", "why"), [
    ([], "no exchanges"),
    ([{"operation": "allreduce", "groups": [[0, 1], [1, 2]], "size_bytes": 8}], "must be disjoint and of one size"),
    ([{"operation": "allreduce", "groups": [[0, 1], [2]], "size_bytes": 8}], "must be disjoint and of one size"),
    ([{"operation": "allreduce", "groups": [[0, 4]], "size_bytes": 8}], "rank 4 is not among the 4 ranks: start more"),
    ([{"operation": "allgather", "groups": ALL, "size_bytes": 8}], r"8 bytes are less than an element for each of 4 ranks \(16 bytes\)"),
    ([{"operation": "p2p_bandwidth", "groups": ALL, "size_bytes": 8}], "p2p_bandwidth is between two ranks, not 4"),
    ([{"operation": "allgether", "groups": ALL, "size_bytes": 8}], "unknown operation 'allgether'"),
    ([{"operation": "allreduce", "groups": ALL, "size_bytes": 2**52}], "is free: use a smaller model"),
    ([{"operation": "allreduce", "groups": ALL, "size_bytes": 8, "times": 10**9}], "makes 1,000,000,000 exchanges, but at most 100,000"),
])  # fmt: skip
def test_what_cannot_be_laid_out_is_refused_before_anything_is_measured(train, tmp_path, exchanges, why):
    with pytest.raises(UsageError, match=why):
        train(BUCKETS, exchanges)
    assert list(tmp_path.iterdir()) == []


def plan_by_hand(*groups):
    """A plan of all-reduces over these groups, one part each; their cases do not matter."""
    exchanges = [Exchange("allreduce", each, 4, "x") for each in groups]
    parts = tuple(StepPart("x", each, operations()["allreduce"], None, 1) for each in exchanges)
    return StepPlan(Step(tuple(exchanges), 4), parts, tuple(range(len(parts))))


def test_a_path_waits_where_ranks_are_shared_and_nowhere_else():
    plan = plan_by_hand(((0, 1), (2, 3)), ((1, 2),), ((0, 3),))
    assert path_s(plan, {0: 1.0, 1: 2.0, 2: 4.0}) == 1 + 4  # 1-2 and 0-3 side by side, both after the first
    assert path_s(plan_by_hand(((0, 1),), ((1, 2),), ((2, 3),)), {0: 1.0, 1: 2.0, 2: 4.0}) == 7  # a chain
    assert path_s(plan, {0: 1.0, 1: None, 2: 4.0}) is None
    assert path_s(replace(plan, order=(0, 0, 1, 1, 1, 2)), {0: 1.0, 1: 2.0, 2: 4.0}) == 2 + 3 * 2
    assert path_s(plan_by_hand(((0, 1),), ((2, 3),)), {0: 1.0, 1: 100.0}) == 100


def test_an_error_is_reported_in_the_library_s_words_where_a_rank_rests_in_the_first_exchange():
    resting, calling = Program(((),)), Program(((PythonCall("call", print),),), explain=lambda code: "no such communicator")
    found = [SimpleNamespace(program=each) for each in (resting, calling)]
    assert _program(found, [(0, 0), (1, 0), (1, 0)]).explain(5) == "no such communicator"
    assert _program(found, [(0, 0), (0, 0)]).explain(5) == "error code 5"


def test_what_must_cross_in_a_step_is_the_sum_of_its_exchanges():
    exchanges = [Exchange("allreduce", ((0, 1, 2),), 4096, "x"), Exchange("p2p_bandwidth", ((0, 1), (2, 3)), 100, "x")]
    cases = [Case(one.operation, "mpi", DTYPES["float32"], one.size_bytes, window=1) for one in exchanges]
    found = []
    for exchange, case, times in zip(exchanges, cases, (2, 3), strict=True):
        operation = operations()[exchange.operation]
        ready = SimpleNamespace(operation=operation, case=case)
        found.append(SimpleNamespace(part=StepPart("x", exchange, operation, case, times), ready=ready))
    must = must_cross(found, {0: "a", 1: "b", 2: "b", 3: "c"})
    assert must.out == {"a": 2 * 4096 + 3 * 100, "b": 2 * 4096 + 3 * 100, "c": 0}
    assert must.into == {"a": 2 * 4096, "b": 2 * 4096 + 3 * 100, "c": 3 * 100}
    assert must.total == 2 * 2 * 4096 + 3 * 2 * 100


@pytest.mark.parametrize("path", [None, OtherPath("simulated", "a", "out", 0, 1 << 30)])
def test_bytes_that_took_another_path_have_no_percentage_and_that_is_reported(train, monkeypatch, path):
    monkeypatch.setattr(monitored.MonitoredMeasurement, "other_path", path)
    found = train(BUCKETS)
    (row,) = found.rows
    percentages = [row.percent_of_ceiling, *(part.percent_of_ceiling for part in row.parts)]
    assert [each is None for each in percentages] == [path is not None] * 3
    assert ("other_path" in row.flags, bool(path and path.render() in found.listener.notes)) == (path is not None, path is not None)


@pytest.mark.parametrize(("first_calls_s", "virtual", "measured"), [
    ((3.0, 0.1), False, [1]), ((0.1, 3.0), False, [0]), ((0.1, 0.2), False, [1, 0]), ((3.0, 3.0), False, []), ((3.0, 3.0), True, [1, 0]),
])  # fmt: skip
def test_a_part_that_takes_longer_than_the_budget_is_not_measured_alone(first_calls_s, virtual, measured, monkeypatch):
    done = []
    engine = engine_by_hand(done.append)
    found, flags = time_parts(parts_by_hand(first_calls_s), context_by_hand(virtual), engine, Budget(max_time_s=2.0))
    assert done == measured  # the part that moves most is the first one
    assert found == [place if place in measured else None for place in (0, 1)]
    assert flags == (("parts_left_out",) if len(measured) < 2 else ())


def test_parts_are_left_out_when_those_before_them_used_the_budget_up(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(step_module.time, "monotonic", lambda: clock[0])
    engine = engine_by_hand(lambda place: clock.__setitem__(0, clock[0] + 2.5))
    parts = parts_by_hand((0.1, 0.1))
    assert time_parts(parts, context_by_hand(virtual=False), engine, Budget(max_time_s=2.0)) == ([None, 1], ("parts_left_out",))


def engine_by_hand(receive):
    """An engine of one rank that passes the place of each part to `receive`, and returns it."""

    def sample(work, ready, budget, loop):
        receive(ready.place)
        return ready.place

    return SimpleNamespace(world=SimpleNamespace(broadcast=lambda value, what: value), sample=sample)


def context_by_hand(virtual):
    return SimpleNamespace(backend=SimpleNamespace(virtual=virtual))


def parts_by_hand(first_calls_s):
    """A step of two parts of which the second moves more, with the seconds of their first calls."""
    parts = []
    for place, (first_s, size) in enumerate(zip(first_calls_s, (1024, 4096), strict=True)):
        exchange = Exchange("allreduce", ((0, 1),), size, "x")
        operation, case = operations()["allreduce"], Case("allreduce", "mpi", DTYPES["float32"], size)
        ready = SimpleNamespace(first_call_s=first_s, place=place)
        parts.append(SimpleNamespace(part=StepPart("x", exchange, operation, case, 1), ready=ready, loop=None))
    return SimpleNamespace(parts=parts)


@pytest.mark.parametrize(("timeout_s", "refused"), [(10.0, True), (30.0, False)])
def test_a_step_that_shows_no_progress_for_longer_than_the_deadline_is_refused(timeout_s, refused):
    plan = plan_by_hand(((0, 1),))
    look = SimpleNamespace(samples=np.full((2, 3), 9.0))
    step = SimpleNamespace(plan=plan, ready=SimpleNamespace(timed=[0, 1]), parts=[])
    turn = SimpleNamespace(backend=SimpleNamespace(virtual=False), title="fsdp on mpi")
    world = SimpleNamespace(timeout_s=timeout_s, broadcast=lambda value, what: value)
    refusal = pytest.raises(UsageError, match=r"a step of fsdp on mpi takes about .* use --timeout 19") if refused else nullcontext()
    with refusal:
        training.check_deadline(turn, step, [look], world)


def test_asynchronous_training_that_does_not_fit_the_memory_reports_it(monkeypatch):
    pairs = [Exchange("p2p_bandwidth", (pair,), 2**40, "x") for pair in ((1, 0), (0, 1))]
    me = SimpleNamespace(rank=0, host="node1")
    world = SimpleNamespace(on_host=lambda: [me, SimpleNamespace(rank=1)], me=me)
    said = library_too_large("parameter-server on mpi", roles_of(Step(tuple(pairs), 4), 2), world)
    assert "parameter-server on mpi" in said and "on node1 for its 2 ranks" in said
    assert library_too_large("x", roles_of(Step(tuple(replace(each, size_bytes=4) for each in pairs), 4), 2), world) is None
