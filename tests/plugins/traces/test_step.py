"""The step of a trace: its exchanges in an order of all ranks, what each rank does when, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.operations.traffic import elements
from collbench.plugins.traces import recording
from collbench.plugins.traces.matching import match
from collbench.plugins.traces.model import Part, ProcessGroup
from collbench.plugins.traces.step import ReplayOptions, step_of
from collbench.plugins.training.workloads.registry import regimes
from collbench.plugins.training.workloads.shape import shape_of
from collbench.plugins.training.workloads.step import Compute, Exchange, Start, Step, Wait, moved_bytes
from tests.plugins.traces.recorded import Op, operations_of, trace_of

PAIR = {"world": (0, 1)}
MESH = {"world": (0, 1, 2, 3), "a": (0, 1), "b": (2, 3), "c": (0, 2), "d": (1, 3)}


def recorded(trace, step="all", compute=None):
    return step_of(trace, match(trace), ReplayOptions(step, compute))


def both(*operations, **more):
    return trace_of(PAIR, {0: operations, 1: operations}, **more)


@pytest.mark.parametrize(("kind", "sent", "received", "size_bytes"), [
    ("allreduce", 100, 100, 400), ("broadcast", 100, 0, 400), ("reduce", 100, 0, 400), ("allgather", 50, 100, 400),
    ("reducescatter", 100, 50, 400), ("alltoall", 100, 100, 400), ("gather", 50, 0, 400), ("scatter", 0, 50, 400),
])  # fmt: skip
def test_the_size_is_that_of_the_whole_buffer(kind, sent, received, size_bytes):
    root = 1 if kind in ("broadcast", "reduce", "gather", "scatter") else -1
    (exchange,) = recorded(both(Op(kind, sent=sent, received=received, root=root))).step.exchanges
    redop = "sum" if kind in ("allreduce", "reduce", "reducescatter") else None
    assert exchange == Exchange(kind, ((0, 1),), size_bytes, "group world", redop=redop, root=1 if root == 1 else None)


def test_what_is_not_recorded_gets_a_default_that_is_listed_but_no_size_is_invented():
    found = recorded(both(Op("reduce", sent=8, redop=None, dtype=None)))
    (exchange,) = found.step.exchanges
    assert (exchange.redop, exchange.root, exchange.dtype, exchange.size_bytes) == ("sum", 0, "float32", 32)
    assert {(note.field, note.used, note.operations) for note in found.notes if isinstance(note, recording.DefaultUsed)} == {
        ("reduction op", "sum", 1), ("root", "the first rank of the group", 1), ("data type", "float32", 1),
    }  # fmt: skip
    with pytest.raises(UsageError, match="size"):
        recorded(both(Op("allreduce", sent=-1)))
    with pytest.raises(UsageError):
        recorded(both(Op("other")))
    trace = trace_of(MESH, {rank: [Op("broadcast", "b", 10, root=3)] if rank > 1 else [] for rank in range(4)})
    assert [(each.groups, each.root) for each in recorded(trace).step.exchanges] == [(((2, 3),), 1)]


def test_uneven_parts_are_the_traffic_from_rank_to_rank():
    sides = [((1, 2), (1, 5)), ((5, 4), (2, 4))]
    operations = {rank: [Op("alltoallv", sent=sum(to), received=sum(by), splits=(to, by))] for rank, (to, by) in enumerate(sides)}
    (exchange,) = recorded(trace_of(PAIR, operations)).step.exchanges
    assert exchange.operation == "alltoallv" and exchange.size_bytes == 4 * 9
    assert elements(exchange.traffic, 2, 9).tolist() == [[1, 2], [5, 4]]


@pytest.mark.parametrize("sides", [[((1, 2), (1, 9)), ((5, 4), (2, 4))], [((1, 2, 3), (1, 5)), ((5, 4), (2, 4))]])
def test_uneven_parts_that_contradict_are_refused(sides):
    operations = {rank: [Op("alltoallv", sent=3, received=3, splits=each)] for rank, each in enumerate(sides)}
    with pytest.raises(UsageError):
        recorded(trace_of(PAIR, operations))


@pytest.mark.parametrize(
    ("op", "reason"), [(Op("other", sent=4), "unsupported"), (Op("allreduce", sent=0), "empty"), (Op("allreduce", "own", sent=4), "alone")]
)
def test_what_cannot_be_replayed_is_left_out_and_listed(op, reason):
    groups = {"world": (0, 1), "own": (0,)}
    trace = trace_of(groups, {0: [op, Op("allreduce", sent=4)], 1: [*([op] if op.group == "world" else []), Op("allreduce", sent=4)]})
    found = recorded(trace)
    assert len(found.step.exchanges) == 1
    assert [note.reason for note in found.notes if isinstance(note, recording.OperationsLeftOut)] == [reason]


def test_equal_calls_of_disjoint_groups_at_the_same_place_are_one_exchange_unless_sizes_differ():
    ranks = {rank: [Op("allreduce", "aabb"[rank], 100), Op("allreduce", "cdcd"[rank], 100)] for rank in range(4)}
    found = recorded(trace_of(MESH, ranks)).step.exchanges
    assert [each.groups for each in found] == [((0, 1), (2, 3)), ((0, 2), (1, 3))]
    ranks = {rank: [Op("allreduce", "a" if rank < 2 else "b", 100 + rank // 2)] for rank in range(4)}
    assert {each.groups for each in recorded(trace_of(MESH, ranks)).step.exchanges} == {((0, 1),), ((2, 3),)}


def test_orders_that_contradict_name_both_ranks_and_calls_unless_there_is_no_order_of_groups():
    one, other = Op("allreduce", "a", 10), Op("broadcast", "world", 20, root=0)
    trace = trace_of(MESH, {0: [one, other], 1: [other, one], 2: [other], 3: [other]})
    with pytest.raises(UsageError, match=r"rank 0 calls allreduce .* before broadcast .* rank 1"):
        recorded(trace)
    unordered = replace(trace, ranks=tuple(replace(rank, missing=frozenset({Part.ORDER})) for rank in trace.ranks))
    assert len(recorded(unordered).step.exchanges) == 2


def ring(batch, overlap):
    """Return three ranks, each of which sends to the next one and receives from the previous one."""
    times = (0.0, 2.0, 1.0, 3.0) if overlap else (0.0, 1.0, 2.0, 3.0)
    ranks = {
        rank: [
            Op("send", sent=10, root=(rank + 1) % 3, start_ms=times[0], end_ms=times[1], batch=7 if batch else -1),
            Op("recv", sent=10, root=(rank - 1) % 3, start_ms=times[2], end_ms=times[3], batch=7 if batch else -1),
        ]
        for rank in range(3)
    }
    return trace_of({"world": range(3)}, ranks)


@pytest.mark.parametrize(("batch", "overlap"), [(True, False), (False, True)])
def test_messages_around_a_ring_run_if_they_overlap(batch, overlap):
    found = recorded(ring(batch, overlap)).step
    assert sorted(group for each in found.exchanges for group in each.groups) == [(0, 1), (1, 2), (2, 0)]
    assert {each.operation for each in found.exchanges} == {"p2p_message"}


def test_messages_around_a_ring_one_after_the_other_would_hang_and_overlapping_ones_start_in_order():
    with pytest.raises(UsageError, match="contradict"):
        recorded(ring(batch=False, overlap=False))
    found = recorded(ring(batch=True, overlap=True))
    for actions in found.step.timeline:
        starts = [action.exchange for action in actions if isinstance(action, Start)]
        assert starts == sorted(starts)


def test_absent_ranks_incomplete_beginnings_and_ignored_files_are_listed():
    found = recorded(trace_of(MESH, {0: [Op("allreduce", sent=10), Op("send", sent=4, root=3)]}))
    assert [(each.operation, each.groups) for each in found.step.exchanges] == [("allreduce", ((0, 1, 2, 3),)), ("p2p_message", ((0, 3),))]
    assert recording.RanksAbsent((1, 2, 3)) in found.notes and found.ranks == 4
    call = Op("allreduce", sent=10)
    trace = trace_of(PAIR, {0: [call] * 3, 1: [call] * 2})
    for rank, first in zip(trace.ranks, (1, 2), strict=True):
        rank.operations["sequence"] = np.arange(first, first + len(rank.operations))
    found = recorded(trace)
    assert len(found.step.exchanges) == 2 and recording.OperationsLeftOut("incomplete", 1) in found.notes
    trace = replace(both(Op("allreduce", sent=10)), ignored=tuple(Path(f"dump_rank_{rank}") for rank in range(5)))
    assert recording.FilesIgnored(("dump_rank_0", "dump_rank_1", "dump_rank_2"), 2) in recorded(trace).notes


@pytest.mark.parametrize(("name", "known"), [("", False), ("named", True)])
def test_the_ranks_that_use_a_group_are_its_ranks_if_it_has_a_name(name, known):
    trace = both(Op("allreduce", sent=10))
    groups = (ProcessGroup(name),)
    trace = replace(trace, groups=groups, ranks=tuple(replace(rank, groups=groups) for rank in trace.ranks))
    assert trace.mixes_groups is not known
    found = recorded(trace)
    assert found.step.exchanges[0].groups == ((0, 1),) and recording.GroupsUnknown(1) in found.notes


def timed(begin_ms, *lengths_ms, size=100):
    found = []
    for length in lengths_ms:
        found.append(Op("allreduce", sent=size, start_ms=begin_ms, end_ms=begin_ms + length))
        begin_ms += length
    return found


def spans(*spans_ms, duration_ms=None):
    """Return a trace of two ranks with equal all-reduces at these times. duration_ms: by the library's timer."""
    trace = both(*(Op("allreduce", sent=100, start_ms=begin, end_ms=end, queue=place) for place, (begin, end) in enumerate(spans_ms)))
    for rank in trace.ranks if duration_ms is not None else ():
        rank.operations["duration"] = round(duration_ms * 1e6)
    return trace


