"""--skew and --traffic become the traffic of the cases; a barrier has no options for data."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collbench.errors import UsageError
from collbench.measure.tasks.cases import check_traffic
from collbench.operations.builtin.alltoall import ALLTOALLV
from collbench.operations.builtin.barrier import BARRIER
from collbench.operations.dtypes import DTYPES
from collbench.operations.sweep import Sweep
from collbench.operations.traffic import Traffic

MATRIX = "0 60 12\n8 0 0\n4 4 4\n"


@pytest.fixture
def asked(request_of: Any, tmp_path: Path) -> Any:
    """Return a function that makes the sweep of a command line in a folder with the file m."""
    (tmp_path / "m").write_text(MATRIX)
    return lambda line, **variables: request_of(line, **variables).sweep


def names(sweep: Sweep) -> set[str]:
    return {case.traffic.name for case in sweep.cases("simulated", 3) if case.traffic}


def test_skew(asked: Any) -> None:
    assert (names(asked("alltoallv")), names(asked("alltoallv --skew 1"))) == ({"even"}, {"even"})
    assert names(asked("alltoallv --skew 2.5")) == names(asked("alltoallv", COLLBENCH_SKEW="2.5")) == {"skew 2.5"}


def test_a_file_has_its_own_size_unless_sizes_are_given(asked: Any) -> None:
    own = asked("alltoallv --traffic m")
    assert (own.sizes, own.traffic.matrix[0]) == ((72,), (0.0, 60.0, 12.0))
    assert names(own) == {f"m:{own.traffic.name.partition(':')[2]}"} and len(own.traffic.name) == len("m:12345678")
    assert asked("alltoallv --traffic m --sizes 1K,2K").sizes == (1024, 2048)
    assert asked("alltoallv --traffic m -b 1K").sizes == (1024,)
    assert (asked("alltoallv --traffic m -f 4").sizes, asked("alltoallv --traffic m -f 4").step) == (None, "x4")
    assert asked("alltoallv --traffic m", COLLBENCH_SKEW="2").traffic == own.traffic, "what was typed wins"


def test_a_barrier_has_neither_sizes_nor_types_nor_places(asked: Any) -> None:
    (case,) = asked("barrier").cases("mpi", 4)
    assert (case.size_bytes, case.dtype.name, case.in_place, case.buffers) == (0, "uint8", None, "fixed")
    for option in ("--sizes 8", "-b 8", "-d int8", "--in-place", "--buffers fixed", "--redop sum", "--root 0", "--skew 2"):
        with pytest.raises(UsageError, match=r"barrier .*option"):
            asked(f"barrier {option}")


def world(*names: list[str]) -> Any:
    """Return ranks that have traffic of these names."""
    members = [f"rank {rank} (node{rank}, pid {rank})" for rank in range(len(names))]

    def refuse(reason: str) -> None:
        raise UsageError(reason)

    return SimpleNamespace(allgather=lambda mine, what: list(names), members=members, refuse=refuse)


def sweep_of(traffic: Traffic | None) -> Sweep:
    return Sweep((ALLTOALLV,), (8,), (DTYPES["int8"],), traffic=traffic)


def test_all_ranks_need_the_same_file() -> None:
    mine = sweep_of(Traffic("m:11111111", matrix=((1.0,),)))
    check_traffic(mine, world(["m:11111111"], ["m:11111111"]))
    with pytest.raises(UsageError) as refused:
        check_traffic(mine, world(["m:11111111"], ["m:11111111"], ["m:22222222"]))
    assert all(value in str(refused.value) for value in ("rank 2 (node2, pid 2)", "m:22222222", "m:11111111"))


def test_ranks_exchange_nothing_if_no_traffic_is_uneven() -> None:
    asked: list[str] = []
    check_traffic(Sweep((BARRIER,), (8,), (DTYPES["int8"],)), SimpleNamespace(allgather=lambda _, what: asked.append(what)))  # type: ignore[arg-type]
    assert asked == []
