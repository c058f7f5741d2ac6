"""Several sweeps are measured in one launch: each case once, what two of them ask for is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from collbench.errors import UsageError
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.builtin.broadcast import BROADCAST
from collbench.operations.builtin.p2p import P2P_LATENCY
from collbench.operations.case import Split
from collbench.operations.dtypes import DTYPES
from collbench.operations.sweep import CPU, Sweep, Sweeps, rounding_note, tuning_note


def sweep(*operations: Any, place: str = "sweeps[1]", sizes: tuple[int, ...] = (8, 64), dtype: str = "float32", **more: Any) -> Sweep:
    return Sweep(operations, sizes, (DTYPES[dtype],), place=place, **more)


def cases(*sweeps: Sweep, backend: str = "mpi", n: int = 4, **more: Any) -> list[tuple[str, str, int]]:
    return [(sweep.place, case.operation, case.size_bytes) for sweep, case in Sweeps(sweeps, **more).placed_cases(backend, n)]


def test_the_cases_come_sweep_by_sweep() -> None:
    one, two = sweep(BROADCAST, place="a"), sweep(ALLREDUCE, place="b", sizes=(4,))
    assert cases(one, two) == [("a", "broadcast", 8), ("a", "broadcast", 64), ("b", "allreduce", 4)]
    both = Sweeps((one, two))
    assert [case.operation for case in both.cases("mpi", 4)] == ["broadcast", "broadcast", "allreduce"]
    assert (both.operations, both.defaults("mpi")) == ((BROADCAST, ALLREDUCE), CPU)


def test_a_sweep_is_for_the_backends_that_it_names_and_else_for_the_usual_ones() -> None:
    named, open_ = sweep(BROADCAST, place="a", backends=("socket", "mpi")), sweep(ALLREDUCE, place="b", sizes=(4,))
    each = {
        name: {place for place, *_ in cases(named, open_, backend=name, default_backends=("mpi", "gloo"))}
        for name in ("socket", "mpi", "gloo")
    }
    assert each == {"socket": {"a"}, "mpi": {"a", "b"}, "gloo": {"b"}}


@pytest.mark.parametrize(
    ("second", "title"),
    [
        ({}, "allreduce 8 B on mpi (float32, sum)"),
        ({"sizes": (64, 128)}, "allreduce 64 B on mpi (float32, sum)"),
        ({"sizes": (65,)}, "allreduce 64 B on mpi (float32, sum)"),  # rounded to whole elements
        ({"in_place": False, "sizes": (8,)}, "allreduce 8 B on mpi (float32, sum)"),  # where the library has it, that is the default
    ],
)
def test_a_case_that_two_sweeps_ask_for_is_refused(second: dict[str, Any], title: str) -> None:
    with pytest.raises(UsageError) as raised:
        cases(sweep(ALLREDUCE, place="sweeps[1] 'a' of x.toml"), sweep(ALLREDUCE, place="sweeps[2] of x.toml", **second))
    assert all(part in str(raised.value) for part in (title, "sweeps[1] 'a' of x.toml", "sweeps[2] of x.toml"))


@pytest.mark.parametrize("second", [{"mode": "batched"}, {"dtype": "int8"}, {"buffers": "rotating"}, {"in_place": True}, {"seed": 1}])
def test_what_differs_in_anything_is_another_case(second: dict[str, Any]) -> None:
    assert len(cases(sweep(ALLREDUCE, place="a"), sweep(ALLREDUCE, place="b", **second))) == 4


def test_where_the_library_has_it_in_place_only_that_is_the_default() -> None:
    gloo = replace(CPU, in_place_only=lambda operation: operation is ALLREDUCE)
    usual, in_place = sweep(ALLREDUCE, place="a", defaults=lambda _: gloo), sweep(ALLREDUCE, place="b", in_place=True)
    with pytest.raises(UsageError, match="both define allreduce 8 B"):
        cases(usual, in_place)


def test_what_options_made_alike_is_measured_once() -> None:
    assert cases(sweep(ALLREDUCE, place="a"), sweep(ALLREDUCE, place="b"), once=True) == [("a", "allreduce", 8), ("a", "allreduce", 64)]


def test_within_one_table_what_its_lists_do_not_distinguish_is_measured_once() -> None:
    halves = [sweep(P2P_LATENCY, ALLREDUCE, sizes=(8,), split=split) for split in (None, Split("MOD", 2))]
    assert [operation for _, operation, _ in cases(*halves)] == ["p2p_latency", "allreduce", "allreduce"]


def test_a_root_that_is_not_there_is_refused_with_its_place() -> None:
    with pytest.raises(UsageError, match=r"^b: root 4 "):
        Sweeps((sweep(ALLREDUCE, place="a"), sweep(BROADCAST, place="b", roots=(4,)))).check_ranks(4)


def test_the_notes_cover_all_sweeps() -> None:
    tuned = replace(CPU, tuned=True)
    both = Sweeps(
        (sweep(ALLREDUCE), sweep(ALLREDUCE, sizes=(9,), algorithms=("ring",), defaults=lambda name: tuned if name == "nccl" else CPU))
    )
    rounded = rounding_note(both)
    assert rounded is not None and rounded.startswith("sizes are rounded to whole float32 elements of 4 bytes")
    assert tuning_note(replace(both, each=both.each[::-1]), ["nccl", "mpi"]) == (
        "--algorithms, --protocols and --registration apply to nccl only, not to mpi"
    )
