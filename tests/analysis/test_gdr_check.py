"""GPUDirect RDMA on and off, launches in turns: what the ratio says of the path, and when it says nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from collbench.analysis.gdr_check import Effect, effects, sentences, verdict
from collbench.errors import UsageError
from collbench.results.row import Row
from collbench.stats.launches import Ratio
from tests.results.rows import make_row, make_times, not_measured, store

MIB = 1 << 20
TIMES = [1.00e-3, 1.01e-3, 0.99e-3, 1.00e-3]


def side(factor: float, sizes: tuple[int, ...] = (MIB, 4 * MIB), times: list[float] = TIMES, **changes: Any) -> list[list[Row]]:
    """Launches of one side: every time `factor` as long."""
    return [[make_row(size, time_s=make_times(time * factor), **changes) for size in sizes] for time in times]


def told(found: list[Effect], used: bool | None = None, used_without: bool | None = None) -> list[str]:
    return sentences(found, used, used_without)


def test_twice_as_fast_with_it() -> None:
    assert told(effects(side(1), side(2))) == [
        "GPUDirect RDMA carries the bytes: 1 MiB-4 MiB (2 sizes) are 2.00x (2.00 to 2.00) as fast as without it"
    ]


def test_drift_hits_both_of_a_pair_and_cancels() -> None:
    """Times that double from launch to launch: pairs still agree."""
    drifting = [1e-3, 2e-3, 4e-3, 8e-3]
    (found,) = effects(side(1, (MIB,), drifting), side(1.5, (MIB,), drifting))
    assert (found.verdict, found.over_launches) == ("faster", True)
    assert found.speed.value == pytest.approx(1.5)
    assert found.speed.low == pytest.approx(1.5) and found.speed.high == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("used", "why"),
    [
        (None, "it is not in use, or does not matter"),
        (True, "it is in use, but does not matter here"),
        (False, "it is not in use (NCCL's log)"),
    ],
)
def test_no_difference(used: bool | None, why: str) -> None:
    assert told(effects(side(1), side(1.01)), used) == [f"GPUDirect RDMA makes no difference beyond 5 %: {why}"]


def test_sizes_that_do_not_differ_are_told_apart() -> None:
    a, b = side(1, (1024, MIB)), side(1, (1024, MIB))
    b = [[rows[0], make_row(MIB, time_s=make_times(2 * time))] for rows, time in zip(b, TIMES, strict=True)]
    assert told(effects(a, b)) == [
        "GPUDirect RDMA carries the bytes: 1 MiB is 2.00x (2.00 to 2.00) as fast as without it", "1 KiB: no difference beyond 5 %",
    ]  # fmt: skip


def test_slower_with_it_is_said() -> None:
    assert told(effects(side(2), side(1)))[0].startswith("GPUDirect RDMA slows them down: 1 MiB-4 MiB (2 sizes) are 0.50x (0.50 to 0.50)")


def test_too_wide_to_tell() -> None:
    wide = effects(side(1, times=[1e-3, 1e-3]), side(1, times=[1e-3, 1.4e-3]))
    assert told(wide) == ["GPUDirect RDMA: inconclusive, the intervals are too wide: use more --launches or a longer --max-time"]


def test_a_side_that_did_not_heed_the_level_gives_no_verdict() -> None:
    heeded = "GPUDirect RDMA: inconclusive, NCCL used it on both sides (NCCL_NET_GDR_LEVEL=LOC had no effect)"
    assert told(effects(side(1), side(2)), True, True) == [heeded]


def test_a_difference_without_a_connection_that_uses_it_has_another_cause() -> None:
    assert told(effects(side(1), side(2)), False, False)[1].startswith("but NCCL's log shows")


def test_one_launch_a_side_has_the_interval_within_and_says_so() -> None:
    found = effects(side(1, (MIB,), TIMES[:1]), side(2, (MIB,), TIMES[:1]))
    assert not found[0].over_launches
    assert told(found)[-1] == "intervals of one launch only; use --launches 3"


def test_wrong_data_make_no_verdict() -> None:
    assert effects(side(1, (MIB,), wrong=3), side(2, (MIB,))) == []


def test_cases_that_a_launch_lacks_are_left_out() -> None:
    a, b = side(1), side(2)
    b[1] = [not_measured("out of memory", size_bytes=MIB), b[1][1]]
    assert [each.row.size_bytes for each in effects(a, b)] == [4 * MIB]
    assert told(effects(a, [[]])) == ["GPUDirect RDMA: inconclusive, no case was measured in all launches with and without it"]


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(1.06, 3, "faster"), (0.2, 0.9, "slower"), (0.97, 1.04, "same"), (1.02, 1.3, "unknown"), (None, None, "unknown")],
)
def test_what_an_interval_says(low: float | None, high: float | None, verdict: str) -> None:
    assert Effect(make_row(MIB), Ratio(1.0, low, high, 4), True).verdict == verdict


def test_from_the_folders_of_launches(tmp_path: Path) -> None:
    folders: dict[str, list[Path]] = {}
    for name, factor, state in (("with", 1, "proven used"), ("without", 1.9, "capable, not used")):
        for number, rows in enumerate(side(factor, evidence={"gpudirect": {"state": state, "why": "x"}})):
            folder = tmp_path / name / f"launch-{number + 1}"
            store(folder, rows)
            folders.setdefault(name, []).append(folder)
    assert verdict(folders["with"], folders["without"]) == [
        "GPUDirect RDMA carries the bytes: 1 MiB-4 MiB (2 sizes) are 1.90x (1.90 to 1.90) as fast as without it"
    ]
    with pytest.raises(UsageError):
        verdict([tmp_path / "nothing"], folders["without"])