@pytest.mark.parametrize(("trace", "together_ms"), [
    (spans((0, 10), (10, 20), (30, 40)), 30),  # one after the other
    (spans((0, 10), (5, 15), (40, 50)), 25), (spans((0, 30), (5, 15), (20, 40)), 40), (spans((0, 10), (0, 10), (0, 10)), 10),
    (spans((0, 100), (0, 100), duration_ms=20), 40),  # a watchdog found both ends at the same time
])  # fmt: skip
def test_the_recorded_time_of_equal_exchanges_that_overlap_is_their_union(trace, together_ms):
    assert sum(seconds or 0 for seconds in recorded(trace).exchange_s) == pytest.approx(together_ms / 1e3)


def test_other_exchanges_do_not_shorten_the_recorded_time():
    reduced = Op("allreduce", sent=100, start_ms=0, end_ms=10, queue=0)
    trace = both(reduced, Op("allgather", sent=100, received=200, start_ms=0, end_ms=8, queue=1))
    assert recorded(trace).exchange_s == (pytest.approx(0.010), pytest.approx(0.008))


def test_the_median_step_by_its_recorded_time_is_replayed():
    operations = [*timed(0, 1, 1), *timed(50, 2, 2), *timed(60, 3, 3), *timed(80, 1, 1)]  # steps of 50, 10 and 20 ms, and a last one
    trace = both(*operations, steps={0: (0, 2, 4, 6), 1: (0, 2, 4, 6)})
    found = recorded(trace, "median")
    assert found.notes[0] == recording.StepChosen("recorded", 2, 4) and found.step_time_s == pytest.approx(0.020)
    assert found.exchange_s == (pytest.approx(0.003), pytest.approx(0.003))
    assert recorded(trace, "1").step_time_s == pytest.approx(0.010) and recorded(trace, "first").step_time_s == pytest.approx(0.050)
    assert len(recorded(trace, "all").step.exchanges) == 8
    with pytest.raises(UsageError, match="0 to 3"):
        recorded(trace, "4")


