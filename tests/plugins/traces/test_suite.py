"""The suite of a replayed step: its operations, sizes and groups, as `collbench run` reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.operations.suite import check_names, read_suite
from collbench.plugins.traces.matching import match
from collbench.plugins.traces.model import Trace
from collbench.plugins.traces.step import ReplayOptions, step_of
from collbench.plugins.traces.suite import suite_text
from tests.plugins.traces.recorded import Op, trace_of

GROUPS = {"world": range(4), "a": (0, 1), "b": (2, 3), "c": (0, 2), "d": (1, 3), "odd": (0, 3)}


def text_of(trace: Trace) -> str:
    return suite_text(step_of(trace, match(trace), ReplayOptions("all")), 'a "step"')


def test_each_operation_with_its_sizes_and_groups(tmp_path: Path) -> None:
    ranks = {}
    for rank in range(4):
        row, column = ("a" if rank < 2 else "b"), ("c" if rank % 2 == 0 else "d")
        message = Op("send", sent=16, root=rank + 2) if rank < 2 else Op("recv", sent=16, root=rank - 2)
        ranks[rank] = [Op("allreduce", row, 8), Op("allreduce", row, 4), Op("allgather", column, 8, 16), message, Op("barrier", sent=1)]
        ranks[rank].append(Op("broadcast", sent=8, root=3, dtype="int32"))
    (tmp_path / "step.toml").write_text(text_of(trace_of(GROUPS, ranks)), encoding="utf-8")
    suite = read_suite(str(tmp_path / "step.toml"))
    check_names(suite, ["mpi"])
    assert [dict(sweep.values) for sweep in suite.sweeps] == [
        {"operations": ["allreduce"], "dtypes": ["float32"], "redops": ["sum"], "split": ["DIV 2"], "sizes": [16, 32]},
        {"operations": ["allgather"], "dtypes": ["float32"], "split": ["MOD 2"], "sizes": [64]},
        {"operations": ["p2p_bandwidth"], "dtypes": ["float32"], "window": [1], "sizes": [64]},
        {"operations": ["barrier"]},
        {"operations": ["broadcast"], "dtypes": ["int32"], "roots": [3], "sizes": [32]},
    ]


def test_groups_that_no_split_gives_are_named() -> None:
    odd = [Op("allreduce", "odd", 8), Op("allreduce", sent=8)]
    text = text_of(trace_of(GROUPS, {0: odd, 1: odd[1:], 2: odd[1:], 3: odd}))
    assert "# left out: allreduce of 32 bytes" in text and text.count("[[sweeps]]") == 1
    with pytest.raises(UsageError, match="--suite"):
        text_of(trace_of(GROUPS, {0: odd[:1], 1: [], 2: [], 3: odd[:1]}))
