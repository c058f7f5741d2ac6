"""Backends, runs and rank counts as alternatives: who is the fastest at each size, never more than the evidence shows."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from collbench.analysis.compare import compare_pair
from collbench.analysis.launches import Launches, combined_rows
from collbench.analysis.outcome import Outcome
from collbench.plugins.alternatives.analysis import NODES, RUN, AlternativeGroup, Alternatives, Undecided, alternatives
from collbench.plugins.alternatives.command import sides_of
from collbench.plugins.alternatives.page import equal_section, section
from collbench.plugins.alternatives.text import best_at, factor_texts, fastest_backend, foot, frame, headline, lines, size_spans
from collbench.report.html.against import section as against_section
from collbench.report.html.first_screen import BAD, DOUBT, FirstScreen, LargeFigure, first_screen
from collbench.report.material import Material
from collbench.results.reader import Run
from collbench.results.row import Row, Times
from collbench.stats.launches import Ratio
from tests.cli.command import run_here
from tests.results.rows import make_row, make_times, not_measured, store
from tests.stored import stored_reports

PLACE = Path("runs")
BY_LAUNCH = (1.0, 1.01, 0.99, 1.0, 1.02, 0.98)
WITHOUT_RATE = {"algbw_bytes_per_s": None, "busbw_bytes_per_s": None}


def row(backend: str, time_s: float, size: int = 1 << 20, **changes: Any) -> Row:
    ranks = changes.get("ranks", 4)
    rate = size / time_s
    values = {
        "backend": backend, "time_s": make_times(time_s), "algbw_bytes_per_s": rate, "busbw_bytes_per_s": rate * 2 * (ranks - 1) / ranks,
    }  # fmt: skip
    return make_row(size, **{**values, **changes})


def without_interval(backend: str, time_s: float) -> Row:
    return replace(row(backend, time_s), time_s=Times(time_s, None, None, time_s, time_s, time_s, time_s))


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


def test_equal_scattered_and_bare_times_have_no_fastest_one() -> None:
    group = only_group(compared(launched(PLACE / "a", row("gloo", 1.001e-3)), launched(PLACE / "b", row("mpi", 1e-3))))
    assert (group.fastest, group.as_fast, group.times["gloo"].outcome) == (None, ["mpi", "gloo"], Outcome.NO_CHANGE)
    wide = (1.0, 1.2, 0.8, 1.1, 0.9, 1.3)
    sides = [launched(PLACE / name, row(name, time_s), factors=wide) for name, time_s in (("gloo", 1.1e-3), ("mpi", 1e-3))]
    group = only_group(compared(*sides))
    assert (group.fastest, group.times["gloo"].outcome) == (None, Outcome.INCONCLUSIVE)
    group = only_group(compared(launched(PLACE / "a", row("gloo", 1.03e-3)), run(PLACE / "b", row("mpi", 1e-3))))
    assert (group.fastest, group.times["gloo"].over_launches) == (None, False)
    group = only_group(compared(run(PLACE / "a", without_interval("gloo", 3e-3)), run(PLACE / "b", row("mpi", 1e-3))))
    assert (group.fastest, group.times["gloo"].outcome) == (None, Outcome.INCONCLUSIVE)
    bare = run(PLACE / "c", without_interval("gloo", 100e-3))
    sides = [run(PLACE / "a", row("mpi", 1e-3)), run(PLACE / "b", row("nccl", 1.01e-3)), bare]
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
    assert headline(found) == (
        "inconclusive: no evidence which of a, b and c is faster (one launch each of the same case, and another launch may differ by more)"
    )
    assert best_at(found) == "fastest: none; undecided: 1 MiB"
    assert any("counts, and none between runs of the same case. Measure with --launches 5" in text for text in foot(found))
    launches = only_group(compared(*(launched(PLACE / side.name, *side.rows) for side in sides)))
    assert (launches.fastest, launches.times["b"].outcome) == ("a", Outcome.SLOWER)
    gloo = run(PLACE / "c", row("gloo", 4e-3))
    group = only_group(compared(run(PLACE / "a", row("mpi", 1e-3)), run(PLACE / "b", row("mpi", 2e-3)), gloo))
    assert (group.as_fast, group.times["c"].outcome) == (["a", "b"], Outcome.SLOWER)


def test_another_state_of_the_machine_is_a_reason_that_needs_a_larger_difference() -> None:
    slow, fast = {"before": 1.5e-9, "after": 1.5e-9}, {"before": 1e-9, "after": 1e-9}
    state = [run(PLACE / "a", row("a", 2e-3, canary_s=slow)), run(PLACE / "b", row("b", 1e-3, canary_s=fast))]
    assert only_group(compared(*state)).times["a"].undecided is Undecided.STATE
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


@pytest.mark.parametrize(("field", "one", "other", "names"), [
    ("algorithm", "ring", None, ["ring", "auto"]), ("protocol", "LL", "Simple", ["LL", "Simple"]),
    ("window", 1, 64, ["window 1", "window 64"]), ("dtype", "float32", "bfloat16", ["float32", "bfloat16"]),
    ("in_place", True, False, ["in place", "out of place"]), ("device", "cuda", "cpu", ["cuda", "cpu"]),
])  # fmt: skip
def test_any_other_single_field(field: str, one: Any, other: Any, names: list[str]) -> None:
    found = compared(run(PLACE / "a", row("nccl", 1e-3, **{field: one})), run(PLACE / "b", row("nccl", 2e-3, **{field: other})))
    assert (found.field, found.names, only_group(found).fastest) == (field, names, names[0])


@pytest.mark.parametrize("changes", [{"operation": "broadcast"}, {"mode": "batched"}, {"size_bytes": 7}, {"ranks": 8, "dtype": "int8"}])
def test_other_differences_are_no_alternatives(changes: dict[str, Any]) -> None:
    assert alternatives([run(PLACE / "a", row("mpi", 1e-3)), run(PLACE / "b", replace(row("gloo", 1e-3), **changes))]) is None


def test_of_two_runs_with_the_smallest_count_neither_has_an_efficiency() -> None:
    group = only_group(compared(*scaled_runs([1 << 20], r2=[1e-3], r2b=[3e-3], r4=[2e-3])))
    assert [name for name, each in group.times.items() if each.efficiency is not None] == ["4 ranks (r4)"]


def scaled_runs(sizes: Sequence[int], **times_s: Sequence[float | None]) -> list[Launches]:
    """A run for each number of ranks ("r4", "r4b"), with a time at each size; None is n/a."""
    sides = []
    for name, times in times_s.items():
        ranks = int(name[1:2])
        rows = [
            row("mpi", time_s, size=size, ranks=ranks) if time_s is not None
            else not_measured("no memory", size_bytes=size, backend="mpi", ranks=ranks)
            for size, time_s in zip(sizes, times, strict=True)
        ]  # fmt: skip
        sides.append(launched(PLACE / name, *rows))
    return sides


@pytest.mark.parametrize(("places", "names"), [
    ([(1, 8), (2, 16)], ["1 node", "2 nodes"]), ([(1, 8), (2, 8)], ["8 ranks on 1 node", "8 ranks on 2 nodes"]),
])  # fmt: skip
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
    cases = [(name, size) for name in ("broadcast", "allreduce") for size in sizes]
    rows = [row(backend, 1e-3, size=size, operation=name) for name, size in cases for backend in ("mpi", "gloo")]
    found = alternatives([run(PLACE / "a", *rows)])
    assert found is not None
    assert [(group.row.operation, group.row.size_bytes) for group in found.groups] == sorted(cases)


def test_among_three_the_intervals_of_the_times_must_not_overlap() -> None:
    few = (0.97, 1.03, 0.97, 1.03)
    gloo, mpi, slow = (
        launched(PLACE / name, row(name, time_s), factors=few) for name, time_s in (("gloo", 1.08e-3), ("mpi", 1e-3), ("socket", 2e-3))
    )
    assert only_group(compared(gloo, mpi)).fastest == "mpi"
    group = only_group(compared(gloo, mpi, slow))
    assert (group.fastest, group.as_fast) == (None, ["mpi", "gloo"])
    assert (group.times["gloo"].undecided, group.times["socket"].outcome) == (Undecided.OVERLAP, Outcome.SLOWER)


def test_equal_alternatives_are_rarely_ranked() -> None:
    """Thirteen stacks with the same times, whose launches differ by 3 %: at most 5 % have a wrong winner."""
    random = np.random.default_rng(51)
    wrong = 0
    for _ in range(100):
        sides = [launched(PLACE / f"{stack}", row("mpi", 1e-3), factors=np.exp(random.normal(0, 0.03, 4)).tolist()) for stack in range(13)]
        wrong += only_group(compared(*sides)).fastest is not None
    assert wrong <= 5


STACKS = sorted(path for path in (stored_reports() / "stacks").iterdir() if path.is_dir())


def stored(folder: Path, *rows: Row) -> Path:
    for number, factor in enumerate(BY_LAUNCH, start=1):
        store(folder / f"launch-{number}", [scaled(each, factor) for each in rows], allocation_id=folder.name)
    return folder


def table(*sides: Launches, width: int | None = None) -> list[str]:
    texts = [line.text.split("  ") for line in lines(compared(*sides), "table", width)]
    return ["|".join(part.strip() for part in parts if part.strip()) for parts in texts]


GLOO = launched(PLACE / "a", row("gloo", 1.8e-3), row("gloo", 1e-6, size=64))
MPI = launched(PLACE / "b", row("mpi", 1e-3), row("mpi", 2e-6, size=64))


def test_the_answer_has_the_largest_size_another_winner_and_single_launches() -> None:
    assert headline(compared(GLOO, MPI)) == (
        "mpi is 1.80 times as fast as gloo at 1 MiB (1.75–1.85); gloo is 2.00 times as fast as mpi at 64 B (1.94–2.06)"
    )
    found = compared(run(PLACE / "a", row("gloo", 1.8e-3)), run(PLACE / "b", row("mpi", 1e-3)))
    assert headline(found) == "mpi is 1.80 times as fast as gloo at 1 MiB (1.77–1.83, one launch each)"
    assert any(text.startswith("one launch each: intervals do not include what differs between launches") for text in foot(found))
    sides = [launched(PLACE / name, row(name, time_s)) for name, time_s in (("gloo", 4e-3), ("mpi", 2e-3), ("nccl", 1e-3))]
    assert headline(compared(*sides)) == "nccl is the fastest of 3 at 1 MiB: 2.00 times as fast as mpi (1.94–2.06)"
    gloo = launched(PLACE / "a", row("gloo", 1e-3), row("gloo", 9e-6, size=64))
    assert headline(compared(gloo, launched(PLACE / "b", row("mpi", 1e-3), row("mpi", 3e-6, size=64)))) == (
        "mpi is 3.00 times as fast as gloo at 64 B (2.92–3.09); undecided at 1 MiB: gloo, mpi"
    )


def test_the_table_has_a_line_for_each_size_and_a_column_for_each_alternative() -> None:
    assert table(GLOO, MPI)[1:7] == [
        "fastest: gloo at 64 B, mpi at 1 MiB", "a (6 launches), b (6 launches)",
        "cuda · isolated · out of place · fixed buffers · 4 ranks · 1 node", "size|fastest|times as fast|gloo µs|mpi µs|expected µs",
        "64 B|gloo|2.00 (1.94–2.06)|1.000|2.000 (2.00×)|–", "1 MiB|mpi|1.80 (1.75–1.85)|1800 (1.80×)|1000|31.46",
    ]  # fmt: skip


def test_wrong_and_unreliable_rows_are_named_and_not_ranked() -> None:
    sides = [
        run(PLACE / "a", row("gloo", 1e-6, wrong=3), row("gloo", 1e-7, size=64, wrong=1)),
        run(PLACE / "b", row("mpi", 1e-3), row("mpi", 2e-6, size=64)),
        run(PLACE / "c", row("nccl", 1.02e-3), not_measured("no memory", size_bytes=64)),
    ]
    found = compared(*sides)
    assert headline(found) == (
        "WRONG DATA in gloo; inconclusive: no evidence which of mpi and nccl is faster (one launch each, and no difference above ±5 %)"
    )
    assert [[column.text(group) for column in frame(found).columns][3:6] for group in found.groups] == [
        ["2.000", "n/a", "WRONG 1"], ["1000", "1020 (?)", "WRONG 3"],
    ]  # fmt: skip
    assert best_at(found) == "fastest: none; undecided: 64 B to 1 MiB"
    assert "n/a: nccl: no memory" in foot(found)
    assert {frame(found).style(group) for group in found.groups} == {"wrong"}
    found = compared(run(PLACE / "a", row("mpi", 1e-3, ranks=2)), run(PLACE / "b", row("mpi", 2e-3, flags=("oversubscribed",))))
    assert headline(found) == (
        "inconclusive: 2 ranks and 4 ranks cannot be compared (1 of 2 rows is unreliable: there are more ranks and busy threads than cores)"
    )
    rows = [row("nccl", 1e-3), row("mpi", 2e-3), row("gloo", 4e-3), row("socket", 1e-4, flags=("oversubscribed",))]
    found = compared(*(run(PLACE / each.backend, each) for each in rows))
    assert headline(found).startswith("nccl is the fastest of 3 at 1 MiB: 2.00 times as fast as mpi")
    assert "? before a time: unreliable, so not compared (`collbench report RUN` has the reason)" in foot(found)
    assert fastest_backend(run(PLACE / "all", *rows)) == ""
    assert fastest_backend(run(PLACE / "sound", *rows[:3])) != ""


def test_the_largest_count_reaches_a_share_where_it_has_a_time() -> None:
    sides = [launched(PLACE / f"{n}", row("mpi", time_s, ranks=n), row("mpi", time_s / 1000, size=64, ranks=n))
             for n, time_s in ((2, 1e-3), (4, 2e-3))]  # fmt: skip
    found = compared(*sides)
    assert headline(found) == "4 ranks reach 75 % of the bus bandwidth of 2 ranks at 1 MiB (73–77 %)"
    assert best_at(found) == ""
    assert table(*sides)[3:6] == ["size|2 ranks µs|4 ranks µs", "64 B|1.000|2.000 (2.0×)", "1 MiB|1000|2000 (75 %)"]
    assert foot(found)[:2] == [
        "93 %: the bus bandwidth as a share of that with 2 ranks; ideal is 100 %",
        "1.9×: the time as a multiple of that with 2 ranks, below 4 KiB, and without bus bandwidth; ideal is 1×",
    ]
    lost = scaled_runs([1 << 20, 1 << 24], r2=[1e-3, 16e-3], r8=[2e-3, None])
    answer = "8 ranks reach 88 % of the bus bandwidth of 2 ranks at 1 MiB (85–90 %)"
    assert headline(compared(*lost)) == answer
    two, four = scaled_runs([1 << 20, 1 << 24], r2=[1e-3, 16e-3], r4=[2e-3, 32e-3])
    (eight,) = scaled_runs([1 << 20], r8=[2e-3])
    assert headline(compared(two, four, eight)) == answer
    sides = [
        launched(PLACE / f"{n}", row("mpi", 1e-3 * n, ranks=n), row("mpi", 1e-3 * n * n, ranks=n, operation="alltoall")) for n in (2, 4)
    ]
    assert headline(compared(*sides)) == (
        "4 ranks reach 38 % of the bus bandwidth of 2 ranks in alltoall at 1 MiB (36–39 %); the most is 75 % in allreduce at 1 MiB"
    )


def test_counts_without_an_efficiency_or_a_reference() -> None:
    assert headline(compared(*scaled_runs([1 << 20], r2=[1e-3], r4=[2e-3], r8=[None]))) == (
        "4 ranks reach 75 % of the bus bandwidth of 2 ranks at 1 MiB (73–77 %); 8 ranks: no efficiency"
    )
    found = compared(*scaled_runs([64, 1 << 20], r1=[1e-6, 1e-3], r4=[2e-6, 2e-3]))
    assert headline(found) == "inconclusive: 1 rank and 4 ranks cannot be compared (a single rank sends nothing)"
    assert not any(text.startswith(("93 %", "1.9×")) for text in foot(found))
    found = compared(*scaled_runs([1 << 20], r2=[1e-3], r4=[None]))
    assert headline(found) == "inconclusive: 2 ranks and 4 ranks cannot be compared (at most one count has a time in each case)"
    found = compared(*scaled_runs([1 << 20], r1=[5e-4], r2=[1e-3], r4=[2e-3]))
    assert foot(found)[0] == "93 %: the bus bandwidth as a share of that with 2 ranks; ideal is 100 %"
    sides = scaled_runs([64, 1 << 20, 1 << 24], r2=[None, 1e-3, 16e-3], r4=[1e-6, 2e-3, 32e-3], r8=[3e-6, 2e-3, 32e-3])
    assert table(*sides)[3:7] == [
        "size|2 ranks µs|4 ranks µs|8 ranks µs", "64 B|n/a|1.000|3.000 (3.0× of 4 ranks)",
        "1 MiB|1000|2000 (75 %)|2000 (88 %)", "16 MiB|16000|32000 (75 %)|32000 (88 %)",
    ]  # fmt: skip
    assert foot(compared(*sides))[0] == "93 %: the bus bandwidth as a share of that with 2 ranks or the named count; ideal is 100 %"


def test_rows_of_a_barrier_or_of_one_count_have_no_fastest_and_the_reason_is_that_of_most_rows() -> None:
    sides = [launched(PLACE / name, row(name, 1e-6, size=0, operation="barrier", **WITHOUT_RATE)) for name in ("gloo", "mpi")]
    assert best_at(compared(*sides)) == "fastest of 1 case: none; undecided: 1"
    sides = scaled_runs([1 << 20], r2=[1e-3], r4=[2e-3], r4b=[4e-3])
    found = compared(*sides)
    assert headline(found) == (
        "4 ranks (r4b) reach 38 % of the bus bandwidth of 2 ranks (r2) at 1 MiB (36–39 %); the most is 75 % with 4 ranks (r4) at 1 MiB"
    )
    assert best_at(found) == ""
    assert "size|2 ranks (r2) µs|4 ranks (r4) µs|4 ranks (r4b) µs" in table(*sides)
    bare = without_interval("gloo", 90e-3)
    sides = [
        run(PLACE / "a", row("mpi", 1e-3), row("mpi", 1e-6, size=64)),
        run(PLACE / "b", row("nccl", 2e-3), row("nccl", 2e-6, size=64)),
        run(PLACE / "c", bare, row("gloo", 9e-6, size=64)),
    ]
    assert headline(compared(*sides)) == (
        "mpi is the fastest of 3 at 64 B: 2.00 times as fast as nccl (1.97–2.03, one launch each); undecided at 1 MiB: no interval of gloo"
    )
    assert "1 MiB|no interval|–|1000|2000 (2.00×)|90000 (no interval)|31.46" in table(*sides)
    slow = run(PLACE / "f", row("mpi", 1.0), row("mpi", 1e-6, size=64))
    assert headline(compared(slow, sides[2])).endswith("; undecided at 1 MiB: no interval of gloo")  # gloo has the shortest time
    without = compared(run(PLACE / "d", row("mpi", 1e-3)), run(PLACE / "e", bare))
    assert headline(without) == "inconclusive: no evidence which of mpi and gloo is faster (no interval)"
    rows = [row(f"back{number}", 1e-3) for number in range(8)]
    lost = [row("gloo", 1e-3, flags=("oversubscribed",)), row("ucc", 1e-3, flags=("oversubscribed",))]
    found = alternatives([run(PLACE / "a", *rows, *lost)])
    assert found is not None
    assert headline(found).endswith("is faster (within one launch, and no difference above ±5 %)")
    most = alternatives([run(PLACE / "b", *rows[:2], *lost)])
    assert most is not None
    assert headline(most).endswith("is faster (2 of 4 rows are unreliable: there are more ranks and busy threads than cores)")


@pytest.mark.parametrize(("ratio", "texts"), [
    (Ratio(1.8, 1.63, 1.98, 6), ("1.8", "1.6–2.0")), (Ratio(1.8, 1.79, 1.81, 6), ("1.80", "1.79–1.81")),
    (Ratio(512.3, 330, 531, 6), ("510", "330–530")), (Ratio(2688.0, 2458, 2912, 6), ("2,700", "2,500–2,900")),
    (Ratio(1.3, 1.002, 1.6, 6), ("1.300", "1.002–1.600")), (Ratio(1.5, None, None, 1), ("1.5", "no interval")),
])  # fmt: skip
def test_factors_have_the_digits_of_their_interval_and_never_read_as_one(ratio: Ratio, texts: tuple[str, str]) -> None:
    assert factor_texts(ratio) == texts


@pytest.mark.parametrize(("nodes", "named"), [((1, 1), True), ((1, 2), False)])
def test_other_hosts_are_named_unless_their_number_is_compared(nodes: tuple[int, int], *, named: bool, tmp_path: Path) -> None:
    sides = []
    for number, host in zip(nodes, ("n1", "n2"), strict=True):
        each = row("mpi", 1e-3, nodes=number, ranks=2 * number) if not named else row(host, 1e-3)
        sides.append(tmp_path / host)
        store(tmp_path / host, [each], hosts=[host])
    sentences = foot(compared(*sides_of(sides)))
    assert ("the runs differ in more, which may explain the times: hosts names: n1 → n2" in sentences) is named


def test_the_sentence_of_the_fastest_backend() -> None:
    assert size_spans([64, 4096, 65536, 1 << 24], [64, 4096, 65536, 1 << 20, 1 << 24]) == "64 B to 64 KiB, 16 MiB"
    assert size_spans([], [64]) == ""
    rows = [row("mpi", 1e-3, size=size) for size in (64, 4096, 1 << 20)]
    slower = [row("gloo", time_s, size=size) for time_s, size in ((1.01e-3, 64), (2e-3, 4096), (5e-3, 1 << 20))]
    assert fastest_backend(run(PLACE / "a", *rows, *slower)) == (
        "mpi is the fastest backend at all sizes from 4 KiB (2.0 to 5.0 times as fast as gloo, within one launch)"
    )
    assert fastest_backend(launched(PLACE / "b", *rows[1:], *slower[1:])) == (
        "mpi is the fastest backend at all sizes (2.0 to 5.0 times as fast as gloo)"
    )
    equal = [row("gloo", 1e-3, size=size) for size in (64, 4096)]
    assert fastest_backend(run(PLACE / "c", *rows, *equal, slower[2])) == ""  # decided at one size of three
    mixed = [row("mpi", 1e-3), row("gloo", 2e-3), row("mpi", 2e-6, size=64), row("gloo", 1e-6, size=64)]
    assert fastest_backend(run(PLACE / "a", *mixed)) == ""
    assert fastest_backend(run(PLACE / "b", row("mpi", 1e-3))) == ""
    lost = [row("mpi", 1e-3), not_measured("no GPU", size_bytes=1 << 20, backend="nccl")]
    assert fastest_backend(run(PLACE / "c", *lost)) == ""
    unreliable = [row("mpi", 1e-3), row("gloo", 2e-3, flags=("oversubscribed",))]
    assert fastest_backend(run(PLACE / "d", *unreliable)) == ""
    assert fastest_backend(run(PLACE / "e", row("mpi", 1e-3, wrong=2), row("gloo", 2e-3))) == ""
    operations = ("allreduce", "alltoall", "reduce")
    rows = [row(backend, time_s, operation=name) for name in operations for backend, time_s in (("mpi", 1e-3), ("gloo", 3e-3))]
    equal = [row(backend, 1e-3, operation="broadcast") for backend in ("mpi", "gloo")]
    text = "mpi is the fastest backend in {} (3.0 times as fast as gloo, within one launch){}"
    assert fastest_backend(run(PLACE / "a", *rows)) == text.format("all 3 cases", "")
    assert fastest_backend(run(PLACE / "b", *rows, *equal)) == text.format("3 of 4 cases", "; the others are undecided")


ANSWER = "mpi is 1.80 times as fast as gloo at 1 MiB (1.75–1.85)"


def two_backends(folder: Path) -> None:
    stored(folder / "a", row("gloo", 1.8e-3))
    stored(folder / "b", row("mpi", 1e-3))


class TestCommand:
    """`collbench compare` of runs without a common case, and of more than two."""

    def test_the_answer_is_the_first_line_in_text_and_markdown_and_csv_and_json_have_the_same_rows(self, tmp_path: Path) -> None:
        two_backends(tmp_path)
        done = run_here(tmp_path, "compare", "a", "b")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[0] == ANSWER
        text = run_here(tmp_path, "compare", "a", "b", "--format", "markdown").stdout
        assert text.startswith(f"{ANSWER}\n")
        assert "| 1 MiB | mpi | 1.80 (1.75–1.85) | 1000 | 1800 (1.80×) | 31.46 |" in text.splitlines()
        of_csv = list(csv.DictReader(run_here(tmp_path, "compare", "a", "b", "--format", "csv").stdout.splitlines()))
        page = json.loads(run_here(tmp_path, "compare", "a", "b", "--format", "jsonl").stdout)
        assert [page[name] for name in ("schema", "compares", "alternatives", "margin")] == [1, "backend", ["mpi", "gloo"], 0.05]
        assert page["runs"] == [{"name": "a", "launches": 6}, {"name": "b", "launches": 6}]
        assert page["answer"] == ANSWER
        assert [each["outcome"] for each in page["rows"]] == [each["outcome"] for each in of_csv] == ["fastest", "slower"]
        fast, slow = page["rows"]
        assert list(fast) == list(of_csv[0])
        assert (fast["backend"], fast["run"], fast["size_bytes"], fast["time_ratio"]) == ("mpi", "b", 1 << 20, None)
        assert slow["time_ratio"] == pytest.approx(1.8)
        assert slow["time_ratio_low"] < 1.8 < slow["time_ratio_high"]
        assert (slow["interval_over_launches"], slow["launches"], slow["efficiency"]) == (True, 6, None)
        assert float(of_csv[1]["time_s"]) == slow["time_s"] == pytest.approx(1.8e-3)

    def test_efficiency_is_in_csv(self, tmp_path: Path) -> None:
        for ranks in (2, 4):
            stored(tmp_path / str(ranks), row("mpi", 1e-3 * ranks, ranks=ranks))
        two, four = csv.DictReader(run_here(tmp_path, "compare", "2", "4", "--format", "csv").stdout.splitlines())
        assert (two["efficiency"], two["efficiency_by"]) == ("", "")
        assert (float(four["efficiency"]), four["efficiency_by"]) == (pytest.approx(0.75), "busbw")
        assert (two["outcome"], four["outcome"]) == ("", "")  # other rank counts are not ranked

    def test_what_has_no_alternatives_stays_an_error(self, tmp_path: Path) -> None:
        store(tmp_path / "a", [row("gloo", 1e-3)])
        store(tmp_path / "b", [row("mpi", 1e-3, dtype="int8")])
        store(tmp_path / "c", [row("mpi", 1e-3, size=64, operation="broadcast")])
        two = run_here(tmp_path, "compare", "a", "b")
        assert (two.returncode, two.stderr) == (
            2, "collbench: a and b have no case in common: backend gloo → mpi, dtype float32 → int8\n"
        )  # fmt: skip
        three = run_here(tmp_path, "compare", "a", "b", "c")
        assert (three.returncode, three.stderr) == (2, "collbench: a, b and c have no cases that differ in one field only\n")
        assert run_here(tmp_path, "compare", "a", "c", "a").returncode == 2
        assert "unknown --format 'xml'" in run_here(tmp_path, "compare", "a", "b", "c", "--format", "xml").stderr

    def test_common_cases_are_compared_and_more_than_two_runs_ranked(self, tmp_path: Path) -> None:
        store(tmp_path / "a", [row("mpi", 1e-3), row("gloo", 1e-3)])
        store(tmp_path / "b", [row("mpi", 2e-3)])
        assert run_here(tmp_path, "compare", "a", "b").stdout.startswith("A: a (1 launch)   B: b (1 launch)\n")
        for name, time_s in (("old", 3e-3), ("new", 1e-3), ("newer", 2e-3)):
            stored(tmp_path / name, row("mpi", time_s))
        first = run_here(tmp_path, "compare", "old", "new", "newer").stdout.splitlines()[0]
        assert first == "new is the fastest of 3 at 1 MiB: 2.00 times as fast as newer (1.94–2.06)"


def test_thirteen_stacks_fit_on_one_screen_and_the_slowest_are_dropped_first() -> None:
    folders = list(map(str, STACKS))
    done = run_here(PLACE.parent.resolve(), "compare", *folders)
    assert (len(STACKS), done.returncode) == (13, 0)
    assert len(done.stdout.splitlines()) <= 24
    found = alternatives(sides_of(STACKS))
    assert found is not None
    shown = [line.text for line in lines(found, "table", 80)]
    heading = next(text for text in shown if "fastest " in text and "µs" in text)
    assert max(map(len, shown)) <= 80
    assert "impi µs" in heading and "ucc µs" in heading and "horovod" not in heading
    assert any("horovod µs" in text for text in shown if text.startswith("not shown") or text.startswith("  "))
    assert len(shown) <= 30


def page_of(*sides: Launches) -> tuple[Material, FirstScreen]:
    """The material and the first screen of the page of several runs without a common case."""
    material = Material([run for side in sides for run in side.runs], Path("page.html"))
    screen = first_screen(material)
    assert screen is not None
    return material, screen


class TestPage:
    """The page of several runs without a common case."""

    def test_the_title_figures_and_section(self) -> None:
        material, screen = page_of(GLOO, MPI)
        made = section(material)
        assert made is not None
        assert screen.title == headline(compared(GLOO, MPI))
        assert screen.badge is None
        assert screen.figures == [
            LargeFigure("1.80×", "as fast as gloo: mpi at 1 MiB"), LargeFigure("2.00×", "as fast as mpi: gloo at 64 B"),
        ]  # fmt: skip
        assert (made.key, made.title, made.charts) == ("against", "Alternatives", ())
        ((caption, shown),) = made.tables
        assert caption == "allreduce: cuda · isolated · out of place · fixed buffers · 4 ranks · 1 node"
        assert [line[0] for line in shown.rows] == ["64 B", "1 MiB"]
        assert equal_section(material) is None
        assert not any("no case in common" in text or "0 slower" in text for text in (*screen.more, *made.texts))

    def test_operations_without_a_difference_have_a_section_of_their_own(self) -> None:
        gloo, mpi = (row("gloo", 2e-3), row("gloo", 1e-3, operation="reduce")), (row("mpi", 1e-3), row("mpi", 1e-3, operation="reduce"))
        material, _ = page_of(launched(PLACE / "gloo", *gloo), launched(PLACE / "mpi", *mpi))
        made, equal = section(material), equal_section(material)
        assert made is not None and equal is not None
        assert [caption.partition(":")[0] for caption, _ in made.tables] == ["allreduce"]
        assert [caption.partition(":")[0] for caption, _ in equal.tables] == ["reduce"]

    def test_the_page_of_wrong_inconclusive_and_scaled_runs(self) -> None:
        mpi = run(PLACE / "b", row("mpi", 1e-3))
        assert page_of(run(PLACE / "a", row("gloo", 1e-3, wrong=1)), mpi)[1].badge == (BAD, "WRONG DATA")
        _, screen = page_of(run(PLACE / "a", row("gloo", 1e-3)), mpi)
        assert screen.badge == (DOUBT, "INCONCLUSIVE")
        assert screen.title == "no evidence which of gloo and mpi is faster (one launch each, and no difference above ±5 %)"
        sides = [launched(PLACE / f"{n}", row("mpi", 1e-6 * n, size=0, ranks=n, operation="barrier", **WITHOUT_RATE)) for n in (2, 4)]
        answer = "4 ranks take 2.00 times as long as 2 ranks in barrier (1.94–2.06)"
        _, screen = page_of(*sides)
        assert (screen.badge, screen.title, headline(compared(*sides))) == (None, answer, answer)
        _, screen = page_of(*(launched(PLACE / f"{n}", row("mpi", 1e-3 * n, ranks=n)) for n in (2, 4)))
        assert screen.figures == [LargeFigure("75 %", "of the bus bandwidth of 2 ranks: 4 ranks at 1 MiB")]
        material, _ = page_of(*(run(PLACE / name, make_row(8), make_row(16)) for name in ("a", "b")))
        assert section(material) is None
        against = against_section(material)
        assert against is not None
        assert (material.alternatives, against.title) == (None, "Against the baseline")


def test_report_of_several_runs_ends_with_the_comparison_and_that_of_one_run_has_its_fastest_backend(tmp_path: Path) -> None:
    two_backends(tmp_path)
    shown = run_here(tmp_path, "report", "a", "b").stdout.splitlines()
    assert shown.index(ANSWER) > shown.index("b (6 launches, 1 row)")
    assert run_here(tmp_path, "report", "a", "b", "--html", "page.html").stdout.splitlines()[-1] == ANSWER
    assert f"<h1>{ANSWER}</h1>" in (tmp_path / "page.html").read_text(encoding="utf-8")
    markdown = run_here(tmp_path, "report", "a", "b", "--markdown").stdout.splitlines()
    assert markdown[markdown.index("## Alternatives") + 2] == ANSWER
    store(tmp_path / "one", [row("gloo", 1.8e-3), row("mpi", 1e-3)])
    text = "mpi is the fastest backend at 1 MiB (1.8 times as fast as gloo, within one launch)"
    assert text in run_here(tmp_path, "report", "one").stdout.splitlines()
    assert text not in run_here(tmp_path, "report", "one", "--quiet").stdout
