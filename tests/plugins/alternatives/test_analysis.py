"""Backends, runs and rank counts as alternatives: who is the fastest at each size, never more than the evidence shows."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collbench.analysis.compare import compare_pair
from collbench.analysis.launches import Launches, combined_rows
from collbench.analysis.outcome import Outcome
from collbench.plugins.alternatives.analysis import BACKEND, NODES, RANKS, RUN, AlternativeGroup, Alternatives, Undecided, alternatives
from collbench.results.reader import Run
from collbench.results.row import Row, Times
from tests.results.rows import make_row, make_times, not_measured

PLACE = Path("runs")
BY_LAUNCH = (1.0, 1.01, 0.99, 1.0, 1.02, 0.98)


def row(backend: str, time_s: float, size: int = 1 << 20, **changes: Any) -> Row:
    ranks = changes.get("ranks", 4)
    rate = size / time_s
    values = {
        "backend": backend,
        "time_s": make_times(time_s),
        "algbw_bytes_per_s": rate,
        "busbw_bytes_per_s": rate * 2 * (ranks - 1) / ranks,
    }
    return make_row(size, **{**values, **changes})


def run(path: Path, *rows: Row) -> Launches:
    return launched(path, *rows, factors=(1.0,))


def launched(path: Path, *rows: Row, factors: Sequence[float] = BY_LAUNCH) -> Launches:
    """Launches whose times differ by these factors."""
    runs = []
    for factor in factors:
        moved = [scaled(each, factor) for each in rows]
        runs.append(Run(path, {"allocation_id": path.name}, moved))
    return Launches(path.name, tuple(runs), combined_rows(runs))


def scaled(each: Row, factor: float) -> Row:
    if each.time_s is None or factor == 1.0:
        return each
    return replace(each, time_s=make_times(factor * each.time_s.p50))


def compared(*sides: Launches) -> Alternatives:
    found = alternatives(sides)
    assert found is not None
    return found


def only_group(found: Alternatives) -> AlternativeGroup:
    (group,) = found.groups
    return group


def test_runs_of_two_backends_have_a_fastest_one_with_the_interval_over_launches() -> None:
    found = compared(launched(PLACE / "a", row("gloo", 1.8e-3)), launched(PLACE / "b", row("mpi", 1e-3)))
    group = only_group(found)
    assert (found.field, found.names, group.fastest, group.followers) == (BACKEND, ["mpi", "gloo"], "mpi", ["gloo"])
    lead = group.lead
    assert lead is not None and lead.time is not None and lead.time.low is not None and lead.time.high is not None
    assert lead.time.value == pytest.approx(1.8)
    assert 1.7 < lead.time.low < 1.8 < lead.time.high < 1.9
    assert group.times["gloo"].over_launches


def test_equal_scattered_and_bare_times_have_no_fastest_one() -> None:
    group = only_group(compared(launched(PLACE / "a", row("gloo", 1.001e-3)), launched(PLACE / "b", row("mpi", 1e-3))))
    assert (group.fastest, group.as_fast, group.times["gloo"].outcome) == (None, ["mpi", "gloo"], Outcome.NO_CHANGE)
    wide = (1.0, 1.2, 0.8, 1.1, 0.9, 1.3)
    sides = [launched(PLACE / name, row(name, time_s), factors=wide) for name, time_s in (("gloo", 1.1e-3), ("mpi", 1e-3))]
    group = only_group(compared(*sides))
    assert (group.fastest, group.times["gloo"].outcome) == (None, Outcome.INCONCLUSIVE)
    group = only_group(compared(launched(PLACE / "a", row("gloo", 1.03e-3)), run(PLACE / "b", row("mpi", 1e-3))))
    assert (group.fastest, group.times["gloo"].over_launches) == (None, False)
    bare = Times(3e-3, None, None, 3e-3, 3e-3, 3e-3, 3e-3)
    group = only_group(compared(run(PLACE / "a", replace(row("gloo", 3e-3), time_s=bare)), run(PLACE / "b", row("mpi", 1e-3))))
    assert (group.fastest, group.times["gloo"].outcome) == (None, Outcome.INCONCLUSIVE)
    bare = replace(row("gloo", 100e-3), time_s=Times(100e-3, None, None, 100e-3, 100e-3, 100e-3, 100e-3))
    sides = [run(PLACE / "a", row("mpi", 1e-3)), run(PLACE / "b", row("nccl", 1.01e-3)), run(PLACE / "c", bare)]
    group = only_group(compared(*sides))
    assert (group.fastest, group.as_fast, group.without_interval) == (None, ["mpi", "nccl"], ["gloo"])
    assert [group.times[name].undecided for name in ("mpi", "nccl", "gloo")] == [None, Undecided.SMALL, Undecided.NO_INTERVAL]


@pytest.mark.parametrize(("factor", "fastest"), [(1.03, None), (1.08, "mpi"), (2.0, "mpi")])
def test_one_launch_each_decides_only_above_the_margin(factor: float, fastest: str | None) -> None:
    group = only_group(compared(run(PLACE / "a", row("gloo", factor * 1e-3)), run(PLACE / "b", row("mpi", 1e-3))))
    assert group.fastest == fastest
    assert not group.times["gloo"].over_launches


def test_runs_of_one_case_are_ranked_by_their_launches_beside_another_backend() -> None:
    sides = [run(PLACE / name, row("mpi", time_s)) for name, time_s in (("a", 1e-3), ("b", 2e-3), ("c", 4e-3))]
    two = compare_pair(sides[0], sides[1])
    assert [case.outcome for case in two.cases] == [Outcome.INCONCLUSIVE]
    found = compared(*sides)
    group = only_group(found)
    assert (found.field, group.fastest, group.as_fast) == (RUN, None, ["a", "b", "c"])
    assert [group.times[name].undecided for name in ("b", "c")] == [Undecided.ONE_LAUNCH, Undecided.ONE_LAUNCH]
    launches = only_group(compared(*(launched(PLACE / side.name, *side.rows) for side in sides)))
    assert (launches.fastest, launches.times["b"].outcome) == ("a", Outcome.SLOWER)
    gloo = run(PLACE / "c", row("gloo", 4e-3))
    group = only_group(compared(run(PLACE / "a", row("mpi", 1e-3)), run(PLACE / "b", row("mpi", 2e-3)), gloo))
    assert (group.as_fast, group.times["c"].outcome) == (["a", "b"], Outcome.SLOWER)


def test_another_state_of_the_machine_is_a_reason_that_needs_a_larger_difference() -> None:
    probes = ({"before": 1.5e-9, "after": 1.5e-9}, {"before": 1e-9, "after": 1e-9})
    state = [
        run(PLACE / name, row(name, time_s, canary_s=probe)) for name, time_s, probe in zip(("a", "b"), (2e-3, 1e-3), probes, strict=True)
    ]
    assert only_group(compared(*state)).times["a"].undecided is Undecided.STATE
    few = (0.97, 1.03, 0.97, 1.03)
    overlap = [launched(PLACE / name, row(name, time_s), factors=few) for name, time_s in (("a", 1.08e-3), ("b", 1e-3), ("c", 2e-3))]
    assert only_group(compared(*overlap)).times["a"].undecided is Undecided.OVERLAP
    slow, fast = {"before": 1.5e-9, "after": 1.5e-9}, {"before": 1e-9, "after": 1e-9}
    for factor, fastest in ((2.0, None), (3.0, "mpi")):  # the probes differ by 1.5, the square is 2.25
        sides = [launched(PLACE / f"{factor}{name}", row(name, time_s, canary_s=probe))
                 for name, time_s, probe in (("gloo", factor * 1e-3, slow), ("mpi", 1e-3, fast))]  # fmt: skip
        assert only_group(compared(*sides)).fastest == fastest


def test_wrong_unreliable_missing_and_na_rows_are_not_ranked() -> None:
    rows = (row("gloo", 1e-4, flags=("oversubscribed",)), row("socket", 1e-5, wrong=3), row("mpi", 1e-3), row("nccl", 2e-3))
    found = alternatives([run(PLACE / "a", *rows)])
    assert found is not None
    group = only_group(found)
    assert (group.fastest, sorted(group.unranked)) == ("mpi", ["gloo", "socket"])
    assert [name for name, each in group.times.items() if each.ratio is not None] == ["nccl"]
    group = only_group(compared(run(PLACE / "a", row("gloo", 2e-3, wrong=1)), run(PLACE / "b", row("mpi", 1e-3))))
    assert (group.fastest, group.leader, group.lead) == (None, "mpi", None)
    lost = not_measured("no memory", size_bytes=1024, backend="gloo")
    gloo = run(PLACE / "a", lost, row("gloo", 2e-3), row("gloo", 3e-3, size=3 << 20))
    mpi = run(PLACE / "b", row("mpi", 1e-6, size=1024), row("mpi", 1e-3), row("mpi", 1e-3, size=5 << 20))
    found = compared(gloo, mpi)
    assert [group.row.size_bytes for group in found.groups] == [1024, 1 << 20]
    assert [group.fastest for group in found.groups] == [None, "mpi"]
    assert [(each.backend, each.size_bytes) for each in found.others] == [("gloo", 3 << 20), ("mpi", 5 << 20)]
    lost = not_measured("no GPU", size_bytes=1024, backend="gloo")
    group = only_group(compared(run(PLACE / "a", lost), run(PLACE / "b", replace(lost, backend="mpi"))))
    assert (group.leader, group.fastest, group.as_fast) == (None, None, [])


def test_placings_and_connections_that_are_no_choice() -> None:
    group = only_group(compared(run(PLACE / "a", row("gloo", 2e-3, in_place=True)), run(PLACE / "b", row("mpi", 1e-3))))
    assert (group.fastest, group.placings_differ) == ("mpi", True)
    mpi = run(PLACE / "b", row("mpi", 1e-3), row("mpi", 3e-3, in_place=True))
    found = compared(run(PLACE / "a", row("gloo", 2e-3, in_place=True)), mpi)
    group = only_group(found)
    assert (group.fastest, group.placings_differ, [each.in_place for each in found.others]) == ("gloo", False, [False])
    group = only_group(compared(run(PLACE / "a", row("socket", 2e-3, streams=1)), run(PLACE / "b", row("mpi", 1e-3))))
    assert group.fastest == "mpi"
    assert alternatives([run(PLACE / "c", row("socket", 2e-3, streams=4)), run(PLACE / "d", row("mpi", 1e-3))]) is None


def test_names_tell_runs_of_one_backend_of_equal_folders_and_of_two_backends_apart() -> None:
    times = {"mpich": 2e-3, "openmpi": 1e-3, "gloo": 4e-3}
    sides = [launched(PLACE / name, row("gloo" if name == "gloo" else "mpi", time_s)) for name, time_s in times.items()]
    found = compared(*sides)
    assert (found.field, found.names, only_group(found).fastest) == (RUN, ["openmpi", "mpich", "gloo"], "openmpi")
    found = compared(*(run(PLACE / name / "run", row("mpi", time_s)) for name, time_s in (("a", 1e-3), ("b", 2e-3), ("c", 3e-3))))
    assert found.names == ["a/run", "b/run", "c/run"]
    found = compared(*(run(PLACE / name / "a" / "run", row("mpi", time_s)) for name, time_s in (("x", 1e-3), ("y", 2e-3), ("z", 3e-3))))
    assert found.names == ["a/run #1", "a/run #2", "a/run #3"]
    both = run(PLACE / "both", row("mpi", 1e-3), row("gloo", 2e-3))
    found = compared(both, run(PLACE / "new", row("mpi", 0.5e-3)))
    assert found.names == ["new", "both mpi", "both gloo"]


@pytest.mark.parametrize("rate", [0.0, float("nan"), float("inf"), None])
def test_a_bandwidth_that_is_not_valid_is_not_used(rate: float | None) -> None:
    two, four = (run(PLACE / f"{ranks}", row("mpi", 1e-3 * ranks, ranks=ranks, busbw_bytes_per_s=rate)) for ranks in (2, 4))
    group = only_group(compared(two, four))
    efficiency = group.times["4 ranks"].efficiency
    assert efficiency is not None
    assert (group.by_bandwidth, efficiency.value) == (False, pytest.approx(0.5))
    both = only_group(compared(two, run(PLACE / "gloo", row("gloo", 1e-3, ranks=2, busbw_bytes_per_s=rate))))
    assert both.expected_s is None


@pytest.mark.parametrize(
    ("field", "one", "other", "names"),
    [
        ("algorithm", "ring", None, ["ring", "auto"]), ("protocol", "LL", "Simple", ["LL", "Simple"]),
        ("window", 1, 64, ["window 1", "window 64"]), ("dtype", "float32", "bfloat16", ["float32", "bfloat16"]),
        ("in_place", True, False, ["in place", "out of place"]), ("device", "cuda", "cpu", ["cuda", "cpu"]),
    ],
)  # fmt: skip
def test_any_other_single_field(field: str, one: Any, other: Any, names: list[str]) -> None:
    found = compared(run(PLACE / "a", row("nccl", 1e-3, **{field: one})), run(PLACE / "b", row("nccl", 2e-3, **{field: other})))
    assert (found.field, found.names, only_group(found).fastest) == (field, names, names[0])


@pytest.mark.parametrize("changes", [{"operation": "broadcast"}, {"mode": "batched"}, {"size_bytes": 7}, {"ranks": 8, "dtype": "int8"}])
def test_other_differences_are_no_alternatives(changes: dict[str, Any]) -> None:
    assert alternatives([run(PLACE / "a", row("mpi", 1e-3)), run(PLACE / "b", replace(row("gloo", 1e-3), **changes))]) is None


def test_ranks_scale_by_the_bus_bandwidth_of_the_smallest_count() -> None:
    two = launched(PLACE / "a", row("mpi", 1e-3, ranks=2))
    four = launched(PLACE / "b", row("mpi", 2e-3, ranks=4))
    found = compared(four, two)
    group = only_group(found)
    assert (found.field, found.is_scaling, found.names) == (RANKS, True, ["2 ranks", "4 ranks"])
    efficiency = group.times["4 ranks"].efficiency
    assert (group.smallest, group.by_bandwidth, group.times["2 ranks"].efficiency) == ("2 ranks", True, None)
    assert efficiency is not None and efficiency.low is not None and efficiency.high is not None
    assert efficiency.value == pytest.approx(0.75)  # 1.5 of size / time for four ranks, 1 for two, in twice the time
    assert 0.72 < efficiency.low < 0.75 < efficiency.high < 0.78


def test_small_messages_and_operations_without_bandwidth_scale_by_their_time() -> None:
    nothing = {"algbw_bytes_per_s": None, "busbw_bytes_per_s": None}
    for size, changes in ((512, {}), (0, {"operation": "barrier", **nothing})):
        two, four = (run(PLACE / f"{size}-{ranks}", row("mpi", time_s, size=size, ranks=ranks, **changes))
                     for ranks, time_s in ((2, 1e-6), (4, 2.5e-6)))  # fmt: skip
        group = only_group(compared(two, four))
        efficiency = group.times["4 ranks"].efficiency
        assert efficiency is not None
        assert (group.by_bandwidth, efficiency.value) == (False, pytest.approx(0.4))


def test_the_reference_of_an_efficiency_has_more_than_one_reliable_rank() -> None:
    counts = {1: 1e-4, 2: 1e-3, 4: 2e-3}
    found = compared(*(run(PLACE / f"{ranks}", row("mpi", time_s, ranks=ranks)) for ranks, time_s in counts.items()))
    group = only_group(found)
    assert (group.smallest, group.times["1 rank"].efficiency) == ("2 ranks", None)
    times = {"r2": (2, 1e-3), "r4": (4, 2e-3), "r4b": (4, 4e-3)}
    found = compared(*(launched(PLACE / name, row("mpi", time_s, ranks=ranks)) for name, (ranks, time_s) in times.items()))
    group = only_group(found)
    assert (found.field, found.is_scaling, group.smallest) == (RANKS, True, "2 ranks (r2)")
    efficiencies = {name: each.efficiency and round(each.efficiency.value, 3) for name, each in group.times.items()}
    assert efficiencies == {"2 ranks (r2)": None, "4 ranks (r4)": 0.75, "4 ranks (r4b)": 0.375}
    times = {"r2": (2, 1e-3), "r2b": (2, 3e-3), "r4": (4, 2e-3)}
    group = only_group(compared(*(launched(PLACE / name, row("mpi", time_s, ranks=ranks)) for name, (ranks, time_s) in times.items())))
    assert [name for name, each in group.times.items() if each.efficiency is not None] == ["4 ranks (r4)"]
    two, four = run(PLACE / "a", row("mpi", 1e-3, ranks=2)), run(PLACE / "b", row("mpi", 2e-3, flags=("oversubscribed",)))
    assert only_group(compared(two, four)).times["4 ranks"].efficiency is None


@pytest.mark.parametrize(
    ("places", "names"),
    [([(1, 8), (2, 16)], ["1 node", "2 nodes"]), ([(1, 8), (2, 8)], ["8 ranks on 1 node", "8 ranks on 2 nodes"])],
)  # fmt: skip
def test_nodes(places: list[tuple[int, int]], names: list[str]) -> None:
    found = compared(*(run(PLACE / f"{nodes}", row("mpi", 1e-3, ranks=ranks, nodes=nodes)) for nodes, ranks in places))
    assert (found.field, found.names) == (NODES, names)


def test_groups_ascend_and_have_the_highest_expected_bandwidth_of_their_rows() -> None:
    rows = (row("mpi", 1e-3), row("mpi", 2e-3, ranks=2), row("mpi", 3e-3, dtype="int8"))
    assert alternatives([run(PLACE / "a", *rows)]) is None
    found = alternatives([run(PLACE / "b", *rows, row("gloo", 2e-3))])
    assert found is not None
    assert only_group(found).fastest == "mpi"
    of_mpi = row("mpi", 1e-3, size=64 << 20)
    slower = of_mpi.compared_with(replace(of_mpi.ceiling, bytes_per_s=20e9), None, 50.0) if of_mpi.ceiling else of_mpi
    group = only_group(compared(run(PLACE / "a", of_mpi), run(PLACE / "b", replace(slower, backend="gloo"))))
    assert group.expected_bytes_per_s == 50e9
    assert group.expected_s == pytest.approx((64 << 20) * 1.5 / 50e9)
    sizes = (1 << 20, 64, 4096)
    rows = [
        row(backend, 1e-3, size=size, operation=name)
        for name in ("broadcast", "allreduce")
        for size in sizes
        for backend in ("mpi", "gloo")
    ]
    found = alternatives([run(PLACE / "a", *rows)])
    assert found is not None
    assert [(group.row.operation, group.row.size_bytes) for group in found.groups] == [
        (name, size) for name in ("allreduce", "broadcast") for size in sorted(sizes)
    ]


def test_among_three_the_intervals_of_the_times_must_not_overlap() -> None:
    few = (0.97, 1.03, 0.97, 1.03)
    gloo, mpi, slow = (
        launched(PLACE / name, row(name, time_s), factors=few) for name, time_s in (("gloo", 1.08e-3), ("mpi", 1e-3), ("socket", 2e-3))
    )
    assert only_group(compared(gloo, mpi)).fastest == "mpi"
    group = only_group(compared(gloo, mpi, slow))
    assert (group.fastest, group.as_fast) == (None, ["mpi", "gloo"])
    assert group.times["socket"].outcome is Outcome.SLOWER


def test_equal_alternatives_are_rarely_ranked() -> None:
    """Thirteen stacks with the same times, whose launches differ by 3 %: at most 5 % have a wrong winner."""
    random = np.random.default_rng(51)
    wrong = 0
    for trial in range(100):
        sides = [
            launched(PLACE / f"{trial}-{stack}", row("mpi", 1e-3), factors=list(np.exp(random.normal(0, 0.03, 4)))) for stack in range(13)
        ]
        wrong += only_group(compared(*sides)).fastest is not None
    assert wrong <= 5
