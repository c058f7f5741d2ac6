"""A recorded step on fewer ranks: which dimension becomes shorter, and what is refused; and as a suite for `collbench run`."""

import pytest

from collbench.errors import UsageError
from collbench.operations.suite import check_names, read_suite
from collbench.plugins.traces.matching import match
from collbench.plugins.traces.recording import ShrunkTo
from collbench.plugins.traces.shrink import Dimension, mesh_of, shrunk
from collbench.plugins.traces.step import ReplayOptions, step_of
from collbench.plugins.traces.suite import suite_text
from collbench.plugins.training.workloads.step import Compute
from tests.plugins.traces.recorded import Op, trace_of

# 8 ranks: tensor-parallel pairs, data-parallel groups of 2 across them, and two stages of a pipeline.
TENSOR = [(0, 1), (2, 3), (4, 5), (6, 7)]
DATA = [(0, 2), (1, 3), (4, 6), (5, 7)]
GROUPS = {"world": range(8)} | {f"t{n}": group for n, group in enumerate(TENSOR)} | {f"d{n}": group for n, group in enumerate(DATA)}
SQUARE = {"world": range(4), "a": (0, 1), "b": (2, 3), "c": (0, 2), "d": (1, 3), "odd": (0, 3)}


def job(last="allreduce"):
    """Return a step: a stage sends to the next one, then tensor-parallel and data-parallel groups run."""
    ranks = {rank: [] for rank in range(8)}
    for rank in range(8):
        message = Op("send", sent=64, root=rank + 4) if rank < 4 else Op("recv", sent=64, root=rank - 4)
        tensor = next(name for name, group in GROUPS.items() if name[0] == "t" and rank in group)
        data = next(name for name, group in GROUPS.items() if name[0] == "d" and rank in group)
        ranks[rank] += [message, Op("alltoall", tensor, 128), Op(last, data, 256)]
    for operations in ranks.values():
        for place, op in enumerate(operations):
            object.__setattr__(op, "start_ms", 10.0 * place)
            object.__setattr__(op, "end_ms", 10.0 * place + 1)
    trace = trace_of(GROUPS, ranks)
    return step_of(trace, match(trace), ReplayOptions("all", 1.0))


def test_the_dimensions_follow_from_the_groups_and_a_data_parallel_one_of_two_ranks_stays():
    assert mesh_of(job().step.exchanges, 8) == (Dimension(1, 2), Dimension(2, 2), Dimension(4, 2))
    with pytest.raises(UsageError, match=r"p2p_message.*would have 1 rank.*alltoall|would have 1 rank"):
        shrunk(job(), 4)


def wide(ranks=8):
    """Return a step of tensor-parallel pairs and two data-parallel groups, sharded."""
    groups = {"world": range(ranks)} | {f"t{n}": (2 * n, 2 * n + 1) for n in range(ranks // 2)}
    groups |= {f"d{n}": range(n, ranks, 2) for n in range(2)}
    operations = {
        rank: [
            Op("alltoall", f"t{rank // 2}", 128, start_ms=0, end_ms=1),
            Op("allgather", f"d{rank % 2}", 1000, 1000 * ranks // 2, start_ms=5, end_ms=6),
            Op("reducescatter", f"d{rank % 2}", 1000 * ranks // 2, 1000, start_ms=7, end_ms=8),
        ]
        for rank in range(ranks)
    }
    trace = trace_of(groups, operations)
    return step_of(trace, match(trace), ReplayOptions("all", 1.0))


def test_the_data_parallel_dimension_becomes_shorter_or_the_only_group_of_all_ranks():
    found = shrunk(wide(), 4)
    assert found.ranks == 4 and found.recorded_ranks == 8 and found.step_time_s is None
    assert [(each.operation, each.groups, each.size_bytes) for each in found.step.exchanges] == [
        ("alltoall", ((0, 1), (2, 3)), 512), ("allgather", ((0, 2), (1, 3)), 16_000), ("reducescatter", ((0, 2), (1, 3)), 16_000),
    ]  # fmt: skip
    assert found.notes[-1] == ShrunkTo(8, 4, 4, 2, 2)
    assert len(found.step.timeline) == 4
    assert [action.seconds for action in found.step.timeline[3] if isinstance(action, Compute)] == pytest.approx([0.004, 0.001])
    trace = trace_of({"world": range(6)}, {rank: [Op("broadcast", sent=60, root=5)] for rank in range(6)})
    (exchange,) = shrunk(step_of(trace, match(trace)), 3).step.exchanges
    assert (exchange.groups, exchange.size_bytes, exchange.root) == (((0, 1, 2),), 240, 0)


@pytest.mark.parametrize(("ranks", "match"), [(3, "choose from 2, 4"), (16, "as many or fewer"), (2, "no data-parallel dimension")])
def test_numbers_of_ranks_that_are_refused(ranks, match):
    with pytest.raises(UsageError, match=match):
        shrunk(wide(), ranks)


@pytest.mark.parametrize("groups", [{"world": range(4), "a": (0, 1, 2)}, {"world": range(8), "a": (0, 1, 3, 2, 5, 4)}])
def test_irregular_groups_are_refused(groups):
    ranks = len(groups["world"])
    trace = trace_of(groups, {rank: [Op("allreduce", "a", 60)] if rank in groups["a"] else [] for rank in range(ranks)})
    with pytest.raises(UsageError, match="not a regular mesh"):
        shrunk(step_of(trace, match(trace)), ranks // 2)


def text_of(trace):
    return suite_text(step_of(trace, match(trace), ReplayOptions("all")), 'a "step"')


def test_each_operation_with_its_sizes_and_groups(tmp_path):
    ranks = {}
    for rank in range(4):
        row, column = ("a" if rank < 2 else "b"), ("c" if rank % 2 == 0 else "d")
        message = Op("send", sent=16, root=rank + 2) if rank < 2 else Op("recv", sent=16, root=rank - 2)
        ranks[rank] = [Op("allreduce", row, 8), Op("allreduce", row, 4), Op("allgather", column, 8, 16), message, Op("barrier", sent=1)]
        ranks[rank].append(Op("broadcast", sent=8, root=3, dtype="int32"))
    (tmp_path / "step.toml").write_text(text_of(trace_of(SQUARE, ranks)), encoding="utf-8")
    suite = read_suite(str(tmp_path / "step.toml"))
    check_names(suite, ["mpi"])
    assert [dict(sweep.values) for sweep in suite.sweeps] == [
        {"operations": ["allreduce"], "dtypes": ["float32"], "redops": ["sum"], "split": ["DIV 2"], "sizes": [16, 32]},
        {"operations": ["allgather"], "dtypes": ["float32"], "split": ["MOD 2"], "sizes": [64]},
        {"operations": ["p2p_bandwidth"], "dtypes": ["float32"], "window": [1], "sizes": [64]},
        {"operations": ["barrier"]},
        {"operations": ["broadcast"], "dtypes": ["int32"], "roots": [3], "sizes": [32]},
    ]


def test_groups_that_no_split_gives_are_named():
    odd = [Op("allreduce", "odd", 8), Op("allreduce", sent=8)]
    text = text_of(trace_of(SQUARE, {0: odd, 1: odd[1:], 2: odd[1:], 3: odd}))
    assert "# left out: allreduce of 32 bytes" in text and text.count("[[sweeps]]") == 1
    with pytest.raises(UsageError, match="--suite"):
        text_of(trace_of(SQUARE, {0: odd[:1], 1: [], 2: [], 3: odd[:1]}))