def test_steps_that_ranks_do_not_share_are_refused():
    trace = both(*timed(0, 1, 1, 1, 1), steps={0: (0, 2), 1: (0, 3)})
    with pytest.raises(UsageError, match="ranks 1 and 0"):
        recorded(trace, "first")
    with pytest.raises(UsageError, match="rank 0 has 2 steps"):
        recorded(both(*timed(0, 1, 1), steps={0: (0, 1)}), "first")


def test_an_exact_repetition_is_a_step():
    begin = [Op("broadcast", sent=7, root=0), Op("broadcast", sent=9, root=0)]
    step = [Op("allreduce", sent=10), Op("allreduce", sent=20), Op("allreduce", sent=10)]
    found = recorded(both(*begin, *step * 4), "")
    assert [each.size_bytes for each in found.step.exchanges] == [40, 80, 40]
    (chosen,) = (note for note in found.notes if isinstance(note, recording.StepChosen))
    assert (chosen.how, chosen.steps) == ("repeated", 4)


def test_without_an_exact_repetition_the_whole_trace_is_the_step():
    operations = [Op("allreduce", sent=size) for size in (10, 20, 10, 20, 11)]
    assert [len(recorded(both(*operations), step).step.exchanges) for step in ("", "all")] == [5, 5]
    with pytest.raises(UsageError, match="--step all"):
        recorded(both(*operations), "median")


def test_operations_that_overlapped_overlap_and_others_need_no_timeline():
    operations = [
        Op("allreduce", sent=10, start_ms=0, end_ms=4), Op("allreduce", sent=20, start_ms=2, end_ms=6),
        Op("allreduce", sent=30, start_ms=6, end_ms=7),
    ]  # fmt: skip
    timeline = recorded(both(*operations)).step.timeline
    assert timeline == ((Start(0), Start(1), Wait(0), Wait(1), Start(2), Wait(2)),) * 2
    assert recorded(both(*timed(0, 1, 2, 3))).step.timeline == ()
    found = recorded(both(Op("allreduce", sent=10), Op("allreduce", sent=20)), compute=1.0)
    assert found.step.timeline == () and recording.OverlapNotRecorded(2) in found.notes and found.step_time_s is None


def test_gaps_and_recorded_computing_are_computed_for_their_length():
    operations = [Op("allreduce", sent=10, start_ms=5, end_ms=6), Op("allreduce", sent=10, start_ms=10, end_ms=11)]
    found = recorded(both(*operations), compute=0.5)
    assert found.step.timeline[0] == (Start(0), Wait(0), Compute(pytest.approx(0.002)), Start(1), Wait(1))
    assert found.compute_s == pytest.approx(0.002)
    # The rank computes from 0 to 10 ms, starts an operation at 2 ms that ends at 5 ms, and is idle until a second one begins.
    operations = [Op("allreduce", sent=10, start_ms=2, end_ms=5), Op("allreduce", sent=20, start_ms=12, end_ms=15)]
    computing = {rank: [(0.0, 10.0)] for rank in (0, 1)}
    first, *_ = recorded(both(*operations, compute_ms=computing), compute=1.0).step.timeline
    assert first == (Start(0), Compute(pytest.approx(0.008)), Wait(0), Start(1), Wait(1))
    trace = both(*timed(0, 1), *timed(10, 1), *timed(20, 1), steps={0: (0, 1, 2), 1: (0, 1, 2)})
    assert recorded(trace, "1", compute=1.0).step.timeline[0] == (Start(0), Wait(0), Compute(pytest.approx(0.009)))


def test_a_rank_gets_the_exchanges_and_its_own_timeline_with_the_digest_of_what_runs():
    operations = [Op("allreduce", sent=10, start_ms=0, end_ms=4), Op("broadcast", sent=20, root=1, start_ms=2, end_ms=6)]
    sides = [((1, 2), (1, 5)), ((5, 4), (2, 4))]
    ranks = {rank: [*operations, Op("alltoallv", sent=3, splits=each, start_ms=8, end_ms=9)] for rank, each in enumerate(sides)}
    found = recorded(trace_of(PAIR, ranks), compute=1.0)
    whole, own = recording.decode(recording.encode(found)), recording.decode(recording.encode(found), rank=1)
    assert replace(whole, digest="") == found and len(whole.digest) == 8
    assert own.step.timeline == ((), found.step.timeline[1]) and own.step.exchanges == found.step.exchanges
    digests = {
        recording.decode(recording.encode(recorded(both(*operations), compute=compute))).digest
        for operations in (timed(0, 1, 2), timed(0, 1, 2, size=11), [*timed(0, 1), *timed(5, 2)])
        for compute in (None, 1.0)
    }
    assert len(digests) == 3  # without computing, the first and the last are equal; with it the first still has no gap


@pytest.mark.parametrize("name", [name for name in regimes() if name not in ("pipeline", "parameter-server", "expert-parallel")])
def test_a_workload_that_is_recorded_gives_the_same_bytes_and_order(name):
    options = {"model": "1M"} | ({"layers": "2", "hidden": "64", "sequence": "32", "tensor": "2"} if name == "tensor-parallel" else {})
    options |= {"layers": "2", "hidden": "64"} if name == "fsdp" else {}
    step = regimes()[name].step(shape_of(regimes()[name], options, (0, 0, 1, 1)))
    groups, ranks = operations_of(step, 4)
    found = recorded(trace_of(groups, ranks)).step
    expected = [replace(each, what="", times=1) for each in step.exchanges for _ in range(each.times)]
    assert [replace(each, what="") for each in found.exchanges] == expected
    assert moved_bytes(found, 4) == moved_bytes(Step(tuple(expected), 0), 4)


def test_the_exposed_part_is_what_computing_does_not_hide():
    """A step from 0 to 10 ms: exchanges from 2 to 5 ms and from 4 to 8 ms; the rank computes until 3 ms, and from 7 ms on."""
    operations = [Op("allreduce", sent=10, start_ms=2, end_ms=5), Op("allreduce", sent=20, start_ms=4, end_ms=8)]
    computing = {0: [(0, 3), (7, 10)], 1: [(0, 3), (7, 10)]}
    first, second = recording.decode(recording.encode(recorded(both(*operations, compute_ms=computing)))).timelines
    assert (first.rank, second.rank) == (0, 1)
    assert first.exchanges_s == pytest.approx(0.006)
    assert first.exposed_s == pytest.approx(0.004)
    assert first.computing_s is not None and first.step_s >= 0.006
    assert [(each.operation, each.size_bytes) for each in first.exchanges] == [("allreduce", 40), ("allreduce", 80)]
    assert first.exchanges[1].end_s - first.exchanges[1].begin_s == pytest.approx(0.004)


def test_without_computing_the_exposed_part_is_unknown_and_of_many_exchanges_the_first_are_drawn():
    first, _ = recorded(both(Op("allreduce", sent=10, start_ms=2, end_ms=5))).timelines
    assert (first.exposed_s, first.computing_s, first.computing) == (None, None, ())
    assert recorded(both(Op("allreduce", sent=10))).timelines == ()
    operations = [Op("allreduce", sent=10, start_ms=2 * each, end_ms=2 * each + 1) for each in range(300)]
    first, _ = recorded(both(*operations)).timelines
    assert (len(first.exchanges), first.left_out) == (200, 100)
    assert first.exchanges_s == pytest.approx(0.3)
